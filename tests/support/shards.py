"""`--shard=I/N`: one of N equal parts of the tests of a run."""

import argparse

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shard", type=shard, metavar="I/N", help="run every N-th test from number I on, I from 0 to N - 1"
    )


def shard(text: str) -> tuple[int, int]:
    """Read `I/N`."""
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise argparse.ArgumentTypeError(f"must be I/N with I from 0 to N - 1, got {text!r}")
    return int(index), int(count)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the shard, of those that `-m` and `-k` have kept."""
    if config.option.shard is not None:
        index, count = config.option.shard
        config.hook.pytest_deselected(items=[item for n, item in enumerate(items) if n % count != index])
        items[:] = items[index::count]
