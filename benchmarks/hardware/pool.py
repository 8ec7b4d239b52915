"""Processes side by side that do cases: one that crashes, hangs or runs out of memory ends its case and no other."""

import contextlib
import json
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.hardware.outcomes import BAD, BEFORE, Case

ROOT = Path(__file__).parents[2]

TAIL = 2000
"""Bytes of what a process printed that are kept of a case that failed."""

Task = tuple[str, Mapping[str, Any]]
"""`module:function`, and its arguments."""


class Worker:
    """A process that is started when it is first asked, and anew after a failure.

    Args:
        environment: environment variables of the process.
        log: file that gets what it prints.
        prepare: what it does first, with its limit in seconds. None = nothing.
        before: does the ways of an earlier checkout in its place. None = there are no such ways.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        log: Path,
        prepare: tuple[Task, float] | None = None,
        before: "Worker | None" = None,
    ) -> None:
        self.environment, self.log, self.prepare, self.before = environment, log, prepare, before
        self.process: subprocess.Popen[bytes] | None = None
        self._left = b""

    def ask(self, task: str, arguments: Mapping[str, Any], limit: float) -> dict[str, Any]:
        """Return the result of a task, or its outcome; after a failure, with the end of its output."""
        if self.before is not None and str(arguments.get("way")).startswith(BEFORE):
            return self.before.ask(task, arguments, limit)
        if self.process is None:
            failure = self._start()
            if failure:
                return failure
        answer = self._ask(task, arguments, limit)
        return self._failed(answer) if answer["outcome"] in BAD else answer

    def kill(self) -> None:
        """Kill the process and all that it started; whoever waits for its answer is told that it crashed."""
        process = self.process
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def end(self) -> None:
        """End the process, and all that it started."""
        self.kill()
        process, self.process, self._left = self.process, None, b""
        if process is not None:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()

    def _start(self) -> dict[str, Any] | None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.hardware.worker"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=ROOT, env=dict(self.environment),
                start_new_session=True,
            )  # fmt: skip
        if self.prepare is None:
            return None
        answer = self._ask(*self.prepare[0], self.prepare[1])
        return {**self._failed(answer), "message": f"did not start: {answer['message']}"} if _bad(answer) else None

    def _failed(self, answer: dict[str, Any]) -> dict[str, Any]:
        self.end()  # a device that failed once is not trusted, nor is its memory
        with self.log.open("rb") as log:
            log.seek(max(self._begun, log.seek(0, os.SEEK_END) - TAIL))
            return {**answer, "log": log.read().decode(errors="replace")}

    def _ask(self, task: str, arguments: Mapping[str, Any], limit: float) -> dict[str, Any]:
        assert self.process is not None
        assert self.process.stdin is not None
        self._begun = self.log.stat().st_size
        try:
            self.process.stdin.write(json.dumps({"task": task, "arguments": arguments}).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return {"outcome": "crashed", "message": self._how()}
        return self._answer(limit)

    def _answer(self, limit: float) -> dict[str, Any]:
        assert self.process is not None
        assert self.process.stdout is not None
        pipe, until = self.process.stdout.fileno(), time.monotonic() + limit
        while b"\n" not in self._left:
            if not select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
                return {"outcome": "hung", "message": f"no answer in {limit:.0f} s"}
            part = os.read(pipe, 2**16)
            if not part:
                return {"outcome": "crashed", "message": self._how()}
            self._left += part
        line, _, self._left = self._left.partition(b"\n")
        return json.loads(line)

    def _how(self) -> str:
        process = self.process
        if process is None:
            return "the process was ended"
        try:
            status = process.wait(5)
        except subprocess.TimeoutExpired:
            return "the process stopped answering"
        return (
            f"the process ended by {signal.Signals(-status).name}" if status < 0 else f"it ended with status {status}"
        )


def _bad(answer: Mapping[str, Any]) -> bool:
    return answer["outcome"] in (*BAD, "missing")


class Pool:
    """Workers that take cases in order.

    Args:
        workers: workers of the pool.
    """

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.workers = workers
        self.processes = [*workers, *(worker.before for worker in workers if worker.before is not None)]
        self.ended = False

    def run(self, cases: Iterable[Case], until: float, done: Callable[[Case, dict[str, Any]], None]) -> list[Case]:
        """Do the cases side by side; return the ones without time left.

        Args:
            cases: cases, in the order of their starts.
            until: the end of the time, of `time.monotonic`.
            done: told each case and what became of it, one at a time.
        """
        waiting, left, lock = list(cases), [], threading.Lock()

        def serve(worker: Worker) -> None:
            while True:
                with lock:
                    if not waiting or self.ended or time.monotonic() >= until:
                        return
                    case = waiting.pop(0)
                answer = worker.ask(case.task, case.arguments, min(case.limit, max(1.0, until - time.monotonic())))
                with lock:
                    cut = answer["outcome"] == "hung" and time.monotonic() >= until
                    if cut or self.ended:
                        left.append(case)
                    else:
                        done(case, answer)

        self._each(serve)
        return left + waiting

    def together(
        self,
        asks: Sequence[tuple[Task, float] | None],
        done: Callable[[int, dict[str, Any]], None] = lambda *_: None,
        until: float = math.inf,
    ) -> list[dict[str, Any] | None]:
        """Do tasks side by side; task i is done by worker i modulo their number, which may hold earlier results.

        Args:
            asks: the tasks, each with its limit in seconds; None = nothing in this place.
            done: told the number of each task and what became of it, one at a time.
            until: the end of the time, of `time.monotonic`. Tasks are cut then, and none begins later.

        Returns:
            What became of each task; None where there is none, or where its time was over before it began.
        """
        answers: list[Any] = [None] * len(asks)
        lock = threading.Lock()

        def serve(worker: Worker) -> None:
            for number in range(self.workers.index(worker), len(asks), len(self.workers)):
                asked, left = asks[number], until - time.monotonic()
                if asked is None or left <= 0:
                    continue
                (task, arguments), limit = asked
                answers[number] = worker.ask(task, arguments, min(limit, left))
                with lock:
                    if not self.ended:
                        done(number, answers[number])

        self._each(serve)
        return answers

    def worker_of(self, number: int) -> Worker:
        """Return the worker that does task `number` in `together`."""
        return self.workers[number % len(self.workers)]

    def end(self) -> None:
        """End all processes."""
        for worker in self.processes:
            worker.end()

    def _each(self, serve: Callable[[Worker], None]) -> None:
        with ThreadPoolExecutor(len(self.workers)) as threads:
            running = [threads.submit(serve, worker) for worker in self.workers]
            try:
                for one in running:
                    one.result()
            except BaseException:  # Ctrl-C, too: the threads wait for processes that nobody asks any more
                self.ended = True
                for worker in self.processes:
                    worker.kill()
                raise
