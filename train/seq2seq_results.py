"""What an evaluation of an encoder-decoder found: exact answers against length, as JSON, as tables and as a figure."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure
from rich.table import Table

from train.results import COLOURS, STYLES, require_comparable, wilson


class Row(NamedTuple):
    """One task at one length.

    Attributes:
        task: its name.
        length: of the source, tokens.
        correct: answers that are right to the last token.
        count: examples.
        refused: why the encoding cannot serve this length.
    """

    task: str
    length: int
    correct: int = 0
    count: int = 0
    refused: str = ""

    @property
    def exact(self) -> float:
        """The share of right answers."""
        return self.correct / self.count

    @property
    def interval(self) -> tuple[float, float]:
        """Its 95 % interval."""
        return wilson(self.correct, self.count)


@dataclasses.dataclass(frozen=True)
class Results:
    """One evaluation.

    Args:
        name: of the encodings and the policy of cross-attention.
        data: the tasks.
        trained: length of the longest training examples.
        step: of the checkpoint.
        extend: how the encodings were stretched.
        rows: one for each task and length that it has.
    """

    name: str
    data: str
    trained: int
    step: int
    extend: str
    rows: tuple[Row, ...]

    @property
    def label(self) -> str:
        """The encodings, and how they were extended."""
        return self.name if self.extend == "none" else f"{self.name} + {self.extend}"

    @property
    def stem(self) -> str:
        """Name of its files, without the ending."""
        return "results" if self.extend == "none" else f"results-{self.extend}"

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the tasks, in order."""
        return tuple(dict.fromkeys(row.task for row in self.rows))

    def of(self, task: str) -> dict[int, Row]:
        """Return the rows of a task by length."""
        return {row.length: row for row in self.rows if row.task == task}

    def save(self, folder: Path) -> None:
        """Write the JSON and the figure into the run folder."""
        measured = lambda row: {} if row.refused else {"exact": row.exact, "interval": row.interval}  # noqa: E731
        rows = [{**row._asdict(), **measured(row)} for row in self.rows]
        stored = {**dataclasses.asdict(self), "rows": rows}
        (folder / f"{self.stem}.json").write_text(json.dumps(stored, indent=2) + "\n")
        draw([self], folder / f"{self.stem}.png")

    def table(self) -> Table:
        """Return the table for the terminal."""
        title = f"exact answers, {self.label}, trained at up to {self.trained} tokens"
        reasons = sorted({row.refused for row in self.rows if row.refused})
        heads = ("task", "length", "x trained", "percent", "95 % interval")
        table = Table(*heads, title=title, caption="\n".join(reasons) or None)
        for task in self.tasks:
            for row in self.of(task).values():
                style = "bold" if row.length == self.trained else None
                table.add_row(task, f"{row.length}", f"{row.length / self.trained:g}", *_cells(row), style=style)
            table.add_section()
        return table


def _cells(row: Row | None) -> tuple[str, str]:
    """Return the share and its interval, in percent."""
    if row is None or row.refused:
        return "" if row is None else "refused", ""
    low, high = row.interval
    return f"{100 * row.exact:.1f}", f"{100 * low:.1f} to {100 * high:.1f}"


def load_results(path: Path) -> Results:
    """Read results from JSON.

    Raises:
        ValueError: the file is missing or holds something else.
    """
    try:
        stored = json.loads(path.read_text())
        rows = tuple(Row(*(row[field] for field in Row._fields)) for row in stored["rows"])
        return Results(**{**stored, "rows": rows})
    except (OSError, json.JSONDecodeError, KeyError, TypeError) as wrong:
        raise ValueError(f"results must come from an evaluation, got {path}: {wrong}") from None


def markdown(runs: Sequence[Results]) -> str:
    """Return a table for each task: encodings and policies down, lengths across, the best of each length in bold.

    Raises:
        ValueError: runs on different tasks or trained at different lengths.
    """
    require_comparable(runs)  # pyright: ignore[reportArgumentType]  # it reads the fields that all have
    lead = f"Exact answers in percent (95 % interval), trained at up to {runs[0].trained} tokens."
    return "\n\n".join([lead, *(f"{task}:\n\n{_grid(runs, task)}" for task in runs[0].tasks)]) + "\n"


def _grid(runs: Sequence[Results], task: str) -> str:
    found = [run.of(task) for run in runs]
    lengths = sorted({length for rows in found for length in rows})
    measured = [row for rows in found for row in rows.values() if not row.refused]
    best = {length: max((row.exact for row in measured if row.length == length), default=None) for length in lengths}
    head = [f"**{length}**" if length == runs[0].trained else f"{length}" for length in lengths]
    lines = [f"| encoding | {' | '.join(head)} |", "|---" + "|---:" * len(lengths) + "|"]
    for run, rows in zip(runs, found, strict=True):
        cells = []
        for length in lengths:
            row = rows.get(length)
            share, interval = _cells(row)
            share = f"**{share}**" if row and not row.refused and row.exact == best[length] else share
            cells.append(f"{share} ({interval})" if interval else share)
        lines.append(f"| {run.label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(runs: Sequence[Results], path: Path) -> None:
    """Draw exact answers against length, a panel for each task, intervals as bands, a line at the trained length."""
    require_comparable(runs)  # pyright: ignore[reportArgumentType]  # it reads the fields that all have
    tasks, trained = runs[0].tasks, runs[0].trained
    figure = Figure(figsize=(2.5 + 3.5 * max(len(tasks), 1.5), 4.5), layout="constrained")
    panels = figure.subplots(1, len(tasks), sharey=True, squeeze=False)[0]
    for axes, task in zip(panels, tasks, strict=True):
        for i, run in enumerate(runs):
            rows = [row for row in run.of(task).values() if not row.refused]
            if not rows:
                continue
            line, marker = STYLES[i // len(COLOURS) % len(STYLES)]
            lengths, colour = [row.length for row in rows], COLOURS[i % len(COLOURS)]
            low, high = zip(*(row.interval for row in rows), strict=True)
            label = run.label if axes is panels[0] else None
            axes.fill_between(lengths, low, high, color=colour, alpha=0.15, linewidth=0)
            axes.plot(
                lengths, [row.exact for row in rows], line, marker=marker, markersize=4, color=colour, label=label
            )
        axes.axvline(trained, color="0.5", linestyle="-.", linewidth=1, zorder=0)
        axes.set_xticks(sorted({row.length for run in runs for row in run.rows}))
        axes.set(xlabel="length of the source (tokens)", title=task, ylim=(-0.03, 1.03))
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("exact answers")
    figure.suptitle(f"Exact answers against length; the line marks the longest trained, {trained}")
    figure.legend(loc="outside lower center", frameon=False, ncols=2)
    figure.savefig(path, dpi=150, bbox_inches="tight")
