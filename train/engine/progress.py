"""Reports of a run: metrics as JSON lines and in TensorBoard, progress on the terminal."""

import hashlib
import json
import math
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from train.devices.hosts import is_main_process
from train.engine.files import appended_file, parse_object, read_text, write_atomic
from train.engine.heartbeat import EVERY_SECONDS, Heartbeat, so_far


class Unit(NamedTuple):
    """The unit that a loss is averaged over: its name in the metrics, and a short name for the terminal."""

    name: str
    short: str


IMAGES = Unit("images", "img")
VIDEOS = Unit("videos", "vid")
TOKENS = Unit("tokens", "tok")

SEALED = re.compile(r'(\{.*), "seal": (\d{1,16})\}')
"""A line of a metrics file: its content without the closing brace, and its seal."""

COMPILING = "compiling the training step"


class Progressed(NamedTuple):
    """A line of progress, as it is printed where there is no terminal.

    Attributes:
        where: "step 50/900", "evaluating", or what comes before the first step.
        details: losses and speeds, or what is evaluated, or the time so far.
        seconds: time left of training, or of the evaluation; NaN = unknown.
    """

    where: str
    details: tuple[str, ...]
    seconds: float

    def __str__(self) -> str:
        ending = () if math.isnan(self.seconds) else (f"{self.seconds:.0f} s left",)
        return " · ".join((self.where, *self.details, *ending))

    @property
    def short(self) -> str:
        """The line with the first of the details alone."""
        return str(self._replace(details=self.details[:1]))


def last_progress(text: str) -> Progressed | None:
    """Return the last line of progress in what a program printed."""
    where = rf"step \d+/\d+|evaluating|preparing|{COMPILING}|writing the results"
    matches = re.findall(rf"^({where}) · (.*?)(?: · (\d+) s left)?$", text, re.MULTILINE)
    if not matches:
        return None
    where, details, seconds = matches[-1]
    return Progressed(where, tuple(details.split(" · ")), float(seconds or "nan"))


