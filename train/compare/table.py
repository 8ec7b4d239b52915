"""The table of a comparison: means over seeds with their 95 % intervals, the choice among settings, and its text."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from rich.styled import Styled
from rich.table import Table

from train.compare.options import Candidate, Comparison
from train.compare.runs import Outcome, Run, load, outcome
from train.engine.intervals import t95
from train.engine.markdown import escape_markdown
from train.engine.results import Evaluation, require_same_key

BORDER = 3
"""Characters of a column of a table beside its text."""
Scores = dict[str, dict[int, float]]
"""Quantity -> size or length -> number."""


class Mean(NamedTuple):
    """A mean over seeds.

    Attributes:
        mean: over all seeds.
        half: half the width of its 95 % interval, `t · s / √n`; NaN for one seed.
        seeds: n.
    """

    mean: float
    half: float
    seeds: int


def mean_of(numbers: Sequence[float]) -> Mean:
    """Return the mean of numbers, one per seed, with the 95 % interval of Student's t."""
    n = len(numbers)
    half = math.nan if n < 2 else t95(n) * float(np.std(numbers, ddof=1)) / math.sqrt(n)
    return Mean(float(np.mean(numbers)), half, n)


class Row(NamedTuple):
    """One row of a table.

    Attributes:
        label: the encoding, the setting that was trained and the extension.
        scores: quantity -> size or length -> mean.
        remarks: why runs are missing.
    """

    label: str
    scores: dict[str, dict[int, Mean]]
    remarks: tuple[str, ...]


def best_candidate(comparison: Comparison, candidates: Sequence[Candidate], runs: Sequence[Run]) -> Candidate | None:
    """Return the setting with the best validation scores, or None if no run of any setting is done.

    The mean over all sizes or lengths decides; where lower is better, that of the logarithms.

    Args:
        comparison: the runs are part of.
        candidates: the settings.
        runs: one per setting, evaluated on the validation data.
    """
    pairs = [(_merit(comparison, run), candidate) for candidate, run in zip(candidates, runs, strict=True)]
    done = [(merit, candidate) for merit, candidate in pairs if merit is not None]
    return max(done, key=lambda pair: pair[0])[1] if done else None


def _merit(comparison: Comparison, run: Run) -> float | None:
    evaluation = load(comparison, run).get(run.extensions[0])
    if evaluation is None:
        return None
    numbers = np.array([number for by_size in evaluation.scores.values() for number in by_size.values()])
    return float(np.mean(numbers)) if comparison.program.results.kinds[0].higher else -float(np.mean(np.log(numbers)))


def rows_of(comparison: Comparison, runs: Mapping[Candidate, Sequence[Run]]) -> list[Row]:
    """Return the rows: one per encoding and extension, from the runs that are done.

    What another judge or sampling than that of most evaluations has measured is left out, with a remark.
    """
    measured = {run: load(comparison, run) for of_seeds in runs.values() for run in of_seeds}
    keys = [evaluation.made_by for by_extend in measured.values() for evaluation in by_extend.values()]
    key = max(keys, key=keys.count, default={})
    rows = []
    for candidate, of_seeds in runs.items():
        outcomes = {run: outcome(run) for run in of_seeds}
        for extend in comparison.extensions:
            numbers = {run: measured[run][extend] for run in of_seeds if extend in measured[run]}
            done = [evaluation.scores for evaluation in numbers.values() if evaluation.made_by == key]
            remarks = [_remark(run, ended, extend) for run, ended in outcomes.items() if ended is not None]
            remarks += [
                _other_key(run, evaluation, key) for run, evaluation in numbers.items() if evaluation.made_by != key
            ]
            label = candidate.label if extend == "none" else f"{candidate.label} + {extend}"
            label += f" ({len(done)} of {len(of_seeds)} seeds)" if 0 < len(done) < len(of_seeds) else ""
            rows.append(Row(label, means(done), tuple(filter(None, remarks))))
    return rows


def _other_key(run: Run, evaluation: Evaluation, key: Mapping[str, str]) -> str:
    """Return why an evaluation is left out of a table whose numbers were made by something else."""
    try:
        require_same_key(evaluation.made_by, key)
    except ValueError as differs:
        return f"{run.label} with {evaluation.extend} is left out: {differs}"
    return ""


def _remark(run: Run, ended: Outcome, extend: str) -> str:
    if ended.status != "done":
        return f"{run.label} {ended.status}: {ended.message}"
    return f"{run.label} with {extend} refused: {ended.refused[extend]}" if extend in ended.refused else ""


