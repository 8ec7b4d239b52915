"""What a run deletes and where it goes on: its own files alone, whatever else lies in the folder."""

import hashlib
import itertools
import json
import os
import shutil
from pathlib import Path

import pytest

from tests.support import toy_program
from tests.support.cases import mostly_slow
from tests.support.cli import refused
from tests.support.toy_program import train
from train.compare.runs import require_own_folder
from train.engine import session
from train.engine.run_files import PARTS, has_trained, own_files, require_no_run, written_steps
from train.engine.stored_config import is_run, load_config
from train.evaluate import program as evaluate

pytestmark = pytest.mark.usefixtures("toy")


def tree(folder: Path) -> dict[str, str]:
    """Return a digest of every file below a folder, links not followed; locks are left out."""
    digests = {}
    for path in sorted(folder.rglob("*")):
        name = f"{path.relative_to(folder)}"
        if path.is_symlink():
            digests[name] = os.readlink(path)
        elif path.is_file() and path.name != ".lock":
            digests[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return digests


FOREIGN = {
    "a model": {"config.json": '{"model_type": "llama"}', "model.safetensors": "weights", "tokenizer.json": "{}"},
    "an application": {"config.json": '{"name": "my web app"}', "index.js": "code"},
    "a damaged config": {"config.json": '{"pe": "ro', "checkpoints/1/state": "weights"},
    "checkpoints": {"checkpoints/120/model.pt": "weights"},
    "metrics": {"metrics.jsonl": '{"step": 1}\n'},
    "results": {"results.json": "{}"},
    "a model in a folder": {"model/model.safetensors": "weights"},
}


@pytest.mark.parametrize("flag", [pytest.param("--seed=0", marks=pytest.mark.slow), "--overwrite"])
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


@pytest.mark.slow
def test_a_run_begins_beside_files_that_it_does_not_write(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "checkpoints").mkdir()
    assert train(tmp_path, "--stop_at=1") == 0
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.slow
def test_overwriting_deletes_the_run_and_nothing_else(run, tmp_path):
    files = set(own_files(run))
    mine = {
        "notes.txt": "mine", "results-paper.json": '{"table": 1}', "checkpoints/best.pt": "mine",
        "tensorboard/readme": "mine", "model/model.bin": "mine", "weights.safetensors": "mine",
    }  # fmt: skip
    for name, text in mine.items():
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text(text)
    assert set(own_files(run)) == files
    assert train(run, "--overwrite", "--seed=1", "--stop_at=1") == 0
    assert {name: (run / name).read_text() for name in mine} == mine
    assert written_steps(run) == [1]
    assert not (run / "results.json").exists()
    assert load_config(toy_program.Config, run).seed == 1


@pytest.mark.parametrize("flag", ["--resume", "--overwrite"])
@pytest.mark.parametrize("part", [*PARTS, "offending-3", "profile/plugins"])
def test_a_part_that_is_a_link_is_refused_before_anything_changes(part, flag, run, tmp_path, capsys):
    outside = shutil.copytree(run / "checkpoints", tmp_path / "outside")
    if (run / part).exists():
        shutil.rmtree(run / part)
    (run / part).parent.mkdir(exist_ok=True)
    (run / part).symlink_to(outside)
    before = tree(run), tree(outside)
    assert f"{run / part} must be a" in refused(capsys, lambda: train(run, flag))
    assert (tree(run), tree(outside)) == before


def test_checkpoints_that_are_a_link_are_not_read(run, tmp_path, capsys):
    (run / "checkpoints").rename(tmp_path / "elsewhere")
    (run / "checkpoints").symlink_to(tmp_path / "elsewhere")
    assert "checkpoints must be a folder of the run, got a link" in refused(capsys, lambda: evaluate.main([str(run)]))


def test_a_start_that_failed_gives_way_to_the_corrected_command(tmp_path, capsys, monkeypatch):
    def failing(*_: object, **__: object) -> None:
        raise OSError("an image must be decodable")

    with monkeypatch.context() as broken:
        broken.setattr(session, "ThreadPrefetchDatasetIterator", failing)
        assert "must be decodable" in refused(capsys, lambda: train(tmp_path))
    assert is_run(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    assert train(tmp_path, "--seed=1", "--stop_at=1") == 0
    assert load_config(toy_program.Config, tmp_path).seed == 1
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert "already has a run: give --resume" in refused(capsys, lambda: train(tmp_path))


def test_a_run_has_trained_once_it_has_more_than_settings(run):
    """Each other file is something to lose: a run with it is not overwritten unasked."""
    settings = {"config.json", "environment.json", "outcome.json", "tensorboard"}
    (run / "offending-3").mkdir()
    for path in own_files(run):
        if {path.name, path.parent.name}.isdisjoint(settings):
            path.rename(path.with_name(f"away {path.name}"))
    (run / "metrics.jsonl").touch()
    (run / f".results.json.{2**22}").write_text("half a fi")
    assert not has_trained(run)
    assert require_no_run(run, overwrite=False)
    hidden = sorted(run.rglob("away *"))
    assert len(hidden) >= 5
    for path in hidden:
        back = path.with_name(path.name.removeprefix("away "))
        path.replace(back)
        assert has_trained(run), back
        back.rename(path)
    assert not has_trained(run)


def test_every_file_of_a_run_is_its_own(toy_run):
    files = {path for path in toy_run.rglob("*") if path.is_file() and path.name != ".lock"}
    for file in own_files(toy_run):
        files -= {file, *file.rglob("*")}
    assert files == set()


def test_a_run_is_known_by_its_marks_or_by_the_fields_of_earlier_versions(toy_run, tmp_path):
    assert is_run(toy_run)
    stored = json.loads((toy_run / "config.json").read_text())
    for name in ("pejax", "run"):
        del stored[name]
    (tmp_path / "config.json").write_text(json.dumps(stored))
    assert is_run(tmp_path)
    del stored["checkpoint_every"]
    (tmp_path / "config.json").write_text(json.dumps(stored))
    assert not is_run(tmp_path)


@pytest.mark.slow
def test_a_lock_of_somebody_else_is_not_written_over(tmp_path, capsys):
    (tmp_path / ".lock").write_text("a lock of another program")
    assert "must be the lock of a run" in refused(capsys, lambda: train(tmp_path))
    assert (tmp_path / ".lock").read_text() == "a lock of another program"
    (tmp_path / ".lock").unlink()
    (tmp_path / "target").write_text("mine")
    (tmp_path / ".lock").symlink_to(tmp_path / "target")
    assert "must be a regular file, got a link" in refused(capsys, lambda: train(tmp_path))
    assert (tmp_path / "target").read_text() == "mine"
    (tmp_path / ".lock").unlink()
    (tmp_path / "target").write_text("")
    (tmp_path / ".lock").hardlink_to(tmp_path / "target")
    assert "must be a file of this folder alone, got a hard link" in refused(capsys, lambda: train(tmp_path))
    assert (tmp_path / "target").read_text() == ""


@pytest.mark.parametrize("name", ["table.md", "results.jsonl"])
def test_a_comparison_replaces_no_file_of_somebody_else(name, tmp_path):
    (tmp_path / name).write_text('{"a": 1}\n')
    with pytest.raises(ValueError, match=r"give another --out|must be a folder without"):
        require_own_folder(tmp_path)


@pytest.mark.parametrize("name", ["README.md", "README.png"])
def test_a_table_of_runs_replaces_no_file_of_somebody_else(name, toy_run, tmp_path, capsys):
    (tmp_path / name).write_text("# My project\n")
    error = refused(capsys, lambda: evaluate.main(["--compare", str(toy_run), f"--to={tmp_path / 'README'}"]))
    assert f"to must not name files that no comparison wrote, got {tmp_path / name}" in error
    assert (tmp_path / name).read_text() == "# My project\n"


# What continues


def test_resuming_needs_a_run_and_makes_nothing(tmp_path, capsys):
    error = refused(capsys, lambda: train(tmp_path / "run", "--resume"))
    assert f"resume needs a run, got none in {tmp_path / 'run'}: leave it out to begin one" in error
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_command_that_says_what_to_train_may_be_started_again_and_again(tmp_path, capsys):
    """As a scheduler does, which does not know whether there is a run."""
    for said in ("stopped at step 2", "stopped at step 4"):
        assert train(tmp_path / "run", "--resume", "--pe=alibi", f"--stop_at={said[-1]}") == 0
        assert said in capsys.readouterr().out


def test_data_that_are_refused_leave_nothing_behind(tmp_path, capsys, monkeypatch):
    def make_task(config):
        def batches(step, rows):
            raise ValueError("the training stream must hold at least length + 1 = 17 tokens, got 3")

        return toy_program.make_task(config)._replace(batches=batches)

    program = toy_program.PROGRAM._replace(task=make_task)
    error = refused(capsys, lambda: session.main(program, [f"--out={tmp_path / 'run'}"]))
    assert "the training stream must hold at least" in error
    assert not (tmp_path / "run").exists()


STRAY = list(itertools.product(["file", "folder", "link"], ["8", "120", "1²", "007", "99999999999999999999999"]))


@pytest.mark.slow
@pytest.mark.parametrize("what", mostly_slow(STRAY, [("file", "120"), ("folder", "1²")]), ids=" ".join)
def test_what_lies_beside_checkpoints_does_not_block_them(what, run):
    kind, name = what
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
    assert json.loads((run / "results.json").read_text())["step"] == 8
