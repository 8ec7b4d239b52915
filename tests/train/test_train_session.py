"""The session and the evaluation serve any program: here a line fitted to numbers."""

import io
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import toy_program
from tests.support.cases import slow
from tests.support.cli import refused
from tests.support.metric_lines import timeless
from train.engine import programs, session
from train.engine.files import write_atomic
from train.evaluate import program as evaluate


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    monkeypatch.setitem(sys.modules, "train.toy.program", toy_program)
    monkeypatch.setattr(programs, "PROGRAMS", ("vit", "toy"))


def train(out: Path, *flags: str) -> int:
    return session.main(toy_program.PROGRAM, [f"--out={out}", *flags])


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory) -> Path:
    """A run that nothing interrupted, with probes."""
    out = tmp_path_factory.mktemp("whole") / "run"
    assert train(out, "--probe_every=3") == 0
    return out


@pytest.mark.slow
def test_a_program_names_its_units_and_itself(tmp_path, capsys):
    assert train(tmp_path / "run", "--preset=long", "--stop_at=2", "--pe=alibi") == 0
    said = capsys.readouterr().out
    assert "alibi · 5 parameters · length 16 · 8 x cpu" in said
    assert "stopped at step 2 of 40, saved; go on with: python -m train.toy --resume" in said
    assert json.loads((tmp_path / "run" / "config.json").read_text())["program"] == "toy"
    assert "tokens_per_second" in (tmp_path / "run" / "metrics.jsonl").read_text()


@pytest.mark.slow
def test_a_run_in_a_folder_of_any_name_names_the_command_that_resumes_it(tmp_path, monkeypatch):
    """Printed without the markup of rich, in any encoding."""
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, encoding="ascii"))
    out = tmp_path / "sweep[lr=a] [/red] ·"
    assert train(out, "--stop_at=3") == 0
    said = output.getvalue().decode()
    assert f"go on with: python -m train.toy --resume --out='{tmp_path}/sweep[lr=a] [/red] -'\n" in said
    assert "rope - 5 parameters - length 16 - 8 x cpu" in said
    assert train(out, "--resume") == 0
    assert "going on from step 3" in output.getvalue().decode()


@pytest.mark.slow
def test_a_run_whose_output_nobody_reads_goes_on(finished_run, tmp_path, monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8") as nobody:
        monkeypatch.setattr(sys, "stdout", nobody)
        assert train(tmp_path / "run") == 0
        monkeypatch.undo()
    assert (tmp_path / "run" / "results.json").read_text() == (finished_run / "results.json").read_text()


@pytest.mark.slow
def test_probes_change_no_bit(finished_run, tmp_path):
    assert [line["step"] for line in timeless(finished_run)] == [2, 3, 4, 6, 6, 8]
    assert [line["step"] for line in timeless(finished_run) if "size" in line] == [3, 6]
    assert train(tmp_path / "run") == 0
    assert (tmp_path / "run" / "results.json").read_text() == (finished_run / "results.json").read_text()
    assert timeless(tmp_path / "run") == [line for line in timeless(finished_run) if "size" not in line]


@pytest.mark.parametrize("stop_at", [slow(3), slow(4)])
def test_stop_and_resume_with_probes_change_no_bit(stop_at, finished_run, tmp_path):
    assert train(tmp_path / "run", "--probe_every=3", f"--stop_at={stop_at}") == 0
    assert train(tmp_path / "run", "--resume") == 0
    assert timeless(tmp_path / "run") == timeless(finished_run)
    assert (tmp_path / "run" / "results.json").read_text() == (finished_run / "results.json").read_text()


@pytest.mark.slow
def test_a_finished_run_goes_on_with_more_steps(finished_run, tmp_path, capsys):
    run = shutil.copytree(finished_run, tmp_path / "run")
    assert train(run, "--resume", "--steps=14", "--stop_at=11") == 0
    said = capsys.readouterr().out
    assert "going on from step 8" in said
    assert "more steps: the learning rate rises from 0 at step 8 to 0.0005 at step 10; from there" in said
    assert "that of a run of 14 steps" in said
    stored = json.loads((run / "config.json").read_text())
    assert (stored["steps"], stored["restarts"]) == (14, [8])
    assert [path.name for path in sorted(run.glob("results*"))] == ["results-step8.json"]
    assert (
        toy_program.Found.load(run / "results-step8.json").kernel
        == toy_program.Found.load(finished_run / "results.json").kernel
    )
    assert evaluate.main([f"{run}"]) == 0, "the checkpoint of an earlier number of steps is one of this run"
    (run / "results-step11.json").unlink()
    assert train(run, "--resume") == 0
    once = shutil.copytree(finished_run, tmp_path / "once")
    assert train(once, "--resume", "--steps=14") == 0
    assert timeless(run) == timeless(once)
    assert (run / "results.json").read_text() == (once / "results.json").read_text()
    before = [line for line in timeless(once) if line["step"] <= 8]
    assert before == timeless(finished_run), "the earlier steps are unchanged"
    assert train(run, "--resume", "--steps=16") == 0
    assert json.loads((run / "config.json").read_text())["restarts"] == [8, 14]


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--steps=7", "steps must be more than the run was trained with, 8 steps, got steps=7"),
        ("--width=8", "the checkpoint was made with width=4, this run has width=8"),
    ],
)
def test_what_else_changes_is_refused(flag, message, finished_run, tmp_path, capsys):
    run = shutil.copytree(finished_run, tmp_path / "run")
    assert message in refused(capsys, lambda: train(run, "--resume", flag))
    assert (run / "config.json").read_text() == (finished_run / "config.json").read_text()
    assert (run / "results.json").is_file()


