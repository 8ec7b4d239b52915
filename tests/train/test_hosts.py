"""Several processes train as one, and what ends one of them ends all, with a checkpoint to go on from."""

import json
import os
import re
import shlex
import signal
import socket
from pathlib import Path

import jax
import numpy as np
import pytest

from benchmarks import kills
from train.devices import hosts
from train.engine import session
from train.engine.parser import parse
from train.engine.run_files import written_steps
from train.lm import program as lm
from train.lm.config import Config
from train.replay import program as replay

MESHES = ("fsdp=4", "data=2,tensor=2")
SHORT = ("--steps=6", "--checkpoint_every=3", "--probe_every=3", "--stop_at=0")


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    """Options of a toy run; processes started from here on have two devices each, and compile each thing once."""
    assert jax.device_count() == 8  # of this process, before the others' number is set
    folder = tmp_path_factory.mktemp("hosts")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("JAX_PLATFORMS", os.environ["JAX_PLATFORMS"])
        for name in ("JAX_NUM_CPU_DEVICES", "JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"):
            patched.setenv(name, "")
        kills.prepare_server(folder)
        yield kills.toy(folder)


def said(log: Path, process: int = 0) -> list[str]:
    return Path(f"{log}.{process}").read_text().splitlines()


def lines(out: Path) -> list[dict]:
    """Return the metrics of a run that do not depend on time."""
    metrics = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [
        {name: value for name, value in line.items() if re.search("^(step|lr)$|loss|entropy", name)} for line in metrics
    ]


def train_all(flags: list[str], at: str, out: Path) -> None:
    """Train on each mesh, in one of several processes."""
    hosts.join(at)
    console = session.Console(quiet=not hosts.is_main_process())
    for mesh in MESHES:
        config = parse(Config, [*flags, *SHORT, f"--mesh={mesh}", f"--out={out / mesh}"])
        assert session.train(session.prepare(lm.PROGRAM, config, console), console) == 0


@pytest.fixture(scope="module")
def trained(flags, tmp_path_factory):
    """What two processes make of each mesh."""
    out = tmp_path_factory.mktemp("two")
    port = kills.free_port()
    started = [
        kills.spawn(out / f"log.{process}", train_all, flags, f"127.0.0.1:{port},2,{process}", out)
        for process in range(2)
    ]
    assert kills.ended(started) == [0, 0], (out / "log.0").read_text()[-3000:]
    return out


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
def test_two_processes_train_as_one(mesh, trained, flags, tmp_path):
    reference = tmp_path / "one"
    assert lm.main([*flags, *SHORT, f"--mesh={mesh}", "--devices=4", f"--out={reference}"]) == 0
    pair = trained / mesh
    assert [line["step"] for line in lines(pair)] == [line["step"] for line in lines(reference)]
    for ours, theirs in zip(lines(pair), lines(reference), strict=True):
        assert ours.keys() == theirs.keys()
        np.testing.assert_allclose(list(ours.values()), list(theirs.values()), rtol=0, atol=1e-5)
    numbers = [json.loads((out / "results.json").read_text())["numbers"] for out in (pair, reference)]
    for ours, theirs in zip(*numbers, strict=True):
        assert (ours["measure"], ours["at"]) == (theirs["measure"], theirs["at"])
        np.testing.assert_allclose(ours["value"], theirs["value"], rtol=1e-5, atol=1e-5)  # a perplexity, or a gain


GLOO = r"\[Gloo\] Rank | is connected to | peer ranks\. Expected number of connected peer ranks is : |\d+|\s"
"""What the library below the collectives says, its threads at the same time."""


@pytest.mark.slow
def test_the_first_process_speaks_and_writes_for_all(trained):
    assert re.sub(GLOO, "", "\n".join(said(trained / "log", 1))) == ""
    names = sorted(path.name for path in (trained / "fsdp=4").iterdir())
    assert names == [
        ".lock",
        "checkpoints",
        "config.json",
        "environment.json",
        "metrics.jsonl",
        "results.json",
        "results.png",
        "tensorboard",
    ]
    assert len(list((trained / "fsdp=4" / "tensorboard").iterdir())) == 1


