"""The same numbers for every way: queries, keys, values and cotangents, drawn once."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pejax import Dims

DTYPES = ("float32", "bfloat16")


class Problem(NamedTuple):
    """One sequence of attention.

    Attributes:
        length: T = S, tokens.
        heads: H = K.
        head_dim: D.
        dtype: "float32" or "bfloat16".
        backward: whether gradients of q, k and v are wanted too.
    """

    length: int
    heads: int
    head_dim: int
    dtype: str
    backward: bool

    @property
    def dims(self) -> Dims:
        """The dims of all encodings."""
        return Dims(self.heads, self.head_dim, extent=self.length, causal=True)

    @property
    def square(self) -> int:
        """Bytes of one float32 array of all scores."""
        return 4 * self.heads * self.length**2

    def drawn(self) -> Float[np.ndarray, "4 1 T H D"]:
        """Return q, k, v and the cotangent of the output."""
        shape = (4, 1, self.length, self.heads, self.head_dim)
        return np.random.default_rng(0).standard_normal(shape, np.float32)

    def arrays(self) -> list[Float[Array, "1 T H D"]]:
        """Return q, k, v and the cotangent for JAX."""
        return [jnp.asarray(x).astype(self.dtype) for x in self.drawn()]


def direction(backward: bool) -> str:
    """Return the name of the computation."""
    return "forward and backward" if backward else "forward"


class Sizes(NamedTuple):
    """The sizes of a model that takes training steps: a GPT, or a vision transformer.

    Attributes:
        layers: L.
        width: C.
        heads: H.
        batch: B.
        length: T, tokens of the GPT; the side of the images of the ViT, pixels.
        vocab: V, tokens or classes.
    """

    layers: int
    width: int
    heads: int
    batch: int
    length: int
    vocab: int
