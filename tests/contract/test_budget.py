"""What a run of the tests says of its time, and its parts: `tests/support/budget.py` and `shards.py`."""

import argparse
from types import SimpleNamespace

import budget
import pytest
import shards


def report(nodeid, duration, *markers):
    return SimpleNamespace(nodeid=nodeid, duration=duration, keywords=dict.fromkeys(markers, 1))


def ending(*reports, allowed=None):
    """Return the lines that a run with these reports ends with, on a machine that is allowed so many seconds."""
    lines, run = [], budget.Budget()
    for one in reports:
        run.pytest_runtest_logreport(one)
    line = lambda text, **markup: lines.append(text)
    with pytest.MonkeyPatch.context() as patch:
        if allowed is not None:
            patch.setattr(budget, "calibration", lambda: budget.REFERENCE * allowed / budget.SECONDS)
        run.pytest_terminal_summary(SimpleNamespace(section=line, line=line))
    return lines


def test_a_run_ends_with_its_slowest_tests_and_the_time_by_folder():
    phases = [report("tests/ops/test_a.py::test_x[1]", 2.0), report("tests/ops/test_a.py::test_x[1]", 0.5)]
    many = [report(f"tests/train/test_b.py::test_{n}", 0.1 * n) for n in range(1, 13)]
    lines = ending(*phases, *many)
    assert lines[:3] == [
        "time",
        "    2.5 s  tests/ops/test_a.py::test_x[1]",
        "    1.2 s  tests/train/test_b.py::test_12",
    ]
    assert lines[-1] == "   10.3 s  in all: train 8, ops 2"
    assert len(lines) == 12
    assert ending() == []


def test_default_tests_over_budget_are_warned_of_and_slow_ones_are_not_counted():
    default, slow = report("tests/ops/test_a.py::test_x", 120.0), report("tests/ops/test_a.py::test_y", 999.0, "slow")
    over, within = (ending(default, slow, allowed=allowed) for allowed in (100, 130))
    assert over[-2] == "  120.0 s  in the default run; five minutes here are 100 s"
    assert over[-1].startswith("warning: the default run is over its budget")
    assert within[-1] == "  120.0 s  in the default run; five minutes here are 130 s"


def test_every_test_is_in_one_shard():
    found = []
    for number in range(3):
        items, left_out = [*range(10)], []
        hook = SimpleNamespace(pytest_deselected=lambda items, left_out=left_out: left_out.extend(items))
        config = SimpleNamespace(option=SimpleNamespace(shard=shards.shard(f"{number}/3")), hook=hook)
        shards.pytest_collection_modifyitems(config, items)
        assert sorted(items + left_out) == [*range(10)]
        found += items
    assert sorted(found) == [*range(10)]


@pytest.mark.parametrize("text", ["3/3", "1", "/2", "-1/2", "a/b"])
def test_a_shard_that_there_is_not_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match=r"must be I/N with I from 0 to N - 1, got"):
        shards.shard(text)
