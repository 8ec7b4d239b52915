"""The console of the user: what people chose is shown as it is, in any encoding, and a closed pipe ends nothing."""

import io
import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from rich.styled import Styled
from rich.table import Table
from rich.text import Text

from train.compare.table import Mean, Row, tables
from train.engine.progress import Evaluating
from train.engine.terminal import user_console
from train.vit.results import ResolutionResults

HOSTILE = "sweep[lr=a] [/red] [bold]x[/] :smile: \x1b[31m\udcff"
SHOWN = "sweep[lr=a] [/red] [bold]x[/] :smile: \\x1b[31m\\udcff"


def written(monkeypatch: pytest.MonkeyPatch, encoding: str, *renderables: Any) -> str:
    """Return what the console writes to a standard output with this encoding."""
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, encoding=encoding))
    console = user_console()
    for renderable in renderables:
        console.print(renderable)
    return output.getvalue().decode(encoding)


def compared(best: str, other: str) -> list[Table]:
    """Return the tables of a comparison of two encodings, as `train.compare` prints them."""
    rows = [Row(name, {"top-1, %": {28: Mean(mean, 0.4, 2)}}, ()) for name, mean in ((best, 90.0), (other, 80.0))]
    comparison: Any = SimpleNamespace(program=SimpleNamespace(results=ResolutionResults))
    return tables(comparison, rows, 28, 120)


def test_names_are_printed_as_they_are(capsys):
    user_console().print(f"--resume --out='{HOSTILE}'")
    assert capsys.readouterr().out == f"--resume --out='{SHOWN}'\n"


def test_tables_show_names_as_they_are(capsys):
    table = Table(HOSTILE, title=HOSTILE, caption=HOSTILE)
    table.add_row(HOSTILE, style="bold")
    table.add_row(Styled(HOSTILE, "bold"))
    table.add_row(Text("a\x1bb"))
    user_console().print(table)
    lines = capsys.readouterr().out.splitlines()
    assert [SHOWN in line for line in lines] == [True, False, True, False, True, True, False, False, True]
    assert "a\\x1bb" in lines[6]


def test_a_progress_bar_shows_names_as_they_are(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    output = io.StringIO()
    console = user_console()
    console.file = output
    with Evaluating(console, 2.0) as progress:
        progress(1.0, HOSTILE)
    assert "sweep[lr=a] [/red] [bold]x[/] :smile: \\x1b" in output.getvalue()
    assert "\x1b[31m" not in output.getvalue()


def test_a_comparison_shows_labels_as_they_are_and_the_best_in_bold(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    console = user_console()
    for table in compared(HOSTILE, "none"):
        console.print(table)
    text = capsys.readouterr().out
    assert SHOWN in text
    assert "\x1b[1m90.0 ±0.4\x1b[0m" in text
    assert "\x1b[1m80.0 ±0.4\x1b[0m" not in text


def test_an_ascii_terminal_gets_tables_whose_columns_are_straight(monkeypatch):
    text = written(monkeypatch, "ascii", *compared("rope · pi", "Δ"))
    lines = text.splitlines()
    assert len({len(line) for line in lines[1:]}) == 1
    assert "| rope - pi | 90.0 +-0.4 |" in lines
    assert "| delta     | 80.0 +-0.4 |" in lines


def test_latin_1_keeps_what_it_has(monkeypatch):
    assert written(monkeypatch, "latin-1", "64 px · ±0.4 · Δ …") == "64 px · ±0.4 · delta ...\n"


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_a_spinner_has_characters_of_the_encoding(encoding, monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    for frame in user_console().status("preparing").renderable.frames:
        frame.encode(encoding)


def test_a_closed_pipe_makes_it_quiet(monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        console = user_console()
        console.print("nobody reads this")
        console.print("and this is not written")
        assert console.quiet
        stream.flush()