WAYS = [(1, signal.SIGTERM, [0, 0]), (1, signal.SIGKILL, [1, -9]), (0, signal.SIGKILL, [-9, 1])]
"""Which of two processes gets which signal, and the statuses that both end with."""

CTRL_C = (0, signal.SIGINT, [130, 130])


@pytest.mark.parametrize(
    "ways",
    [
        pytest.param(WAYS, id="saved and killed", marks=pytest.mark.long),
        pytest.param([CTRL_C], id="Ctrl-C", marks=pytest.mark.long),
    ],
)
def test_stopped_and_killed_no_bit_is_lost(ways, flags, tmp_path):
    never, out, log = tmp_path / "never", tmp_path / "run", tmp_path / "log"
    assert kills.ended(kills.start(log, 2, [*flags, f"--out={never}"])) == [0, 0], said(log)
    step = 0
    for victim, number, statuses in ways:
        processes = kills.start(log, 2, [*flags, f"--out={out}", *(["--resume"] if step else [])])
        kills.wait_for(step + kills.EVERY + 3, out, processes[0])
        os.kill(processes[victim].pid, number)
        assert kills.ended(processes) == statuses, said(log)
        assert step == 0 or f"going on from step {step}" in said(log)
        step = written_steps(out)[0]
        at = kills.reached(out)
        if number == signal.SIGKILL:
            hint = f"step {step} is saved; go on with: python -m train.lm --resume --out={out} --hosts=127.0.0.1:"
            assert said(log, 1 - victim)[-1].startswith(f"error: another process of this run was lost; {hint}")
            assert at - step < 2 * kills.EVERY
        else:
            assert at == step
            assert f"stopped at step {step} of {kills.STEPS}, saved; go on with: python -m train.lm" in said(log)[-1]
    assert kills.ended(kills.start(log, 2, [*flags, f"--out={out}", "--resume"])) == [0, 0], said(log)
    assert kills.final(out) == kills.final(never)
    assert lines(out) == lines(never)
    assert (out / "results.json").read_text() == (never / "results.json").read_text()


@pytest.mark.slow
def test_a_step_that_is_not_finite_stops_both_processes_and_is_kept_once(flags, tmp_path, capsys):
    out, log = tmp_path / "run", tmp_path / "log"
    wild = ("--lr=1e30", "--warmup=0", "--clip=0")
    assert kills.ended(kills.start(log, 2, [*flags, *wild, f"--out={out}"])) == [2, 2]
    folder = out / "offending-2"
    (data,) = (flag for flag in flags if flag.startswith("--data="))
    again = f"python -m train.replay {folder} {data}"
    for process in range(2):
        assert said(log, process)[-1].startswith(
            f"error: the loss is nan at step 2, which was saved (replay it: {again})"
        )
    assert replay.main([str(folder), data]) == 0
    assert "step 2 · the loss is nan, the same as nan in the run" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize("hanging", [0, 1])
def test_a_process_that_hangs_is_missed(hanging, flags, tmp_path):
    out, log = tmp_path / "run", tmp_path / "log"
    processes = kills.start(log, 2, [*flags, f"--out={out}"])
    kills.wait_for(kills.EVERY + 3, out, processes[0])
    os.kill(processes[hanging].pid, signal.SIGSTOP)
    processes[1 - hanging].join(kills.PATIENCE)
    assert processes[1 - hanging].exitcode == hosts.LOST
    assert f"step {written_steps(out)[0]} is saved" in said(log, 1 - hanging)[-1]
    os.kill(processes[hanging].pid, signal.SIGCONT)
    assert kills.ended(processes) == [hosts.LOST] * 2  # it finds that the others have gone


