"""One call of the command: its settings, its time, and the cases of its stages."""

import math
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.hardware.device import side_by_side
from benchmarks.hardware.ledger import Ledger
from benchmarks.hardware.outcomes import Case
from benchmarks.hardware.pool import Pool, Worker

SECONDS = {"prove": 190.0, "measure": 170.0, "train": 120.0, "sample": 480.0}
"""Seconds of each stage out of eight minutes; of other times, as large a share. The last has what the others left.

The stage that samples takes eight minutes by itself, and is not among those that share them unless it is named.
"""

SOON, BEHIND = 45.0, 60.0
"""Seconds after which measuring begins, where programs are made ahead, and seconds left for the other proofs then."""

SHARED = ("prove", "measure", "train")
"""Stages of a call with a limit of time that names none."""

RESERVE = 6.0
"""Seconds at the end, for processes to end and tables to be printed."""

STARTS = 14.0
"""Seconds until processes side by side have imported JAX and taken an H200: what its proofs took beside their work."""

QUICK = "--xla_backend_optimization_level=0"
"""XLA's flags of a rehearsal: its programs run once, and most of its time goes into compiling them."""


UNTUNED = "--xla_gpu_autotune_level=0"
"""XLA's flags of what is not timed on a GPU."""

TUNED = ("sample",)
"""Stages whose programs XLA tunes: a step of `train.dit` without it took four times as long on an H200."""

TOGETHER = ("prove", "measure")
"""Stages that share their processes: those that have proved need not start again to measure."""

AUTOTUNED = "autotune.txt"
"""File beside the results, of what XLA chose when it tuned the steps; where it is there, XLA reads it."""

MOST = 15
"""Processes side by side: one for each encoding of the registry."""

SAMPLERS = 4
"""Processes side by side that sample: more of them would share the card and its memory too thinly."""


class Settings(NamedTuple):
    """The options of the command line.

    Attributes:
        stages: stages to run, in order.
        minutes: time for all stages; 0 = no limit.
        out: folder of the results.
        rehearse: whether to run on the CPU with toy sizes.
        jobs: processes side by side; 0 = as many as the card and the cores hold.
        programs: programs that were made ahead, `FOLDER:SHA256`, then their folder as a cache; empty = none.
        card: the absent card that programs are made for; empty = the device at hand.
        ahead: whether to make them, and no more.
        before: an earlier checkout whose ways are measured, too; empty = none.
    """

    stages: Sequence[str]
    minutes: float
    out: Path
    rehearse: bool = False
    jobs: int = 0
    programs: str = ""
    card: str = ""
    ahead: bool = False
    before: str = ""

    @property
    def turns(self) -> list[str]:
        """Stages in the order of their turns: with programs made ahead, measuring begins before all is proved."""
        again = self.programs and self.minutes and {"prove", "measure"} <= {*self.stages}
        return [*self.stages, "prove"] if again else [*self.stages]


class Run(NamedTuple):
    """The state that the stages share.

    Attributes:
        settings: options of the command line.
        pool: the processes.
        ledger: file of the results.
        scratch: folder of what need not be kept.
        left: cases that the time did not allow.
    """

    settings: Settings
    pool: Pool
    ledger: Ledger
    scratch: Path
    left: list[Case]

    def due(self, cases: Sequence[Case]) -> list[Case]:
        """Return the cases that no line tells of yet."""
        return [case for case in cases if (case.stage, case.name) not in self.ledger.lines]

    def do(self, cases: Sequence[Case], until: float) -> None:
        """Do the due cases side by side; cases without time left are listed as not done."""
        self.left.extend(self.pool.run(self.due(cases), until, self.ledger.add))


class Stage(NamedTuple):
    """A stage.

    Attributes:
        run: `(run, until)` does it.
        expected: `(settings, jobs) -> (seconds on an H200, how they are known)`.
        table: `(lines of its cases) -> text`.
        ahead: `(settings) -> cases that compile its programs ahead`, the most wanted first.
    """

    run: Callable[[Run, float], None]
    expected: Callable[[Settings, int], tuple[float, str]]
    table: Callable[[Mapping[str, dict[str, Any]]], str]
    ahead: Callable[[Settings], list[Case]] = lambda settings: []


def deadline(stage: str, settings: Settings, begun: float, now: float) -> float:
    """Return when a stage ends, of `time.monotonic`.

    Args:
        stage: one of the settings.
        settings: options of the command line.
        begun: when the command began.
        now: when the stage begins.
    """
    if not settings.minutes:
        return math.inf
    end = begun + 60 * settings.minutes - RESERVE
    seconds = sum(SECONDS.get(name, 0.0) for name in {*settings.stages, *SHARED})
    share = SECONDS.get(stage, 0.0) / seconds * 60 * settings.minutes
    if settings.turns != settings.stages and stage == "prove":
        return min(end, begun + SOON) if now < begun + SOON else end
    if stage != settings.turns[-1] and stage == settings.stages[-1]:
        return max(now, end - BEHIND)
    return end if stage == settings.turns[-1] else min(end, now + share)


