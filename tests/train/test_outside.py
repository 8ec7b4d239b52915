"""Files that a run folder names: no command opens them unless its own line names them, and no message quotes them."""

import contextlib
import dataclasses
import json
import os
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.cli import refused
from tests.support.report_runs import lm_run, vit_run
from train.compare import options as compare
from train.dit.config import Config as DitConfig
from train.engine import session
from train.engine.outside import command, named_paths
from train.engine.parser import parse
from train.engine.programs import config_of, program
from train.engine.stored_config import save_config
from train.evaluate import program as evaluate
from train.lm.config import Config as LmConfig
from train.lm.longrope import program as longrope
from train.plan import program as plan
from train.replay import program as replay
from train.report import program as report
from train.runs import load_run
from train.tune.config import Config as TuneConfig
from train.vit.config import Config as VitConfig

SECRET = "hunter2-the-first-line-of-a-secret-file"


@pytest.mark.parametrize(
    ("spec", "paths"),
    [
        ("fashion", ()),
        ("glyphs", ()),
        ("fashion(full=True)", ()),
        ("copy,reverse", ()),
        ("shakespeare(tokenizer='bpe(vocab=512)')", ()),
        ("topics(tokenizer='~/tokenizer.json')", ("~/tokenizer.json",)),
        ("fashion(folder='photos')", ("photos",)),
        ("folder:photos", ("photos",)),
        ("folder(path='photos', on_error='skip', shown=1.0)", ("photos",)),
        ("tfds:mnist", ("mnist",)),
        ("jsonl:~/.netrc", ("~/.netrc",)),
        ("file(path='a', separator='--', held_out='b', tokenizer='c.json')", ("a", "b", "c.json")),
        ("file(path='a', held_out=0.1, tokenizer='bytes')", ("a",)),
        ("file(**{'path': 'a'})", ("path", "a")),
        ("../a", ("../a",)),
        ("file(path=", ("file(path=",)),
    ],
)
def test_the_paths_in_a_spec_of_data(spec, paths):
    assert named_paths(spec) == paths


@pytest.fixture
def secret(tmp_path) -> Path:
    """A file that a run folder names."""
    path = tmp_path / "secret.jsonl"
    path.write_text(f"{SECRET}\n")
    return path


def test_a_run_on_files_is_evaluated_if_the_command_names_them(secret, tmp_path, capsys):
    folder = lm_run(tmp_path / "run", "rope", 0, {64: 1.0}, data=f"jsonl:{secret}")
    line = refused(capsys, lambda: evaluate.main([f"{folder}"]))
    assert line == f"error: {folder} was trained on jsonl:{secret}; to read it, add --data=jsonl:{secret}\n"
    line = refused(capsys, lambda: evaluate.main([f"{folder}", "--data=shakespeare"]))
    assert line == f"error: data must be that of the run {folder}, 'jsonl:{secret}', got 'shakespeare'\n"
    line = refused(capsys, lambda: evaluate.main([f"{folder}", f"--data=jsonl:{secret}"]))
    assert "secret.jsonl must be JSON" in line
    assert SECRET[:4] not in line


def test_the_option_to_add_is_written_for_a_shell(tmp_path, capsys):
    data = "file(path='my notes.txt', tokenizer='$(rm x).json')"
    folder = lm_run(tmp_path / "run", "rope", 0, {64: 1.0}, data=data)
    line = refused(capsys, lambda: evaluate.main([f"{folder}"]))
    assert shlex.split(line)[-1] == f"--data={data}"


def test_a_tuned_run_is_evaluated_if_the_command_names_its_model(secret, tmp_path, capsys):
    folder = tmp_path / "run"
    folder.mkdir()
    save_config(TuneConfig(model=f"{tmp_path}", data=f"jsonl:{secret}"), folder)
    line = refused(capsys, lambda: evaluate.main([f"{folder}"]))
    assert line.endswith(f"was trained on {tmp_path} and jsonl:{secret}; to read it, add --data=jsonl:{secret} "
                         f"--model={tmp_path}\n")  # fmt: skip
    line = refused(capsys, lambda: evaluate.main([f"{folder}", f"--data=jsonl:{secret}"]))
    assert line.endswith(f"to read it, add --model={tmp_path}\n")


def test_a_step_is_replayed_if_the_command_names_its_data(tmp_path, capsys):
    folder = vit_run(tmp_path / "offending-3", "none", 0, {28: 1}, data="folder:photos")
    (folder / "step.json").write_text(json.dumps({"step": 3, "loss": "1.0", "bits": (1.0).hex()}))
    np.savez(folder / "batch.npz", image=np.zeros(1))
    assert refused(capsys, lambda: replay.main([f"{folder}"])).endswith("to read it, add --data=folder:photos\n")
    assert "folder must be a directory" in refused(capsys, lambda: replay.main([f"{folder}", "--data=folder:photos"]))


