"""Attention with an encoding in bands: once per range of distances, the outputs merged by log-sum-exp."""

import dataclasses
import functools
import sys
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from pejax._attention.core.hooks import bound_hooks
from pejax._attention.core.merge import merge_attention
from pejax._attention.core.sink import with_sink
from pejax._calls.hook_calls import call_token_hook
from pejax._record.encoding import Band, Encoding, Params
from pejax._tokens.positions import TokenPositions, rotary_positions


def attend_in_bands(
    encoding: Encoding,
    adapted: Params,
    run: Callable[..., Any],
    q: Array,
    k: Array,
    v: Array,
    q_tokens: TokenPositions,
    k_tokens: TokenPositions,
    *,
    sink: Array | None = None,
    distance_range: tuple[int, int] | None = None,
    return_lse: bool = False,
    by_order: bool = True,
) -> Any:
    """Rotate queries and keys for each band, attend to the pairs in it, and merge the outputs.

    Args:
        encoding: the encoding, with bands.
        adapted: its adapted parameters.
        run: attention, `(q, k, v, distance_range=, hooks=, return_lse=) -> (output, lse)`.
        q: queries `(*B, T, H, D)`.
        k: keys `(*B, S, K, D)`.
        v: values `(*B, S, K, D)`.
        q_tokens: positions of the queries.
        k_tokens: positions of the keys.
        sink: logits `(H,)` of the sink, which counts once.
        distance_range: distances in the order that a query sees. None = all.
        return_lse: whether the log-sum-exp is returned beside the output.
        by_order: whether a distance in the order is one in positions, so that a mask skips what is outside of a band.
            Else a bias hides it.
    """
    places = rotary_positions(q_tokens, q.shape[:-2]), rotary_positions(k_tokens, k.shape[:-2])
    # A bias does not reach the pairs of a token without a position, which would then be in all bands.
    by_order = by_order or any(tokens.has_position is not None for tokens in (q_tokens, k_tokens))
    low, high = distance_range or (0, sys.maxsize)
    outputs = []
    for band in encoding.bands:
        nearest, farthest = max(low, band.low), min(high, sys.maxsize if band.high is None else band.high)
        if by_order and nearest >= farthest:
            continue
        rotated = (
            call_token_hook("rotate of a band", band.rotate, adapted, q, places[0]),
            call_token_hook("rotate_keys of a band", band.rotate_keys, adapted, k, places[1]),
        )
        if by_order:
            options: dict[str, Any] = {"distance_range": (nearest, farthest)}
        else:
            hooks = bound_hooks(within_band(encoding, band), adapted)
            options = {"hooks": hooks} | ({"distance_range": distance_range} if distance_range else {})
        outputs.append(run(*rotated, v, **options, return_lse=True))
    output, lse = with_sink(*merge_attention(outputs), sink)
    return (output, lse) if return_lse else output


def within_band(encoding: Encoding, band: Band) -> Encoding:
    """Return the encoding with a bias that hides the pairs outside of a band, by their positions."""
    hidden = functools.partial(_outside, band)
    pairs, distances = encoding.bias, encoding.distance_bias
    if pairs is not None and distances is None:

        def bias(params: Params, q: Array, k: Array, q_positions: Array, k_positions: Array) -> Array:
            return pairs(params, q, k, q_positions, k_positions) + hidden(k_positions - q_positions[:, None])

        return dataclasses.replace(encoding, bias=bias, relative_keys=None, hides=True)

    def distance_bias(params: Params, relative: Array) -> Array:
        return hidden(relative) + (0.0 if distances is None else distances(params, relative))

    return dataclasses.replace(encoding, bias=None, distance_bias=distance_bias, relative_keys=None, hides=True)


def _outside(band: Band, relative: Num[Array, "..."]) -> Float[Array, "..."]:
    """Return -inf where key - query is outside of a band, else 0; keys after the query are in the nearest band."""
    inside = jnp.ones(relative.shape, bool) if band.high is None else relative > -band.high
    if band.low > 0:
        inside &= relative <= -band.low
    return jnp.where(inside, 0.0, -jnp.inf).astype(jnp.float32)
