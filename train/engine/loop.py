"""The training loop of all programs: steps, reports, checkpoints, and stopping on a signal."""

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

from train.devices.cpu import TRAINING_COMPILER
from train.devices.hosts import all_processes_agree
from train.devices.mesh import batch_sharding, parameter_shardings, replicated_sharding
from train.engine import metrics
from train.engine.checkpoint import Checkpoints
from train.engine.progress import Report, Unit
from train.engine.update import Recipe, Weights, layer_by_layer, updated_weights

Metrics = dict[str, Array]
Loss = Callable[..., tuple[Array, Metrics]]
"""`(params, batch, key) -> (mean loss, sums over the batch)`; `count` among the sums is the number of units."""


class TrainState(NamedTuple):
    """Everything that training changes, as one pytree, which is what checkpoints store.

    Attributes:
        params: parameters of the model.
        opt: state of the optimizer.
        average: moving average of the parameters, `decay · average + (1 - decay) · params`; None = not kept.
        step: number of steps taken.
        sums: sums of the metrics since the last report.
        watch: statistics of the steps, and whether one halted the run.
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
    return TrainState(
        params, recipe.optimizer.init(params), average, jnp.zeros((), jnp.int32), sums, metrics.initial_watch()
    )


def state_shardings(split: Any, recipe: Recipe, mesh: Mesh) -> Any:
    """Return the shardings of the state: what belongs to a parameter is split as the parameter is, all else replicated.

    Args:
        split: the model, a `train.engine.task.Split`.
        recipe: recipe of the step.
        mesh: the devices.
    """
    everywhere, params = replicated_sharding(mesh), parameter_shardings(split.variables, mesh)
    state = jax.eval_shape(partial(init_state, recipe=recipe), split.shapes)
    opt = optax.tree.map_params(
        recipe.optimizer, lambda _, sharding: sharding, state.opt, params, transform_non_params=lambda _: everywhere
    )
    parts: Any = {"params": params, "opt": opt, "average": params if recipe.average else None, "step": everywhere}
    parts |= {"sums": dict.fromkeys(recipe.sums, everywhere), "watch": jax.tree.map(lambda _: everywhere, state.watch)}
    return TrainState(**parts)


def state_shapes(split: Any, recipe: Recipe, shardings: Any) -> TrainState:
    """Return the shapes of the state, with the shardings that `state_shardings` returns."""

    def shard(leaf: jax.ShapeDtypeStruct, sharding: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(shard, jax.eval_shape(partial(init_state, recipe=recipe), split.shapes), shardings)


def make_step(
    loss: Loss, recipe: Recipe, shardings: Any, mesh: Mesh, frozen: Any = None
) -> Callable[[TrainState, Any], TrainState]:
    """Return the jitted step `(state, batch) -> state`, which donates the state.

    A step whose loss or gradient is not finite, or whose loss is a spike, changes nothing but `state.watch`.

    Args:
        loss: `(params, batch, key) -> (mean loss, sums)` of a batch or a part of one.
        recipe: recipe of the step.
        shardings: shardings of the state.
        mesh: the devices.
        frozen: arrays on the devices that the loss takes as `frozen=` and no step changes. None = there are none.
    """
    on_cpu = mesh.devices.flat[0].platform == "cpu"

    def step(state: TrainState, batch: Any, *frozen: Any) -> TrainState:
        objective = partial(loss, frozen=frozen[0]) if frozen else loss
        grads, sums = accumulated_gradients(objective, recipe.accumulate)(
            state.params, batch, step_key(recipe.seed, state.step)
        )
        mean, norm = sums["loss"] / jnp.maximum(sums["count"], 1.0), optax.tree.norm(grads)
        accepted, watch = metrics.checked_step(state.watch, state.step, mean, norm, recipe.spike)

        def update(grads: Any, weights: Weights) -> Weights:
            return metrics.select(accepted, updated_weights(recipe, grads, norm, weights), weights)

        weights = Weights(state.params, state.opt, state.average)
        weights = layer_by_layer(update, recipe.optimizer, grads, weights) if on_cpu else update(grads, weights)
        counters = state.step + 1, jax.tree.map(jnp.add, state.sums, sums)
        number, sums = metrics.select(accepted, counters, (state.step, state.sums))
        return TrainState(*weights, number, sums, watch)

    # an argument of the step, since captured arrays become constants of the program
    frozen_shardings = () if frozen is None else (jax.tree.map(lambda x: x.sharding, frozen),)
    program = jax.jit(
        step,
        donate_argnums=0,
        in_shardings=(shardings, batch_sharding(mesh), *frozen_shardings),
        out_shardings=shardings,
        compiler_options=TRAINING_COMPILER if on_cpu else None,
    )
    return program if frozen is None else lambda state, batch: program(state, batch, frozen)


def step_key(seed: int, step: Array) -> Array:
    """Return the random key of a step, which is independent of the key of the initial weights."""
    return jax.random.fold_in(jax.random.split(jax.random.key(seed))[1], step)


def accumulated_gradients(loss: Loss, parts: int) -> Callable[[Any, Any, Array], tuple[Any, Metrics]]:
    """Return `(params, batch, key) -> (gradients of the mean loss, sums)`, accumulated over parts of the batch.

    Parts are weighted by their `count`, so the gradients are those of the full batch. Part p has the rows p, p + parts,
    p + 2 parts ..., so every device has rows of every part.
    """
    gradients = jax.grad(loss, has_aux=True)
    if parts == 1:
        return gradients

    def in_parts(params: Any, batch: Any, key: Array) -> tuple[Any, Metrics]:
        parts_of_batch = jax.tree.map(lambda x: jnp.moveaxis(x.reshape(-1, parts, *x.shape[1:]), 1, 0), batch)

        def add(total: tuple[Any, Metrics], part: tuple[Any, Array]) -> tuple[Any, None]:
            grads, sums = gradients(params, *part)
            products = jax.tree.map(lambda leaf: sums["count"] * leaf, grads)
            return jax.tree.map(jnp.add, total, (products, sums)), None

        shapes = jax.eval_shape(gradients, params, jax.tree.map(lambda x: x[0], parts_of_batch), key)
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        (grads, sums), _ = jax.lax.scan(add, zeros, (parts_of_batch, jax.random.split(key, parts)))
        return jax.tree.map(lambda leaf: leaf / jnp.maximum(sums["count"], 1.0), grads), sums

    return in_parts


class Stop:
    """A request to stop, set by the first Ctrl-C or SIGTERM; a second one ends the process at once.

    With several processes, JAX itself handles SIGTERM and makes all of them stop at the same step; Ctrl-C is forwarded
    to it.
    """

    def __init__(self) -> None:
        self.signal = 0

    def before(self, step: int) -> bool:
        """Return whether to stop before this step; all processes must call this."""
        if jax.process_count() == 1:
            return self.signal != 0
        if not multihost_utils.reached_preemption_sync_point(step):
            return False
        if not all_processes_agree(self.signal != signal.SIGINT):  # if one process got Ctrl-C, all end as after Ctrl-C
            self.signal = signal.SIGINT
        return True

    def __enter__(self) -> "Stop":
        numbers = (signal.SIGINT, signal.SIGTERM) if jax.process_count() == 1 else (signal.SIGINT,)
        self._handlers = {number: signal.signal(number, self._ask) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.signal = number
        for kind in self._handlers:
            signal.signal(kind, signal.SIG_DFL)
        if jax.process_count() > 1:
            os.kill(os.getpid(), signal.SIGTERM)


class Plan(NamedTuple):
    """The schedule of a run.

    Attributes:
        steps: number of the last step.
        stop_at: step at which to stop as if interrupted; 0 = none.
        log_every: steps between reports.
        checkpoint_every: steps between checkpoints.
        record: stored in every checkpoint beside the state.
        unit: unit that the loss counts.
        extra: `(step) -> values` that are reported with the metrics, such as the learning rate.
        probe: `(params) -> values` that are reported on their own.
        probe_every: steps between probes; 0 = no probes.
        peak_seconds: time of a step at the peak FLOP/s of the devices; 0 = unknown.
        profile: the first step to profile and how many; (0, 0) = none.
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


