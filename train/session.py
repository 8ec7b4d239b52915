"""One run of any program: read and check everything, train until done or stopped, evaluate."""

import dataclasses
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from grain.experimental import ThreadPrefetchDatasetIterator
from jax.sharding import Mesh
from rich.console import Console

from train.checkpoint import CheckpointError, Checkpoints
from train.config import (
    RunConfig,
    command,
    friendly,
    from_dict,
    load_config,
    parse,
    require_fitting,
    require_same,
    run_folder,
    save_config,
)
from train.loop import Plan, TrainState, init_state, make_step, run
from train.mesh import make_mesh, replicated, require_divisible
from train.task import Found, Program, Split, Task, adamw

PREFETCHED = 4
"""Batches that the input pipeline prepares ahead, in a thread."""


class Session(NamedTuple):
    """A run that is ready to train: everything a user can get wrong has been read and checked."""

    config: RunConfig
    folder: Path
    mesh: Mesh
    task: Task
    step: Callable[[TrainState, Any], TrainState]
    schedule: Callable[[int], Any]
    state: TrainState
    data: ThreadPrefetchDatasetIterator
    checkpoints: Checkpoints


def main(program: Program, argv: Sequence[str] | None = None) -> int:
    """Run the command line of a program; return the exit status."""
    console = Console(soft_wrap=True, highlight=False)
    with friendly(ValueError, TypeError, OSError, AssertionError):
        session = prepare(program, parse(program.config, argv), console)
    with friendly(CheckpointError, OSError, FloatingPointError, *program.errors):
        return train(session, console)


def prepare(program: Program, config: RunConfig, console: Console) -> Session:
    """Make the task, and start it: from the seed, another run, or this run's last checkpoint.

    Raises:
        ValueError: what the data, the model, the encoding, the devices or a checkpoint refuse.
    """
    mesh = make_mesh(config.devices)
    require_divisible(config.batch, mesh)
    task = program.task(config)
    optimizer, schedule = adamw(config, task.steps, task.warmup)
    data = ThreadPrefetchDatasetIterator(task.batches(), PREFETCHED)
    if config.init and run_folder(config).resolve() == Path(config.init).resolve():
        raise ValueError(f"out must be another folder than init, got {config.init} for both")
    params = None if config.resume else start(task, config, mesh, console)  # before an older run is overwritten
    folder = make_folder(config)
    checkpoints = Checkpoints(folder, console.print)
    resuming = config.resume and bool(checkpoints.steps())
    if params is None:
        params = task.split.init(jax.random.key(config.seed)) if resuming else start(task, config, mesh, console)
    state = jax.device_put(init_state(params, optimizer, task.sums), replicated(mesh))
    if resuming:
        state = resume(task, config, checkpoints, state, data, console)
    save_config(config, folder)
    count = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    console.print(json.dumps(dataclasses.asdict(config)))
    console.print(
        f"{config.pe} · {count:,} parameters · {task.about} · {mesh.size} x {mesh.devices.flat[0].device_kind}"
    )
    console.print(task.laws(state.params))
    step = make_step(task.loss, optimizer, config.seed, mesh)
    return Session(config, folder, mesh, task, step, schedule, state, data, checkpoints)


def train(session: Session, console: Console) -> int:
    """Train to the end, or until stopped, then evaluate; return the exit status."""
    config, task, checkpoints = session.config, session.task, session.checkpoints
    plan = Plan(
        steps=task.steps,
        stop_at=config.stop_at,
        log_every=config.log_every,
        checkpoint_every=config.checkpoint_every,
        record={"run": dataclasses.asdict(config), "data": task.identity},
        unit=task.unit,
        extra=lambda step: {"epoch": step / task.per_epoch, "lr": float(session.schedule(step - 1))},
        probe=task.probe,
        probe_every=task.probe_every,
    )
    state, at, signal = run(
        session.step, session.state, session.data, plan,
        mesh=session.mesh, checkpoints=checkpoints, folder=session.folder, console=console,
    )  # fmt: skip
    session.data.close()
    checkpoints.close()
    if at < task.steps:
        console.print(f"stopped at step {at} of {task.steps}, saved; go on with: {command(config)}")
        return 128 + signal if signal else 0
    publish(task.evaluate(state.params, step=at, mesh=session.mesh, console=console), session.folder, console)
    return 0


def make_folder(config: RunConfig) -> Path:
    """Make the run folder, and see that no earlier run is overwritten by accident.

    Raises:
        ValueError: it holds a run, and neither --resume nor --overwrite was given.
    """
    folder = run_folder(config)
    if (folder / "config.json").exists() and not config.resume:
        if not config.overwrite:
            raise ValueError(f"{folder} holds a run already: give --resume, --overwrite or another --out")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def start(task: Task, config: RunConfig, mesh: Mesh, console: Console) -> Any:
    """Return the parameters to start from: drawn from the seed, or those of the run `init`, fitted to this one."""
    if not config.init:
        return task.split.init(jax.random.key(config.seed))
    before = load_config(type(config), Path(config.init))
    require_fitting(before, config)
    split = task.before(before)
    step, params = restore_params(before, split, task.sums, Path(config.init), mesh, console)
    console.print(f"starting from step {step} of {config.init}, trained at {before.trained}")
    return task.fitted(split, params)


def resume(
    task: Task,
    config: RunConfig,
    checkpoints: Checkpoints,
    state: TrainState,
    data: ThreadPrefetchDatasetIterator,
    console: Console,
) -> TrainState:
    """Return the state of the newest whole checkpoint, the data moved to its place.

    Raises:
        ValueError: it was made by another configuration or on other data, or none is whole.
    """

    def check(record: dict[str, Any]) -> None:
        require_same(from_dict(type(config), record["run"]), config, also=config.trained_with)
        if record["data"] != task.identity:
            raise ValueError(f"the checkpoint was made on {record['data']}, this run has {task.identity}")

    step, state = checkpoints.restore(state, data, check)
    checkpoints.discard_after(step)
    console.print(f"going on from step {step}")
    return state


def restore_params(
    config: RunConfig, split: Split, sums: tuple[str, ...], folder: Path, mesh: Mesh, console: Console
) -> tuple[int, Any]:
    """Return the step and the parameters of the newest whole checkpoint of a run folder.

    Args:
        config: of that run.
        split: of its model.
        sums: of its loss.
        folder: of that run.
        mesh: that gets the parameters.
        console: of the user.

    Raises:
        ValueError: there is none, or it was made by another configuration than the run's config.json says.
    """
    optimizer, _ = adamw(config, 1, 1)
    shapes = jax.eval_shape(lambda params: init_state(params, optimizer, sums), split.shapes)
    on_mesh = lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=replicated(mesh))  # noqa: E731
    checkpoints = Checkpoints(folder, console.print)
    check = lambda record: require_same(from_dict(type(config), record["run"]), config)  # noqa: E731
    step, state = checkpoints.restore(jax.tree.map(on_mesh, shapes), None, check)
    checkpoints.close()
    return step, state.params


def publish(found: Found, folder: Path, console: Console) -> None:
    """Print the table and write JSON and figure into the run folder."""
    found.save(folder)
    console.print(found.table())
    console.print(f"wrote {folder / found.stem}.json and .png")
