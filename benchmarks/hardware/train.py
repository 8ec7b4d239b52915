"""The stage that trains: every encoding on the published grid, seed by seed, so that whatever was reached is fair.

Augmented batches are made once per seed and epoch, for all encodings. Each encoding has a process, which keeps what it
compiled; they share the card. Those whose training is compiled in a share of the time go on without the others. The
epochs are set so that one seed of them ends in half of the time left; the tests, the most wanted first, fill the rest.
"""

import importlib.util
import math
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.hardware.outcomes import Case
from benchmarks.hardware.run import SECONDS, Run, Settings, Stage
from pejax import ENCODINGS

DATA = ("glyphs", "fashion")
SEEDS = 3
FULL = 100
"""Epochs of the full recipe."""

NEEDED = {"flax": "flax", "optax": "optax", "orbax": "orbax-checkpoint", "PIL": "Pillow", "rich": "rich"}
"""Modules that training imports, and the names of their packages."""

TASK = "benchmarks.hardware.training:{}"
EXTENSIONS = {"none": "as trained", "pi(stretch=True)": "positions interpolated, `pi(stretch=True)`"}

LONG = 10.0**7
"""Seconds of a limit where there is none."""

TEST = 15.0
"""Seconds that the first test of an encoding may take: it compiles, on a busy host."""


COMPILING = 0.65
"""Share of the time left after which no encoding is waited for whose program is not compiled."""

FIRST = ("rope_mixed", "rope_axial", "alibi", "learned", "none", "sinusoidal", "rope", "relative_table", "cpb")
"""The encodings that are compiled first where there are fewer processes than encodings."""


class Made(NamedTuple):
    """What is known when a data set and its programs are ready.

    Attributes:
        pes: the encodings, each in its place among all; None where a program was not compiled in time.
        epochs: epochs of every run.
        took: seconds that a seed of all of them takes.
    """

    pes: list[str | None]
    epochs: int
    took: float


def encodings(rehearse: bool) -> list[str]:
    """Return the encodings, the most wanted first; a rehearsal has three kinds: none, a bias, learned frequencies."""
    return ["none", "alibi", "rope_mixed"] if rehearse else [*FIRST, *(pe for pe in ENCODINGS if pe not in FIRST)]


def case_of(data: str, pe: str, seed: int) -> Case:
    """Return the case of one training run; its arguments come when the epochs are known."""
    return Case("train", f"{data} | {pe} | seed {seed}", TASK.format("train"))


def ahead(settings: Settings) -> list[Case]:
    """Return the cases that compile ahead: training before the tests, one data set after the other."""
    toy = settings.rehearse
    given = {"toy": toy, "few": not toy and settings.minutes > 0}
    cases = []
    for data in DATA[:1] if toy else DATA:
        for tests in (False, True):
            for pe in encodings(toy):
                what = {**given, "data": data, "pe": pe, "tests": tests}
                name = f"{data} | {pe} | {'tests' if tests else 'an epoch'}"
                cases.append(Case("train", name, TASK.format("make_ahead"), what, 300.0))
    return cases


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
    due = {seed: {pe: case_of(data, pe, seed) for pe in pes if run.due([case_of(data, pe, seed)])} for seed in seeds}
    wanted = [pe for pe in pes if any(pe in cases for cases in due.values())]
    if not wanted:
        return
    given = {"folder": folder, "data": data, "toy": run.settings.rehearse}
    more = {"few": not run.settings.rehearse and run.settings.minutes > 0}
    made = prepare(run, given, more, wanted, until)
    for seed, cases in due.items():
        ready = [pe if pe in cases else None for pe in (made.pes if made else [])]
        run.left.extend(case for pe, case in cases.items() if pe not in ready)
        if made is None or not any(ready):
            continue
        left = until - time.monotonic()
        if seed and made.took > left:
            run.ledger.say(f"train: {data}: seed {seed} takes {made.took:.0f} s, and {max(0.0, left):.0f} s are left")
            run.left.extend(cases[pe] for pe in ready if pe)
        else:
            told = {**more, "epochs": made.epochs}
            train_seed(
                run, {**given, "seed": seed}, told, [cases[pe] if pe else None for pe in ready], made.took, until
            )


