"""How widely each layer looks: the mean entropy of its attention's weights, of any model and any encoding.

    H = -Σ_j w_ij ln w_ij        nats, the mean over examples, heads and up to 64 queries i spread over the sequence

ln of the number of keys where all weigh the same, 0 where one has all the weight. No array of T x S is made.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pejax import attention_weights, dot_product_attention
from pejax._tokens import TokenPositions, as_token_positions
from pejax.models import Execution

QUERIES = 64
"""Queries of a sequence that are looked at, at most."""

IGNORED_OPTIONS = ("relative_values", "dropout", "implementation", "return_lse")
"""Options of attention that its weights do not depend on."""


@dataclasses.dataclass(frozen=True)
class EntropyExecution(Execution):
    """Computes a model as ever, and collects the entropy of every attention call of every layer.

    Attributes:
        axes: A, of the positions.
        found: by stack of layers, by attention call inside a layer: entropies `(L,)`.
    """

    axes: int = 1
    found: list[list[Float[Array, " L"]]] = dataclasses.field(default_factory=list)

    @property
    def attention(self) -> Callable[..., Any]:
        """`dot_product_attention`, watched."""
        return self._attend

    def _attend(self, q: Array, k: Array, v: Array, **options: Any) -> Any:
        self.found[-1].append(entropy(q, k, self.axes, **options))
        return dot_product_attention(q, k, v, **options)

    def scan(self, step: Callable, x: Array, layers: Any) -> tuple[Array, Any]:
        """Apply the layers in turn; what each of them looked at comes out of the scan beside its caches."""

        def watched(x: Array, layer: Any) -> tuple[Array, tuple[Any, list[Array]]]:
            self.found.append([])
            x, cache = step(x, layer)
            return x, (cache, self.found.pop())

        x, (caches, entropies) = jax.lax.scan(watched, x, layers)
        self.found.append(entropies)
        return x, caches


def entropy(q: Float[Array, "*B T H D"], k: Float[Array, "*B S K D"], axes: int, **options: Any) -> Float[Array, ""]:
    """Return the mean entropy of the weights of some queries, nats; padding, which sees nothing, is left out.

    Args:
        q: rotated queries.
        k: rotated keys.
        axes: A, of the positions.
        **options: of `dot_product_attention`.
    """
    length = q.shape[-3]
    rows = np.unique(np.linspace(0, length - 1, min(QUERIES, length)).round().astype(int))
    given = {name: value for name, value in options.items() if name not in IGNORED_OPTIONS}
    tokens = as_token_positions(given.pop("positions"))
    keys = given.pop("k_positions", None)
    given |= {"positions": taken(tokens, rows, axes), "k_positions": tokens if keys is None else keys}
    weights = attention_weights(q[..., rows, :, :], k, **given)
    seen = jnp.sum(weights)  # every row that sees a key sums to 1
    return -jnp.sum(jax.scipy.special.xlogy(weights, weights)) / seen


def taken(tokens: TokenPositions, rows: np.ndarray, axes: int) -> TokenPositions:
    """Return where some of the tokens of sequences are."""
    take = lambda leaf: None if leaf is None else jnp.take(leaf, rows, axis=-1)
    positions = jnp.take(tokens.positions, rows, axis=-1 if axes == 1 else -2)
    return TokenPositions(positions, take(tokens.order), take(tokens.has_position), take(tokens.segment_ids))


def named(found: list[list[Float[Array, " L"]]]) -> dict[str, float]:
    """Return entropies by name: "entropy/layer_3"; of the second attention call of a layer "entropy/layer_3/1"."""
    return {
        f"entropy/{f'stack_{stack}/' if len(found) > 1 else ''}layer_{layer}{f'/{call}' if call else ''}": float(value)
        for stack, calls in enumerate(jax.device_get(found))
        for call, layers in enumerate(calls)
        for layer, value in enumerate(layers)
    }
