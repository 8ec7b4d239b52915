"""Vectors of texts from the states of their tokens: pooling, then the modules after it.

    mean     sum of states / count              weightedmean    sum of i · state i / sum of i, i = 1 ... N
    sqrt     sum of states / √count             cls, lasttoken  the first state, the last one
    max      largest number of each channel

All sums are in float32. Several modes are concatenated.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pejax.models.parts.layers import ACTIVATIONS

LEAST = 1e-9
"""Least count or sum of weights that is divided by."""

SMALLEST_NORM = 1e-12
"""Least length that a vector is divided by."""

Pool = Callable[[Float[Array, "B T C"], Array, Array], Float[Array, "B C"]]
"""Function `(states, selection, weights)` to vectors; `selection` `(B, T)` has 1 where a token counts, else 0, and
`weights` are 1 ... T."""


def _mean(x: Array, selection: Array, weights: Array, power: float = 1.0) -> Array:
    """Return the sum of the states, divided by their number to this power."""
    del weights
    return jnp.sum(x * selection[..., None], axis=1) / jnp.maximum(jnp.sum(selection, axis=1), LEAST)[:, None] ** power


def _weighted(x: Array, selection: Array, weights: Array) -> Array:
    """Return the mean of the states with weights 1 ... T."""
    weights = selection * weights
    total = jnp.maximum(jnp.sum(weights, axis=1), LEAST)
    return jnp.sum(x * weights[..., None], axis=1) / total[:, None]


def _largest(x: Array, selection: Array, weights: Array) -> Array:
    """Return the largest number of each channel."""
    del weights
    return jnp.max(jnp.where(selection[..., None] > 0, x, -jnp.inf), axis=1)


def _first(x: Array, selection: Array, weights: Array) -> Array:
    """Return the first state that counts."""
    del weights
    return jnp.take_along_axis(x, jnp.argmax(selection, axis=1)[:, None, None], axis=1)[:, 0]


def _last(x: Array, selection: Array, weights: Array) -> Array:
    """Return the last state that counts."""
    return jnp.take_along_axis(x, jnp.argmax(selection * weights, axis=1)[:, None, None], axis=1)[:, 0]


POOLS: dict[str, Pool] = {
    "cls": _first,
    "max": _largest,
    "mean": _mean,
    "mean_sqrt_len_tokens": lambda x, selection, weights: _mean(x, selection, weights, 0.5),
    "weightedmean": _weighted,
    "lasttoken": _last,
}
"""Modes of pooling by their names in files."""


def pooled(
    modes: Sequence[str], x: Float[Array, "B T C"], mask: Int[Array, "B T"], left_out: Int[Array, " B"]
) -> Float[Array, "B M_C"]:
    """Return the vectors of texts, float32, the modes one after the other.

    Args:
        modes: names out of `POOLS`.
        x: states of the tokens.
        mask: 1 = a token, 0 = padding after the last one.
        left_out: number of tokens at the begin, those of a prompt, that pooling leaves out.
    """
    numbers = jnp.arange(1, x.shape[1] + 1)
    selection = ((mask > 0) & (numbers > left_out[:, None])).astype(jnp.float32)
    weights = numbers.astype(jnp.float32)
    x = jnp.where(selection[..., None] > 0, x.astype(jnp.float32), 0.0)  # a state of padding may be anything
    return jnp.concatenate([POOLS[mode](x, selection, weights) for mode in modes], axis=-1)


@partial(jax.tree_util.register_dataclass, data_fields=("kernel", "bias"), meta_fields=("activation",))
@dataclass(frozen=True)
class Dense:
    """A linear layer with an activation, `activation(x @ kernel + bias)`.

    Attributes:
        kernel: `(C, D)`.
        bias: `(D,)`. None = no bias.
        activation: a name out of `OUTPUTS`.
    """

    kernel: Float[Array, "C D"]
    bias: Float[Array, " D"] | None
    activation: str


class Normalize(NamedTuple):
    """The step that makes vectors of length 1."""


OUTPUTS: dict[str, Callable[[Array], Array]] = {
    "identity": lambda x: x,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "softmax": lambda x: jax.nn.softmax(x, axis=-1),
    **ACTIVATIONS,
}
"""Activations of layers after a model, by name."""

TORCH = {
    "Identity": "identity", "Tanh": "tanh", "Sigmoid": "sigmoid", "GELU": "gelu", "ReLU": "relu", "SiLU": "silu",
}  # fmt: skip
"""Classes of `torch.nn` that configs name by their path, and our names."""


def torch_activation(path: object, where: str) -> str:
    """Return our name of the activation at a Python path such as "torch.nn.modules.activation.Tanh", never imported.

    Args:
        path: value of the key.
        where: file and key, for the error.

    Raises:
        ValueError: another path.
    """
    home, _, name = path.rpartition(".") if isinstance(path, str) else ("", "", "")
    if (home == "torch.nn" or home.startswith("torch.nn.modules.")) and name in TORCH:
        return TORCH[name]
    raise ValueError(f"{where} must be torch.nn's {', '.join(TORCH)}, got {path!r}"[:400])


def dense(layer: Dense, x: Float[Array, "*B C"]) -> Float[Array, "*B D"]:
    """Return the output of a linear layer, in float32."""
    y = jnp.dot(x, layer.kernel, precision=jax.lax.Precision.HIGHEST)
    return OUTPUTS[layer.activation](y if layer.bias is None else y + layer.bias)


def unit_vectors(x: Float[Array, "B C"]) -> Float[Array, "B C"]:
    """Return vectors of length 1."""
    return x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), SMALLEST_NORM)