@pytest.mark.slow
def test_a_peer_with_other_settings_is_named(flags, tmp_path):
    port, log = kills.free_port(), tmp_path / "log"
    started = [
        kills.spawn(
            Path(f"{log}.{process}"), kills.train_lm,
            [*flags, f"--out={tmp_path / 'run'}", f"--hosts=127.0.0.1:{port},2,{process}", f"--lr=0.00{process + 1}"],
        )
        for process in range(2)
    ]  # fmt: skip
    assert kills.ended(started) == [2, 2]
    for process in range(2):
        error = said(log, process)[-1]
        assert error == "error: all processes must be started alike: 0 has lr=0.001, 1 lr=0.002"
    assert not (tmp_path / "run").exists()


def join_soon(at: str) -> None:
    hosts.JOIN_TIMEOUT = 3
    with session.report_errors(ValueError):
        hosts.join(at)


def refused(at: str, log: Path) -> str:
    [status] = kills.ended([kills.spawn(log, join_soon, at)])
    assert status in (1, 2)
    return log.read_text().splitlines()[-1]


@pytest.mark.slow
def test_nobody_answers(flags, tmp_path):
    at = f"127.0.0.1:{kills.free_port()},2,1"
    rule = "start all of them, with the same address and different numbers"
    assert refused(at, tmp_path / "log") == f"error: hosts={at}: not all processes answered within 3 s: {rule}"


@pytest.mark.slow
def test_a_number_twice(flags, tmp_path):
    port, logs = kills.free_port(), [tmp_path / str(number) for number in range(3)]
    started = [
        kills.spawn(log, join_soon, f"127.0.0.1:{port},3,{process}")
        for log, process in zip(logs, (0, 1, 1), strict=True)
    ]
    assert kills.ended(started) == [1, 1, 1]
    assert all("start all of them, with the same address and different numbers" in log.read_text() for log in logs)


@pytest.mark.slow
def test_a_port_in_use(flags, tmp_path):
    with socket.socket(socket.AF_INET6) as listener:
        listener.bind(("::", 0))
        listener.listen()
        port = listener.getsockname()[1]
        error = refused(f"127.0.0.1:{port},2,0", tmp_path / "log")
    assert error.startswith(f"error: hosts: process 0 cannot listen at 127.0.0.1:{port}: ")
    assert "in use" in error


def test_no_cluster(flags, tmp_path):
    message = "error: hosts=auto needs SLURM, Open MPI, GKE or a Cloud TPU, got none of them"
    assert refused("auto", tmp_path / "log") == message


GUIDE = Path(__file__).parents[2] / "docs" / "many-devices.md"


def recipes() -> list[str]:
    """Return the commands of the guide that start one of several processes."""
    commands = re.findall(r"python -m (train\.lm [^\n\"]*--hosts=[^\s\"]+[^\n\"]*)", GUIDE.read_text())
    return sorted(set(commands))


def follow(argv: list[str], environ: dict[str, str]) -> None:
    os.environ.update(environ)
    kills.train_lm(argv)


@pytest.mark.long
def test_the_recipes_of_the_guide_start_two_processes(flags, tmp_path):
    for number, command in enumerate(recipes()):
        log, port, job = tmp_path / f"log{number}", kills.free_port(), os.getpid() + number
        cluster = {"SLURM_JOB_ID": str(job), "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2"}
        started = []
        for process in range(2):
            explicit = f"--hosts=127.0.0.1:{port},2,{process}"
            line = re.sub(r"--hosts=(?!auto)\S+", explicit, command)  # as the shell of that process would fill it in
            line = re.sub(r"--mesh=\S+", "--mesh=data=2,fsdp=2", line)
            options = shlex.split(re.sub(r"--(data|out|preset)=\S+", "", line))[1:]
            ranks = {"SLURM_PROCID": str(process), "SLURM_LOCALID": str(process)}
            argv = [*options, *flags, "--steps=4", f"--out={tmp_path / str(number)}"]
            environ = {**cluster, **ranks} if "--hosts=auto" in options else {}
            started.append(kills.spawn(Path(f"{log}.{process}"), follow, argv, environ))
        assert kills.ended(started) == [0, 0], said(log)
        assert "4 x cpu" in "".join(said(log))
        assert (tmp_path / str(number) / "results.json").exists()
