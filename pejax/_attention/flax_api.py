"""An encoding inside other people's attention layers: a drop-in for `dot_product_attention` of Flax."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from pejax._attention.api import run, weights_of
from pejax._attention.core.operands import check_dropout, check_options, check_sharding, prepare
from pejax._attention.core.reference import Hooks
from pejax._encoding import (
    Encoding,
    Extent,
    Params,
    bound_hooks,
    causality,
    check_embedded,
    rotate_keys,
    rotate_queries,
)
from pejax._tokens import Tokens, as_tokens, rotary_positions


def attention_fn(
    encoding: Encoding,
    params: Params,
    *,
    q_tokens: Tokens | Array,
    k_tokens: Tokens | Array | None = None,
    extent: Extent | None = None,
    embedded: bool = False,
    causal: bool | None = None,
    window: int | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    implementation: str | None = None,
) -> Callable[..., Array]:
    """Return `f(query, key, value, ...) -> output`: rotate, then attend, with this encoding and these parameters.

    It takes every argument that Flax passes, and serves plain code and `flax.linen.MultiHeadDotProductAttention`:
    made inside the function that is differentiated, its parameters train. Flax NNX keeps parameters in modules
    (`pejax.models.attention_module`). Decoding with a cache binds the positions of each step.

    Args:
        encoding: the record.
        params: merged (`merge_params`), not yet passed through `at`.
        q_tokens: positions of the queries, as in `attention`.
        k_tokens: positions of the keys. None = `q_tokens`.
        extent: the length or grid for `encoding.at`; needed where the encoding has one.
        embedded: says that `encoding.embed` was applied to the input of the model.
        causal: keys after the query are not seen. None = as the encoding was made (`Dims.causal`).
        window: in tokens.
        scale: multiplies q·k. None = D**-0.5.
        soft_cap: in logits.
        implementation: as in `attention`; a mask or bias array needs the reference.

    Returns:
        `f(query (*B, T, H, D), key (*B, S, K, D), value (*B, S, K, D), bias=None, mask=None, ...)`. `bias` is added to
        the logits and `mask` (True = seen) joins the mask, both broadcast to `(*B, H, T, S)`.

    Raises:
        ValueError: the encoding embeds and `embedded` is False, it has `at` and no extent was given, it has bands, or
            it was made for a causal model and `causal` is False.
    """
    if encoding.bands:
        raise ValueError(
            f"attention_fn serves no encoding with bands (use encoded_attention), got {len(encoding.bands)}"
        )
    check_embedded(encoding, embedded)
    causal = causality(encoding, causal)
    if encoding.at is not None:
        if extent is None:
            raise ValueError("this encoding depends on the length or grid: extent must be given, got None")
        params = encoding.at(params, extent)
    q_side = as_tokens(q_tokens)
    k_side = q_side if k_tokens is None else as_tokens(k_tokens)

    def attend(
        query: Array,
        key: Array,
        value: Array,
        bias: Array | None = None,
        mask: Array | None = None,
        broadcast_dropout: bool = True,
        dropout_rng: Array | None = None,
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
    ) -> Array:
        del force_fp32_for_softmax  # it always is
        for name, product in (
            ("einsum_dot_general", einsum_dot_general),
            ("qk_attn_weights_einsum", qk_attn_weights_einsum),
            ("attn_weights_value_einsum", attn_weights_value_einsum),
        ):
            if product is not None:
                raise ValueError(f"{name} must be None: the products are this library's own, got {product!r}")
        dtype = jnp.result_type(query, key, value) if dtype is None else dtype
        query, key, value = (x.astype(dtype) for x in (query, key, value))
        check_sharding(query=query, key=key, value=value)
        query = rotate_queries(encoding, params, query, rotary_positions(q_side, query.shape[:-2]))
        key = rotate_keys(encoding, params, key, rotary_positions(k_side, key.shape[:-2]))
        hooks = bound_hooks(encoding, params)
        options = check_options(query, causal or is_causal, window, None, scale, soft_cap)
        dropping = not deterministic and dropout_rate > 0
        if dropping and dropout_rng is None:
            raise ValueError(f"dropout_rng must be given where dropout_rate={dropout_rate} and not deterministic")
        seed, rate = check_dropout((dropout_rng, dropout_rate) if dropping and dropout_rng is not None else None)
        options = options._replace(dropout_rate=rate, precision=precision)
        operands, layout = prepare(query, key, value, q_tokens, k_tokens, Hooks(**hooks), seed, mask, bias)
        if module is not None:
            module.sow("intermediates", "attention_weights", weights_of(options, layout, operands, query.shape))
        layout = layout._replace(one_dropout=bool(broadcast_dropout))
        return run(options, layout, operands, implementation, query.shape)[0]

    return attend
