"""Kill a training run or a comparison at random moments, go on each time, and count what is lost.

    python -m benchmarks.kills --kills=100                  one of two processes is killed, the other must end by itself
    python -m benchmarks.kills --kills=100 --processes=1
    python -m benchmarks.kills --kills=20 --compare         train.compare, the same command each time

Every kill is SIGKILL. Half of them come at a moment drawn evenly over a whole run: while it starts, compiles, restores,
trains, saves or evaluates; the other half at a step drawn evenly over those still to go. A run that reaches its end is
compared with one that was never stopped, bit by bit, and begun anew.

A comparison is killed at moments drawn evenly over a whole one: half of the kills end its process alone, which leaves
the run under way to itself, the other half that run too. Its table and its results must be those of a comparison that
was never stopped.
"""

import argparse
import contextlib
import datetime
import json
import multiprocessing
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import jax

from pejax._process.text import plain_output
from train.devices import hosts
from train.engine.checkpoint import written_steps

EVERY = 20
"""Steps between checkpoints of the run that is killed."""

STEPS = 200
HEARTBEAT, JOIN_TIMEOUT = 10, 45
"""Seconds, see `train.devices.hosts`: shorter than there."""

PATIENCE = 300
"""Seconds after which a process that should have ended counts as hanging."""

SERVER = multiprocessing.get_context("forkserver")
"""Starts processes that have imported all they need."""


def toy(folder: Path) -> list[str]:
    """Return the options of a language model that trains in seconds, and write its text."""
    words, drawn = ("alpha", "beta", "gamma", "delta", "epsilon"), random.Random(0)
    text = folder / "text.txt"
    text.write_text("\n".join(" ".join(drawn.choices(words, k=12)) for _ in range(600)), encoding="utf-8")
    return [
        f"--data=file:{text}", "--width=16", "--layers=1", "--heads=2", "--length=16", "--batch=8", f"--steps={STEPS}",
        "--log_every=1", f"--checkpoint_every={EVERY}", "--eval_lengths", "16", "32", "--eval_limit=4",
    ]  # fmt: skip


