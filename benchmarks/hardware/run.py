"""One call of the command: its settings, its time, and the cases of its stages."""

import math
import os
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

TUNED = ("measure", "sample")
"""Stages whose programs XLA tunes: a step of `train.dit` without it took four times as long on an H200."""

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
    """

    stages: Sequence[str]
    minutes: float
    out: Path
    rehearse: bool = False
    jobs: int = 0


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
        return [case for case in cases if (case.stage, case.name) not in self.ledger.found]

    def do(self, cases: Sequence[Case], until: float) -> None:
        """Do the due cases side by side; cases without time left are listed as not done."""
        self.left.extend(self.pool.run(self.due(cases), until, self.ledger.add))


class Stage(NamedTuple):
    """A stage.

    Attributes:
        run: `(run, until)` does it.
        expected: `(settings, jobs) -> (seconds on an H200, how they are known)`.
        table: `(lines of its cases) -> text`.
    """

    run: Callable[[Run, float], None]
    expected: Callable[[Settings, int], tuple[float, str]]
    table: Callable[[Mapping[str, dict[str, Any]]], str]


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
    whole = sum(SECONDS.get(name, 0.0) for name in {*settings.stages, *SHARED})
    share = SECONDS.get(stage, 0.0) / whole * 60 * settings.minutes
    return end if stage == settings.stages[-1] else min(end, now + share)


def scratch_folder() -> Path:
    """Return this user's folder for compiled programs and training batches, outside the results."""
    folder = Path(tempfile.gettempdir()) / f"pejax-hardware-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise ValueError(f"{folder} must be a folder of this user, got one of user {folder.stat().st_uid}")
    return folder


def environment(settings: Settings, scratch: Path, jobs: int, stage: str = "") -> dict[str, str]:
    """Return the environment of the processes of a stage: which device, their share of its memory, caches.

    What is measured is alone when it runs, so that it may take all of the memory, and XLA tunes it, as it tunes long
    training. Elsewhere XLA does not time its products, which would take longer than they save.
    """
    own = {
        "JAX_COMPILATION_CACHE_DIR": str(scratch / "programs"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"),
        "TRITON_CACHE_DIR": str(scratch / "triton"),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": f"{0.9 / (1 if stage == 'measure' else jobs):.3f}",
    }
    flags = QUICK if settings.rehearse else "" if stage in TUNED else UNTUNED
    own["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", flags)
    own["JAX_PLATFORMS"] = "cpu" if settings.rehearse else "cuda,cpu"  # the host computes what is right
    return {**os.environ, **own}


def make_pool(settings: Settings, stage: str, scratch: Path, found: Mapping[str, Any]) -> Pool:
    """Return the processes of a stage, not started yet.

    Args:
        settings: options of the command line.
        stage: stage that they work for.
        scratch: folder of caches and logs.
        found: facts of the device.
    """
    jobs = jobs_of(settings, found) if stage != "sample" else min(SAMPLERS, jobs_of(settings, found))
    prepare = ("benchmarks.hardware.device:ready", {}), 120.0
    logs = [scratch / f"log-{os.getpid()}-{number}.txt" for number in range(jobs)]
    return Pool([Worker(environment(settings, scratch, jobs, stage), log, prepare) for log in logs])


def jobs_of(settings: Settings, found: Mapping[str, Any]) -> int:
    """Return how many processes run side by side."""
    if settings.jobs:
        return settings.jobs
    return min(2, os.cpu_count() or 1) if settings.rehearse else side_by_side(found, MOST)


def first_answer(settings: Settings, scratch: Path) -> dict[str, Any]:
    """Return the facts of the device, from a process that ends."""
    asked = Worker(environment(settings, scratch, 1), scratch / f"log-{os.getpid()}-facts.txt")
    try:
        found = asked.ask("benchmarks.hardware.device:facts", {}, 120.0)
    finally:
        asked.end()
    if found["outcome"] != "made":
        nothing = {
            "platform": "",
            "versions": {},
            "driver": "",
            "memory": 0.0,
            "torch": "",
            "card": "",
            "capability": "",
        }
        return {**nothing, "problem": found["message"]}
    return found
