"""An encoding in words: where it acts, what it learns, what it costs per token."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array

from pejax._encoding import Dims, Encoding, Params, adapt, merge_params, pair_bias, split_params

ACTS = {
    "adapt": "depends on the length or the grid",
    "embed": "changes the tokens once, before the first layer",
    "rotate": "turns queries and keys in every layer, before they meet",
    "rotate_keys": "turns keys in a way of their own",
    "bands": "turns them in another way in each range of distances, and merges the parts",
    "bias": "adds a term to every logit in every layer, head by head",
    "relative_values": "adds a term to the attention output in every layer, head by head",
}
LENGTH = 64


def explain(encoding: Encoding, dims: Dims | None = None) -> str:
    """Say in words where an encoding acts, what it learns, what it costs and whether it is shift invariant.

    Args:
        encoding: the record.
        dims: those it was made for; with them the cost is counted too, in floating point operations as XLA counts
            them before it fuses (the encoding's own, without the model around it).

    Returns:
        A few lines, each `hook or property: sentence`.
    """
    lines = [f"{name}: {text}" for name, text in ACTS.items() if getattr(encoding, name)]
    if encoding.distance_bias is not None:
        lines.append("distance_bias: the bias depends on key - query alone")
    lines = lines or ["nothing: position enters through the causal mask alone, or not at all"]
    shared, layer = (count_params(init) for init in (encoding.init, encoding.init_layer))
    lines.append(f"parameters: {shared:,} in the model, {layer:,} in each layer")
    if dims is not None:
        counted = [f"cost: {name} {flops:,.0f} flops {unit}" for name, flops, unit in costs(encoding, dims)]
        lines += counted or ["cost: nothing"]
    else:
        lines.append(f"cost: {_cost_in_words(encoding)}")
    moved = "no logit" if encoding.shift_invariant else "the logits"
    lines.append(f"shift: moving all tokens together changes {moved}")
    return "\n".join(lines)


def count_params(init: Callable[[Array], Params]) -> int:
    """Return how many numbers `init` draws; nothing is computed."""
    shapes = jax.eval_shape(lambda: init(jax.random.key(0)))
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


def costs(encoding: Encoding, dims: Dims) -> list[tuple[str, float, str]]:
    """Return `(hook, floating point operations, per what)` of every hook that computes, counted on 64 tokens."""
    params = merge_params(*(init(jax.random.key(0)) for init in (encoding.init, encoding.init_layer)))
    params = adapt(encoding, params, dims.extent or (LENGTH if dims.axes == 1 else (8,) * dims.axes))
    shared, heads = split_params(params)
    params_h = {**shared, **jax.tree.map(lambda leaf: leaf[0], heads)}
    x, q, k, head, weights = (
        jnp.zeros(shape, jnp.float32)
        for shape in (
            (LENGTH, dims.width),
            (LENGTH, dims.heads, dims.head_dim),
            (LENGTH, dims.kv_heads, dims.head_dim),
            (LENGTH, dims.head_dim),
            (LENGTH, LENGTH),
        )
    )
    at = jnp.zeros((LENGTH,) if dims.axes == 1 else (LENGTH, dims.axes), jnp.int32)
    token, pair = "a token", "a pair of tokens, in each layer and head"
    calls = [
        ("embed", encoding.embed, (params, x, at), LENGTH, token),
        ("rotate (queries)", encoding.rotate, (params, q, at), LENGTH, f"{token}, in each layer"),
        ("rotate (keys)", encoding.rotate_keys or encoding.rotate, (params, k, at), LENGTH, f"{token}, in each layer"),
        ("bias", pair_bias(encoding), (params_h, head, head, at, at), LENGTH**2, pair),
        ("relative_values", encoding.relative_values, (params_h, weights, at, at), LENGTH**2, pair),
    ]
    return [(name, _flops(hook, *args) / count, unit) for name, hook, args, count, unit in calls if hook is not None]


def _flops(hook: Callable[..., Array], *args: object) -> float:
    return float(dict(jax.jit(hook).lower(*args).cost_analysis() or {}).get("flops", math.nan))


def _cost_in_words(encoding: Encoding) -> str:
    per_token = encoding.embed is not None or encoding.rotate is not None
    per_pair = pair_bias(encoding) is not None or encoding.relative_values is not None
    words = ["grows with the tokens"] * per_token + ["grows with the pairs of tokens"] * per_pair
    return " and ".join(words) or "nothing"
