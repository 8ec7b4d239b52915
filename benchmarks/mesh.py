"""Weak scaling: the same work for each device, devices that share the cores of this machine.

Nothing gets faster by it: what is seen is the cost of splitting, the collectives and all that is done twice.
`python -m benchmarks.mesh fsdp 4` measures once, in this process, and prints JSON.
"""

import argparse
import functools
import json
import statistics
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np

from benchmarks.report import Case, Column, Part, Settings
from benchmarks.timing import Say, seconds_of
from train.devices.mesh import AXES, make_mesh, put_batch, training_execution
from train.engine.loop import init_state, make_step, state_shardings
from train.engine.optimizers import make_optimizer
from train.engine.update import Recipe
from train.lm.config import Config
from train.lm.model import SUMS, Language

DEVICES = (1, 2, 4, 8)
PER_DEVICE, LENGTH = 4, 256
"""Windows for each device, whatever the mesh does with them, and their tokens."""

ROOT = Path(__file__).parents[1]


def step_seconds(axis: str, devices: int, rounds: int, toy: bool) -> list[float]:
    """Return the seconds of training steps on a mesh of one axis; must come before JAX asks for devices."""
    jax.config.update("jax_num_cpu_devices", devices)
    length, width = (16, 32) if toy else (LENGTH, 256)
    config = Config(pe="alibi", width=width, layers=4, heads=8, length=length, batch=PER_DEVICE * devices).validated()
    mesh, language = make_mesh(devices, f"{axis}={devices}"), Language(config, 256)
    recipe = Recipe(make_optimizer(config, 1000, 10)[0], SUMS, config.clip)
    shardings = state_shardings(language, recipe, mesh)
    loss = functools.partial(language.loss, execution=training_execution(mesh))
    step = make_step(loss, recipe, shardings, mesh)
    init = jax.jit(functools.partial(init_state, recipe=recipe), out_shardings=shardings)
    states = [init(language.init(jax.random.key(0), shardings.params))]
    ids = np.random.default_rng(0).integers(0, 256, (config.batch, length + 1), np.int32)
    batch = put_batch({"ids": ids, "segments": np.ones_like(ids)}, mesh)

    def call() -> object:
        states.append(step(states.pop(), batch))
        return jax.block_until_ready(states[0].step)

    for _ in range(2):
        call()
    return [seconds_of(call) for _ in range(rounds)]


def measure(axis: str, rounds: int, toy: bool, say: Say) -> Column:
    """Measure every number of devices, each in a process of its own, and compare with one device."""
    found = {}
    for number, devices in enumerate(DEVICES[: 2 if toy else None]):
        say(f"{devices} devices", number / len(DEVICES))
        command = [sys.executable, "-m", "benchmarks.mesh", axis, str(devices), f"--rounds={rounds}"]
        command += ["--toy"] if toy else []
        printed = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT, encoding="utf-8"
        ).stdout
        found[devices] = json.loads(printed.splitlines()[-1])
    alone = statistics.median(found[1])
    cells = {}
    for devices, seconds in found.items():
        middle = statistics.median(seconds)
        speed = PER_DEVICE * devices * (16 if toy else LENGTH) / middle
        cells[f"{devices} devices"] = f"{speed:,.0f} tok/s, {devices * alone / middle:.2f}"
    return Column(cells, seconds={str(devices): seconds for devices, seconds in found.items()})


def cases(settings: Settings) -> list[Case]:
    """Return one column for each axis."""
    rounds = 2 if settings.toy else 2 * settings.rounds
    found = []
    for axis in AXES[: 1 if settings.toy else None]:
        measured = functools.partial(measure, axis, rounds, settings.toy)
        found.append(Case("Tokens a second, and their ratio to one device's", axis, measured, 60))
    return found


PART = Part(
    "Weak scaling on host devices",
    "A decoder of 4 layers of 256, ALiBi, float32, windows of 256 tokens, 4 of them for each device; 1 to 8 host "
    "devices on one axis of the mesh, all on the cores of this machine, so that 1.00 is the best there is: what is "
    "below is what splitting costs. With one device XLA spreads each operation over the cores.",
    cases,
    "devices",
)


def main() -> None:
    """Measure once and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("axis", choices=AXES)
    parser.add_argument("devices", type=int)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--toy", action="store_true")
    given = parser.parse_args()
    print(json.dumps(step_seconds(given.axis, given.devices, given.rounds, given.toy)))


if __name__ == "__main__":
    main()
