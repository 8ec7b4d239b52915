"""`attend`: attention with any encoding. It rotates queries and keys, then attends with the encoding's hooks."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from pejax._attention.api import dot_product_attention, refuse_unknown
from pejax._attention.bands import attend_in_bands
from pejax._attention.by_example import attend_at_extents, batched, rotate_by_example, rotates_alone, within_example
from pejax._attention.core.hooks import bound_hooks
from pejax._attention.core.operands import check_arrays, check_positions_given
from pejax._attention.core.order import follow_arrays
from pejax._attention.core.sink import check_sink
from pejax._calls.arguments import checked
from pejax._ops.open_sizes import as_length
from pejax._record.encoding import (
    Encoding,
    Extent,
    Params,
    adapt,
    causality,
    check_dims,
    check_embedded,
    named,
    one_extent,
    rotate_keys,
    rotate_queries,
    scale_of,
)
from pejax._tokens.positions import Positions, TokenPositions, as_token_positions, check_within, rotary_positions

OPTIONS = dict.fromkeys(
    ("window", "distance_range", "scale", "soft_cap", "dropout", "return_lse", "implementation", "sharding")
).keys()
"""The options of `dot_product_attention`, which `attend` passes on."""


@checked
def attend(
    encoding: Encoding,
    q: Float[Array, "*B T H D"],
    k: Float[Array, "*B S K D"],
    v: Float[Array, "*B S K D"],
    *,
    params: Params | None = None,
    positions: Positions | None = None,
    k_positions: Positions | None = None,
    extent: Extent | None = None,
    axes: int | None = None,
    keys_are_rotated: bool = False,
    embedded: bool = False,
    causal: bool | None = None,
    key_bias: Float[Array, "*B S H"] | None = None,
    sink: Float[Array, " H"] | None = None,
    attention: Callable[..., Any] = dot_product_attention,
    **options: Any,
) -> Float[Array, "*B T H D"] | Any:
    """Attend with an encoding: rotate queries and keys, then `dot_product_attention` with the encoding's hooks.

    Except with the implementations "dense" and "reference", memory is linear in T and S, forward and backward.

    Args:
        encoding: the encoding that rotates queries and keys, and whose hooks attention calls.
        q: queries, not rotated, with tokens before heads.
        k: keys, not rotated, with tokens before heads.
        v: values.
        params: parameters of the encoding, merged (`init_params`, `merge_params`), not yet adapted. None = it has none.
        positions: positions of the queries, as in `dot_product_attention`. None = 0 ... T-1.
        k_positions: positions of the keys. None = `positions`, allowed only if there are as many keys as queries.
        extent: the length or grid, in tokens, that the encoding adapts to: one length or grid; lengths `(B,)`, or on
            A > 1 axes grids `(B, A)`, one per example; or lengths `(B, T)`, one per query, for which all keys are
            rotated again for every query. None = the number of keys; allowed for an encoding that adapts only if no
            positions are given. Integer positions must lie inside it, which is checked if they are not traced.
        axes: A, number of position axes. None = inferred from the shape of the positions. That is ambiguous for
            `(T, T)`: T sequences on one axis, or one sequence on T axes.
        keys_are_rotated: whether the keys come from a cache of rotated keys; see `caches_rotated_keys`.
        embedded: whether `encoding.embed` was applied to the input of the model.
        causal: whether keys after the query are masked. None = as the encoding was made (`Dims.causal`); one without
            dims must be told.
        key_bias: logits `(*B, S, H)` added for each key and query head, as in `dot_product_attention`. None = no bias.
        sink: logits `(H,)`, as in `dot_product_attention`. None = no sink.
        attention: function with the arguments of `dot_product_attention` that takes its place, such as one that also
            measures the weights.
        **options: further arguments of `attention`: `window`, `scale`, `soft_cap`, `dropout`, `implementation`,
            `sharding`. A sharding takes one grid for all examples, and lengths `(B,)`, but not one per query.

    A token without a position (`has_position`) is not rotated, whatever `positions` contains for it.

    Raises:
        ValueError: heads or a head dim other than in the dims of the encoding; no extent for an encoding that depends
            on it, an extent of another shape or below 1, or integer positions outside it; an encoding that embeds while
            `embedded` is False; an encoding made for a causal model while `causal` is False; `keys_are_rotated` with a
            rotation that depends on the length or on the query; a sharding with one grid per example or one length per
            query; or arguments that `dot_product_attention` refuses.

    Examples:
        >>> import pejax
        >>> rope = pejax.encodings.rope(pejax.Dims(heads=8, head_dim=16, causal=True))
        >>> q = k = v = jnp.ones((2, 5, 8, 16))  # batch, tokens, heads, head dim
        >>> attend(rope, q, k, v).shape
        (2, 5, 8, 16)
    """
    if not options.keys() <= OPTIONS and attention is dot_product_attention:
        names = (name for name in inspect.signature(attend).parameters if name != "options")
        refuse_unknown("attend", options.keys() - OPTIONS, (*names, *OPTIONS))
    check_arrays(q, k, v)
    check_dims(encoding, q)
    check_embedded(encoding, embedded)
    check_sink(sink, q.shape[-2])
    check_positions_given(q, k, positions, k_positions)
    if keys_are_rotated and not caches_rotated_keys(encoding):
        rule = "keys_are_rotated must be False where the rotation depends on the length or on the query"
        raise ValueError(f"{rule} (caches_rotated_keys): cache keys as they are, and they are rotated here, got True")
    axis_count = position_axes(encoding, axes, q, positions)
    if axis_count > 1 and extent is not None:
        extent = read_grids(extent, q.shape[:-3], axis_count, options.get("sharding"))
    check_extent(encoding, extent, positions, axis_count)
    extent = as_length(k.shape[-3]) if extent is None else extent
    params = {} if params is None else params
    causal = causality(encoding, causal)
    in_order = positions is None and k_positions is None
    by_order = not any(isinstance(x, TokenPositions) and x.order is not None for x in (positions, k_positions))
    if positions is not None and k_positions is None:
        spans = any(options.get(name) is not None for name in ("window", "distance_range")) or bool(encoding.bands)
        positions = follow_arrays(positions, q.shape[:-2], causal=causal, spans=spans)
    q_tokens = as_token_positions(jnp.arange(q.shape[-3]) if positions is None else positions, q.shape[:-2])
    k_tokens = q_tokens if k_positions is None else as_token_positions(k_positions, k.shape[:-2])
    options["scale"] = scale_of(encoding, options.get("scale"))
    once: dict[str, Any] = {}  # what counts once, after the outputs of the bands are merged
    if encoding.bands:
        once = {name: options.pop(name) for name in ("distance_range", "return_lse") if name in options}
        once |= {"sink": sink, "by_order": by_order}
    elif sink is not None:
        options["sink"] = sink
    bound = functools.partial(attention, causal=causal)
    if encoding.adapt is None or is_one_extent(extent, axis_count):
        run = functools.partial(bound, **options)
        if in_order:
            run = functools.partial(_without_positions, run)
        attend_at = functools.partial(rotate_and_attend, encoding, params, keys_are_rotated, run, **once)
        known_axes = axis_count if axes is not None or encoding.dims is not None else None
        return _at_one_extent(attend_at, extent, known_axes, q, k, v, q_tokens, k_tokens, key_bias)
    extent = jnp.asarray(extent)
    if (
        rotates_alone(encoding)
        and q.ndim == 4
        and extent.shape == (q.shape[0], *((axis_count,) if axis_count > 1 else ()))
    ):
        run = functools.partial(bound, **options)
        attend_at = functools.partial(rotate_by_example, encoding, params, keys_are_rotated, run)
        return _at_one_extent(attend_at, extent, axis_count, q, k, v, q_tokens, k_tokens, key_bias)
    split, options = within_example(options)
    dropout = options.pop("dropout", None)
    run = functools.partial(bound, **options)
    attend_at = functools.partial(rotate_and_attend, encoding, params, keys_are_rotated, run, **once)
    return attend_at_extents(attend_at, extent, axis_count, split, dropout, q, k, v, q_tokens, k_tokens, key_bias)


@checked
def caches_rotated_keys(encoding: Encoding) -> bool:
    """Return whether a cache may hold rotated keys: a key's rotation depends neither on the length nor on the query.

    Args:
        encoding: the encoding of the cached keys.
    """
    rotates = encoding.rotate is not None or encoding.rotate_keys is not None
    return not encoding.bands and (encoding.adapt is None or not rotates)


def check_extent(encoding: Encoding, extent: Extent | None, positions: Any, axes: int | None = None) -> None:
    """Raise ValueError for positions without an extent, or outside it, if the encoding depends on the extent.

    Args:
        encoding: the encoding; one without `adapt` depends on no extent.
        extent: the length or grid, or one per example or query, that it adapts to.
        positions: positions of the queries. None = 0 ... T-1, which need no extent.
        axes: A, number of position axes. None = that of the dims of the encoding.
    """
    if encoding.adapt is None or positions is None:
        return
    if extent is None:
        raise ValueError(f"{named(encoding)} depends on the length or grid: extent must be given, got None")
    check_within(positions, extent, axes or getattr(encoding.dims, "axes", None))


def is_one_extent(extent: Extent, axes: int) -> bool:
    """Return whether an extent is one length or grid, rather than one per example or query."""
    return isinstance(extent, tuple) or np.ndim(extent) == 0 or (axes > 1 and np.ndim(extent) == 1)


def read_grids(extent: Extent, batch: tuple[int, ...], axes: int, sharding: object | None = None) -> Extent:
    """Return a known grid `(A,)` as a tuple, and a traced one or grids `(B, A)` as they are.

    Args:
        extent: one grid, or one per example.
        batch: shape of the batch, `(B,)` where each example may have a grid.
        axes: A, above 1.
        sharding: how attention is split over devices, which needs one grid.

    Raises:
        ValueError: an array of another shape, a known side below 1, or one grid per example with a sharding.
    """
    if isinstance(extent, tuple) or not np.ndim(extent):
        return extent
    if np.shape(extent) not in ((axes,), (*batch[:1], axes)) or (len(batch) != 1 and np.ndim(extent) > 1):
        rule = f"extent must be a grid of {axes} sides, or (B, {axes}), one grid per example of a batch {batch}"
        raise ValueError(f"{rule}, got shape {np.shape(extent)}")
    if not isinstance(extent, Tracer) and np.min(np.asarray(extent), initial=1) < 1:
        raise ValueError(f"extent must have sides of at least 1, got {np.asarray(extent).tolist()}")
    if sharding is not None and np.ndim(extent) > 1:
        raise ValueError(f"extent must be one grid for all examples with a sharding, got shape {np.shape(extent)}")
    return one_extent(extent) if np.ndim(extent) == 1 else extent


def position_axes(encoding: Encoding, axes: int | None, q: Array, positions: TokenPositions | Array | None) -> int:
    """Return A: what the caller says, else that of the encoding's dims, else what the positions' shape implies."""
    if encoding.dims is not None or axes is not None:
        return axes or encoding.dims.axes  # pyright: ignore[reportOptionalMemberAccess]
    array = positions.positions if isinstance(positions, TokenPositions) else positions
    return 1 if array is None or np.ndim(array) != q.ndim - 1 else np.shape(array)[-1]


def rotate_and_attend(
    encoding: Encoding,
    params: Params,
    keys_are_rotated: bool,
    run: Callable[..., Any],
    extent: Extent,
    q: Array,
    k: Array,
    v: Array,
    q_tokens: TokenPositions,
    k_tokens: TokenPositions,
    key_bias: Array | None = None,
    *,
    dropout: tuple[Array, float] | None = None,
    **once: Any,
) -> Any:
    """Adapt to one extent, rotate queries and keys, and attend; with bands, once per band.

    Args:
        encoding: the encoding.
        params: its merged parameters, not yet adapted.
        keys_are_rotated: whether k is rotated already.
        run: attention, `(q, k, v, positions=, k_positions=, hooks=) -> output`.
        extent: the length or grid that all queries adapt to.
        q: queries `(*B, T, H, D)`.
        k: keys `(*B, S, K, D)`.
        v: values `(*B, S, K, D)`.
        q_tokens: positions of the queries.
        k_tokens: positions of the keys.
        key_bias: logits `(*B, S, H)` added for each key and query head. None = no bias.
        dropout: `(key, rate)` of these queries. None = none, or `run` has it.
        **once: with bands, the arguments of `attend_in_bands` by name.
    """
    adapted = adapt(encoding, params, extent)
    run = functools.partial(run, positions=q_tokens, k_positions=k_tokens, hooks=bound_hooks(encoding, adapted))
    run = run if key_bias is None else functools.partial(run, key_bias=key_bias)
    run = run if dropout is None else functools.partial(run, dropout=dropout)
    if encoding.bands:
        return attend_in_bands(encoding, adapted, run, q, k, v, q_tokens, k_tokens, **once)
    q = rotate_queries(encoding, adapted, q, rotary_positions(q_tokens, q.shape[:-2]))
    k = k if keys_are_rotated else rotate_keys(encoding, adapted, k, rotary_positions(k_tokens, k.shape[:-2]))
    return run(q, k, v)


def _without_positions(run: Callable[..., Any], q: Array, k: Array, v: Array, **options: Any) -> Any:
    """Run attention without the positions: attention that knows them to be 0 ... T-1 compiles faster."""
    return run(q, k, v, **{key: value for key, value in options.items() if key not in ("positions", "k_positions")})


def _at_one_extent(
    attend_at: Callable[..., Array],
    extent: Extent,
    axes: int | None,
    q: Array,
    k: Array,
    v: Array,
    q_tokens: TokenPositions,
    k_tokens: TokenPositions,
    key_bias: Array | None,
) -> Any:
    """Attend with one extent.

    With `axes=1`, positions `(B, T)` with B = T become `(B, 1, T)`, so that attention does not take them for `(T, A)`.
    """
    shapes = (side.positions.shape for side in (q_tokens, k_tokens))
    if axes != 1 or not any(len(shape) == 2 and shape[0] == shape[1] for shape in shapes):
        return attend_at(extent, q, k, v, q_tokens, k_tokens, key_bias)
    sides = (batched(q_tokens, *q.shape[:2]), batched(k_tokens, *k.shape[:2]))
    with_axis = jax.tree.map(lambda leaf: leaf[:, None], (q, k, v, *sides, key_bias))
    return jax.tree.map(lambda leaf: leaf[:, 0], attend_at(extent, *with_axis))
