"""What an evaluation of an encoder-decoder found: exact answers against length, as JSON, as tables and as a figure."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from rich.table import Table

from train.engine.results import Curve, Evaluation, grid, load, plot, require_comparable, wilson


class Row(NamedTuple):
    """One task at one length.

    Attributes:
        task: its name.
        length: of the source, tokens.
        correct: answers that are right to the last token.
        count: examples.
        tokens: the share of the tokens of all answers, their ends among them, that are right.
        refused: why the encoding cannot serve this length.
    """

    task: str
    length: int
    correct: int = 0
    count: int = 0
    tokens: float = math.nan
    refused: str = ""

    @property
    def exact(self) -> float:
        """The share of right answers; NaN where there are none."""
        return math.nan if self.refused else self.correct / self.count

    @property
    def interval(self) -> tuple[float, float]:
        """Its 95 % interval."""
        return (math.nan, math.nan) if self.refused else wilson(self.correct, self.count)


@dataclasses.dataclass(frozen=True)
class Results(Evaluation):
    """Exact answers of one run; `name` tells the policy of cross-attention too, `trained` is the longest length."""

    rows: tuple[Row, ...]

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the tasks, in order."""
        return tuple(dict.fromkeys(row.task for row in self.rows))

    def of(self, task: str) -> list[Row]:
        """Return the rows of a task, by ascending length."""
        return [row for row in self.rows if row.task == task]

    def save(self, folder: Path) -> None:
        """Write the JSON and the figure into the run folder."""
        refused = lambda row: {"task": row.task, "length": row.length, "refused": row.refused}
        measured = lambda row: {**row._asdict(), "exact": row.exact, "interval": row.interval}
        self.store(folder, [refused(row) if row.refused else measured(row) for row in self.rows])
        draw([self], folder / f"{self.stem}.png")

    def table(self) -> Table:
        """Return the table for the terminal."""
        title = f"exact answers, {self.label}, trained at up to {self.trained} tokens"
        reasons = sorted({row.refused for row in self.rows if row.refused})
        heads = ("task", "length", "x trained", "exact, %", "95 % interval", "tokens, %")
        table = Table(*heads, title=title, caption="\n".join([self.note, *reasons]))
        for task in self.tasks:
            for row in self.of(task):
                low, high = row.interval
                found = (f"{100 * row.exact:.1f}", f"{100 * low:.1f} to {100 * high:.1f}", f"{100 * row.tokens:.1f}")
                cells = ("refused",) if row.refused else found
                style = "bold" if row.length == self.trained else None
                table.add_row(task, f"{row.length}", f"{row.length / self.trained:g}", *cells, style=style)
            table.add_section()
        return table


def load_results(path: Path) -> Results:
    """Read results from JSON.

    Raises:
        ValueError: the file is missing or holds something else.
    """

    def row(stored: dict[str, Any]) -> Row:
        return Row(**{name: value for name, value in stored.items() if name in Row._fields})

    return load(Results, path, row)


def markdown(runs: Sequence[Results]) -> str:
    """Return a table for each task: encodings and policies down, lengths across, the best of each length in bold.

    Raises:
        ValueError: runs on different tasks or trained at different lengths.
    """
    require_comparable(runs)
    parts = [f"Exact answers in percent, trained at up to {runs[0].trained} tokens, the most of each length in bold."]
    for task in runs[0].tasks:
        found = [{row.length: None if row.refused else 100 * row.exact for row in run.of(task)} for run in runs]
        parts += [f"{task}:", grid(runs, found, max, "{:.1f}", "refused")]
    return "\n\n".join([*parts, runs[0].note]) + "\n"


def draw(runs: Sequence[Results], path: Path) -> None:
    """Draw exact answers against length, a panel for each task, with intervals as bands."""
    require_comparable(runs)
    tasks = runs[0].tasks
    figure = Figure(figsize=(4.0 + 3.5 * len(tasks), 4.5), layout="constrained")
    panels = figure.subplots(1, len(tasks), sharey=True, squeeze=False)[0]
    for axes, task in zip(panels, tasks, strict=True):
        rows = [run.of(task) for run in runs]
        curves = [Curve(*zip(*((row.length, row.exact, row.interval) for row in one), strict=True)) for one in rows]
        plot(axes, runs, curves, f"trained at up to {runs[0].trained}")
        axes.set(xlabel="length of the source (tokens)", title=task, ylim=(-0.03, 1.03))
    panels[0].set_ylabel("exact answers")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False)
    figure.text(0.01, -0.01, runs[0].note, fontsize=8, va="top")
    figure.savefig(path, dpi=150, bbox_inches="tight")
