"""The layers of an encoder or decoder with their encodings (`Stack`)."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int

from pejax._calls.hook_calls import call_token_hook
from pejax._ops.checks import known_range
from pejax._record.dims import Dims
from pejax._record.encoding import Encoding, Extent, adapt, named
from pejax._tokens.positions import TokenPositions, as_token_positions, segment_positions
from pejax.models.configs.model import TransformerConfig
from pejax.models.execution import Execution
from pejax.models.parts.attention import CrossContext, KeysValues, LayerCache, LayerContext
from pejax.models.parts.layers import make_norm, normed
from pejax.models.parts.rolling import Rolling, rolling_step
from pejax.models.stack.cache import Cache, batched, check_cacheable, one_query, with_new_tokens
from pejax.models.stack.layer_scan import Body
from pejax.models.stack.layered import Layered


class Stack(Layered):
    """An encoding's `embed`, L blocks and the norms around them: an encoder, or a decoder without its head.

    Args:
        config: the config of the model.
        encoding: encoding of all layers, made for `config.dims`. None = as `config` says.
        cross: dims and encoding of cross-attention; None = no cross-attention.
        rngs: random streams that parameters are drawn from.
    """

    def __init__(
        self,
        config: TransformerConfig,
        encoding: Encoding | None = None,
        *,
        cross: tuple[Dims, Encoding] | None = None,
        rngs: nnx.Rngs,
    ) -> None:
        self.dtype = config.dtype
        self.embed_norm = make_norm(config.embed_norm, config.width)
        self._make_layers(config, encoding=encoding, cross=cross, rngs=rngs)
        self.norm = make_norm(config.norm, config.width)

    def __call__(
        self,
        x: Float[Array, "B T C"],
        tokens: TokenPositions | None,
        extent: Extent,
        *,
        cache: Cache | None = None,
        cross_context: CrossContext | None = None,
        execution: Execution = Execution(),
        settled: bool = False,
    ) -> tuple[Float[Array, "B T C"], Cache | None]:
        """Return the normalized states after the last layer, and the cache with these tokens added.

        Args:
            x: token vectors.
            tokens: positions of the tokens. None = 0 ... T-1, where there is no cache.
            extent: the length that the encoding adapts to, or lengths `(B,)` or `(B, T)` as in `attend`.
            cache: keys and values of earlier tokens; None = no cache.
            cross_context: the inputs of cross-attention; None = there is none.
            execution: device mesh, sharding and rematerialization.
            settled: whether encodings have the same parameters at this extent, one length, and at all other lengths of
                the text in the cache, which holds rotated keys then.

        Raises:
            ValueError: a cache without tokens, or tokens that it cannot take.
        """
        options = {"cross_context": cross_context, "execution": execution, "settled": settled}
        x, context, after = self.begin(x, tokens, extent, cache=cache, **options)
        x, layers = self.layers(x, context, None if cache is None else cache.layers, shared=self.shared_params())
        return self.end(x), None if after is None else after._replace(layers=layers)

    def begin(
        self,
        x: Float[Array, "B T C"],
        tokens: TokenPositions | None,
        extent: Extent,
        *,
        cache: Cache | None = None,
        cross_context: CrossContext | None = None,
        execution: Execution = Execution(),
        settled: bool = False,
    ) -> tuple[Float[Array, "B T C"], LayerContext, Cache | None]:
        """Return the input of the first layer, the context of all layers, and the cache after them, but for its layers.

        Arguments and errors as in `__call__`. Keys and values in the cache are not read.
        """
        tokens = None if tokens is None else as_token_positions(tokens)  # from NumPy, too
        positions = jnp.arange(x.shape[1], dtype=jnp.int32) if tokens is None else tokens.positions
        x = normed(self.embed_norm, self._embed(execution.shard_states(x), positions, extent))
        context = LayerContext({}, tokens, extent, cross_context=cross_context, execution=execution)
        context = context._replace(settled=settled)
        if cache is None:
            return x, context, None
        if tokens is None:
            raise ValueError("tokens must be given with a cache, which does not say where these come, got None")
        check_cacheable(cache, tokens)
        rolling = cache.rolling
        if rolling is None:
            cache_tokens = with_new_tokens(cache.tokens, tokens, cache.used, x.shape[0])
            slots = cache_tokens
            if x.shape[1] == 1 and self.dims.causal:
                tokens, slots = one_query(batched(tokens, x.shape[0]), cache_tokens)
            context = context._replace(tokens=tokens, cache_start=cache.used, cache_tokens=slots)
        else:
            tokens = batched(tokens, x.shape[0])
            self._check_rolling(rolling, x.shape[1], extent)
            step, cache_tokens = rolling_step(rolling, cache.tokens, tokens)
            context = context._replace(tokens=tokens, rolling=step)
            rolling = dataclasses.replace(rolling, empty=False)
        return x, context, cache._replace(tokens=cache_tokens, used=cache.used + x.shape[1], rolling=rolling)

    def end(self, x: Float[Array, "B T C"]) -> Float[Array, "B T C"]:
        """Return the normalized states, from those after the last layer."""
        return normed(self.norm, x)

    def rolls_blocks(self, rolling: Rolling, extent: Extent = 1) -> bool:
        """Return whether a full rolling cache takes a block of tokens, more than one, at a time.

        Args:
            rolling: the tokens that are kept.
            extent: the extent of `__call__`.
        """
        queries_share_extent = isinstance(extent, tuple) or jnp.ndim(extent) < 2
        return all(
            not encoding.bands
            and (encoding.adapt is None or queries_share_extent)
            and (encoding.shift_invariant or not rolling.renumber)
            for encoding in self.encodings
        )

    def _check_rolling(self, rolling: Rolling, count: int, extent: Extent) -> None:
        """Raise ValueError for tokens that a rolling cache cannot take at once."""
        if count > 1 and not (rolling.empty and count <= rolling.slots) and not self.rolls_blocks(rolling, extent):
            encodings = ", ".join(named(encoding) for encoding in self.encodings)
            raise ValueError(f"a rolling cache takes one token at a time where the positions of the keys differ from "
                             f"query to query (bands, one extent per query, or tokens counted anew with an encoding "
                             f"that is not shift invariant), got {count} tokens and {encodings}")  # fmt: skip

    def _embed(self, x: Array, positions: Array, extent: Extent) -> Array:
        """Return token vectors after `encoding.embed`, adapted to the extent, which may differ from token to token."""
        hook, params = self.encoding.embed, self.encoding_params()
        adapt_to = functools.partial(adapt, self.encoding, params)
        if hook is None:
            return x
        embed_tokens = lambda extent, x, positions: call_token_hook("embed", hook, adapt_to(extent), x, positions)
        if self.encoding.adapt is None or isinstance(extent, tuple) or jnp.ndim(extent) == 0:
            return embed_tokens(extent, x, positions)
        positions = jnp.broadcast_to(positions, x.shape[:2])
        if jnp.ndim(extent) == 1:
            return jax.vmap(embed_tokens)(jnp.asarray(extent), x, positions)
        embed_token = lambda extent, x, position: embed_tokens(extent, x[None], position[None])[0]
        return jax.vmap(jax.vmap(embed_token))(jnp.asarray(extent), x, positions)

    def empty_cache(self, batch: int, slots: int | Rolling) -> Cache:
        """Return an empty cache.

        Args:
            batch: number of examples.
            slots: number of slots, or the tokens that a rolling cache keeps.

        Raises:
            ValueError: a rolling cache with `renumber` in a model that adds positions to its input.
        """
        rolling = slots if isinstance(slots, Rolling) else None
        if rolling is not None and rolling.renumber and self.encoding.embed is not None:
            rule = "is added to the input, so cached keys keep the positions that they had: renumber must be False"
            raise ValueError(f"{named(self.encoding)} {rule}, got True")
        slots = slots.slots if isinstance(slots, Rolling) else slots

        def empty(body: Body) -> LayerCache:
            dims = self.layers.stacked(body).attention.dims
            zeros = lambda: jnp.zeros((len(body.layers), batch, dims.kv_heads, slots, dims.head_dim), self.dtype)
            return LayerCache(KeysValues(zeros(), zeros()))

        zeros = lambda: jnp.zeros((batch, slots), jnp.int32)  # arrays of their own, so that a caller can donate them
        layers = tuple(map(empty, self.layers.bodies))
        return Cache(layers, TokenPositions(zeros(), segment_ids=zeros()), jnp.zeros((), jnp.int32), rolling)


def sequence_tokens(ids: Int[Array, "B T"], segments: Int[Array, "B T"] | None, name: str = "ids") -> TokenPositions:
    """Return the positions of tokens `(B, T)`: 0 ... T-1, or restarting at 0 in each segment; padding is at 0.

    Args:
        ids: the tokens.
        segments: their segments; 0 = padding. None = one segment.
        name: what the caller calls the ids, for messages.
    """
    if ids.ndim != 2 or 0 in ids.shape:
        raise ValueError(f"{name} must be (B, T), both at least 1, got {ids.shape}")
    if segments is None:
        return TokenPositions(jnp.arange(ids.shape[1], dtype=jnp.int32))
    if segments.shape != ids.shape:
        raise ValueError(f"segments must have the shape of ids, {ids.shape}, got {segments.shape}")
    positions = jnp.where(segments != 0, segment_positions(segments), 0)  # padding may be longer than a learned table
    return TokenPositions(positions.astype(jnp.int32), segment_ids=segments)


def masked_tokens(
    ids: Int[Array, "B T"], mask: Int[Array, "B T"] | Bool[Array, "B T"] | None, padding: str | int
) -> TokenPositions:
    """Return the positions of tokens `(B, T)` some of which are padding, counted as an architecture counts them.

    Args:
        ids: token ids.
        mask: 1 = a token, 0 = padding. None = not given; then ids that are padding are refused, unless they are traced.
        padding: `TransformerConfig.padding`: "counted" = padding takes up positions; an id = all ids but this one are
            counted; else all tokens of the mask are.

    Raises:
        ValueError: a mask of another shape, with other numbers than 0 and 1, or none for ids that are padding; padding
            at a token of the mask, where its id is not counted.
        TypeError: a mask of floats.
    """
    if mask is None:
        if isinstance(padding, int) and _holds(ids, padding):
            raise ValueError(f"attention_mask must be given where ids hold padding, id {padding}, got None")
    else:
        _check_mask(mask, ids.shape)
        mask = jnp.asarray(mask).astype(jnp.int32)
        if isinstance(padding, int) and _holds(jnp.where(mask == 1, ids, -1), padding):
            rule = f"ids must not hold padding, id {padding}, where attention_mask is 1: it has no position"
            raise ValueError(f"{rule}, got it there")
    counted = ids != padding if isinstance(padding, int) else mask
    if padding == "counted" or counted is None:
        positions = jnp.broadcast_to(jnp.arange(ids.shape[1], dtype=jnp.int32), ids.shape)
    else:
        positions = jnp.maximum(jnp.cumsum(counted.astype(jnp.int32), axis=1) - 1, 0)
    return TokenPositions(positions, segment_ids=mask)


def _check_mask(mask: Array, shape: tuple[int, ...]) -> None:
    """Refuse a mask that is not 1 at tokens and 0 at padding."""
    rule = "attention_mask must be 1 at tokens and 0 at padding"
    if not (jnp.issubdtype(mask.dtype, jnp.integer) or mask.dtype == bool):
        raise TypeError(f"{rule}, integers or bool, got {mask.dtype}: 0 and -inf, to add to logits, are not taken")
    if mask.shape != shape:
        raise ValueError(f"{rule}, in the shape of ids, {shape}, got {mask.shape}")
    smallest, largest = known_range(mask) or (0, 1)
    if smallest < 0 or largest > 1:
        raise ValueError(f"{rule}, got {smallest} to {largest}: numbers of documents belong in segment_ids")


def _holds(ids: Array, token_id: int) -> bool:
    """Return whether `token_id` is among the ids; False where these are traced."""
    if isinstance(ids, Tracer):
        return False
    with jax.ensure_compile_time_eval():
        return bool(jnp.any(jnp.equal(ids, token_id)))