def scratch_folder() -> Path:
    """Return this user's folder for compiled programs and training batches, outside the results."""
    folder = Path(tempfile.gettempdir()) / f"pejax-hardware-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise ValueError(f"{folder} must be a folder of this user, got one of user {folder.stat().st_uid}")
    return folder


def environment(settings: Settings, scratch: Path, jobs: int, stage: str = "", tuned: str = "") -> dict[str, str]:
    """Return the environment of the processes of a stage: which device, their share of its memory, caches.

    What is measured is alone when it runs, so that it may take all of the memory. XLA tunes long training, and the
    steps that are measured. Elsewhere it does not time its products, which would take longer than they save.

    Args:
        settings: options of the command line.
        scratch: folder of caches.
        jobs: processes side by side.
        stage: the stage.
        tuned: file that gets what XLA chooses when it tunes.
    """
    variables = {
        "JAX_COMPILATION_CACHE_DIR": settings.programs or str((scratch / "programs").absolute()),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"),
        "TRITON_CACHE_DIR": str(scratch / "triton"),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": f"{0.9 / (1 if stage in TOGETHER else jobs):.3f}",
        "JAX_HLO_SOURCE_FILE_CANONICALIZATION_REGEX": ".*",  # where the source lies is no part of a program
        "JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0",
    }
    flags = [QUICK if settings.rehearse else "" if stage in TUNED else UNTUNED]
    if tuned and not settings.rehearse:
        flags += [f"--xla_gpu_dump_autotune_results_to={tuned}"]
        before = settings.out / AUTOTUNED
        flags += [f"--xla_gpu_load_autotune_results_from={before.absolute()}"] if before.exists() else []
    variables["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", " ".join(flags))
    on_host = settings.rehearse or settings.ahead
    variables["JAX_PLATFORMS"] = "cpu" if on_host else "cuda,cpu"  # the host computes what is right
    if settings.rehearse:  # JAX's interpreter of Mosaic GPU needs four threads
        variables["PJRT_NPROC"] = os.environ.get("PJRT_NPROC", "4")
    return {**os.environ, **variables}


def make_pool(settings: Settings, stage: str, scratch: Path, machine: Mapping[str, Any]) -> Pool:
    """Return the processes of a stage, not started yet.

    Args:
        settings: options of the command line.
        stage: stage that they work for.
        scratch: folder of caches and logs.
        machine: facts of the device.
    """
    jobs = jobs_of(settings, machine) if stage != "sample" else min(SAMPLERS, jobs_of(settings, machine))
    named = settings.ahead or bool(settings.programs)

    def worker(number: str, checkout: str, before: Worker | None = None) -> Worker:
        prepare = "benchmarks.hardware.device:ready", {"card": settings.card, "named": named, "before": checkout}
        tuned = (scratch / f"tuned-{os.getpid()}-{number}.txt").absolute()  # the process has a folder of its own
        variables = environment(settings, scratch, jobs, stage, str(tuned) if stage in TOGETHER else "")
        return Worker(variables, scratch / f"log-{os.getpid()}-{number}.txt", (prepare, 120.0), before)

    earlier = [worker(f"{n}-before", settings.before) if settings.before else None for n in range(jobs)]
    return Pool([worker(f"{n}", "", before) for n, before in enumerate(earlier)])


def keep_tuned(settings: Settings, scratch: Path) -> None:
    """Keep what XLA chose when it tuned, beside the results: the largest file of a process.

    A process writes what it read, too. Steps with different encodings have the same products, and XLA refuses a file
    that has two choices for one of them: so files are not merged.
    """
    files = sorted(scratch.glob(f"tuned-{os.getpid()}-*.txt"), key=lambda path: path.stat().st_size)
    if files:
        shutil.copyfile(files[-1], settings.out / AUTOTUNED)
    for path in files:
        path.unlink()


def jobs_of(settings: Settings, machine: Mapping[str, Any]) -> int:
    """Return how many processes run side by side."""
    if settings.jobs:
        return settings.jobs
    if settings.rehearse or settings.ahead:
        return min(2, os.cpu_count() or 1) if settings.rehearse else os.cpu_count() or 1
    return side_by_side(machine, MOST)


def first_answer(settings: Settings, scratch: Path) -> dict[str, Any]:
    """Return the facts of the device, from a process that ends."""
    asked = Worker(environment(settings, scratch, 1), scratch / f"log-{os.getpid()}-facts.txt")
    try:
        answer = asked.ask("benchmarks.hardware.device:facts", {}, 120.0)
    finally:
        asked.end()
    if answer["outcome"] != "made":
        nothing = {
            "platform": "",
            "versions": {},
            "driver": "",
            "memory": 0.0,
            "torch": "",
            "card": "",
            "capability": "",
        }
        return {**nothing, "problem": answer["message"]}
    return answer
