"""The stage that trains: every encoding on the published grid, seed by seed, so that whatever was reached is fair.

Augmented batches are made once per seed and epoch, for all encodings. Each encoding has a process, which keeps what it
compiled; they share the card. The epochs are set so that one seed of all encodings ends in half of the time left.
"""

import importlib.util
import math
import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.hardware.outcomes import Case
from benchmarks.hardware.run import SECONDS, Run, Settings, Stage
from pejax import ENCODINGS

DATA = ("glyphs", "fashion")
SEEDS = 3
FULL = 100
"""Epochs of the full recipe."""

NEEDED = {"flax": "flax", "optax": "optax", "orbax": "orbax-checkpoint", "PIL": "Pillow", "rich": "rich"}
NEEDED |= {"matplotlib": "matplotlib"}
"""Modules that training imports, and the names of their packages."""

TASK = "benchmarks.hardware.training:{}"
EXTENSIONS = {"none": "as trained", "pi(stretch=True)": "positions interpolated, `pi(stretch=True)`"}

LONG = 10.0**7
"""Seconds of a limit where there is none."""


def encodings(rehearse: bool) -> list[str]:
    """Return the encodings; a rehearsal has three kinds: none, a bias, and learned frequencies."""
    return ["none", "alibi", "rope_mixed"] if rehearse else list(ENCODINGS)


def case_of(data: str, pe: str, seed: int) -> Case:
    """Return the case of one training run; its arguments come when the epochs are known."""
    return Case("train", f"{data} | {pe} | seed {seed}", TASK.format("train"))


def run(run: Run, until: float) -> None:
    """Train data set after data set, seed after seed."""
    missing = [package for module, package in NEEDED.items() if importlib.util.find_spec(module) is None]
    pes, seeds = encodings(run.settings.rehearse), range(1 if run.settings.rehearse else SEEDS)
    data_sets = DATA[:1] if run.settings.rehearse else DATA
    if missing:
        run.ledger.say(f"train needs packages that are missing: pip install {' '.join(missing)}")
        run.left.extend(case_of(data, pe, seed) for data in data_sets for pe in pes for seed in seeds)
        return
    folder = tempfile.mkdtemp(prefix="data-", dir=run.scratch)
    try:
        for data in data_sets:
            train_on(run, data, pes, seeds, folder, until)
    finally:
        shutil.rmtree(folder)


def train_on(run: Run, data: str, pes: list[str], seeds: range, folder: str, until: float) -> None:
    """Train all encodings on a data set with as many seeds as the time allows."""
    due = {seed: run.due([case_of(data, pe, seed) for pe in pes]) for seed in seeds}
    if not any(due.values()) or time.monotonic() >= until:
        run.left.extend(case for cases in due.values() for case in cases)
        return
    given = {"folder": folder, "data": data, "toy": run.settings.rehearse}
    more = {"few": not run.settings.rehearse and run.settings.minutes > 0}
    made = prepare(run, given, more, pes, until)
    epochs = 0 if made is None else made[0]
    for seed in seeds:
        took = math.inf if made is None else made[1] * len(due[seed]) / len(pes)
        if due[seed] and epochs and time.monotonic() + (0 if seed == 0 else took) < until:
            train_seed(run, {**given, "seed": seed}, {**more, "epochs": epochs}, due[seed], took, until)
        else:
            run.left.extend(due[seed])


def prepare(
    run: Run, given: dict[str, Any], more: dict[str, Any], pes: list[str], until: float
) -> tuple[int, float] | None:
    """Make test images and compile every encoding; return the epochs that fit and the seconds of a seed, or None.

    Args:
        run: run of the command.
        given: folder, data and size of the problem.
        more: arguments of a trainer.
        pes: the encodings.
        until: the end of the time.
    """
    from benchmarks.hardware.training import sizes_of

    case = Case("train", f"{given['data']} | epochs", TASK.format("probe"))
    sizes = sizes_of(run.settings.rehearse, more["few"])
    tests = [((TASK.format("make_tests"), {**given, "size": size}), 120.0) for size in reversed(sizes)]
    first = ((TASK.format("make_epoch"), {**given, "seed": 0, "epoch": 0}), 120.0)
    left = lambda: min(LONG, max(1.0, until - time.monotonic()))
    failed = [found for found in run.pool.together([*tests, first]) if found["outcome"] != "made"]
    if failed:
        run.ledger.add(case, failed[0])
        return None
    probes = [((TASK.format("probe"), {**given, **more, "pe": pe}), min(240.0, left())) for pe in pes]
    run.pool.together(probes)
    if time.monotonic() >= until:
        return None
    # All is compiled now: what is timed is what training repeats, all encodings beside each other.
    found = run.pool.together([(task, min(240.0, left())) for task, _ in probes])
    known = run.ledger.found.get((case.stage, case.name), {})
    scored, epoch = (slowest(found, name, len(run.pool.workers)) for name in ("score", "epoch"))
    if not epoch:
        return None
    half = 0.5 * (until - time.monotonic()) - scored
    fitting = FULL if math.isinf(until) else max(1, min(FULL, int(half / epoch)))
    epochs = known.get("epochs") or (1 if run.settings.rehearse else fitting)
    if not known:
        told = f"{epochs}, of {epoch:.2f} s for all encodings"
        run.ledger.add(case, {"outcome": "made", "epochs": epochs, "epoch": epoch, "message": told})
    return epochs, epochs * epoch + scored


