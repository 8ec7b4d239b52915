"""The training loop every trainer shares: steps, reports, checkpoints, and a clean way out."""

import os
import signal
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

from train.devices.hosts import agreed
from train.devices.mesh import parameter_shardings, replicated, split_batch
from train.engine import metrics
from train.engine.checkpoint import Checkpoints
from train.engine.progress import Report, Unit
from train.engine.update import Held, Recipe, changed, layer_by_layer

CPU_COMPILER = {
    "xla_cpu_copy_insertion_use_region_analysis": True,
    "xla_cpu_enable_concurrency_optimized_scheduler": False,
    "xla_cpu_prefer_vector_width": 512,
}
"""What XLA:CPU is told. The moments are updated in place, and the update of the parameters is computed from the old
ones: without looking at which comes first, XLA copies all of them in every step. Operations are not ordered to run side
by side: with a core for each device that took 2 to 9 % longer. Vectors of 512 bits, where the CPU has them, in place of
256: on an Intel Xeon with AMX a step took 1 to 4 % less."""

Metrics = dict[str, Array]
Loss = Callable[[Any, Mapping[str, Array], Array], tuple[Array, Metrics]]
"""`(params, batch, key) -> (mean loss, sums over the batch)`; the sums hold `count`, how many units were summed."""


class TrainState(NamedTuple):
    """All that training changes; one pytree, one checkpoint.

    Attributes:
        params: of the model.
        opt: of the optimizer.
        average: of the parameters over the steps, `decay · average + (1 - decay) · params`; None = not kept.
        step: steps taken.
        sums: of the metrics since the last report.
        watch: figures of the steps, and whether one halted the run.
    """

    params: Any
    opt: Any
    average: Any
    step: Array
    sums: Metrics
    watch: metrics.Watch


def init_state(params: Any, recipe: Recipe) -> TrainState:
    """Return the state before the first step."""
    sums = {name: jnp.zeros((), jnp.float32) for name in recipe.sums}
    average = jax.tree.map(jnp.copy, params) if recipe.average else None
    return TrainState(params, recipe.optimizer.init(params), average, jnp.zeros((), jnp.int32), sums, metrics.begin())


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
    parts |= {"sums": dict.fromkeys(recipe.sums, whole), "watch": jax.tree.map(lambda _: whole, state.watch)}
    return TrainState(**parts)


def state_shapes(split: Any, recipe: Recipe, shardings: Any) -> TrainState:
    """Return the state as shapes, split as `state_shardings` says."""
    split_as = lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
    return jax.tree.map(split_as, jax.eval_shape(partial(init_state, recipe=recipe), split.shapes), shardings)


def make_step(loss: Loss, recipe: Recipe, shardings: Any, mesh: Mesh) -> Callable[[TrainState, Any], TrainState]:
    """Return the jitted step `(state, batch) -> state`, the state donated, both split over the devices.

    A step whose loss or gradient is not finite, or whose loss is a spike, changes nothing but `state.watch`.

    Args:
        loss: of a batch, or of a part of one.
        recipe: all else.
        shardings: of the state.
        mesh: the devices.
    """
    on_cpu = mesh.devices.flat[0].platform == "cpu"

    def step(state: TrainState, batch: Any) -> TrainState:
        grads, sums = accumulated(loss, recipe.accumulate)(state.params, batch, step_key(recipe.seed, state.step))
        mean, norm = sums["loss"] / jnp.maximum(sums["count"], 1.0), optax.tree.norm(grads)
        well, watched = metrics.observe(state.watch, state.step, mean, norm, recipe.spike)

        def update(grads: Any, held: Held) -> Held:
            return metrics.choose(well, changed(recipe, grads, norm, held), held)

        held = Held(state.params, state.opt, state.average)
        held = layer_by_layer(update, recipe.optimizer, grads, held) if on_cpu else update(grads, held)
        counted = state.step + 1, jax.tree.map(jnp.add, state.sums, sums)
        taken, sums = metrics.choose(well, counted, (state.step, state.sums))
        return TrainState(*held, taken, sums, watched)

    return jax.jit(
        step,
        donate_argnums=0,
        in_shardings=(shardings, split_batch(mesh)),
        out_shardings=shardings,
        compiler_options=CPU_COMPILER if on_cpu else None,
    )


def step_key(seed: int, step: Array) -> Array:
    """Return the key of what a step draws, which is not that of the weights."""
    return jax.random.fold_in(jax.random.split(jax.random.key(seed))[1], step)


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
        if not multihost_utils.reached_preemption_sync_point(step):
            return False
        if not agreed(self.signal != signal.SIGINT):  # one of them was: all end as it does
            self.signal = signal.SIGINT
        return True

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
        peak_seconds: what a step would take at the devices' peak; 0 = not known.
        profile: the first step to trace and how many; (0, 0) = none.
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
    peak_seconds: float = 0.0
    profile: tuple[int, int] = (0, 0)


def clear(tree: Any) -> Any:
    """Return zeros in place of arrays, where those are."""
    return jax.tree.map(lambda leaf: jnp.zeros_like(leaf, device=leaf.sharding), tree)


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
        step: from `make_step`, `paced` where it sums over devices of a CPU.
        state: on the devices; it is donated.
        batches: on the devices, from the step of the state on.
        plan: when to do what.
        checkpoints: of the run.
        folder: of the run.
        console: of the user.

    Returns:
        The state, its step, and the number of the signal that stopped it, or 0. Where a step halted the run, the state
        is the one before it, and not in a checkpoint.
    """
    at = int(state.step)
    last = min(plan.steps, plan.stop_at or plan.steps)
    figures = jax.jit(metrics.position_figures, out_shardings=state.step.sharding)
    profile = metrics.Profile(plan.profile, folder / "profile")
    with Stop() as stop, Report(folder, at, plan.steps, plan.unit, console, plan.peak_seconds) as report:
        while at < last and not stop.at(at):
            profile.before(at + 1, state)
            state = step(state, next(batches))
            at += 1
            reporting = at % plan.log_every == 0 or at == plan.steps
            probing = plan.probe is not None and plan.probe_every and at % plan.probe_every == 0
            saving = at % plan.checkpoint_every == 0 and at < last
            if (reporting or probing or saving) and jax.device_get(state.watch.halted):
                break
            if reporting:
                sums, watched = jax.device_get((state.sums, state.watch))
                extra = {**plan.extra(at), **metrics.gradient_norms(watched), **metrics.named(figures(state.params))}
                report(at, sums, extra)
                state = state._replace(sums=clear(state.sums), watch=metrics.cleared(state.watch))
            if probing and plan.probe is not None:
                report.probe(at, partial(plan.probe, jax.block_until_ready(state.params)))
            if saving:
                checkpoints.save(at, state, plan.record)
        profile.end(state)
        checkpoints.wait()
        if jax.device_get(state.watch.halted):
            return state, int(state.step), stop.signal
        if at not in checkpoints.steps():
            checkpoints.save(at, state, plan.record)
            checkpoints.wait()
    return state, at, stop.signal
