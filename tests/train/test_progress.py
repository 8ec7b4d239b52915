"""What a run reports when its disk is full."""

import errno

import pytest
from rich.console import Console
from tensorboardX.event_file_writer import EventsWriter

from train.engine.progress import TOKENS, Report


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
