"""`--shard=I/N`: one of N parts of the tests of a run; tests that share a fixture of their module stay together."""

import argparse
from collections.abc import Hashable

import pytest

OWN = "function"
"""Scope of what is made anew for each test."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shard",
        type=shard,
        metavar="I/N",
        help="run part I of N, from 0 to N - 1; tests that share a fixture stay together",
    )


def shard(text: str) -> tuple[int, int]:
    """Read `I/N`."""
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise argparse.ArgumentTypeError(f"must be I/N with I from 0 to N - 1, got {text!r}")
    return int(index), int(count)


def group(item: pytest.Item) -> Hashable:
    """Return what the tests that share a module's fixture, at one value of its parameter, have in common."""
    fixtures = item._fixtureinfo.name2fixturedefs if hasattr(item, "_fixtureinfo") else {}
    shared = sorted(name for name, versions in fixtures.items() if versions[-1].scope != OWN and versions[-1].baseid)
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return (item.path, *((name, str(params.get(name))) for name in shared)) if shared else item.nodeid


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the shard, of those that `-m` and `-k` have kept."""
    if config.option.shard is not None:
        index, count = config.option.shard
        places: dict[Hashable, int] = {}  # groups in turn: neighbors cost alike
        turns = [places.setdefault(group(item), len(places)) % count for item in items]
        config.hook.pytest_deselected(items=[item for item, turn in zip(items, turns, strict=True) if turn != index])
        items[:] = [item for item, turn in zip(items, turns, strict=True) if turn == index]
