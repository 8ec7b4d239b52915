"""An encoding as a module for `flax.nnx.MultiHeadAttention(attention_fn=...)`, trained with the model."""

import contextlib
import functools
import inspect
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Num

from pejax._attention.by_example import rotates_alone
from pejax._attention.flax_api import AttentionFunction, attention_fn
from pejax._attention.flax_inputs import ADDITIVE_MASK, read_mask, sides_of_input
from pejax._calls.arguments import checked
from pejax._calls.kinds import shown
from pejax._record.dims import Dims
from pejax._record.encoding import (
    STEP,
    Encoding,
    Extent,
    Params,
    check_embedded,
    layer_params,
    merge_params,
    named,
    own_dims,
    shared_params,
)
from pejax._tokens.positions import Positions, TokenPositions, as_token_positions, grid_positions
from pejax.models.sharding import position_variables
from pejax.models.stack.extents import own_extents, with_segments


@jax.tree_util.register_pytree_node_class
class _Bound:
    """The arguments of `PositionalAttention.at`, and whether anything has read them: a call, or a transform of NNX."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments, self.is_read = arguments, False

    def tree_flatten(self) -> tuple[tuple[Any, ...], None]:
        """Return the arguments, which NNX takes apart when a function is called with the module."""
        self.is_read = True
        return self.arguments, None

    @classmethod
    def tree_unflatten(cls, static: None, arguments: tuple[Any, ...]) -> "_Bound":
        """Put the arguments together again."""
        del static
        return cls(*arguments)


class PositionalAttention(nnx.Module):
    """Attention with an encoding, called as Flax calls `dot_product_attention`; made by `attention_module`.

    By default positions are 0 ... T-1 on one axis, and on two axes the trained grid in raster order. In all
    other cases (prefix tokens, packing, another grid, cross-attention, a step of cached decoding), set the positions
    around the call:

        with layer.attention_fn.at(step_position, cache_positions, extent=length):
            y = layer(x, decode=True)

    Attributes:
        encoding: the record.
        dims: the dims that the encoding was made for.
        position: the encoding's parameters, `{"shared": from init, "layer": from init_layer}`.
    """

    def __init__(
        self, encoding: Encoding, dims: Dims, rngs: nnx.Rngs, *, shared: "PositionalAttention | None", embedded: bool
    ) -> None:
        self.encoding, self.dims, self.embedded = encoding, dims, embedded
        drawn = lambda: position_variables(shared_params(encoding, rngs.params()))
        of_model = drawn() if shared is None else shared.position["shared"]
        of_layer = position_variables(layer_params(encoding, rngs.params()))
        self.position = nnx.data({"shared": of_model, "layer": of_layer})
        self._bound = nnx.data(None)
        self._params()  # raises now, not at the first call, if init and init_layer share a parameter name

    @contextlib.contextmanager
    @checked
    def at(
        self,
        positions: Positions,
        k_positions: Positions | None = None,
        *,
        extent: Extent | None = None,
        step: float | Float[Array, ""] | None = None,
    ) -> Iterator[None]:
        """Set the positions of the tokens for all calls inside the `with` block.

        Args:
            positions: positions of the queries, an array or `TokenPositions`.
            k_positions: positions of the keys; when decoding with a cache, of all slots of the cache. None =
                `positions`.
            extent: the length or grid, in tokens, that the encoding adapts to. None = the trained grid; on one axis the
                number of keys; where these have segment ids, the length of the longest document of each row; or, if a
                single query attends to several keys (a cache), the query's position + 1.
            step: step of a schedule, which encodings extended `by_step` read; it may be traced.

        To compile, pass the module to a function of `nnx.jit`, around the block or inside it. A function of `jax.jit`
        that reads the module from outside, or one of `nnx.cached_partial`, keeps the positions of its first trace.

        Raises:
            RuntimeError: at the end of the block, if nothing in it has read the positions.
        """
        before = self._bound
        self._bound = nnx.data(_Bound(positions, k_positions, extent, step))
        bound = self._bound
        bound.is_read = False
        try:
            yield
        finally:
            self._bound = nnx.data(before)
        if not bound.is_read:
            rule = (
                "the positions of at() must be read in its block, by a call or by nnx.jit with the module as argument"
            )
            kept = "a function of jax.jit or nnx.cached_partial keeps the positions of its first trace"
            raise RuntimeError(f"{rule}, got a block in which nothing has read them ({kept})")

    @functools.partial(checked, mask=ADDITIVE_MASK)
    def __call__(
        self,
        query: Float[Array, "*B T H D"],
        key: Float[Array, "*B S K D"],
        value: Float[Array, "*B S K D"],
        bias: Any = None,
        mask: Array | None = None,
        *args: Any,
        input_positions: Positions | None = None,
        **options: Any,
    ) -> Float[Array, "*B T H D"]:
        """Return the output of attention; arguments as in `flax.nnx.dot_product_attention`, and `input_positions`.

        Raises:
            ValueError: other heads than in `dims`, or positions or an extent that were not given and have no default.
        """
        dims = self.dims
        if (query.shape[-2:], key.shape[-2]) != ((dims.heads, dims.head_dim), dims.kv_heads):
            expected = f"heads={dims.heads}, kv_heads={dims.kv_heads}, head_dim={dims.head_dim}"
            raise ValueError(f"query and key must have {expected} as in dims, got {query.shape} and {key.shape}")
        queries, keys = query.shape[-3], key.shape[-3]
        bound, causal = self._bound, dims.causal or self.encoding.causal
        if input_positions is not None and bound is not None:
            raise ValueError("input_positions must be None in a block of at(), got both")
        if input_positions is not None:
            mask, value = (None, value) if mask is None else read_mask(mask, value)
            follow = {"causal": causal or options.get("is_causal", False), "spans": False}
            *sides, value = sides_of_input(input_positions, (query, key, value), mask, axes=dims.axes, **follow)
            bound = _Bound(*sides, None, None)
        placed = bound is not None
        bound = bound or _Bound(self._default_positions(queries, keys), None, None, None)
        (q_tokens, k_tokens, extent, step), bound.is_read = bound.arguments, True
        params = self._params() | ({} if step is None else {STEP: step})
        if extent is None:
            extent = self._default_extent(queries, keys, q_tokens, k_tokens, params, placed=placed)
        attend = attention_fn(
            self.encoding,
            params,
            positions=q_tokens,
            k_positions=k_tokens,
            extent=extent,
            embedded=self.embedded,
            causal=causal,
            scale=dims.scale,
        )
        return attend(query, key, value, bias, mask, *args, **options)

    # Linen hands on the arguments that this signature names, and no others.
    __call__.__signature__ = inspect.signature(AttentionFunction.__call__)

    def _params(self) -> Params:
        """Return the merged parameters of the encoding, before `adapt`."""
        parts = nnx.as_pure(self.position)
        return merge_params(parts["shared"], parts["layer"])

    def _default_extent(
        self, queries: int, keys: int, q_tokens: Any, k_tokens: Any, params: Params, *, placed: bool
    ) -> Extent | None:
        """Return the default extent: the trained grid, the length of each row, or in a step its position + 1."""
        if self.dims.axes > 1:
            return self.dims.extent
        continues = queries < keys and (queries == 1 or self.dims.causal or self.encoding.causal)
        tokens = as_token_positions(q_tokens if k_tokens is None or continues else k_tokens)
        # The last token of a row stands for the text that ends in it.
        if continues and (queries == 1 or tokens.segment_ids is None):
            tokens = TokenPositions(tokens.positions, segment_ids=jnp.ones_like(tokens.positions, jnp.int32))
        elif placed:
            tokens = with_segments(tokens)
        extent = own_extents(tokens, keys, (self.encoding,), lambda _: params)
        if np.shape(extent) == (1,):
            return extent[0]  # pyright: ignore[reportIndexIssue]
        if np.ndim(extent) and not rotates_alone(self.encoding):
            rule = "extent= of at() must be given where rows may differ in length, unless the encoding only rotates"
            raise ValueError(f"{rule}, got {named(self.encoding)} and lengths of {shown(extent)}")
        return extent

    def _default_positions(self, queries: int, keys: int) -> Num[Array, "T *A"]:
        """Return the default positions: 0 ... T-1, or the trained grid."""
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


@checked
def attention_module(
    encoding: Encoding,
    dims: Dims | None,
    rngs: nnx.Rngs,
    *,
    shared: PositionalAttention | None = None,
    embedded: bool = False,
) -> PositionalAttention:
    """Make a module for `nnx.MultiHeadAttention(attention_fn=...)` that holds the encoding's parameters.

        dims = Dims(heads=4, head_dim=16)
        layer = nnx.MultiHeadAttention(
            4, 64, decode=False, rngs=rngs, attention_fn=attention_module(make_encoding("t5", dims), dims, rngs)
        )

    In a Linen module, use `pejax.attention_fn` with parameters of `self.param`: Linen does not see the parameters of a
    module of NNX, and would not train them. Masks, dropout and `is_causal` work as in Flax; `dims.causal` adds the
    causal mask to every call. `layer(x, input_positions=)` is another way to say what `at` says, in a step of cached
    decoding, too: `layer(x, decode=True, input_positions=jnp.asarray([i]))`.

    Args:
        encoding: the record.
        dims: the dims that the encoding was made for; heads and head_dim as in the layer. Calls are causal if they are,
            or if the encoding was made so, whatever mask is given. None = the encoding's own.
        rngs: random streams; parameters are drawn from `params`.
        shared: the module of the model's first layer, if all layers share the parameters of `init` (T5 has one table
            for all layers). None = this module gets its own.
        embedded: whether `encoding.embed` is applied to the input of the model.

    Raises:
        ValueError: the encoding embeds and `embedded` is False.
    """
    check_embedded(encoding, embedded)
    return PositionalAttention(encoding, own_dims(encoding, dims), rngs, shared=shared, embedded=embedded)
