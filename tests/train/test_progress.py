"""What a run reports when its disk is full, and what a program prints while it is silent."""

import errno
import io
import math
import threading

import pytest
from rich.console import Console
from tensorboardX.event_file_writer import EventsWriter

from train.engine import heartbeat
from train.engine.heartbeat import Heartbeat
from train.engine.progress import TOKENS, Evaluating, Report, last_progress


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_full_disk_ends_the_report_and_does_not_hang_it(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    report = Report(tmp_path, 0, 100, TOKENS, Console(quiet=True))
    monkeypatch.setattr(EventsWriter, "write_event", full)
    values = {f"value_{i}": 1.0 for i in range(20)}  # more than the writer would queue by default
    report.write(1, values)
    report.board.file_writer.event_writer._worker.join(60)
    with pytest.raises(OSError, match="tensorboard can no longer be written"):
        report.write(2, values)
    with report:
        pass  # closes


def test_of_nested_activities_the_inner_one_breaks_the_silence(monkeypatch):
    monkeypatch.setattr(heartbeat, "SILENT_SECONDS", 0.01)
    inner, outer, console = threading.Event(), threading.Event(), Console(file=io.StringIO())
    line = lambda event, text: lambda: (event.set(), text)[1]
    with Heartbeat(console, line(outer, "outer")):
        with Heartbeat(console, line(inner, "inner")):
            assert inner.wait(60)
        assert outer.wait(60)
    lines = console.file.getvalue().splitlines()
    assert lines == sorted(lines)  # "inner", then "outer", each at least once
    assert set(lines) == {"inner", "outer"}


def test_training_and_evaluation_say_what_they_do_from_the_start(tmp_path):
    console = Console(file=io.StringIO())
    with Report(tmp_path, 0, 100, TOKENS, console) as report:
        compiling = report._now()
        report.current = 3
        assert last_progress(report._now()).where == "step 3/100"
        report(4, {"loss": 1.0, "count": 1.0}, {})
        report.current = 5
        assert math.isfinite(last_progress(report._now()).seconds)
    with Evaluating(console, 2.0) as progress:
        assert last_progress(progress._now()).where == "evaluating"
    assert last_progress(compiling).where == "compiling the training step"
    assert console.file.getvalue() == "compiling the training step ...\nevaluating · compiling\n"
