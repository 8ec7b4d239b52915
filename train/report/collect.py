"""Reading: run folders and results.jsonl below the given folders -> runs, and omissions with their reasons.

Everything may come from somebody else: sizes of files, numbers, texts and the time for a folder have limits.
"""

import fnmatch
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from train.compare.runs import OUTCOME
from train.engine import environment
from train.engine.config import RunConfig
from train.engine.files import read_sealed
from train.engine.programs import program
from train.engine.progress import read_metrics
from train.engine.results import Evaluation, results_stem
from train.engine.stored_config import load_config, program_of
from train.report.lines import HELD_OUT, read_lines
from train.report.records import Found, Left, Run
from train.report.sound import require_finite, require_sound, require_texts
from train.report.walk import COMPARISON, RUN, Place, is_file, places

NAMED = 20
"""Most items of one folder that are left out by name; more are counted."""

EVALUATIONS, RESULTS, METRICS = 50, 2**20, 8 * 2**20
"""Most evaluations of a run, and most bytes of the files of an evaluation and of metrics that are read."""

SECONDS = 5.0
"""Time for a folder, after which the rest of it is left out."""

Leave = Callable[[object, object], None]
"""Called with each omission and its reason."""


def collect(folders: Sequence[Path]) -> Found:
    """Read all runs in and below the folders.

    Raises:
        ValueError: one of them is no folder.
    """
    for folder in folders:
        if not folder.is_dir():
            kind = "a file" if folder.exists() else "nothing"
            raise ValueError(f"a report needs folders with runs, got {kind} at {folder}")
    collection, seen = Found([], []), set[str]()
    by_folder: dict[Path, list[Left]] = {}  # by the folder that the items are in
    note = lambda path, why: by_folder.setdefault(path.parent, []).append(Left(f"{path}", why))
    for folder in folders:
        for place in places(folder, note, seen):
            inside: list[Left] = []
            try:
                if not _read(place, collection.runs, inside):
                    note(place.path, "no run folder of a trainer: no config.json")
            except OSError as refused:
                inside.append(Left(f"{place.path}", f"cannot be read: {refused.strerror or refused}"))
            _extend(collection.left, inside, place.path)
    for parent, omissions in by_folder.items():
        _extend(collection.left, omissions, parent)
    return collection


def _extend(omissions: list[Left], additions: list[Left], folder: Path) -> None:
    """Add the omissions in a folder; of many items, some and the number of the others."""
    omissions += additions[:NAMED]
    if len(additions) > NAMED:
        omissions.append(Left(f"{len(additions) - NAMED:,} more in {folder}", f"the last: {additions[-1].why}"))


def _read(place: Place, runs: list[Run], omissions: list[Left]) -> bool:
    """Read one folder: a run, a comparison, or what they are in; return whether it is one of these."""
    path, compared = place.path, COMPARISON in place.names
    leave: Leave = lambda what, why: omissions.append(
        Left(f"{what}", " ".join(f"{why}".replace(f"{path}/", "").split()))
    )
    if compared:
        runs += read_lines(path, leave)
    if RUN in place.names:
        _read_run(place, runs, leave)
    elif OUTCOME in place.names:
        leave(path, unfinished(place))
    else:
        return compared or path.name == "log" or place.folders
    return True


def _read_run(place: Place, runs: list[Run], leave: Leave) -> None:
    """Read a run folder: a run if it has an evaluation, else the reason why not."""
    folder, until = place.path, time.monotonic() + SECONDS
    try:
        name, config = _config(folder)
    except (OSError, ValueError) as wrong:  # of a folder that a link leads to, nothing is quoted
        leave(folder, "a link to a folder without a run of a trainer" if place.linked else wrong)
        return
    if config.validation:
        leave(folder, f"{HELD_OUT} (validation={config.validation:g})")
        return
    names = sorted(fnmatch.filter(place.names, "results*.json"), key=lambda file: file.removesuffix(".json"))
    scored: list[Evaluation] = []
    for number, file in enumerate(names):
        if number == EVALUATIONS or time.monotonic() > until:
            rule = f"a report reads {EVALUATIONS} evaluations of a run at most, and for {SECONDS:g} seconds"
            leave(folder, f"{len(names) - number:,} of its evaluations: {rule}")
            break
        try:
            scored.append(_evaluation(name, folder / file))
        except ValueError as wrong:
            leave(folder / file, wrong)
    if not names:
        leave(folder, unfinished(place))
    if scored:
        metrics, made_with = _beside(folder, max(evaluation.step for evaluation in scored), leave)
        for file in sorted(_expected(config, folder) - place.names):
            leave(folder / file, "missing, although such a run writes it")
        comparison = folder.parent.parent if OUTCOME in place.names else None
        runs.append(Run(f"{folder}", name, config.seed, tuple(scored), folder, comparison, config, metrics, made_with))
        try:
            refused = _read_outcome(folder)["refused"] if comparison else {}
        except (OSError, ValueError) as wrong:
            leave(folder / OUTCOME, f"must be written by train.compare: {wrong}")
        else:
            for extend, why in refused.items():
                leave(folder / f"extend={extend}", why)