def test_factors_are_searched_if_the_command_names_the_data(secret, tmp_path, capsys):
    folder = lm_run(tmp_path / "run", "rope", 0, {64: 1.0}, data=f"jsonl:{secret}")
    line = refused(capsys, lambda: longrope.main([f"{folder}"]))
    assert line.endswith(f"to read it, add --data=jsonl:{secret}\n")
    assert "must be JSON" in refused(capsys, lambda: longrope.main([f"{folder}", f"--data=jsonl:{secret}"]))


def test_a_comparison_names_the_data_of_the_run_that_it_starts_from(tmp_path):
    folder = vit_run(tmp_path / "run", "none", 0, {28: 1}, data="folder:photos")
    words = ("--pe=none", f"--init={folder}", f"--out={tmp_path / 'out'}")
    with pytest.raises(ValueError, match=r"to read it, add --data=folder:photos$"):
        compare.read(words)
    comparison = compare.read([*words, "--data=folder:photos"])
    assert (
        dataclasses.asdict(comparison.config(comparison.candidates["none"][0], 0, tmp_path))["data"] == "folder:photos"
    )


OTHERS = {
    "vit": (VitConfig, "folder:photos"),
    "dit": (DitConfig, "folder:photos"),
    "lm": (LmConfig, "file(path='my notes.txt', tokenizer='a.json')"),
    "tune": (TuneConfig, "tfds:notes"),
}


