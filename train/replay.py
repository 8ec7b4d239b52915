"""Compute the step that halted a run again, and say where it broke.

    python -m train.replay runs/rope-shakespeare-0/offending-124

The loss must be the one that the run found, to the bit, on the same devices. Status 0 where it is, 1 where it is not.
"""

if __name__ == "__main__":  # before anything heavy is imported
    from train.devices.cpu import prepare_cpu

    prepare_cpu()

import dataclasses
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from rich.console import Console

from train.devices.mesh import make_mesh, put_batch, training_execution
from train.engine import failed_step
from train.engine.checkpoint import CheckpointError, Checkpoints
from train.engine.config import load_config, program_of
from train.engine.loop import init_state, make_step, state_shardings, step_key
from train.engine.optimizers import make_optimizer
from train.engine.parser import Parser
from train.engine.stopping import friendly
from train.engine.task import recipe
from train.evaluate import program


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = Parser(prog="python -m train.replay")
    parser.add_argument("folder", type=Path, metavar="RUN_DIR/offending-STEP", help="what a halted run left")
    console = Console(soft_wrap=True, highlight=False)
    with friendly(ValueError, TypeError, OSError, CheckpointError):
        place = parser.parse_args(argv).folder
        step, was, batch = failed_step.read(place)
        now, odd = replay(place, batch)
    same = now == was or (math.isnan(now) and math.isnan(was))
    console.print(f"step {step} · the loss is {now!r}, {'the same as' if same else 'not the'} {was!r} of the run")
    for name, count, size in odd:
        console.print(f"gradient of {name}: {count:,} of {size:,} values are not finite")
    return 0 if same else 1


def replay(place: Path, batch: Any) -> tuple[float, list[tuple[str, int, int]]]:
    """Return the loss of the step that a folder keeps, and the parameters whose gradient is not finite.

    Args:
        place: the folder.
        batch: of the step.

    Returns:
        The loss; name, number of values that are not finite, and number of values.

    Raises:
        ValueError: no such run, other data than the run had, or fewer devices.
        CheckpointError: the state is broken.
    """
    made_by = program(program_of(place))
    config = dataclasses.replace(load_config(made_by.config, place), hosts="", resume=False)
    mesh = make_mesh(config.devices, config.mesh, config.batch // config.accumulate)
    task = made_by.task(config)
    steps = recipe(config, make_optimizer(config, task.steps, task.warmup)[0], task.sums)
    shardings = state_shardings(task.split, steps, mesh)
    shapes = jax.eval_shape(partial(init_state, recipe=steps), task.split.shapes)
    split = lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    def check(record: dict[str, Any]) -> None:
        if record["data"] != task.identity:
            raise ValueError(f"the step was taken on {record['data']}, here is {task.identity}")

    checkpoints = Checkpoints(place)
    _, state = checkpoints.restore(jax.tree.map(split, shapes, shardings), check)
    checkpoints.close()
    loss, batch = partial(task.loss, execution=training_execution(mesh, config.remat)), put_batch(batch, mesh)

    @jax.jit
    def not_finite(params: Any, step: Any) -> Any:
        slopes = jax.grad(loss, has_aux=True)(params, batch, step_key(config.seed, step))[0]
        return jax.tree.map(lambda leaf: jnp.sum(~jnp.isfinite(leaf)), slopes)

    counts = jax.tree_util.tree_leaves_with_path(jax.device_get(not_finite(state.params, state.step)))
    sizes = [leaf.size for leaf in jax.tree.leaves(state.params)]
    odd = [
        (jax.tree_util.keystr(path), int(count), size)
        for (path, count), size in zip(counts, sizes, strict=True)
        if count
    ]
    state = make_step(loss, steps, shardings, mesh)(state, batch)
    return float(state.watch.loss), odd


if __name__ == "__main__":
    raise SystemExit(main())
