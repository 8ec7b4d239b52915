"""The contract of positional encodings: an `Encoding` is a record of pure functions of positions, called hooks.

Letters used in every shape of this package:

    B batch · T query length · S key length · H query heads · K key/value heads · D head dim
    F = D/2 frequencies · A position axes · R relative distances · C channels (width) · L layers · V vocabulary

A model does the same for every encoding: merge the shared and the layer's parameters (`merge_params`), `adapt` them to
the current length or grid, `embed` once before the first layer, and in every layer `rotate` queries and keys, then
attend with `bias` and `relative_values`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Num

from pejax._calls.arguments import checked, checked_fields
from pejax._calls.hook_calls import call_token_hook, check_params, check_returned, naming_hook
from pejax._ops.checks import check_choice
from pejax._ops.relative import relative_positions
from pejax._record.dims import Dims
from pejax._record.params import Extent, Params, RandomKey, merge_params, no_params
from pejax._record.specs import Spec

STEP = "step"
"""The name of the step of a schedule among the parameters of an encoding."""


class Band(NamedTuple):
    """A range of distances between query and key, with the rotation for the pairs in it.

    Attributes:
        low: the smallest query - key of the range, in tokens, measured by positions; keys after the query are in the
            first range. Where some tokens have no position, |query - key| is measured by `TokenPositions.order`.
        high: the end of the range, exclusive, in tokens. None = no end.
        rotate: `(params, x, positions) -> x` for queries `(*B, T, H, D)`.
        rotate_keys: the same for keys `(*B, S, K, D)`.
    """

    low: int
    high: int | None
    rotate: Callable[[Params, Array, Array], Array]
    rotate_keys: Callable[[Params, Array, Array], Array]


@checked_fields
@dataclass(frozen=True, kw_only=True)
class Encoding:
    """The hooks by which position enters a transformer. Every hook is optional: None = the model skips that step.

    Parameters are a mapping. The hooks of pairs (`bias`, `distance_bias`, `relative_keys`, `relative_values`,
    `unplaced_bias`) run for one head at a time. They receive
    `params_h = {**params["all"], **(params["heads"] at index h)}`: the leaves of `params["heads"]` all have the leading
    axis H, and the heads share `params["all"]`. The hooks of tokens (`embed`, `rotate`, `rotate_keys`, `bands`) receive
    all of `params`.

    A record is a value: `dataclasses.replace(encoding, embed=None)` gives a changed copy.

    Attributes:
        init: `(key) -> params`, one copy per model (a learned table, T5's shared table).
        init_layer: `(key) -> params`, one copy per attention layer (mixed frequencies; Shaw's tables).
        constants: `() -> params` that are not trained (ALiBi's slopes). A trained parameter of the same name replaces
            the constant.
        layer_constants: `(layers) -> params` that are not trained and differ by depth (LookHere's slopes), stacked on
            L. The attention layers of `pejax.models` read them in place of `constants` of the same name.
        adapt: `(params, extent) -> params` for a length or grid, a traced grid as an array `(A,)`; changes only the
            parameters that depend on it. Do not call it directly: `pejax.adapt` also adds the constants.
        embed: `(params, x, positions) -> x` with x `(*B, T, C)`, once before the first layer.
        rotate: `(params, x, positions) -> x` with x `(*B, T, H, D)`: queries, and keys unless `rotate_keys`
            is given.
        rotate_keys: the same for keys `(*B, S, K, D)` alone, where they differ from queries.
        bands: consecutive ranges of distances from 0 on, each with its own rotation in place of `rotate`, for
            encodings whose rotation depends on the distance of query and key. Attention runs once per range, and the
            outputs are merged by log-sum-exp.
        bias: `(params_h, q, k, q_positions, k_positions) -> bias` for ONE head, with q `(T, D)`, k `(S, D)`
            and the float32 bias `(T, S)`, which is added to the scaled logits.
        distance_bias: `(params_h, relative) -> bias` for ONE head, with relative = key - query `(R,)` or
            `(R, A)` and the bias `(R,)`: a bias that depends on key - query alone. Given this hook, `bias` may be None.
            Differences of integer positions are limited to ±(2^31 - 1).
        relative_keys: `(params_h, relative) -> (a, v, u)` for ONE head and one axis, with relative `(R,)`,
            a `(R, D)`, v `(D,)` and u `(D,)`: the parts of a bias `(q_i + v) · a_r + u · k_j`, where row r of a belongs
            to the relative position of i and j. A faster form of `bias`, which must be given as well.
        relative_values: `(params_h, weights, q_positions, k_positions) -> values` for ONE head, with
            attention weights `(T, S)` and values `(T, D)`, which are added to the output; linear in the weights.
        unplaced_bias: `(params_h) -> bias` for ONE head, a number that is added to the logits of all keys
            without a position (CLS, registers), for every query, after a `soft_cap`. It has no gradient.
        shift_invariant: whether adding the same offset to all positions leaves every logit unchanged. The tests check
            this claim, True or False.
        hides: whether `bias` or `distance_bias` may return -inf, which hides the key from the query. If `hides` is
            False, a `soft_cap` makes such keys visible again.
        tabulate: whether `distance_bias` is slower than a lookup. `pi` then evaluates it once per offset of a grid.
        periods: the period of each axis, `(None, 360.0)`, after which its positions repeat, which extensions leave as
            it is; None where they do not. () = on no axis.
        dims: the dims that the encoding was made for. Their `causal` and `scale` are the defaults of `attend` and
            `attention_fn`, which refuse queries with another number of heads or another head dim. None = any dims;
            `causal` must then be given.
        spec: the spec from which `make_encoding` makes it, `rope(base=50.0, extend='yarn(factor=8)')`; attention does
            not read it, `explain` and errors do. None for a record of your own.
    """

    # parameters
    init: Callable[[Array], Params] = no_params
    init_layer: Callable[[Array], Params] = no_params
    constants: Callable[[], Params] | None = None
    layer_constants: Callable[[int], Params] | None = None
    adapt: Callable[[Params, Extent], Params] | None = None
    # tokens
    embed: Callable[[Params, Array, Array], Array] | None = None
    rotate: Callable[[Params, Array, Array], Array] | None = None
    rotate_keys: Callable[[Params, Array, Array], Array] | None = None
    bands: tuple[Band, ...] = ()
    # pairs
    bias: Callable[[Params, Array, Array, Array, Array], Array] | None = None
    distance_bias: Callable[[Params, Array], Array] | None = None
    relative_keys: Callable[[Params, Array], tuple[Array, Array, Array]] | None = None
    relative_values: Callable[[Params, Array, Array, Array], Array] | None = None
    unplaced_bias: Callable[[Params], Array] | None = None
    # facts
    shift_invariant: bool = False
    hides: bool = False
    tabulate: bool = False
    periods: tuple[float | None, ...] = ()
    dims: Dims | None = None
    spec: Spec | None = None

    @property
    def causal(self) -> bool:
        """Whether the encoding was made for a model in which keys after the query are masked."""
        return self.dims is not None and self.dims.causal

    def __copy__(self) -> "Encoding":
        return self  # a value

    def __deepcopy__(self, memo: dict[int, Any]) -> "Encoding":
        del memo
        return self


@checked
def init_params(encoding: Encoding, key: RandomKey) -> Params:
    """Draw an encoding's parameters for one layer: the results of `init` and `init_layer`, merged.

    A model of several layers calls `init` once and `init_layer` once per layer, and merges the two in each layer
    (`merge_params`).

    Args:
        encoding: the record.
        key: a JAX random key.

    Returns:
        A pytree to train with the rest of the model; empty if the encoding learns nothing.

    Examples:
        >>> import pejax
        >>> t5 = pejax.encodings.t5(pejax.Dims(heads=4, head_dim=16))
        >>> init_params(t5, jax.random.key(0))["heads"]["table"].shape  # heads, buckets
        (4, 32)
    """
    shared, layer = jax.random.split(key)
    return merge_params(shared_params(encoding, shared), layer_params(encoding, layer))


def shared_params(encoding: Encoding, key: Array) -> Params:
    """Return the parameters of `encoding.init`."""
    with naming_hook("init", encoding.init, {}):
        return check_params("init", encoding.init, encoding.init(key))


def layer_params(encoding: Encoding, key: Array) -> Params:
    """Return the parameters of `encoding.init_layer`."""
    with naming_hook("init_layer", encoding.init_layer, {}):
        return check_params("init_layer", encoding.init_layer, encoding.init_layer(key))


@checked
def adapt(encoding: Encoding, params: Params, extent: Extent | None = None) -> Params:
    """Return the parameters that the hooks take: adapted to a length or grid, with the encoding's constants added.

    Args:
        encoding: the record.
        params: the merged parameters of the model and one layer (`init_params`, `merge_params`).
        extent: the length of the sequence, or the grid, in tokens; required if the encoding depends on it. A traced
            grid is an array `(A,)`; for one grid per image, use `jax.vmap`.

    Raises:
        ValueError: no extent for an encoding that depends on it, several extents at once, or parameters that it lacks.

    Examples:
        >>> import pejax
        >>> learned = pejax.encodings.learned(pejax.Dims(heads=4, head_dim=16, axes=2, extent=(7, 7)))
        >>> params = init_params(learned, jax.random.key(0))
        >>> adapt(learned, params, extent=(14, 14))["table_0"].shape  # resized from (7, 7, 64)
        (14, 14, 64)
    """
    params = with_constants(encoding, params)
    if encoding.adapt is None:
        return params
    if extent is None:
        raise ValueError(f"{named(encoding)} depends on the length or grid: extent must be given, got None")
    extent = one_extent(extent)
    with naming_hook("adapt", encoding.adapt, params, extent):
        return check_params("adapt", encoding.adapt, encoding.adapt(params, extent))


def one_extent(extent: Extent) -> Extent:
    """Return a known grid `(A,)` as a tuple, any other length or grid as it is; refuse one extent per example."""
    if isinstance(extent, tuple) or np.ndim(extent) == 0:
        return extent
    if np.ndim(extent) > 1:
        rule = "extent must be one length or one grid (A,): call attend, or jax.vmap over the images"
        raise ValueError(f"{rule}, got shape {np.shape(extent)}")
    return extent if isinstance(extent, Tracer) else tuple(np.asarray(extent).tolist())


def axes_of_extent(extent: Extent) -> int:
    """Return the number of axes of one length or grid."""
    return len(extent) if isinstance(extent, tuple) or np.ndim(extent) else 1  # pyright: ignore[reportArgumentType]


def with_constants(encoding: Encoding, params: Params) -> Params:
    """Return the parameters, with the encoding's constants for the names that they lack."""
    if encoding.constants is None:
        return params
    with naming_hook("constants", encoding.constants, {}):
        constants = check_params("constants", encoding.constants, encoding.constants())
    merged = {**constants, **params}
    for name in ("heads", "all"):
        if name in params and name in constants:
            merged[name] = {**constants[name], **params[name]}
    return merged


def split_params(params: Params) -> tuple[Params, Params]:
    """Return `(shared, per_head)`: the parameters that all heads share, and those with a leading axis of heads.

    For head h, a hook of attention receives `{**shared, **{name: leaf[h] for name, leaf in per_head.items()}}`.
    """
    return params.get("all", {}), params.get("heads", {})


def pair_bias(encoding: Encoding) -> Callable[[Params, Array, Array, Array, Array], Array] | None:
    """Return the encoding's `bias`, or the one that follows from its `distance_bias`; None if it has neither."""
    if encoding.bias is None and encoding.distance_bias is not None:
        return from_distance(encoding.distance_bias)
    return encoding.bias


def named(encoding: Encoding) -> str:
    """Return the encoding's spec, for messages."""
    return str(encoding.spec or "this encoding")


def check_dims(encoding: Encoding, q: Array) -> None:
    """Raise ValueError if queries `(*B, T, H, D)` have other heads or another head dim than the encoding's dims."""
    dims = encoding.dims
    if dims is not None and q.shape[-2:] != (dims.heads, dims.head_dim):
        rule = f"heads={dims.heads} and head_dim={dims.head_dim}, the dims that the encoding was made for"
        raise ValueError(f"q must be (*B, T, H, D) with {rule}, got shape {q.shape}")


def own_dims(encoding: Encoding, dims: Dims | None) -> Dims:
    """Return the dims given, or those that the encoding was made for; raise ValueError where there are none."""
    dims = encoding.dims if dims is None else dims
    if dims is None:
        raise ValueError(
            "dims must be given with an encoding made without dims (pejax.Encoding(..., dims=dims)), got None"
        )
    return dims


def scale_of(encoding: Encoding, scale: float | None) -> float | None:
    """Return the factor of q·k: `scale`, or where it is None the one in the encoding's dims. None = D**-0.5."""
    return encoding.dims.scale if scale is None and encoding.dims is not None else scale


def check_embedded(encoding: Encoding, embedded: bool) -> None:
    """Raise ValueError if the encoding embeds the model's input and the caller does not say that this was done."""
    if encoding.embed is not None and not embedded:
        rule = "is embedded in the model's input: apply its embed, then pass embedded=True"
        raise ValueError(f"{named(encoding)} {rule}, got False")


def causality(encoding: Encoding, causal: bool | None) -> bool:
    """Return whether keys after the query are masked.

    Args:
        encoding: the record.
        causal: what the caller wants; None = as the encoding was made (`Dims.causal`).

    Raises:
        ValueError: None with an encoding that has no dims to say it, or False with one made for a causal model.
    """
    if causal is None and encoding.dims is None:
        rule = "causal must be True or False with an encoding made without dims (pejax.Encoding(..., dims=dims))"
        raise ValueError(f"{rule}, got None")
    if encoding.causal and causal is False:
        raise ValueError("causal must be True or None with an encoding made with Dims(causal=True), got False")
    return encoding.causal if causal is None else causal


@checked
def from_distance(distance: Callable[[Params, Array], Array]) -> Callable[[Params, Array, Array, Array, Array], Array]:
    """Return the `bias` hook that computes `distance(params_h, key - query)` for every pair.

    Args:
        distance: a `distance_bias` hook, `(params_h, relative) -> bias` with relative `(R,)` or `(R, A)`, bias `(R,)`.

    Examples:
        >>> import jax.numpy as jnp
        >>> bias = from_distance(lambda params, relative: -2.0 * jnp.abs(relative.astype(jnp.float32)))
        >>> q, positions = jnp.ones((3, 8)), jnp.arange(3)
        >>> bias({}, q, q, positions, positions)[0].tolist()
        [-0.0, -2.0, -4.0]
    """

    def bias(
        params: Params,
        q: Float[Array, "T D"],
        k: Float[Array, "S D"],
        q_positions: Num[Array, "T *A"],
        k_positions: Num[Array, "S *A"],
    ) -> Float[Array, "T S"]:
        del q, k
        relative = relative_positions(q_positions, k_positions)
        pairs = relative.reshape(-1, *relative.shape[2:])
        with naming_hook("distance_bias", distance, params, pairs):
            terms = distance(params, pairs)
        check_returned("distance_bias", distance, "(R,)", pairs.shape[:1], terms, pairs)
        return terms.reshape(relative.shape[:2])

    return bias


def rotate_queries(encoding: Encoding, params: Params, q: Array, positions: Array) -> Array:
    """Return queries `(*B, T, H, D)` rotated by `encoding.rotate`, or unchanged without it; bands are ignored."""
    if encoding.rotate is None:
        return q
    return call_token_hook("rotate", encoding.rotate, params, q, positions)


def rotate_keys(encoding: Encoding, params: Params, k: Array, positions: Array) -> Array:
    """Return keys `(*B, S, K, D)` rotated by `rotate_keys` or else `rotate`, or unchanged; bands are ignored."""
    if encoding.rotate_keys is not None:
        return call_token_hook("rotate_keys", encoding.rotate_keys, params, k, positions)
    return k if encoding.rotate is None else call_token_hook("rotate", encoding.rotate, params, k, positions)


def shared_or_per_layer(share: str, init: Callable[[Array], Params]) -> dict[str, Any]:
    """Return the keyword argument of `Encoding` that gives `init` to the model, or to every layer.

    Args:
        share: "model", one copy of the parameters for all layers, or "layer", one copy per layer.
        init: `(key) -> params`.

    Raises:
        ValueError: any other `share`.
    """
    slots = {"model": "init", "layer": "init_layer"}
    check_choice("share", share, tuple(slots))
    return {slots[share]: init}