def slowest(found: list[dict[str, Any]], name: str, workers: int) -> float:
    """Return the seconds of the worker that takes longest, which does every one of so many tasks."""
    return max(sum(one.get(name, 0.0) for one in found[first::workers]) for first in range(min(workers, len(found))))


def train_seed(
    run: Run, given: dict[str, Any], more: dict[str, Any], cases: list[Case], took: float, until: float
) -> None:
    """Make the batches of a seed, and train the encodings that are due on them; then let go of the batches.

    Args:
        run: run of the command.
        given: folder, data, seed and size of the problem.
        more: arguments of a trainer, the epochs among them.
        cases: the encodings that are due.
        took: seconds that a seed takes; one that takes three times as long hangs.
        until: the end of the time.
    """
    left = lambda: min(LONG, max(1.0, until - time.monotonic()))
    epochs = range(more["epochs"])
    made = run.pool.together([((TASK.format("make_epoch"), {**given, "epoch": n}), min(120.0, left())) for n in epochs])
    failed = [found for found in made if found["outcome"] != "made"]
    if failed:
        run.ledger.add(cases[0], failed[0])
        run.left.extend(cases[1:])
        return
    names = [case.name.split(" | ")[1] for case in cases]
    limit = lambda: min(left(), 60.0 + 3 * took)

    def done(number: int, found: dict[str, Any]) -> None:
        if found["outcome"] == "hung" and time.monotonic() >= until:
            run.left.append(cases[number])
        else:
            run.ledger.add(cases[number], found)

    run.pool.together([((TASK.format("train"), {**given, **more, "pe": pe}), limit()) for pe in names], done)
    for path in Path(given["folder"]).glob(f"{given['data']}-{given['seed']}-*.npz"):
        if given["seed"] or not path.name.endswith("-0-0.npz"):
            path.unlink()


def expected(settings: Settings, jobs: int) -> tuple[float, str]:
    """Return the seconds that the stage takes on an H100, and how they were estimated."""
    if settings.minutes:
        how = "about 45 s to compile 15 encodings and their tests, then 4 ms a step, 0.3 s an epoch, of each in turn"
        return SECONDS["train"] / 8 * settings.minutes, f"what is left of the time: {how}: about 10 epochs of two seeds"
    work = len(DATA) * (90.0 + SEEDS * len(ENCODINGS) * (FULL * 0.31 + 5.0))
    return (
        work,
        f"{len(DATA)} data sets, {SEEDS} seeds, {len(ENCODINGS)} encodings of {FULL} epochs of 0.3 s, {jobs} jobs",
    )


def table(lines: Mapping[str, dict[str, Any]]) -> str:
    """Return top-1 by encoding and size, the mean over seeds, one table per data set and way to test."""
    trained = {tuple(name.split(" | ")): line for name, line in lines.items() if line["outcome"] == "trained"}
    parts = []
    for data in dict.fromkeys(key[0] for key in trained):
        for extend, words in EXTENSIONS.items():
            own = {
                key: line["top1"][extend] for key, line in trained.items() if key[0] == data and line["top1"][extend]
            }
            sizes = sorted({int(size) for one in own.values() for size in one})
            epochs = next(line["epochs"] for key, line in trained.items() if key[0] == data)
            rows = [row(pe, [one for key, one in own.items() if key[1] == pe], sizes) for pe in pes_of(own)]
            head = f"## Top-1 on {data}, %, {epochs} epochs at 28 pixels, {words}"
            columns = [
                f"| encoding | seeds | {' | '.join(map(str, sizes))} |",
                "|---" + "|---:" * (len(sizes) + 1) + "|",
            ]
            parts.append("\n".join([head, "", *columns, *rows]))
    return "\n\n".join(parts)


def pes_of(found: Mapping[tuple[str, ...], Any]) -> list[str]:
    """Return the encodings that have results, in order."""
    return list(dict.fromkeys(key[1] for key in found))


def row(pe: str, seeds: list[dict[Any, float]], sizes: list[int]) -> str:
    """Return the row of an encoding: the mean of each size over the seeds."""
    by_size = [[{int(size): value for size, value in one.items()}[size] for one in seeds] for size in sizes]
    return f"| {pe} | {len(seeds)} | {' | '.join(f'{statistics.mean(values):.1f}' for values in by_size)} |"


STAGE = Stage(run, expected, table)
