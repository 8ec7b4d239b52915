"""Temperatures: queries are multiplied by a function of their position, so that attention stays sharp over more keys.

logits_ij = scale · t(p_i) · (q_i · k_j) + bias_ij
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from pejax._calls.arguments import checked
from pejax._calls.kinds import shown
from pejax._extensions.extension import extension_factory
from pejax._ops.checks import check_position_type, check_positions
from pejax._record.dims import Dims
from pejax._record.encoding import Encoding, Extent, Params, axes_of_extent
from pejax._record.encoding import adapt as adapt_to


@checked
def log_n_temperature(positions: Num[Array, "*BT"], trained_length: int) -> Float[Array, "*BT"]:
    """Return the factor of queries that keeps the entropy of attention over p + 1 keys near that of L keys.

    `t(p) = max(1, ln(p + 1) / ln L)`

    Args:
        positions: p, tokens; negative positions count as 0.
        trained_length: L, tokens, at least 2.

    Raises:
        ValueError: a trained length below 2.

    Reference:
        Su 2021, "Scale invariance of attention from entropy invariance" (in Chinese, kexue.fm/archives/8823); used by
        ReRoPE and, with other constants, by Qwen.
    """
    if trained_length < 2:
        raise ValueError(f"trained_length must be at least 2, got {trained_length}")
    return jnp.maximum(jnp.log1p(_counted(positions)) / math.log(trained_length), 1.0)


@checked
def llama4_temperature(
    positions: Num[Array, "*BT"], *, floor_length: int = 8192, scale: float = 0.1, offset: int = 1
) -> Float[Array, "*BT"]:
    """Return Llama 4's factor of queries, which rises by a step after every `floor_length` tokens.

    `t(p) = scale · ln(⌊(p + offset) / floor_length⌋ + 1) + 1`

    Args:
        positions: p, tokens; negative positions count as 0.
        floor_length: length of a step, in tokens.
        scale: factor of the logarithm.
        offset: tokens added to a position: 1 in Llama 4, which counts tokens, 0 in Ministral 3 and Mistral 4, whose
            first step is at position `floor_length`.

    Raises:
        ValueError: a floor_length below 1, or a negative scale or offset.

    Reference:
        transformers' `models/llama4/modeling_llama4.py`, where layers without RoPE use it, and
        `models/ministral3/modeling_ministral3.py`.
    """
    if floor_length < 1:
        raise ValueError(f"floor_length must be at least 1, got {floor_length}")
    if not 0 <= scale < math.inf:
        raise ValueError(f"scale must be a finite number from 0, got {scale}")
    if offset < 0:
        raise ValueError(f"offset must be at least 0, got {offset}")
    return scale * jnp.log1p(jnp.floor((_counted(positions) + float(offset)) / float(floor_length))) + 1.0


@checked
def scale_queries(encoding: Encoding, temperature: Callable[[Array], Array]) -> Encoding:
    """Return the encoding with its queries multiplied by a function of their positions.

    `q'_i = t(p_i) · rotate(q_i, p_i)`; keys and all other hooks are unchanged. Two calls, even with the same arguments,
    return records that do not compare equal.

    Args:
        encoding: any encoding on one axis, with or without `rotate`.
        temperature: function t of positions `(*B, T)`; returns the factor of each query, `(*B, T)`.
    """

    def factor(params: Params, x: Array, positions: Array) -> Array:
        del params
        check_positions(positions.shape, x.shape[:-2], axes=1)
        return temperature(positions)[..., None, None]

    return dataclasses.replace(_with_factor(encoding, factor), shift_invariant=False)


def _with_factor(encoding: Encoding, factor: Callable[[Params, Array, Array], Array]) -> Encoding:
    """Return the encoding with its queries multiplied by `factor(params, x, positions)`, `(*B, T, 1, 1)` or `()`."""
    rotation = encoding.rotate or _unrotated

    def scaled(rotation: Callable[[Params, Array, Array], Array]) -> Callable[[Params, Array, Array], Array]:
        def rotate(params: Params, x: Array, positions: Array) -> Array:
            rotated = rotation(params, x.astype(jnp.float32), positions)
            return (rotated * factor(params, x, positions)).astype(x.dtype)

        return rotate

    return dataclasses.replace(
        encoding,
        rotate=scaled(rotation),
        rotate_keys=encoding.rotate_keys or rotation,
        bands=tuple(band._replace(rotate=scaled(band.rotate)) for band in encoding.bands),
    )


def scale_by_log_n(encoding: Encoding, dims: Dims, *, trained_length: int | None = None) -> Encoding:
    """Multiply queries by the ratio of two logarithms: that of the number of keys they see, and that in training.

    On sequences, the factor is that of the position, `log_n_temperature`: `max(1, ln(p + 1) / ln L)`. On grids every
    query sees all patches, so it is one number, `max(1, ln N' / ln N)`, with N' patches in the current grid and N in
    the trained one; queries without a position (CLS, registers) get it, too.

    Args:
        encoding: any encoding.
        dims: dims whose extent is the trained length or grid.
        trained_length: L, tokens, or N, patches of the trained grid together, at least 2. None = the encoding's
            `Dims.extent`.

    Raises:
        ValueError: no trained length, one below 2, or a causal model on a grid, whose queries see fewer keys.

    Reference:
        Su 2021, "Scale invariance of attention from entropy invariance" (in Chinese, kexue.fm/archives/8823). On grids,
        Jin et al. 2023, "Training-free Diffusion Model Adaptation for Variable-Sized Text-to-Image Synthesis" (arXiv
        2306.08645), multiply by the square root of this ratio.
    """
    trained = dims.extent if trained_length is None else trained_length
    if dims.axes > 1:
        return _scale_by_grid(encoding, dims, math.prod(trained) if isinstance(trained, tuple) else trained)
    if not isinstance(trained, int):
        raise ValueError(f"log_n needs the trained length, got dims.extent={trained}")
    return _scale_tokens(encoding, functools.partial(log_n_temperature, trained_length=trained))


def _scale_by_grid(encoding: Encoding, dims: Dims, trained: int | None) -> Encoding:
    """Return the encoding with its queries multiplied by `max(1, ln N' / ln N)`, with N the patches in training."""
    if dims.causal:
        raise ValueError(f"log_n must be of a model that is not causal on a grid, got axes={dims.axes}, causal=True")
    if trained is None or trained < 2:
        raise ValueError(f"log_n needs a trained grid of at least 2 patches, got {trained}")
    name = f"log_n_{trained}"

    def adapt(params: Params, extent: Extent) -> Params:
        if axes_of_extent(extent) != dims.axes:
            raise ValueError(
                f"log_n on {dims.axes} axes needs a grid of {dims.axes} sizes as extent, got {shown(extent)}"
            )
        sides = jnp.asarray(extent, jnp.float32)
        ratio = jnp.sum(jnp.log(sides)) / math.log(trained)
        return {**adapt_to(encoding, params, extent), name: jnp.maximum(ratio, 1.0)}

    scaled = _with_factor(encoding, lambda params, x, positions: params[name])
    return dataclasses.replace(scaled, adapt=adapt)


log_n = extension_factory("log_n", "queries", scale_by_log_n)


def scale_by_llama4(
    encoding: Encoding, dims: Dims, *, floor_length: int = 8192, scale: float = 0.1, offset: int = 1
) -> Encoding:
    """Multiply queries by Llama 4's temperature of their positions, `llama4_temperature`.

    Args:
        encoding: any encoding on one axis.
        dims: dims of a model of sequences.
        floor_length: length of a step, in tokens.
        scale: factor of the logarithm.
        offset: tokens added to a position: 1 in Llama 4, 0 in Ministral 3 and Mistral 4.
    """
    if dims.axes > 1:
        raise ValueError(f"llama4 counts tokens of a sequence, got axes={dims.axes}")
    options = {"floor_length": floor_length, "scale": scale, "offset": offset}
    return _scale_tokens(encoding, functools.partial(llama4_temperature, **options))


llama4 = extension_factory("llama4", "queries", scale_by_llama4)


def _scale_tokens(encoding: Encoding, temperature: Callable[[Array], Array]) -> Encoding:
    """Return `scale_queries`, after trying the temperature once: it refuses its options now rather than later."""
    jax.eval_shape(temperature, jnp.zeros(1, jnp.int32))
    return scale_queries(encoding, temperature)


def _counted(positions: Num[Array, "*BT"]) -> Float[Array, "*BT"]:
    check_position_type(positions)
    return jnp.maximum(positions.astype(jnp.float32), 0.0)


def _unrotated(params: Params, x: Array, positions: Array) -> Array:
    del params, positions
    return x
