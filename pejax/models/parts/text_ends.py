"""The first and the last part of a text model: the embedding tables, and the head."""

import math

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from pejax._ops.checks import check_choice, check_token_ids
from pejax._ops.matmul import product, product_with_rows
from pejax.models.configs.layer import HeadConfig
from pejax.models.configs.model import TransformerConfig
from pejax.models.execution import Execution
from pejax.models.parts.layers import ACTIVATIONS, linear, make_norm, normed
from pejax.models.sharding import named


class Embedding(nnx.Module):
    """The tables of tokens and of token types, initialized from a normal distribution of standard deviation C^-½.

    Args:
        config: config of the model.
        rngs: random streams that the tables are drawn from.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        draw = lambda rows: float(config.width) ** -0.5 * jax.random.normal(rngs.params(), (rows, config.width))
        self.scale, self.dtype, self.mask_id = config.embed_scale, config.dtype, config.mask_id
        self.table = nnx.Param(draw(config.vocab), **named("vocab", "embed"))
        self.types = nnx.Param(draw(config.types), **named(None, "embed")) if config.types else None

    def __call__(
        self,
        ids: Int[Array, "B T"],
        execution: Execution = Execution(),
        *,
        type_ids: Int[Array, "B T"] | None = None,
        segment_ids: Int[Array, "B T"] | None = None,
    ) -> Float[Array, "B T C"]:
        """Return `scale · table[ids] + types[type_ids]`; without type ids, all tokens have type 0.

        With token dropout, the scale is that of the token's document (`segment_ids`; None = a row is a document).

        Raises:
            ValueError: an id that has no row. Under jit, ids are not known, and such an id reads another row.
            TypeError: ids that are not integers.
        """
        check_token_ids("ids", ids, self.table.shape[0])
        x = execution.replicate(self.table[...])[ids].astype(self.dtype)
        x = x if self.scale == 1.0 else x * jnp.asarray(self.scale, x.dtype)
        x = x if self.mask_id is None else x * _kept(ids == self.mask_id, segment_ids).astype(x.dtype)
        if self.types is None:
            if type_ids is not None:
                raise ValueError("type_ids must be None in a model without token types")
            return x
        if type_ids is not None:
            check_token_ids("type_ids", type_ids, self.types.shape[0])
        types = self.types[0] if type_ids is None else self.types[...][type_ids]
        return x + types.astype(x.dtype)


DROPPED = 0.15 * 0.8
"""Share of the tokens that were masked in the training of ESM-2."""


def _kept(masked: Bool[Array, "B T"], segment_ids: Int[Array, "B T"] | None) -> Float[Array, "B T 1"]:
    """Return the factor of each token's vector: 0 of mask tokens, else `0.88 / (1 - r)` with r their share.

    Args:
        masked: whether each token is the mask token.
        segment_ids: the document of each token. None = a row is a document.
    """
    if segment_ids is None:
        segment_ids = jnp.zeros(masked.shape, jnp.int32)
    share = jax.vmap(_share)(masked, segment_ids)
    return jnp.where(masked, 0.0, (1.0 - DROPPED) / (1.0 - share))[..., None]


def _share(masked: Bool[Array, " T"], segment_ids: Int[Array, " T"]) -> Float[Array, " T"]:
    """Return the share of mask tokens in the document of each token."""
    place = jnp.searchsorted(jnp.sort(segment_ids), segment_ids)  # a number below T for each document
    sums = jnp.zeros((2, len(place))).at[:, place].add(jnp.stack([masked, jnp.ones_like(masked)]).astype(jnp.float32))
    return (sums[0] / jnp.maximum(sums[1], 1.0))[place]


class TextHead(nnx.Module):
    """The map from normalized states to logits that a `HeadConfig` describes. Its own kernel is initialized to zero.

    Args:
        head: config of the head.
        config: config of the model.
        rngs: random streams that parameters are drawn from.
    """

    def __init__(self, head: HeadConfig, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        width, vocab = config.width, config.vocab
        self.config = head
        self.activation, norm = head.transform or ("", None)
        if norm is not None:
            check_choice("activation", self.activation, tuple(ACTIVATIONS))
        dense = lambda: linear(width, width, ("embed", None), dtype=config.dtype, rngs=rngs, bias=head.transform_bias)
        self.dense = None if norm is None else dense()
        self.norm = make_norm(norm, width)
        zeros = lambda *shape: jnp.zeros(shape, jnp.float32)
        self.kernel = None if head.tied else nnx.Param(zeros(width, vocab), **named("embed", "vocab"))
        self.bias = nnx.Param(zeros(vocab), **named("vocab")) if head.bias else None

    def __call__(self, x: Float[Array, "B T C"], table: Float[Array, "V C"]) -> Float[Array, "B T V"]:
        """Return the logits, in float32."""
        config = self.config
        if self.dense is not None:
            x = normed(self.norm, ACTIVATIONS[self.activation](self.dense(x)))
        x = x if config.scale == 1.0 else x * jnp.asarray(config.scale, x.dtype)
        bias = None if self.bias is None else self.bias[...]
        if self.kernel is None and math.prod(x.shape[:-1]) == 1:  # a step of decoding
            logits = product_with_rows(x, table, bias)
        else:
            logits = product(x, self.columns(table), bias)
        return logits if config.cap is None else config.cap * jnp.tanh(logits / config.cap)

    def columns(self, table: Float[Array, "V C"]) -> Float[Array, "C V"]:
        """Return the kernel, or the embedding table transposed."""
        return table.T if self.kernel is None else self.kernel[...]

    @property
    def is_product(self) -> bool:
        """Whether the logits are the product of states and `columns`, and nothing else."""
        return self.config == HeadConfig(tied=self.config.tied)
