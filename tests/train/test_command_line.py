"""Options: each is declared once, and a mistyped command is answered from that before anything heavy is imported."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pejax import ENCODINGS, EXTENSIONS
from pejax.models.configs.recipes import STYLES
from pejax.models.execution import REMAT
from pejax.models.stack.cross_positions import CROSS
from tests.support.cases import slow
from train.engine.command_line import SYNONYMS, library_names, read_options, require_names, unknown_option
from train.engine.options import GROUPS, facts_of, names_of, option, options, require_rules
from train.engine.programs import PROGRAMS, TRAINERS, config_of

TRAIN = Path(__file__).parents[2] / "train"
KINDS = {name: config_of(name) for name in PROGRAMS}
WORDS = {name: [f"--{option}" for option in facts_of(kind)] for name, kind in KINDS.items()}

MISTYPED = {
    "train.vit --encoding=rope": "unknown option --encoding; did you mean --pe?",
    "train.vit --pe=mine.py:slopes": "pe names an encoding of your own by its module, --pe=mine:slopes, got",
    "train.vit --batch=0": "batch must be at least 1, got 0",
    "train.lm --data=novel.txt": "got 'novel.txt'; did you mean file:novel.txt?",
    "train.lm --preset=nope": "preset must be one of demo, tinystories, gpt2_small, llama_7b, got 'nope'",
    "train.seq2seq --zebra=1": "unknown option --zebra; see --help",
    "train.dit --pe=learned+rop": "unknown encoding 'rop'; did you mean 'rope'? Known: alibi",
    "train.tune --steps=many": "argument --steps: invalid int value: 'many'",
    "train.compare --task=lm --pe=rope,rop": "unknown encoding 'rop'; did you mean 'rope'? Known: alibi",
    "train.compare --task=lm --steps=many": "argument --steps: invalid int value: 'many'",
    "train.evaluate run --eval_limit=-2": "eval_limit must be at least -1, got -2",
    "train.extend --windows=0": "windows must be at least 1, got 0",
    "train.embed --batch=0": "batch must be at least 1, got 0",
    "train.generate --foo": "unknown option --foo; see --help",
    "train.export --foo": "unknown option --foo; see --help",
    "train.replay --foo": "unknown option --foo; see --help",
    "train.report --foo": "unknown option --foo; see --help",
    "train.plan lm --topology=h100:1 --extend=yran": "unknown extension 'yran'; did you mean 'yarn'? Known: ",
    "train.lm.longrope run --windows=0": "windows must be at least 1, got 0",
}
"""Wrong command lines, one of every program at least, and what is said."""


def answer(command: str, folder: Path) -> subprocess.CompletedProcess:
    """Run a command where the import of JAX ends it."""
    (folder / "jax.py").write_text("raise SystemExit('jax was imported')\n")
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{TRAIN.parent}"}
    words = [sys.executable, "-m", *command.split(" ")]
    return subprocess.run(words, cwd=TRAIN.parent, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "command", [command if command.startswith("train.vit") else slow(command) for command in MISTYPED]
)
def test_a_mistyped_command_is_answered_before_jax_is_imported(command, tmp_path):
    ended = answer(command, tmp_path)
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: ")
    assert MISTYPED[command] in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert not ended.stdout


def test_every_program_answers_early():
    programs = {path.parent.relative_to(TRAIN).as_posix().replace("/", ".") for path in TRAIN.rglob("__main__.py")}
    assert {f"train.{name}" for name in programs} == {command.split(" ")[0] for command in MISTYPED}


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("rope*3+none*1", ""),
        ("alibi(extend=slopes(factor=2))", ""),
        ("rope(", ""),
        ("my.module:mine", ""),
        ("(learned+rop)(extend='pi')", "'rop'; did you mean 'rope'?"),
        ("bert", "'bert'. Known:"),
    ],
)
def test_names_of_encodings_are_known_from_the_source(spec, said):
    if said:
        with pytest.raises(ValueError, match=re.escape(said)):
            require_names(spec, "pe", "encoding")
    else:
        require_names(spec, "pe", "encoding")


def test_the_names_and_choices_are_those_of_the_library():
    assert {*library_names("encodings")} == {name for name in ENCODINGS if ":" not in name}
    assert {*library_names("extensions")} == {*EXTENSIONS}
    lm, pairs = facts_of(KINDS["lm"]), facts_of(KINDS["seq2seq"])
    assert [lm["style"]["choices"], lm["remat"]["choices"], pairs["cross"]["choices"]] == [
        tuple(STYLES), tuple(REMAT), tuple(CROSS)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("--encoding", "did you mean --pe?"),
        ("--learning-rate", "did you mean --lr?"),
        ("--steps", "did you mean --epochs?"),
        ("--widht", "did you mean --width?"),
        ("--batchsize", "did you mean --batch?"),
        ("--zzz", "see --help"),
    ],
)
def test_the_words_of_others_are_understood_and_nothing_is_guessed(word, hint):
    assert unknown_option(word, WORDS["vit"]) == f"unknown option {word}; {hint}"


def test_synonyms_are_of_options():
    sources = "\n".join(path.read_text() for path in TRAIN.rglob("*.py"))
    declared = {*re.findall(r"(\w+): [^=\n]+ = option\(", sources), *re.findall(r'add_argument\(\s*"--(\w+)"', sources)}
    assert {*SYNONYMS} <= declared


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_option_has_a_text_and_a_group_and_keeps_its_own_rules(name):
    kind = KINDS[name]
    for field, facts in facts_of(kind).items():
        assert facts.get("recorded") or (facts["group"] in GROUPS and (facts.get("text") or field == "preset")), field
    require_rules(kind())
    for preset in kind.presets.values():
        require_rules(kind(**preset))


def test_an_option_that_is_declared_again_keeps_its_other_facts():
    @options
    class Base:
        steps: int = option(text="steps", at_least=1)
        lr: float = option(1.0, "peak", "training", above=0, tuned=True)

    @options
    class More(Base):
        lr: float = option(2.0, late=True)

    facts = {"text": "peak", "group": "training", "above": 0, "tuned": True, "late": True}
    assert (More(steps=3).lr, facts_of(More)["lr"]) == (2.0, facts)
    assert names_of(More, "late") == ("lr",)
    assert names_of(Base, "late") == ()
    with pytest.raises(TypeError, match="steps"):
        More()


@pytest.mark.parametrize(
    ("rules", "value", "said"),
    [
        ({"at_least": 0}, -1, "must not be negative, got -1"),
        ({"at_least": 2}, (3, 1), "must be at least 2, got 1"),
        ({"above": 0}, 0.0, "must be positive, got 0.0"),
        ({"at_least": 0, "below": 1}, 1.0, "must be from 0 to below 1, got 1.0"),
        ({"at_least": 0, "at_most": 1}, 1.5, "must be from 0 to 1, got 1.5"),
        ({"choices": ("a", "b")}, "c", "must be one of a, b, got 'c'"),
        ({}, float("nan"), "must be a finite number, got nan"),
        ({}, 2**31, "must be below 2147483648, got 2147483648"),
    ],
)
def test_rules_name_the_option_the_rule_and_the_value(rules, value, said):
    @options
    class Kind:
        number: object = option(value, "number", **rules)

    with pytest.raises(ValueError, match=re.escape(f"number {said}")):
        require_rules(Kind())


def test_fine_tuning_has_no_options_of_a_model_that_it_does_not_make():
    recorded = {"pe", "width", "layers", "heads", "kv_heads", "extent", "init", "preset", "restarts"}
    assert {*names_of(KINDS["tune"], "recorded")} == recorded
    assert not {*KINDS["tune"].former} & {*facts_of(KINDS["tune"])}
    for name in (*KINDS["tune"].former, *recorded):
        with pytest.raises(SystemExit):
            read_options(KINDS["tune"](), [f"--{name}=1"])


def test_what_the_weights_depend_on_is_the_extension_of_training():
    lm, vit = KINDS["lm"], KINDS["vit"]
    assert lm(extend="pi,yarn(factor=2)").weights_settings() == lm(extend="pi").weights_settings()
    assert lm(extend="pi").weights_settings() != lm(extend="none").weights_settings()
    assert "extend" not in vit(extend="none,pi").weights_settings()
    assert {*TRAINERS} < {*PROGRAMS}


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("plan vit --width=3", "the following arguments are required: --topology"),
        ("plan vit --num_heads=3", "unknown option --num_heads; did you mean --heads?"),
        ("generate hello --max_token=3", "unknown option --max_token; did you mean --max_tokens?"),
    ],
)
def test_a_mistyped_option_comes_before_a_missing_one(command, said, capsys):
    name, *argv = command.split()
    with pytest.raises(SystemExit):
        importlib.import_module(f"train.{name}.options").parser().parse_known_args(argv)
    assert capsys.readouterr().err == f"error: {said}\n"
