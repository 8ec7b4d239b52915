"""Ten training steps of `train.vit` and `train.lm` on the device, against the same steps on the host's CPU.

`python -m benchmarks.hardware.steps_proof MODEL` prints the losses on whatever device JAX has.
"""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from benchmarks.hardware import programs
from benchmarks.hardware.outcomes import verdict
from train.devices.mesh import mesh_of, put_batch, training_execution
from train.engine.loop import init_state, make_step, state_shapes, state_shardings
from train.engine.optimizers import make_optimizer
from train.engine.task import recipe

TOLERANCE = 1e-4
"""Largest relative difference of losses at precision "highest"."""


def prove(model: str, toy: bool, only_compile: bool = False) -> dict[str, Any]:
    """Return whether the losses of every step equal those of the CPU; print the error of the default precision."""
    if only_compile:
        with jax.default_matmul_precision("highest"):
            step_of(model, toy)
        step_of(model, toy)
        return {"outcome": "made"}
    host = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.hardware.steps_proof", model, *(["toy"] if toy else [])],
        stdout=subprocess.PIPE, env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    with jax.default_matmul_precision("highest"):
        own = losses(model, toy)
    default = losses(model, toy)
    wanted = np.asarray(json.loads(host.communicate()[0]))
    off = lambda loss: float(np.max(np.abs(np.asarray(loss) - wanted) / wanted))
    result = verdict({"loss": off(own)}, TOLERANCE)
    return {**result, "default": off(default), "message": f"{result['message']}; default precision {off(default):.1e}"}


def losses(model: str, toy: bool) -> list[float]:
    """Return the loss of each step, from one seed, on batches that are drawn at random."""
    step, begin, put = step_of(model, toy)
    state, sum_of = begin(), [0.0]
    for _ in range(count_of(toy)):
        state = step(state, put())
        sum_of.append(float(state.sums["loss"] / state.sums["count"]) * len(sum_of))
    return np.diff(sum_of).tolist()


def step_of(model: str, toy: bool) -> tuple[Any, Callable[[], Any], Callable[[], Any]]:
    """Return the compiled step, and functions that return the first state and the batch."""
    with programs.on_host():
        config, split, sums, batch = (vit if model == "vit" else lm)(toy)
        mesh = mesh_of([programs.device()])
        steps = recipe(config, make_optimizer(config, count_of(toy), 2)[0], sums)
        shardings = state_shardings(split, steps, mesh)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), batch)
    loss = functools.partial(split.loss, execution=training_execution(mesh))
    step = make_step(loss, steps, shardings, mesh)
    compiled = programs.compile_jitted(step, state_shapes(split, steps, shardings), shapes, on=mesh)

    def begin() -> Any:
        with programs.on_host():
            return jax.device_put(init_state(split.init(jax.random.key(0)), steps), shardings)

    return compiled, begin, lambda: put_batch(batch, mesh)


def count_of(toy: bool) -> int:
    """Return the number of steps."""
    return 3 if toy else 10


def vit(toy: bool) -> tuple[Any, Any, tuple[str, ...], dict[str, np.ndarray]]:
    """Return the config, the model, the names of its sums and a batch of the vision transformer."""
    from train.vit.config import Config
    from train.vit.model import SUMS, Classifier

    sizes: dict[str, Any] = {"size": 8, "width": 16, "layers": 1, "batch": 4} if toy else {"layers": 3, "batch": 32}
    config = Config(pe="rope_mixed", patch=2, **sizes).validated()
    rng = np.random.default_rng(0)
    images = rng.standard_normal((config.batch, config.size, config.size, 1), np.float32)
    return (
        config,
        Classifier(config, 1, 10),
        SUMS,
        {"image": images, "label": rng.integers(0, 10, config.batch).astype(np.int32)},
    )


def lm(toy: bool) -> tuple[Any, Any, tuple[str, ...], dict[str, np.ndarray]]:
    """Return the same of the language model."""
    from train.lm.config import Config
    from train.lm.model import SUMS, Language

    sizes: dict[str, Any] = {"length": 16, "width": 16, "layers": 1, "batch": 2} if toy else {"length": 256, "batch": 8}
    config = Config(pe="t5", **sizes).validated()
    ids = np.random.default_rng(0).integers(0, 90, (config.batch, config.length + 1), np.int32)
    return config, Language(config, 90), SUMS, {"ids": ids}


if __name__ == "__main__":
    with jax.default_matmul_precision("highest"):
        print(json.dumps(losses(sys.argv[1], "toy" in sys.argv[2:])))
