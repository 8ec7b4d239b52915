"""Reading: run folders and results.jsonl below the given folders -> runs, and what is left out with its reason."""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from train.compare.runs import OUTCOME, folder_name
from train.compare.table import Scores
from train.engine import environment
from train.engine.config import RunConfig
from train.engine.progress import read_metrics
from train.engine.results import Evaluation
from train.engine.stored_config import load_config, program_of
from train.evaluate import PROGRAMS, program

FOREIGN = 20
"""Maximum number of folders without a run that are named; more are counted."""

PARTS = ("checkpoints", "tensorboard", "profile", "offending-*", ".*")
"""Folders inside a run folder, which hold no runs."""

LINES = "results.jsonl"
"""What `train.compare` writes: one line per run."""


class Scored(NamedTuple):
    """One evaluation of a run.

    Attributes:
        name: of the encoding, with what the trainer adds to it: "rope, cross unified".
        extend: the context extension, or `none`.
        trained: size or length of the training examples; 0 = unknown.
        examples: number of test images, tokens or questions at the trained size; 0 = unknown.
        note: what a reader must know about the data.
        scores: what is measured -> size or length -> number.
        refused: size or length -> why the encoding does not support it.
    """

    name: str
    extend: str
    trained: int
    examples: int
    note: str
    scores: Scores
    refused: dict[int, str]

    @property
    def label(self) -> str:
        """The encoding and its extension."""
        return Evaluation(self.name, "", self.trained, 0, self.extend, "", ()).label


class Run(NamedTuple):
    """One run.

    Attributes:
        place: its folder, or the file and the line that it was read from.
        program: the trainer: vit, lm or seq2seq.
        seed: of the run.
        scored: its evaluations.
        folder: of the run; None = only a line of results.jsonl is there.
        comparison: the folder of `train.compare` that it belongs to; None = none.
        config: of the run; None = unknown.
        metrics: lines of metrics.jsonl.
        made_with: versions, devices and sizes (`train.engine.environment`); empty = not recorded.
    """

    place: str
    program: str
    seed: int
    scored: tuple[Scored, ...]
    folder: Path | None = None
    comparison: Path | None = None
    config: RunConfig | None = None
    metrics: tuple[dict[str, Any], ...] = ()
    made_with: Mapping[str, Any] = {}


class Left(NamedTuple):
    """Something that is not in the report.

    Attributes:
        what: a folder, a file or an evaluation.
        why: the reason.
    """

    what: str
    why: str


class Found(NamedTuple):
    """What was read.

    Attributes:
        runs: with at least one evaluation.
        left: what was left out.
    """

    runs: list[Run]
    left: list[Left]


def collect(folders: Sequence[Path]) -> Found:
    """Read all runs in and below the folders.

    Raises:
        ValueError: one of them is no folder.
    """
    for folder in folders:
        if not folder.is_dir():
            kind = "a file" if folder.exists() else "nothing"
            raise ValueError(f"a report needs folders with runs, got {kind} at {folder}")
    found = Found([], [])
    foreign: list[Left] = []
    seen: set[str] = set()
    for place in (place for folder in folders for place in _folders(folder, found.left, seen)):
        try:
            _read(place, found, foreign)
        except OSError as refused:
            found.left.append(Left(f"{place}", f"cannot be read: {refused.strerror or refused}"))
    found.left.extend(foreign[:FOREIGN])
    if len(foreign) > FOREIGN:
        found.left.append(Left(f"{len(foreign) - FOREIGN} more folders", "no run folders of a trainer: no config.json"))
    return found


def _read(place: Path, found: Found, foreign: list[Left]) -> None:
    """Read one folder: a run, a comparison, or something else."""
    compared = (place / LINES).is_file()
    if (place / "config.json").exists():
        _read_run(place, found)
    elif (place / OUTCOME).exists():
        found.left.append(Left(f"{place}", unfinished(place)))
    elif not compared and place.name != "log" and not any(path.is_dir() for path in place.glob("[!.]*")):
        foreign.append(Left(f"{place}", "no run folder of a trainer: no config.json"))
    if compared:
        _read_lines(place, found)


def _folders(top: Path, left: list[Left], seen: set[str]) -> Iterator[Path]:
    """Yield a folder and all below it in the order of their names, each once, without the parts of run folders."""

    def refused(error: OSError) -> None:
        left.append(Left(f"{error.filename}", f"cannot be read: {error.strerror}"))

    for place, below, _ in os.walk(top, onerror=refused, followlinks=True):
        real = os.path.realpath(place)
        inside = () if real in seen else below
        below[:] = sorted(name for name in inside if not any(Path(name).match(part) for part in PARTS))
        if real not in seen:
            seen.add(real)
            yield Path(place)


