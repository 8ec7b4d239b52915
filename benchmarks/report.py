"""Tables of measurements: kept case by case as JSON, printed as Markdown, written into RESULTS.md by section."""

import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import statistics
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax

from benchmarks.timing import Say, Timed, duration, ratio
from train.devices.cpu import cores

VERSIONS = (
    "jax", "jaxlib", "flax", "numpy", "torch", "transformers", "rotary-embedding-torch", "x-transformers", "tokamax",
)  # fmt: skip


WIDTH = 120
"""Most characters of a line of text."""


class Settings(NamedTuple):
    """The settings of a measurement.

    Attributes:
        rounds: rounds of each comparison.
        toy: sizes that take seconds, without peers: shows that all of it runs, measures nothing.
    """

    rounds: int = 7
    toy: bool = False

    @property
    def few(self) -> int:
        """Rounds of a comparison whose calls take seconds."""
        return min(self.rounds, max(3, self.rounds // 2))


class Column(NamedTuple):
    """One column of a table.

    Attributes:
        cells: text by row.
        notes: lines below the table.
        seconds: seconds of every round by way, for the record.
    """

    cells: dict[str, str]
    notes: Sequence[str] = ()
    seconds: dict[str, list[float]] = {}  # noqa: RUF012


class Case(NamedTuple):
    """One measurement whose result is kept.

    Attributes:
        table: heading of the table.
        column: heading of its column.
        measure: measures it.
        weight: about how many seconds it takes.
    """

    table: str
    column: str
    measure: Callable[[Say], Column]
    weight: float = 1.0


class Part(NamedTuple):
    """A benchmark of the command line.

    Attributes:
        title: title of its section.
        intro: introduction of its section: what is compared, and how to read the tables.
        cases: those to measure.
        head: heading of the first column of its tables.
    """

    title: str
    intro: str
    cases: Callable[[Settings], list[Case]]
    head: str = "measure"


def column_of(timed: Timed, *, first_calls: bool = False) -> Column:
    """Return the time of the first way, and how many times that the others take.

    Args:
        timed: what was measured.
        first_calls: add a row for each way's first call, which compiles.
    """
    base, *others = timed.seconds
    cells = {base: duration(statistics.median(timed.seconds[base]))}
    cells |= {name: str(ratio(timed.seconds[name], timed.seconds[base])) for name in others}
    if first_calls:
        cells |= {f"first call: {name}": duration(seconds) for name, seconds in timed.first.items()}
    notes = [f"{name}: left out, {why}" for name, why in timed.left_out.items()]
    return Column(cells, notes, timed.seconds)


def machine() -> str:
    """Return versions, hardware and threads in one line."""
    info = pathlib.Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    fields = {name.strip(): value.strip() for name, value in fields.items()}
    model = fields.get("model name", platform.processor())
    host = f"{os.cpu_count()} x {model} (family {fields.get('cpu family')}, model {fields.get('model')})"
    found = {name: _version(name) for name in VERSIONS}
    versions = " ".join(f"{name} {version}" for name, version in found.items() if version)
    pages = ", huge pages" if "hugetlb=1" in os.environ.get("GLIBC_TUNABLES", "") else ""
    device = jax.devices()[0].device_kind
    return f"{versions}, Python {platform.python_version()}; {device}, {host}, {cores()} threads{pages}"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def path_of(folder: pathlib.Path, part: str, case: Case) -> pathlib.Path:
    """Return where a case is kept."""
    return folder / (re.sub(r"[^\w.]+", "-", f"{part} {case.table} {case.column}") + ".json")


def keep(path: pathlib.Path, column: Column, command: str, load: float) -> None:
    """Write a column to its file, whole or not at all.

    Args:
        path: path of the file.
        column: what was measured.
        command: command that measured it.
        load: load of the machine just before.
    """
    kept = {
        "date": datetime.date.today().isoformat(),
        "command": command,
        "machine": machine(),
        "load": load,
        "cells": column.cells,
        "notes": list(column.notes),
        "seconds": column.seconds,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def section(part: Part, cases: Iterable[tuple[Case, dict[str, Any]]]) -> str:
    """Return a part's section: date, machine and tables, from the kept results of its cases."""
    cases = list(cases)
    several = lambda name: list(dict.fromkeys(kept[name] for _, kept in cases))
    commands = "\n".join(f"    {command}" for command in several("command"))
    tables = "\n\n".join(
        table(title, [(case.column, kept) for case, kept in cases if case.table == title], part.head)
        for title in dict.fromkeys(case.table for case, _ in cases)
    )
    loads = several("load")
    where = f"{'. '.join(several('machine'))}; load of the machine {min(loads):.1f} to {max(loads):.1f}."
    intro = "\n\n".join(textwrap.fill(text, WIDTH, break_on_hyphens=False) for text in (part.intro, where))
    return f"## {part.title}, {max(several('date'))}\n\n{commands}\n\n{intro}\n\n{tables}\n"


def table(title: str, columns: Sequence[tuple[str, dict[str, Any]]], head: str) -> str:
    """Return one Markdown table under its title, with the notes of its columns below."""
    rows = list(dict.fromkeys(row for _, kept in columns for row in kept["cells"]))
    lines = [
        f"### {title}",
        "",
        f"| {head} | " + " | ".join(name for name, _ in columns) + " |",
        "|---" + "|---:" * len(columns) + "|",
        *(f"| {row} | " + " | ".join(kept["cells"].get(row, "") for _, kept in columns) + " |" for row in rows),
    ]
    notes = [f"- {name}: {note}" for name, kept in columns for note in kept["notes"]]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def write_section(path: pathlib.Path, part: Part, text: str) -> None:
    """Put a section into a Markdown file: in place of the one with the same title, or at the end."""
    old = path.read_text(encoding="utf-8") if path.exists() else "# Results\n"
    pattern = re.compile(rf"^## {re.escape(part.title)}(,[^\n]*)?\n.*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)
    if pattern.search(old):
        new = pattern.sub(lambda found: text + ("" if found.end() == len(old) else "\n"), old, count=1)
    else:
        new = f"{old.rstrip()}\n\n{text}"
    path.write_text(new, encoding="utf-8")
