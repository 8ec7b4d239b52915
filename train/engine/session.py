"""One run of any program: check the whole configuration, train until done or stopped, then evaluate."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from signal import SIGINT
from typing import Any, NamedTuple

import jax
from grain.experimental import ThreadPrefetchDatasetIterator
from jax.sharding import Mesh
from rich.console import Console

from pejax._process.devices import visible_devices
from train.devices.flops import peak_seconds
from train.devices.hosts import end_together, is_main_process, join, require_same_settings, wait_for_all_processes
from train.devices.kept_programs import keep_programs
from train.devices.memory import FLOAT, require_room
from train.devices.mesh import (
    limit_launches,
    make_mesh,
    own_rows,
    put_batch,
    replicated_sharding,
    require_divisible,
    training_execution,
)
from train.engine import environment, failed_step
from train.engine.checkpoint import CheckpointError, Checkpoints
from train.engine.config import RunConfig, run_folder
from train.engine.heartbeat import Heartbeat, so_far, working
from train.engine.loop import Plan, TrainState, init_state, make_step, run, state_shapes, state_shardings
from train.engine.metrics import parse_profile
from train.engine.optimizers import make_optimizer
from train.engine.options import names_of
from train.engine.outside import command, encodings_digests, require_working
from train.engine.parser import parse
from train.engine.progress import read_metrics
from train.engine.results import Evaluation
from train.engine.run_files import written_steps
from train.engine.run_folder import RunFolder
from train.engine.stopping import INTERRUPTED, report_errors, stop_on_signals
from train.engine.stored_config import (
    FILE,
    as_of,
    digest_of,
    from_dict,
    load_config,
    require_fitting,
    require_same,
    save_config,
    settings_digest,
)
from train.engine.task import Program, Split, Task, mesh_memory, recipe, require_trainable
from train.engine.terminal import user_console

PREFETCHED = 4
"""Number of batches that a thread prepares ahead."""


class Session(NamedTuple):
    """A run that is ready to train: all user input has been read and checked."""

    config: RunConfig
    folder: Path
    mesh: Mesh
    task: Task
    step: Callable[[TrainState, Any], TrainState]
    schedule: Callable[[int], Any]
    state: TrainState
    checkpoints: Checkpoints
    next_commands: Sequence[str]


def main(program: Program, argv: Sequence[str] | None = None) -> int:
    """Run the command line of a program; return the exit status."""
    from train.engine import figures as figures  # its matplotlib is missed here, not where a run ends

    with report_errors(ValueError, TypeError, OSError, AssertionError, RuntimeError):
        config = parse(program.config, argv, program.docstring)
        join(config.hosts)
    hint = partial(resume_hint, config)
    with end_together(config.hosts, hint), contextlib.nullcontext() if config.hosts else stop_on_signals(hint):
        with report_errors(ValueError, TypeError, OSError, AssertionError, RuntimeError):
            console = user_console(quiet=not is_main_process())
            console.print(f"train.{config.program} · {config.pe} · data {config.data} · {run_folder(config)}")
            visible_devices()  # before any other use of them
            if not_kept := keep_programs(config.programs):
                console.print(not_kept, markup=False, soft_wrap=True)
            with working(console, "preparing"):
                session = prepare(program, config, console)
        with report_errors(CheckpointError, OSError, FloatingPointError, *program.errors):
            return train(session, console)


def resume_hint(config: RunConfig) -> str:
    """Return which step of a run is saved, and the command that resumes it."""
    steps = written_steps(run_folder(config))
    if not (run_folder(config) / FILE).is_file():
        return "nothing is saved yet: run the same command again"
    saved = f"step {steps[0]} is saved" if steps else "no step is saved yet"
    return f"{saved}; go on with: {command(config)}"


def prepare(program: Program, config: RunConfig, console: Console) -> Session:
    """Make the task and its initial state: from the seed, another run, or the last checkpoint of this run.

    Raises:
        ValueError: the config does not fit the data, the model, the encoding, the devices or a checkpoint.
    """
    # Cheap refusals come first, then the data, then the memory of the model; nothing is written or deleted before
    # `make_folder`, which needs the initial parameters to exist, so that a run that cannot begin overwrites none.
    require_same_settings({name: value for name, value in dataclasses.asdict(config).items() if name != "hosts"})
    if config.devices and jax.process_count() > 1:
        raise ValueError(f"devices must be 0 (all of them) with several processes, got {config.devices}")
    mesh = make_mesh(config.devices, config.mesh, config.batch // config.accumulate)
    require_trainable(config, config.tokens, mesh)
    require_working(config)
    task = program.task(config)
    count = sum(leaf.size for leaf in jax.tree.leaves(task.split.shapes))
    require_room(3 * FLOAT * count, mesh_memory(mesh), f"{count:,} parameters and the two moments of each")
    require_divisible(mesh.shape, batch=config.batch // config.accumulate, kv_heads=task.kv_heads, length=task.length)
    optimizer, schedule = make_optimizer(config, task.steps, task.warmup, task.restarts)
    steps = recipe(config, optimizer, task.sums)
    shardings = state_shardings(task.split, steps, mesh)
    if config.init and run_folder(config).resolve() == Path(config.init).resolve():
        raise ValueError(f"out must be another folder than init, got {config.init} for both")
    begin = partial(initial_params, task, config, shardings.params, mesh, console)
    task.batches(0, own_rows(mesh, config.batch))  # data that are too short are refused before anything is written
    params = None if config.resume else begin()  # before an older run is overwritten
    folder = make_folder(config)
    checkpoints = Checkpoints(folder, console.print)
    resuming = config.resume and bool(checkpoints.steps())
    if config.resume and not resuming:
        console.print(f"nothing to resume in {folder}: a new run starts")
    if params is None:
        params = task.split.init(jax.random.key(config.seed), shardings.params) if resuming else begin()
    state = jax.jit(partial(init_state, recipe=steps), out_shardings=shardings, donate_argnums=0)(params)
    if resuming:
        state = restored_state(task, config, checkpoints, state, console)
    if is_main_process():
        record_settings(program, task, config, count, mesh, console)
    console.print(
        f"{config.pe} · {count:,} parameters · {task.about} · {mesh.size} x {mesh.devices.flat[0].device_kind}"
        f"{' · ' + config.mesh if config.mesh else ''}"
    )
    console.print(task.laws(encoding_params(state.params, mesh)))
    for note in (*task.notes, *restart_note(task, config, schedule)):
        console.print(note)
    loss = partial(task.loss, execution=training_execution(mesh, config.remat))
    step = make_step(loss, steps, shardings, mesh, task.frozen)
    return Session(config, folder, mesh, task, step, schedule, state, checkpoints, program.next_commands(config))


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
        peak_seconds=peak_seconds(task.flops, session.mesh),
        profile=parse_profile(config.profile),
    )
    rows = own_rows(session.mesh, config.batch)
    batches = task.batches(int(session.state.step), rows)
    data = ThreadPrefetchDatasetIterator(batches, PREFETCHED)
    put = partial(put_batch, mesh=session.mesh, size=config.batch)
    state, at, signal = run(
        limit_launches(session.step, session.mesh), session.state, map(put, data), plan,
        checkpoints=checkpoints, folder=session.folder, console=console,
    )  # fmt: skip
    data.close()
    checkpoints.close()
    if is_main_process():
        environment.record_peak(session.folder, session.mesh)
    if jax.device_get(state.watch.halted):
        raise FloatingPointError(failed_step.save(state, config, task, plan.record, session.folder))
    # A signal during the last step leaves the evaluation for --resume; hosts agree on signals before a step alone.
    if at < task.steps or (signal and jax.process_count() == 1):
        console.print(f"stopped at step {at} of {task.steps}, saved; go on with: {command(config)}")
        return INTERRUPTED if signal == SIGINT else 0
    params = state.params if state.average is None else state.average
    evaluate(task, params, at, session.mesh, session.folder, console)
    if task.export is not None:
        with working(console, "writing the model"):
            task.export(params, console)
    for next_command in session.next_commands:
        console.print(f"next: {next_command}", markup=False, soft_wrap=True)
    return 0


def make_folder(config: RunConfig) -> Path:
    """Make and lock the run folder, and delete the run in it if that is to be overwritten.

    The first process does this for all.

    Raises:
        ValueError: raised by `RunFolder.claim`.
    """
    folder = run_folder(config)
    if is_main_process():
        RunFolder(folder).claim(resume=config.resume, overwrite=config.overwrite)
    wait_for_all_processes()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def initial_params(task: Task, config: RunConfig, shardings: Any, mesh: Mesh, console: Console) -> Any:
    """Return the initial parameters: random, or those of the run `init`, converted for this run."""
    if not config.init:
        return task.split.init(jax.random.key(config.seed), shardings)
    before = load_config(type(config), Path(config.init))
    require_fitting(before, config)
    split = task.init_split(before)
    step, params = restore_params(before, split, task.sums, Path(config.init), mesh, console)
    console.print(f"starting from step {step} of {config.init}, trained at {before.trained}")
    return jax.jit(partial(task.params_from_init, split), out_shardings=shardings)(params)


def encoding_params(params: Any, mesh: Mesh) -> Any:
    """Return the parameters of the encodings on the host, in the tree structure of all parameters."""

    def only(tree: Any) -> Any:
        inner = {name: value for name, value in tree.items() if isinstance(value, dict)}
        return {name: value if name == "position" else only(value) for name, value in inner.items()}

    return jax.device_get(jax.jit(lambda tree: tree, out_shardings=replicated_sharding(mesh))(only(params)))


def restored_state(
    task: Task,
    config: RunConfig,
    checkpoints: Checkpoints,
    state: TrainState,
    console: Console,
) -> TrainState:
    """Return the state of the newest intact checkpoint.

    Raises:
        ValueError: it was made with another config or other data, or no checkpoint is intact.
    """
    if is_longer(config):
        require_finished(task, config)

    def check(record: dict[str, Any]) -> None:
        stored = from_dict(type(config), record["run"])
        require_same(stored, as_of(config, stored), also=names_of(config, "trains"))
        if record["data"] != task.identity:
            raise ValueError(f"the checkpoint was made on {record['data']}, this run has {task.identity}")

    read_metrics(run_folder(config) / "metrics.jsonl")  # checked before anything is deleted
    step, state = checkpoints.restore(state, check)
    checkpoints.discard_after(step)
    console.print(f"going on from step {step}")
    return state


def record_settings(program: Program, task: Task, config: RunConfig, count: int, mesh: Mesh, console: Console) -> None:
    """Write the settings and the environment of a run, which has `count` parameters, into its folder."""
    folder, modules = run_folder(config), encodings_digests(config)
    if modules and modules != environment.read(folder).get("modules", modules):
        console.print(f"{' or '.join(modules)} has changed since the run began")
    if is_longer(config):
        keep_results(program, task, config)
    save_config(config, folder)
    environment.record(folder, count, task.flops, mesh, modules)


def is_longer(config: RunConfig) -> bool:
    """Return whether a run is given more steps than its folder says."""
    return bool(config.restarts) and config.restarts != load_config(type(config), run_folder(config)).restarts


def require_finished(task: Task, config: RunConfig) -> None:
    """Check that a run that is given more steps has finished those that it had, and that they are more.

    Raises:
        ValueError: it has not, or they are not.
    """
    before, at = task.restarts[-1], written_steps(run_folder(config))[0]
    if task.steps <= before:
        text = f"{config.budget}={getattr(config, config.budget)}"
        raise ValueError(f"{config.budget} must be more than the run was trained with, {before:,} steps, got {text}")
    if at < before:
        rule = f"a run takes more {config.budget} once it is finished"
        raise ValueError(
            f"{rule}, got {run_folder(config)} at step {at:,} of {before:,}: go on with --resume alone first"
        )


def keep_results(program: Program, task: Task, config: RunConfig) -> None:
    """Rename the results of a finished run that is given more steps: they are those of an earlier step now."""
    folder = run_folder(config)
    for path in RunFolder(folder).results():
        try:
            evaluation = program.results.load(path)
        except ValueError:  # damaged, or of another run
            continue
        update = dataclasses.replace(evaluation, steps=task.steps, run=settings_digest(config))
        update.save(folder)
        if update.stem != path.stem:
            path.unlink()
            path.with_suffix(".png").unlink(missing_ok=True)


def restart_note(task: Task, config: RunConfig, schedule: Callable[[int], Any]) -> list[str]:
    """Return a line on the learning rate of a run that was given more steps; none for other runs."""
    if not task.restarts:
        return []
    begin, risen = task.restarts[-1], min(task.restarts[-1] + max(1, task.warmup), task.steps)
    top = float(schedule(risen))
    return [
        f"more steps: the learning rate rises from {config.lr_end:.3g} at step {begin:,} to {top:.3g} at step "
        f"{risen:,}; from there it is that of a run of {task.steps:,} steps"
    ]


def restore_params(
    config: RunConfig, split: Split, sums: tuple[str, ...], folder: Path, mesh: Mesh, console: Console
) -> tuple[int, Any]:
    """Return the step and the parameters, or their average if kept, of the newest intact checkpoint of a run folder.

    Args:
        config: settings of that run.
        split: split of its model.
        sums: names of the sums of its loss.
        folder: folder of that run.
        mesh: the devices to restore to.
        console: prints to the user.

    Raises:
        ValueError: there is none, or its config differs from the run's config.json.
    """
    optimizer, _ = make_optimizer(config, 1, 1)
    steps = recipe(config, optimizer, sums)
    shapes = state_shapes(split, steps, state_shardings(split, steps, mesh))
    checkpoints = Checkpoints(folder, console.print, reading=True)

    def check(record: dict[str, Any]) -> None:
        stored = from_dict(type(config), record["run"])
        require_same(stored, as_of(config, stored))

    step, state = checkpoints.restore(shapes, check)
    checkpoints.close()
    return step, state.params if state.average is None else state.average


def evaluate(task: Task, params: Any, step: int, mesh: Mesh, folder: Path, console: Console) -> None:
    """Evaluate the parameters of a step, print the tables and write the results into the run folder."""
    begun = time.perf_counter()
    with Heartbeat(console, lambda: f"evaluating · {so_far(time.perf_counter() - begun)}"):
        evaluations = task.evaluate(params, step=step, mesh=mesh, console=console)
    publish(evaluations, task.steps, folder, console)


def publish(evaluations: Sequence[Evaluation], steps: int, folder: Path, console: Console) -> None:
    """Print the tables, and write the JSON files and one figure into the run folder.

    Args:
        evaluations: the results, one for each extension.
        steps: number of the last step of training; results of an earlier one are written beside those of the last.
        folder: run folder.
        console: prints to the user.
    """
    evaluations = [dataclasses.replace(evaluation, steps=steps, run=digest_of(folder)) for evaluation in evaluations]
    first, *followers = evaluations
    if is_main_process():
        with working(console, "writing the results"):
            first.save(folder, followers)
            for evaluation in followers:
                evaluation.store(folder)
    console.print(*first.tables(evaluations))
    names = "".join(f"{evaluation.stem}.json, " for evaluation in followers)
    console.print(f"wrote {names}{folder / first.stem}.json and .png", markup=False, soft_wrap=True)
