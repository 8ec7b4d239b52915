"""The cost of every encoding in one attention layer, counted and planned: `python -m benchmarks.costs`.

    FLOPs     those that `pejax.explain` counts for each hook (XLA's count of the lowered program, before fusion), at
              the full length and for all pairs of tokens, masked or not, forward pass
    memory    temporary bytes of `attend`, forward and backward, as XLA plans them for this CPU (`memory_analysis`)

Two settings, float32, one example: a causal text model with 2,048 tokens, and a vision transformer with 14 x 14
patches, both with 12 heads of 64 channels. Nothing is timed, so a busy machine gives the same figures; a process that
may use one core alone gets smaller tiles, and half of their memory. XLA counts the body of a loop once: FIRE's program
for CPUs has such loops, and its FLOPs are a lower bound.
"""

import argparse
import datetime
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.memory import temporary
from benchmarks.report import machine
from pejax import ENCODINGS, Dims, make_encoding
from pejax._naming.explain import costs

SETTINGS = {
    "text": Dims(heads=12, head_dim=64, extent=2048, causal=True),
    "image": Dims(heads=12, head_dim=64, axes=2, extent=(14, 14)),
}
RESULTS = Path(__file__).parent / "results" / "costs.json"


def length(dims: Dims) -> int:
    """Return the number of tokens of the trained extent."""
    return math.prod(dims.extent) if isinstance(dims.extent, tuple) else dims.extent or 0


def counted(spec: str, dims: Dims) -> dict[str, int]:
    """Return the FLOPs that an encoding adds in every layer, and those before the first layer, by name.

    Args:
        spec: spec of the encoding.
        dims: dims of the model; their extent is the number of tokens.
    """
    tokens = length(dims)
    found = {"flops_per_layer": 0, "flops_once": 0}
    for hook, flops, unit in costs(make_encoding(spec, dims), dims, tokens):
        times = tokens**2 * dims.heads if "pair" in unit else tokens
        found["flops_once" if hook == "embed" else "flops_per_layer"] += round(flops * times)
    return found


def baseline(dims: Dims) -> dict[str, int]:
    """Return the FLOPs of one layer's attention without an encoding: its products of pairs, and its projections."""
    tokens = length(dims)
    return {"pairs": 4 * dims.width * tokens**2, "projections": 8 * dims.width**2 * tokens}


def measured(names: Sequence[str], settings: dict[str, Dims]) -> dict[str, Any]:
    """Return the record that is kept: the figures of every encoding in every setting, with date and versions."""
    encodings: dict[str, Any] = {}
    for name in names:
        encodings[name] = {}
        for setting, dims in settings.items():
            plan, operands = temporary(make_encoding(name, dims), dims, "float32")
            encodings[name][setting] = {**counted(name, dims), "temporary_bytes": plan, "operand_bytes": operands}
            print(f"{name}, {setting}: {encodings[name][setting]}", flush=True)
    return {
        "command": "python -m benchmarks.costs",
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "attention_flops": {setting: baseline(dims) for setting, dims in settings.items()},
        "encodings": encodings,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Count and plan every encoding, and write the record.

    Args:
        arguments: words of the command line. None = those of the process.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.costs", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FILE", help=f"default: {RESULTS.name}")
    out: Path = parser.parse_args(arguments).out
    record = measured(list(ENCODINGS), SETTINGS)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
