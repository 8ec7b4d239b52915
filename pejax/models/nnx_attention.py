"""An encoding as a module, the `attention_fn` of `flax.nnx.MultiHeadAttention`: its parameters train with the model."""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Num

from pejax._attention.flax_api import attention_fn
from pejax._encoding import Dims, Encoding, Extent, Params, check_embedded, merge_params
from pejax._positions import grid_positions
from pejax._tokens import TokenPositions, as_token_positions
from pejax.models.sharding import position_variables


class PositionalAttention(nnx.Module):
    """Attention with an encoding, called as Flax calls `dot_product_attention`; made by `attention_module`.

    Tokens are where they seem to be: 0 ... T-1 on one axis, the patches of the trained grid in raster order on two.
    Anything else (prefix tokens, packing, another grid, cross-attention, a step of cached decoding) is said around the
    call:

        with layer.attention_fn.at(step_position, cache_positions, extent=length):
            y = layer(x, decode=True)

    Attributes:
        encoding: the record.
        dims: those it was made for.
        position: its parameters, `{"shared": of init, "layer": of init_layer}`.
    """

    def __init__(
        self, encoding: Encoding, dims: Dims, rngs: nnx.Rngs, *, shared: "PositionalAttention | None", embedded: bool
    ) -> None:
        self.encoding, self.dims, self.embedded = encoding, dims, embedded
        common = position_variables(encoding.init(rngs.params())) if shared is None else shared.position["shared"]
        self.position = nnx.data({"shared": common, "layer": position_variables(encoding.init_layer(rngs.params()))})
        self._bound = nnx.data(None)
        self._params()  # a name that init and init_layer both use is an error now, not at the first call

    @contextlib.contextmanager
    def at(
        self,
        positions: TokenPositions | Array,
        k_positions: TokenPositions | Array | None = None,
        *,
        extent: Extent | None = None,
    ) -> Iterator[None]:
        """Say where the tokens of all calls inside the `with` block are.

        Args:
            positions: of the queries, or their `TokenPositions`.
            k_positions: of the keys; of the whole cache when decoding with one. None = `positions`.
            extent: the length or grid the encoding adapts to. None = the trained grid; of a sequence, the number of
                keys, or where one query looks at a cache, which is longer than what it holds, its position + 1.

        The block must hold the trace: a function of `jax.jit` that was traced before, outside of it or for other
        tokens, does not look here again. `nnx.jit` does.
        """
        before = self._bound
        self._bound = nnx.data((positions, k_positions, extent))
        try:
            yield
        finally:
            self._bound = nnx.data(before)

    def __call__(
        self,
        query: Float[Array, "*B T H D"],
        key: Float[Array, "*B S K D"],
        value: Float[Array, "*B S K D"],
        bias: Float[Array, "..."] | None = None,
        mask: Num[Array, "..."] | Bool[Array, "..."] | None = None,
        broadcast_dropout: bool = True,
        dropout_rng: Array | None = None,
        dropout_rate: float = 0.0,
        deterministic: bool = False,
        dtype: DTypeLike | None = None,
        precision: Any = None,
        module: nnx.Module | None = None,
        is_causal: bool = False,
    ) -> Float[Array, "*B T H D"]:
        """Return the output of attention; the arguments are those of `flax.nnx.dot_product_attention`.

        Raises:
            ValueError: heads other than the dims', or tokens whose positions cannot be inferred and were not given.
        """
        dims = self.dims
        if (query.shape[-2:], key.shape[-2]) != ((dims.heads, dims.head_dim), dims.kv_heads):
            wanted = f"heads={dims.heads}, kv_heads={dims.kv_heads}, head_dim={dims.head_dim}"
            raise ValueError(f"query and key must have {wanted} as in dims, got {query.shape} and {key.shape}")
        queries, keys = query.shape[-3], key.shape[-3]
        q_tokens, k_tokens, extent = self._bound or (self._infer(queries, keys), None, None)
        attend = attention_fn(
            self.encoding,
            self._params(),
            positions=q_tokens,
            k_positions=k_tokens,
            extent=self._extent(queries, keys, as_token_positions(q_tokens)) if extent is None else extent,
            embedded=self.embedded,
            causal=dims.causal or None,
            scale=dims.scale,
        )
        return attend(
            query,
            key,
            value,
            bias=bias,
            mask=mask,
            broadcast_dropout=broadcast_dropout,
            dropout_rng=dropout_rng,
            dropout_rate=dropout_rate,
            deterministic=deterministic,
            dtype=dtype,
            precision=precision,
            module=module,
            is_causal=is_causal,
        )

    def _params(self) -> Params:
        parts = nnx.as_pure(self.position)
        return merge_params(parts["shared"], parts["layer"])

    def _extent(self, queries: int, keys: int, q_tokens: TokenPositions) -> Extent | None:
        """Return what `adapt` adapts to when nobody said: how far a step has come, the number of keys, or the grid."""
        if self.dims.axes > 1:
            return self.dims.extent
        return jnp.max(q_tokens.positions).astype(jnp.int32) + 1 if queries == 1 < keys else keys

    def _infer(self, queries: int, keys: int) -> Num[Array, "T *A"]:
        """Return the positions of tokens nobody placed: in order from 0, or the trained grid's."""
        if queries != keys:
            rule = "positions of queries and keys of different lengths (cross-attention, cached decoding) must be given"
            raise ValueError(f"{rule}: use `with attention_fn.at(q, k)`, got {queries} queries and {keys} keys")
        if self.dims.axes == 1:
            return jnp.arange(queries)
        grid = self.dims.extent
        if self.dims.axes != 2 or not isinstance(grid, tuple) or math.prod(grid) != queries:
            rule = f"positions on {self.dims.axes} axes must be given unless the tokens are the trained grid"
            raise ValueError(f"{rule}: use `with attention_fn.at(q)`, got {queries} tokens and dims.extent={grid}")
        return grid_positions(*grid)


def attention_module(
    encoding: Encoding,
    dims: Dims,
    rngs: nnx.Rngs,
    *,
    shared: PositionalAttention | None = None,
    embedded: bool = False,
) -> PositionalAttention:
    """Make the module that `nnx.MultiHeadAttention(attention_fn=...)` calls; the encoding's parameters are its own.

        dims = Dims(heads=4, head_dim=16)
        layer = nnx.MultiHeadAttention(
            4, 64, decode=False, rngs=rngs, attention_fn=attention_module(make_encoding("t5", dims), dims, rngs)
        )

    Masks, dropout and causal calls are Flax's own; `dims.causal` adds the causal mask to every call.

    Args:
        encoding: the record.
        dims: those it was made for; heads and head_dim are the layer's.
        rngs: draws the parameters from its `params` stream.
        shared: the module of the model's first layer, whose `init` parameters this one uses too (T5: one table for
            all layers). None = parameters of its own.
        embedded: says that `encoding.embed` is applied to the input of the model.

    Raises:
        ValueError: the encoding embeds and `embedded` is False.
    """
    check_embedded(encoding, embedded)
    return PositionalAttention(encoding, dims, rngs, shared=shared, embedded=embedded)
