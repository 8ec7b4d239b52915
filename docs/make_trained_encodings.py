"""Train the encodings that pictures show as trained, and write their parameters.

    python docs/make_trained_encodings.py [PROGRAM/NAME ...]

Each is the only encoding of a small vision transformer on Fashion-MNIST (`vit/NAME`) or of a small language model on
Shakespeare (`lm/NAME`), trained for about a minute on one core. Without names all of them are trained.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pejax._visualize.trained import IMAGES, STORED, TEXT, Training
from train.devices.mesh import make_mesh
from train.engine.session import encoding_params, restore_params
from train.engine.stored_config import load_config
from train.engine.terminal import user_console
from train.lm import config as lm_config
from train.lm import program as lm_program
from train.vit import config as vit_config
from train.vit import program as vit_program

OPTIONS = {
    "vit": "--epochs=4 --eval_sizes=28 --extend=none --probe_every=0",
    "lm": "--length=32 --width=32 --layers=2 --batch=32 --steps=2000 --eval_lengths=32 --probe_every=0",
}
"""Settings of each program; what is left is its default."""
PROGRAMS: dict[str, Any] = {"vit": (vit_config, vit_program), "lm": (lm_config, lm_program)}
DIGITS = 3
"""Significant digits of a stored number."""


def trained(training: Training, name: str, folder: Path) -> Any:
    """Train a model and return the parameters of its encoding; of several layers, those of the first."""
    spec, options = training.specs[name], OPTIONS[training.program].split()
    program = f"train.{training.program}"
    subprocess.run([sys.executable, "-m", program, f"--pe={spec}", *options, f"--out={folder}"], check=True)
    config, program = PROGRAMS[training.program]
    config, mesh = load_config(config.Config, folder).validated(), make_mesh(1)
    task = program.make_task(config)
    _, params = restore_params(config, task.split, task.sums, folder, mesh, user_console())
    ((layered, found),) = positions(encoding_params(params, mesh))
    return jax.tree.map(lambda leaf: leaf[0], found) if layered else found


def positions(tree: Any, layered: bool = False) -> Iterator[tuple[bool, Any]]:
    """Yield the parameters of encodings in those of a model, and whether they have an axis of layers."""
    for name, value in tree.items():
        if name == "position":
            yield layered, value
        elif isinstance(value, dict):
            yield from positions(value, layered or name == "layers")


def rounded(leaf: Any) -> Any:
    """Return an array as nested lists of rounded numbers."""
    return np.vectorize(lambda x: float(f"{x:.{DIGITS}g}"), otypes=[float])(np.asarray(leaf, np.float64)).tolist()


def write(made: dict[str, Any]) -> None:
    """Write the file, one line per encoding."""
    programs = []
    for program, entries in made.items():
        lines = (f" {json.dumps(name)}: {json.dumps(value, separators=(',', ':'))}" for name, value in entries.items())
        programs.append(f"{json.dumps(program)}: {{\n" + ",\n".join(lines) + "\n}")
    STORED.write_text("{\n" + ",\n".join(programs) + "\n}\n", encoding="utf-8")


def main() -> None:
    """Train those that are named, or all, and write the file after each."""
    stored = json.loads(STORED.read_text(encoding="utf-8")) if STORED.is_file() else {}
    made: dict[str, Any] = {}
    for training in (IMAGES, TEXT):
        program, before = training.program, stored.get(training.program, {})
        made[program] = {name: before[name] for name in ("command", *training.specs) if name in before}
    for training in (IMAGES, TEXT):
        program = training.program
        made[program]["command"] = f'python -m train.{program} --pe="SPEC" {OPTIONS[program]}'
        for name in training.specs:
            if not sys.argv[1:] or f"{program}/{name}" in sys.argv[1:]:
                with tempfile.TemporaryDirectory() as parent:
                    made[program][name] = jax.tree.map(rounded, trained(training, name, Path(parent) / "run"))
                write(made)


if __name__ == "__main__":
    main()
