"""Self-Extend and ReRoPE: near keys are rotated as in training, far ones by an angle from the trained range.

Which of two rotations applies to a query and a key depends on their distance, so a rotation by position alone cannot
express it: attention runs once per range of distances (`Encoding.bands`), and the outputs are merged exactly by
log-sum-exp.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array

from pejax._extensions.extension import extension_factory
from pejax._record.dims import Dims
from pejax._record.encoding import Band, Encoding, Extent, Params
from pejax._record.encoding import adapt as adapt_to

Rotation = Callable[[Params, Array, Array], Array]


def group_positions(encoding: Encoding, dims: Dims, *, group: int | None = None, window: int | None = None) -> Encoding:
    """Count the positions of far pairs in groups, and those of near pairs as in training; needs no training.

    Pairs nearer than W are rotated as before; others as if the query were at `⌊p/G⌋ + W - ⌊W/G⌋`, the key at `⌊p/G⌋`.

    Args:
        encoding: any encoding that rotates queries and keys and has no bands.
        dims: dims of a causal model of sequences, whose extent is L.
        group: G, tokens per group. None = the smallest that keeps the current length L' in the trained range,
            `⌊(L' - 1)/G⌋ + W - ⌊W/G⌋ < L`: the paper's `⌈(L' - W) / (L - W)⌉` or, where G does not divide W, more.
        window: W, tokens; pairs nearer than W keep their distances. None = L / 4.

    Raises:
        ValueError: no rotation, no causality, no trained length, more than one axis, or a group or window below 1.

    Reference:
        Jin et al. 2024, "LLM Maybe LongLM" (arXiv 2401.01325), section 3.
    """
    rotate, rotate_keys, trained = _rotations("self_extend", encoding, dims)
    reach = max(1, trained // 4) if window is None else window
    if reach < 1 or (group is not None and group < 1):
        raise ValueError(f"self_extend's group and window must be at least 1 token, got {group} and {window}")
    if group is None and reach >= trained:
        raise ValueError(f"self_extend's window must be below the trained length {trained}, got {reach}")

    def adapt(params: Params, extent: Extent) -> Params:
        params = adapt_to(encoding, params, extent)
        length = jnp.asarray(extent, jnp.int32)
        least = jnp.maximum(1, -((reach - length) // (trained - reach)))
        beyond = lambda size: size * (trained - reach + reach // size) < length
        return {**params, "group": jax.lax.while_loop(beyond, lambda size: size + 1, least)}

    def size(params: Params, positions: Array) -> Array:
        return jnp.asarray(params["group"] if group is None else group, positions.dtype)

    def far(params: Params, x: Array, positions: Array) -> Array:
        grouped = size(params, positions)
        return rotate(params, x, positions // grouped + reach - reach // grouped)

    def far_keys(params: Params, x: Array, positions: Array) -> Array:
        return rotate_keys(params, x, positions // size(params, positions))

    bands = (Band(0, reach, rotate, rotate_keys), Band(reach, None, far, far_keys))
    return dataclasses.replace(
        encoding, adapt=adapt if group is None else encoding.adapt, bands=bands, shift_invariant=False
    )


self_extend = extension_factory("self_extend", "encoding", group_positions)


def clip_distances(encoding: Encoding, dims: Dims, *, window: int | None = None) -> Encoding:
    """Rotate every distance of W or more as if it were W; needs no training (ReRoPE).

    `(R_q q_i) · (R_k k_j) = q_i · R_{-min(i - j, W)} k_j`

    Args:
        encoding: any encoding that rotates queries and keys and has no bands.
        dims: dims of a causal model of sequences, whose extent is L.
        window: W, tokens. None = L / 2.

    Raises:
        ValueError: no rotation, no causality, no trained length, more than one axis, or a window below 1.

    Reference:
        Su 2023, "Rectified rotary position embeddings" (github.com/bojone/rerope).
    """
    rotate, rotate_keys, trained = _rotations("rerope", encoding, dims)
    reach = max(1, trained // 2) if window is None else window
    if reach < 1:
        raise ValueError(f"rerope's window must be at least 1 token, got {window}")

    def far(params: Params, x: Array, positions: Array) -> Array:
        return rotate(params, x, jnp.full_like(positions, reach))

    def far_keys(params: Params, x: Array, positions: Array) -> Array:
        return rotate_keys(params, x, jnp.zeros_like(positions))

    return dataclasses.replace(encoding, bands=(Band(0, reach, rotate, rotate_keys), Band(reach, None, far, far_keys)))


rerope = extension_factory("rerope", "encoding", clip_distances)


def _rotations(name: str, encoding: Encoding, dims: Dims) -> tuple[Rotation, Rotation, int]:
    """Return the rotations of queries and keys and the trained length, all checked."""
    rotate, rotate_keys = encoding.rotate, encoding.rotate_keys or encoding.rotate
    if rotate is None or rotate_keys is None:
        raise ValueError(f"{name} needs an encoding that rotates queries and keys, got one that does not")
    if encoding.bands:
        raise ValueError(f"{name} needs an encoding without bands, got one that has {len(encoding.bands)}")
    if not dims.causal or not isinstance(dims.extent, int):
        rule = "a causal model of sequences with a trained length"
        raise ValueError(f"{name} needs {rule}, got causal={dims.causal}, extent={dims.extent}")
    return rotate, rotate_keys, dims.extent
