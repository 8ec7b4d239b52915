"""`--help`: what comes first, that no option is without a group, and that the examples are read."""

import importlib
import re
import shlex

import pytest

from tests.support.cases import slow
from train.engine.command_line import Parser
from train.engine.help import EXAMPLES, About
from train.engine.options import GROUPS
from train.engine.programs import PROGRAMS

MODULES = {
    name: importlib.import_module(f"train.{name}")
    for name in (
        "vit.program", "lm.program", "seq2seq.program", "dit.program", "tune.program", "compare.program",
        "evaluate.program", "extend.program", "plan.program", "report.program", "generate.program", "replay.program",
        "embed.program", "export.program", "lm.longrope.program",
    )
}  # fmt: skip


class Read(Exception):
    """A command line was read to its end."""


def helped(module, capsys, monkeypatch, columns=80) -> str:
    monkeypatch.setenv("COLUMNS", f"{columns}")
    with pytest.raises(SystemExit, match="0"):
        module.main(["--help"])
    return capsys.readouterr().out


@pytest.mark.parametrize("name", MODULES)
def test_the_program_and_its_examples_come_before_the_options(name, capsys, monkeypatch):
    said = helped(MODULES[name], capsys, monkeypatch)
    about = About(MODULES[name].__doc__)
    places = [
        said.index(text) for text in (about.sentence.rstrip(".").split(":")[0][:40], "examples:", "\n  -h, --help")
    ]
    assert places == sorted(places)
    assert 1 <= len(about.examples) <= EXAMPLES
    assert all(line in said for line in about.examples)
    assert not re.search(r"fmt: |default: (\)|False|\(\))", said)


@pytest.mark.parametrize("name", ["compare.program", *(slow(name) for name in MODULES if name != "compare.program")])
def test_a_terminal_of_60_columns_shows_whole_words(name, capsys, monkeypatch):
    said = helped(MODULES[name], capsys, monkeypatch, columns=60)
    wide = [line for line in said.splitlines() if len(line) > 60]
    assert all(line.startswith("  python -m ") or len(line.split()) == 1 for line in wide), wide
    assert said.split() == helped(MODULES[name], capsys, monkeypatch).split()


@pytest.mark.parametrize("name", PROGRAMS)
def test_ten_options_come_first_and_all_others_are_in_groups(name, capsys, monkeypatch):
    module = MODULES[f"{name}.program"]
    said = helped(module, capsys, monkeypatch)
    first, _, remainder = said.partition("the options that matter first:")[2].partition("\n\n")
    options = [line.split()[0].strip(",") for line in first.splitlines() if line.startswith("  --")]
    assert len(options) == 10
    assert not [option for option in options if f"\n  {option} " in remainder]
    group = remainder.partition("other options:")[2].partition("\n\n")[0]
    assert [line for line in group.splitlines() if line.startswith("  --")] == []
    assert sum(f"\n{title}:\n" in said for title in GROUPS) >= 5


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_are_read(name, monkeypatch):
    read = Parser.parse_args

    def parse_args(parser, *arguments):
        read(parser, *arguments)
        raise Read

    monkeypatch.setattr(Parser, "parse_args", parse_args)
    for example in About(MODULES[name].__doc__).examples:
        python, option, program, *argv = shlex.split(example.partition("   ")[0])
        assert (python, option) == ("python", "-m")
        with pytest.raises(Read):
            importlib.import_module(f"{program}.program").main(argv)
