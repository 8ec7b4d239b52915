"""Options: a program reads every one that it has, and a new one leaves the runs of earlier versions as they are."""

import importlib
import re
import shutil
import sys
from pathlib import Path

import pytest

from train.engine.command_line import read_options
from train.engine.options import facts_of, names_of, option, options, require_rules
from train.engine.programs import PROGRAMS, config_of
from train.engine.stored_config import load_config, settings_digest
from train.report.groups import OF_SERIES, TUNED

STORED = Path(__file__).parents[1] / "data_files" / "runs_0_3_0"
TRAIN = Path(__file__).parents[2] / "train"
STARTED = {
    "vit": "--data=glyphs --width=4 --layers=1 --heads=1 --size=8 --patch=4 --epochs=1 --batch=500 --eval_sizes=8 "
    "--eval_limit=20 --stop_at=9",
    "lm": "--width=4 --layers=1 --heads=2 --length=8 --steps=2 --batch=8 --eval_lengths=8 --eval_limit=2",
    "seq2seq": "--width=4 --layers=1 --encoder_layers=1 --heads=2 --length=4 --steps=2 --eval_lengths=4 --eval_limit=2",
    "dit": "--width=4 --layers=1 --heads=1 --size=4 --patch=2 --steps=2 --batch=8 --eval_limit=4 --eval_shapes=4 "
    "--sampling_steps=1 --data=glyphs",
    "tune": "--model=tiny.gguf --data=file:notes.txt --steps=2 --eval_limit=1 --eval_lengths=16",
}
"""Short runs; that of train.vit ends before its evaluation."""

CHECKS = ("validated", "weights_settings", "require_same", "require_rules", "recorded", "read_options", "asdict")
"""Functions that read options without using them."""

READ_ONCE = {"vit": {"eval_limit"}, "seq2seq": set(), "lm": set(), "dit": set(), "tune": set()}
"""Options that the short run has no occasion to read: those of an evaluation that it does not come to."""


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_run_reads_every_option(name, tmp_path, monkeypatch):
    """An option that nothing reads would be recorded as if it had done something."""
    shutil.copytree(STORED, tmp_path / "files", ignore=shutil.ignore_patterns(*PROGRAMS))
    monkeypatch.chdir(tmp_path / "files")
    used: set[str] = set()

    def record(config, option):
        reader = sys._getframe(1).f_code
        if reader.co_name not in CHECKS and Path(reader.co_filename).is_relative_to(TRAIN):
            used.add(option)
        return object.__getattribute__(config, option)

    monkeypatch.setattr(config_of(name), "__getattribute__", record, raising=False)
    program_of_name = importlib.import_module(f"train.{name}.program")
    assert program_of_name.main([*STARTED[name].split(), f"--out={tmp_path / 'run'}", "--log_every=1"]) == 0
    unread = {*facts_of(config_of(name))} - used - {*names_of(config_of(name), "recorded")} - READ_ONCE[name]
    assert unread <= {"preset"}


@pytest.mark.parametrize("path", sorted(TRAIN.rglob("options.py")), ids=lambda path: path.parent.name)
def test_other_programs_read_every_option(path):
    declared = re.findall(r"^    (\w+): [^=\n]+ = option\(", path.read_text(), re.M)
    room = (
        "\n".join(module.read_text() for module in path.parent.glob("*.py") if module != path)
        + path.read_text().partition("@property")[2]
    )
    assert [name for name in declared if not re.search(rf"\.{name}\b|\"{name}\"", room)] == []


@pytest.mark.parametrize("run", ["vit", "lm", "seq2seq", "dit", "tune"])
def test_a_new_option_leaves_earlier_runs_readable(run):
    @options
    class Newer(config_of(run)):
        warmth: float = option(0.999, "a new option", "training", above=0, below=1, tuned=True, late=True)

    before, after = load_config(config_of(run), STORED / run), load_config(Newer, STORED / run)
    assert after.warmth == 0.999
    assert settings_digest(after) == settings_digest(before)
    assert settings_digest(Newer(**{**vars(after), "warmth": 0.9})) != settings_digest(before)
    assert read_options(after, ["--warmth=0.9"]).warmth == 0.9

    @options
    class Careless(config_of(run)):
        warmth: float = option(0.999, "a new option", "training")

    with pytest.raises(ValueError, match="a stored config must have exactly this program's fields"):
        load_config(Careless, STORED / run)


@pytest.mark.parametrize(
    ("rules", "number", "words"),
    [
        ({"above": 0, "below": 1}, 1.0, "be above 0 and be below 1"),
        ({"above": 0}, 0.0, "be positive"),
        ({"above": 2}, 2.0, "be above 2"),
        ({"above": 0, "at_most": 1}, 1.5, "be above 0 and be at most 1"),
        ({"at_least": 0}, -1.0, "not be negative"),
        ({"at_least": 1}, 0.0, "be at least 1"),
        ({"at_least": 0, "at_most": 1}, 2.0, "be from 0 to 1"),
        ({"at_least": 0, "below": 1}, 1.0, "be from 0 to below 1"),
        ({"below": 3}, 3.0, "be below 3"),
        ({"at_most": 3}, 3.5, "be at most 3"),
    ],
)
def test_every_bound_of_an_option_is_said(rules, number, words):
    @options
    class Bounded:
        warmth: float = option(0.5, "a new option", **rules)

    with pytest.raises(ValueError, match=f"^warmth must {re.escape(words)}, got {number}$"):
        require_rules(Bounded(number))


def test_what_runs_of_one_table_may_differ_by_is_said_where_an_option_is_declared():
    assert {*TUNED} == {"optimizer", "lr", "lr_end", "weight_decay", "clip", "warmup"}
    assert {"pe", "decoder_pe", "cross", "cross_pe", "seed", "init", "preset", "validation", *TUNED} == OF_SERIES
