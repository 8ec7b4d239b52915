"""Merges attention over parts of the keys into attention over all of them, exactly."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pejax._attention.core.reference import log_sum, one_if_zero
from pejax._calls.arguments import checked


@checked
def merge_attention(
    parts: Sequence[tuple[Float[Array, "*B T H D"], Float[Array, "*B T H"]]],
) -> tuple[Float[Array, "*B T H D"], Float[Array, "*B T H"]]:
    """Merge attention over disjoint sets of keys into attention over their union.

    `o = Σ_p exp(lse_p - lse) o_p` with `lse = log Σ_p exp(lse_p)`

    Args:
        parts: `(output, log-sum-exp)` of each part, as `dot_product_attention(..., return_lse=True)` returns them, for
            shards of the keys or for complementary `distance_range`s.

    Returns:
        The output, in the dtype of the first part, and its log-sum-exp; zeros and -inf where no part saw a key.

    Raises:
        ValueError: no parts, or parts of different shapes.

    Examples:
        >>> part = lambda value: (jnp.full((1, 1, 1), value), jnp.zeros((1, 1)))  # output, log-sum-exp
        >>> output, lse = merge_attention([part(1.0), part(3.0)])  # equal log-sum-exps: the mean
        >>> output.item()
        2.0
    """
    if not parts:
        raise ValueError("parts must hold at least one (output, log-sum-exp), got none")
    shapes = [(output.shape, lse.shape) for output, lse in parts]
    if any(shape != (shapes[0][0], shapes[0][0][:-1]) for shape in shapes):
        raise ValueError(f"parts must all be (*B, T, H, D) and (*B, T, H) of one shape, got {shapes}")
    outputs, sums = (jnp.stack(arrays) for arrays in zip(*parts, strict=True))
    top = jax.lax.stop_gradient(jnp.max(sums, axis=0))
    top = jnp.where(jnp.isneginf(top), 0.0, top)
    shares = jnp.exp(sums - top)
    total = jnp.sum(shares, axis=0)
    weights = shares / one_if_zero(total)
    merged = jnp.sum(weights[..., None] * outputs.astype(weights.dtype), axis=0)
    return merged.astype(outputs.dtype), log_sum(top, total)
