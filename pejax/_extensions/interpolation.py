"""Position interpolation: scales positions to the trained extent, for arrays and for all hooks of an encoding.

On a grid of N' patches in place of N, the same picture has more patches, but as many tokens without a position (CLS,
registers) as before. As keys these get the bias `ln(N'/N)`, which keeps their share of attention.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Num

from pejax._calls.arguments import checked
from pejax._calls.kinds import shown
from pejax._extensions.extension import extension_factory
from pejax._ops.checks import check_position_type
from pejax._ops.offset_table import look_up_within, table_of_offsets
from pejax._record.dims import Dims
from pejax._record.encoding import Encoding, Extent, Params, axes_of_extent, from_distance, split_params
from pejax._record.encoding import adapt as adapt_to
from pejax._tokens.positions import check_within

FACTOR = "interpolation_factor"
"""The name of the factor among the parameters; absent where the extent is within the trained one."""
TABLE = "interpolated_table"
"""The name of the bias at each offset of the current grid, one table per head, if `Encoding.tabulate` asks for it."""


def interpolate_encoding(
    encoding: Encoding,
    dims: Dims,
    *,
    factor: float | int | tuple[float, ...] | None = None,
    proportional: bool = True,
    stretch: bool = False,
) -> Encoding:
    """Scale positions into the trained extent (position interpolation), for any encoding with a trained extent.

    `p'_a = p_a · min(1, L_a / L'_a)` on every axis a, or `p_a / s_a` with factors s. On one axis, rotary encodings
    divide their frequencies instead (`linear`), which is equivalent and does not round positions.

    What depends on the length gets at most the trained extent. Masks and windows count tokens as before. A bias that
    is a function of the distance gets the scaled distance, because the difference of two scaled positions is rounded.
    Axes on which positions repeat (`periodic` of rotary encodings) are not scaled. On grids, every key without a
    position gets the bias `Σ_a ln(L'_a / L_a)`, over the axes that are scaled, and a bias
    that is slower than a lookup (`Encoding.tabulate`) is evaluated once per offset between two patches.

    Args:
        encoding: any encoding.
        dims: dims whose extent is L, the trained length or grid; not needed with a factor.
        factor: s, at least 1, which divides positions at any length; one number, or one per axis. None =
            max(1, L' / L), on each axis.
        proportional: whether tokens without a position (CLS, registers) keep their share of attention on a grid of N'
            patches, larger than the trained one of N patches. Attention to patches whose positions are interpolated is
            a sum over more samples of the same picture, which grows by N'/N; the logits of keys without a position then
            get `ln(N'/N)`. False = positions are scaled, and nothing else. On sequences, this has no effect.
        stretch: whether an axis that is shorter than the trained one is stretched to it, as a longer one is squeezed
            into it: positions are multiplied by `L_a / L'_a` in both cases. For grids alone.

    Raises:
        ValueError: neither a factor nor a trained extent, a factor below 1 or not one per axis, a sequence that is to
            be stretched, or a factor together with `stretch`. `adapt` refuses an extent with another number of axes.

    Reference:
        Chen et al. 2023, "Extending Context Window of Large Language Models via Positional Interpolation"
        (arXiv 2306.15595), equation 3.
        Bolya et al. 2023, "Token Merging" (arXiv 2210.09461), equation 1: proportional attention, the logarithm of the
        number of patches that a key stands for.
    """
    if factor is not None:
        if stretch:
            raise ValueError(f"pi must have stretch=False with a factor, got factor={factor}")
        scaling = functools.partial(_divided, _per_axis(factor, dims.axes))
    elif dims.extent is None:
        raise ValueError("pi needs the trained length, got dims.extent=None")
    else:
        scaling = functools.partial(_within, dims.extent, stretch)
    if any(encoding.periods):
        scaling = functools.partial(_beside_periods, encoding.periods, scaling)
    if stretch and dims.axes == 1:
        raise ValueError(
            "pi must have stretch=False on sequences: a shorter text is no smaller picture, got stretch=True"
        )

    wrap = lambda way, hook: None if hook is None else way(hook)
    distance = wrap(_on_tabulated_distances if encoding.tabulate else _on_distances, encoding.distance_bias)
    on_band = lambda band: band._replace(rotate=_on_tokens(band.rotate), rotate_keys=_on_tokens(band.rotate_keys))
    return dataclasses.replace(
        encoding,
        adapt=functools.partial(_adapted, encoding, scaling, distance, dims.heads),
        embed=wrap(_on_tokens, encoding.embed),
        rotate=wrap(_on_tokens, encoding.rotate),
        rotate_keys=wrap(_on_tokens, encoding.rotate_keys),
        bias=wrap(_on_pairs, encoding.bias) if distance is None else from_distance(distance),
        relative_values=wrap(_on_pairs, encoding.relative_values),
        distance_bias=distance,
        relative_keys=None,
        bands=tuple(map(on_band, encoding.bands)),
        unplaced_bias=_unplaced_bias(encoding) if proportional and dims.axes > 1 else encoding.unplaced_bias,
    )


pi = extension_factory("pi", "encoding", interpolate_encoding)


def is_interpolated(encoding: Encoding) -> bool:
    """Return whether `pi` was the last to change what an encoding does with its length."""
    return isinstance(encoding.adapt, functools.partial) and encoding.adapt.func is _adapted


def _adapted(
    encoding: Encoding,
    scaling: Callable[[Extent], tuple[Extent, Array | None]],
    distance: Callable[[Params, Array], Array] | None,
    heads: int,
    params: Params,
    extent: Extent,
) -> Params:
    """Return the parameters of an encoding for the trained extent, with the factor of positions."""
    within, scale = scaling(extent)
    params = adapt_to(encoding, params, within)
    if scale is None:
        return params
    params = {**params, FACTOR: scale, "all": {**params.get("all", {}), FACTOR: scale}}
    if distance is None or not encoding.tabulate or not isinstance(extent, tuple):
        return params
    table = table_of_offsets(distance, *split_params(params), heads, extent)
    return {**params, "heads": {**params.get("heads", {}), TABLE: table}}


def _on_tokens(hook: Callable) -> Callable:
    """Return a hook of tokens at scaled positions."""
    return lambda params, x, positions: hook(_own(params), x, _scaled(params, positions))


def _on_pairs(hook: Callable) -> Callable:
    """Return a hook of queries and keys, whose last operands are their positions, at scaled positions."""

    def scaled(params: Params, *operands: Array) -> Array:
        *leading, q_positions, k_positions = operands
        return hook(_own(params), *leading, _scaled(params, q_positions), _scaled(params, k_positions))

    return scaled


def _on_distances(hook: Callable) -> Callable:
    """Return a hook of relative positions at scaled ones."""
    return lambda params, relative: hook(_own(params), _scaled(params, relative))


def _on_tabulated_distances(hook: Callable) -> Callable:
    """Return a hook of relative positions that reads the table of the current grid if `adapt` made one."""
    evaluated = _on_distances(hook)
    return lambda params, relative: look_up_within(TABLE, relative, lambda p: evaluated(p, relative), params)


def log_of_tokens(params: Params) -> Array:
    """Return `ln(N'/N)`, the bias of keys without a position on a grid of N' tokens, N in training."""
    return -jnp.sum(jnp.log(params[FACTOR])) if FACTOR in params else jnp.float32(0.0)


def _unplaced_bias(encoding: Encoding) -> Callable[[Params], Array]:
    """Return the hook that adds `ln(N'/N)` to the encoding's own bias of keys without a position."""
    hook = encoding.unplaced_bias
    return log_of_tokens if hook is None else lambda params: hook(_own(params)) + log_of_tokens(params)


def _within(trained: int | tuple[int, ...], stretch: bool, extent: Extent) -> tuple[Extent, Array | None]:
    """Return the extent that the encoding adapts to, and the factor of the positions, None = 1."""
    if axes_of_extent(trained) != axes_of_extent(extent):
        raise ValueError(f"extent must have the axes of the trained one, {trained}, got {shown(extent)}")
    if np.ndim(extent) and not isinstance(extent, tuple):
        sizes = jnp.asarray(extent, jnp.int32)
        factors = jnp.asarray(trained, jnp.float32) / sizes.astype(jnp.float32)
        within = jnp.minimum(sizes, np.asarray(trained, np.int32))
        return (trained, factors) if stretch else (within, jnp.minimum(1.0, factors))
    most, sizes = (size if isinstance(size, tuple) else (size,) for size in (trained, extent))
    if isinstance(extent, tuple | int | np.integer):
        sizes = tuple(int(size) for size in sizes)
        within: Any = most if stretch else tuple(map(min, sizes, most))
        if sizes == within:
            return extent, None
        factors = jnp.asarray([limit / size for size, limit in zip(sizes, within, strict=True)], jnp.float32)
        return (within, factors) if isinstance(extent, tuple) else (within[0], factors[0])
    length = jnp.asarray(sizes[0])
    return jnp.minimum(length, most[0]), jnp.minimum(1.0, most[0] / length.astype(jnp.float32))


def _beside_periods(
    periods: tuple[float | None, ...], scaling: Callable[[Extent], tuple[Extent, Array | None]], extent: Extent
) -> tuple[Extent, Array | None]:
    """Return the extent and the factors of the positions, 1 on axes where positions repeat."""
    within, scale = scaling(extent)
    repeats = np.asarray([period is not None for period in periods])
    return within, None if scale is None else jnp.where(repeats, 1.0, scale)


def _per_axis(factor: float | tuple[float, ...], axes: int) -> tuple[float, ...]:
    """Return one factor per axis, all checked."""
    factors = factor if isinstance(factor, tuple) else (factor,) * axes
    if len(factors) != axes:
        raise ValueError(f"factor must be a number, or one per axis, axes={axes}, got {factor}")
    if min(factors) < 1:
        raise ValueError(f"factor must be at least 1, got {factor}")
    return factors


def _divided(factors: tuple[float, ...], extent: Extent) -> tuple[Extent, Array | None]:
    """Return the extent divided by the factors, rounded up, and the scale of the positions, None = 1."""
    if axes_of_extent(extent) != len(factors):
        raise ValueError(f"extent must have {len(factors)} axes, got {shown(extent)}")
    if max(factors) == 1:
        return extent, None
    scales = jnp.asarray([1.0 / factor for factor in factors], jnp.float32)
    if isinstance(extent, tuple):
        return tuple(math.ceil(size / factor) for size, factor in zip(extent, factors, strict=True)), scales
    if isinstance(extent, int | np.integer):
        return math.ceil(int(extent) / factors[0]), scales[0]
    divisors, scale = (np.asarray(factors, np.float32), scales) if np.ndim(extent) else (factors[0], scales[0])
    return jnp.ceil(jnp.asarray(extent, jnp.float32) / divisors).astype(jnp.int32), scale


def _own(params: Params) -> Params:
    """Return the encoding's own parameters: an encoding that is interpolated twice is interpolated once."""
    return {name: value for name, value in params.items() if name not in (FACTOR, TABLE)}


def _scaled(params: Params, positions: Array) -> Array:
    return positions.astype(jnp.float32) * params[FACTOR] if FACTOR in params else positions


@checked
def interpolate_positions(
    positions: Num[Array, "..."],
    trained_length: int | tuple[int, ...],
    length: int | Int[Array, ""] | tuple[int, ...],
) -> Num[Array, "..."]:
    """Scale the positions of a longer sequence or larger grid into the trained one (position interpolation).

    `p'_a = p_a · min(1, L_a / L'_a)` on every axis a: an axis no longer than in training is unchanged.

    The result is rounded, with a relative error of up to 2^-23, and exact where L_a / L'_a is a power of two. For
    rotary encodings, scaling the frequencies (`extend_linear`) is more accurate.

    Args:
        positions: `(*B, T)` in tokens; `(*B, T, A)` in patches where the lengths are tuples of A.
        trained_length: L, in tokens, or the trained grid, in patches.
        length: L', the current length, which may be traced, or the current grid.

    Returns:
        Positions in trained tokens or patches, in float32, or in float64 if `positions` are. If no length is traced or
        exceeds the trained one, `positions` unchanged.

    Raises:
        ValueError: a length below 1, one length that is a number and another that is a grid, grids and positions with
            different numbers of axes, or integer positions outside the current length or grid that are not traced.
        TypeError: positions that are neither integers nor floats of at least 32 bits.

    Reference:
        Chen et al. 2023, "Extending Context Window of Large Language Models via Positional Interpolation"
        (arXiv 2306.15595), equation 3.

    Examples:
        >>> interpolate_positions(jnp.arange(8), trained_length=4, length=8).tolist()
        [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5]
    """
    trained, sizes = (size if isinstance(size, tuple) else (size,) for size in (trained_length, length))
    if len(trained) != len(sizes) or isinstance(trained_length, tuple) != isinstance(length, tuple):
        raise ValueError(f"trained_length and length must have the same axes, got {trained_length} and {length}")
    if isinstance(length, tuple) and positions.shape[-1:] != (len(sizes),):
        raise ValueError(f"positions must end in the {len(sizes)} axes of length={length}, got {positions.shape}")
    if any(isinstance(size, int) and size < 1 for size in trained + sizes):
        raise ValueError(f"lengths must be at least 1, got trained_length={trained_length}, length={length}")
    check_position_type(positions)
    check_within(positions, length)
    if all(isinstance(size, int) and size <= most for size, most in zip(sizes, trained, strict=True)):
        return positions
    wide = jnp.float64 if positions.dtype == jnp.float64 else jnp.float32
    ratios = [jnp.asarray(most, wide) / jnp.asarray(size, wide) for size, most in zip(sizes, trained, strict=True)]
    factors = jnp.minimum(1.0, jnp.stack(ratios))
    return positions.astype(wide) * (factors if isinstance(length, tuple) else factors[0])