def _read_run(folder: Path, found: Found) -> None:
    """Read a run folder: a run if it has an evaluation, else the reason why not."""

    def leave(why: object, what: Path = folder) -> None:
        found.left.append(Left(f"{what}", " ".join(f"{why}".split())))

    try:
        name = program_of(folder)
        config = load_config(program(name).config, folder)
        if config.validation:
            rule = "measured on held-out training data, to choose settings"
            raise ValueError(f"{rule} (validation={config.validation:g})")
    except ValueError as foreign:
        leave(foreign)
        return
    files, scored = sorted(folder.glob("results*.json"), key=lambda path: path.stem), []
    for path in files:
        try:
            scored.append(require_finite(scored_of(name, program(name).load(path))))
        except ValueError as wrong:
            leave(wrong, path)
    if not files:
        leave(unfinished(folder))
    if not scored:
        return
    metrics, made_with = (), {}
    try:
        metrics = tuple(read_metrics(folder / "metrics.jsonl"))
    except ValueError as wrong:
        leave(wrong, folder / "metrics.jsonl")
    try:
        made_with = environment.read(folder)
    except ValueError as wrong:
        leave(wrong, folder / environment.FILE)
    comparison = folder.parent.parent if (folder / OUTCOME).exists() else None
    run = Run(f"{folder}", name, config.seed, tuple(scored), folder, comparison, config, metrics, made_with)
    found.runs.append(run)
    for extend, why in _outcome(folder).get("refused", {}).items():
        leave(why, folder / f"extend={extend}")


def scored_of(name: str, found: Any) -> Scored:
    """Return an evaluation of a trainer as it is reported.

    Args:
        name: of the trainer.
        found: the evaluation.
    """
    rows = [(getattr(row, "size", None) or row.length, row) for row in found.rows]
    refused = {size: row.refused for size, row in rows if getattr(row, "refused", "")}
    counts = {size: _count(row) for size, row in rows}
    examples = counts.get(found.trained, max(counts.values()))
    scores = program(name).scores(found)
    return Scored(found.name, found.extend, found.trained, examples, found.note, scores, refused)


def _count(row: Any) -> int:
    fields = row._asdict()  # a tuple has a method `count`
    of_text = fields.get("everything")
    return fields.get("count", 0) if of_text is None else of_text.count


def require_finite(scored: Scored) -> Scored:
    """Return an evaluation after checking that all its numbers are finite and not negative.

    Raises:
        ValueError: naming the first one that is not.
    """
    for what, by_size in scored.scores.items():
        for size, number in by_size.items():
            if not math.isfinite(number) or number < 0:
                raise ValueError(f"every number must be finite and at least 0, got {what} of {number} at {size}")
    if not any(scored.scores.values()):
        raise ValueError(f"at least one size must be measured, got none: {next(iter(scored.refused.values()), '')}")
    return scored


def unfinished(folder: Path) -> str:
    """Return why a run folder has no results: what `train.compare` or the trainer left there says it."""
    ended = _outcome(folder)
    if ended.get("status", "done") != "done":
        return ": ".join(filter(None, (f"{ended['status']}", f"{ended.get('message') or ''}")))
    halted = sorted(path.name for path in folder.glob("offending-*"))
    if halted:
        step = halted[-1].removeprefix("offending-")
        return f"diverged at step {step}: its loss or gradient was not finite, or a spike"
    try:
        steps = [line["step"] for line in read_metrics(folder / "metrics.jsonl")]
    except ValueError as wrong:
        return f"not finished: no results yet; {wrong}"
    return f"not finished: no results yet; the last report is of step {max(steps, default=0)}"


def _outcome(folder: Path) -> dict[str, Any]:
    """Return how `train.compare` says that a run ended; nothing where it says nothing, or nothing readable."""
    try:
        ended = json.loads((folder / OUTCOME).read_text())
    except (FileNotFoundError, IsADirectoryError, ValueError):
        return {}
    return ended if isinstance(ended, dict) and isinstance(ended.get("refused", {}), dict) else {}


def _read_lines(folder: Path, found: Found) -> None:
    """Read the lines of a comparison whose run folders are not there."""
    path = folder / LINES
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        place = f"{path}, line {number}"
        try:
            one = _line(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError) as wrong:
            reason = f"missing {wrong}" if isinstance(wrong, KeyError) else wrong
            found.left.append(Left(place, f"not a line of train.compare: {reason}"))
            continue
        kind = "sweep" if one["validation"] else "runs"
        if (folder / kind / folder_name(one["trained"], one["seed"]) / "config.json").exists():
            continue
        if one["validation"]:
            found.left.append(Left(place, "measured on held-out training data, to choose settings"))
        elif one["status"] != "done":
            found.left.append(Left(place, f"{one['trained']} seed {one['seed']} {one['status']}: {one['message']}"))
        elif one["scored"]:
            found.runs.append(Run(place, one["task"], one["seed"], one["scored"], comparison=folder))


def _line(stored: Any) -> dict[str, Any]:
    """Return the content of a line, checked.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: it is none of `train.compare`.
    """
    if stored["task"] not in PROGRAMS:
        raise ValueError(f"task must be one of {', '.join(PROGRAMS)}, got {stored['task']!r}")
    for name, kind in (("trained", str), ("seed", int), ("status", str), ("message", str), ("validation", int | float)):
        if not isinstance(stored[name], kind):
            raise ValueError(f"{name} must be of another type, got {stored[name]!r}")
    if not stored["trained"].strip():
        raise ValueError("trained must name the encoding, got an empty text")
    scored = []
    for extend, scores in stored["scores"].items():
        numbers = {what: {int(size): float(x) for size, x in by.items()} for what, by in scores.items()}
        scored.append(require_finite(Scored(stored["trained"], extend, 0, 0, "", numbers, {})))
    return {**{name: stored[name] for name in ("task", "trained", "seed", "validation", "status", "message")},
            "scored": tuple(scored)}  # fmt: skip
