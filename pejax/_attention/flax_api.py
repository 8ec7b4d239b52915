"""An encoding inside third-party attention layers: a drop-in replacement for `dot_product_attention` of Flax."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from pejax._attention.api import weights_of
from pejax._attention.backends import run
from pejax._attention.by_example import rotate_by_example, rotates_alone
from pejax._attention.core.dropout import check_dropout
from pejax._attention.core.hooks import Hooks
from pejax._attention.core.operands import check_positions_given, check_sharding, prepare
from pejax._attention.core.options import LEARNED_SCALE, Options, Window, check_options
from pejax._attention.core.order import follow_arrays
from pejax._attention.encoded import check_extent, is_one_extent, position_axes, rotate_and_attend
from pejax._attention.flax_inputs import (
    ADDITIVE_MASK,
    MASK_IN_BIAS,
    float_type,
    read_mask,
    read_precision,
    sides_of_input,
)
from pejax._calls.arguments import checked
from pejax._calls.kinds import shown
from pejax._record.encoding import (
    Encoding,
    Extent,
    Params,
    RandomKey,
    causality,
    check_dims,
    check_embedded,
    named,
    scale_of,
)
from pejax._tokens.positions import Positions, TokenPositions, as_token_positions


@functools.partial(checked, scale=LEARNED_SCALE)
def attention_fn(
    encoding: Encoding,
    params: Params | None = None,
    *,
    positions: Positions | None = None,
    k_positions: Positions | None = None,
    extent: Extent | None = None,
    embedded: bool = False,
    causal: bool | None = None,
    window: Window | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    implementation: str | None = None,
) -> Callable[..., Array]:
    """Return `f(query, key, value, ...) -> output`: rotate, then attend, with this encoding and these parameters.

    f accepts every argument that Flax passes to an `attention_fn`. Use it in plain code, or in
    `flax.linen.MultiHeadDotProductAttention`. To train `params`, call `attention_fn` inside the function that is
    differentiated; in a Linen module, draw them by
    `self.param("position", lambda key: pejax.init_params(encoding, key))`. In Flax NNX, a module holds the parameters
    instead (`pejax.models.attention_module`). To decode with a cache, call `attention_fn` with the positions of each
    step, or hand them on by `nnx.MultiHeadAttention(...)(x, input_positions=)`; Linen hands none on.

    Args:
        encoding: the record.
        params: merged (`init_params`), not yet adapted. None = the encoding has no parameters.
        positions: positions of the queries, as in `dot_product_attention`. None = 0 ... T-1.
        k_positions: positions of the keys. None = `positions`.
        extent: the length or grid, in tokens, that the encoding adapts to; or lengths `(B,)`, one per example, of an
            encoding that does nothing but rotate. None = the number of keys; allowed for an encoding that adapts only
            if no positions are given.
        embedded: whether `encoding.embed` was applied to the input of the model.
        causal: whether keys after the query are masked. None = as the encoding was made (`Dims.causal`); one without
            dims must be told.
        window: in tokens, as in `dot_product_attention`.
        scale: factor that multiplies q·k. None = that of the encoding (`Dims.scale`), else D**-0.5.
        soft_cap: cap of the logits. None = no cap.
        implementation: as in `dot_product_attention`; only "dense" and "reference" take a mask or bias array.

    Returns:
        `f(query (*B, T, H, D), key (*B, S, K, D), value (*B, S, K, D), bias=None, mask=None, ...)`. `bias`, floats, is
        added to the logits, and keys where `mask` is False or 0 are masked as well; both broadcast to `(*B, H, T, S)`.
        An additive mask (0 = seen) is refused: pass it as `bias`. `input_positions` are those of the queries and,
        without `k_positions`, of the keys; in a step of cached decoding, that of the token, which counts those before
        it, or those of all slots of the cache, of which `mask` shows the filled ones.

    Raises:
        ValueError: an encoding that embeds while `embedded` is False, that depends on the length or grid while `extent`
            is None and positions are given, that has bands, or that was made for a causal model while `causal` is
            False. The function refuses an extent per example where it changes more than rotations.

    Examples:
        >>> import pejax
        >>> alibi = pejax.encodings.alibi(pejax.Dims(heads=8, head_dim=16))
        >>> q = k = v = jnp.ones((2, 5, 8, 16))
        >>> attention_fn(alibi)(q, k, v).shape
        (2, 5, 8, 16)
    """
    if encoding.bands:
        raise ValueError(f"attention_fn serves no encoding with bands (use attend), got {len(encoding.bands)}")
    check_embedded(encoding, embedded)
    check_extent(encoding, extent, positions)
    return AttentionFunction(
        encoding, {} if params is None else params, positions, k_positions, extent,
        causality(encoding, causal), window, scale_of(encoding, scale), soft_cap, implementation,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class AttentionFunction:
    """The function that `attention_fn` returns; its fields are the arguments."""

    encoding: Encoding
    params: Params
    positions: TokenPositions | Array | None
    k_positions: TokenPositions | Array | None
    extent: Extent | None
    causal: bool
    window: Window | None
    scale: float | None
    soft_cap: float | None
    implementation: str | None

    @functools.partial(checked, mask=ADDITIVE_MASK, bias=MASK_IN_BIAS)
    def __call__(
        self,
        query: Float[Array, "*B T H D"],
        key: Float[Array, "*B S K D"],
        value: Float[Array, "*B S K D"],
        bias: Float[Array, "..."] | None = None,
        mask: Array | None = None,
        broadcast_dropout: bool = True,
        dropout_rng: RandomKey | None = None,
        dropout_rate: float = 0.0,
        deterministic: bool = False,
        dtype: Any = None,
        precision: Any = None,
        module: Any = None,
        force_fp32_for_softmax: bool = True,
        is_causal: bool = False,
        einsum_dot_general: Callable[..., Array] | None = None,
        qk_attn_weights_einsum: Callable[..., Array] | None = None,
        attn_weights_value_einsum: Callable[..., Array] | None = None,
        input_positions: Positions | None = None,
    ) -> Float[Array, "*B T H D"]:
        """Return the output; the arguments are Flax's."""
        del force_fp32_for_softmax  # it always is
        for name, product in (
            ("einsum_dot_general", einsum_dot_general),
            ("qk_attn_weights_einsum", qk_attn_weights_einsum),
            ("attn_weights_value_einsum", attn_weights_value_einsum),
        ):
            if product is not None:
                raise ValueError(f"{name} must be None: the products are this library's own, got {product!r}")
        dtype = jnp.result_type(query, key, value) if dtype is None else float_type(dtype)
        precision = read_precision(precision)
        if module is not None and not hasattr(module, "sow"):
            raise TypeError(f"module must be a module of Flax or None, got {shown(module)}")
        query, key, value = (x.astype(dtype) for x in (query, key, value))
        check_dims(self.encoding, query)
        check_sharding(query=query, key=key, value=value)
        if mask is not None:
            mask, value = read_mask(mask, value)
        dropping = not deterministic and dropout_rate > 0
        if dropping and dropout_rng is None:
            rule = f"dropout_rng must be given where dropout_rate={dropout_rate} and not deterministic"
            raise ValueError(f"{rule}, got None")
        seed, rate = check_dropout((dropout_rng, dropout_rate) if dropping and dropout_rng is not None else None)
        causal, window = self.causal or is_causal, self.window
        options = check_options(query, causal=causal, window=window, scale=self.scale, soft_cap=self.soft_cap)
        options = options._replace(dropout_rate=rate, precision=precision)

        positions, k_positions, value = self._sides(input_positions, (query, key, value), mask, options)
        if positions is not None and k_positions is None:
            positions = follow_arrays(positions, query.shape[:-2], causal=causal, spans=options.uses_distance)

        def attend(q: Array, k: Array, v: Array, *, hooks: Hooks, **tokens: Any) -> Array:
            arrays = {"seed": seed, "mask": mask, "bias_array": bias}
            operands, layout = prepare(q, k, v, hooks=hooks, **tokens, **arrays, axes=known_axes)
            hiding = options._replace(hides=hooks.hides)
            if module is not None:
                module.sow("intermediates", "attention_weights", weights_of(hiding, layout, operands, q.shape))
            layout = layout._replace(one_dropout=bool(broadcast_dropout))
            return run(hiding, layout, operands, self.implementation, q.shape)[0]

        positions = jnp.arange(query.shape[-3]) if positions is None else positions
        tokens = as_token_positions(positions, query.shape[:-2])
        k_tokens = tokens if k_positions is None else as_token_positions(k_positions, key.shape[:-2])
        extent = key.shape[-3] if self.extent is None else self.extent
        operands = query, key, value, tokens, k_tokens
        axes = position_axes(self.encoding, None, query, tokens)
        known_axes = None if self.encoding.dims is None else axes
        if self.encoding.adapt is None or axes > 1 or is_one_extent(extent, axes):
            return rotate_and_attend(self.encoding, self.params, False, attend, extent, *operands)
        extents = jnp.asarray(extent)
        if query.ndim != 4 or extents.shape != query.shape[:1] or not rotates_alone(self.encoding):
            rule = "extent must be one length, or lengths (B,) of an encoding that does nothing but rotate"
            raise ValueError(f"{rule} (attend takes any), got shape {extents.shape} for {named(self.encoding)}")
        return rotate_by_example(self.encoding, self.params, False, attend, extents, *operands)

    def _sides(
        self, given: Positions | None, arrays: tuple[Array, Array, Array], mask: Array | None, options: Options
    ) -> tuple[Positions | None, Positions | None, Array]:
        """Return the positions of queries and keys, None where they are 0 ... T-1 or the same, and the values."""
        query, key, value = arrays
        positions, k_positions = self.positions, self.k_positions
        if given is not None and positions is not None:
            raise ValueError("input_positions must be None where attention_fn was given positions, got both")
        if given is not None and k_positions is None:
            axes = position_axes(self.encoding, None, query, given)
            options_of = {"causal": options.causal, "spans": options.uses_distance}
            positions, k_positions, value = sides_of_input(given, arrays, mask, axes=axes, **options_of)
        elif given is not None:
            positions = given
        check_extent(self.encoding, self.extent, given)
        check_positions_given(query, key, positions, k_positions)
        return positions, k_positions, value
