"""The training loop every trainer shares: steps, reports, checkpoints, and a clean way out."""

import json
import math
import signal
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import grain
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from tensorboardX import SummaryWriter

from train.checkpoint import Checkpoints
from train.mesh import put_batch, replicated, split_batch

Metrics = dict[str, Array]
Loss = Callable[[Any, Mapping[str, Array], Array], tuple[Array, Metrics]]
"""`(params, batch, key) -> (mean loss, sums over the batch)`; the sums hold `count`, how many units were summed."""


class Unit(NamedTuple):
    """What a loss counts: its name in the metrics and the short one for the terminal."""

    name: str
    short: str


IMAGES = Unit("images", "img")
TOKENS = Unit("tokens", "tok")


class TrainState(NamedTuple):
    """All that training changes; one pytree, one checkpoint.

    Attributes:
        params: of the model.
        opt: of the optimizer.
        step: steps taken.
        sums: of the metrics since the last report.
    """

    params: Any
    opt: Any
    step: Array
    sums: Metrics


def init_state(params: Any, optimizer: optax.GradientTransformation, names: tuple[str, ...]) -> TrainState:
    """Return the state before the first step; `names` are the sums that the loss reports, `count` among them."""
    sums = {name: jnp.zeros((), jnp.float32) for name in names}
    return TrainState(params, optimizer.init(params), jnp.zeros((), jnp.int32), sums)


def make_step(
    loss: Loss, optimizer: optax.GradientTransformation, seed: int, mesh: Mesh
) -> Callable[[TrainState, Any], TrainState]:
    """Return the jitted step `(state, batch) -> state`: state on every device and donated, batch split over them.

    What is drawn at random comes from `(seed, step)` alone, so that a restart draws the same.
    """

    def step(state: TrainState, batch: Any) -> TrainState:
        key = jax.random.fold_in(jax.random.split(jax.random.key(seed))[1], state.step)  # not a key of the weights
        grads, sums = jax.grad(loss, has_aux=True)(state.params, batch, key)
        with jax.numpy_dtype_promotion("standard"):  # optax multiplies floats by integer counts
            updates, opt = optimizer.update(grads, state.opt, state.params)
        total = jax.tree.map(jnp.add, state.sums, sums)
        return TrainState(optax.apply_updates(state.params, updates), opt, state.step + 1, total)

    whole = replicated(mesh)
    return jax.jit(step, donate_argnums=0, in_shardings=(whole, split_batch(mesh)), out_shardings=whole)


class Stop:
    """A request to stop, set by the first Ctrl-C or SIGTERM; the second one ends the process at once."""

    def __init__(self) -> None:
        self.signal = 0

    def __enter__(self) -> "Stop":
        self._before = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.signal = number
        for again in (signal.SIGINT, signal.SIGTERM):
            signal.signal(again, signal.SIG_DFL)


