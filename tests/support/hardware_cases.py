"""What a process is asked in tests of `benchmarks.hardware`: what is right, wrong, or must not end the others."""

import os
import time
from typing import Any

from benchmarks.hardware.outcomes import verdict

HELD: list[str] = []


def right() -> dict[str, Any]:
    """Return a proof that holds."""
    return verdict({"output": 1e-7}, 1e-5)


def nan() -> dict[str, Any]:
    """Return a proof of something that is not a number."""
    return verdict({"output": 1e-7, "d_q": float("nan")}, 1e-5)


def hang() -> dict[str, Any]:
    """Take too long."""
    time.sleep(60)
    return right()


def fill() -> dict[str, Any]:
    """Run out of memory as XLA does."""
    raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.")


def die() -> dict[str, Any]:
    """End the process as a kernel that is killed does, after a word on standard output."""
    print("illegal memory access")
    os.kill(os.getpid(), 9)
    return right()


def refuse() -> dict[str, Any]:
    """Refuse."""
    raise NotImplementedError("fused kernels take bfloat16, or float16 without a bias")


def late(**settings: Any) -> dict[str, Any]:
    """Have no time left."""
    return {"outcome": "late", "message": f"{settings['pe']}: a step takes 9 ms"}


def hold(what: str) -> dict[str, Any]:
    """Keep something, and return all that is kept."""
    HELD.append(what)
    return {"outcome": "made", "held": list(HELD), "process": os.getpid()}


def keep(way: str) -> dict[str, Any]:
    """Keep the name of a way, and return all that are kept."""
    return hold(way)


def compile() -> dict[str, Any]:
    """Ask for a program that is in the cache."""
    return {"outcome": "made", "programs": {f"jit_step-{'0' * 64}": False}}


class AnsweringWorker:
    """A worker whose answers are those of a function of `(name of the task, arguments)`."""

    process = object()

    def __init__(self, answer):
        self.answer = answer

    def ask(self, task, arguments, limit):
        return self.answer(task.partition(":")[2], arguments)


class AnsweringPool:
    """As many workers, which answer at once."""

    def __init__(self, count, answer):
        self.workers = [AnsweringWorker(answer) for _ in range(count)]
        self.asked = []

    def run(self, cases, until, done):
        for case in cases:
            self.asked.append(case.task.partition(":")[2])
            done(case, self.workers[0].ask(case.task, case.arguments, case.limit))
        return []

    def together(self, asks, done=lambda *_: None, until=float("inf")):
        result = []
        for number, asked in enumerate(asks):
            if asked is None or time.monotonic() >= until:
                result.append(None)
                continue
            (task, arguments), limit = asked
            self.asked.append(task.partition(":")[2])
            result.append(self.workers[number % len(self.workers)].ask(task, arguments, limit))
            done(number, result[-1])
        return result

    def worker_of(self, number):
        return self.workers[number % len(self.workers)]
