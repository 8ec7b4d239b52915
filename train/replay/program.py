"""Replay the step that halted a run, and report which gradients are not finite.

    python -m train.replay runs/rope-shakespeare-0/offending-124

On the same devices the loss is equal to that of the run, bit by bit. The exit status is 0 if it is equal, else 1.
"""

import dataclasses
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from train.devices.mesh import make_mesh, put_batch, training_execution
from train.engine import failed_step
from train.engine.checkpoint import CheckpointError, Checkpoints
from train.engine.loop import make_step, state_shapes, state_shardings, step_key
from train.engine.optimizers import make_optimizer
from train.engine.outside import require_named
from train.engine.run_folder import RunFolder
from train.engine.stopping import report_errors, stop_on_signals
from train.engine.task import recipe
from train.engine.terminal import user_console
from train.replay.options import parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    console = user_console()
    hint = "nothing was changed: run the same command again"
    with stop_on_signals(lambda: hint), report_errors(ValueError, TypeError, OSError, CheckpointError):
        options = parser(__doc__ or "").parse_args(argv)
        step, was, batch = failed_step.read(options.folder)
        now, failures = replay(options.folder, batch, options.data, options.model, options.pe)
    is_equal = now == was or (math.isnan(now) and math.isnan(was))
    console.print(
        f"step {step} · the loss is {now!r}, {'the same as' if is_equal else 'different from'} {was!r} in the run"
    )
    for name, count, size in failures:
        console.print(f"gradient of {name}: {count:,} of {size:,} values are not finite")
    return 0 if is_equal else 1


def replay(
    folder: Path, batch: Any, data: str = "", model: str = "", pe: str = ""
) -> tuple[float, list[tuple[str, int, int]]]:
    """Return the loss of a saved step, and the parameters whose gradient is not finite.

    Args:
        folder: folder of the step.
        batch: batch of the step.
        data: data of the run, required if it is in files.
        model: model of a run of `train.tune`.
        pe: encoding of the run, required if it is in a module.

    Returns:
        The loss; for each such parameter its name, the number of values that are not finite, and of all values.

    Raises:
        ValueError: no such folder, other data than in the run or files that are not named, or fewer devices.
        CheckpointError: the state is damaged.
    """
    run = RunFolder(folder)
    config = dataclasses.replace(run.config, hosts="", resume=False)
    require_named(config, folder, data, model, pe)
    mesh = make_mesh(config.devices, config.mesh, config.batch // config.accumulate)
    task = run.program.task(config)
    steps = recipe(config, make_optimizer(config, task.steps, task.warmup, task.restarts)[0], task.sums)
    shardings = state_shardings(task.split, steps, mesh)

    def check(record: dict[str, Any]) -> None:
        if record["data"] != task.identity:
            raise ValueError(f"the data of the step must be {record['data']}, got {task.identity}")

    checkpoints = Checkpoints(folder)
    _, state = checkpoints.restore(state_shapes(task.split, steps, shardings), check)
    checkpoints.close()
    loss, batch = partial(task.loss, execution=training_execution(mesh, config.remat)), put_batch(batch, mesh)

    @jax.jit
    def count_failures(params: Any, step: Any) -> Any:
        objective = loss if task.frozen is None else partial(loss, frozen=task.frozen)
        slopes = jax.grad(objective, has_aux=True)(params, batch, step_key(config.seed, step))[0]
        return jax.tree.map(lambda leaf: jnp.sum(~jnp.isfinite(leaf)), slopes)

    counts = jax.tree_util.tree_leaves_with_path(jax.device_get(count_failures(state.params, state.step)))
    sizes = [leaf.size for leaf in jax.tree.leaves(state.params)]
    failures = [
        (jax.tree_util.keystr(path), int(count), size)
        for (path, count), size in zip(counts, sizes, strict=True)
        if count
    ]
    # last, since the step donates the state; its loss, of the run's own program, is equal bit by bit
    state = make_step(loss, steps, shardings, mesh, task.frozen)(state, batch)
    return float(state.watch.loss), failures
