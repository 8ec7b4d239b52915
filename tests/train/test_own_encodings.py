"""Encodings in modules of the user's: imported where the command line names them, and nowhere else."""

import json
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

import pejax
from tests.support import toy_program
from tests.support.cli import refused
from tests.support.report_runs import lm_run, vit_run
from train.compare import options as compare
from train.compare import runs as compared
from train.engine.outside import command, import_encodings, own_encodings
from train.engine.parser import parse
from train.engine.stored_config import load_config, save_config
from train.evaluate import program as evaluate
from train.lm.config import Config as LmConfig
from train.lm.longrope import program as longrope
from train.plan import program as plan
from train.replay import program as replay
from train.report import program as report
from train.seq2seq.config import Config as Seq2seqConfig

MINE = """
import jax.numpy as jnp
from pejax import Encoding

def steep(dims, slope=1.0):
    if dims.axes != 1:
        raise ValueError(f"sequences alone, got axes={dims.axes}")
    return Encoding(distance_bias=lambda params, r: -slope * jnp.abs(r).astype(jnp.float32), shift_invariant=True)

def flat(dims):
    return Encoding(distance_bias=lambda params, r: jnp.zeros(3))

SLOPE = 2
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """The working directory, with the module `mine`; what is imported and registered is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(pejax.ENCODINGS)
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "broken.py").write_text("raise RuntimeError('a\\nb')")
    (tmp_path / "unread.py").write_text("def")
    (tmp_path / "needy.py").write_text("import nowhere")
    (tmp_path / "script.py").write_text("raise SystemExit(3)")
    yield tmp_path
    for name in set(pejax.ENCODINGS) - before:
        del pejax.ENCODINGS[name]
    for name in ("mine", "broken", "script", "unread", "needy"):
        sys.modules.pop(name, None)


def test_a_command_line_reads_encodings_in_modules():
    config = parse(LmConfig, ["--pe=(mine:steep(slope=2)+rope)*2 + none", "--out=run"])
    assert [f"{spec}" for spec in config.pattern.specs] == ["mine:steep(slope=2.0)+rope"] * 2 + ["none"]
    assert command(config).endswith(f"--out=run --pe={shlex.quote(config.pe)}")
    config = parse(Seq2seqConfig, ["--pe=rope", "--cross_pe=mine:steep"])
    assert own_encodings(config) == ("mine:steep",)


@pytest.mark.parametrize(
    ("pe", "message"),
    [
        ("nowhere:steep", r"pe: there is no module 'nowhere' in .* or in the environment"),
        ("mine:deep", "pe: the module 'mine' has no 'deep'"),
        ("broken:steep", r"pe: the module 'broken' fails: RuntimeError: a b \(.*broken\.py, line 1\)"),
        ("script:steep", r"pe: the module 'script' fails: SystemExit: 3 \(.*script\.py, line 1\)"),
        ("unread:steep", r"pe: the module 'unread' fails: SyntaxError: .*\(unread\.py, line 1\)$"),
        ("needy:steep", r"pe: the module 'needy' fails: ModuleNotFoundError: No module named 'nowhere'"),
        ("mine:SLOPE", "mine:SLOPE: the factory must be a function of dims, got int"),
        ("json:loads", "json:loads: the first argument of the factory must be dims, got s"),
        ("mine:steep(slope='a')", "mine:steep: slope must be float, got 'a'"),
        ("mine:steep(s=1)", "mine:steep takes slope, extend; got 's'"),
    ],
)
def test_what_cannot_be_imported_is_said_in_one_line(pe, message, capsys):
    assert re.search(message, refused(capsys, lambda: toy_program.train(Path("run"), f"--pe={pe}")))
    assert not Path("run").exists()


def test_the_record_is_tried_before_the_run_begins(capsys):
    line = refused(capsys, lambda: toy_program.train(Path("run"), "--pe=mine:flat"))
    assert "mine:flat: distance_bias must return an array of shape (12,), got shape (3,)" in line
    assert not Path("run").exists()


@pytest.mark.parametrize("words", [["--resume", "--out=run"], ["--init=run"], ["--init=run", "--pe=rope"]])
def test_a_module_that_only_a_run_folder_names_is_not_imported(words):
    Path("run").mkdir()
    save_config(LmConfig(pe="mine:steep(slope=2)", out="run"), Path("run"))
    line = r"run was trained with mine:steep; add --pe='mine:steep\(slope=2\)'$"
    with pytest.raises(ValueError, match=line):
        parse(LmConfig, words)
    assert "mine" not in sys.modules
    assert parse(LmConfig, [*words[:2], "--pe=mine:steep(slope=2)"]).pattern.parts[0].name == "mine:steep"


