"""Read what was measured: tables of docs/results.md and benchmarks/RESULTS.md, and benchmarks/results/costs.json.

A table is found by its heading and must have the columns that are asked for: a changed table is an error, not a gap.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
SIZES = ("12", "16", "20", "24", "28", "32", "36", "40", "44", "48", "52", "56", "60", "64")
LENGTHS = ("64", "128", "256", "512", "1024", "2048")


class Table(NamedTuple):
    """A table of numbers.

    Attributes:
        columns: their headings, without that of the first column.
        rows: cells by the first cell of the row, without bold type.
    """

    columns: tuple[str, ...]
    rows: dict[str, tuple[str, ...]]

    def of(self, name: str) -> dict[str, tuple[str, ...]]:
        """Return the rows of an encoding: its own, and those that read the same model in another way."""
        return {row: cells for row, cells in self.rows.items() if row.split(" + ")[0].split(",")[0] == name}


def read_table(page: Path, heading: str, columns: Sequence[str]) -> Table:
    """Return the first table below a heading.

    Args:
        page: a Markdown file.
        heading: the whole line, with its number signs.
        columns: the headings that the table must have, without that of the first column.

    Raises:
        ValueError: no such heading, no table before the next heading, other columns, or a row of another length.
    """
    lines = page.read_text(encoding="utf-8").splitlines()
    if lines.count(heading) != 1:
        raise ValueError(f"{page.name} must have the heading {heading!r} once, got {lines.count(heading)}")
    below = lines[lines.index(heading) + 1 :]
    end = next((i for i, line in enumerate(below) if line.startswith("#") and i > 0), len(below))
    found = [split_row(line) for line in below[: _end_of_table(below[:end])] if line.startswith("|")]
    if len(found) < 3 or tuple(found[0][1:]) != tuple(columns):
        raise ValueError(f"the table under {heading!r} must have the columns {tuple(columns)}, got {found[:1]}")
    rows = found[2:]
    if any(len(row) != len(columns) + 1 for row in rows):
        raise ValueError(f"the table under {heading!r} has a row of another length than {len(columns) + 1}")
    return Table(tuple(columns), {row[0]: tuple(row[1:]) for row in rows})


def _end_of_table(lines: Sequence[str]) -> int:
    """Return the index of the line after the first table."""
    first = next((i for i, line in enumerate(lines) if line.startswith("|")), len(lines))
    return next((i for i, line in enumerate(lines) if i > first and not line.startswith("|")), len(lines))


def split_row(line: str) -> list[str]:
    """Return the cells of a row of a Markdown table, without bold type."""
    return [cell.strip().strip("*") for cell in line.strip().strip("|").split("|")]


class Measurements(NamedTuple):
    """Everything that the pages show.

    Attributes:
        perplexity: per byte by context length, trained at 128.
        fashion: top-1 on Fashion-MNIST in percent by image size, trained at 28.
        glyphs: top-1 on glyphs likewise.
        times: time of attention by direction, as a multiple of that of `none`.
        costs: the record of `python -m benchmarks.costs`.
    """

    perplexity: Table
    fashion: Table
    glyphs: Table
    times: dict[str, Table]
    costs: dict[str, Any]


def measurements() -> Measurements:
    """Read them all.

    Raises:
        ValueError: a table that has changed its shape.
    """
    results, record = ROOT / "docs" / "results.md", ROOT / "benchmarks" / "RESULTS.md"
    directions = ("forward", "forward and backward")
    return Measurements(
        read_table(results, "## Text: perplexity against context length", LENGTHS),
        read_table(results, "### Fashion-MNIST", SIZES),
        read_table(results, "### Glyphs", SIZES),
        {way: read_table(record, f"### Encodings, causal, float32, {way}", ["L = 2,048"]) for way in directions},
        json.loads((ROOT / "benchmarks" / "results" / "costs.json").read_text(encoding="utf-8")),
    )
