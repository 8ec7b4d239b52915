"""Start the README's commands again and again, as their users do, and count how many come to their end.

    python -m benchmarks.starts --times=100                      short forms of four commands
    python -m benchmarks.starts --times=3 --cores=1              seeing one core, as under `taskset -c 0`
    python -m benchmarks.starts --times=10 train.lm              one command

Each start is a process of its own. One that ends with another status than 0, or not within `--patience` seconds, is
counted, and the end of what it said is kept in the folder `--out`. XLA ends a process whose devices wait for each other
in vain; it is told to do so after 20 seconds instead of 60.
"""

import argparse
import datetime
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
from typing import NamedTuple

ROOT = Path(__file__).parents[1]

COMMANDS = {
    "train.vit": ["--epochs=1", "--eval_limit=2000"],
    "train.lm": ["--steps=50"],
    "train.seq2seq": ["--steps=50"],
    "train.evaluate": [],
}
"""Commands and their options; `train.evaluate` is given a run of `train.vit`."""

IMPATIENT = " ".join(f"--xla_cpu_collective_call_{end}_timeout_seconds=20" for end in ("warn_stuck", "terminate"))


class Start(NamedTuple):
    """How one start ended: its status, None = not at all, and after how many seconds."""

    status: int | None
    seconds: float


def start(words: Sequence[str], log: Path, cores: int, patience: float) -> Start:
    """Run `python -m WORDS` on so many cores; keep what it said where it fails."""
    allowed = sorted(os.sched_getaffinity(0))[: cores or None]
    begun = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, "XLA_FLAGS": IMPATIENT}, preexec_fn=lambda: os.sched_setaffinity(0, allowed),
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=patience)
        status = process.returncode
    except subprocess.TimeoutExpired:
        process.kill()
        said, _ = process.communicate()
        status = None
    if status != 0:
        log.write_bytes(said[-100_000:])
    return Start(status, time.monotonic() - begun)


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
    chosen = parser.parse_args(argv)
    unknown = [name for name in chosen.commands if name not in COMMANDS]
    if unknown:
        parser.error(f"COMMAND must be one of {', '.join(COMMANDS)}, got {unknown[0]}")
    if chosen.times < 1:
        parser.error(f"--times must be at least 1, got {chosen.times}")
    return chosen


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return 0 if all starts came to their end, else 1."""
    chosen = options(argv)
    chosen.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[Start]] = {name: [] for name in chosen.commands}
    with tempfile.TemporaryDirectory() as folder:
        trained = f"{folder}/trained"
        if "train.evaluate" in found:
            start(["train.vit", *COMMANDS["train.vit"], f"--out={trained}"], chosen.out / "trained.log", 0, 600.0)
        begun, done = time.monotonic(), 0
        for turn in range(chosen.times):
            for name, starts in found.items():
                where = [trained] if name == "train.evaluate" else [f"--out={folder}/{name}", "--overwrite"]
                log = chosen.out / f"{name}-{turn}.log"
                starts.append(start([name, *COMMANDS[name], *where], log, chosen.cores, chosen.patience))
                done += 1
                left = (time.monotonic() - begun) * (chosen.times * len(found) / done - 1)
                ended = " · ".join(
                    f"{name} {sum(s.status == 0 for s in kept)}/{len(kept)}" for name, kept in found.items()
                )
                print(f"{ended} · {left / 60:.0f} min left", flush=True)
    print(table(found, chosen.cores))
    return 0 if all(one.status == 0 for starts in found.values() for one in starts) else 1


def table(found: dict[str, list[Start]], cores: int) -> str:
    """Return what came out as markdown."""
    seen = cores or len(os.sched_getaffinity(0))
    lines = [
        f"{datetime.date.today()} · jax {version('jax')} · Python {platform.python_version()} · {seen} cores visible",
        "",
        "| command | ended / starts | seconds, median | longest |",
        "|---|---:|---:|---:|",
    ]
    for name, starts in found.items():
        seconds = [one.seconds for one in starts]
        ended = sum(one.status == 0 for one in starts)
        words = " ".join([name, *COMMANDS[name]])
        lines.append(f"| `{words}` | {ended} / {len(starts)} | {statistics.median(seconds):.1f} | {max(seconds):.1f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
