"""The stage that samples: `train.dit` with the presets of an accelerator, trained for as long as there is time.

Each run is that of `python -m train.dit --preset=NAME --pe=NAME`, in a process of its own. It first times a few of its
steps beside the others, then trains for as many as leave time to sample, to judge and to measure. rope_axial on
pictures and on videos come first, then learned and alibi on both; what a call has no time for, the next one does.
"""

import importlib.util
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.hardware import train
from benchmarks.hardware.outcomes import Case
from benchmarks.hardware.run import SECONDS, Run, Settings, Stage

NEEDED = train.NEEDED | {
    "grain": "grain", "matplotlib": "matplotlib", "simple_parsing": "simple-parsing", "tensorboardX": "tensorboardX",
}  # fmt: skip
"""Modules that `train.dit` imports, and the names of their packages."""

PRESETS = ("gpu", "video")
ROUNDS = (("rope_axial",), ("learned", "alibi"))
"""Encodings that run side by side on both presets, the most wanted first."""

LEAST, ROUND = 300.0, 400.0
"""Seconds without which a round does not begin, and those that one has before the next one is thought of."""

LONG = 10.0**7
"""Seconds of a limit where there is none."""

COLUMNS = ("encoding", "steps", "extension", "shape", "class right, %", "Fréchet distance", "repeats", "loops, %")


def rounds(rehearse: bool) -> list[list[Case]]:
    """Return the runs that go side by side, the most wanted first; a rehearsal has the first round alone."""
    of = lambda preset, pe: Case("sample", f"{preset} | {pe}", "benchmarks.hardware.sampling:sample")
    every = [[of(preset, pe) for pe in pes for preset in PRESETS] for pes in ROUNDS]
    return every[:1] if rehearse else every


def run(run: Run, until: float) -> None:
    """Do one round after the other."""
    due = [cases for group in rounds(run.settings.rehearse) if (cases := run.due(group))]
    missing = [package for module, package in NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        run.ledger.say(f"sample needs packages that are missing: pip install {' '.join(missing)}")
        run.left.extend(case for cases in due for case in cases)
        return
    for number, cases in enumerate(due):
        left = until - time.monotonic()
        if left < LEAST:
            run.ledger.say(f"sample: {left:.0f} s are left, a run needs {LEAST:.0f}: more --minutes are needed")
            run.left.extend(cases)
            continue
        share = max(1, min(len(due) - number, int(left / ROUND))) if left < LONG else 1
        side_by_side(run, cases, min(until, time.monotonic() + left / share))


def side_by_side(run: Run, cases: Sequence[Case], end: float) -> None:
    """Do the runs of a round; those without time left are listed as not done."""
    limit = min(end - time.monotonic(), LONG)
    given = {
        "folder": str(run.scratch / "samples"),
        "to": str(run.settings.out.resolve()),
        "toy": run.settings.rehearse,
    }
    told = [
        case._replace(
            arguments={**given, **of_name(case.name), "until": time.monotonic() + limit, "limited": limit < LONG},
            limit=limit,
        )
        for case in cases
    ]

    def done(case: Case, answer: dict[str, Any]) -> None:
        if answer["outcome"] == "late":
            run.ledger.say(f"sample: {case.name}: {answer['message']}")
            run.left.append(case)
        else:
            run.ledger.add(case, answer)

    run.left.extend(run.pool.run(told, end, done))


def of_name(name: str) -> dict[str, str]:
    """Return the preset and the encoding of a case."""
    preset, pe = name.split(" | ")
    return {"preset": preset, "pe": pe}


def expected(settings: Settings, jobs: int) -> tuple[float, str]:
    """Return the seconds that the stage takes, and how they are known."""
    count = sum(map(len, ROUNDS)) * len(PRESETS)
    if settings.minutes:
        how = f"{LEAST:.0f} s at least, of which 60 to compile and 170 to judge and sample; {count} runs in two rounds"
        return SECONDS["sample"] / 8 * settings.minutes, f"as long as there is time to train: {how}; by estimate"
    full = f"{count} runs of 20,000 steps, 10 ms each if alone, and all shapes; by estimate, not measured"
    return count * (200.0 + 600.0), full


def table(lines: Mapping[str, dict[str, Any]]) -> str:
    """Return a table per preset: a row per encoding, extension and shape, in brackets the numbers of true ones."""
    parts = []
    for preset in PRESETS:
        of_encoding = {of_name(name)["pe"]: line for name, line in lines.items() if of_name(name)["preset"] == preset}
        rows = [cells(pe, line, row) for pe, line in of_encoding.items() for row in line.get("rows", ())]
        if rows:
            head = [f"| {' | '.join(COLUMNS)} |", "|---|---:|---|---" + "|---:" * 4 + "|"]
            title = f"## Sampled by train.dit --preset={preset}, in brackets true ones"
            parts.append("\n".join([title, "", *head, *rows]))
    return "\n\n".join(parts)


def cells(pe: str, line: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """Return a row of the table."""
    if row["refused"]:
        return f"| {pe} | {line['steps']:,} | {row['extend']} | {row['shape']} | refused | | | |"
    number = lambda name, form: f"{row[name]:{form}} ({row[f'true_{name}']:{form}})" if name in row else "-"
    numbers = (number("right", ".1f"), number("distance", ".2f"), number("repeats", ".2f"), number("loops", ".1f"))
    return f"| {pe} | {line['steps']:,} | {row['extend']} | {row['shape']} | {' | '.join(numbers)} |"


STAGE = Stage(run, expected, table)
