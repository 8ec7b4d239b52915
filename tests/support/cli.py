"""What the tests of command lines share: refusals in one line, stopped and resumed runs, compiled programs on disk."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

from tests.support.metric_lines import timeless
from tests.support.programs import compilation_options

Train = Callable[..., int]
"""`(out, *flags)` runs the command line of a program with the run folder `out` and returns its status."""


def refused(capsys: pytest.CaptureFixture[str], call: Callable[[], Any]) -> str:
    """Return the one line in which a command refuses, with status 2."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        call()
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    return error


def assert_bad_options(capsys: pytest.CaptureFixture[str], train: Train, out: Path, flags: str, message: str) -> None:
    """Check that options are refused with this message, and before the run folder is made."""
    assert message in refused(capsys, lambda: train(out, *flags.split()))
    assert not out.exists()


def outcome(out: Path) -> tuple[list[dict], str]:
    """Return what a run reported and found, without the times."""
    return timeless(out), (out / "results.json").read_text()


def assert_resumes(train: Train, finished_run: Path, out: Path, *flags: str) -> None:
    """Check that a run which stops and is resumed has the outcome, to the bit, of the uninterrupted run.

    Args:
        train: the command line.
        finished_run: folder of the uninterrupted run.
        out: folder of the other run.
        flags: of the first command, `--stop_at` among them.
    """
    assert train(out, *flags) == 0
    assert not (out / "results.json").exists()
    assert train(out, "--resume") == 0
    assert outcome(out) == outcome(finished_run)


@contextlib.contextmanager
def programs_on_disk(folder: Path, seconds: float = 0.1, **options: Any) -> Iterator[None]:
    """Keep compiled programs on disk: runs of one configuration compile the same ones.

    Args:
        folder: holds them where pytest has no cache.
        seconds: programs that take less to compile are not kept.
        **options: further options of JAX.
    """
    if jax.config.values["jax_compilation_cache_dir"] is None:
        options |= {"jax_compilation_cache_dir": str(folder), "jax_persistent_cache_min_compile_time_secs": seconds}
    with compilation_options(**options):
        yield
