"""What a person can get wrong is refused in one line that names the thing, the rule and the value, and nothing is left.

Options out of any range, arrays that no memory holds, damaged files of a run, comparisons that cannot be written.
"""

import json
import os
import re
from pathlib import Path

import pytest

from tests.support import cli
from train.devices import memory as room
from train.engine.options import names_of
from train.engine.stored_config import from_dict
from train.evaluate import program as evaluate
from train.lm import program as lm
from train.plan import program as plan
from train.seq2seq import program as seq2seq
from train.vit import program as vit

PROGRAMS = {"evaluate": evaluate.main, "lm": lm.main, "plan": plan.main, "seq2seq": seq2seq.main, "vit": vit.main}
ROW = {"size": 28, "tokens": 49, "correct": 1, "count": 2, "top1": 0.5, "interval": [0.1, 0.9]}
RESULTS = {"name": "rope", "data": "d", "trained": 28, "step": 1, "extend": "none", "note": "n", "rows": [ROW]}


def refused(capsys, words: str | list[str]) -> str:
    """Return the one line of a command that must be refused."""
    program, *options = words.split() if isinstance(words, str) else words
    return cli.refused(capsys, lambda: PROGRAMS[program](options))


BAD = {
    "lm --layers=99999999999999999999": "layers must be below 2147483648, got 99999999999999999999",
    "lm --checkpoint_every=4294967296": "checkpoint_every must be below 2147483648, got 4294967296",
    "seq2seq --eval_lengths 4 4294967296": "eval_lengths must be below 2147483648, got 4294967296",
    "vit --repeats=49": "repeats must be at most batch=48, got 49",
    "vit --size=100000": "48 examples of 625,000,000 tokens, width=64 (batch / accumulate) must fit the memory",
    "vit --registers=10000000": "48 examples of 10,000,049 tokens, width=64 (batch / accumulate) must fit the memory",
    "vit --size=400": "10,000 images of 400 x 400 pixels must fit the memory, 1.0 GiB, got 1.5 GiB at least",
    "vit --size=400 --data=glyphs": "10,000 images of 400 x 400 pixels must fit the memory, 1.0 GiB, got 1.5 GiB",
    "vit --eval_sizes=16,30": "image sizes must be multiples of the patch, 4, got 30",
    "vit --eval_sizes=16,x": "argument --eval_sizes: invalid int value: '16,x'",
    "vit --eval_sizes 100000": "an image of 100000 x 100000 pixels must fit the memory, 1.0 GiB, got 37.3 GiB at least",
    "lm --width=99996": "the parameters of width=99996, layers=3 must fit the memory, 1.0 GiB, got 223.5 GiB at least",
    "lm --layers=2000000000": "the parameters of width=96, layers=2000000000 must fit the memory",
    "lm --hidden=2000000000": "parameters and the two moments of each must fit the memory",
    "lm --batch=2000000000": "2000000000 examples of 128 tokens, width=96 (batch / accumulate) must fit the memory",
    "seq2seq --eval_lengths 1000000000": "eval_lengths: an example of 1,000,000,000 tokens must fit the memory",
    "plan lm --topology=h100:99999999999": "topology must have at most 1,000,000 devices, got 'h100:99999999999'",
    "plan lm --topology=h100:8 --vocab=99999999999": "vocab must be below 2147483648, got 99999999999",
    "evaluate nowhere --to=x": "to must be given only with --compare, got 'x' without it",
    "evaluate --compare nowhere --eval_limit=5": "eval_limit must be given without --compare, got 5 with it",
    "evaluate --compare nowhere --to=.": "to must name the files to write, got '.'",
}


@pytest.mark.parametrize("words", BAD)
def test_options_are_refused(words, tmp_path, monkeypatch, capsys):
    """On a machine of 1 GiB."""
    monkeypatch.chdir(tmp_path)
    pages = room.GIB // os.sysconf("SC_PAGE_SIZE")
    values = {"SC_PHYS_PAGES": pages, "SC_PAGE_SIZE": os.sysconf("SC_PAGE_SIZE")}
    monkeypatch.setattr(os, "sysconf", values.__getitem__)
    assert BAD[words] in refused(capsys, words)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_option_has_a_help_text(program, capsys):
    with pytest.raises(SystemExit, match="0"):
        PROGRAMS[program](["--help"])
    said = capsys.readouterr().out
    assert "--" in said
    assert re.findall(r"(--\w+) \S+( \[int, ...\])?\s+\(default", said) == []


