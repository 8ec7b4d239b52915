"""Attention: check the operands, choose an implementation, run it."""

import functools

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, Float

from pejax.attention.implementations import Attempt, attempts, candidates
from pejax.attention.operands import Layout, Operands, check_dropout, check_options, check_partials, over_heads, prepare
from pejax.attention.reference import dense_weights
from pejax.attention.tile import Hooks, Options
from pejax.encoding import Tokens


def attention(
    q: Float[Array, "*B T H D"],
    k: Float[Array, "*B S K D"],
    v: Float[Array, "*B S K D"],
    *,
    q_tokens: Tokens | Array,
    k_tokens: Tokens | Array | None = None,
    bias: Partial | None = None,
    values: Partial | None = None,
    distance: Partial | None = None,
    causal: bool = False,
    window: int | None = None,
    distance_range: tuple[int, int] | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    dropout: tuple[Array, float] | None = None,
    return_lse: bool = False,
    implementation: str | None = None,
) -> Float[Array, "*B T H D"] | tuple[Float[Array, "*B T H D"], Float[Array, "*B T H"]]:
    """Attend from q to k and v; position enters through `bias` and `values`.

    `o_i = Σ_j w_ij v_j + values(w)_i` with `w_i = softmax_j(cap·tanh((scale·q_i·k_j + bias_ij) / cap))` over the keys
    that i sees; without a `soft_cap`, `w_i = softmax_j(scale·q_i·k_j + bias_ij)`. A query that sees no key gives zeros.
    The arithmetic is float32; `bias` and `values` have no part in pairs with an unplaced token.

    Args:
        q: rotated queries.
        k: rotated keys; H must be a multiple of K, and query head h attends to key head `h // (H/K)`.
        v: values.
        q_tokens: positions, order, segments of the queries; a plain array is positions `(T,)`, `(*B, T)`, or on A > 1
            axes `(T, A)`, `(*B, T, A)`. Each field is batched over all of *B or not at all.
        k_tokens: those of the keys. None = `q_tokens`.
        bias: `Partial(hook, params)`, the hook as in `Encoding.bias`; gradients reach params and float positions.
        values: likewise, as in `Encoding.values`.
        distance: likewise, as in `Encoding.distance`; the bias is derived from it where `bias` is None.
        causal: keys after the query are not seen.
        window: w keeps 0 <= i - j < w when causal, |i - j| < w otherwise, in tokens, by `Tokens.index`.
        distance_range: `(lo, hi)` keeps lo <= |i - j| < hi, in tokens, by `Tokens.index`.
        scale: multiplies q·k. None = D**-0.5.
        soft_cap: in logits; bounds them, bias included, before the mask.
        dropout: `(key, rate)`: drops that share of the weights, the same pairs in every implementation.
        return_lse: also return the log-sum-exp of each query's logits, -inf where it sees no key.
        implementation: "reference" (dense), "blockwise" (memory linear in T and S; gradients in reverse mode only),
            None = the faster at this size.

    Returns:
        The output in q's type; with `return_lse` also the log-sum-exps, `(*B, T, H)` in float32.

    Raises:
        ValueError: shapes that do not agree, an option out of range, or an unknown implementation.
        TypeError: an operand of another kind.
    """
    check_partials(bias=bias, values=values, distance=distance)
    options = check_options(q, causal, window, distance_range, scale, soft_cap)
    seed, rate = check_dropout(dropout)
    operands, layout = prepare(q, k, v, q_tokens, k_tokens, Hooks(bias, values, distance), seed)
    output, lse = run(options._replace(dropout_rate=rate), layout, operands, implementation, q.shape)
    return (output, lse) if return_lse else output


def attention_weights(
    q: Float[Array, "*B T H D"],
    k: Float[Array, "*B S K D"],
    *,
    q_tokens: Tokens | Array,
    k_tokens: Tokens | Array | None = None,
    bias: Partial | None = None,
    distance: Partial | None = None,
    causal: bool = False,
    window: int | None = None,
    distance_range: tuple[int, int] | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
) -> Float[Array, "*B H T S"]:
    """Return the weights of `attention` themselves, in float32 and before dropout, for figures and tests.

    Args:
        q: rotated queries.
        k: rotated keys.
        q_tokens: as in `attention`, like all that follows.
        k_tokens: None = `q_tokens`.
        bias: `Partial(hook, params)`.
        distance: likewise.
        causal: keys after the query are not seen.
        window: in tokens.
        distance_range: in tokens.
        scale: None = D**-0.5.
        soft_cap: in logits.

    Returns:
        Rows that sum to 1, or to 0 where a query sees no key.

    Raises:
        ValueError: as `attention` does.
        TypeError: likewise.
    """
    check_partials(bias=bias, distance=distance)
    options = check_options(q, causal, window, distance_range, scale, soft_cap)
    operands, layout = prepare(q, k, k, q_tokens, k_tokens, Hooks(bias, None, distance), None)
    return weights_of(options, layout, operands, q.shape)


def run(
    options: Options, layout: Layout, operands: Operands, implementation: str | None, shape: tuple[int, ...]
) -> tuple[Array, Array]:
    """Run the implementation named, or the first that can, and bring its outputs to `shape` and `shape[:-1]`."""
    names = candidates(operands, implementation)
    if 0 in operands.q.shape or operands.k.shape[-2] == 0:
        return jnp.zeros(shape, operands.q.dtype), jnp.full(shape[:-1], -jnp.inf, jnp.float32)
    tried: list[Attempt] = []
    for attempt, outputs in attempts(options, layout, operands, names):
        tried.append(attempt)
        if outputs is not None:
            output, lse = outputs
            return jnp.moveaxis(output, 3, 1).reshape(shape), jnp.moveaxis(lse, 3, 1).reshape(shape[:-1])
    raise NotImplementedError("; ".join(f"{name}: {reason}" for name, reason in tried))


def weights_of(options: Options, layout: Layout, operands: Operands, shape: tuple[int, ...]) -> Array:
    """Return the dense weights, `(*B, H, T, S)` for q of `shape`."""
    *batch, t, heads, _ = shape
    full = (*batch, heads, t, operands.k.shape[-2])
    if 0 in full:
        return jnp.zeros(full, jnp.float32)
    return _weights(options, layout, operands)[0].reshape(full)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _weights(options: Options, layout: Layout, operands: Operands) -> tuple[Array, Array]:
    def head(q, k, v, hooks, q_tokens, k_tokens, dropout, pairs):
        del v, dropout
        return dense_weights(options, q, k, hooks, q_tokens, k_tokens, pairs)

    return over_heads(head, operands, layout)
