"""Train the learned biases of their page and write the parameters: `python docs/make_trained_biases.py`.

Each is the only encoding of a small vision transformer on Fashion-MNIST, trained for a minute or two on one core.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pejax._visualize.pages.bias import LEARNED, TRAINED
from train.devices.mesh import make_mesh
from train.engine.session import encoding_params, restore_params
from train.engine.stored_config import load_config
from train.engine.terminal import user_console
from train.vit.config import Config
from train.vit.program import make_task

OPTIONS = ("--epochs=4", "--eval_sizes=28", "--extend=none", "--probe_every=0")
DIGITS = 4
"""Significant digits of a stored number."""


def trained(spec: str, folder: Path) -> Any:
    """Train a model and return the parameters of its encoding."""
    command = [sys.executable, "-m", "train.vit", f"--pe={spec}", *OPTIONS, f"--out={folder}", "--overwrite"]
    subprocess.run(command, check=True)
    config, mesh = load_config(Config, folder).validated(), make_mesh(1)
    task = make_task(config)
    _, params = restore_params(config, task.split, task.sums, folder, mesh, user_console())
    return encoding_params(params, mesh)["position"]


def rounded(leaf: Any) -> Any:
    """Return an array as nested lists of rounded numbers."""
    return np.vectorize(lambda x: float(f"{x:.{DIGITS}g}"), otypes=[float])(np.asarray(leaf, np.float64)).tolist()


def main() -> None:
    """Train all of them, and write the file."""
    made: dict[str, Any] = {"command": f'python -m train.vit --pe="SPEC" {" ".join(OPTIONS)}'}
    with tempfile.TemporaryDirectory() as parent:
        for name, spec in LEARNED.items():
            made[name] = jax.tree.map(rounded, trained(spec, Path(parent) / name))
    lines = (f"{json.dumps(name)}: {json.dumps(value, separators=(',', ':'))}" for name, value in made.items())
    TRAINED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
