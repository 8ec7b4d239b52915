"""Results of `train.extend`: one JSON line per measurement, a table, and a figure."""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, StrMethodFormatter
from rich.table import Table

from train.engine.figures import literal_text, write_figure
from train.engine.files import appended_file, parse_object, read_object, read_text, with_digest, write_atomic
from train.engine.line_styles import COLORS, numbered
from train.engine.markdown import escape_markdown
from train.engine.numbers import PERPLEXITY, Number, difference, mean, perplexity_of
from train.engine.progress import complete_lines

LINES, SETTINGS = "lines.jsonl", "settings.json"

WEIGHTS = "weights"
"""The setting that is a digest of the model."""

LAST = 256
"""Number of tokens at the end of every window that are compared: the same ones at every length."""

DIFFERENCES = "Difference of perplexity on the same windows, with its 95 % interval over them"
"""Meaning of the lines below the table."""

PARTS = 32
"""Number of parts of a window whose mean losses are kept."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """One extension at one length.

    Args:
        name: name of the extension, followed by ", fine-tuned" if the model is.
        length: N, tokens.
        losses: mean loss of each window, nats.
        last: mean loss of the last `LAST` tokens of each window.
        by_position: mean loss over all windows in `PARTS` parts of N, from the begin to the end.
        found: whether the key was found at each depth of the passkey test, from begin to end.
        seconds: time of reading the windows, compilation included.
        refused: why the encoding does not support this length or this extension.
        made_by: digests of the model and the text, and all else that the numbers depend on: their key.
    """

    name: str
    length: int
    losses: tuple[float, ...] = ()
    last: tuple[float, ...] = ()
    by_position: tuple[float, ...] = ()
    found: tuple[bool, ...] = ()
    seconds: float = 0.0
    refused: str = ""
    made_by: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def perplexity(self) -> float:
        """The perplexity of all tokens of all windows."""
        return perplexity_of(float(np.mean(self.losses)))

    @property
    def number(self) -> Number:
        """The perplexity with its interval over the windows."""
        return mean(PERPLEXITY, self.length, np.array(self.losses)[:, None])

    @property
    def last_perplexity(self) -> float:
        """The perplexity of the last tokens of all windows."""
        return perplexity_of(float(np.mean(self.last)))


def summarize(name: str, length: int, losses: np.ndarray, keys: Sequence[bool], seconds: float) -> Measured:
    """Return the means of the losses `(windows, N)` of one extension at one length."""
    wide = losses.astype(np.float64)
    parts = [float(part.mean()) for part in np.array_split(wide, min(PARTS, length), axis=1)]
    means = lambda x: tuple(map(float, x.mean(axis=1)))
    return Measured(name, length, means(wide), means(wide[:, -LAST:]), tuple(parts), tuple(keys), round(seconds, 1))


def open_folder(folder: Path, settings: dict[str, Any], say: Callable[[str], object]) -> list[Measured]:
    """Return the measurements of earlier runs of the same command; make the folder if there is none.

    Lines that pejax 0.3.0 wrote are left out: they do not say which weights they belong to.

    Args:
        folder: folder of the results.
        settings: what measurements are made by.
        say: called with a line where lines are left out.

    Raises:
        ValueError: the folder holds measurements with other settings, or a line that is none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / SETTINGS
    if place.is_file():
        stored = read_object(place)
        for key, value in settings.items():
            if stored.get(key) != value and (key != WEIGHTS or key in stored):
                raise ValueError(
                    f"{folder} holds measurements with {key}={stored.get(key)!r}, this command has {key}={value!r}: "
                    "give another --out"
                )
    elif any(file.name != ".lock" for file in folder.iterdir()):
        raise ValueError(f"out must be a new folder or one of train.extend, got {folder}")
    write_atomic(place, json.dumps(settings, indent=2) + "\n")
    path = folder / LINES
    try:
        lines = [parse_object(line, "it") for line in complete_lines(path)]
        sealed = [line for line in lines if "digest" in line]
        if len(sealed) < len(lines):
            count = len(lines) - len(sealed)
            say(f"{path}: {count} lines of pejax 0.3.0, which do not name their weights, are measured again if needed")
        return [_read(line) for line in sealed]
    except (ValueError, TypeError) as wrong:
        raise ValueError(f"a line of {path} must be a measurement, got {wrong}") from None


def _read(line: dict[str, Any]) -> Measured:
    if with_digest(line) != line:
        raise ValueError("one that has changed since it was written")
    values: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in line.items()}
    del values["digest"]
    return Measured(**values)


def add(folder: Path, measurement: Measured) -> None:
    """Append a line."""
    path = folder / LINES
    begun = read_text(path) if path.exists() else ""
    with appended_file(path) as lines:
        lines.write(b"\n" if begun and not begun.endswith("\n") else b"")
        lines.write(f"{json.dumps(with_digest(dataclasses.asdict(measurement)))}\n".encode())


def rows_by_name(
    lines: Sequence[Measured], names: Sequence[str], lengths: Sequence[int]
) -> list[list[Measured | None]]:
    """Return the measurements of these names at these lengths, the newest of each; None = not measured."""
    by_place = {(measurement.name, measurement.length): measurement for measurement in lines}
    return [[by_place.get((name, length)) for length in lengths] for name in names]