@pytest.mark.slow
def test_a_stopped_run_is_finished_before_it_gets_more_steps(tmp_path, capsys):
    assert train(tmp_path / "run", "--stop_at=3") == 0
    line = refused(capsys, lambda: train(tmp_path / "run", "--resume", "--steps=20"))
    assert "a run takes more steps once it is finished, got" in line
    assert "at step 3 of 8: go on with --resume alone first" in line


@pytest.mark.slow
def test_a_run_starts_from_another(finished_run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flags = [f"--init={finished_run}", "--pe=none", "--length=32", "--stop_at=1"]
    assert session.main(toy_program.PROGRAM, flags) == 0
    assert f"starting from step 8 of {finished_run}, trained at 16 tokens" in capsys.readouterr().out
    stored = json.loads((tmp_path / "runs" / "none-numbers-0-32tokens" / "config.json").read_text())
    assert (stored["pe"], stored["length"], stored["width"]) == ("none", 32, 4)
    error = refused(capsys, lambda: train(tmp_path / "run", f"--init={finished_run}", "--width=8"))
    assert f"the model of {finished_run} has width=4, this run has width=8" in error


@pytest.mark.slow
def test_a_folder_takes_one_run_at_a_time(tmp_path, capsys):
    """A run that is killed does not keep the next one out."""
    lock = f"from pathlib import Path; from train.engine.files import lock_folder; lock_folder(Path({str(tmp_path)!r}))"
    other = subprocess.Popen(
        [sys.executable, "-c", f"{lock}; input(print())"],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert other.stdout is not None
        other.stdout.readline()
        error = refused(capsys, lambda: train(tmp_path, "--overwrite", "--stop_at=1"))
        assert f"only one run at a time may write to {tmp_path}, got a second one" in error
        assert f"process {other.pid} of" in error
        assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    finally:
        other.kill()
        other.communicate()
    assert train(tmp_path, "--stop_at=1") == 0
    shutil.rmtree(tmp_path / "checkpoints")
    assert train(tmp_path, "--resume", "--stop_at=1") == 0
    assert f"nothing to resume in {tmp_path}: a new run starts" in capsys.readouterr().out
    assert train(tmp_path, "--resume", "--stop_at=1") == 0
    assert "nothing to resume" not in capsys.readouterr().out
    assert train(tmp_path, "--overwrite", "--seed=1", "--stop_at=1") == 0
    assert json.loads((tmp_path / "config.json").read_text())["seed"] == 1


@pytest.mark.parametrize("name", ["lr", "lr_end", "clip", "weight_decay", "spike"])
def test_a_number_that_is_none_is_refused(name, tmp_path, capsys):
    for value in ("nan", "inf"):
        error = refused(capsys, lambda: train(tmp_path / "run", f"--{name}={value}"))  # noqa: B023
        assert f"{name} must be a finite number, got {value}" in error


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_of_no_32_bits_is_refused(seed, tmp_path, capsys):
    assert f"seed must be from 0 to 4294967295, got {seed}" in refused(
        capsys, lambda: train(tmp_path / "run", f"--seed={seed}")
    )


def test_a_file_is_written_whole_or_stays(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write_atomic(path, "before")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_atomic(path, 20 * "a")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_programs_are_not_mixed_up(finished_run, tmp_path, capsys):
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text('{"program": "vit", "pe": "rope"}')
    (other / "results.json").write_text("{}")
    message = f"{other} must hold a run of train.toy, got one of train.vit"
    assert message in refused(capsys, lambda: train(tmp_path / "run", f"--init={other}"))
    assert message in refused(capsys, lambda: train(other, "--resume"))
    error = refused(capsys, lambda: evaluate.main(["--compare", str(finished_run), str(other)]))
    assert "runs in one comparison must be of one program, got toy and vit" in error
    (other / "config.json").write_text('{"model_type": "llama"}')
    error = refused(capsys, lambda: evaluate.main([str(other)]))
    assert f"{other / 'config.json'} must be the config of a run, got one of something else" in error
    (other / "config.json").write_text('{"program": "os"}')
    error = refused(capsys, lambda: evaluate.main([str(other)]))
    assert "the program of a run must be one of vit, toy, got 'os'" in error


def test_evaluating_again_asks_the_program(finished_run, tmp_path, capsys):
    before = (finished_run / "results.json").read_text()
    (finished_run / "results.json").unlink()
    assert evaluate.main([str(finished_run)]) == 0
    assert (finished_run / "results.json").read_text() == before
    assert evaluate.main(["--compare", str(finished_run), str(finished_run), f"--to={tmp_path / 'deep' / 'both'}"]) == 0
    assert (tmp_path / "deep" / "both.md").read_text() == "rope\nrope\n"
    error = refused(capsys, lambda: evaluate.main([str(finished_run), "--eval_sizes", "28"]))
    assert "runs of train.toy have no eval_sizes, got eval_sizes=(28,)" in error
