"""Damage of any kind to any file of a run gives the undisturbed result, or one line."""

import itertools
import json
import os
import random
import shutil
from pathlib import Path

import pytest

from tests.support.cases import mostly_slow, slow
from tests.support.toy_program import train
from train.compare import program as compare
from train.compare.children import Children
from train.engine.files import appended_file, with_digest
from train.evaluate import program as evaluate

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


STORED = Path(__file__).parents[1] / "data_files" / "runs_0_3_0" / "compare"

COMPARE = (
    "--task=lm", "--pe=rope,alibi", "--seeds=1", "--extend=none,yarn(factor=2)", "--length=8", "--width=4",
    "--layers=1", "--heads=2", "--tied", "--batch=8", "--steps=4", "--warmup=1", "--lr=0.03", "--log_every=2",
    "--checkpoint_every=4", "--probe_every=0", "--eval_limit=4", "--eval_lengths", "8", "16", "--devices=1",
    "--out=compare",
)  # fmt: skip

CHANGES = {
    "a bit": lambda content, at: content[:at] + bytes([content[at] ^ 2]) + content[at + 1 :],
    "a byte more": lambda content, at: content[:at] + b"7" + content[at:],
    "a byte less": lambda content, at: content[:at] + content[at + 1 :],
    "the rest less": lambda content, at: content[:at],
}
"""Damages of a file at one byte."""

LINKS = ("log", "log/runs-rope-0.txt", "table.md", "results.jsonl", ".lock", "runs/rope-0/offending-3",
         "runs/rope-0/outcome.json", "runs/rope-0/results.json", "runs/rope-0/checkpoints")  # fmt: skip
"""Where links are planted in a comparison."""

READ = ("config.json", "results.json", "results-yarn_factor=2.json", "outcome.json")
"""Files of a comparison that are damaged more often than others."""


def damage(rng: random.Random, out: Path, outside: Path) -> str:
    """Damage one file of a comparison, or plant a link; return what was done."""
    files = sorted(path for path in out.rglob("*") if path.is_file())
    path = rng.choice(rng.choice([files, *2 * [[path for path in files if path.name in READ]]]))
    kind = rng.choice([*4 * [*CHANGES], *DAMAGE, *6 * ["a planted link"]])
    if kind == "a planted link":
        path, target = out / rng.choice(LINKS), outside / rng.choice(["mine", "folder", "new"])
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        if "log" in path.parts:  # which is written when a run is
            shutil.rmtree(out / "runs" / "rope-0")
        path.parent.mkdir(exist_ok=True)
        path.hardlink_to(target) if target.name == "mine" and rng.random() < 0.5 else path.symlink_to(target)
    elif kind in CHANGES:
        content = path.read_bytes()
        path.write_bytes(CHANGES[kind](content, rng.randrange(len(content))))
    else:
        DAMAGE[kind](path)
    return f"{path.relative_to(out)}: {kind}"


@pytest.mark.parametrize("seeds", [range(8), slow(range(8, 120))], ids=["a few", "many"])
def test_a_damaged_comparison_gives_its_table_or_one_line(seeds, tmp_path, capsys, monkeypatch):
    """Its processes are stood in for: they write the runs that they would write again."""

    def launch(self: Children, command: list[str], log: Path) -> tuple[int, str]:
        name = next(name for name in ("rope-0", "alibi-0") if any(name in word for word in command))
        log.parent.mkdir(exist_ok=True)
        with appended_file(log) as file:
            file.write(b"said")
        if "--extend=yarn(factor=2)" in command and name == "alibi-0":
            return 2, json.loads((STORED / "runs" / name / "outcome.json").read_text())["refused"]["yarn(factor=2)"]
        shutil.rmtree(f"compare/runs/{name}", ignore_errors=True)
        shutil.copytree(STORED / "runs" / name, f"compare/runs/{name}")
        return 0, ""

    monkeypatch.setattr(Children, "launch", launch)
    for seed in seeds:
        rng, outside = random.Random(seed), tmp_path / f"{seed}-outside"
        out = shutil.copytree(STORED, tmp_path / f"{seed}" / "compare")
        for path in out.rglob("outcome.json"):
            path.write_text(json.dumps(with_digest(json.loads(path.read_text()))))
        (outside / "folder").mkdir(parents=True)
        (outside / "mine").write_text("mine")
        monkeypatch.chdir(out.parent)
        what = f"seed {seed}, {damage(rng, out, outside) if seed else 'undisturbed'}"
        before = tree(outside)
        capsys.readouterr()
        try:
            status = compare.main(COMPARE)
        except SystemExit as stopped:
            status = stopped.code
        error = capsys.readouterr().err
        assert (status, error.count("\n")) in ((0, 0), (2, 1)), (what, error)
        assert status == 0 or seed, error
        if status == 0:
            assert (out / "table.md").read_text() == (STORED / "table.md").read_text(), what
        assert tree(outside) == before, what
