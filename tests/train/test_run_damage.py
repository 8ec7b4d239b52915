"""Damage of any kind to any file of a run gives the undisturbed result, or one line."""

import itertools
import json
import os
from pathlib import Path

import pytest
from cases import mostly_slow
from measured import top1
from toy_program import train

from train.compare import program as compare
from train.compare.children import Children
from train.compare.options import read
from train.compare.runs import run_of
from train.engine.stored_config import digest_of, save_config
from train.evaluate import program as evaluate
from train.vit.results import ResolutionResults

pytestmark = pytest.mark.usefixtures("toy")


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

FILES = (
    "config.json", "metrics.jsonl", "environment.json", "results.json", ".lock", "checkpoints/8/seal/metadata",
    "checkpoints/8/_CHECKPOINT_METADATA", "checkpoints/8/state/manifest.ocdbt", "checkpoints/6/seal/metadata",
)  # fmt: skip

QUICK = [("config.json", "a link"), ("results.json", "of another run"), ("checkpoints/8/seal/metadata", "truncated")]


def tree(folder):
    """Return what is in a folder: the names and contents of files, and where links lead to."""
    return {
        path: os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Orbax leaves coroutines behind
@pytest.mark.parametrize("what", mostly_slow(itertools.product(FILES, DAMAGE), QUICK), ids=" ".join)
def test_damage_gives_the_undisturbed_result_or_one_line(what, run, toy_run, tmp_path, capsys):
    name, damage = what
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_text("mine")
    (run / "link").symlink_to(outside)
    DAMAGE[damage](run / name)
    before, undisturbed = tree(outside), json.loads((toy_run / "results.json").read_text())
    for call in (lambda: evaluate.main([str(run)]), lambda: train(run, "--resume")):
        capsys.readouterr()
        try:
            status = call()
        except SystemExit as stopped:
            status = stopped.code
        error = capsys.readouterr().err
        assert status in (0, 1, 2)
        assert error.count("\n") == (status != 0)
        assert status != 1 or "is damaged: these are the results of step 6" in error
        if status == 0:
            assert json.loads((run / "results.json").read_text()) == undisturbed
    assert tree(outside) == before


OF_COMPARISON = ("runs/none-0/config.json", "runs/none-0/results.json", "runs/none-0/outcome.json", "runs/none-0/.lock",
                 "results.jsonl", "table.md", ".lock")  # fmt: skip


BRIEFLY = [("runs/none-0/results.json", "a folder"), ("runs/none-0/outcome.json", "a link")]


@pytest.mark.parametrize("what", mostly_slow(itertools.product(OF_COMPARISON, DAMAGE), BRIEFLY), ids=" ".join)
def test_a_damaged_comparison_gives_its_table_or_one_line(what, tmp_path, capsys, monkeypatch):
    """Its processes are stood in for: they write the results that they would write again."""
    name, damage = what
    out, outside = tmp_path / "compared", tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_text("mine")
    argv = ["--pe=none", "--seeds=1", "--data=fashion(full=False)", f"--out={out}"]
    comparison = read(argv)
    run = run_of(comparison, *comparison.candidates["none"], 0)

    def launch(self, arguments: list[str], log: Path) -> tuple[int, str]:
        run.folder.mkdir(parents=True, exist_ok=True)
        save_config(comparison.config(run.candidate, run.seed, run.folder), run.folder)
        results = ResolutionResults("none", "fashion", 28, 9, "none", "note", top1({28: 80}), 9, digest_of(run.folder))
        try:
            results.save(run.folder)
        except OSError as refused:
            return 2, f"{refused}"
        return 0, ""

    monkeypatch.setattr(Children, "launch", launch)
    assert compare.main(argv) == 0
    table = (out / "table.md").read_text()
    (run.folder / ".lock").write_text("process 1 of a machine")
    DAMAGE[damage](out / name)
    before = tree(outside)
    capsys.readouterr()
    try:
        status = compare.main(argv)
    except SystemExit as stopped:
        status = stopped.code
    said = capsys.readouterr()
    assert "Traceback" not in said.err + said.out
    assert (status, said.err.count("\n")) in ((0, 0), (2, 1))
    if status == 0:
        assert (out / "table.md").read_text() == table
    assert tree(outside) == before
