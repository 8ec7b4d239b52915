"""`explain`: describes an encoding in words, with its parameters and its cost."""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array

from pejax._calls.arguments import checked
from pejax._calls.hook_calls import call_token_hook
from pejax._record.dims import Dims
from pejax._record.encoding import Encoding, Params, adapt, init_params, pair_bias, split_params
from pejax._record.presets import PRESETS
from pejax._record.specs import EncodingSpec, Spec

SENTENCES = {
    "adapt": "some parameters depend on the length or grid",
    "embed": "changes the token vectors once, before the first layer",
    "rotate": "rotates queries and keys in every layer, before their dot product",
    "rotate_keys": "rotates keys differently from queries",
    "bands": "rotates differently for each range of distances, and merges the outputs of attention",
    "bias": "adds a term to every logit, in every layer and head",
    "relative_values": "adds a term to the attention output, in every layer and head",
    "unplaced_bias": "adds a number to the logits of keys without a position",
}
"""The sentences of `explain` on each hook."""

TOKENS = 64
"""Tokens of the arrays that hooks are counted on; on two axes 8 x 8."""


@checked
def explain(encoding: Encoding, dims: Dims | None = None) -> str:
    """Describe in words where an encoding acts, what it learns, what it costs and whether it is shift invariant.

    Args:
        encoding: the record.
        dims: the dims that the encoding was made for. If given, the cost of every hook is counted in floating point
            operations, as XLA counts them before fusion, without the rest of the model. None = the cost in words.

    Returns:
        A few lines, each `hook or property: sentence`.

    Examples:
        >>> import pejax
        >>> print(explain(pejax.encodings.rope(pejax.Dims(heads=8, head_dim=64), base=50.0)))
        encoding: rope(base=50.0)
        rotate: rotates queries and keys in every layer, before their dot product
        parameters: 0 per model, 0 per layer
        cost: grows with the number of tokens
        shift: adding the same offset to all positions changes no logit
    """
    lines = [f"encoding: {encoding.spec}", *_presets(encoding.spec)] if encoding.spec else []
    hooks = [f"{name}: {text}" for name, text in SENTENCES.items() if getattr(encoding, name)]
    if encoding.distance_bias is not None:
        hooks.append("distance_bias: the term added to a logit depends on key - query alone")
    lines += hooks or ["no hooks: position enters through the causal mask, or not at all"]
    shared, layer = (count_params(init) for init in (encoding.init, encoding.init_layer))
    lines.append(f"parameters: {shared:,} per model, {layer:,} per layer")
    if dims is not None:
        counted = [f"cost: {name} {flops:,.0f} flops {unit}" for name, flops, unit in costs(encoding, dims)]
        lines += counted or ["cost: none"]
    else:
        lines.append(f"cost: {_cost_in_words(encoding)}")
    repeating = [f"every {period} on axis {axis}" for axis, period in enumerate(encoding.periods) if period]
    lines += [f"periods: positions repeat {', '.join(repeating)}"] * bool(repeating)
    changed = "no logit" if encoding.shift_invariant else "the logits"
    lines.append(f"shift: adding the same offset to all positions changes {changed}")
    return "\n".join(lines)


def _presets(spec: Spec) -> list[str]:
    """Return the options, positions and source of each preset in a spec."""
    lines = []
    for part in spec.parts:
        preset = PRESETS.get(dict(part.options).get("preset", ""))
        if preset is not None:
            lines.append(f"preset: {EncodingSpec(part.name, preset.options)}; {preset.source}")
            lines.append(f"positions of the preset: {preset.positions}")
    return lines


def count_params(init: Callable[[Array], Params]) -> int:
    """Return the number of parameters that `init` makes, from their shapes alone."""
    shapes = jax.eval_shape(lambda: init(jax.random.key(0)))
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


def costs(encoding: Encoding, dims: Dims, tokens: int = TOKENS) -> list[tuple[str, float, str]]:
    """Return `(hook, floating point operations, unit)` for every hook that computes.

    The unit is what the operations are counted per: a token, or a pair of tokens.

    Args:
        encoding: the record.
        dims: dims of the model.
        tokens: number of tokens in the arrays that hooks are counted on. The more there are, the less operations that
            a hook of pairs needs once per token (Shaw's product of a query and the table) weigh per pair.
    """
    params = init_params(encoding, jax.random.key(0))
    params = adapt(encoding, params, dims.extent or (TOKENS if dims.axes == 1 else (8,) * dims.axes))
    shared, heads = split_params(params)
    params_h = {**shared, **jax.tree.map(lambda leaf: leaf[0], heads)}
    x, q, k, head, weights = (
        jnp.zeros(shape, jnp.float32)
        for shape in (
            (tokens, dims.width),
            (tokens, dims.heads, dims.head_dim),
            (tokens, dims.kv_heads, dims.head_dim),
            (tokens, dims.head_dim),
            (tokens, tokens),
        )
    )
    # integers have fewer turns per period, and are no coordinates where there is no extent
    kind = jnp.float32 if encoding.periods or (encoding.embed and dims.extent is None) else jnp.int32
    positions = jnp.zeros((tokens,) if dims.axes == 1 else (tokens, dims.axes), kind)
    token_hook = lambda name: (hook := getattr(encoding, name)) and functools.partial(call_token_hook, name, hook)
    token, layer, pair = "per token", "per token and layer", "per pair of tokens, layer and head"
    calls = [
        ("embed", token_hook("embed"), (params, x, positions), tokens, token),
        ("rotate (queries)", token_hook("rotate"), (params, q, positions), tokens, layer),
        ("rotate (keys)", token_hook("rotate_keys") or token_hook("rotate"), (params, k, positions), tokens, layer),
        ("bias", pair_bias(encoding), (params_h, head, head, positions, positions), tokens**2, pair),
        ("relative_values", encoding.relative_values, (params_h, weights, positions, positions), tokens**2, pair),
    ]
    return [(name, _flops(hook, *args) / count, unit) for name, hook, args, count, unit in calls if hook is not None]


def _flops(hook: Callable[..., Array], *args: object) -> float:
    """Return XLA's count of floating point operations of one call; NaN if it has none."""
    return float(dict(jax.jit(hook).lower(*args).cost_analysis() or {}).get("flops", math.nan))


def _cost_in_words(encoding: Encoding) -> str:
    """Return how the cost grows: with the number of tokens, or of pairs of tokens."""
    per_token = encoding.embed is not None or encoding.rotate is not None
    per_pair = pair_bias(encoding) is not None or encoding.relative_values is not None
    counts = ["number of tokens"] * per_token + ["number of pairs of tokens"] * per_pair
    return f"grows with the {' and with the '.join(counts)}" if counts else "none"