class Report:
    """Writes metrics as JSON lines and to TensorBoard, and shows progress: a bar on a terminal, else occasional lines.

    Attributes:
        current: number of the last step that was begun, set by the training loop.

    Args:
        folder: run folder.
        step: first step of training; later metrics of an interrupted run are deleted.
        steps: number of the last step.
        unit: unit that the loss counts.
        peak_seconds: time of a step at the peak FLOP/s of the devices; 0 = unknown.
    """

    def __init__(
        self, folder: Path, step: int, steps: int, unit: Unit, console: Console, peak_seconds: float = 0.0
    ) -> None:
        self.path, self.board = folder / "metrics.jsonl", None
        if is_main_process():
            from tensorboardX import SummaryWriter  # a model alone does not need it

            kept = lines_until(self.path, step)
            write_atomic(self.path, "".join(f"{line}\n" for line in kept))
            self.seal = last_seal(kept)
            # An unbounded queue: with a bound, writing would wait forever for a thread that a full disk has ended.
            suffix = f".{secrets.token_hex(4)}"  # nobody can plant a link under a name that is not known before
            board = f"{folder / 'tensorboard'}"
            self.board = SummaryWriter(board, purge_step=step + 1, max_queue=0, filename_suffix=suffix)
        self.steps, self.unit, self.console, self.peak_seconds = steps, unit, console, peak_seconds
        text = TextColumn("{task.description}", markup=False)
        columns = (BarColumn(), MofNCompleteColumn(), text, TimeRemainingColumn())
        self.progress = Progress(TextColumn("training"), *columns, console=console, disable=not console.is_terminal)
        self.task = self.progress.add_task(COMPILING, total=steps, completed=step)
        self.current = self.first = self.last = step
        self.compiled = False
        self.shown: tuple[str, ...] = ()  # losses and speeds of the last report
        self.heartbeat = Heartbeat(console, self._now)
        self.begun = self.reported = self.printed = time.perf_counter()

    def __enter__(self) -> "Report":
        self.progress.start()
        if self.progress.disable and self.first < self.steps:
            self.console.print(f"{COMPILING} ...")
        self.heartbeat.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.heartbeat.__exit__()
        self.progress.stop()
        if self.board is not None:
            self.board.close()

    def __call__(self, step: int, sums: Mapping[str, float], extra: Mapping[str, float]) -> None:
        """Report the means of the metrics since the last report.

        Args:
            step: number of the last step.
            sums: sums of the metrics; `count` is the number of units.
            extra: further values for the metrics file and TensorBoard, not shown on the terminal.
        """
        now = time.perf_counter()
        means = {name: float(total) / float(sums["count"]) for name, total in sums.items() if name != "count"}
        seconds = (now - self.reported) / (step - self.last)
        rate = float(sums["count"]) / (now - self.reported)
        speed = {f"{self.unit.name}_per_second": round(rate, 1), "step_seconds": seconds}
        text = [*(f"{name} {value:.3f}" for name, value in means.items()), f"{rate:,.0f} {self.unit.short}/s"]
        if self.peak_seconds:
            speed["peak_share"] = self.peak_seconds / seconds
            text.append(f"{speed['peak_share']:.1%} of peak")
        self.write(step, {**means, **extra, **speed})
        self.progress.update(self.task, completed=step, description=" · ".join(text))
        if self.progress.disable and (now - self.printed > EVERY_SECONDS or step == self.steps):
            self.console.print(str(Progressed(f"step {step}/{self.steps}", tuple(text), self._left(step, now))))
            self.printed = now
            self.heartbeat.rest()
        self.shown = tuple(text)
        if not self.compiled:  # the time until the first report has the compilation in it
            self.begun, self.first, self.compiled = now, step, True
        self.reported, self.last = now, step

    def _now(self) -> str:
        """Return a line on the step under way, for the time between two reports."""
        spent = so_far(time.perf_counter() - self.begun)
        if self.current == self.first and not self.compiled:
            return str(Progressed(COMPILING, (spent,), math.nan))
        remaining_seconds = self._left(self.current, time.perf_counter())
        return str(Progressed(f"step {self.current}/{self.steps}", self.shown or (spent,), remaining_seconds))

    def _left(self, step: int, now: float) -> float:
        """Return the seconds that training still takes by the pace so far; nan as long as compilation is in it."""
        if not self.compiled or step == self.first:
            return math.nan
        return (now - self.begun) / (step - self.first) * (self.steps - step)

    def probe(self, step: int, values: Callable[[], Mapping[str, float]]) -> None:
        """Report the values that `values()` measures; its time does not count as training time."""
        begun = time.perf_counter()
        self.write(step, values())
        self.reported += time.perf_counter() - begun

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Add one line to the metrics file and its values to TensorBoard, in the first process only.

        Raises:
            OSError: one of the two cannot be written.
        """
        if self.board is None:
            return
        writer: Any = self.board.file_writer
        if not writer.event_writer._worker.is_alive():
            raise OSError(
                f"{self.path.parent / 'tensorboard'} can no longer be written: see the error of its writer above"
            )
        line = {"step": step, **values}
        text, self.seal = sealed(line, self.seal)
        with appended_file(self.path) as lines:
            lines.write(f"{text}\n".encode())
        for name, value in line.items():
            self.board.add_scalar(f"train/{name}", value, step)


class Evaluating:
    """Shows the progress of an evaluation and the time left: a bar on a terminal, else occasional lines.

    Args:
        total: amount of work, in a unit whose time is about constant.
    """

    def __init__(self, console: Console, total: float) -> None:
        text = TextColumn("{task.description}", markup=False)
        columns = (BarColumn(), TaskProgressColumn(), text, TimeRemainingColumn())
        self.progress = Progress(
            TextColumn("evaluating"), *columns, console=console, transient=True, disable=not console.is_terminal
        )
        self.task = self.progress.add_task("compiling", total=total)
        self.console, self.total, self.done, self.current = console, total, 0.0, "compiling"
        self.begun = self.printed = time.perf_counter()
        self.heartbeat = Heartbeat(console, self._now)

    def __enter__(self) -> "Evaluating":
        self.progress.start()
        if self.progress.disable:
            self.console.print(str(Progressed("evaluating", (self.current,), math.nan)))
        self.heartbeat.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.heartbeat.__exit__()
        self.progress.stop()

    def _now(self) -> str:
        """Return a line on what is finished, for the time between two reports."""
        spent = time.perf_counter() - self.begun
        if not self.done:
            return str(Progressed("evaluating", (self.current, so_far(spent)), math.nan))
        remaining_seconds = spent * (self.total / self.done - 1)
        return str(Progressed("evaluating", (self.current, f"{self.done / self.total:.0%}"), remaining_seconds))

    def __call__(self, work: float, current: str) -> None:
        """Report an amount of finished work, and its subject, such as "44 px"."""
        self.done, self.current, now = self.done + work, current, time.perf_counter()
        self.progress.update(self.task, completed=self.done, description=current)
        if self.progress.disable and now - self.printed > EVERY_SECONDS:
            self.console.print(self._now())
            self.printed = now
            self.heartbeat.rest()


def complete_lines(path: Path, most: int | None = None) -> list[str]:
    """Return the complete lines of a metrics file of at most `most` bytes; none without the file.

    Raises:
        ValueError: it is no file of text, or a larger one.
    """
    return [line for line in _lines(path, most) if _is_complete(line)]


def _lines(path: Path, most: int | None) -> list[str]:
    try:
        return read_text(path, most).splitlines()
    except FileNotFoundError:
        return []


def _is_complete(line: str) -> bool:
    return line.startswith("{") and line.endswith("}")


def sealed(line: Mapping[str, Any], before: int) -> tuple[str, int]:
    """Return a line of a metrics file, and its seal, which is the last entry of it.

    The seal is a digest of the line and of the seal before it, so that a line that is changed, added or missing is
    noticed, and a process that is killed leaves what it has written.

    Args:
        line: content of the line.
        before: seal of the line before it; 0 = it is the first.
    """
    content = json.dumps(line)
    seal = _seal(content, before)
    return f'{content[:-1]}, "seal": {seal}}}', seal


def _seal(content: str, before: int) -> int:
    """Return 52 bits, an integer that is exact in every reader of JSON."""
    return int(hashlib.sha256(f"{before} {content}".encode()).hexdigest()[:13], 16)


def _parts(line: str) -> tuple[str, int | None]:
    """Return the content of a line of a metrics file and its seal; None = it has none, as in runs of 0.3.0."""
    parts = SEALED.fullmatch(line)
    return (f"{parts[1]}}}", int(parts[2])) if parts else (line, None)


def last_seal(lines: Iterable[str]) -> int:
    """Return the seal of the last of the lines of a metrics file; 0 = there is none."""
    seal = 0
    for line in lines:
        seal = _seal(_parts(line)[0], seal)
    return seal


def lines_until(path: Path, step: int) -> list[str]:
    """Return the complete lines of a metrics file up to `step`.

    Raises:
        ValueError: raised by `read_metrics`.
    """
    return [
        line for line, values in zip(complete_lines(path), read_metrics(path), strict=True) if values["step"] <= step
    ]


def read_metrics(path: Path, most: int | None = None, *, ended: bool = False) -> list[dict[str, Any]]:
    """Return the content of the complete lines of a metrics file of at most `most` bytes.

    Args:
        path: path of the file.
        most: most bytes of it.
        ended: the run has ended, so that every line must be complete.

    Raises:
        ValueError: a line is not one that a run writes, or has changed since.
    """
    records, seal, seals = [], 0, False
    for line in _lines(path, most):
        if not _is_complete(line):
            if ended and line:
                raise ValueError(f"a line of {path} must be complete, got a part of one")
            continue
        content, stored = _parts(line)
        seal, seals = _seal(content, seal), seals or stored is not None
        if seals and stored != seal:
            raise ValueError(f"a line of {path}, or the one before it, has changed since it was written")
        values = parse_object(content, f"a line of {path}")
        kinds = {type(value) for value in values.values()}
        if not kinds <= {int, float} or type(values.get("step")) is not int or values["step"] < 0:
            raise ValueError(f"a line of {path} must have a step and numbers, got other values")
        records.append(values)
    return records
