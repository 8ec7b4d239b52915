"""The training loop every trainer shares: steps, reports, checkpoints, and a clean way out."""

import json
import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.experimental import multihost_utils
from jax.sharding import Mesh
from jaxtyping import Array
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from tensorboardX import SummaryWriter

from train.checkpoint import Checkpoints
from train.hosts import first
from train.mesh import parameter_shardings, replicated, split_batch

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
        average: of the parameters over the steps, `decay · average + (1 - decay) · params`; None = not kept.
        step: steps taken.
        sums: of the metrics since the last report.
    """

    params: Any
    opt: Any
    average: Any
    step: Array
    sums: Metrics


class Recipe(NamedTuple):
    """What happens in a step, the loss apart.

    Attributes:
        optimizer: of the parameters.
        sums: names of what the loss adds up.
        seed: of what is drawn at random: it comes from `(seed, step)` alone, so that a restart draws the same.
        accumulate: parts that a batch is computed in, one after another, for memory.
        average: decay of the average of the parameters; 0 = none is kept.
    """

    optimizer: optax.GradientTransformation
    sums: tuple[str, ...]
    seed: int = 0
    accumulate: int = 1
    average: float = 0.0


def init_state(params: Any, recipe: Recipe) -> TrainState:
    """Return the state before the first step."""
    sums = {name: jnp.zeros((), jnp.float32) for name in recipe.sums}
    average = jax.tree.map(jnp.copy, params) if recipe.average else None
    return TrainState(params, recipe.optimizer.init(params), average, jnp.zeros((), jnp.int32), sums)


def state_shardings(split: Any, recipe: Recipe, mesh: Mesh) -> Any:
    """Return how the state is split over a mesh, as its own tree: what belongs to a parameter as it, the rest not.

    Args:
        split: a `Split`, of the model.
        recipe: of the step.
        mesh: the devices.
    """
    whole, params = replicated(mesh), parameter_shardings(split.variables, mesh)
    state = jax.eval_shape(partial(init_state, recipe=recipe), split.shapes)
    opt = optax.tree.map_params(
        recipe.optimizer, lambda _, own: own, state.opt, params, transform_non_params=lambda _: whole
    )
    parts: Any = {"params": params, "opt": opt, "average": params if recipe.average else None, "step": whole}
    return TrainState(**parts, sums=dict.fromkeys(recipe.sums, whole))  # pyright: ignore[reportArgumentType]


def make_step(loss: Loss, recipe: Recipe, shardings: Any, mesh: Mesh) -> Callable[[TrainState, Any], TrainState]:
    """Return the jitted step `(state, batch) -> state`, the state donated, both split over the devices.

    Args:
        loss: of a batch, or of a part of one.
        recipe: all else.
        shardings: of the state.
        mesh: the devices.
    """

    def step(state: TrainState, batch: Any) -> TrainState:
        key = jax.random.fold_in(jax.random.split(jax.random.key(recipe.seed))[1], state.step)  # not that of weights
        grads, sums = accumulated(loss, recipe.accumulate)(state.params, batch, key)
        with jax.numpy_dtype_promotion("standard"):  # optax multiplies floats by integer counts
            updates, opt = recipe.optimizer.update(grads, state.opt, state.params)
        params = optax.apply_updates(state.params, updates)
        average = None
        if recipe.average:
            average = optax.incremental_update(params, state.average, 1.0 - recipe.average)
        return TrainState(params, opt, average, state.step + 1, jax.tree.map(jnp.add, state.sums, sums))

    return jax.jit(step, donate_argnums=0, in_shardings=(shardings, split_batch(mesh)), out_shardings=shardings)


def accumulated(loss: Loss, parts: int) -> Callable[[Any, Any, Array], tuple[Any, Metrics]]:
    """Return `(params, batch, key) -> (gradients of the mean loss, sums)`, computed in parts of the batch.

    Each part weighs what it counts, so that the gradients are those of the whole batch. Part p has the rows p, p +
    parts, p + 2 parts ...: every device has its share of every part.
    """
    gradients = jax.grad(loss, has_aux=True)
    if parts == 1:
        return gradients

    def in_parts(params: Any, batch: Any, key: Array) -> tuple[Any, Metrics]:
        cut = jax.tree.map(lambda x: jnp.moveaxis(x.reshape(-1, parts, *x.shape[1:]), 1, 0), batch)

        def add(total: tuple[Any, Metrics], part: tuple[Any, Array]) -> tuple[Any, None]:
            grads, sums = gradients(params, *part)
            weighted = jax.tree.map(lambda leaf: sums["count"] * leaf, grads)
            return jax.tree.map(jnp.add, total, (weighted, sums)), None

        shapes = jax.eval_shape(gradients, params, jax.tree.map(lambda x: x[0], cut), key)
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        (grads, sums), _ = jax.lax.scan(add, nothing, (cut, jax.random.split(key, parts)))
        return jax.tree.map(lambda leaf: leaf / jnp.maximum(sums["count"], 1.0), grads), sums

    return in_parts


class Stop:
    """A request to stop, set by the first Ctrl-C or SIGTERM; the second one ends the process at once.

    Where several processes run, JAX itself listens for SIGTERM and has all of them stop at the same step; Ctrl-C is
    passed on to it.
    """

    def __init__(self) -> None:
        self.signal = 0

    def at(self, step: int) -> bool:
        """Return whether to stop before this step; every process must ask."""
        if jax.process_count() == 1:
            return self.signal != 0
        return multihost_utils.reached_preemption_sync_point(step)

    def __enter__(self) -> "Stop":
        heard = (signal.SIGINT, signal.SIGTERM) if jax.process_count() == 1 else (signal.SIGINT,)
        self._before = {number: signal.signal(number, self._ask) for number in heard}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.signal = number
        for again in self._before:
            signal.signal(again, signal.SIG_DFL)
        if jax.process_count() > 1:
            os.kill(os.getpid(), signal.SIGTERM)


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
        self.path, self.board = folder / "metrics.jsonl", None
        if first():
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
        if self.board is not None:
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
        """Add one line to the metrics file, and its values to TensorBoard; the first process does it for all."""
        if self.board is None:
            return
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
    batches: Iterator[Any],
    plan: Plan,
    *,
    checkpoints: Checkpoints,
    folder: Path,
    console: Console,
) -> tuple[TrainState, int, int]:
    """Train until the plan ends or somebody asks to stop; a checkpoint is whole on disk in both cases.

    Args:
        step: from `make_step`.
        state: on the devices; it is donated.
        batches: on the devices, from the step of the state on.
        plan: when to do what.
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
        while at < last and not stop.at(at):
            state = step(state, next(batches))
            at += 1
            if at % plan.log_every == 0 or at == plan.steps:
                report(at, jax.device_get(state.sums), plan.extra(at))
                state = state._replace(sums=clear(state.sums))
            if plan.probe is not None and plan.probe_every and at % plan.probe_every == 0:
                report.probe(at, partial(plan.probe, jax.block_until_ready(state.params)))
            if at % plan.checkpoint_every == 0 and at < last:
                checkpoints.save(at, state, plan.record)
        checkpoints.wait()
        if at not in checkpoints.steps():
            checkpoints.save(at, state, plan.record)
            checkpoints.wait()
    return state, at, stop.signal