def prepare(run: Run, given: dict[str, Any], more: dict[str, Any], pes: list[str], until: float) -> Made | None:
    """Make images, compile the encodings and time an epoch; return None, and say why, if that leaves no time to train.

    Args:
        run: run of the command.
        given: folder, data and size of the problem.
        more: arguments of a trainer.
        pes: the encodings.
        until: the end of the time.
    """
    say = lambda why: run.ledger.say(f"train: {given['data']}: {why}")
    if time.monotonic() >= until:
        return say("no time was left")
    case = Case("train", f"{given['data']} | epochs", TASK.format("probe"))
    if not make_images(run, given, more, case, until):
        return say("no time was left when its images were made") if time.monotonic() >= until else None
    ready, asked = compiled(run, given, more, pes, until, say)
    if not any(ready):
        return None
    # All is compiled now: what is timed is what training repeats, all encodings beside each other.
    probe = lambda pe: ((TASK.format("probe"), {**given, **more, "pe": pe}), 240.0)
    answers = run.pool.together([probe(pe) if pe else None for pe in ready], until=until)
    epoch = slowest(answers, "epoch", len(run.pool.workers))
    ready = in_time(ready, answers)
    left = until - time.monotonic()
    if not any(ready) or left <= 0:
        return say("the time was over before one epoch was")
    known = run.ledger.lines.get((case.stage, case.name), {})
    most = FULL if epoch else 1  # 1 where all of them failed
    fitting = most if math.isinf(until) or not epoch else max(1, min(most, int((0.5 * left - TEST) / epoch)))
    epochs = known.get("epochs") or (1 if run.settings.rehearse else fitting)
    if not known:
        told = f"{epochs}, of {epoch:.2f} s for all encodings"
        run.ledger.add(case, {"outcome": "made", "epochs": epochs, "epoch": epoch, "message": told, "programs": asked})
    return Made(ready, epochs, epochs * epoch + TEST)


def make_images(run: Run, given: dict[str, Any], more: dict[str, Any], case: Case, until: float) -> bool:
    """Make the test images and the first epoch while the other processes start; return whether all are made."""
    from benchmarks.hardware.training import sizes_of

    sizes = sizes_of(run.settings.rehearse, more["few"])
    tests = [((TASK.format("make_tests"), {**given, "size": size}), 120.0) for size in reversed(sizes)]
    first = ((TASK.format("make_epoch"), {**given, "seed": 0, "epoch": 0}), 120.0)
    starts = [((TASK.format("ready"), {}), 120.0)] * (len(run.pool.workers) - len(tests) - 1)
    answers = run.pool.together([*tests, first, *starts], until=until)
    failed = [answer for answer in answers if answer is not None and answer["outcome"] != "made"]
    if failed and time.monotonic() < until:
        run.ledger.add(case, failed[0])
    return not failed and None not in answers


def compiled(
    run: Run, given: dict[str, Any], more: dict[str, Any], pes: Sequence[str], until: float, say: Callable[[str], None]
) -> tuple[list[str | None], dict[str, bool]]:
    """Compile the training program of every encoding.

    Returns:
        Each encoding in its place, None where it was not done in time; and whether each program was read, by name.
    """
    begun = time.monotonic()
    soon = begun + COMPILING * (until - begun)
    asks = [((TASK.format("compile_epoch"), {**given, **more, "pe": pe}), LONG) for pe in pes]
    answers = run.pool.together(asks, until=soon)
    ready = in_time(pes, answers)
    if None in ready:
        took, late = time.monotonic() - begun, [pe for pe in pes if pe not in ready]
        done = f"{len(pes) - len(late)} of {len(pes)} encodings compiled in {took:.0f} s"
        say(f"{done}; more --minutes are needed for {', '.join(late)}")
    return ready, {name: read for answer in answers if answer for name, read in answer.get("programs", {}).items()}


def in_time(pes: Sequence[str | None], answers: Sequence[dict[str, Any] | None]) -> list[str | None]:
    """Return each encoding that answered, in its place; one that failed did, and fails again when it trains."""
    return [pe if answer and answer["outcome"] != "hung" else None for pe, answer in zip(pes, answers, strict=True)]


