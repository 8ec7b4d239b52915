"""Attention sinks: every head has one more key, seen by all queries, whose logit is `s_h` and whose value is zero.

    o_i = Σ_j exp(l_ij) v_j / (exp(s_h) + Σ_j exp(l_ij)) = σ(lse_i - s_h) · (output without the sink)_i

So a sink needs only the output and the log-sum-exp, and works with every implementation.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pejax._ops.pytrees import wide


def check_sink(sink: Array | None, heads: int) -> None:
    """Raise an error unless the sink is None or one floating-point logit per query head, `(H,)`."""
    if sink is None:
        return
    if not hasattr(sink, "dtype") or not jnp.issubdtype(sink.dtype, jnp.floating):
        got = getattr(sink, "dtype", type(sink).__name__)
        raise TypeError(f"sink must be a floating-point array (H,), one logit per query head, got {got}")
    if sink.shape != (heads,):
        raise ValueError(f"sink must be (H,) = ({heads},), one logit per query head, got shape {sink.shape}")


def share_of_keys(lse: Float[Array, "*B T H"], sink: Float[Array, " H"]) -> Float[Array, "*B T H"]:
    """Return `σ(lse - sink)`, the share of the attention weight that is left to the keys.

    A log-sum-exp of -inf, of a row that sees no key, is replaced by 0, so that no infinity enters the gradients; the
    output of such a row is zero anyway.
    """
    return jax.nn.sigmoid(jnp.where(jnp.isneginf(lse), 0.0, lse) - wide(sink))


def with_sink(
    output: Float[Array, "*B T H D"], lse: Float[Array, "*B T H"], sink: Float[Array, " H"] | None
) -> tuple[Float[Array, "*B T H D"], Float[Array, "*B T H"]]:
    """Add a sink to the output and log-sum-exp of attention without one. Call it once, after merging.

    `o' = σ(lse - s) · o`, `lse' = log(exp(lse) + exp(s))`

    Args:
        output: result of attention to all keys.
        lse: log-sum-exp of each query's logits, -inf where it sees no key.
        sink: s, one logit per head. None = no sink: output and lse are returned unchanged.

    Reference:
        Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks" (arXiv 2309.17453), section 3.3;
        a learned logit per head: OpenAI 2025, "gpt-oss model card" (arXiv 2508.10925), section 2.2.
    """
    if sink is None:
        return output, lse
    attended = wide(output) * share_of_keys(lse, sink)[..., None]
    return attended.astype(output.dtype), jnp.logaddexp(lse, wide(sink))
