"""Prove, measure and train on a GPU, in minutes, with one command.

    python -m benchmarks.hardware --minutes=8 --out=DIR    every implementation against float64, times, memory, tables
    python -m benchmarks.hardware --minutes=0 --out=DIR    all, with full recipes of training, however long it takes
    python -m benchmarks.hardware --stages=sample --minutes=14 --out=DIR    pictures and videos sampled by train.dit
    python -m benchmarks.hardware --ahead=DIR              compile what a short loan of a GPU runs, without the GPU
    python -m benchmarks.hardware --programs=DIR:SHA256    on that GPU, with them: it measures within a minute
    python -m benchmarks.hardware --plan                   what each stage is expected to take
    python -m benchmarks.hardware --rehearse --out=DIR     every stage on the CPU, with toy sizes

A case is done by a process of its own, so that a crash, a hang or a lack of memory ends that case alone. DIR then holds
results.jsonl, a line per case, table.md and log.txt; the same command again goes on where it was stopped. The status is
0 if every proof held and nothing failed, 1 if not, 2 where there is no GPU that it can use.
"""

import argparse
import datetime
import hashlib
import itertools
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.hardware import ahead, measure, prove, sample, shared_memory, train
from benchmarks.hardware.device import refusal, remarks
from benchmarks.hardware.ledger import Ledger
from benchmarks.hardware.outcomes import BAD, Case
from benchmarks.hardware.run import (
    MOST,
    SHARED,
    TOGETHER,
    Run,
    Settings,
    Stage,
    deadline,
    first_answer,
    jobs_of,
    keep_tuned,
    make_pool,
    scratch_folder,
)
from train.devices.hosts import code_digest

STAGES: dict[str, Stage] = {
    "prove": prove.STAGE, "measure": measure.STAGE, "train": train.STAGE, "sample": sample.STAGE,
}  # fmt: skip

AHEAD = ("prove", "measure", "train")
"""Stages whose programs are made ahead; those of `sample` are tuned on the card."""