class Report:
    """Metrics as JSON lines and TensorBoard, and progress: a bar on a terminal, a line now and then elsewhere.

    Args:
        folder: of the run.
        step: where training starts; what an interrupted run reported beyond it is dropped.
        steps: where it ends.
        unit: of what is counted.
        console: of the user.
    """

    every_seconds = 15.0

    def __init__(self, folder: Path, step: int, steps: int, unit: Unit, console: Console) -> None:
        self.path = folder / "metrics.jsonl"
        self.path.write_text("".join(f"{line}\n" for line in lines_until(self.path, step)))
        self.board = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)
        self.steps, self.unit, self.console = steps, unit, console
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
        self.progress = Progress(TextColumn("training"), *columns, console=console, disable=not console.is_terminal)
        self.task = self.progress.add_task("", total=steps, completed=step)
        self.first = self.last = step
        self.begun = self.reported = self.printed = time.perf_counter()

    def __enter__(self) -> "Report":
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()
        self.board.close()

    def __call__(self, step: int, sums: Mapping[str, float], extra: Mapping[str, float]) -> None:
        """Report the means of the sums since the last report.

        Raises:
            FloatingPointError: the loss is not finite.
        """
        now = time.perf_counter()
        means = {name: float(total) / float(sums["count"]) for name, total in sums.items() if name != "count"}
        rate = float(sums["count"]) / (now - self.reported)
        self.write(step, {**means, **extra, f"{self.unit.name}_per_second": round(rate, 1)})
        if not math.isfinite(means["loss"]):
            raise FloatingPointError(f"the loss is {means['loss']} at step {step}; try a lower lr or a longer warmup")
        text = " · ".join(f"{name} {value:.3f}" for name, value in means.items())
        text = f"{text} · {rate:,.0f} {self.unit.short}/s"
        self.progress.update(self.task, completed=step, description=text)
        if self.progress.disable and (now - self.printed > self.every_seconds or step == self.steps):
            left = (now - self.begun) / (step - self.first) * (self.steps - step)
            self.console.print(f"step {step}/{self.steps} · {text} · {left:.0f} s left")
            self.printed = now
        self.reported = now

    def probe(self, step: int, values: Callable[[], Mapping[str, float]]) -> None:
        """Report what `values` measures; the time it takes is not the training's."""
        begun = time.perf_counter()
        self.write(step, values())
        self.reported += time.perf_counter() - begun

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Add one line to the metrics file, and its values to TensorBoard."""
        line = {"step": step, **values}
        with self.path.open("a") as lines:
            lines.write(json.dumps(line) + "\n")
        for name, value in line.items():
            self.board.add_scalar(f"train/{name}", value, step)


def lines_until(path: Path, step: int) -> list[str]:
    """Return the lines of a metrics file up to `step`, without one that was cut short."""
    lines = path.read_text().splitlines() if path.is_file() else []
    whole = [line for line in lines if line.startswith("{") and line.endswith("}")]
    return [line for line in whole if json.loads(line)["step"] <= step]


class Plan(NamedTuple):
    """When a run does what, in steps.

    Attributes:
        steps: the last one.
        stop_at: where to stop as if interrupted; 0 = nowhere.
        log_every: between reports.
        checkpoint_every: between checkpoints.
        record: stored in every checkpoint.
        unit: of what the loss counts.
        extra: `(step) -> values` to report beside the metrics, such as the learning rate.
        probe: `(params) -> values` to report by themselves; it changes nothing.
        probe_every: steps between probes; 0 = never.
    """

    steps: int
    stop_at: int
    log_every: int
    checkpoint_every: int
    record: dict[str, Any]
    unit: Unit
    extra: Callable[[int], dict[str, float]]
    probe: Callable[[Any], Mapping[str, float]] | None = None
    probe_every: int = 0


def run(
    step: Callable[[TrainState, Any], TrainState],
    state: TrainState,
    data: grain.DatasetIterator,
    plan: Plan,
    *,
    mesh: Mesh,
    checkpoints: Checkpoints,
    folder: Path,
    console: Console,
) -> tuple[TrainState, int, int]:
    """Train until the plan ends or somebody asks to stop; a checkpoint is whole on disk in both cases.

    Args:
        step: from `make_step`.
        state: on the devices; it is donated.
        data: batches of host arrays, at the place that belongs to the state.
        plan: when to do what.
        mesh: that the batches are split over.
        checkpoints: of the run.
        folder: of the run.
        console: of the user.

    Returns:
        The state, its step, and the number of the signal that stopped it, or 0.
    """
    at = int(state.step)
    clear = lambda sums: jax.tree.map(lambda leaf: jnp.zeros_like(leaf, device=leaf.sharding), sums)  # noqa: E731
    last = min(plan.steps, plan.stop_at or plan.steps)
    with Stop() as stop, Report(folder, at, plan.steps, plan.unit, console) as report:
        while at < last and not stop.signal:
            state = step(state, put_batch(next(data), mesh))
            at += 1
            if at % plan.log_every == 0 or at == plan.steps:
                report(at, jax.device_get(state.sums), plan.extra(at))
                state = state._replace(sums=clear(state.sums))
            if plan.probe is not None and plan.probe_every and at % plan.probe_every == 0:
                report.probe(at, partial(plan.probe, jax.block_until_ready(state.params)))
            if at % plan.checkpoint_every == 0 and at < last:
                checkpoints.save(at, state, data, plan.record)
        checkpoints.wait()
        if at not in checkpoints.steps():
            checkpoints.save(at, state, data, plan.record)
            checkpoints.wait()
    return state, at, stop.signal