def slowest(answers: Sequence[dict[str, Any] | None], name: str, workers: int) -> float:
    """Return the seconds of the worker that takes longest, which does every one of so many tasks."""
    seconds = [answer.get(name, 0.0) if answer else 0.0 for answer in answers]
    return max(sum(seconds[first::workers]) for first in range(min(workers, len(answers))))


def train_seed(
    run: Run,
    given: dict[str, Any],
    more: dict[str, Any],
    cases: list[Case | None],
    took: float,
    until: float,
) -> None:
    """Make the batches of a seed, and train the encodings that are due on them; then let go of the batches.

    Args:
        run: run of the command.
        given: folder, data, seed and size of the problem.
        more: arguments of a trainer, the epochs among them.
        cases: the encodings that are due, each in the place of the process that compiled it.
        took: seconds that a seed takes; one that takes ten minutes more than three times as long hangs.
        until: the end of the time.
    """
    due = [case for case in cases if case is not None]
    asks = [((TASK.format("make_epoch"), {**given, "epoch": n}), 120.0) for n in range(more["epochs"])]
    failed = [
        answer for answer in run.pool.together(asks, until=until) if answer is None or answer["outcome"] != "made"
    ]
    if failed:
        if failed[0] is None or time.monotonic() >= until:
            run.ledger.say(
                f"train: {given['data']}: no time was left when the batches of seed {given['seed']} were made"
            )
            run.left.extend(due)
        else:
            run.ledger.add(due[0], failed[0])
            run.left.extend(due[1:])
        return
    arguments = {**given, **more, "until": min(until, time.monotonic() + LONG)}
    task = lambda case: ((TASK.format("train"), {**arguments, "pe": pe_of(case)}), 600.0 + 3 * took)

    def done(number: int, answer: dict[str, Any]) -> None:
        case = cases[number]
        assert case is not None
        if answer["outcome"] == "late" or (answer["outcome"] == "hung" and time.monotonic() >= until):
            run.ledger.say(f"train: {case.name}: {answer['message']}")
            run.left.append(case)
        else:
            run.ledger.add(case, answer)

    answers = run.pool.together([task(case) if case else None for case in cases], done, until)
    run.left.extend(case for case, answer in zip(cases, answers, strict=True) if case and answer is None)
    for path in Path(given["folder"]).glob(f"{given['data']}-{given['seed']}-*.npz"):
        if given["seed"] or not path.name.endswith("-0-0.npz"):
            path.unlink()


def pe_of(case: Case) -> str:
    """Return the encoding of a case."""
    return case.name.split(" | ")[1]


def expected(settings: Settings, jobs: int) -> tuple[float, str]:
    """Return the seconds that the stage takes, and how they are known."""
    if settings.minutes:
        how = f"{COMPILING:.0%} of it at most to compile {len(ENCODINGS)} encodings, then what epochs fit; not measured"
        return SECONDS["train"] / 8 * settings.minutes, f"what is left of the time: {how}"
    work = len(DATA) * (90.0 + SEEDS * len(ENCODINGS) * (FULL * 0.31 + 5.0))
    recipe = f"{len(DATA)} data sets, {SEEDS} seeds, {len(ENCODINGS)} encodings of {FULL} epochs"
    return work, f"{recipe}, 0.3 s an epoch by estimate, not measured, {jobs} jobs"


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


def pes_of(keys: Mapping[tuple[str, ...], Any]) -> list[str]:
    """Return the encodings that have results, in order."""
    return list(dict.fromkeys(key[1] for key in keys))


def row(pe: str, seeds: list[dict[Any, float]], sizes: list[int]) -> str:
    """Return the row of an encoding: the mean of each size over the seeds that reached it."""
    scores = [{int(size): value for size, value in one.items()} for one in seeds]
    by_size = [[one[size] for one in scores if size in one] for size in sizes]
    cells = [f"{statistics.mean(values):.1f}" if values else "-" for values in by_size]
    return f"| {pe} | {len(seeds)} | {' | '.join(cells)} |"


STAGE = Stage(run, expected, table, ahead)