def zeros_like_tree(tree: Any) -> Any:
    """Return zeros with the shapes and shardings of the arrays."""
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
    """Train to the last step or until stopped; a complete checkpoint is on disk in both cases.

    Args:
        step: result of `make_step`, through `limit_launches`.
        state: training state on the devices; it is donated.
        batches: batches on the devices, from the step of the state on.
        plan: schedule of the run.
        checkpoints: checkpoints of the run.
        folder: run folder.
        console: prints to the user.

    Returns:
        The state, its step, and the number of the signal that stopped training, or 0. If a step halted the run, the
        state is the one before it and is in no checkpoint.
    """
    at = int(state.step)
    last = min(plan.steps, plan.stop_at or plan.steps)
    figures = jax.jit(metrics.position_figures, out_shardings=state.step.sharding)
    profile = metrics.Profile(plan.profile, folder / "profile")
    with Stop() as stop, Report(folder, at, plan.steps, plan.unit, console, plan.peak_seconds) as report:
        while at < last and not stop.before(at):
            profile.before(at + 1, state)
            state = step(state, next(batches))
            at = report.current = at + 1
            reporting = at % plan.log_every == 0 or at == plan.steps
            probing = plan.probe is not None and plan.probe_every and at % plan.probe_every == 0
            saving = at % plan.checkpoint_every == 0 and at < last
            # looked at only where the host waits for the devices anyway, so that steps are launched ahead of them
            if (reporting or probing or saving) and jax.device_get(state.watch.halted):
                break
            if reporting:
                sums, watch = jax.device_get((state.sums, state.watch))
                extra = {
                    **plan.extra(at),
                    **metrics.gradient_norms(watch),
                    **metrics.figures_by_name(figures(state.params)),
                }
                report(at, sums, extra)
                state = state._replace(sums=zeros_like_tree(state.sums), watch=metrics.reset_watch(state.watch))
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
