"""Damage of any kind to any file of a run gives the undisturbed result, or one line."""

import itertools
import json
import os

import pytest
from cases import mostly_slow
from toy_program import train

from train import evaluate

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
