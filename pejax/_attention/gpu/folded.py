"""A bias for fused kernels that take none: a bias linear in the distance, folded into extra columns of q and k.

If no key is after its query, a bias `a·(p_j - p_i)` equals `a·p_j` up to a constant per row, which softmax ignores.
With a and p written as sums of three bfloat16 parts, their product is

    a·p = a1·p1 + a1·p2 + a1·p3 + a2·p1 + a2·p2 + a3·p1

to 2^-24 of its size: six columns, the p on k and the a / scale on q, so that heads of different slopes may share a key.
The error does not shrink with the distance: at length L and slope a, that of a logit is about a·L·2^-24.

Reference:
    Press et al. 2022 (arXiv 2108.12409), section 3: the constant of the row.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Num

from pejax._attention.core.operands import Layout, Operands
from pejax._attention.core.options import Options
from pejax._positions import TokenPositions

PARTS = ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0))
"""Pairs of a part of the slope and the part of the position that it multiplies."""
COLUMNS = 8
"""Number of extra columns. The last two are zero: fused kernels need multiples of 8."""
LARGEST = 2**24
"""Positions are exact in three parts if the last is at most this much larger than the first."""


def fold(
    q: Float[Array, "N T H D"],
    k: Float[Array, "N S K D"],
    slopes: Float[Array, " H"],
    positions: Num[Array, "#N S"],
    *,
    scale: float,
) -> tuple[Float[Array, "N T H E"], Float[Array, "N S K E"]]:
    """Return q and k with E = D + 8 channels, for which `scale·q·k` is larger by `slope_h · (p_j - c)`.

    Args:
        q: queries.
        k: keys.
        slopes: slope of each head's bias, in logits per token of distance.
        positions: positions of the keys, which span at most 2^24.
        scale: factor of q·k.

    Returns:
        q and k with the columns. c is the position in the middle, which keeps the numbers small.
    """
    middle = positions[:, positions.shape[1] // 2, None]
    on_keys, on_queries = _parts((positions - middle).astype(jnp.float32)), _parts(slopes / scale)
    empty = [(0, 0)] * 2
    pad = lambda x: jnp.pad(jnp.stack(x, axis=-1), [*empty[: x[0].ndim], (0, COLUMNS - len(PARTS))])
    q_columns = pad([on_queries[i] for i, _ in PARTS]).astype(q.dtype)
    k_columns = pad([on_keys[j] for _, j in PARTS]).astype(k.dtype)
    return (
        jnp.concatenate([q, jnp.broadcast_to(q_columns, (*q.shape[:-1], COLUMNS))], axis=-1),
        jnp.concatenate([k, jnp.broadcast_to(k_columns[:, :, None], (*k.shape[:-1], COLUMNS))], axis=-1),
    )


def _parts(x: Float[Array, "*N"]) -> list[Float[Array, "*N"]]:
    """Return three numbers of 8 bits each that sum to x."""
    found = []
    for _ in range(3):
        # `reduce_precision` rounds like a cast to bfloat16 and back; XLA may remove such casts, but not this.
        part = lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)
        found, x = [*found, part], x - part
    return found


def fused_product(
    options: Options,
    q: Float[Array, "N K G T D"],
    k: Float[Array, "N K S D"],
    v: Float[Array, "N K S D"],
    slopes: Float[Array, " H"] | None,
    positions: Num[Array, "#N S"] | None,
    *,
    backend: str,
) -> Float[Array, "N K G T D"]:
    """Attend by `jax.nn.dot_product_attention`; causal means in the order of the arrays.

    Args:
        options: settings of the attention; of the masks, only `causal` and `window` are supported.
        q: queries.
        k: keys.
        v: values.
        slopes: slope of the bias per unit of key - query; None = no bias.
        positions: positions of the keys, needed with slopes.
        backend: "cudnn", or "xla" where there is no GPU.
    """
    n, groups, heads, length, dim = q.shape
    rows = jnp.moveaxis(q.reshape(n, groups * heads, length, dim), 1, 2)
    keys, values = (jnp.moveaxis(x, 1, 2) for x in (k, v))
    if slopes is not None and positions is not None:
        rows, keys = fold(rows, keys, slopes, positions, scale=options.scale)
        values = jnp.pad(values, [(0, 0)] * 3 + [(0, COLUMNS)])
    output = jax.nn.dot_product_attention(  # pyright: ignore[reportCallIssue]
        rows,
        keys,
        values,
        scale=options.scale,
        is_causal=options.causal,
        local_window_size=None if options.window is None else (options.window - 1, 0),
        implementation=backend,  # pyright: ignore[reportArgumentType]
    )
    return jnp.moveaxis(output[..., :dim], 1, 2).reshape(q.shape)


def check_fused(options: Options, operands: Operands, axes: int) -> None:
    """Raise NotImplementedError for operands that fused kernels do not support, whatever the positions are."""
    linear = operands.shared.distance_bias is not None
    tokens = operands.q_tokens, operands.k_tokens
    lengths = operands.q.shape[-2], operands.k.shape[-2]
    rules = {
        "bfloat16, or float16 without a bias": operands.q.dtype == jnp.bfloat16
        or (operands.q.dtype == jnp.float16 and not linear),
        "no dropout": operands.seed is None,
        "no soft cap": options.soft_cap is None,
        "no distance range": options.distance_range is None,
        "no window but a causal one": options.window is None or options.causal,
        "no precision but the default": options.precision in (None, lax.Precision.DEFAULT),
        "no segment_ids": all(side.segment_ids is None for side in tokens),
        "as many keys as queries where causal": not options.causal or lengths[0] == lengths[1],
        "no bias but a causal one": not linear or options.causal,
        "no bias of positions that are not integers on one axis": not linear
        or (axes == 1 and all(jnp.issubdtype(side.positions.dtype, jnp.integer) for side in tokens)),
        "neither key_bias nor unplaced_bias": operands.key_bias is None,
        "no bias of tokens without a position": not linear or all(side.has_position is None for side in tokens),
        # JAX refuses odd ones only where it takes the gradient: of a `lax.scan`, too late for another implementation.
        f"an even number of queries and of keys, got {lengths[0]} and {lengths[1]}": not any(n % 2 for n in lengths),
    }
    for rule, holds in rules.items():
        if not holds:
            raise NotImplementedError(f"fused kernels take {rule}")


def arrays_are_ordered(options: Options, layout: Layout, operands: Operands) -> Bool[Array, ""] | None:
    """Return whether the arrays are in causal order and, with a bias, positions never fall and span at most 2^24.

    None = not causal, so nothing depends on the order.
    """
    if not options.causal:
        return None
    linear = operands.shared.distance_bias is not None

    def of_one(q: TokenPositions, k: TokenPositions) -> Bool[Array, ""]:
        q_index, k_index = (side.positions if side.order is None else side.order for side in (q, k))
        holds = jnp.all(q_index == k_index) & jnp.all(k_index[1:] > k_index[:-1])
        if not linear:
            return holds
        rising = jnp.all(q.positions == k.positions) & jnp.all(k.positions[1:] >= k.positions[:-1])
        return holds & rising & (k.positions[-1].astype(jnp.float32) - k.positions[0].astype(jnp.float32) <= LARGEST)

    axes = layout.q_axes, layout.k_axes
    if all(field is None for side in axes for field in side):
        return of_one(operands.q_tokens, operands.k_tokens)
    return jnp.all(jax.vmap(functools.partial(of_one), axes)(operands.q_tokens, operands.k_tokens))