def _config(folder: Path) -> tuple[str, RunConfig]:
    """Return the program and the config of a run.

    Raises:
        ValueError: it has none, or one that no run can have.
    """
    name = program_of(folder)
    if not isinstance(name, str):
        raise ValueError(f"the program of a run must be a text, got a {type(name).__name__}")
    config = load_config(program(name).config, folder)
    require_texts(vars(config))
    return name, config


def _evaluation(name: str, path: Path) -> Evaluation:
    """Return the evaluation in a file.

    Raises:
        ValueError: the file holds something else, or numbers that none can have.
    """
    if is_file(path) and os.lstat(path).st_size > RESULTS:
        raise ValueError(f"results must have at most {RESULTS:,} bytes, got {os.lstat(path).st_size:,}")
    evaluation = program(name).results.load(path)
    require_sound(evaluation)
    if evaluation.unfinished:
        raise ValueError(f"measured at step {evaluation.step}, before the end of training at step {evaluation.steps}")
    return require_finite(evaluation)


def _expected(config: RunConfig, folder: Path) -> set[str]:
    """Return the names of files that a finished run has: by its trainer, and by the comparison that it is part of."""
    compared = {OUTCOME} if is_file(folder.parent.parent / COMPARISON) else set()
    results = {f"{results_stem(extend)}.json" for extend in config.extensions or ("none",)}
    return {"metrics.jsonl", environment.FILE, *results, *compared}


def _beside(folder: Path, step: int, leave: Leave) -> tuple[tuple[dict[str, Any], ...], dict[str, Any]]:
    """Return the metrics of a run up to the step of its results, and its environment; a bad file is left out alone."""
    metrics, made_with = (), {}
    try:
        lines = read_metrics(folder / "metrics.jsonl", METRICS, ended=True)
        last = max((line["step"] for line in lines), default=0)
        if last < step and is_file(folder / "metrics.jsonl"):
            raise ValueError(f"it ends at step {last}, and the run was measured at step {step}")
        metrics = tuple(lines)
    except (OSError, ValueError) as wrong:
        leave(folder / "metrics.jsonl", wrong)
    try:
        made_with = environment.read(folder)
    except (OSError, ValueError) as wrong:
        leave(folder / environment.FILE, wrong)
    return metrics, made_with


def unfinished(place: Place) -> str:
    """Return why a run folder has no results, from the files that `train.compare` or the trainer left there."""
    ended = _outcome(place.path)
    if ended.get("status", "done") != "done":
        return ": ".join(filter(None, (f"{ended['status']}", f"{ended.get('message') or ''}")))
    halted = sorted(fnmatch.filter(place.names, "offending-*"))
    if halted:
        step = halted[-1].removeprefix("offending-")
        return f"diverged at step {step}: its loss or gradient was not finite, or a spike"
    try:
        steps = [line["step"] for line in read_metrics(place.path / "metrics.jsonl", METRICS)]
    except (OSError, ValueError) as wrong:
        return f"not finished: no results yet; {wrong}"
    return f"not finished: no results yet; the last report is of step {max(steps, default=0)}"


def _outcome(folder: Path) -> dict[str, Any]:
    """Return the outcome of a run by `train.compare`; empty without a readable one."""
    try:
        return _read_outcome(folder)
    except (OSError, ValueError):
        return {}


def _read_outcome(folder: Path) -> dict[str, Any]:
    """Return the outcome of a run by `train.compare`.

    Raises:
        OSError, ValueError: there is none that can be read.
    """
    ended = read_sealed(folder / OUTCOME, RESULTS)
    if not isinstance(ended.setdefault("refused", {}), dict):
        raise ValueError("refused must be an object")
    return ended
