"""What a run says while it trains: metrics as JSON lines and TensorBoard, progress on the terminal."""

import json
import time
from collections.abc import Callable, Mapping
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
from tensorboardX import SummaryWriter

from train.devices.hosts import first
from train.engine.files import write_whole


class Unit(NamedTuple):
    """What a loss counts: its name in the metrics and the short one for the terminal."""

    name: str
    short: str


IMAGES = Unit("images", "img")
TOKENS = Unit("tokens", "tok")

EVERY_SECONDS = 15.0
"""Seconds between two lines of progress where there is no terminal to show a bar."""


class Report:
    """Metrics as JSON lines and TensorBoard, and progress: a bar on a terminal, a line now and then elsewhere.

    Args:
        folder: of the run.
        step: where training starts; what an interrupted run reported beyond it is dropped.
        steps: where it ends.
        unit: of what is counted.
        console: of the user.
        peak_seconds: what a step would take at the devices' peak; 0 = not known.
    """

    def __init__(
        self, folder: Path, step: int, steps: int, unit: Unit, console: Console, peak_seconds: float = 0.0
    ) -> None:
        self.path, self.board = folder / "metrics.jsonl", None
        if first():
            write_whole(self.path, "".join(f"{line}\n" for line in lines_until(self.path, step)))
            # Of any length: with a bound, writing would wait for ever for a thread that a full disk has ended.
            self.board = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1, max_queue=0)
        self.steps, self.unit, self.console, self.peak_seconds = steps, unit, console, peak_seconds
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
        self.progress = Progress(TextColumn("training"), *columns, console=console, disable=not console.is_terminal)
        self.task = self.progress.add_task("compiling the first step", total=steps, completed=step)
        self.first = self.last = step
        self.begun = self.reported = self.printed = time.perf_counter()

    def __enter__(self) -> "Report":
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()
        if self.board is not None:
            self.board.close()

    def __call__(self, step: int, sums: Mapping[str, float], extra: Mapping[str, float]) -> None:
        """Report the means of the sums since the last report.

        Args:
            step: the last one taken.
            sums: of the metrics; `count` is of units.
            extra: values to report beside them; the terminal does not show them.
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
            left = (now - self.begun) / (step - self.first) * (self.steps - step)
            self.console.print(f"step {step}/{self.steps} · {' · '.join(text)} · {left:.0f} s left")
            self.printed = now
        self.reported, self.last = now, step

    def probe(self, step: int, values: Callable[[], Mapping[str, float]]) -> None:
        """Report what `values` measures; the time it takes is not the training's."""
        begun = time.perf_counter()
        self.write(step, values())
        self.reported += time.perf_counter() - begun

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Add one line to the metrics file, and its values to TensorBoard; the first process does it for all.

        Raises:
            OSError: one of them cannot be written.
        """
        if self.board is None:
            return
        writer: Any = self.board.file_writer
        if not writer.event_writer._worker.is_alive():
            raise OSError(f"{self.path.parent / 'tensorboard'} cannot be written any more: its writer said why")
        line = {"step": step, **values}
        with self.path.open("a") as lines:
            lines.write(json.dumps(line) + "\n")
        for name, value in line.items():
            self.board.add_scalar(f"train/{name}", value, step)


class Evaluating:
    """Progress of an evaluation with the time left: a bar on a terminal, a line now and then elsewhere.

    Args:
        console: of the user.
        total: work to do, in a unit that takes about the same time in every part.
    """

    def __init__(self, console: Console, total: float) -> None:
        columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
        self.progress = Progress(
            TextColumn("evaluating"), *columns, console=console, transient=True, disable=not console.is_terminal
        )
        self.task = self.progress.add_task("compiling", total=total)
        self.console, self.total, self.done = console, total, 0.0
        self.begun = self.printed = time.perf_counter()

    def __enter__(self) -> "Evaluating":
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def __call__(self, work: float, place: str) -> None:
        """Report work that is done, and where the evaluation is, such as "44 px"."""
        self.done, now = self.done + work, time.perf_counter()
        self.progress.update(self.task, completed=self.done, description=place)
        if self.progress.disable and now - self.printed > EVERY_SECONDS:
            left = (now - self.begun) * (self.total / self.done - 1)
            self.console.print(f"evaluating · {place} · {self.done / self.total:.0%} · {left:.0f} s left")
            self.printed = now


def whole_lines(path: Path) -> list[str]:
    """Return the lines of a metrics file, none if there is no file, without one that was cut short."""
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    return [line for line in lines if line.startswith("{") and line.endswith("}")]


def lines_until(path: Path, step: int) -> list[str]:
    """Return the whole lines of a metrics file up to `step`.

    Raises:
        ValueError: a line is none of a run.
    """
    return [line for line, values in zip(whole_lines(path), read_metrics(path), strict=True) if values["step"] <= step]


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return what the whole lines of a metrics file hold.

    Raises:
        ValueError: a line is none of a run.
    """
    found = []
    for line in whole_lines(path):
        try:
            found.append(json.loads(line))
        except ValueError:
            found.append({})
        if not all(isinstance(value, int | float) for value in found[-1].values()) or "step" not in found[-1]:
            raise ValueError(f"a line of {path} must be JSON with a step and numbers, got {line[:40]!r}")
    return found
