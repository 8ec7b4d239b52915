"""Start the README's commands again and again, as their users do, and count how many come to their end.

    python -m benchmarks.starts --times=100                      short forms of four commands
    python -m benchmarks.starts --times=3 --cores=1              seeing one core, as under `taskset -c 0`
    python -m benchmarks.starts --times=10 train.lm              one command

Each start is a process of its own. One that ends with another status than 0, or not within `--patience` seconds, is
counted, and the end of what it said is kept in the folder `--out`. XLA ends a process whose devices wait for each other
in vain; it is told to do so after 20 seconds instead of 60.

Every start is one line of `--results`. Starts of this version of jax, with as many cores, that stand there already
count: what was stopped goes on.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pejax._process.text import plain_output

ROOT = Path(__file__).parents[1]

COMMANDS = {
    "train.vit": ["--epochs=1", "--eval_limit=2000"],
    "train.lm": ["--steps=50"],
    "train.seq2seq": ["--steps=50"],
    "train.evaluate": [],
}
"""Commands and their options; `train.evaluate` is given a run of `train.vit`."""

IMPATIENT = " ".join(f"--xla_cpu_collective_call_{end}_timeout_seconds=20" for end in ("warn_stuck", "terminate"))

Start = dict[str, Any]
"""The outcome of one start: `command`, `status`, None = not at all, `seconds`; and `cores`, `jax`, `commit`, `date`."""


def start(words: Sequence[str], log: Path, cores: int, patience: float) -> tuple[int | None, float]:
    """Run `python -m WORDS` on so many cores; return its status and seconds, and keep its output where it fails."""
    visible, begun = os.sched_getaffinity(0), time.monotonic()
    os.sched_setaffinity(0, sorted(visible)[:cores])  # which the process inherits
    process = subprocess.Popen(
        [sys.executable, "-m", *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, "XLA_FLAGS": IMPATIENT},
    )  # fmt: skip
    os.sched_setaffinity(0, visible)
    try:
        said, _ = process.communicate(timeout=patience)
        status = process.returncode
    except subprocess.TimeoutExpired:
        process.kill()
        said, _ = process.communicate()
        status = None
    if status != 0:
        log.write_bytes(said[-100_000:])
    return status, time.monotonic() - begun


def options(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.starts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commands", nargs="*", default=list(COMMANDS), metavar="COMMAND", help=", ".join(COMMANDS))
    parser.add_argument("--times", type=int, default=100, help="starts of each command (default 100)")
    parser.add_argument("--cores", type=int, default=0, help="cores that a process sees; 0 = all")
    parser.add_argument("--patience", type=float, default=600.0, help="seconds a start may take (default 600)")
    parser.add_argument("--out", type=Path, default=Path("runs/starts"), help="folder of what failed starts said")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks/results/starts.jsonl", help="file of lines")
    chosen = parser.parse_args(argv)
    unknown = [name for name in chosen.commands if name not in COMMANDS]
    if unknown:
        parser.error(f"COMMAND must be one of {', '.join(COMMANDS)}, got {unknown[0]}")
    if chosen.times < 1:
        parser.error(f"--times must be at least 1, got {chosen.times}")
    visible = len(os.sched_getaffinity(0))
    if not 0 <= chosen.cores <= visible:
        parser.error(f"--cores must be from 0 to {visible}, what is visible, got {chosen.cores}")
    chosen.cores = chosen.cores or visible
    return chosen


def read(path: Path, cores: int) -> list[Start]:
    """Return the starts of this version of jax with so many cores that a file holds."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    starts = [json.loads(line) for line in lines]
    return [record for record in starts if (record["cores"], record["jax"]) == (cores, version("jax"))]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return 0 if all starts came to their end, else 1."""
    chosen = options(argv)
    chosen.out.mkdir(parents=True, exist_ok=True)
    chosen.results.parent.mkdir(parents=True, exist_ok=True)
    starts = [record for record in read(chosen.results, chosen.cores) if record["command"] in chosen.commands]
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, encoding="utf-8"
    )
    where = {"cores": chosen.cores, "jax": version("jax"), "commit": commit.stdout.strip()}
    with tempfile.TemporaryDirectory() as folder:
        trained, begun, done = Path(folder) / "trained", time.monotonic(), 0
        while backlog := wanted(starts, chosen.commands, chosen.times):
            name = max(backlog, key=lambda name: backlog[name])
            if name == "train.evaluate" and not trained.exists():
                words = ["train.vit", *COMMANDS["train.vit"], f"--out={trained}"]
                start(words, chosen.out / "trained.log", chosen.cores, chosen.patience)
            to = [str(trained)] if name == "train.evaluate" else [f"--out={folder}/{name}", "--overwrite"]
            log = chosen.out / f"{name}-{chosen.times - backlog[name]}.log"
            status, seconds = start([name, *COMMANDS[name], *to], log, chosen.cores, chosen.patience)
            today = str(datetime.date.today())
            starts.append({"command": name, "status": status, "seconds": round(seconds, 1), **where, "date": today})
            with chosen.results.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(starts[-1]) + "\n")
            done += 1
            estimate = (time.monotonic() - begun) / done * (sum(backlog.values()) - 1)
            print(f"{name}: {status} after {seconds:.0f} s · {estimate / 60:.0f} min left", flush=True)
    print(table(starts, chosen.cores))
    return 0 if all(record["status"] == 0 for record in starts) else 1


def wanted(starts: Sequence[Start], commands: Sequence[str], times: int) -> dict[str, int]:
    """Return how many starts of each command are still to come."""
    backlog = {name: times - sum(record["command"] == name for record in starts) for name in commands}
    return {name: count for name, count in backlog.items() if count > 0}


def table(starts: Sequence[Start], cores: int) -> str:
    """Return the results as markdown."""
    lines = [
        f"{datetime.date.today()} · jax {version('jax')} · Python {platform.python_version()} · {cores} cores visible",
        "",
        "| command | ended / starts | seconds, median | longest |",
        "|---|---:|---:|---:|",
    ]
    for name in dict.fromkeys(record["command"] for record in starts):
        records = [record for record in starts if record["command"] == name]
        seconds = [record["seconds"] for record in records]
        ended = sum(record["status"] == 0 for record in records)
        words = " ".join([name, *COMMANDS[name]])
        lines.append(
            f"| `{words}` | {ended} / {len(records)} | {statistics.median(seconds):.1f} | {max(seconds):.1f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    plain_output()
    raise SystemExit(main())
