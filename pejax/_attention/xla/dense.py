"""The dense reference with a softmax whose derivatives XLA:CPU computes fastest: the first choice for short inputs."""

import functools

import jax
from jaxtyping import Array, Float

from pejax._attention.core import reference
from pejax._ops.sums import repeated, row_sums


@jax.custom_jvp
def softmax(logits: Float[Array, "T S"]) -> tuple[Float[Array, "T S"], Float[Array, " T"]]:
    """Return the weights and the log-sum-exp of each row, as `reference.softmax` does."""
    return reference.softmax(logits)


@softmax.defjvp
def _softmax_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    weights, lse = softmax(*primals)
    slopes = weights * tangents[0]
    mean = row_sums(slopes)
    return (weights, lse), (slopes - weights * repeated(mean, weights.shape[-1]), mean[:, 0])


dense_head = functools.partial(reference.dense_head, softmax=softmax)
"""`reference.dense_head` with this softmax, which has derivatives of every order, too."""