@pytest.mark.parametrize(("kind", "data"), OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("option", ["resume", "init"])
def test_a_run_of_somebody_else_names_no_data_to_train_on(kind, data, option, tmp_path, monkeypatch):
    """Neither resumed nor as the start; named on the command line, too, they are read."""
    if (kind, option) == (TuneConfig, "init"):
        return  # it has none
    monkeypatch.setattr(TuneConfig, "validated", lambda config: config)  # else it opens the model
    folder = tmp_path / "run"
    folder.mkdir()
    model = {"model": "m.gguf"} if kind is TuneConfig else {}
    save_config(kind(data=data, pe="rope" if kind is LmConfig else "none", **model), folder)
    words = [f"--init={folder}", "--out=out"] if option == "init" else ["--resume", f"--out={folder}"]
    for flags in ([], ["--seed=0"], ["--steps=9"] if hasattr(kind, "steps") else ["--epochs=9"]):
        with pytest.raises(ValueError, match=r"; to read it, add --data=") as refusal:
            parse(kind, [*words, *flags])
    options = shlex.split(str(refusal.value).partition("to read it, add ")[2])
    assert options == [f"--data={data}", *(["--model=m.gguf"] if model else [])]
    assert parse(kind, [*words, *options]).data == data


def test_a_run_on_data_of_pejax_goes_on_by_itself(tmp_path):
    save_config(LmConfig(data="topics"), tmp_path)
    assert parse(LmConfig, ["--resume", f"--out={tmp_path}"]).data == "topics"
    assert parse(LmConfig, [f"--init={tmp_path}", "--out=out"]).data == "topics"


def test_data_that_the_preset_names_are_named(tmp_path):
    save_config(parse(LmConfig, ["--preset=gpt2_small", f"--out={tmp_path}"]), tmp_path)
    words = ["--resume", f"--out={tmp_path}"]
    assert "openwebtext" in parse(LmConfig, [*words, "--preset=gpt2_small"]).data
    with pytest.raises(ValueError, match=r"to read it, add --data=.*openwebtext"):
        parse(LmConfig, words)


def test_other_data_than_those_of_the_start_are_named_by_themselves(tmp_path):
    save_config(LmConfig(data="file:secret.txt"), tmp_path)
    for data in ("topics", "file:mine.txt"):
        assert parse(LmConfig, [f"--init={tmp_path}", f"--data={data}", "--out=out"]).data == data


def test_a_run_without_a_checkpoint_starts_again_from_the_run_that_the_command_names(tmp_path):
    first, run = tmp_path / "first", tmp_path / "run"
    for folder, init in ((first, ""), (run, f"{first}")):
        folder.mkdir()
        save_config(LmConfig(init=init, data="topics"), folder)
    words = ["--resume", f"--out={run}"]
    with pytest.raises(ValueError, match=rf"was trained on {first}; to read it, add --init={first}$"):
        parse(LmConfig, words)
    config = parse(LmConfig, [*words, f"--init={first}"])
    assert command(config).endswith(f"--resume --out={run} --init={first}")
    (run / "checkpoints" / "5" / "state").mkdir(parents=True)
    assert parse(LmConfig, words).init == f"{first}"
    assert command(config).endswith(f"--resume --out={run}")


def test_the_command_that_goes_on_names_the_files():
    config = TuneConfig(data="file:my notes.txt", model="m.gguf", out="run", hosts="auto")
    named = "--data='file:my notes.txt' --model=m.gguf"
    assert command(config) == f"python -m train.tune --resume --out=run {named} --hosts=auto"


OPENED: list[Path] | None = None
"""Files that Python opens, while they are noted."""


def note_open(event, arguments):
    if event == "open" and OPENED is not None and isinstance(arguments[0], str | bytes):
        OPENED.append(Path(os.path.abspath(os.fsdecode(arguments[0]))))


@pytest.fixture
def opened(monkeypatch):
    if not hasattr(sys, "noted"):  # a hook stays as long as the process
        sys.addaudithook(note_open)
        sys.noted = True
    paths: list[Path] = []
    monkeypatch.setattr(sys.modules[__name__], "OPENED", paths)
    return paths


def train_lm(*words):
    session.main(program("lm"), list(words))


READERS = {
    "evaluate": lambda run, out: evaluate.main([run]),
    "evaluate extended": lambda run, out: evaluate.main([run, "--extend=pi", "--eval_lengths", "16"]),
    "evaluate --compare": lambda run, out: evaluate.main(["--compare", run, f"--to={out}/table"]),
    "replay": lambda run, out: replay.main([run]),
    "longrope": lambda run, out: longrope.main([run]),
    "report": lambda run, out: report.main([run, "-o", f"{out}/report.html"]),
    "report without probes": lambda run, out: report.main([run, "--no-probes", "-o", f"{out}/report.html"]),
    "resume": lambda run, out: train_lm("--resume", f"--out={run}"),
    "resume longer": lambda run, out: train_lm("--resume", f"--out={run}", "--steps=99999"),
    "init": lambda run, out: train_lm(f"--init={run}", f"--out={out}/new"),
    "init with options": lambda run, out: train_lm(f"--init={run}", f"--out={out}/new", "--pe=alibi", "--batch=1"),
    "overwrite": lambda run, out: train_lm(f"--init={run}", f"--out={out}/new", "--overwrite", "--steps=1"),
    "compare --init": lambda run, out: compare.read(["--pe=rope", "--task=lm", f"--init={run}", f"--out={out}/new"]),
    "load_run": lambda run, out: load_run(run),
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_no_file_that_only_the_run_names_is_opened_and_none_outside_changes(reader, tmp_path, opened, capsys):
    outside, out = tmp_path / "outside", tmp_path / "out"
    out.mkdir()
    outside.mkdir()
    names = [outside / name for name in ("text.txt", "held.txt", "tokenizer.json")]
    for path in names:
        path.write_text(f"{SECRET}\n")
    first = lm_run(outside / "first", "rope", 0, {64: 1.0})
    data = "file(path={!r}, held_out={!r}, tokenizer={!r})".format(*map(str, names))
    run = lm_run(tmp_path / "run", "rope", 0, {64: 1.0}, data=data, init=f"{first}")
    (run / "step.json").write_text(json.dumps({"step": 3, "loss": "1.0", "bits": (1.0).hex()}))
    np.savez(run / "batch.npz", ids=np.zeros(1))
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in outside.rglob("*") if path.is_file()}
    opened.clear()
    with contextlib.suppress(SystemExit, ValueError):
        reader(f"{run}", f"{out}")
    touched = [path for path in opened if outside in path.parents]
    assert any(run in path.parents for path in opened), "the hook notes what is read"
    assert touched == []
    assert before == {
        path: (path.stat().st_mtime_ns, path.read_bytes()) for path in outside.rglob("*") if path.is_file()
    }
    assert {path.name for path in tmp_path.iterdir()} == {"outside", "out", "run"}
    assert SECRET not in "".join(capsys.readouterr())


COMMANDS = {
    "evaluate": lambda name, run, out: evaluate.main([run]),
    "report": lambda name, run, out: report.main([run, "-o", f"{out}/report.html"]),
    "resume": lambda name, run, out: session.main(program(name), ["--resume", f"--out={run}"]),
    "init": lambda name, run, out: session.main(program(name), [f"--init={run}", f"--out={out}/new"]),
    "compare --init": lambda name, run, out: compare.read([f"--task={name}", "--pe=rope", f"--init={run}"]),
    "plan --init": lambda name, run, out: plan.read([name, "--topology=h100:1", f"--init={run}"]),
    "load_run": lambda name, run, out: load_run(run),
}
NAMED = {
    "vit": {"data": "folder:{outside}/images", "init": "{outside}/first"},
    "dit": {"data": "folder(path='{outside}/images')", "init": "{outside}/first"},
    "seq2seq": {"init": "{outside}/first"},
    "tune": {"data": "file:{outside}/text.txt", "model": "{outside}/model"},
}
"""What the config.json of each trainer can name outside of its folder."""


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", NAMED)
def test_no_trainer_opens_what_only_its_config_names(name, command, tmp_path, opened, capsys):
    outside, out, run = (tmp_path / part for part in ("outside", "out", "run"))
    for folder in (outside / "images" / "a", outside / "model", outside / "first", out, run):
        folder.mkdir(parents=True)
    for path in ("text.txt", "images/a/1.png", "model/config.json", "first/config.json"):
        (outside / path).write_text(SECRET)
    settings = {key: value.format(outside=outside) for key, value in NAMED[name].items()}
    save_config(config_of(name)(**settings, out=f"{run}"), run)
    opened.clear()
    with contextlib.suppress(SystemExit, ValueError):
        COMMANDS[command](name, f"{run}", f"{out}")
    assert [path for path in opened if outside in path.parents] == []
    assert SECRET not in "".join(capsys.readouterr())
