"""What a run deletes, replaces and believes: its own files, and numbers that belong to its weights."""

import dataclasses
import hashlib
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import toy_program
from cli import refused

from train import evaluate
from train.compare.runs import require_own_folder
from train.engine import session
from train.engine.checkpoint import written_steps
from train.engine.run_files import own_files
from train.engine.stored_config import digest_of, is_run, load_config, save_config
from train.report.collect import collect
from train.vit.config import Config as VitConfig
from train.vit.results import ResolutionResults, ResolutionRow, load_results

LAST = 8
"""Number of steps of the toy program, which writes checkpoints at 3, 6 and 8 and keeps two."""


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    monkeypatch.setitem(sys.modules, "train.toy.program", toy_program)
    monkeypatch.setattr(evaluate, "PROGRAMS", ("vit", "toy"))


def train(out: Path, *flags: str) -> int:
    return session.main(toy_program.PROGRAM, [f"--out={out}", *flags])


def tree(folder: Path) -> dict[str, str]:
    """Return a digest of every file below a folder, links not followed; locks are left out."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = f"{path.relative_to(folder)}"
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_file() and path.name != ".lock":
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "run"
    assert train(out) == 0
    return out


@pytest.fixture
def run(trained, tmp_path) -> Path:
    return shutil.copytree(trained, tmp_path / "run")


# What is deleted


FOREIGN = {
    "a model": {"config.json": '{"model_type": "llama"}', "model.safetensors": "weights", "tokenizer.json": "{}"},
    "an application": {"config.json": '{"name": "my web app"}', "index.js": "code"},
    "a damaged config": {"config.json": '{"pe": "ro', "checkpoints/1/state": "weights"},
    "checkpoints": {"checkpoints/120/model.pt": "weights"},
    "metrics": {"metrics.jsonl": '{"step": 1}\n'},
    "results": {"results.json": "{}"},
    "a model in a folder": {"model/model.safetensors": "weights"},
}


@pytest.mark.parametrize("flag", ["--seed=0", "--overwrite"])
@pytest.mark.parametrize("kind", FOREIGN)
def test_a_folder_of_somebody_else_is_neither_deleted_nor_written_into(kind, flag, tmp_path, capsys):
    for name, text in FOREIGN[kind].items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    before = tree(tmp_path)
    error = refused(capsys, lambda: train(tmp_path, flag))
    assert "give another --out" in error
    assert "--overwrite" not in error
    assert tree(tmp_path) == before


def test_a_run_begins_beside_files_that_it_does_not_write(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "checkpoints").mkdir()
    assert train(tmp_path, "--stop_at=1") == 0
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_overwriting_deletes_the_run_and_nothing_else(run, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "data.bin").write_text("mine")
    own = set(own_files(run))
    mine = {
        "notes.txt": "mine", "results-paper.json": '{"table": 1}', "checkpoints/best.pt": "mine",
        "tensorboard/readme": "mine", "model/model.bin": "mine", "weights.safetensors": "mine",
    }  # fmt: skip
    for name, text in mine.items():
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text(text)
    (run / "profile").symlink_to(outside)
    assert set(own_files(run)) == own | {run / "profile"}
    assert train(run, "--overwrite", "--seed=1", "--stop_at=1") == 0
    assert {name: (run / name).read_text() for name in mine} == mine
    assert (outside / "data.bin").read_text() == "mine"
    assert written_steps(run) == [1]
    assert not (run / "results.json").exists()
    assert load_config(toy_program.Config, run).seed == 1


def test_every_file_of_a_run_is_its_own(trained):
    left = {path for path in trained.rglob("*") if path.is_file() and path.name != ".lock"}
    for own in own_files(trained):
        left -= {own, *own.rglob("*")}
    assert left == set()


def test_a_run_is_known_by_its_marks_or_by_the_fields_of_earlier_versions(trained, tmp_path):
    assert is_run(trained)
    stored = json.loads((trained / "config.json").read_text())
    for name in ("pejax", "run"):
        del stored[name]
    (tmp_path / "config.json").write_text(json.dumps(stored))
    assert is_run(tmp_path)
    del stored["checkpoint_every"]
    (tmp_path / "config.json").write_text(json.dumps(stored))
    assert not is_run(tmp_path)


def test_a_lock_of_somebody_else_is_not_written_over(tmp_path, capsys):
    (tmp_path / ".lock").write_text("a lock of another program")
    assert "must be the lock of a run" in refused(capsys, lambda: train(tmp_path))
    assert (tmp_path / ".lock").read_text() == "a lock of another program"
    (tmp_path / ".lock").unlink()
    (tmp_path / "target").write_text("mine")
    (tmp_path / ".lock").symlink_to(tmp_path / "target")
    assert "must be a regular file, got a link" in refused(capsys, lambda: train(tmp_path))
    assert (tmp_path / "target").read_text() == "mine"


@pytest.mark.parametrize("name", ["table.md", "results.jsonl"])
def test_a_comparison_replaces_no_file_of_somebody_else(name, tmp_path):
    (tmp_path / name).write_text('{"a": 1}\n')
    with pytest.raises(ValueError, match=r"give another --out|must be a folder without"):
        require_own_folder(tmp_path)


@pytest.mark.parametrize("name", ["README.md", "README.png"])
def test_a_table_of_runs_replaces_no_file_of_somebody_else(name, trained, tmp_path, capsys):
    (tmp_path / name).write_text("# My project\n")
    error = refused(capsys, lambda: evaluate.main(["--compare", str(trained), f"--to={tmp_path / 'README'}"]))
    assert f"to must not name files that no comparison wrote, got {tmp_path / name}" in error
    assert (tmp_path / name).read_text() == "# My project\n"


# What continues


def test_resuming_needs_a_run_and_makes_nothing(tmp_path, capsys):
    error = refused(capsys, lambda: train(tmp_path / "run", "--resume"))
    assert f"resume needs a run, got none in {tmp_path / 'run'}: leave it out to begin one" in error
    assert not (tmp_path / "run").exists()


def test_data_that_are_refused_leave_nothing_behind(tmp_path, capsys, monkeypatch):
    def make_task(config):
        def batches(step, rows):
            raise ValueError("the training stream must hold at least length + 1 = 17 tokens, got 3")

        return toy_program.make_task(config)._replace(batches=batches)

    program = toy_program.PROGRAM._replace(task=make_task)
    error = refused(capsys, lambda: session.main(program, [f"--out={tmp_path / 'run'}"]))
    assert "the training stream must hold at least" in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["8", "120", "1²", "007", "99999999999999999999999"])
@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_what_lies_beside_checkpoints_does_not_block_them(kind, name, run):
    shutil.rmtree(run / "checkpoints" / "8")
    stray = run / "checkpoints" / name
    make = {
        "file": lambda: stray.write_text("x"),
        "folder": lambda: (stray.mkdir(), (stray / "x").write_text("x")),
        "link": lambda: stray.symlink_to("/nowhere"),
    }
    make[kind]()
    (run / "results.json").unlink()
    assert train(run, "--resume") == 0
    assert json.loads((run / "results.json").read_text())["step"] == LAST


# Numbers belong to their weights


def test_a_renamed_checkpoint_is_not_another_step(run, capsys):
    (run / "checkpoints" / "8").rename(run / "checkpoints" / "120")
    assert evaluate.main([str(run)]) == 1
    said = capsys.readouterr()
    assert "checkpoint of step 120 is damaged, skipped: it was written as step 8" in said.out
    assert f"error: step 120 of {run} is damaged: these are the results of step 6" in said.err


def test_seals_of_earlier_versions_have_no_step_but_the_state_has(run, capsys):
    from train.engine.files import sealed

    seal = run / "checkpoints" / "8" / "seal" / "metadata"
    content = json.loads(seal.read_text())
    del content["step"]
    seal.write_text(json.dumps(sealed(content)))
    assert evaluate.main([str(run)]) == 0
    (run / "checkpoints" / "8").rename(run / "checkpoints" / "120")
    assert evaluate.main([str(run)]) == 1
    assert "it was written as step 8" in capsys.readouterr().out


def test_results_of_a_step_before_the_last_are_written_beside():
    """So that those of a finished run stay what they are."""
    found = ResolutionResults("rope", "fashion", 28, 90, "none", "note", (ResolutionRow(28, 49, 80, 100),), steps=120)
    assert (found.stem, found.label) == ("results-step90", "rope, step 90 of 120")
    assert dataclasses.replace(found, extend="pi").stem == "results-pi-step90"
    assert dataclasses.replace(found, step=120).stem == "results"
    assert dataclasses.replace(found, steps=0).stem == "results"


def evaluated(folder: Path, **changed: object) -> Path:
    """Write a run folder of train.vit with results, and return the path of these."""
    folder.mkdir(parents=True)
    save_config(VitConfig(out=str(folder)), folder)
    rows = (ResolutionRow(28, 49, 80, 100), ResolutionRow(32, 64, 70, 100))
    found = ResolutionResults("rope", "fashion", 28, 120, "none", "note", rows, 120, digest_of(folder))
    dataclasses.replace(found, **changed).save(folder)
    return folder / "results.json"


def test_a_report_leaves_out_results_of_a_step_before_the_last(tmp_path):
    folder = evaluated(tmp_path / "run").parent
    row = (ResolutionRow(28, 49, 10, 100),)
    ResolutionResults("rope", "fashion", 28, 90, "none", "note", row, 120, digest_of(folder)).save(folder)
    found = collect([tmp_path])
    assert [[one.scores["top-1, %"][28] for one in run.scored] for run in found.runs] == [[80.0]]
    (left,) = found.left
    assert left.what == f"{folder / 'results-step90.json'}"
    assert left.why == "measured at step 90, before the end of training at step 120"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"correct": 80', '"correct": 81'),
        ('"correct": 80', '"correct": 5000'),
        ('"top1": 0.8', '"top1": NaN'),
        ('"step": 120', '"step": 90'),
        ('"name": "rope"', '"name": "alibi"'),
        ('"extend": "none"', '"extend": "pi"'),
    ],
)
def test_results_that_were_changed_are_refused(old, new, tmp_path):
    path = evaluated(tmp_path / "run")
    assert load_results(path).rows[0].correct == 80
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    with pytest.raises(ValueError, match="it has changed since it was written"):
        load_results(path)


def test_results_of_another_run_are_refused(tmp_path):
    path = evaluated(tmp_path / "run")
    other = evaluated(tmp_path / "other", run="0123456789abcdef")
    with pytest.raises(ValueError, match="it belongs to another run"):
        load_results(other)
    path.replace(tmp_path / "results.json")
    assert load_results(tmp_path / "results.json").step == 120


def test_results_of_earlier_versions_are_read_where_they_can_be_true(tmp_path):
    path = evaluated(tmp_path / "run")
    stored = json.loads(path.read_text())
    for name in ("digest", "run", "steps"):
        del stored[name]
    path.write_text(json.dumps(stored))
    assert load_results(path).steps == 0
    for name, value, message in (("correct", 5000, "from 0 to count=100, got 5000"), ("count", True, "count must be")):
        changed = {**stored, "rows": [{**stored["rows"][0], name: value}]}
        path.write_text(json.dumps(changed))
        with pytest.raises(ValueError, match=message):
            load_results(path)


@pytest.mark.parametrize(("name", "value"), [("lr", 1.0), ("seed", 7), ("width", 32)])
def test_a_config_with_other_settings_is_refused(name, value, tmp_path, capsys):
    folder = evaluated(tmp_path / "run").parent
    stored = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**stored, name: value}))
    for argv in ([str(folder)], ["--compare", str(folder), f"--to={tmp_path / 'both'}"]):
        error = refused(capsys, lambda argv=argv: evaluate.main(argv))
        assert f"{folder / 'config.json'}: its settings must be those that the run was trained with" in error
    (folder / "config.json").write_text(json.dumps({**stored, "eval_limit": 5}))
    assert load_config(VitConfig, folder).eval_limit == 5


def test_the_digest_of_a_run_does_not_depend_on_fields_that_earlier_versions_lack(tmp_path):
    evaluated(tmp_path / "run")
    path = tmp_path / "run" / "config.json"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps({name: value for name, value in stored.items() if name not in VitConfig.later}))
    assert load_config(VitConfig, tmp_path / "run") == VitConfig(out=str(tmp_path / "run"))


# Damage of any kind to any file


DAMAGE = {
    "deleted": lambda path: path.unlink(),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "flipped": lambda path: path.write_bytes(bytes([path.read_bytes()[0] ^ 8]) + path.read_bytes()[1:]),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "a link": lambda path: (path.unlink(), path.symlink_to("/dev/zero")),
    "a dangling link": lambda path: (path.unlink(), path.symlink_to("/nowhere")),
    "huge": lambda path: os.truncate(path, 2**33),
    "of another run": lambda path: path.write_text(json.dumps({"pe": "alibi", "step": 3, "rows": []})),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "environment.json", "results.json", ".lock"])
def test_damage_gives_the_undisturbed_result_or_one_line(name, damage, run, trained, tmp_path, capsys):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_text("mine")
    DAMAGE[damage](run / name)
    undisturbed = json.loads((trained / "results.json").read_text())
    for call in (lambda: evaluate.main([str(run)]), lambda: train(run, "--resume")):
        capsys.readouterr()
        try:
            status = call()
        except SystemExit as stopped:
            status = stopped.code
        error = capsys.readouterr().err
        assert status in (0, 2)
        assert error.count("\n") == (status != 0)
        assert "Traceback" not in error
        if status == 0:
            assert json.loads((run / "results.json").read_text()) == undisturbed
    assert (outside / "mine").read_text() == "mine"
