"""How commands end: every plain error is one line, and no signal is lost."""

import os
import signal
import sys
import time

import pytest
from jax.errors import JaxRuntimeError

from tests.support.cli import refused
from train.engine import stopping
from train.engine.files import write_atomic
from train.engine.stopping import report_errors, stop_on_signals


@pytest.fixture
def ended(monkeypatch):
    """Statuses with which the process would have ended at once."""
    statuses = []

    def end(status: int):
        statuses.append(status)
        raise SystemExit(status)

    monkeypatch.setattr(stopping.os, "_exit", end)
    monkeypatch.setattr(sys, "unraisablehook", lambda report: None)
    return statuses


def stopped(capfd, body, number=signal.SIGINT) -> str:
    """Run a body that sends itself a signal, and return what is said at the end; the handlers are those of before."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    handlers = [signal.getsignal(signum) for signum in numbers]

    def run():
        body(number)
        until = time.monotonic() + 30
        while time.monotonic() < until:  # a signal in a loop right inside `with` passes by its exit in Python 3.13
            pass
        pytest.fail("the signal was lost")

    def work():
        with stop_on_signals(lambda: "go on with: --out='a\udcff'"):
            run()

    with pytest.raises(SystemExit):
        work()
    assert [signal.getsignal(signum) for signum in numbers] == handlers
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    return capfd.readouterr().err


SAID = "stopped; go on with: --out='a\\udcff'\n"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_ends_with_a_line_and_its_status(number, status, ended, capfd):
    assert stopped(capfd, signal.raise_signal, number) == SAID
    assert ended == [status]


def test_a_signal_that_a_callback_swallows_is_raised_again(ended, capfd):
    class Collected:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)
            time.sleep(0)  # where Python looks for signals

    def body(number):
        del number
        Collected()

    assert stopped(capfd, body) == SAID
    assert ended == [130]


def test_a_signal_that_code_swallows_is_raised_again(ended, capfd):
    def body(number):
        for _ in range(2):
            try:
                signal.raise_signal(number)
                time.sleep(10)
            except BaseException:  # as libraries do
                number = 0

    assert stopped(capfd, body) == SAID
    assert ended == [130]


def test_what_must_happen_before_the_end_is_not_interrupted(ended, capfd, tmp_path, monkeypatch):
    """A temporary file is deleted, although that takes longer than the time after which a stop is raised again."""
    unlink, replace = os.unlink, os.replace

    def slowly(path, **options):
        until = time.monotonic() + 4 * stopping.REPEATED
        while time.monotonic() < until:
            try:
                raise OSError
            except OSError:
                pass
        unlink(path, **options)

    def interrupted(*paths, **options):
        signal.raise_signal(signal.SIGINT)
        return replace(*paths, **options)

    monkeypatch.setattr(os, "unlink", slowly)
    monkeypatch.setattr(os, "replace", interrupted)
    assert stopped(capfd, lambda number: write_atomic(tmp_path / "file", "text")) == SAID
    assert list(tmp_path.iterdir()) == []


def test_an_error_that_a_library_makes_of_a_stop_is_a_stop(ended, capfd):
    def body(number):
        try:
            signal.raise_signal(number)
        except BaseException:
            raise ImportError("a module failed") from None

    assert stopped(capfd, body) == SAID


def test_a_second_signal_ends_at_once(ended, capfd):
    def body(number):
        try:
            signal.raise_signal(number)
        finally:
            assert signal.getsignal(signal.SIGINT) == signal.getsignal(signal.SIGTERM) == signal.SIG_DFL

    assert stopped(capfd, body) == SAID


def test_other_errors_pass_through():
    with pytest.raises(KeyError), stop_on_signals(lambda: "never"):
        raise KeyError("a")


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        (ValueError("pe must be\n  known"), "error: pe must be known"),
        (ValueError(), "error: ValueError"),
        (MemoryError(), "error: MemoryError"),
        (MemoryError("Unable to allocate 1 TiB"), "error: Unable to allocate 1 TiB"),
        (JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory"), "error: RESOURCE_EXHAUSTED: Out of memory"),
        (ValueError("no folder \x1b[31m\udcff"), "error: no folder \\x1b[31m\\udcff"),
    ],
)
def test_an_error_is_one_line(wrong, line, capsys):
    def command():
        with report_errors(ValueError):
            raise wrong

    assert refused(capsys, command) == f"{line}\n"


@pytest.mark.parametrize("wrong", [KeyError("a"), JaxRuntimeError("INTERNAL: a bug"), BrokenPipeError()])
def test_errors_of_other_kinds_are_not_hidden(wrong):
    with pytest.raises(type(wrong)), report_errors(ValueError, OSError):
        raise wrong
