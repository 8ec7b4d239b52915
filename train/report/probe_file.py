"""The file probe.json, measurements on the weights of a run: its content, writing and reading."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from train.engine.files import read_sealed, with_digest, write_atomic
from train.report.sound import LARGEST as LARGEST_NUMBER
from train.report.sound import SIZES, drawable

FILE = "probe.json"
"""Name of the file in a run folder."""

FORMAT = 1
"""Version of the file; others are computed again."""

PARAMETERS, HEADS = 32, 2**14
"""Most learned parameters and entropies in the file."""

NUMBERS = 4096
"""Most numbers of a learned parameter that are kept; of larger ones, only the summary."""


@dataclasses.dataclass(frozen=True)
class Learned:
    """A learned parameter of an encoding before and after training.

    Args:
        name: its path in the model: "heads/frequencies".
        shape: shape of the array.
        moved: `|after - before| / |before|`, norms over the whole array; NaN if it starts at zero.
        before: minimum, mean and maximum at the start.
        after: minimum, mean and maximum after training.
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
    """The measurements on the weights of one run.

    Args:
        step: step of the checkpoint.
        parameters: number of all parameters.
        position_parameters: number of the encoding's parameters.
        flops: FLOPs of a training step; 0 = unknown.
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


def write_probe(probe: Probe, path: Path) -> None:
    """Write a probe.

    Raises:
        OSError: it cannot be written.
    """
    write_atomic(path, json.dumps(with_digest({"format": FORMAT, **dataclasses.asdict(probe)})) + "\n")


def read_probe(path: Path, step: int | None = None) -> Probe | None:
    """Return the probe in a file, or None where there is none of this format and, if given, of this step."""
    try:
        stored = read_sealed(path)
        if stored.pop("format") != FORMAT or step not in (None, stored["step"]):
            return None
        listed = [{name: _as_tuple(value) for name, value in entry.items()} for entry in stored.pop("learned")]
        probe = Probe(**stored, learned=tuple(Learned(**entry) for entry in listed))
        _require_sound(probe)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return probe


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _require_sound(probe: Probe) -> None:
    """Check the types and numbers of a probe that was read.

    Raises:
        ValueError, TypeError, AttributeError: there is something else in it.
    """
    numbers = (probe.step, probe.parameters, probe.position_parameters, probe.flops, probe.memory, probe.trained)
    by_layer = [pair for by in probe.entropies.values() for pair in by.items()]
    texts = (
        probe.start,
        *probe.refused.values(),
        *(parameter.name for parameter in probe.learned),
        *(name for name, _ in by_layer),
    )
    heads = [head for _, layers in by_layer for head in layers]
    sizes = [int(size) for size in (*probe.entropies, *probe.refused)]
    if not all(type(n) is int and n >= 0 for n in numbers) or not all(isinstance(text, str) for text in texts):
        raise ValueError("a probe must have numbers and texts in their places")
    if len(probe.learned) > PARAMETERS or len(sizes) > PARAMETERS or not all(size in SIZES for size in sizes):
        raise ValueError(f"a probe must have at most {PARAMETERS} parameters and sizes")
    if sum(map(len, heads)) > HEADS or not all(head and all(map(drawable, head)) for head in heads):
        raise ValueError(f"a probe must have at most {HEADS:,} entropies, which are numbers")
    if sum(map(_count_checked, probe.learned)) > 8 * NUMBERS:
        raise ValueError(f"a probe must have at most {8 * NUMBERS:,} numbers of parameters")


def _count_checked(parameter: Learned) -> int:
    """Return how many numbers of a learned parameter there are, after checking it.

    Raises:
        ValueError, TypeError: it has something else.
    """
    summaries = (parameter.moved, *parameter.before, *parameter.after)
    if len(summaries) != 7 or not all(math.isnan(x) or abs(x) <= LARGEST_NUMBER for x in summaries):
        raise ValueError("a learned parameter must have a change, and three numbers before and after it")
    if not all(type(side) is int and side >= 0 for side in parameter.shape):
        raise ValueError("the shape of a parameter must be integers")
    if not parameter.values:
        return 0
    before, after = (np.asarray(values) for values in parameter.values)
    flat = [*before.ravel().tolist(), *after.ravel().tolist()]
    if not flat or not before.shape == after.shape == parameter.shape or not all(map(drawable, flat)):
        raise ValueError("the values of a parameter must be numbers in its shape")
    return before.size
