"""The contract: a positional encoding is a record of pure functions of positions.

Letters used in every shape of this package:

    B batch · T query length · S key length · H query heads · K key/value heads · D head dim
    F = D/2 frequencies · A position axes · R relative distances · C channels (width) · L layers · V vocabulary

A model follows one rule, which names no encoding: merge the shared and the layer's parameters (`merge_params`),
`adapt` them to the length or grid at hand, `embed` once before the first layer, and in every layer `rotate` queries and
keys, then attend with `bias` and `relative_values`.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax
from jaxtyping import Array, Float, Num

from pejax._ops.checks import check_choice
from pejax._ops.relative import relative_positions

Params: TypeAlias = dict[str, Any]
"""A dict of arrays: the hooks of attention read `heads` (every leaf leads with H) and `all`; others are private."""

Extent: TypeAlias = int | Array | tuple[int, ...]
"""The length of a sequence (it may be traced), or the static grid (rows, columns, ...) of an image."""


def no_params(key: Array) -> Params:
    """Return no parameters: the `init` of an encoding that learns nothing there."""
    del key
    return {}


class Band(NamedTuple):
    """A range of distances, and how queries and keys are rotated for the pairs in it.

    Attributes:
        low: tokens; the smallest |query - key| of the range, by `TokenPositions.order`.
        high: tokens; the end of the range, which does not belong to it. None = no end.
        rotate: `(params, x, positions) -> x` for queries.
        rotate_keys: the same for keys.
    """

    low: int
    high: int | None
    rotate: Callable[[Params, Array, Array], Array]
    rotate_keys: Callable[[Params, Array, Array], Array]


class Encoding(NamedTuple):
    """Where position enters a transformer. Every hook is optional; None lets the model skip the work.

    Parameters are a mapping. `bias`, `relative_values`, `distance_bias` and `relative_keys` see those in
    `params["heads"]`, whose leaves all lead with H, and in `params["all"]`, which the heads share: they run for one
    head at a time and receive `params_h`, `{**all, **heads of head h}`. `embed` and `rotate` receive all of `params`.

    Attributes:
        init: `(key) -> params`, one copy owned by the model (a learned table, T5's shared table).
        init_layer: `(key) -> params`, one copy per attention layer (mixed frequencies; Shaw's tables).
        constants: `() -> params` that are not trained (ALiBi's slopes); given ones of the same name replace them.
        adapt: `(params, extent) -> params` for this length or grid: only what depends on it. Call `pejax.adapt`.
        embed: `(params, x, positions) -> x` with x `(*B, T, C)`, once before the first layer.
        rotate: `(params, x, positions) -> x` with x `(*B, T, H, D)`: queries, and keys unless `rotate_keys` is given.
        rotate_keys: the same for keys `(*B, S, K, D)` alone, where they differ from queries.
        bias: `(params_h, q TD, k SD, q_positions, k_positions) -> TS` for ONE head, float32, added to scaled logits.
        relative_values: `(params_h, weights TS, q_positions, k_positions) -> TD` for ONE head, linear in the weights.
        distance_bias: `(params_h, relative R or RA) -> R`: a bias that depends on key - query alone. It stands for
            `bias`, which need not be given.
        relative_keys: `(params_h, relative R) -> (a RD, v D, u D)`, on one axis: the parts of a bias
            `(q_i + v) · a_r + u · k_j` at the distances r. A faster form of `bias`, which must be given as well.
        shift_invariant: the claim that one shift of all positions changes no logit; the law tests check it both ways.
        bands: consecutive ranges of distances from 0 on, each with its own rotation in place of `rotate`, for what no
            rotation of single tokens can express. Attention runs in every range and is merged by log-sum-exp.
        causal: made for a model in which keys after the query are masked (`Dims.causal`): nothing attends without it.
    """

    init: Callable[[Array], Params] = no_params
    init_layer: Callable[[Array], Params] = no_params
    constants: Callable[[], Params] | None = None
    adapt: Callable[[Params, Extent], Params] | None = None
    embed: Callable[[Params, Array, Array], Array] | None = None
    rotate: Callable[[Params, Array, Array], Array] | None = None
    rotate_keys: Callable[[Params, Array, Array], Array] | None = None
    bias: Callable[[Params, Array, Array, Array, Array], Array] | None = None
    relative_values: Callable[[Params, Array, Array, Array], Array] | None = None
    distance_bias: Callable[[Params, Array], Array] | None = None
    relative_keys: Callable[[Params, Array], tuple[Array, Array, Array]] | None = None
    shift_invariant: bool = False
    bands: tuple[Band, ...] = ()
    causal: bool = False


@dataclass(frozen=True, init=False)
class Dims:
    """What an encoding may know of the model around it. Equal dims hash equal.

    Args:
        heads: H, query heads.
        head_dim: D, channels per head.
        width: C, channels of the residual stream. None = H·D.
        kv_heads: K, key/value heads; H must be a multiple. None = H.
        axes: A, position axes: 1 for a sequence, 2 for an image.
        extent: the trained length (axes = 1) or grid (axes > 1), in tokens. None = unknown.
        scale: what multiplies q·k. None = head_dim**-0.5.
        causal: whether keys after the query are masked: by every attention with an encoding made for these dims.

    Raises:
        ValueError: a count below 1, heads that are no multiple of kv_heads, or an extent that does not match the axes.
    """

    heads: int
    head_dim: int
    width: int
    kv_heads: int
    axes: int
    extent: int | tuple[int, ...] | None
    scale: float
    causal: bool

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        width: int | None = None,
        kv_heads: int | None = None,
        axes: int = 1,
        extent: int | tuple[int, ...] | None = None,
        scale: float | None = None,
        causal: bool = False,
    ) -> None:
        width = heads * head_dim if width is None else width
        kv_heads = heads if kv_heads is None else kv_heads
        counts = {"heads": heads, "head_dim": head_dim, "width": width, "kv_heads": kv_heads, "axes": axes}
        for name, count in counts.items():
            if count < 1:
                raise ValueError(f"{name} must be at least 1, got {count}")
        if heads % kv_heads:
            raise ValueError(f"heads must be a multiple of kv_heads, got heads={heads}, kv_heads={kv_heads}")
        if extent is not None:
            sizes = (extent,) if isinstance(extent, int) else tuple(extent)
            if len(sizes) != axes or min(sizes) < 1 or (axes == 1) != isinstance(extent, int):
                rule = "a positive int" if axes == 1 else f"a tuple of {axes} positive ints"
                raise ValueError(f"extent must be {rule} when axes={axes}, got {extent!r}")
            extent = extent if axes == 1 else sizes
        scale = float(head_dim) ** -0.5 if scale is None else scale
        for name, value in {**counts, "extent": extent, "scale": scale, "causal": causal}.items():
            object.__setattr__(self, name, value)


def channels_per_head(width: int, heads: int) -> int:
    """Return C / H of a model whose heads share its width.

    Raises:
        ValueError: a count below 1, or a width that is no multiple of the heads.
    """
    if heads < 1 or width < 1 or width % heads:
        raise ValueError(f"width must be a multiple of heads, got width={width}, heads={heads}")
    return width // heads


def init_params(encoding: Encoding, key: Array) -> Params:
    """Draw an encoding's parameters for one layer: those of `init` and of `init_layer`, merged.

    A model of several layers draws `init` once and `init_layer` per layer, and merges them in each (`merge_params`).

    Args:
        encoding: the record.
        key: a JAX random key.

    Returns:
        A pytree to be trained with the rest; empty where the encoding learns nothing.
    """
    shared, layer = jax.random.split(key)
    return merge_params(encoding.init(shared), encoding.init_layer(layer))


def adapt(encoding: Encoding, params: Params, extent: Extent | None = None) -> Params:
    """Return the parameters as hooks read them: with the encoding's constants, for this length or grid.

    Args:
        encoding: the record.
        params: merged (`merge_params`, `init_params`).
        extent: the length of the sequence, or the grid; needed where the encoding depends on it.

    Raises:
        ValueError: no extent, and the encoding depends on it.
    """
    params = with_constants(encoding, params)
    if encoding.adapt is None:
        return params
    if extent is None:
        raise ValueError("this encoding depends on the length or grid: extent must be given, got None")
    return encoding.adapt(params, extent)


def with_constants(encoding: Encoding, params: Params) -> Params:
    """Return the parameters, and of the encoding's constants those that they lack."""
    if encoding.constants is None:
        return params
    constants = encoding.constants()
    merged = {**constants, **params}
    for name in ("heads", "all"):
        if name in params and name in constants:
            merged[name] = {**constants[name], **params[name]}
    return merged


def merge_params(shared: Params, layer: Params) -> Params:
    """Join the model's and one layer's parameters: `{**shared, **layer}`, with `heads` and `all` joined inside.

    Raises:
        ValueError: both hold the same name.
    """
    merged = dict(shared)
    for name, value in layer.items():
        if name not in merged:
            merged[name] = value
        elif name in ("heads", "all"):
            merged[name] = merge_params(merged[name], value)
        else:
            raise ValueError(f"init and init_layer must not share a parameter name, both have {name!r}")
    return merged


def split_params(params: Params) -> tuple[Params, Params]:
    """Return `(shared by all heads, one slice per head)`: what the hooks of attention read of `params`.

    One head's hook receives `{**shared, **{name: leaf[h] for name, leaf in per_head.items()}}`.
    """
    return params.get("all", {}), params.get("heads", {})


@contextlib.contextmanager
def naming_missing(reader: str, params: Params) -> Iterator[None]:
    """Turn the KeyError of a parameter that is not there into a ValueError that says what is, and where to get it."""
    try:
        yield
    except KeyError as error:
        name = error.args[0] if error.args else None
        if name in params:
            raise
        ways = "they must be this encoding's, in 'heads' or 'all', and adapted (pejax.adapt) to the length"
        raise ValueError(f"{reader} reads {name!r}, which its parameters lack, got {sorted(params)}: {ways}") from error


def pair_bias(encoding: Encoding) -> Callable[[Params, Array, Array, Array, Array], Array] | None:
    """Return the encoding's `bias`, or the one that its `distance_bias` implies."""
    if encoding.bias is None and encoding.distance_bias is not None:
        return from_distance(encoding.distance_bias)
    return encoding.bias


def check_embedded(encoding: Encoding, embedded: bool) -> None:
    """Refuse an encoding of the model's input of which nobody says that it was added there."""
    if encoding.embed is not None and not embedded:
        raise ValueError("this encoding is embedded in the model's input: apply its embed, then pass embedded=True")


def causality(encoding: Encoding, causal: bool | None) -> bool:
    """Return whether keys after the query are masked: as the encoding was made, where nobody says.

    Raises: ValueError: made for a causal model, and not to be masked.
    """
    if encoding.causal and causal is False:
        raise ValueError("causal must be True or None with an encoding made with Dims(causal=True), got False")
    return encoding.causal if causal is None else causal


def from_distance(distance: Callable[[Params, Array], Array]) -> Callable[[Params, Array, Array, Array, Array], Array]:
    """Make the `bias` hook that `distance_bias` implies: `distance(params_h, key - query)` and nothing else."""

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
        terms = distance(params, pairs)
        if terms.shape != pairs.shape[:1]:
            raise ValueError(
                f"a distance_bias hook must return one number per pair, (R,) = {pairs.shape[:1]}, got {terms.shape}"
            )
        return terms.reshape(relative.shape[:2])

    return bias


def rotate_queries(encoding: Encoding, params: Params, q: Array, positions: Array) -> Array:
    """Rotate queries `(*B, T, H, D)` as the encoding does outside of bands, if it does."""
    if encoding.rotate is None:
        return q
    with naming_missing("rotate", params):
        return encoding.rotate(params, q, positions)


def rotate_keys(encoding: Encoding, params: Params, k: Array, positions: Array) -> Array:
    """Rotate keys `(*B, S, K, D)` as the encoding does outside of bands, if it does."""
    rotate = encoding.rotate_keys or encoding.rotate
    if rotate is None:
        return k
    with naming_missing("rotate", params):
        return rotate(params, k, positions)


def stack_layers(init_layer: Callable[[Array], Params], key: Array, layers: int) -> Params:
    """Draw the parameters of `layers` layers, stacked on a leading axis L, each from a key of its own."""
    return jax.vmap(init_layer)(jax.random.split(key, layers))


def shared_or_per_layer(share: str, init: Callable[[Array], Params]) -> dict[str, Any]:
    """Return the argument of `Encoding` that makes `init` one copy for the "model", or one for each "layer".

    Raises:
        ValueError: another owner.
    """
    slots = {"model": "init", "layer": "init_layer"}
    check_choice("share", share, tuple(slots))
    return {slots[share]: init}