def prepare_server(folder: Path, devices: int = 2) -> None:
    """Set the environment of processes: host devices, and a folder for compiled programs."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["JAX_NUM_CPU_DEVICES"] = str(devices)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder / "compiled")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    SERVER.set_forkserver_preload(["train.lm.program", "train.engine.session"])


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(log: Path, count: int, flags: list[str]) -> list[BaseProcess]:
    """Start `python -m train.lm` with these options in `count` processes; process I writes into `LOG.I`."""
    port = free_port()
    named = lambda number: [f"--hosts=127.0.0.1:{port},{count},{number}"] if count > 1 else []
    return [spawn(Path(f"{log}.{number}"), train_lm, [*flags, *named(number)]) for number in range(count)]


def spawn(log: Path, target: Callable[..., None], *arguments: Any) -> BaseProcess:
    """Start a process whose output goes into a file."""
    process = SERVER.Process(target=_logged, args=(str(log), target, *arguments))
    process.start()
    return process


def _logged(log: str, target: Callable[..., None], *arguments: Any) -> None:
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    target(*arguments)


def train_lm(argv: list[str]) -> None:
    """Be `python -m train.lm`, but wait less for processes that are gone, or never came."""
    hosts.HEARTBEAT, hosts.JOIN_TIMEOUT = HEARTBEAT, JOIN_TIMEOUT
    from train.lm.program import main

    raise SystemExit(main(argv))


def ended(processes: list[BaseProcess]) -> list[int]:
    """Return the exit statuses of processes that come to an end; a hanging one is killed.

    Raises:
        TimeoutError: one hangs.
    """
    until = time.monotonic() + PATIENCE
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))
    hanging = [number for number, process in enumerate(processes) if process.is_alive()]
    for number in hanging:
        processes[number].kill()
    if hanging:
        raise TimeoutError(f"processes {hanging} did not end within {PATIENCE} s")
    return [process.exitcode or 0 for process in processes]


def reached(out: Path) -> int:
    """Return the last step in the metrics of a run."""
    with contextlib.suppress(OSError, IndexError, json.JSONDecodeError):
        return json.loads((out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])["step"]
    return 0


def wait_for(step: int, out: Path, process: BaseProcess) -> None:
    """Return once a run has reached a step, or has ended."""
    while process.is_alive() and reached(out) < step:
        time.sleep(0.02)


def final(out: Path) -> dict[str, str]:
    """Return the digests of the state at the end of a run."""
    seal = out / "checkpoints" / str(STEPS) / "seal" / "metadata"
    return json.loads(seal.read_text(encoding="utf-8"))["digests"]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--processes", type=int, default=2, choices=(1, 2))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compare", action="store_true", help="kill train.compare in place of one run")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.compare:
            kill_comparison(Path(folder), arguments.kills, arguments.seed)
        else:
            kill(Path(folder), arguments.kills, arguments.processes, arguments.seed)


def kill(folder: Path, kills: int, count: int, seed: int) -> None:
    """Kill, go on and count; print the counts.

    Raises:
        SystemExit: something was lost that a checkpoint held, or the end differs.
    """
    os.environ["PYTHONWARNINGS"] = "ignore:resource_tracker"  # of what killed processes could not clean up
    drawn, flags = random.Random(seed), toy(folder)
    prepare_server(folder)
    for name in ("compiled", "never"):  # the first fills the folder of what is compiled
        begun = time.monotonic()
        statuses = ended(start(folder / name, count, [*flags, f"--out={folder / name}"]))
        duration = time.monotonic() - begun
        if any(statuses):
            sys.exit((folder / f"{name}.0").read_text(encoding="utf-8"))
    digests, out, log = final(folder / "never"), folder / "run", folder / "log"
    done, worst, finished, saved_step, begun = 0, 0, 0, 0, time.monotonic()
    while True:
        going_on = ["--resume"] if (out / "config.json").exists() else []
        processes = start(log, count, [*flags, f"--out={out}", *going_on])
        if done < kills:
            if drawn.random() < 0.5:
                processes[0].join(drawn.uniform(0, duration))
            else:
                wait_for(drawn.randint(saved_step, STEPS), out, processes[0])
                processes[0].join(drawn.uniform(0, 0.1))
            victim = drawn.randrange(count)
            killed = processes[victim].is_alive()
            if killed:
                os.kill(processes[victim].pid or 0, signal.SIGKILL)
            done += killed
        statuses = ended(processes)
        first = Path(f"{log}.0")
        said = first.read_text(encoding="utf-8", errors="replace").strip() if first.exists() else ""
        resumed = re.search(r"going on from step (\d+)", said)
        if resumed and int(resumed[1]) != saved_step:
            sys.exit(f"went on from step {resumed[1]}, step {saved_step} was saved\n{said}")
        saved_step = next(iter(written_steps(out)), 0)
        lost = max(0, reached(out) - saved_step)
        worst = max(worst, lost)
        if lost >= 2 * EVERY:  # one checkpoint may be on its way to the disk
            sys.exit(f"lost {lost} steps of {reached(out)}\n{said}")
        if (out / "results.json").exists():
            if final(out) != digests:
                sys.exit(f"the end differs after {done} kills")
            finished, out, saved_step = finished + 1, folder / f"run{finished + 1}", 0
            if done >= kills:
                break
        elif not any(statuses):
            sys.exit(f"neither killed nor finished\n{said}")
        spent = time.monotonic() - begun
        estimate = f"{spent / done * (kills - done):.0f} s left" if done else ""
        print(f"{done}/{kills} kills · {finished} runs ended, all bits equal · lost at most {worst} steps · {estimate}")
    print(
        f"| {datetime.date.today()} | jax {jax.__version__} | {count} | {done} | {finished}, all bits equal | "
        f"{worst} (a checkpoint every {EVERY}) | {time.monotonic() - begun:.0f} s |"
    )


def kill_comparison(folder: Path, kills: int, seed: int) -> None:
    """Kill a comparison, give its command again, and compare tables; print the counts.

    Raises:
        SystemExit: it ended with an error, or with another table.
    """
    drawn = random.Random(seed)
    prepare_server(folder, devices=1)
    options = ["--task=lm", "--pe=rope,alibi", "--seeds=1", "--extend=none,pi", *toy(folder)]
    for name in ("compiled", "never"):  # the first fills the folder of what is compiled
        begun = time.monotonic()
        end_of(compare(options, folder / name))
        duration = time.monotonic() - begun
    table = table_of(folder / "never")
    done, finished, out, begun = 0, 0, folder / "comparison", time.monotonic()
    while True:
        process = compare(options, out)
        if done < kills:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(drawn.uniform(0, duration))
            if process.poll() is None:
                kill_tree(process, also_the_run=done % 2 == 1)
                done += 1
                print(f"{done}/{kills} kills · {finished} comparisons ended, the same table", flush=True)
                continue
        end_of(process)
        if table_of(out) != table:
            sys.exit(f"another table after {done} kills:\n{table_of(out)}\nin place of\n{table}")
        finished, out = finished + 1, folder / f"comparison{finished + 1}"
        if done >= kills:
            break
    print(
        f"| {datetime.date.today()} | jax {jax.__version__} | {seed} | {done} | {finished}, the same table | "
        f"{time.monotonic() - begun:.0f} s |"
    )


def compare(options: list[str], out: Path) -> subprocess.Popen[str]:
    """Start `python -m train.compare` with these options."""
    command = [sys.executable, "-m", "train.compare", *options, f"--out={out}"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8")


def end_of(process: subprocess.Popen[str]) -> None:
    """Wait for the end of a comparison.

    Raises:
        SystemExit: its status is not 0.
    """
    said, _ = process.communicate(timeout=PATIENCE)
    if process.returncode:
        sys.exit(f"status {process.returncode}\n{said}")


def kill_tree(process: subprocess.Popen[str], also_the_run: bool) -> None:
    """Kill a comparison, and the runs under way if asked."""
    runs: list[int] = []
    for thread in Path(f"/proc/{process.pid}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has ended since
            runs += map(int, (thread / "children").read_text(encoding="utf-8").split())
    process.kill()
    for run in runs if also_the_run else ():
        with contextlib.suppress(ProcessLookupError):
            os.kill(run, signal.SIGKILL)
    process.communicate()


def table_of(out: Path) -> list[str]:
    """Return the table and the results of a comparison, without the seconds that they took."""
    lines = (out / "results.jsonl").read_text(encoding="utf-8").splitlines()
    results = [{name: value for name, value in json.loads(line).items() if name != "seconds"} for line in lines]
    return [(out / "table.md").read_text(encoding="utf-8"), *map(json.dumps, results)]


if __name__ == "__main__":
    plain_output()
    main()
