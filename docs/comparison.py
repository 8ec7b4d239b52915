"""The tables of docs/which-one.md, which put all encodings next to each other."""

from encoding_costs import TEXT, cost_rows, markdown_table, times_of
from encoding_records import RECORDS
from measured import Measurements, Table

import pejax


def number(table: Table, row: str, column: str) -> float:
    """Return a cell as a number, NaN where the table has none: no such row, or an input that was refused."""
    cell = table.rows[row][table.columns.index(column)] if row in table.rows else "refused"
    return float("nan") if cell == "refused" else float(cell)


def gain(table: Table, name: str, column: str) -> str:
    """Return the share of the gain of the best encoding over none that an encoding has, in percent."""
    values = [number(table, row, column) for row in RECORDS if row in table.rows]
    bare = number(table, "none", column)
    best = max(values, key=lambda value: abs(value - bare))
    share = (number(table, name, column) - bare) / (best - bare)
    return "" if share != share else f"{100 * share + 0.0:.0f} %"


def scores_of_all(found: Measurements) -> str:
    """Return the table of docs/which-one.md with every encoding by the five criteria."""
    head = ["encoding", "1. told apart: text", "images", "2. distances", "3. longer text", "larger images",
            "4. content", "5. time"]  # fmt: skip
    rows = []
    for name in RECORDS:
        encoding = pejax.make_encoding(name, TEXT)
        grown = number(found.perplexity, name, "1024") / number(found.perplexity, name, "128")
        lost = number(found.glyphs, name, "40") - number(found.glyphs, name, "28")
        text = f"× {grown:.2f}" if grown == grown else "refused" if name in found.perplexity.rows else ""
        rows.append([
            f"[`{name}`](encodings/{name}.md)",
            gain(found.perplexity, name, "128"),
            gain(found.glyphs, name, "28"),
            "yes" if encoding.shift_invariant else "no",
            text,
            f"{lost:+.1f}" if lost == lost else "",
            "no" if encoding.embed is not None else "yes",
            "once" if encoding.embed is not None else times_of(name, found),
        ])  # fmt: skip
    return markdown_table(head, rows)


def results_of_all(found: Measurements) -> str:
    """Return the table of docs/which-one.md with a trained size and a larger one of each measurement."""
    picked: list[tuple[str, Table, str]] = [
        ("perplexity at 128", found.perplexity, "128"),
        ("at 1,024", found.perplexity, "1024"),
        ("Fashion-MNIST at 28", found.fashion, "28"),
        ("at 48", found.fashion, "48"),
        ("glyphs at 28", found.glyphs, "28"),
        ("at 48", found.glyphs, "48"),
    ]
    rows = []
    for name in RECORDS:
        cells = [table.rows[name][table.columns.index(column)] if name in table.rows else ""
                 for _, table, column in picked]  # fmt: skip
        rows.append([f"[`{name}`](encodings/{name}.md)", *cells])
    return markdown_table(["encoding", *(title for title, _, _ in picked)], rows)


def costs_of_all(found: Measurements) -> str:
    """Return the table of docs/which-one.md with what every encoding costs on text."""
    head = ["encoding", "parameters", "FLOPs per layer", "memory per layer", "time"]
    rows = []
    for name in RECORDS:
        _, count, flops, _, memory = cost_rows(name, found)[0]
        rows.append([f"[`{name}`](encodings/{name}.md)", count, flops, memory, times_of(name, found)])
    return markdown_table(head, rows)


def filled(text: str, tables: dict[str, str]) -> str:
    """Return a page with each table put between its two marks.

    Raises:
        ValueError: a page without the marks of a table.
    """
    for name, table in tables.items():
        begin, end = f"<!-- table: {name} -->", f"<!-- end: {name} -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise ValueError(f"the page must have {begin} and {end} once")
        before, rest = text.split(begin)
        text = f"{before}{begin}\n\n{table}\n\n{end}{rest.split(end)[1]}"
    return text
