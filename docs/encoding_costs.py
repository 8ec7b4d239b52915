"""The costs of an encoding: parameters counted from shapes, and the committed figures, as cells of a table."""

import jax
from measured import Measurements

import pejax

LAYERS = 12
TEXT = pejax.Dims(heads=12, head_dim=64, extent=2048, causal=True)
IMAGE = pejax.Dims(heads=12, head_dim=64, axes=2, extent=(14, 14))
SETTINGS = {"text": (TEXT, "text, 2,048 tokens"), "image": (IMAGE, "image, 14 × 14 patches")}


def parameters(name: str, dims: pejax.Dims) -> tuple[int, int]:
    """Return the number of parameters per model and per layer, from their shapes."""
    encoding = pejax.make_encoding(name, dims)
    counts = []
    for init in (encoding.init, encoding.init_layer):
        shapes = jax.eval_shape(init, jax.random.key(0))
        counts.append(sum(leaf.size for leaf in jax.tree.leaves(shapes)))
    return counts[0], counts[1]


def amount(value: float, unit: str) -> str:
    """Return a number with a prefix of its unit, three digits."""
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def cost_rows(name: str, found: Measurements) -> list[list[str]]:
    """Return the cells of the table of costs of one encoding: one row per setting."""
    if name not in found.costs["encodings"]:
        raise ValueError(f"costs.json must have every encoding, got none of {name!r}: run python -m benchmarks.costs")
    rows = []
    for setting, (dims, label) in SETTINGS.items():
        measured, bare = (found.costs["encodings"][one][setting] for one in (name, "none"))
        whole = sum(found.costs["attention_flops"][setting].values())
        per_layer, once = measured["flops_per_layer"], measured["flops_once"]
        shared, layer = parameters(name, dims)
        extra = (measured["temporary_bytes"] - bare["temporary_bytes"]) / 2**20
        flops = f"{amount(per_layer, 'FLOP')} ({100 * per_layer / whole:.1f} %)" if per_layer else "0"
        rows.append([
            label,
            f"{shared + LAYERS * layer:,}",
            flops,
            amount(once, "FLOP") if once else "0",
            f"{extra:.1f} MiB",
        ])  # fmt: skip
    return rows


def times_of(name: str, found: Measurements) -> str:
    """Return the time of attention, forward and backward, as a multiple of that without an encoding; "" = unknown."""
    measured = found.times["forward and backward"].rows.get(name)
    return "× 1" if name == "none" else f"× {measured[0].split(' ')[0]}" if measured else ""


def markdown_table(head: list[str], rows: list[list[str]]) -> str:
    """Return a table whose first column is text and whose others are numbers."""
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])
