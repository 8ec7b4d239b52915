"""The step that halted a run, kept in a folder of its own so that it can be computed again.

    RUN/offending-STEP/
        config.json     of the run
        checkpoints/    the state before the step
        batch.npz       what the step was given; what it drew at random follows from (seed, step)
        step.json       its number and its loss

The folder can be read like that of a run: `--init=RUN/offending-STEP` starts from its weights.
"""

import json
import shlex
import shutil
import zipfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from train.devices.hosts import first
from train.engine.checkpoint import Checkpoints
from train.engine.config import RunConfig, command, save_config
from train.engine.loop import TrainState
from train.engine.task import Task


def keep(state: TrainState, config: RunConfig, task: Task, record: dict[str, Any], folder: Path) -> str:
    """Save the step that halted a run, and return one line that says so and how to go on.

    Args:
        state: as the run left it: the one before that step.
        config: of the run.
        task: of the run.
        record: stored in its checkpoints.
        folder: of the run.

    Raises:
        CheckpointError: the state cannot be written.
    """
    before = int(state.step)
    step, loss, place = before + 1, float(state.watch.loss), folder / f"offending-{before + 1}"
    if first():
        shutil.rmtree(place, ignore_errors=True)  # of an earlier attempt to go on
        place.mkdir()
        save_config(config, place)
        np.savez(place / "batch.npz", **next(task.batches(before, range(config.batch))))
        (place / "step.json").write_text(json.dumps({"step": step, "loss": repr(loss), "bits": loss.hex()}) + "\n")
    checkpoints = Checkpoints(place)
    checkpoints.save(before, going_on(state), record)
    checkpoints.wait()
    checkpoints.close()
    fresh = f"python -m train.{config.program} --init={shlex.quote(str(place))} with a lower --lr and another --out"
    onward = f"{command(config)} --spike=0" if is_spike(state, config) else fresh
    again = f"python -m train.replay {shlex.quote(str(place))}"
    return f"{cause(state, config)} at step {step}, which is kept ({again}); go on with: {onward}"


def is_spike(state: TrainState, config: RunConfig) -> bool:
    """Return whether the loss halted the run by its size, not by being none."""
    return bool(np.isfinite(state.watch.loss) and config.spike and state.watch.loss > config.spike * median(state))


def cause(state: TrainState, config: RunConfig) -> str:
    """Return what halted the run, in words."""
    loss = float(state.watch.loss)
    if is_spike(state, config):
        return f"the loss is {loss:.4g}, over {config.spike:g} times its running median {median(state):.4g},"
    return f"the gradient is not finite, the loss {loss:.4g}," if np.isfinite(loss) else f"the loss is {loss}"


def median(state: TrainState) -> float:
    """Return the median of the last losses."""
    return float(np.median(jax.device_get(state.watch.recent)))


def going_on(state: TrainState) -> TrainState:
    """Return the state, no longer halted."""
    well = jnp.zeros_like(state.watch.halted, device=state.watch.halted.sharding)
    return state._replace(watch=state.watch._replace(halted=well))


def read(place: Path) -> tuple[int, float, dict[str, np.ndarray]]:
    """Return the number, the loss and the batch of the step that a folder keeps.

    Raises:
        ValueError: it keeps none, or what it keeps is damaged.
    """
    if not (place / "step.json").is_file():
        raise ValueError(f"a step to compute again is in a folder offending-STEP of a run, got {place}")
    try:
        step = json.loads((place / "step.json").read_text())
        with np.load(place / "batch.npz") as batch:
            return step["step"], float.fromhex(step["bits"]), dict(batch)
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as wrong:
        raise ValueError(f"a step to compute again must be whole, got {place}: {wrong}") from None
