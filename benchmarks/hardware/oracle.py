"""Attention in float64 on the host, with its gradients: plain formulas, without tiles and without XLA.

    l_ij = cap·tanh((scale·q_i·k_j + bias_ij) / cap) + late_j      -inf where j is not seen
    o_i = σ(lse_i - sink)·Σ_j softmax_j(l_ij)·keep_ij·v_j          lse' = log(exp(lse) + exp(sink))

What an encoding adds, its rotations and its bias, is computed on the host in float32 by its own functions, and their
gradients by JAX there.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float


class Terms(NamedTuple):
    """The differentiable arguments of attention: N sequences, K key heads, G query heads of each.

    Attributes:
        q: `(N, K, G, T, D)`, rotated.
        k: `(N, K, S, D)`, rotated.
        v: `(N, K, S, D)`.
        bias: `(N, K, G, T, S)`.
        sink: `(K, G)`, -inf for none.
    """

    q: Any
    k: Any
    v: Any
    bias: Any
    sink: Any


class Fixed(NamedTuple):
    """The arguments without gradients: `late` is added after the cap, `seen` and `keep` weigh the pairs."""

    scale: float
    cap: float | None
    late: Any
    seen: Any
    keep: Any


def attend(terms: Terms, fixed: Fixed) -> tuple[np.ndarray, np.ndarray, Any]:
    """Return the outputs `(N, K, G, T, D)`, the log-sum-exps `(N, K, G, T)`, and the input of `gradients`."""
    q, k, v, bias, sink = (np.asarray(x, np.float64) for x in terms)
    logits = fixed.scale * np.einsum("nkgtd,nksd->nkgts", q, k) + bias
    slope = np.ones_like(logits)
    if fixed.cap is not None:
        bent = np.tanh(logits / fixed.cap)
        logits, slope = np.where(np.isneginf(logits), -np.inf, fixed.cap * bent), 1 - bent**2
    logits = np.where(fixed.seen, logits + fixed.late, -np.inf)
    top = np.maximum(logits.max(-1), -1e300)
    exponents = np.exp(logits - top[..., None])
    total = exponents.sum(-1)
    blind = total == 0
    weights = exponents / np.where(blind, 1.0, total)[..., None]
    lse = np.where(blind, -np.inf, top + np.log(np.where(blind, 1.0, total)))
    share = 1 / (1 + np.exp(sink[..., None] - np.where(blind, 0.0, lse)))
    own = np.einsum("nkgts,nksd->nkgtd", weights * fixed.keep, v)
    with_sink = np.logaddexp(lse, sink[..., None])
    return share[..., None] * own, with_sink, (slope, weights, lse, share, own, with_sink, blind)


def gradients(
    terms: Terms,
    fixed: Fixed,
    saved: Any,
    d_output: Float[np.ndarray, "N K G T D"],
    d_lse: Float[np.ndarray, "N K G T"],
) -> Terms:
    """Return the gradients of the terms from the gradients of the outputs and of the log-sum-exps."""
    q, k, v, _, sink = (np.asarray(x, np.float64) for x in terms)
    slope, weights, lse, share, own, with_sink, blind = saved
    d_own = share[..., None] * d_output
    shared = np.where(blind, 0.0, np.sum(d_output * own, axis=-1) * share * (1 - share))
    d_inner = shared + d_lse * np.where(blind, 0.0, np.exp(lse - np.where(blind, 0.0, with_sink)))
    of_sink = d_lse * np.exp(sink[..., None] - np.where(np.isneginf(with_sink), 0.0, with_sink)) - shared
    d_weights = np.einsum("nkgtd,nksd->nkgts", d_own, v) * fixed.keep
    mean = np.sum(weights * d_weights, axis=-1)
    slopes = weights * (d_weights - mean[..., None] + d_inner[..., None]) * slope
    return Terms(
        q=fixed.scale * np.einsum("nkgts,nksd->nkgtd", slopes, k),
        k=fixed.scale * np.einsum("nkgts,nkgtd->nksd", slopes, q),
        v=np.einsum("nkgts,nkgtd->nksd", weights * fixed.keep, d_own),
        bias=slopes,
        sink=of_sink.sum(axis=(0, 3)),
    )


def relative_error(got: Any, want: Any, least: float = 0.0) -> float:
    """Return the norm of the error over that of the right value; NaN if any value is.

    The norm of the right value counts as at least `least`, and as 1 where both are 0.
    """
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    same = np.isneginf(got) & np.isneginf(want)
    got, want = np.where(same, 0.0, got), np.where(same, 0.0, want)
    return float(np.linalg.norm(got - want) / (max(np.linalg.norm(want), least) or 1.0))
