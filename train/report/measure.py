"""Measure the weights of one run in a process of its own: a bad checkpoint may take it down, or all memory.

    python -m train.report.measure RUN_DIR FILE --trained=28 --size=28 --size=64

It is started by `train.report`, and writes the probe into FILE.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float
from rich.console import Console

from train.devices.cpu import finish
from train.devices.mesh import AXES, make_mesh
from train.engine.command_line import Parser
from train.engine.help import About
from train.engine.outside import missing_options
from train.engine.run_folder import RunFolder
from train.engine.session import encoding_params, restore_params
from train.engine.stopping import report_errors
from train.engine.task import Program, Task, require_trainable
from train.engine.terminal import user_console
from train.plan.estimate import step_memory
from train.report.probe_file import NUMBERS, Learned, Probe, write_probe

SHARED = ("layers", "blocks", "attention", "position", "stack")
"""Parts of paths that the parameters of all encodings have."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = Parser("python -m train.report.measure", About(__doc__ or ""))
    parser.add_argument("run", type=Path, metavar="RUN_DIR", help="run folder")
    parser.add_argument("file", type=Path, metavar="FILE", help="file to write the probe into")
    parser.add_argument("--trained", type=int, metavar="int", help="size or length of training")
    parser.add_argument(
        "--size",
        type=int,
        action="append",
        metavar="int",
        help="size or length to measure the entropy at",
    )
    parser.add_argument(
        "--data",
        action="append",
        default=[],
        metavar="str",
        help="data in files that may be read",
    )
    with report_errors(ValueError, TypeError, OSError, RuntimeError):
        options = parser.parse_args(argv)
        console = user_console()
        write_probe(measure(options.run, options.trained, options.size, options.data, console), options.file)
    return 0


def measure(folder: Path, trained: int, sizes: Sequence[int], data: Sequence[str], console: Console) -> Probe:
    """Return the probe of the newest checkpoint of a run.

    Args:
        folder: run folder.
        trained: size or length of training.
        sizes: sizes or lengths at which the entropy is measured.
        data: specs of data in files that may be read.
        console: prints to the user.

    Raises:
        ValueError: no checkpoint is intact, the run has other files than `data`, the data are not there, or the model
            does not fit into memory.
    """
    run = RunFolder(folder)
    config = run.config
    if missing_options(config, data):
        raise ValueError(f"needs {missing_options(config, data)}")
    config = config.validated()
    quiet = {"probe_every": 0} if hasattr(config, "probe_every") else {}  # the training data need not be probed
    config = dataclasses.replace(config, out=str(folder), mesh="", hosts="", **quiet)
    mesh = make_mesh(1)
    require_trainable(config, config.tokens, mesh)
    task = run.program.task(config)
    step, params = restore_params(config, task.split, task.sums, folder, mesh, console)
    after = flatten(encoding_params(params, mesh))
    before = {} if config.init else flatten(encoding_params(task.split.init(jax.random.key(config.seed)), mesh))
    start = f"the run started from the weights of {config.init}" if config.init else ""
    entropies, refused = _entropies(task, params, sizes)
    return Probe(
        step=step,
        parameters=sum(leaf.size for leaf in jax.tree.leaves(task.split.shapes)),
        position_parameters=sum(x.size for x in after.values()),
        flops=task.flops,
        memory=_memory(run.program, task),
        trained=trained,
        entropies=entropies,
        refused=refused,
        learned=tuple(compare_learned(path, before.get(path), x) for path, x in after.items()),
        start=start,
    )


def _entropies(task: Task, params: Any, sizes: Sequence[int]) -> tuple[dict[str, Any], dict[str, str]]:
    entropies: dict[str, Any] = {}
    refused: dict[str, str] = {}
    for size in sizes:
        try:
            if task.head_entropies is None:
                raise ValueError("this program does not measure it")
            entropies[str(size)] = name_layers(jax.device_get(task.head_entropies(params, size)))
        except ValueError as wrong:
            refused[str(size)] = " ".join(str(wrong).split())
    return entropies, refused


def name_layers(by_stack: list[list[Float[np.ndarray, "L H"]]]) -> dict[str, list[list[float]]]:
    """Return entropies by the name of the layers: of two stacks, the first is the encoder, the second the decoder."""
    stacks = ("layer",) if len(by_stack) == 1 else ("encoder layer", "decoder layer")
    return {
        (f"cross-attention of {stack}" if call else stack): np.asarray(entropies, np.float64).round(4).tolist()
        for stack, calls in zip(stacks, by_stack, strict=True)
        for call, entropies in enumerate(calls)
    }


def flatten(params: Mapping[str, Any], path: tuple[str, ...] = ()) -> dict[str, Float[np.ndarray, "..."]]:
    """Return the arrays in nested dicts by path, without the parts that all encodings share."""
    arrays = {}
    for name, value in params.items():
        if isinstance(value, Mapping):
            arrays |= flatten(value, (*path, name))
        else:
            arrays["/".join(part for part in (*path, name) if part not in SHARED)] = np.asarray(value, np.float64)
    return arrays


def compare_learned(name: str, before: Float[np.ndarray, "..."] | None, after: Float[np.ndarray, "..."]) -> Learned:
    """Return a learned parameter before and after training; before is None where it is unknown."""
    norm = 0.0 if before is None else float(np.linalg.norm(before))
    moved = float(np.linalg.norm(after - before)) / norm if before is not None and norm else math.nan
    is_small = before is not None and after.size <= NUMBERS
    values = (before.round(7).tolist(), after.round(7).tolist()) if is_small and before is not None else ()
    return Learned(name, after.shape, moved, _summary(before), _summary(after), values)


def _summary(x: Float[np.ndarray, "..."] | None) -> tuple[float, float, float]:
    if x is None or not x.size:
        return math.nan, math.nan, math.nan
    return float(x.min()), float(x.mean()), float(x.max())


def _memory(program: Program, task: Task) -> int:
    """Return the planner's estimate of the memory of a training step on one device, bytes."""
    step = program.step
    return round(sum(step_memory(step(task.split), dict.fromkeys(AXES, 1)).values())) if step else 0


if __name__ == "__main__":
    finish(main)