def run(folder: Path, program: str = "vit", **changed: object) -> Path:
    """Write the files that a comparison reads, with changes of the results."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"program": program}))
    (folder / "results.json").write_text(json.dumps({**RESULTS, **changed}))
    return folder


DAMAGED = {
    '{"rows": []}': "numbers must be at least one, got none",
    '{"rows": 3}': "'int' object is not iterable",
    '{"rows": ["row"]}': "a row must be an object, got 'row'",
    '{"trained": "x"}': "trained must be int, got 'x'",
    '{"name": null}': "name must be str, got None",
    json.dumps({"rows": [{**ROW, "size": "x"}]}): "size must be int, got 'x'",
    json.dumps({"rows": [{**ROW, "count": 0}]}): "correct must be from 0 to count=0, got 1",
}


@pytest.mark.parametrize("changed", DAMAGED)
def test_damaged_results_are_named(changed, tmp_path, capsys):
    complete_run, folder = run(tmp_path / "whole"), run(tmp_path / "run", **json.loads(changed))
    error = refused(capsys, ["evaluate", "--compare", str(complete_run), str(folder), f"--to={tmp_path}/to/both"])
    assert f"results must come from an evaluation, got {folder / 'results.json'}: {DAMAGED[changed]}" in error
    assert not list((tmp_path / "to").iterdir())


def test_results_of_no_utf8_are_named(tmp_path, capsys):
    folder = run(tmp_path / "run")
    (folder / "results.json").write_bytes(b"\xff")
    error = refused(capsys, ["evaluate", "--compare", str(folder), f"--to={tmp_path}/to/both"])
    assert f"results must come from an evaluation, got {folder / 'results.json'}: " in error
    assert "results.json must be UTF-8, got another byte at 0" in error


def test_a_folder_without_results_is_named(tmp_path, capsys):
    complete_run, bare = run(tmp_path / "whole"), tmp_path / "bare"
    bare.mkdir()
    error = refused(capsys, ["evaluate", "--compare", str(complete_run), str(bare), f"--to={tmp_path}/both"])
    assert f"a comparison needs run folders with results*.json, got {bare} without" in error


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("{bad}", "must be JSON"),
        pytest.param('{"a": 1}', "must have a step", marks=pytest.mark.slow),
        pytest.param('{"step": "x"}', "must have a step and numbers", marks=pytest.mark.slow),
    ],
)
def test_a_damaged_line_of_metrics_leaves_no_half_of_a_comparison(line, rule, tmp_path, capsys):
    row = {"length": 28, "everything": {"mean": 1.0, "half": 0.1, "count": 9}}
    folder = run(tmp_path / "run", "lm", rows=[row])
    (folder / "metrics.jsonl").write_text(f'{{"step": 1, "loss_0_to_L": 1.0}}\n{line}\n')
    options = ["evaluate", "--compare", str(folder), f"--to={tmp_path}/to/both"]
    expected = f"a line of {folder / 'metrics.jsonl'} {rule}"
    assert expected in refused(capsys, options)
    assert not list((tmp_path / "to").iterdir())
    (folder / "metrics.jsonl").write_text('{"step": 1, "loss_0_to_L": 1.0, "loss_L_to_2L": 2.0}\n{"step": 2, "lo')
    assert evaluate.main(options[1:]) == 0
    assert sorted(path.name for path in (tmp_path / "to").iterdir()) == ["both-training.png", "both.md", "both.png"]


def test_a_comparison_that_cannot_be_written_says_where(tmp_path, capsys):
    folder = run(tmp_path / "run")
    (tmp_path / "file").write_text("x")
    error = refused(capsys, ["evaluate", "--compare", str(folder), f"--to={tmp_path}/file/both"])
    assert f"to must be where files can be written, got {tmp_path}/file/both: " in error


FIELDS = {"width": ("big", "int"), "pe": (5, "str"), "eval_sizes": (["a"], "tuple"), "lr": (None, "float")}


@pytest.mark.parametrize("name", FIELDS)
def test_a_config_of_other_types_is_named(name, tmp_path, capsys):
    config = vit.Config(out=str(tmp_path / "run"))
    (tmp_path / "run").mkdir()
    stored = {"program": "vit", **vars(config), name: FIELDS[name][0]}
    (tmp_path / "run" / "config.json").write_text(json.dumps(stored))
    error = refused(capsys, ["evaluate", str(tmp_path / "run")])
    assert f"config.json, written by pejax 0.2.0 or earlier: {name} must be of type {FIELDS[name][1]}, got " in error
    stored.update({name: getattr(config, name), "layers": 1})
    (tmp_path / "run" / "config.json").write_text(json.dumps(stored))
    assert "eval_limit must be at least -1, got -7" in refused(
        capsys, ["evaluate", str(tmp_path / "run"), "--eval_limit=-7"]
    )


def test_a_run_of_an_earlier_version_is_read_and_a_field_that_it_had_is_missed():
    config = vit.Config(pe="alibi")
    stored = {name: value for name, value in vars(config).items() if name not in names_of(vit.Config, "late")}
    assert from_dict(vit.Config, stored) == config
    assert len(stored) < len(vars(config))
    for fields in ({**stored, "later_than_this": 1}, {name: value for name, value in stored.items() if name != "seed"}):
        with pytest.raises(ValueError, match=r"exactly this program's fields, got a difference in '(later_than|seed)"):
            from_dict(vit.Config, fields)
