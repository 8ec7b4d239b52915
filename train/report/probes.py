"""What only the weights of a run tell: entropy of attention per head, learned parameters before and after, memory.

It is computed from the newest checkpoint of one run per encoding, and kept beside it as probe.json for the next report.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float
from rich.console import Console

from train.devices.mesh import AXES, make_mesh
from train.engine.checkpoint import written_steps
from train.engine.config import RunConfig
from train.engine.files import write_atomic
from train.engine.session import encoding_params, restore_params
from train.engine.task import Task
from train.evaluate import program
from train.plan.abstract_step import AbstractStep, lm_step, seq2seq_step, vit_step
from train.plan.estimate import step_memory
from train.report.collect import Run

FILE = "probe.json"
"""Its name in a run folder."""

FORMAT = 1
"""Version of the file; others are computed again."""

SHARED = ("layers", "blocks", "attention", "position", "stack")
"""Parts of paths that the parameters of all encodings have."""

NUMBERS = 4096
"""Most numbers of a learned parameter that are kept; of larger ones, only the summary."""


@dataclasses.dataclass(frozen=True)
class Learned:
    """A learned parameter of an encoding before and after training.

    Args:
        name: its path in the model: "heads/frequencies".
        shape: of the array.
        moved: `|after - before| / |before|`, norms over the whole array; NaN if it starts at zero.
        before: minimum, mean and maximum at the start.
        after: the same, trained.
        values: `[before, after]` of the whole array as nested lists; empty for large ones.
    """

    name: str
    shape: tuple[int, ...]
    moved: float
    before: tuple[float, float, float]
    after: tuple[float, float, float]
    values: tuple[Any, ...] = ()


@dataclasses.dataclass(frozen=True)
class Probe:
    """What was measured on the weights of one run.

    Args:
        step: of the checkpoint.
        parameters: number of all parameters.
        position_parameters: number of those of the encoding.
        flops: of a training step; 0 = unknown.
        memory: bytes of a training step on one device, estimated by the planner; 0 = unknown.
        trained: size or length of training.
        entropies: size or length -> name of layers -> entropies `(L, H)`, nats.
        refused: size or length -> why the entropy was not measured.
        learned: parameters of the encoding.
        start: why there is no "before"; empty = the random initial parameters.
    """

    step: int
    parameters: int
    position_parameters: int
    flops: int
    memory: int
    trained: int
    entropies: dict[str, dict[str, list[list[float]]]]
    refused: dict[str, str]
    learned: tuple[Learned, ...]
    start: str = ""


def probes_of(runs: Sequence[Run], console: Console) -> tuple[dict[Path, Probe], dict[str, str]]:
    """Return the probes of runs by folder, and the reasons of those that have none, by place.

    Args:
        runs: one per encoding; those without a checkpoint or a config have no probe.
        console: of the user; each probe is announced.
    """
    found: dict[Path, Probe] = {}
    reasons: dict[str, str] = {}
    for number, run in enumerate(runs, 1):
        if run.folder is None or run.config is None:
            reasons[run.place] = "there is only a line of results.jsonl, no checkpoint"
            continue
        steps = written_steps(run.folder)
        if not steps:
            reasons[run.place] = "it has no checkpoint"
            continue
        kept = read_probe(run.folder, steps[0])
        if kept is None or not {str(size) for size in _sizes(run)} <= {*kept.entropies, *kept.refused}:
            console.print(f"reading the weights of {run.place} ({number} of {len(runs)}) ...", markup=False)
            try:
                kept = measure(run.config, run, console)
            except (OSError, RuntimeError, ValueError) as wrong:  # a damaged checkpoint, or data that are not there
                reasons[run.place] = " ".join(f"{type(wrong).__name__}: {wrong}".split())
                continue
            _keep(run.folder, kept, console)
        found[run.folder] = kept
    return found, reasons


def _keep(folder: Path, probe: Probe, console: Console) -> None:
    try:
        write_atomic(folder / FILE, json.dumps({"format": FORMAT, **dataclasses.asdict(probe)}) + "\n")
    except OSError as refused:
        console.print(f"{folder / FILE} is not kept for the next report: {refused.strerror}", markup=False)


def read_probe(folder: Path, step: int) -> Probe | None:
    """Return the probe of a run folder, or None where there is none of this step and format."""
    try:
        stored = json.loads((folder / FILE).read_text(encoding="utf-8"))
        if stored.pop("format") != FORMAT or stored["step"] != step:
            return None
        listed: list[dict[str, Any]] = stored.pop("learned")
        tupled: Callable[[Any], dict[str, Any]] = lambda one: {
            name: tuple(x) if isinstance(x, list) else x for name, x in one.items()
        }
        learned = tuple(Learned(**tupled(one)) for one in listed)
        return Probe(**stored, learned=learned)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def measure(config: RunConfig, run: Run, console: Console) -> Probe:
    """Return the probe of the newest checkpoint of a run.

    Raises:
        ValueError: no checkpoint is intact, or the data are not there.
    """
    folder = run.folder or Path(config.out)
    quiet = {"probe_every": 0} if hasattr(config, "probe_every") else {}  # the training data need not be probed
    config = dataclasses.replace(config, out=str(folder), mesh="", hosts="", **quiet)
    mesh, task = make_mesh(1), program(run.program).task(config)
    step, params = restore_params(config, task.split, task.sums, folder, mesh, console)
    after = flattened(encoding_params(params, mesh))
    before = {} if config.init else flattened(encoding_params(task.split.init(jax.random.key(config.seed)), mesh))
    start = f"the run started from the weights of {config.init}" if config.init else ""
    entropies, refused = _entropies(task, params, _sizes(run))
    return Probe(
        step=step,
        parameters=sum(leaf.size for leaf in jax.tree.leaves(task.split.shapes)),
        position_parameters=sum(x.size for x in after.values()),
        flops=task.flops,
        memory=_memory(run.program, config, task),
        trained=run.scored[0].trained,
        entropies=entropies,
        refused=refused,
        learned=tuple(learned(name, before.get(name), x) for name, x in after.items()),
        start=start,
    )


def _sizes(run: Run) -> list[int]:
    """Return the trained and the largest size or length that the run was measured at."""
    scored = next((one for one in run.scored if one.extend == "none"), run.scored[0])
    sizes = {size for by_size in scored.scores.values() for size in by_size}
    return sorted({scored.trained, max(sizes)})


def _entropies(task: Task, params: Any, sizes: Sequence[int]) -> tuple[dict[str, Any], dict[str, str]]:
    found: dict[str, Any] = {}
    refused: dict[str, str] = {}
    for size in sizes:
        try:
            if task.head_entropies is None:
                raise ValueError("this program does not measure it")
            found[str(size)] = named_layers(jax.device_get(task.head_entropies(params, size)))
        except ValueError as wrong:
            refused[str(size)] = " ".join(str(wrong).split())
    return found, refused


def named_layers(found: list[list[Float[np.ndarray, "L H"]]]) -> dict[str, list[list[float]]]:
    """Return entropies by the name of the layers: of two stacks, the first is the encoder, the second the decoder."""
    stacks = ("layer",) if len(found) == 1 else ("encoder layer", "decoder layer")
    return {
        (f"cross-attention of {stack}" if call else stack): np.asarray(entropies, np.float64).round(4).tolist()
        for stack, calls in zip(stacks, found, strict=True)
        for call, entropies in enumerate(calls)
    }


def flattened(params: Mapping[str, Any], path: tuple[str, ...] = ()) -> dict[str, Float[np.ndarray, "..."]]:
    """Return the arrays in nested dicts by path, without the parts that all encodings share."""
    found = {}
    for name, value in params.items():
        if isinstance(value, Mapping):
            found |= flattened(value, (*path, name))
        else:
            found["/".join(part for part in (*path, name) if part not in SHARED)] = np.asarray(value, np.float64)
    return found


def learned(name: str, before: Float[np.ndarray, "..."] | None, after: Float[np.ndarray, "..."]) -> Learned:
    """Return a learned parameter before and after training; before is None where it is unknown."""
    norm = 0.0 if before is None else float(np.linalg.norm(before))
    moved = float(np.linalg.norm(after - before)) / norm if before is not None and norm else math.nan
    kept = before is not None and after.size <= NUMBERS
    values = (before.round(7).tolist(), after.round(7).tolist()) if kept and before is not None else ()
    return Learned(name, after.shape, moved, _summary(before), _summary(after), values)


def _summary(x: Float[np.ndarray, "..."] | None) -> tuple[float, float, float]:
    if x is None or not x.size:
        return math.nan, math.nan, math.nan
    return float(x.min()), float(x.mean()), float(x.max())


def _memory(name: str, config: Any, task: Task) -> int:
    """Return the planner's estimate of the memory of a training step on one device, bytes."""
    split: Any = task.split
    steps: dict[str, Callable[[], AbstractStep]] = {
        "vit": lambda: vit_step(config, split.vit.channels, split.vit.classes),
        "lm": lambda: lm_step(config, split.decoder.vocab),
        "seq2seq": lambda: seq2seq_step(config),
    }
    return round(sum(step_memory(steps[name](), dict.fromkeys(AXES, 1)).values()))