@pytest.mark.slow
def test_a_run_goes_on_if_the_command_names_the_module_again(toy, capsys):
    out, pe = Path("run"), "mine:steep(slope=2)"
    assert toy_program.train(out, f"--pe={pe}", "--stop_at=4") == 0
    assert f"--out=run --pe='{pe}'" in capsys.readouterr().out
    assert load_config(toy_program.Config, out).pe == pe
    assert re.fullmatch(r"[0-9a-f]{64}", json.loads((out / "environment.json").read_text())["modules"]["mine"])
    for flags in ([], ["--pe=none"], ["--pe=broken:steep"]):
        line = refused(capsys, lambda flags=flags: toy_program.train(out, "--resume", *flags))
    refused(capsys, lambda: toy_program.train(Path("other"), f"--init={out}"))
    assert "broken" not in sys.modules
    del sys.modules["mine"]
    line = refused(capsys, lambda: toy_program.train(out, "--resume"))
    assert line.endswith("run was trained with mine:steep; add --pe='mine:steep(slope=2)'\n")
    line = refused(capsys, lambda: evaluate.main([f"{out}"]))
    assert line == "error: run was trained with mine:steep; to read it, add --pe='mine:steep(slope=2)'\n"
    line = refused(capsys, lambda: evaluate.main([f"{out}", "--pe=mine:steep(slope=3)"]))
    assert line == "error: pe must be that of the run run, 'mine:steep(slope=2)', got 'mine:steep(slope=3)'\n"
    assert "mine" not in sys.modules
    Path("mine.py").write_text(f"{MINE}\n# changed")
    assert toy_program.train(out, "--resume", f"--pe={pe}") == 0
    assert "mine has changed since the run began" in capsys.readouterr().out
    assert evaluate.main([f"{out}", "--pe=mine:steep"]) == 0


@pytest.mark.slow
def test_a_report_shows_the_name_and_imports_nothing(capsys):
    vit_run(Path("runs/mine"), "mine:steep(slope=2)", 0, {28: 90})
    assert report.main(["runs", "--out=report.html"]) == 0
    assert "mine:steep(slope=2)" in Path("report.html").read_text()
    assert "mine" not in sys.modules
    import_encodings(["mine:steep"])
    text = lm_run(Path("runs/text"), "mine:steep", 0, {64: 1.0})
    line = refused(capsys, lambda: longrope.main([f"{text}"]))
    assert line == "error: LongRoPE needs a run with --pe=rope, got 'mine:steep'\n"


def test_a_comparison_names_the_module_for_every_process():
    comparison = compare.read(
        ["--task=lm", "--pe=mine:steep,rope", "--sweep=mine:steep(slope=1|2)", "--extend=none,pi", "--out=out"]
    )
    specs = {pe: [candidate.spec for candidate in candidates] for pe, candidates in comparison.candidates.items()}
    assert specs == {"mine:steep": ["mine:steep(slope=1)", "mine:steep(slope=2)"], "rope": ["rope"]}
    run = compared.run_of(comparison, comparison.candidates["mine:steep"][1], 0)
    assert run.folder == Path("out/runs/mine_steep_slope=2_-0")
    launched = []

    def launch(arguments, log):
        if not launched:
            lm_run(run.folder, run.candidate.spec, 0, {64: 1.0})
        launched.append(arguments)
        return 0, ""

    compared.execute(comparison, run, launch)
    assert "--pe=mine:steep(slope=2)" in launched[0]
    assert launched[1][:3] == ["-m", "train.evaluate", f"{run.folder}"]
    assert "--pe=mine:steep" in launched[1]


@pytest.mark.slow
def test_a_plan_and_a_replayed_step_name_the_module(capsys):
    subject, *_ = plan.read(["lm", "--topology=h100:8", "--pe=mine:steep(slope=2)*1 + none*1"])
    assert own_encodings(subject.config) == ("mine:steep",)
    del sys.modules["mine"]
    step = vit_run(Path("offending-3"), "mine:steep", 0, {28: 1})
    (step / "step.json").write_text(json.dumps({"step": 3, "loss": "1.0", "bits": (1.0).hex()}))
    np.savez(step / "batch.npz", image=np.zeros(1))
    assert refused(capsys, lambda: replay.main([f"{step}"])).endswith("to read it, add --pe=mine:steep\n")
    assert "mine" not in sys.modules
    line = refused(capsys, lambda: replay.main([f"{step}", "--pe=mine:steep"]))
    assert "sequences alone, got axes=2" in line, "the factory was asked"


def test_the_working_directory_comes_first(folder, monkeypatch):
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere/mine.py").write_text("deep = 1")
    monkeypatch.setattr(sys, "path", [f"{folder / 'elsewhere'}", *sys.path])
    import_encodings(["mine:steep"])
    assert sys.modules["mine"].__file__ == f"{folder / 'mine.py'}"
