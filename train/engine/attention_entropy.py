"""Attention entropy: the mean entropy of the attention weights of each layer, for any model and encoding.

    H = -Σ_j w_ij ln w_ij        nats, the mean over examples, heads and up to 64 queries i spread over the sequence

It is ln S for uniform weights over S keys, and 0 where a single key has all the weight. No T x S array is allocated.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pejax import TokenPositions, attention_weights, dot_product_attention
from pejax.models import Execution

QUERIES = 64
"""Maximum number of queries per sequence that are measured."""

IGNORED_OPTIONS = ("relative_values", "dropout", "implementation", "return_lse", "sharding", "sink")
"""Options of attention that do not affect its weights; a sink scales all weights of a query alike."""


@dataclasses.dataclass(frozen=True)
class EntropyExecution(Execution):
    """An `Execution` that also records the entropy of every attention call of every layer.

    Attributes:
        axes: A, number of position axes.
        heads: whether every head is recorded, `(L, H)`, in place of their mean.
        entropies: `(L,)` each, indexed by stack of layers and by attention call within a layer.
    """

    axes: int = 1
    heads: bool = False
    entropies: list[list[Float[Array, "L *H"]]] = dataclasses.field(default_factory=list)

    @property
    def attention(self) -> Callable[..., Any]:
        """Attention that records its entropy."""
        return self._attend

    def _attend(self, q: Array, k: Array, v: Array, **options: Any) -> Any:
        measure = head_entropies if self.heads else entropy
        self.entropies[-1].append(measure(q, k, self.axes, **options))
        return dot_product_attention(q, k, v, **options)

    def scan(
        self, steps: Sequence[Callable], x: Array, layers: Sequence[Any], *, first: int = 0
    ) -> tuple[Array, tuple[Any, ...]]:
        """Apply the layers in order and collect their entropies beside their caches."""

        def record(x: Array, layers: Sequence[Any]) -> tuple[Array, tuple[tuple[Any, ...], list[list[Array]]]]:
            caches, entropies = [], []
            for step, layer in zip(steps, layers, strict=True):
                self.entropies.append([])
                x, cache = step(x, layer)
                caches.append(cache)
                entropies.append(self.entropies.pop())
            return x, (tuple(caches), entropies)

        x, (caches, by_place) = jax.lax.scan(record, x, layers)
        calls = [jnp.concatenate(jnp.stack(places, axis=1)) for places in zip(*by_place, strict=True)]
        if first:  # these layers follow those of another run
            self.entropies[-1] = [jnp.concatenate(pair) for pair in zip(self.entropies[-1], calls, strict=True)]
        else:
            self.entropies.append(calls)
        return x, caches


def entropy_probe(
    run: Callable[[Any, EntropyExecution], Any], *, axes: int = 1, heads: bool = False
) -> Callable[[Any], list[list[Float[Array, "L *H"]]]]:
    """Return the compiled function `(params) -> entropies`, indexed as `EntropyExecution.entropies`.

    Args:
        run: `(params, execution)` applies a model.
        axes: A, number of position axes.
        heads: whether every head is measured, in place of their mean.
    """

    @jax.jit
    def measure(params: Any) -> list[list[Array]]:
        recorder = EntropyExecution(axes=axes, heads=heads)
        run(params, recorder)
        return recorder.entropies

    return measure


def entropy(q: Float[Array, "*B T H D"], k: Float[Array, "*B S K D"], axes: int, **options: Any) -> Float[Array, ""]:
    """Return the mean entropy of the weights of some queries, in nats; padding tokens are left out.

    Args:
        q: rotated queries.
        k: rotated keys.
        axes: A, number of position axes.
        **options: other arguments of `dot_product_attention`.
    """
    weights = weights_of_queries(q, k, axes, **options)
    total = jnp.sum(weights)  # every row that sees a key sums to 1
    return -jnp.sum(jax.scipy.special.xlogy(weights, weights)) / total


def head_entropies(
    q: Float[Array, "*B T H D"], k: Float[Array, "*B S K D"], axes: int, **options: Any
) -> Float[Array, " H"]:
    """Return the mean entropy of the weights of each head, in nats; the arguments are those of `entropy`."""
    weights = weights_of_queries(q, k, axes, **options)
    other_axes = tuple(axis for axis in range(weights.ndim) if axis != weights.ndim - 3)
    return -jnp.sum(jax.scipy.special.xlogy(weights, weights), axis=other_axes) / jnp.sum(weights, axis=other_axes)


def weights_of_queries(
    q: Float[Array, "*B T H D"], k: Float[Array, "*B S K D"], axes: int, **options: Any
) -> Float[Array, "*B H Q S"]:
    """Return the attention weights of up to `QUERIES` queries; the arguments are those of `entropy`."""
    length = q.shape[-3]
    rows = np.unique(np.linspace(0, length - 1, min(QUERIES, length)).round().astype(int))
    attention_options = {name: value for name, value in options.items() if name not in IGNORED_OPTIONS}
    positions = attention_options.pop("positions", jnp.arange(length))
    tokens = positions if isinstance(positions, TokenPositions) else TokenPositions(positions)
    keys = attention_options.pop("k_positions", None)
    attention_options |= {
        "positions": select_tokens(tokens, rows, axes),
        "k_positions": tokens if keys is None else keys,
    }
    return attention_weights(q[..., rows, :, :], k, **attention_options)


def select_tokens(tokens: TokenPositions, rows: np.ndarray, axes: int) -> TokenPositions:
    """Return the positions of some tokens of each sequence."""

    def take(leaf: Array | None) -> Array | None:
        return None if leaf is None else jnp.take(leaf, rows, axis=-1)

    positions = jnp.take(tokens.positions, rows, axis=-1 if axes == 1 else -2)
    return TokenPositions(positions, take(tokens.order), take(tokens.has_position), take(tokens.segment_ids))


def entropies_by_name(entropies: list[list[Float[Array, " L"]]]) -> dict[str, float]:
    """Return entropies by name: "entropy/layer_3", or "entropy/layer_3/1" for a second attention call in that layer."""
    return {
        f"entropy/{f'stack_{stack}/' if len(entropies) > 1 else ''}layer_{layer}{f'/{call}' if call else ''}": float(
            value
        )
        for stack, calls in enumerate(jax.device_get(entropies))
        for call, layers in enumerate(calls)
        for layer, value in enumerate(layers)
    }
