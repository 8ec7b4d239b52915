"""A bias linear in the distance, folded into extra columns of q and k, for fused kernels that take no bias.

If no query sees a key after it, a bias `a·(p_j - p_i)`, of slope a and positions p, may be replaced by `a·p_j`: the two
differ by a constant per query, which softmax ignores. With a and p written as sums of three bfloat16 parts, their
product is

    a·p = a1·p1 + a1·p2 + a1·p3 + a2·p1 + a2·p2 + a3·p1

with a relative error of 2^-24. That takes six columns: the parts of a / scale extend q and those of p extend k, so that
query heads of different slopes can share a key head. The error of a logit does not shrink with the distance: at length
L and slope a, it is about a·L·2^-24.

Reference:
    Press et al. 2022 (arXiv 2108.12409), section 3: softmax ignores the constant.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Num

from pejax._attention.core.operands import Layout, Operands
from pejax._attention.core.options import Options, sides
from pejax._ops.compile_time import are_known
from pejax._tokens.positions import TokenPositions

PARTS = ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0))
"""The six products of the sum above, each as the index of a part of a and the index of a part of p."""
COLUMNS = 8
"""Number of extra columns. The last two are zero: fused kernels need multiples of 8."""
LARGEST_SPAN = 2**24
"""Largest difference between the last and the first position at which three parts are exact."""


def fold(
    q: Float[Array, "N T H D"],
    k: Float[Array, "N S K D"],
    slopes: Float[Array, " H"],
    positions: Num[Array, "#N S"],
    *,
    scale: float,
) -> tuple[Float[Array, "N T H E"], Float[Array, "N S K E"]]:
    """Return q and k with E = D + 8 channels, for which `scale·q·k` is larger by `slope_h · (p_j - c)`.

    c is the middle position; subtracting it keeps the numbers small.

    Args:
        q: queries.
        k: keys.
        slopes: slope of each head's bias, in logits per unit of key - query.
        positions: positions of the keys, in tokens, which span at most 2^24.
        scale: factor of q·k.
    """
    middle = positions[:, positions.shape[1] // 2, None]
    position_parts, slope_parts = _parts((positions - middle).astype(jnp.float32)), _parts(slopes / scale)
    unused = (0, COLUMNS - len(PARTS))
    columns = lambda parts: jnp.pad(jnp.stack(parts, axis=-1), [(0, 0)] * parts[0].ndim + [unused])
    q_columns = columns([slope_parts[i] for i, _ in PARTS]).astype(q.dtype)
    k_columns = columns([position_parts[j] for _, j in PARTS]).astype(k.dtype)
    return (
        jnp.concatenate([q, jnp.broadcast_to(q_columns, (*q.shape[:-1], COLUMNS))], axis=-1),
        jnp.concatenate([k, jnp.broadcast_to(k_columns[:, :, None], (*k.shape[:-1], COLUMNS))], axis=-1),
    )


def _parts(x: Float[Array, "*N"]) -> list[Float[Array, "*N"]]:
    """Return three arrays of numbers with significands of 8 bits; their sum is x."""
    parts = []
    for _ in range(3):
        # `reduce_precision` rounds like a cast to bfloat16 and back; XLA may remove such casts, but not this.
        part = lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)
        parts, x = [*parts, part], x - part
    return parts


def folded_attention(
    options: Options,
    q: Float[Array, "N K G T D"],
    k: Float[Array, "N K S D"],
    v: Float[Array, "N K S D"],
    slopes: Float[Array, " H"] | None,
    positions: Num[Array, "#N S"] | None,
    *,
    backend: str,
) -> Float[Array, "N K G T D"]:
    """Return attention by `jax.nn.dot_product_attention`, where `causal` refers to the order of the arrays.

    Args:
        options: settings of the attention; of the masks, only `causal` and `window` are supported.
        q: queries.
        k: keys.
        v: values.
        slopes: slope of each head's bias. None = no bias.
        positions: positions of the keys, needed with slopes.
        backend: "cudnn", or "xla" where there is no GPU.
    """
    # JAX's function has tokens before heads.
    n, key_heads, group, length, dim = q.shape
    queries = jnp.moveaxis(q.reshape(n, key_heads * group, length, dim), 1, 2)
    keys, values = (jnp.moveaxis(x, 1, 2) for x in (k, v))
    if slopes is not None and positions is not None:
        queries, keys = fold(queries, keys, slopes, positions, scale=options.scale)
        values = jnp.pad(values, [(0, 0)] * 3 + [(0, COLUMNS)])
    output = jax.nn.dot_product_attention(  # pyright: ignore[reportCallIssue]
        queries,
        keys,
        values,
        scale=options.scale,
        is_causal=options.causal,
        # numbers of tokens before and after the query; a window counts the query's own, too
        local_window_size=None if options.window is None else (sides(options.window)[0], 0),
        implementation=backend,  # pyright: ignore[reportArgumentType]
    )
    return jnp.moveaxis(output[..., :dim], 1, 2).reshape(q.shape)


def check_fused(options: Options, operands: Operands, axes: int) -> None:
    """Raise NotImplementedError for operands that fused kernels do not support, whatever the positions are.

    `axes` is the number of position axes.
    """
    has_bias = operands.shared.distance_bias is not None
    tokens = operands.q_tokens, operands.k_tokens
    lengths = operands.q.shape[-2], operands.k.shape[-2]
    rules = {
        "bfloat16, or float16 without a bias": operands.q.dtype == jnp.bfloat16
        or (operands.q.dtype == jnp.float16 and not has_bias),
        "no dropout": operands.seed is None,
        "no soft cap": options.soft_cap is None,
        "no distance range": options.distance_range is None,
        "a window only where causal": options.window is None or options.causal,
        "only the default precision": options.precision in (None, lax.Precision.DEFAULT),
        "no segment_ids": all(side.segment_ids is None for side in tokens),
        "as many keys as queries where causal": not options.causal or lengths[0] == lengths[1],
        "a bias only where causal": not has_bias or options.causal,
        "a bias only of integer positions on one axis": not has_bias
        or (axes == 1 and all(jnp.issubdtype(side.positions.dtype, jnp.integer) for side in tokens)),
        "neither key_bias nor unplaced_bias": operands.key_bias is None,
        "a bias only where all tokens have a position": not has_bias
        or all(side.has_position is None for side in tokens),
        # JAX refuses odd lengths only when it differentiates: in a `lax.scan`, too late for another implementation.
        f"an even number of queries and of keys, got {lengths[0]} and {lengths[1]}": not any(n % 2 for n in lengths),
    }
    for rule, holds in rules.items():
        if not holds:
            raise NotImplementedError(f"fused kernels take {rule}")


def arrays_are_ordered(options: Options, layout: Layout, operands: Operands) -> Bool[Array, ""] | None:
    """Return whether fused kernels may count tokens by their place in the arrays; None = they always may.

    So it is where the order rises, in steps of 1 with a window, and, with a bias, where positions never decrease and
    span at most 2^24. Without a causal mask, the order does not matter; without positions, it is that of the arrays.
    """
    if not options.causal or layout.by_place or (layout.in_order and operands.k.shape[-2] <= LARGEST_SPAN):
        return None
    has_bias = operands.shared.distance_bias is not None

    def example_is_ordered(q: TokenPositions, k: TokenPositions) -> Bool[Array, ""]:
        q_index, k_index = (side.positions if side.order is None else side.order for side in (q, k))
        follows = k_index[1:] > k_index[:-1] if options.window is None else k_index[1:] == k_index[:-1] + 1
        is_ordered = jnp.all(q_index == k_index) & jnp.all(follows)
        if not has_bias:
            return is_ordered
        never_decreases = jnp.all(q.positions == k.positions) & jnp.all(k.positions[1:] >= k.positions[:-1])
        last, first = k.positions[-1].astype(jnp.float32), k.positions[0].astype(jnp.float32)
        return is_ordered & never_decreases & (last - first <= LARGEST_SPAN)

    axes = layout.q_axes, layout.k_axes
    if all(field is None for side in axes for field in side):
        return example_is_ordered(operands.q_tokens, operands.k_tokens)
    return jnp.all(jax.vmap(example_is_ordered, axes)(operands.q_tokens, operands.k_tokens))


def order_is_known(options: Options, layout: Layout, operands: Operands) -> bool:
    """Return whether the tokens' positions are known here, and fused kernels may count them by their place."""
    if not are_known(*jax.tree.leaves((operands.q_tokens, operands.k_tokens))):
        return False
    with jax.ensure_compile_time_eval():
        order = arrays_are_ordered(options, layout, operands)
        return order is None or bool(order)
