"""The data of pictures: one layer with random tokens and projections, run by the library's own functions."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num

from pejax._attention.api import attention_weights, dot_product_attention
from pejax._attention.core.hooks import attention_hooks
from pejax._record.dims import Dims
from pejax._record.encoding import (
    Encoding,
    Extent,
    Params,
    adapt,
    init_params,
    named,
    pair_bias,
    rotate_keys,
    rotate_queries,
    split_params,
)
from pejax._tokens.positions import TokenPositions, grid_positions

LENGTH = 32
"""Length of a picture, in tokens, where the dims have no extent."""


class Layer(NamedTuple):
    """Tokens on their way through the attention of one layer.

    Attributes:
        x: the tokens, with what the encoding embeds.
        q: queries before they are rotated.
        k: keys before they are rotated, one for each query head.
        positions: positions of the tokens, in tokens or patches.
        params: adapted to the extent.
    """

    x: Float[Array, "T C"]
    q: Float[Array, "T H D"]
    k: Float[Array, "T H D"]
    positions: Num[Array, "T *A"]
    params: Params


def refuse(picture: str, rule: str, got: object) -> NoReturn:
    """Raise ValueError in one line: the picture, the rule, and the value received."""
    raise ValueError(f"{picture}: {rule}, got {got}")


def check_count(picture: str, **counts: int) -> None:
    """Refuse a count below 1."""
    for name, count in counts.items():
        if count < 1:
            refuse(picture, f"{name} must be at least 1", count)


def check_axes(picture: str, dims: Dims, *allowed: int) -> None:
    """Refuse dims with position axes that the picture does not have."""
    if dims.axes not in allowed:
        refuse(picture, f"axes must be {' or '.join(map(str, allowed))}", dims.axes)


def check_hooks(picture: str, encoding: Encoding, *hooks: str) -> None:
    """Refuse an encoding that has none of these hooks."""
    if not any(getattr(encoding, hook) for hook in hooks):
        names = [field.name for field in dataclasses.fields(encoding) if callable(getattr(encoding, field.name))]
        acting = [name for name in names if name not in ("init", "init_layer", "constants", "layer_constants", "adapt")]
        refuse(
            picture, f"the encoding must have {' or '.join(hooks)}", ", ".join(acting) or "an encoding without hooks"
        )


def bias_of_pairs(picture: str, encoding: Encoding) -> Callable[[Params, Array, Array, Array, Array], Array]:
    """Return the bias of an encoding as a function of positions; refuse an encoding without one."""
    hook = pair_bias(encoding)
    if hook is None:
        refuse(picture, "the encoding must have a bias", named(encoding))
    return hook


def check_width(picture: str, dims: Dims) -> None:
    """Refuse dims whose width is not that of all heads."""
    if dims.width != dims.heads * dims.head_dim:
        refuse(picture, f"dims.width must be heads · head_dim = {dims.heads * dims.head_dim}", dims.width)


def check_encodings(picture: str, encodings: Mapping[str, Encoding]) -> None:
    """Refuse an empty mapping, or one encoding in place of a mapping from names."""
    if isinstance(encodings, Encoding) or not encodings:
        kind = "one Encoding" if isinstance(encodings, Encoding) else encodings
        refuse(picture, "encodings must be a mapping from names to encodings, with at least one", kind)


def trained_length(dims: Dims) -> int | None:
    """Return the trained length of a sequence, None where it is unknown or a grid."""
    return dims.extent if isinstance(dims.extent, int) else None


def exceeded(dims: Dims, length: int) -> int | None:
    """Return the trained length where `length` exceeds it, None elsewhere."""
    trained = trained_length(dims)
    return None if trained is None or trained >= length else trained


def extent_of(picture: str, dims: Dims, length: int | None) -> int | tuple[int, ...]:
    """Return the length given, or the trained one; on several axes the trained grid."""
    if dims.axes == 1:
        return length_of(picture, dims, length)
    if length is not None:
        check_count(picture, length=length)
    return grid_of(picture, dims)


def twice_trained(picture: str, dims: Dims, length: int | None) -> int:
    """Return the length given, or else twice the trained one, or `LENGTH`."""
    trained = trained_length(dims)
    return length_of(picture, dims, length if length is not None or trained is None else 2 * trained)


def length_of(picture: str, dims: Dims, length: int | None) -> int:
    """Return the length of a sequence: the one given, or else the trained one."""
    if length is not None:
        check_count(picture, length=length)
    return length or trained_length(dims) or LENGTH


def grid_of(picture: str, dims: Dims) -> tuple[int, ...]:
    """Return the trained grid; refuse dims without one."""
    if not isinstance(dims.extent, tuple):
        refuse(picture, "dims.extent must be the grid of patches", dims.extent)
    return dims.extent


def positions_of(extent: int | tuple[int, ...]) -> Num[Array, "T *A"]:
    """Return the positions of a sequence, or of a grid in raster order."""
    if isinstance(extent, int):
        return jnp.arange(extent)
    return grid_positions(extent)


def settled(encoding: Encoding, params: Params | None, extent: Extent) -> Params:
    """Return the parameters as hooks read them; the initial ones where none are given."""
    return adapt(encoding, init_params(encoding, jax.random.key(0)) if params is None else params, extent)


@functools.partial(jax.jit, static_argnums=0)
def applied(hook: Callable[..., Any], *operands: Any) -> Any:
    """Call a hook as one program; one operation after the other, each would be compiled by itself."""
    return hook(*operands)


def drawn_words(words: Sequence[str], seed: int, *shape: int) -> Float[Array, "T ..."]:
    """Draw a normal array for every word; equal words get equal arrays."""
    numbers = {word: i for i, word in enumerate(dict.fromkeys(words))}
    draws = jax.random.normal(jax.random.key(seed), (len(numbers), *shape), jnp.float32)
    return draws[np.array([numbers[word] for word in words])]


def make_layer(
    encoding: Encoding,
    dims: Dims,
    params: Params | None,
    extent: int | tuple[int, ...],
    *,
    seed: int = 0,
    x: Float[Array, "T C"] | None = None,
    project: bool = True,
) -> Layer:
    """Draw one layer: normal tokens, `embed`, and normal projections of variance 1 / C.

    Args:
        encoding: the record.
        dims: dims that the encoding was made for.
        params: parameters, not yet adapted. None = the initial ones.
        extent: the length, or the grid.
        seed: random seed.
        x: the tokens; None = normal.
        project: False = queries and keys are the tokens themselves, C cut into heads; then C must be H·D.
    """
    params, positions = settled(encoding, params, extent), positions_of(extent)
    keys = jax.random.split(jax.random.key(seed), 3)
    x = jax.random.normal(keys[0], (len(positions), dims.width), jnp.float32) if x is None else x
    x = x if encoding.embed is None else applied(encoding.embed, params, x, positions)
    if not project:
        q = k = x.reshape(len(positions), dims.heads, -1)
        return Layer(x, q, k, positions, params)
    shape = (dims.width, dims.heads, dims.head_dim)
    kernels = [dims.width**-0.5 * jax.random.normal(key, shape, jnp.float32) for key in keys[1:]]
    kernels[1] = jnp.repeat(kernels[1][:, : dims.kv_heads], dims.heads // dims.kv_heads, axis=1)
    q, k = (jnp.einsum("tc,chd->thd", x, kernel) for kernel in kernels)
    return Layer(x, q, k, positions, params)


@functools.partial(jax.jit, static_argnums=0)
def turned(encoding: Encoding, layer: Layer) -> tuple[Float[Array, "T H D"], Float[Array, "T H D"]]:
    """Return queries and keys as the encoding rotates them, if it does."""
    return (
        rotate_queries(encoding, layer.params, layer.q, layer.positions),
        rotate_keys(encoding, layer.params, layer.k, layer.positions),
    )


def products_of(encoding: Encoding, dims: Dims, layer: Layer) -> Float[Array, "H T S"]:
    """Return `scale · q·k`, rotated."""
    q, k = turned(encoding, layer)
    return dims.scale * jnp.einsum("thd,shd->hts", q, k, precision="highest")


def bias_of(encoding: Encoding, layer: Layer) -> Float[Array, "H T S"]:
    """Return the bias of every head, 0 where the encoding has none."""
    hook = pair_bias(encoding)
    if hook is None:
        return jnp.zeros((layer.q.shape[1], *layer.q.shape[:1] * 2), jnp.float32)
    q, k = turned(encoding, layer)
    return head_by_head(hook, layer.params, q, k, layer.positions)


@functools.partial(jax.jit, static_argnums=0)
def _lift(hook: Callable[..., Array], params: Params, q: Array, k: Array, positions: Array) -> Array:
    shared, heads = split_params(params)
    of_head = lambda heads, q, k: hook({**shared, **heads}, q, k, positions, positions)
    return jax.vmap(of_head, in_axes=(0, 1, 1))(heads, q, k)


def head_by_head(
    hook: Callable[..., Array], params: Params, q: Float[Array, "T H D"], k: Float[Array, "T H D"], positions: Array
) -> Float[Array, "H T S"]:
    """Return a `bias` hook of all heads, called for one at a time as attention does."""
    read = {name: params[name] for name in ("all", "heads") if name in params}
    return _lift(hook, read, q, k, positions)


def weights_of(encoding: Encoding, dims: Dims, layer: Layer) -> Float[Array, "H T S"]:
    """Return the attention weights; with bands, merged by their log-sum-exp."""
    tokens = TokenPositions(layer.positions, order=jnp.arange(len(layer.positions)))
    hooks = attention_hooks(encoding, layer.params, rotated=True, embedded=True)
    options: dict[str, Any] = {"positions": tokens, "hooks": hooks, "scale": dims.scale}
    options["causal"] = is_causal(encoding, dims)
    if not encoding.bands:
        return attention_weights(*turned(encoding, layer), **options)
    parts, sums = [], []
    for low, high, turn, turn_keys in encoding.bands:
        q, k = (way(layer.params, x, layer.positions) for way, x in ((turn, layer.q), (turn_keys, layer.k)))
        band_options = {**options, "distance_range": (low, len(layer.positions) + 1 if high is None else high)}
        if band_options["distance_range"][0] >= band_options["distance_range"][1]:
            continue
        parts.append(attention_weights(q, k, **band_options))
        sums.append(dot_product_attention(q, k, k, return_lse=True, **band_options)[1])
    total = jax.nn.logsumexp(jnp.stack(sums), axis=0)
    shares = [jnp.exp(lse - total).T[:, :, None] for lse in sums]
    return sum((part * share for part, share in zip(parts, shares, strict=True)), jnp.zeros_like(parts[0]))


def is_causal(encoding: Encoding, dims: Dims) -> bool:
    """Return whether keys after the query are masked; a record without dims does not say it."""
    return encoding.causal or dims.causal


def seen_only(encoding: Encoding, dims: Dims, matrix: Any) -> np.ndarray:
    """Return `(..., T, S)` with NaN for keys after the query, where these are masked."""
    matrix = np.array(matrix, np.float64)
    if is_causal(encoding, dims):
        matrix[..., ~np.tri(*matrix.shape[-2:], dtype=bool)] = np.nan
    return matrix
