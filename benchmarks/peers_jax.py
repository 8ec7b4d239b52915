"""Causal ALiBi attention of JAX peers; the bias is an array, because they take nothing else."""

import functools
import importlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from benchmarks.operands import Problem
from benchmarks.timing import Call, Maker, forward_and_backward, require_memory
from pejax import alibi_slopes

PLANS = 3
"""Times what XLA plans that a call may take: its products copy operands, and malloc does not always find the place of
the call before."""


def attention(problem: Problem) -> dict[str, Maker]:
    """Return the peers by name."""
    bias = functools.cache(lambda: causal_alibi(problem))
    way = lambda attend: functools.partial(_way, problem, bias, attend)
    return {
        "jnp einsum": way(lambda: einsum_attention),
        "jax.nn.dot_product_attention": way(lambda: jax.nn.dot_product_attention),
        "flax.nnx.dot_product_attention": way(lambda: importlib.import_module("flax.nnx").dot_product_attention),
        "tokamax xla_chunked": way(_tokamax),
    }


def causal_alibi(problem: Problem) -> Float[Array, "1 H T S"]:
    """Return ALiBi's bias, -inf behind the mask, in the type of q."""
    require_memory(2 * problem.square)

    @jax.jit
    def make(slopes: Array) -> Array:
        relative = jnp.arange(problem.length)[None, :] - jnp.arange(problem.length)[:, None]
        bias = slopes[:, None, None] * relative[None].astype(jnp.float32)
        return jnp.where(relative[None] <= 0, bias, -jnp.inf).astype(problem.dtype)[None]

    return make(jnp.asarray(alibi_slopes(problem.heads)))


def einsum_attention(q: Array, k: Array, v: Array, bias: Array) -> Array:
    """Attend as a reader of the paper writes it: all scores, softmax in float32."""
    logits = jnp.einsum("bthd,bshd->bhts", q, k) * jnp.asarray(q.shape[-1] ** -0.5, q.dtype)
    weights = jax.nn.softmax(logits.astype(jnp.float32) + bias.astype(jnp.float32), axis=-1)
    return jnp.einsum("bhts,bshd->bthd", weights.astype(v.dtype), v)


def _tokamax() -> Callable[..., Array]:
    tokamax = importlib.import_module("tokamax")
    importlib.import_module("absl.flags").FLAGS.mark_as_parsed()  # or tokamax reads the command line as its own
    return functools.partial(tokamax.dot_product_attention, implementation="xla_chunked")


def _way(problem: Problem, bias: Callable[[], Array], load: Callable[[], Callable[..., Array]]) -> Call:
    attend = load()
    q, k, v, cotangent = problem.arrays()

    def both(cotangent: Array, q: Array, k: Array, v: Array, bias: Array) -> tuple:
        return forward_and_backward(lambda q, k, v: attend(q, k, v, bias))(cotangent, q, k, v)

    function, operands = (both, (cotangent, q, k, v)) if problem.backward else (attend, (q, k, v))
    compiled = jax.jit(function).lower(*operands, bias()).compile()
    plan: Any = compiled.memory_analysis()
    require_memory(PLANS * plan.temp_size_in_bytes)
    return lambda: jax.block_until_ready(compiled(*operands, bias()))
