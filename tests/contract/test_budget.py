"""What a run of the tests says of its time, and its parts: `tests/support/budget.py` and `shards.py`."""

import argparse
from types import SimpleNamespace

import pytest

from tests.support import budget, shards


def report(nodeid, duration, *markers):
    return SimpleNamespace(nodeid=nodeid, duration=duration, keywords=dict.fromkeys(markers, 1))


def ending(*reports, allowed=None, shard=None):
    """Return the lines that a run with these reports ends with, and its status; the machine may take `allowed`."""
    lines, run = [], budget.Budget()
    for item in reports:
        run.pytest_runtest_logreport(item)
    line = lambda text, **markup: lines.append(text)
    session = SimpleNamespace(config=SimpleNamespace(option=SimpleNamespace(shard=shard)), exitstatus=0)
    with pytest.MonkeyPatch.context() as patch:
        if allowed is not None:
            patch.setattr(budget, "calibration", lambda: budget.REFERENCE * allowed / budget.SECONDS)
        run.pytest_sessionfinish(session)
    run.pytest_terminal_summary(SimpleNamespace(section=line, line=line))
    return lines, session.exitstatus


def test_a_run_ends_with_its_slowest_tests_and_the_time_by_folder():
    phases = [report("tests/ops/test_a.py::test_x[1]", 2.0), report("tests/ops/test_a.py::test_x[1]", 0.5)]
    many = [report(f"tests/train/test_b.py::test_{n}", 0.1 * n) for n in range(1, 13)]
    lines, _ = ending(*phases, *many)
    assert lines[:3] == [
        "time",
        "    2.5 s  tests/ops/test_a.py::test_x[1]",
        "    1.2 s  tests/train/test_b.py::test_12",
    ]
    assert lines[-1] == "   10.3 s  in all: train 8, ops 2"
    assert len(lines) == 12
    assert ending() == ([], 0)


def test_default_tests_over_budget_are_warned_of_and_slow_ones_are_not_counted():
    default, slow = report("tests/ops/test_a.py::test_x", 120.0), report("tests/ops/test_a.py::test_y", 99.0, "slow")
    (over, bad), (within, good) = (ending(default, slow, allowed=allowed) for allowed in (100, 130))
    assert over[-3] == "  120.0 s  in the default run; five minutes here are 100 s"
    assert over[-2].startswith("warning: the default run is over its budget")
    assert within[-2] == "  120.0 s  in the default run; five minutes here are 130 s"
    assert bad == good == 0


@pytest.mark.parametrize(
    ("part", "shard", "status"), [(0.99, None, 0), (1.01, None, 1), (0.198, (3, 5), 0), (0.202, (3, 5), 1)]
)
def test_slow_tests_over_budget_fail_the_run_and_long_ones_are_not_counted(part, shard, status):
    seconds = part * budget.SLOW
    slow, long = (
        report(f"tests/ops/test_a.py::test_{n}", n, *marks)
        for n, marks in ((seconds, ("slow",)), (2 * budget.SLOW, ("slow", "long")))
    )
    lines, ended = ending(slow, long, allowed=budget.SECONDS, shard=shard)
    assert ended == status
    assert any(line.startswith("error: the slow tests are over their budget") for line in lines) == bool(status)


class Item(SimpleNamespace):
    """A test without a parameter that has these fixtures of its module."""

    def __init__(self, nodeid, *shared):
        versions = {name: [SimpleNamespace(scope="module", baseid="tests")] for name in shared}
        versions["tmp_path"] = [SimpleNamespace(scope="function", baseid="")]
        super().__init__(nodeid=nodeid, path="test_a.py", _fixtureinfo=SimpleNamespace(name2fixturedefs=versions))


def parts(items, count):
    """Return the tests of each of so many shards."""
    for number in range(count):
        rest, left_out = [*items], []
        hook = SimpleNamespace(pytest_deselected=lambda items, left_out=left_out: left_out.extend(items))
        config = SimpleNamespace(option=SimpleNamespace(shard=shards.shard(f"{number}/{count}")), hook=hook)
        shards.pytest_collection_modifyitems(config, rest)
        assert sorted(item.nodeid for item in rest + left_out) == sorted(item.nodeid for item in items)
        yield [item.nodeid for item in rest]


def test_every_test_is_in_one_shard():
    assert [*parts([Item(number) for number in range(7)], 3)] == [[0, 3, 6], [1, 4], [2, 5]]


def test_tests_that_share_a_fixture_of_their_module_are_in_one_shard():
    items = [Item(0, "whole"), Item(1), Item(2, "whole"), Item(3, "whole", "folder"), Item(4, "whole")]
    assert [*parts(items, 3)] == [[0, 2, 4], [1], [3]]


@pytest.mark.parametrize("text", ["3/3", "1", "/2", "-1/2", "a/b"])
def test_a_shard_that_there_is_not_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match=r"must be I/N with I from 0 to N - 1, got"):
        shards.shard(text)
