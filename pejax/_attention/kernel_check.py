"""A check of the kernels on the device at hand: one case of each class, compiled alone.

A kernel that XLA, Triton, Mosaic or cuDNN refuses ends the program that it is in with their error.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array

from pejax._attention.api import dot_product_attention
from pejax._attention.backends import PREFERENCES, checked_name
from pejax._attention.compiling import compile_error
from pejax._attention.core.hooks import Hooks
from pejax._calls.arguments import checked
from pejax._ops.backend import platform
from pejax._record.encoding import Params

HEADS, LENGTH = 2, 256
"""Of what is compiled: more than the dense reference is preferred for, and several tiles."""

THREADS = 8
"""Programs that compile at a time: the compiler does not hold Python's lock."""


@checked
def check_kernels(
    *,
    head_dims: Sequence[int] = (64, 128),
    dtypes: Sequence[str] = ("bfloat16", "float32"),
    implementations: Sequence[str] | None = None,
) -> dict[str, str]:
    """Compile the attention of every class, forward and backward, on the device at hand; return those that fail.

    A class is an implementation, a kind of bias (none; one computed in a tile, as ALiBi's; one looked up by distance,
    as T5's), a head dim and a type. What fails here fails in every program: pass `implementation="blockwise"` there,
    which no kernel is part of. It takes about half a minute on a GPU with 8 cores beside it, and runs nothing.

    Args:
        head_dims: D, channels of a head.
        dtypes: types of queries, keys and values.
        implementations: names, as of `dot_product_attention`. None = those that this platform prefers.

    Returns:
        By class, such as "gpu, bias by distance, D=64, float32", why it fails. Classes that an implementation
        declares not to support are left out: attention skips them by itself.

    Raises:
        ValueError: an unknown implementation.

    Examples:
        >>> check_kernels(head_dims=(8,), dtypes=("float32",), implementations=("reference",))
        {}
    """
    names = PREFERENCES[platform()].kernels if implementations is None else implementations
    classes = list(itertools.product(map(checked_name, names), BIASES, head_dims, dtypes))
    with ThreadPoolExecutor(THREADS) as threads:
        errors = threads.map(lambda case: _class_error(*case), classes)
        labels = (f"{name}, {bias}, D={dim}, {dtype}" for name, bias, dim, dtype in classes)
        return {label: error for label, error in zip(labels, errors, strict=True) if error}


def _class_error(name: str, bias: str, head_dim: int, dtype: str) -> str:
    """Return why a class does not compile; empty where it does, or where the implementation does not support it."""
    shape = jax.ShapeDtypeStruct((1, LENGTH, HEADS, head_dim), jnp.dtype(dtype))
    function, params = BIASES[bias]
    hooks = Hooks() if function is None else Hooks(distance_bias=Partial(function, params))
    run = functools.partial(_attend, name)
    try:
        jax.eval_shape(run, shape, shape, shape, hooks)
    except NotImplementedError:
        return ""
    return compile_error(run, shape, shape, shape, hooks)[0]


def _attend(name: str, q: Array, k: Array, v: Array, hooks: Hooks) -> Any:
    return dot_product_attention(q, k, v, hooks=hooks, causal=True, positions=jnp.arange(LENGTH), implementation=name)


def _linear(params: Params, relative: Array) -> Array:
    return params["slope"] * relative.astype(jnp.float32)


def _table(params: Params, relative: Array) -> Array:
    return params["table"][jnp.clip(jnp.abs(relative), 0, params["table"].shape[0] - 1)]


_floats = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
BIASES: dict[str, tuple[Callable[[Params, Array], Array] | None, Params]] = {
    "no bias": (None, {}),
    "bias in a tile": (_linear, {"heads": {"slope": _floats(HEADS)}}),
    "bias by distance": (_table, {"heads": {"table": _floats(HEADS, math.isqrt(LENGTH))}}),
}
"""A function of the distance and the shapes of its parameters, by kind."""