def options(argv: Sequence[str] | None) -> tuple[Settings, bool]:
    """Read the command line; return the settings, and whether only the plan is asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.hardware", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, help="time for all stages, minutes (default 8); 0 = no limit")
    parser.add_argument("--stages", help="stages, separated by commas (default: all; in a limited time not sample)")
    parser.add_argument("--out", type=Path, default=Path("runs/hardware"), metavar="DIR", help="folder of the results")
    parser.add_argument("--rehearse", action="store_true", help="run on the CPU: toy sizes, kernels interpreted")
    parser.add_argument("--jobs", type=int, default=0, help="processes side by side; 0 = what the card holds")
    parser.add_argument(
        "--ahead", nargs="?", type=Path, const=Path("runs/ahead"), metavar="DIR",
        help="compile the programs of the stages for a card that is absent, into DIR (default runs/ahead), and end",
    )  # fmt: skip
    parser.add_argument("--card", choices=("h200", "h100"), default="h200", help="the card of --ahead (default h200)")
    parser.add_argument(
        "--programs", default="", metavar="DIR:SHA256", help="read what --ahead made in DIR, if this is its digest"
    )
    parser.add_argument(
        "--before", default="", metavar="CHECKOUT", help="measure pejax and train of an earlier checkout, too, in turn"
    )
    parser.add_argument("--plan", action="store_true", help="print what each stage is expected to take, and end")
    chosen = parser.parse_args(argv)
    unlimited = chosen.rehearse or chosen.plan or chosen.minutes == 0
    every = ",".join(TOGETHER if chosen.ahead else STAGES if unlimited else SHARED)
    stages = [name.strip() for name in (every if chosen.stages is None else chosen.stages).split(",")]
    unknown = [name for name in stages if name not in STAGES]
    if unknown:
        parser.error(f"--stages must be of {', '.join(STAGES)}, got {unknown[0]!r}")
    minutes = (0.0 if chosen.rehearse else 8.0) if chosen.minutes is None else chosen.minutes
    if minutes < 0 or chosen.jobs < 0:
        parser.error(f"--minutes and --jobs must be 0 or more, got {minutes:g} and {chosen.jobs}")
    if chosen.programs and not re.fullmatch(".+:[0-9a-f]{64}", chosen.programs):
        parser.error(f"--programs must be DIR:SHA256, as --ahead printed it, got {chosen.programs!r}")
    if chosen.before and not (Path(chosen.before) / "pejax/__init__.py").exists():
        parser.error(f"--before must be a checkout of pejax, got {chosen.before!r}")
    if chosen.ahead and not all(name in AHEAD for name in stages):
        parser.error(f"--ahead makes the programs of {', '.join(AHEAD)}, got {','.join(stages)}")
    ordered = [name for name in STAGES if name in stages]
    card = chosen.card if chosen.ahead and not chosen.rehearse else ""
    settings = Settings(ordered, minutes, chosen.ahead or chosen.out, chosen.rehearse, chosen.jobs, chosen.programs)
    before = os.path.abspath(chosen.before) if chosen.before else ""
    return settings._replace(card=card, ahead=chosen.ahead is not None, before=before), chosen.plan


def plan(settings: Settings, jobs: int, stages: Mapping[str, Stage]) -> str:
    """Return the expected time of each stage on an H200, and how it is known."""
    lines = [f"Expected with {jobs} processes side by side, as measured on an H200 where nothing else is said:"]
    for name in settings.stages:
        took, how = stages[name].expected(settings, jobs)
        lines.append(f"  {name}: {took:.0f} s; {how}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None, stages: Mapping[str, Stage] | None = None) -> int:
    """Run the command line; return the exit status.

    Args:
        argv: None = that of the process.
        stages: stages in place of `STAGES`.
    """
    begun, stages = time.monotonic(), STAGES if stages is None else stages
    settings, only_plan = options(argv)
    if only_plan:
        print(plan(settings, settings.jobs or MOST, stages))
        return 0
    try:
        scratch = scratch_folder()
        machine = first_answer(settings, scratch)
        if settings.ahead:
            return ahead.make(settings, machine, stages)
        why = "" if settings.rehearse else refusal(machine)
        if why:
            raise ValueError(why)
        if settings.programs:
            settings = with_programs(settings, scratch, machine)
        ledger = Ledger(settings.out, identity(settings, machine))
    except (ValueError, OSError) as refused:
        print(f"error: {refused}", file=sys.stderr)
        return 2
    introduce(settings, machine, stages)
    left: list[Case] = []
    try:
        for together, names in itertools.groupby(settings.turns, lambda name: name if name not in TOGETHER else ""):
            pool = make_pool(settings, together or TOGETHER[0], scratch, machine)
            try:
                for name in names:
                    print(f"{name} begins after {time.monotonic() - begun:.0f} s", flush=True)
                    until = deadline(name, settings, begun, time.monotonic())
                    stages[name].run(Run(settings, pool, ledger, scratch, left), until)
            finally:
                pool.end()
    except KeyboardInterrupt:
        print("interrupted: the same command goes on from here")
        return 130
    finally:
        ledger.close()
        keep_tuned(settings, scratch)
        for log in scratch.glob(f"log-{os.getpid()}-*.txt"):
            log.unlink()
    missing = {(case.stage, case.name): case for case in left if (case.stage, case.name) not in ledger.lines}
    return conclude(settings, ledger, [*missing.values()], stages, time.monotonic() - begun)


def with_programs(settings: Settings, scratch: Path, machine: Mapping[str, Any]) -> Settings:
    """Return the settings with the programs that were made ahead, or say why they are not read, and go without."""
    try:
        return settings._replace(programs=str(ahead.unpack(settings.programs, scratch, machine)))
    except (ValueError, OSError) as refused:
        print(f"Programs are compiled here: {refused}")
        return settings._replace(programs="")


def identity(settings: Settings, machine: Mapping[str, Any]) -> dict[str, Any]:
    """Return the identity that all lines of a folder share."""
    card = {"card": machine.get("card") or machine["platform"], "driver": machine["driver"]}
    known = {**card, "versions": machine["versions"], "code": code_digest(), "rehearsal": settings.rehearse}
    return {**known, "before": earlier_code(settings.before)} if settings.before else known


def earlier_code(checkout: str) -> str:
    """Return a digest of the source of pejax and train in a checkout."""
    files = [path for name in ("pejax", "train") for path in sorted(Path(checkout, name).rglob("*.py"))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]


def introduce(settings: Settings, machine: Mapping[str, Any], stages: Mapping[str, Stage]) -> None:
    """Print the device, the omissions and the expected times."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    print(
        f"{machine['card']}, driver {machine['driver'] or 'none'}; {versions}; {jobs_of(settings, machine)} processes"
    )
    if settings.rehearse:
        print("Rehearsal on the CPU: toy sizes, kernels interpreted; its figures mean nothing.")
        print(plan(settings, MOST, stages))
        print(shared_memory.table())
    else:
        print("\n".join(remarks(machine)), end="\n" if remarks(machine) else "")
    sys.stdout.flush()


def conclude(settings: Settings, ledger: Ledger, left: Sequence[Case], stages: Mapping[str, Stage], took: float) -> int:
    """Print the tables and the failures, write them to table.md, and return the exit status.

    Args:
        settings: options of the command line.
        ledger: file of the results.
        left: cases that the time did not allow.
        stages: by name.
        took: seconds of the command.
    """
    lines = [line for (stage, _), line in ledger.lines.items() if stage in settings.stages]
    bad = [line for line in lines if line["outcome"] in BAD and not line.get("peer")]
    unproved = [case for case in left if case.stage == "prove"]
    parts = [stages[name].table(ledger.of_stage(name)) for name in settings.stages]
    parts.append(f"{len(lines)} cases in {took:.0f} s: {len(bad)} failed, {len(left)} not done.")
    parts.append(ahead.told(lines))
    parts += ["\n".join(f"FAILED {x['stage']}: {x['case']}: {x['outcome']}: {x.get('message', '')}" for x in bad)]
    if left:
        parts.append(f"not done: {', '.join(f'{case.stage}: {case.name}' for case in left)[:2000]}")
    text = "\n\n".join(part for part in parts if part)
    head = f"# {ledger.identity['card']}, {datetime.date.today().isoformat()}\n\n"
    (settings.out / "table.md").write_text(f"{head}{text}\n", encoding="utf-8")
    print(f"\n{text}", flush=True)
    return 1 if bad or unproved else 0
