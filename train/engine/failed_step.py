"""The step that halted a run, saved in a folder of its own for `train.replay`.

    RUN/offending-STEP/
        config.json     of the run
        checkpoints/    the state before the step
        batch.npz       the batch of the step; its random numbers depend only on (seed, step)
        step.json       its number and its loss

The folder can be used like a run folder: `--init=RUN/offending-STEP` starts training from its weights.
"""

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from train.devices.hosts import is_main_process
from train.engine.arrays import read_arrays
from train.engine.checkpoint import Checkpoints
from train.engine.config import RunConfig
from train.engine.files import read_object
from train.engine.loop import TrainState
from train.engine.outside import command, missing_options
from train.engine.stored_config import save_config
from train.engine.task import Task

LARGEST_BATCH = 2**32
"""Most bytes of the file of a batch that is read."""


def save(state: TrainState, config: RunConfig, task: Task, record: dict[str, Any], run: Path) -> str:
    """Save the step that halted a run, and return one line for the user that says how to go on.

    Args:
        state: the state before that step.
        config: settings of the run.
        task: task of the run.
        record: content of the run's checkpoints beside the state.
        run: folder of the run.

    Raises:
        CheckpointError: the state cannot be written.
    """
    before = int(state.step)
    step, loss, folder = before + 1, float(state.watch.loss), run / f"offending-{before + 1}"
    if is_main_process():
        shutil.rmtree(folder, ignore_errors=True)  # of an earlier attempt
        folder.mkdir()
        save_config(config, folder)
        np.savez(folder / "batch.npz", **next(task.batches(before, range(config.batch))))
        (folder / "step.json").write_text(
            json.dumps({"step": step, "loss": repr(loss), "bits": loss.hex()}) + "\n", encoding="utf-8"
        )
    checkpoints = Checkpoints(folder)
    checkpoints.save(before, without_halt(state), record)
    checkpoints.wait()
    checkpoints.close()
    fresh = f"python -m train.{config.program} --init={shlex.quote(str(folder))} with a lower --lr and another --out"
    next_command = f"{command(config)} --spike=0" if is_spike(state, config) else fresh
    again = " ".join(filter(None, ("python -m train.replay", shlex.quote(str(folder)), missing_options(config, ()))))
    return f"{cause(state, config)} at step {step}, which was saved (replay it: {again}); go on with: {next_command}"


def is_spike(state: TrainState, config: RunConfig) -> bool:
    """Return whether the run was halted by a finite loss that is too large."""
    return bool(np.isfinite(state.watch.loss) and config.spike and state.watch.loss > config.spike * median(state))


def cause(state: TrainState, config: RunConfig) -> str:
    """Return why the run halted, in words."""
    loss = float(state.watch.loss)
    if is_spike(state, config):
        return f"the loss is {loss:.4g}, more than {config.spike:g} times its running median {median(state):.4g},"
    return f"the gradient is not finite, the loss {loss:.4g}," if np.isfinite(loss) else f"the loss is {loss}"


def median(state: TrainState) -> float:
    """Return the running median of the losses."""
    return float(np.median(jax.device_get(state.watch.recent)))


def without_halt(state: TrainState) -> TrainState:
    """Return the state with its halted flag cleared."""
    running = jnp.zeros_like(state.watch.halted, device=state.watch.halted.sharding)
    return state._replace(watch=state.watch._replace(halted=running))


def read(folder: Path) -> tuple[int, float, dict[str, np.ndarray]]:
    """Return the number, the loss and the batch of the step saved in a folder.

    Raises:
        ValueError: the folder has no such step, or its files are damaged.
    """
    if not (folder / "step.json").is_file():
        raise ValueError(f"a saved step is in a folder offending-STEP of a run, got {folder}")
    try:
        step = read_object(folder / "step.json")
        batch = read_arrays(folder / "batch.npz", LARGEST_BATCH)
        return step["step"], float.fromhex(step["bits"]), batch
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as wrong:
        raise ValueError(f"a saved step must be undamaged, got {folder}: {wrong}") from None
