"""Time to trace, lower and compile attention with every encoding, in a loop over layers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from benchmarks.report import Case, Column, Part, Settings, column_of
from benchmarks.timing import Call, Say, side_by_side
from pejax import Dims, attend, init_params, make_encoding, rope_frequencies
from pejax.encodings import ENCODINGS

PLAIN = "plain jnp: RoPE, T x S logits"


def plain(params: dict, q: Array, k: Array, v: Array) -> Array:
    """Attend with RoPE as most JAX code does it."""
    del params
    angles = jnp.arange(q.shape[1], dtype=jnp.float32)[:, None] * jnp.asarray(rope_frequencies(q.shape[-1]))
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]

    def rotate(x: Array) -> Array:
        first, second = x[..., ::2], x[..., 1::2]
        return jnp.stack([first * cos - second * sin, first * sin + second * cos], -1).reshape(x.shape)

    logits = jnp.einsum("bthd,bshd->bhts", rotate(q), rotate(k)) * q.shape[-1] ** -0.5
    seen = np.tril(np.ones(logits.shape[-2:], bool))
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(jnp.where(seen, logits, -1e30)), v)


def ours(dims: Dims, spec: str, params: dict, q: Array, k: Array, v: Array) -> Array:
    """Attend with an encoding."""
    return attend(make_encoding(spec, dims), q, k, v, params=params, extent=q.shape[1], embedded=True)


def compiling(dims: Dims, length: int, layers: int, spec: str) -> Call:
    """Return a function that traces, lowers and compiles the gradient of some layers of attention, from nothing."""
    width = dims.heads * dims.head_dim
    x = jax.ShapeDtypeStruct((2, length, width), jnp.float32)
    weights = [[jax.ShapeDtypeStruct((width, width), jnp.float32)] * 4] * layers
    key = jax.eval_shape(lambda: jax.random.key(0))
    learned = {} if spec == PLAIN else jax.eval_shape(functools.partial(init_params, make_encoding(spec, dims)), key)
    attention = plain if spec == PLAIN else functools.partial(ours, dims, spec)

    def loss(weights: list[list[Array]], params: list[dict], x: Array) -> Array:
        for (w_q, w_k, w_v, w_o), learned in zip(weights, params, strict=True):
            q, k, v = ((x @ w).reshape(*x.shape[:2], dims.heads, dims.head_dim) for w in (w_q, w_k, w_v))
            x = x + attention(learned, q, k, v).reshape(x.shape) @ w_o
        return jnp.sum(jnp.square(x))

    def call() -> None:
        jax.clear_caches()
        jax.jit(jax.grad(loss, argnums=(0, 1))).lower(weights, [learned] * layers, x).compile()

    return call


def measure(dims: Dims, length: int, layers: int, specs: tuple[str, ...], rounds: int, say: Say) -> Column:
    """Time every encoding beside the plain way."""
    makers = {spec: functools.partial(compiling, dims, length, layers, spec) for spec in specs}
    return column_of(side_by_side(makers, rounds, say))


def cases(settings: Settings) -> list[Case]:
    """Return one table, its columns the numbers of layers."""
    dims = Dims(heads=8, head_dim=8 if settings.toy else 64, extent=256, causal=True)
    specs = (PLAIN, "rope") if settings.toy else (PLAIN, *ENCODINGS)
    title = "Forward and backward, causal, 256 tokens, 8 heads of 64 channels, float32"
    return [
        Case(
            title,
            "1 layer" if layers == 1 else f"{layers} layers",
            functools.partial(measure, dims, 256, layers, specs, settings.few),
            60 * layers,
        )
        for layers in ((1,) if settings.toy else (1, 12))
    ]


PART = Part(
    "Compile time",
    "Layers of attention in a Python loop (models that scan over their layers compile one of them). First row: seconds "
    "to trace, lower and compile plain jnp. Below: how many times that an encoding takes, median of the rounds and the "
    "middle 80 % of them.",
    cases,
    "encoding",
)
