"""Measurements on the weights of runs: entropy of attention per head, learned parameters before and after, memory.

It is computed from the newest checkpoint of one run per encoding, by `measure` in a process of its own, and kept beside
it as probe.json for the next report.
"""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from train.engine.outside import missing_options, own_encodings
from train.engine.run_files import written_steps
from train.report.probe_file import FILE, Probe, read_probe, write_probe
from train.report.records import Run
from train.report.texts import plain

SECONDS = 900
"""Time for the weights of a run."""

FARTHEST = 64
"""Largest multiple of the trained size at which the entropy is measured."""


def probes_of(runs: Sequence[Run], data: Sequence[str], console: Console) -> tuple[dict[Path, Probe], dict[str, str]]:
    """Return the probes of runs by folder, and by place the reasons of runs without one.

    Args:
        runs: one per encoding; those without a checkpoint or a config have no probe.
        data: specs of data in files that may be read.
        console: prints to the user which probe is measured.
    """
    probes: dict[Path, Probe] = {}
    reasons: dict[str, str] = {}
    for number, run in enumerate(runs, 1):
        try:
            entry = _probe(run, data, console, f"{number} of {len(runs)}")
        except (OSError, ValueError) as why:
            reasons[run.place] = plain(f"{why}")
        else:
            probes[entry[0]] = entry[1]
    return probes, reasons


def _probe(run: Run, data: Sequence[str], console: Console, number: str) -> tuple[Path, Probe]:
    """Return the folder and the probe of a run: that of an earlier report, or measured now.

    Raises:
        OSError, ValueError: why there is none.
    """
    if run.folder is None or run.config is None:
        raise ValueError("there is only a line of results.jsonl, no checkpoint")
    if run.program == "tune":
        raise ValueError("the weights of fine-tuned models are not measured")
    steps = written_steps(run.folder)
    if not steps:
        raise ValueError("it has no checkpoint")
    sizes = _sizes(run)
    probe = read_probe(run.folder / FILE, steps[0])
    if probe is not None and {str(size) for size in sizes} <= {*probe.entropies, *probe.refused}:
        return run.folder, probe
    if own_encodings(run.config):
        raise ValueError(f"{' and '.join(own_encodings(run.config))} is in a module, and a report imports none")
    options = missing_options(run.config, data)
    if options:
        raise ValueError(f"needs {options}")
    console.print(plain(f"reading the weights of {run.place} ({number}) ..."), markup=False)
    measured = measure_apart(run.folder, run.scored[0].trained, sizes, data, console)
    try:
        write_probe(measured, run.folder / FILE)
    except OSError as refused:
        what = f"{run.folder / FILE} is not kept for the next report: {refused.strerror}"
        console.print(plain(what), markup=False)
    return run.folder, measured


def _sizes(run: Run) -> list[int]:
    """Return the trained and the largest size or length that the run was measured at."""
    scored = next((evaluation for evaluation in run.scored if evaluation.extend == "none"), run.scored[0])
    sizes = {size for by_size in scored.scores.values() for size in by_size if size <= FARTHEST * scored.trained}
    return sorted({scored.trained, max(sizes, default=scored.trained)})


def measure_apart(folder: Path, trained: int, sizes: Sequence[int], data: Sequence[str], console: Console) -> Probe:
    """Return the probe of a run as another process measures it; the arguments are those of `measure.measure`.

    Raises:
        ValueError: the process refused, broke or took too long.
    """
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / FILE
        options = [f"--trained={trained}", *(f"--size={size}" for size in sizes), *(f"--data={text}" for text in data)]
        command = ("-m", "train.compare.guarded", "-m", "train.report.measure", f"{folder.absolute()}", f"{path}")
        try:
            child = subprocess.run(
                [sys.executable, *command, *options], stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS,
                check=False, encoding="utf-8", errors="replace",
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise ValueError(f"its weights took longer than {SECONDS} seconds") from None
        for line in child.stdout.splitlines():
            console.print(plain(line), markup=False)
        probe = read_probe(path)
    if probe is None:
        nothing = "its weights give no numbers that can be shown"
        last = child.stderr.strip().splitlines() or [f"the process ended with status {child.returncode}"]
        raise ValueError(last[-1].removeprefix("error: ") if child.returncode else nothing)
    return probe