def cells(measurement: Measured | None) -> str:
    """Return the perplexities of all and of the last tokens, and the keys found, as one cell of a table."""
    if measurement is None:
        return ""
    if measurement.refused:
        return "refused"
    keys = f" · {sum(measurement.found)}/{len(measurement.found)}" if measurement.found else ""
    return f"{measurement.perplexity:.2f} · {measurement.last_perplexity:.2f}{keys}"


def differences(rows: Sequence[Sequence[Measured | None]], names: Sequence[str]) -> list[str]:
    """Return a line per row after the first: the perplexity less that of the first, with its interval over the windows.

    Both read the same windows. Of a single window there is no interval, and no line.
    """
    lines = []
    for name, row in zip(names[1:], rows[1:], strict=True):
        matches = [
            (measurement, first)
            for measurement, first in zip(row, rows[0], strict=True)
            if measurement and first and measurement.losses
        ]
        pairs = [
            (measurement.length, difference(measurement.number, first.number))
            for measurement, first in matches
            if first.losses
        ]
        texts = [f"{d[0]:+.2f} ±{d[1]:.2f} at {length:,}" for length, d in pairs if d and not math.isnan(d[1])]
        lines += [f"{name} against {names[0]}: {' · '.join(texts)}"] if texts else []
    return lines


def caption(passkey: int) -> str:
    """Return the meaning of the numbers in a cell."""
    keys = f" · keys found of {passkey}" if passkey else ""
    return f"perplexity of all tokens · of the last {LAST}, the same at every length{keys}"


def table(rows: Sequence[Sequence[Measured | None]], names: Sequence[str], lengths: Sequence[int], title: str,
          passkey: int) -> Table:  # fmt: skip
    """Return the table for the terminal."""
    result = Table("extension", *(f"{length:,} tokens" for length in lengths), title=title, caption=caption(passkey))
    for name, row in zip(names, rows, strict=True):
        result.add_row(name, *map(cells, row))
    return result


def markdown(rows: Sequence[Sequence[Measured | None]], names: Sequence[str], lengths: Sequence[int], title: str,
             passkey: int) -> str:  # fmt: skip
    """Return the table as markdown, with the reasons of refusals below it."""
    columns = ["extension", *(f"{length:,}" for length in lengths)]
    lines = [f"| {' | '.join(columns)} |", f"|---|{'---:|' * len(lengths)}"]
    labels = map(escape_markdown, names)
    lines += [f"| {label} | {' | '.join(map(cells, row))} |" for label, row in zip(labels, rows, strict=True)]
    refused = {
        measurement.refused: measurement.name
        for row in rows
        for measurement in row
        if measurement is not None and measurement.refused
    }
    notes = [f"- {escape_markdown(f'{name}: {why}')}" for why, name in refused.items()]
    comparisons = [f"- {escape_markdown(line)}" for line in differences(rows, names)]
    notes += ["", f"{DIFFERENCES}:", "", *comparisons] if comparisons else []
    head = [f"# {escape_markdown(title)}", "", f"{caption(passkey)}.", ""]
    return "\n".join([*head, *lines, *([""] if notes else []), *notes, ""])


@literal_text
def draw(rows: Sequence[Sequence[Measured | None]], trained: int, path: Path, title: str, note: str) -> None:
    """Write the figure: perplexity against length, and loss by position at the longest length."""
    figure = Figure(figsize=(11.0, 4.5), layout="constrained")
    length_axes, position_axes = figure.subplots(1, 2)
    for number, row in enumerate(rows):
        points = [point for point in row if point is not None and not point.refused]
        if not points:
            continue
        color, line, marker = numbered(number)
        style = {"color": COLORS[color], "linestyle": line, "label": points[0].name}
        perplexities = [point.perplexity for point in points]
        length_axes.plot([point.length for point in points], perplexities, marker=marker, **style)
        longest = points[-1]
        if longest is row[-1]:
            count = len(longest.by_position)
            position_axes.plot((np.arange(count) + 0.5) * longest.length / count, longest.by_position, **style)
    length_axes.set(xscale="log", yscale="log", xlabel="context length (tokens)", ylabel="perplexity per token")
    lengths = sorted({point.length for row in rows for point in row if point is not None})
    length_axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    length_axes.minorticks_off()
    length_axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    length_axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.3g}"))
    position_axes.xaxis.set_major_locator(MaxNLocator(5))
    position_axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    position_axes.set(xlabel=f"position in {max(lengths):,} tokens", ylabel="loss (nats)", title="loss by position")
    length_axes.set_title("perplexity by length")
    figure.suptitle(title)
    for axes in (length_axes, position_axes):
        axes.axvline(trained, color="0.5", linestyle="-.", linewidth=1, label="trained length")
        axes.grid(alpha=0.3)
    figure.legend(*length_axes.get_legend_handles_labels(), loc="outside right upper", frameon=False)
    write_figure(figure, path, note)
