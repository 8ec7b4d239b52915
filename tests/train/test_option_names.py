"""Options are known from the source of a program, before anything heavy is imported."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

from train.compare.options import CompareOptions
from train.dit.config import Config as Dit
from train.engine import option_names
from train.engine.help import About
from train.engine.option_names import SYNONYMS, options_of, unknown_option
from train.engine.parser import Parser
from train.evaluate import EvaluateOptions
from train.extend.options import ExtendOptions
from train.generate import GenerateOptions
from train.lm.config import Config as Language
from train.lm.longrope import SearchOptions
from train.plan.program import PlanOptions
from train.seq2seq.config import Config as Pairs
from train.tune.config import Config as Tune
from train.vit.config import Config as Vision

TRAIN = Path(__file__).parents[2] / "train"
TRAINERS = (Vision, Language, Pairs, Dit)
FILES = {
    "vit/__main__.py": (Vision,),
    "lm/__main__.py": (Language,),
    "seq2seq/__main__.py": (Pairs,),
    "dit/__main__.py": (Dit,),
    "tune/__main__.py": (Tune,),
    "extend/__main__.py": (ExtendOptions,),
    "compare/__main__.py": (CompareOptions, *TRAINERS),
    "plan/__main__.py": (PlanOptions, *TRAINERS),
    "evaluate.py": (EvaluateOptions,),
    "generate.py": (GenerateOptions,),
    "lm/longrope.py": (SearchOptions,),
}
"""The files that require options, and the classes whose fields they are."""


def modules_of(file: str) -> list[str]:
    """Return the modules that a program requires its options to be in."""
    call = re.search(r"require_options\((.*?)\)", (TRAIN / file).read_text(), re.DOTALL)
    return [*re.findall(r'"([\w.]+)"', call[1]), *(option_names.TRAINERS if "*TRAINERS" in call[1] else ())]


def options_of_parser(kind: type) -> set[str]:
    """Return the options of a parser with the fields of a class."""
    parser = Parser("python -m train.x", About(""))
    required = {f.name: f.type("") for f in dataclasses.fields(kind) if f.default is f.default_factory}
    parser.add_arguments(kind, dest="config", default=kind(**required))
    parser.parse_args([])
    return {name for action in parser._actions for name in action.option_strings if name.startswith("--")}


@pytest.mark.parametrize("file", FILES)
def test_the_options_in_the_source_are_those_of_the_parser(file):
    named = {
        name
        for path in (TRAIN / file).parent.glob("*.py")
        for name in re.findall(r'add_argument\(\s*"(--\w+)"', path.read_text())
    }
    parsed = set().union(*map(options_of_parser, FILES[file]))
    assert parsed <= options_of(*modules_of(file)) <= parsed | named


def test_every_program_answers_a_mistyped_option_before_it_imports_anything():
    programs = {path.relative_to(TRAIN).as_posix() for path in TRAIN.rglob("*.py") if "prepare_" in path.read_text()}
    programs -= {"devices/cpu.py", "report/measure.py"}
    assert programs == {*FILES, "replay.py", "report/__main__.py"}
    assert all(modules_of(file) for file in programs)
    heavy = "import sys; sys.modules['jax'] = None; sys.argv = ['vit', '--encoding=rope']; "
    run = "import runpy; runpy.run_module('train.vit', run_name='__main__')"
    ended = subprocess.run([sys.executable, "-c", heavy + run], cwd=TRAIN.parent, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (2, "error: unknown option --encoding; did you mean --pe?\n")


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("--encoding", "did you mean --pe?"),
        ("--learning-rate", "did you mean --lr?"),
        ("--steps", "did you mean --epochs?"),
        ("--widht", "did you mean --width?"),
        ("--batchsize", "did you mean --batch?"),
        ("--zzz", "see --help"),
    ],
)
def test_the_words_of_others_are_understood_and_nothing_is_guessed(option, hint):
    assert unknown_option(option, options_of("vit.config", "engine.config")) == f"unknown option {option}; {hint}"


def test_synonyms_are_of_options_and_are_none_themselves():
    every = set().union(*(options_of(*modules_of(file)) for file in FILES))
    assert {f"--{name}" for name in SYNONYMS} <= every
    for file in FILES:
        known = options_of(*modules_of(file))
        taken = {f"--{word}" for name, words in SYNONYMS.items() if f"--{name}" in known for word in words.split()}
        assert {unknown_option(word, known) for word in taken - known}  # each has an answer
