"""The runs of a comparison: their folders, their outcomes, and their training and evaluation in own processes.

FOLDER/runs/NAME-SEED/       a run folder of the trainer, with outcome.json beside its files
FOLDER/sweep/NAME-SEED/      the same for the candidates of a sweep
FOLDER/log/NAME-SEED.txt     what its processes printed
FOLDER/results.jsonl         one line per result
FOLDER/table.md              the table
"""

import dataclasses
import json
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import Any, NamedTuple

from train.compare.options import Candidate, Comparison
from train.engine.config import RunConfig
from train.engine.files import parse_object, read_sealed, read_text, with_digest, write_atomic
from train.engine.options import names_of
from train.engine.outside import own_encodings
from train.engine.results import Evaluation, results_stem
from train.engine.run_files import has_trained, require_no_run
from train.engine.stopping import INTERRUPTED
from train.engine.stored_config import load_config, require_same

OUTCOME = "outcome.json"
"""File of the outcome of a run, beside those of the trainer."""

LINES, TABLE = "results.jsonl", "table.md"
"""Files of the outcomes of all runs, in the folder of the comparison."""


class Run(NamedTuple):
    """A run of one setting with one seed.

    Attributes:
        candidate: the setting.
        seed: seed of the run.
        folder: run folder.
        log: file for the output of its processes.
        validation: fraction of the training data that it is evaluated on; 0 = evaluated on the test data.
        extensions: extensions of the evaluations.
    """

    candidate: Candidate
    seed: int
    folder: Path
    log: Path
    validation: float
    extensions: tuple[str, ...]

    @property
    def label(self) -> str:
        """The setting and the seed in words."""
        return f"{self.candidate.label} seed {self.seed}"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The end of a run.

    Args:
        status: `done`, `diverged` (a step that was not finite or a spike), `refused` (by the trainer), `failed`, or
            `stopped` by a signal.
        message: the error of the trainer; empty if done.
        seconds: time of its processes.
        refused: extension -> why the trainer refused to evaluate with it.
    """

    status: str
    message: str = ""
    seconds: float = 0.0
    refused: dict[str, str] = dataclasses.field(default_factory=dict)


def run_of(comparison: Comparison, candidate: Candidate, seed: int, validation: float = 0.0) -> Run:
    """Return the run of a setting with a seed; `validation` above 0 makes it one of a sweep."""
    name = folder_name(candidate.label, seed)
    kind = "sweep" if validation else "runs"
    # a sweep is evaluated with the first extension alone, which is the one that it chooses by
    extensions = comparison.extensions[:1] if validation else comparison.extensions
    log = comparison.folder / "log" / f"{kind}-{name}.txt"
    return Run(candidate, seed, comparison.folder / kind / name, log, validation, extensions)


def folder_name(label: str, seed: int) -> str:
    """Return the name of the folder of a run of one setting."""
    return f"{re.sub(r'[^A-Za-z0-9.=,-]+', '_', label)}-{seed}"


def require_distinct(runs: Sequence[Run]) -> None:
    """Check that no two runs share a folder.

    Raises:
        ValueError: naming both.
    """
    by_folder: dict[Path, Run] = {}
    for run in runs:
        other = by_folder.setdefault(run.folder, run)
        if other is not run:
            rule = "runs of one comparison must have folders of their own"
            raise ValueError(f"{rule}, got {other.candidate.label!r} and {run.candidate.label!r} for {run.folder}")


def require_own_folder(folder: Path) -> None:
    """Check that a comparison replaces no table or list of results but its own.

    Raises:
        ValueError: naming a file that no comparison wrote.
    """
    lines = folder / LINES
    if lines.exists():
        first = read_text(lines).partition("\n")[0]
        if first and not {"task", "pe", "trained", "seed"} <= parse_object(first, f"the first line of {lines}").keys():
            raise ValueError(f"{lines} must be written by train.compare, got another file: give another --out")
    elif (folder / TABLE).exists():
        raise ValueError(f"out must be a folder without {TABLE}, which train.compare writes, got {folder}")


def require_own(comparison: Comparison, run: Run) -> None:
    """Check that a run folder that exists holds this run, with the budget of this comparison.

    Raises:
        ValueError: naming the folder, and the setting that differs, or the thing in the place of its results.
    """
    for extend in run.extensions:
        path = run.folder / f"{results_stem(extend)}.json"
        if path.is_dir():  # else the evaluation that cannot write there would count as one that the trainer refused
            raise ValueError(f"{path} must be a file of results, got a folder")
    if not has_trained(run.folder):
        require_no_run(run.folder, overwrite=False)
        return
    config: RunConfig = comparison.config(run.candidate, run.seed, run.folder, run.validation)
    measured = [name for name in names_of(config, "free") if name.startswith("eval_")]  # may change in a run alone
    measured += comparison.program.results.sampled_with
    try:
        require_same(load_config(type(config), run.folder), config, also=measured)
    except ValueError as differs:
        raise ValueError(f"{run.folder} must hold a run of this comparison: {differs}; give another --out") from None


def outcome(run: Run) -> Outcome | None:
    """Return the outcome of a run, or None if it has not ended.

    Raises:
        ValueError: a damaged file.
    """
    path = run.folder / OUTCOME
    if not path.is_file():
        return None
    try:
        return Outcome(**read_sealed(path))
    except (ValueError, TypeError) as wrong:
        raise ValueError(f"{OUTCOME} must be written by train.compare, got {path}: {wrong}") from None


def is_done(run: Run) -> bool:
    """Return whether there is nothing left to do for a run; one that failed, was refused or was stopped goes on."""
    run_outcome = outcome(run)
    if run_outcome is None or run_outcome.status in ("failed", "refused", "stopped"):
        return False
    return run_outcome.status != "done" or all(is_evaluated(run, extend, run_outcome) for extend in run.extensions)


def is_evaluated(run: Run, extend: str, run_outcome: Outcome) -> bool:
    """Return whether a run was evaluated with an extension, or the trainer refused to."""
    return extend in run_outcome.refused or (run.folder / f"{results_stem(extend)}.json").is_file()


def execute(comparison: Comparison, run: Run, launch: Callable[[list[str], Path], tuple[int, str]]) -> Outcome:
    """Train a run, or go on with it, evaluate it with every extension, and write its outcome.

    Args:
        comparison: the run is part of.
        run: run to execute.
        launch: `(arguments of python, log) -> (exit status, the last line of its errors)`.
    """
    began, earlier = time.monotonic(), outcome(run)
    spent = earlier.seconds if earlier else 0.0
    run_outcome = earlier if earlier and earlier.status == "done" else None
    if run_outcome is None:
        options = comparison.command(run.candidate, run.seed, run.folder, run.validation)
        options += ["--resume"] if has_trained(run.folder) else []
        status, error = launch(["-m", f"train.{comparison.task}", *options], run.log)
        run_outcome = Outcome(_status(run, status), error if status else "", spent + time.monotonic() - began)
        _write(run, run_outcome)
    for extend in run.extensions if run_outcome.status == "done" else ():
        if not is_evaluated(run, extend, run_outcome):
            config = comparison.config(run.candidate, run.seed, run.folder, run.validation)
            command = ["-m", "train.evaluate", str(run.folder), f"--extend={extend}", f"--data={config.data}"]
            command += [f"--pe={','.join(encodings)}"] if (encodings := own_encodings(config)) else []
            status, error = launch(command, run.log)
            if status and _status(run, status) == "stopped":
                break
            if status:
                run_outcome = dataclasses.replace(run_outcome, refused={**run_outcome.refused, extend: error})
            run_outcome = dataclasses.replace(run_outcome, seconds=spent + time.monotonic() - began)
            _write(run, run_outcome)
    return run_outcome


def _status(run: Run, status: int) -> str:
    if status == 0:  # as after SIGTERM, when everything is saved
        return "done" if (run.folder / f"{results_stem('none')}.json").is_file() else "stopped"
    if status in (-SIGTERM, -SIGINT, INTERRUPTED):
        return "stopped"
    if any(run.folder.glob("offending-*")):
        return "diverged"
    return "refused" if status == 2 else "failed"


def _write(run: Run, run_outcome: Outcome) -> None:
    run.folder.mkdir(parents=True, exist_ok=True)
    write_atomic(run.folder / OUTCOME, json.dumps(with_digest(dataclasses.asdict(run_outcome)), indent=2) + "\n")


def load(comparison: Comparison, run: Run) -> dict[str, Evaluation]:
    """Return the results of a run by extension, without refused ones."""
    files = {extend: run.folder / f"{results_stem(extend)}.json" for extend in run.extensions}
    return {extend: comparison.program.results.load(path) for extend, path in files.items() if path.is_file()}


def record(comparison: Comparison, run: Run, run_outcome: Outcome) -> dict[str, Any]:
    """Return one line of results.jsonl."""
    measured = load(comparison, run)
    made_by = {extend: evaluation.made_by for extend, evaluation in measured.items() if evaluation.made_by}
    return {
        "task": comparison.task, "pe": run.candidate.encoding, "trained": run.candidate.label, "seed": run.seed,
        "validation": run.validation, **dataclasses.asdict(run_outcome),
        "scores": {extend: evaluation.scores for extend, evaluation in measured.items()},
        **({"made_by": made_by} if made_by else {}),
    }  # fmt: skip
