"""One layer of attention over a very long sequence: seconds, and the peak memory of the process.

`python -m benchmarks.long alibi --length 131072 --backward` measures once, in this process, and prints JSON.
"""

import argparse
import functools
import json
import pathlib
import re
import resource
import subprocess
import sys

from benchmarks.bias import ours
from benchmarks.operands import DTYPES, Problem, direction
from benchmarks.report import Case, Column, Part, Settings
from benchmarks.timing import Say, duration, seconds_of

ENCODINGS = ("alibi", "t5", "rope")
HEADS, HEAD_DIM = 1, 64
ROOT = pathlib.Path(__file__).parents[1]


def peak_bytes() -> int:
    """Return the most memory that this process has had.

    Linux keeps in `ru_maxrss` what the parent had when it started this process; VmHWM does not.
    """
    status = pathlib.Path("/proc/self/status")
    found = re.search(r"VmHWM:\s+(\d+)", status.read_text(encoding="utf-8")) if status.exists() else None
    if found:
        return 1024 * int(found[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def measure_here(spec: str, problem: Problem) -> dict[str, float]:
    """Return the seconds of the first call and of the second, and how the process's memory grew to its peak."""
    before = peak_bytes()
    call = ours(problem, spec)
    first = seconds_of(call)
    return {"first": first, "second": seconds_of(call), "before": before, "peak": peak_bytes()}


def measure(spec: str, problem: Problem, say: Say) -> Column:
    """Measure in a process of its own, for a peak of its own; a shorter sequence foretells the seconds."""
    say("a quarter of the length first", 0.0)
    quarter = _in_a_process(spec, problem._replace(length=problem.length // 4))
    say(f"about {2 * 16 * quarter['second'] / 60:.1f} min for this", 0.06)
    found = _in_a_process(spec, problem)
    held = 4 * problem.length * problem.heads * problem.head_dim * (4 if problem.dtype == "float32" else 2)
    name = direction(problem.backward)
    return Column({
        f"{name}: seconds": duration(found["second"]),
        f"{name}: times the quarter's": f"{found['second'] / quarter['second']:.1f}",
        f"{name}: peak memory, MiB": f"{found['peak'] / 2**20:,.0f}",
        f"{name}: of it before the call, MiB": f"{found['before'] / 2**20:,.0f}",
        "q, k, v, o, MiB": f"{held / 2**20:,.0f}",
    })  # fmt: skip


def _in_a_process(spec: str, problem: Problem) -> dict[str, float]:
    words = [spec, f"--length={problem.length}", f"--heads={problem.heads}", f"--head-dim={problem.head_dim}"]
    words += [f"--dtype={problem.dtype}", *(["--backward"] if problem.backward else [])]
    command = [sys.executable, "-m", "benchmarks.long", *words]
    return json.loads(
        subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT, encoding="utf-8").stdout
    )


def cases(settings: Settings) -> list[Case]:
    """Return one table for each direction, its columns the encodings."""
    length, head_dim = (64, 8) if settings.toy else (131072, HEAD_DIM)
    found = []
    for backward in (True,) if settings.toy else (False, True):
        for spec in ENCODINGS[:1] if settings.toy else ENCODINGS:
            problem = Problem(length, HEADS, head_dim, "float32", backward)
            title = f"{length:,} tokens, float32, {direction(backward)}"
            found.append(Case(title, spec, functools.partial(measure, spec, problem), 100 + 300 * backward))
    return found


PART = Part(
    "131,072 tokens",
    "One layer of causal attention, one head of 64 channels, one sequence; each in a process of its own, "
    "compiled before it is timed. Peak memory is the process's, Python and JAX included; all scores of one "
    "head would be 64 GiB. Four times the length is sixteen times the work.",
    cases,
)


def main() -> None:
    """Measure once and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec")
    parser.add_argument("--length", type=int, default=131072)
    parser.add_argument("--heads", type=int, default=HEADS)
    parser.add_argument("--head-dim", type=int, default=HEAD_DIM)
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--backward", action="store_true")
    given = parser.parse_args()
    problem = Problem(given.length, given.heads, given.head_dim, given.dtype, given.backward)
    print(json.dumps(measure_here(given.spec, problem)))


if __name__ == "__main__":
    main()