def means(of_seeds: Sequence[Scores]) -> dict[str, dict[int, Mean]]:
    """Return the mean of every number over the seeds that have it."""
    numbers: dict[str, dict[int, list[float]]] = {}
    for scores in of_seeds:
        for name, by_size in scores.items():
            for size, number in by_size.items():
                numbers.setdefault(name, {}).setdefault(size, []).append(number)
    return {name: {size: mean_of(values) for size, values in by_size.items()} for name, by_size in numbers.items()}


def tables(comparison: Comparison, rows: Sequence[Row], trained: int, width: int) -> list[Table]:
    """Return the tables for a terminal of `width` characters, for each thing that is measured.

    What has more columns than fit becomes several tables. The best number of each column is bold.
    """
    result = []
    for name in dict.fromkeys(name for row in rows for name in row.scores):
        sizes = sorted({size for row in rows for size in row.scores.get(name, {})})
        cells = _cells(comparison, rows, name, sizes)
        room = lambda text: len(text.replace("±", "+-"))  # as it is written where the encoding lacks it
        widths = [max(len(f"{size}"), *(room(row[n][0]) for row in cells)) for n, size in enumerate(sizes)]
        labels = max(len("encoding"), *(len(row.label) for row in rows))
        for part in _fitting(widths, width - labels - BORDER - 1):
            table = Table("encoding", title=f"{name}, trained at {trained}")
            for size in sizes[part]:
                table.add_column(f"{size}", justify="right", no_wrap=True)
            for row, texts in zip(rows, cells, strict=True):
                table.add_row(row.label, *(Styled(text, "bold") if best else text for text, best in texts[part]))
            result.append(table)
    return result


def _fitting(widths: Sequence[int], room: int) -> list[slice]:
    """Return consecutive parts of columns of these widths, each of at least one column and within the room."""
    starts, used = [0], 0
    for n, width in enumerate(widths):
        if n > starts[-1] and used + width + BORDER > room:
            starts.append(n)
            used = 0
        used += width + BORDER
    return [slice(*ends) for ends in zip(starts, [*starts[1:], len(widths)], strict=True)]


def markdown(comparison: Comparison, rows: Sequence[Row], trained: int, notes: Sequence[str]) -> str:
    """Return the tables as markdown, without empty rows, then the remarks and the notes."""
    remarks = dict.fromkeys(remark for row in rows for remark in row.remarks)
    rows, parts = [row for row in rows if row.scores], []
    for name in dict.fromkeys(name for row in rows for name in row.scores):
        sizes = sorted({size for row in rows for size in row.scores.get(name, {})})
        head = [f"**{size}**" if size == trained else f"{size}" for size in sizes]
        lines = [f"| {escape_markdown(name)} | {' | '.join(head)} |", "|---" + "|---:" * len(sizes) + "|"]
        for row, cells in zip(rows, _cells(comparison, rows, name, sizes), strict=True):
            texts = [f"**{text}**" if best else text for text, best in cells]
            lines.append(f"| {escape_markdown(row.label.replace('|', '·'))} | {' | '.join(texts)} |")
        parts.append("\n".join(lines))
    parts += ["\n".join(f"- {escape_markdown(remark)}" for remark in remarks)] if remarks else []
    return "\n\n".join([*parts, *map(escape_markdown, notes)]) + "\n"


def _cells(
    comparison: Comparison, rows: Sequence[Row], name: str, sizes: Sequence[int]
) -> list[list[tuple[str, bool]]]:
    """Return, per row and size, the text of a cell and whether its mean is the best of the column."""
    best = max if comparison.program.results.kinds[0].higher else min
    measured = [row.scores.get(name, {}) for row in rows]
    tops = {size: best(by_size[size].mean for by_size in measured if size in by_size) for size in sizes}
    cell = lambda by_size, size: (
        (cell_text(by_size[size]), by_size[size].mean == tops[size]) if size in by_size else ("", False)
    )
    return [[cell(by_size, size) for size in sizes] for by_size in measured]


def cell_text(cell: Mean, sign: str = "-") -> str:
    """Return a mean and its interval in words: "85.3 ±0.4"; with sign `+`, positive means have theirs."""
    digits = 1 if abs(cell.mean) >= 10 else 2
    return f"{cell.mean:{sign}.{digits}f}" + ("" if math.isnan(cell.half) else f" ±{cell.half:.{digits}f}")
