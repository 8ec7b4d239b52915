"""Results of an evaluation of an encoder-decoder: exact answers against length, as JSON, tables and a figure."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from rich.table import Table

from train.engine import figures, intervals, results
from train.engine.markdown import escape_markdown


class ExactMatchRow(NamedTuple):
    """One task at one length.

    Attributes:
        task: its name.
        length: length of the source, tokens.
        correct: number of answers in which every token is right.
        count: number of examples.
        tokens: fraction of right tokens in all answers, end tokens included.
        refused: why the encoding does not support this length.
        each: which answers are right, in the order of the examples (`intervals.packed`); empty = not stored.
    """

    task: str
    length: int
    correct: int = 0
    count: int = 0
    tokens: float = math.nan
    refused: str = ""
    each: str = ""

    @property
    def exact(self) -> float:
        """The fraction of exact answers; NaN if the length is refused."""
        return math.nan if self.refused else self.correct / self.count

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of `exact`."""
        return (math.nan, math.nan) if self.refused else intervals.wilson(self.correct, self.count)

    @property
    def score(self) -> intervals.Score | None:
        """`exact` in percent; None if the length is refused."""
        return None if self.refused else intervals.share(self.correct, self.count, self.each)


@dataclasses.dataclass(frozen=True)
class ExactMatchResults(results.Evaluation):
    """Exact answers of one run; `name` includes the mode of cross-attention, `trained` is the longest length."""

    row = ExactMatchRow
    higher = True

    rows: tuple[ExactMatchRow, ...]

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the tasks, in order."""
        return tuple(dict.fromkeys(row.task for row in self.rows))

    def of(self, task: str) -> list[ExactMatchRow]:
        """Return the rows of a task, by ascending length."""
        return [row for row in self.rows if row.task == task]

    def stored_rows(self) -> list[dict[str, Any]]:
        """Return the rows as JSON, with the fraction of exact answers and its interval."""
        refused = lambda row: {"task": row.task, "length": row.length, "refused": row.refused}
        measured = lambda row: {**results.stored(row), "exact": row.exact, "interval": row.interval}
        return [refused(row) if row.refused else measured(row) for row in self.rows]

    def table(self) -> Table:
        """Return the table for the terminal."""
        title = f"exact answers, {self.label}, trained at up to {self.trained} tokens"
        heads = ("task", "length", "x trained", "exact, %", "95 % interval", "tokens, %")
        table = Table(*heads, title=title, caption=results.caption(self))
        for task in self.tasks:
            for row in self.of(task):
                low, high = row.interval
                found = (f"{100 * row.exact:.1f}", f"{100 * low:.1f} to {100 * high:.1f}", f"{100 * row.tokens:.1f}")
                cells = ("refused",) if row.refused else found
                times = f"{row.length / self.trained:g}"
                table.add_row(task, f"{row.length}", times, *cells, style=results.emphasis(self, row.length))
            table.add_section()
        return table

    def measured(self) -> dict[str, dict[int, intervals.Score]]:
        """Return the exact answers in percent by length, for each task."""
        of_task = lambda task: {row.length: score for row in self.of(task) if (score := row.score)}
        return {f"{task}, exact %": of_task(task) for task in self.tasks}

    @classmethod
    def markdown(cls, runs: Sequence[Self]) -> str:
        """Return one table per task: one row per run, one column per length, the best of each length in bold.

        Raises:
            ValueError: runs on different tasks or trained at different lengths.
        """
        parts = [
            f"Exact answers in percent, trained at up to {runs[0].trained} tokens, the most of each length in bold."
        ]
        for task in runs[0].tasks:
            found = [{row.length: None if row.refused else 100 * row.exact for row in run.of(task)} for run in runs]
            parts += [escape_markdown(f"{task}:"), results.grid(runs, found, max, "{:.1f}", "refused")]
        return results.document(runs, *parts)

    @classmethod
    def draw(cls, runs: Sequence[Self], path: Path) -> None:
        """Draw exact answers against length, one panel per task, with intervals as bands."""
        panels = {
            task: [figures.curve((row.length, row.exact, row.interval) for row in run.of(task)) for run in runs]
            for task in runs[0].tasks
        }
        figures.draw_panels(
            runs, panels, path,
            trained=f"trained at up to {runs[0].trained}",
            xlabel="length of the source (tokens)", ylabel="exact answers",
        )  # fmt: skip
