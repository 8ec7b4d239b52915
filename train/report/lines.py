"""Lines of results.jsonl, which `train.compare` writes: they stand in for run folders that are gone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from train.compare.runs import folder_name
from train.engine.files import parse_object, read_text
from train.engine.numbers import Number
from train.engine.programs import TRAINERS
from train.report.records import Line, Run
from train.report.sound import SIZES, drawable, require_finite, require_texts
from train.report.walk import COMPARISON, RUN, is_file

BYTES, LINES, MEASURED = 16 * 2**20, 1000, 1000
"""Most bytes and lines of a file that are read, and numbers of a line."""

HELD_OUT = "measured on held-out training data, to choose settings"
"""Why a run of a sweep is left out."""


def read_lines(folder: Path, leave: Callable[[str, object], None]) -> list[Run]:
    """Return the runs of a comparison whose folders are not there.

    Args:
        folder: folder of the comparison.
        leave: called with each omitted line and the reason.
    """
    path, runs = folder / COMPARISON, []
    try:
        lines = read_text(path, BYTES).splitlines()
    except (OSError, ValueError) as refused:
        leave(f"{path}", refused)
        return []
    for number, line in enumerate(lines[:LINES], 1):
        place = f"{path}, line {number}"
        try:
            entry = _line(line)
        except ValueError as wrong:
            leave(place, f"not a line of train.compare: {wrong}")
            continue
        kind = "sweep" if entry["validation"] else "runs"
        if is_file(folder / kind / folder_name(entry["trained"], entry["seed"]) / RUN):
            continue
        if entry["validation"]:
            leave(place, HELD_OUT)
        elif entry["status"] != "done":
            leave(place, f"{entry['trained']} seed {entry['seed']} {entry['status']}: {entry['message']}")
        elif entry["scores"]:
            runs.append(Run(place, entry["task"], entry["seed"], entry["scores"], comparison=folder))
    if len(lines) > LINES:
        leave(f"{path}", f"it has {len(lines):,} lines, and {LINES:,} at most are read")
    return runs


def _line(text: str) -> dict[str, Any]:
    """Return the content of a line, checked.

    Raises:
        ValueError: it is none of `train.compare`.
    """
    stored = parse_object(text, "it")
    kinds: dict[str, Any] = {"task": str, "trained": str, "seed": int, "status": str, "message": str, "scores": dict}
    for name, kind in {**kinds, "validation": int | float}.items():
        if name not in stored:
            raise ValueError(f"missing {name!r}")
        if not isinstance(stored[name], kind) or isinstance(stored[name], bool):
            raise ValueError(f"{name} must be of another type, got {stored[name]!r}")
    require_texts(stored)
    made_by = stored.get("made_by", {})
    if not isinstance(made_by, dict) or not all(map(is_key, made_by.values())):
        raise ValueError("made_by must be texts by name of each extension, got something else")
    if stored["task"] not in TRAINERS:
        raise ValueError(f"task must be one of {', '.join(TRAINERS)}, got {stored['task']!r}")
    if not stored["trained"].strip():
        raise ValueError("trained must name the encoding, got an empty text")
    return {**stored, "scores": _evaluations(stored, made_by)}


def is_key(value: Any) -> bool:
    """Return whether a value is what numbers are made by: texts by name."""
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def _evaluations(line: dict[str, Any], made_by: dict[str, Any]) -> tuple[Line, ...]:
    """Return the evaluations of a line: extension -> quantity -> size -> number.

    Raises:
        ValueError: something else.
    """
    evaluations = []
    for extend, by_what in line["scores"].items():
        numbers: list[Number] = []
        for what, by_size in by_what.items() if isinstance(by_what, dict) else ():
            if not isinstance(by_size, dict) or not all(map(drawable, by_size.values())):
                raise ValueError(f"scores must be numbers by size, got others for {what!r}")
            require_texts({"what is measured": what})
            numbers += [Number(measure=what, at=int(size), value=float(value)) for size, value in by_size.items()]
            if any(number.at not in SIZES for number in numbers):
                raise ValueError(f"a size or length must be from 1 to {SIZES[-1]:,}, got others for {what!r}")
        key = made_by.get(extend, {})
        require_texts({"an extension": extend, **key})
        evaluation = Line(line["trained"], "", 0, 0, extend, "", tuple(numbers), made_by=key, program=line["task"])
        evaluations.append(require_finite(evaluation))
    count = sum(len(evaluation.numbers) for evaluation in evaluations)
    if count > MEASURED:
        raise ValueError(f"scores must be at most {MEASURED:,} numbers, got {count:,}")
    return tuple(evaluations)
