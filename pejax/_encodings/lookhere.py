"""LookHere: every head sees the patches inside a cone of its own, and prefers near ones; other patches are hidden.

    logits[h, i, j] += -m_h · |Δ|   if N_h Δ >= 0, else -inf         Δ = p_j - p_i, |Δ| Euclidean
    m_h = slope_scale · (1.5 - depth) · s_h

A cone is the intersection of closed half spaces, whose normals are the rows of N_h. The patch of the query is in every
cone. s_h is 1 for heads with a cone, and 1/2, 1/8, 1/32, 1/128 for undirected heads, whose N_h is 0. The depth is 0 in
the first layer and 1 in the last: slopes fall linearly from 1.5 to 0.5.

Reference:
    Fuller et al. 2024, "LookHere: Vision Transformers with Directed Attention Generalize and Extrapolate"
    (arXiv 2405.13985), section 3. The authors' code has slopes of half the size and multiplies them by 2.
"""

import itertools
from collections.abc import Sequence
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Num

from pejax._calls.arguments import checked
from pejax._encodings.factory import encoding_factory
from pejax._ops.relative import axes_of, check_axes, float_differences, token_distance
from pejax._record.dims import Dims
from pejax._record.encoding import Encoding, Params, from_distance
from pejax._record.specs import Extension

FovDegrees: TypeAlias = Literal[45, 90, 180]

UNDIRECTED = 4
"""Heads without a cone that are left over where there are at least 12 heads; their slopes are repeated from here on."""


@checked
def lookhere_cones(heads: int, axes: int = 2, *, fov: FovDegrees = 90) -> Float[Array, "H M A"]:
    """Return the normals N_h of each head's cone: head h sees the patches with `N_h (p_j - p_i) >= 0`.

    Cones come in families. On two axes, rows count down, so "up" is a negative difference of rows:

    - triangles (90°): right, left, down, up; on more axes, one pyramid for each side.
    - corners (90°): the quadrants between two axes; on more axes, the orthants.
    - halves (180°): right, left, down, up.
    - diagonals (180°): the half planes of two neighboring triangles, such as "up or right".
    - eighths (45°): the halves of triangles; on two axes only.

    Families are added in this order as long as they fit whole. From 12 heads on, four heads at least have no cone.

    | fov | families | 4 heads | 6 | 8 | 12 | 16 |
    |---|---|---|---|---|---|---|
    | 90 | triangles, corners, halves | 4 | 4 + 2 undirected | 8 | 8 + 4 | 12 + 4 |
    | 180 | halves, diagonals, triangles | 4 | 4 + 2 undirected | 8 | 8 + 4 | 12 + 4 |
    | 45 | eighths, triangles | refused | refused | 8 | 8 + 4 | 12 + 4 |

    The sets for 12 heads are the paper's. On one axis, the cones are after and before the query, and the fov is not
    read; a single head there is undirected.

    Args:
        heads: H.
        axes: A.
        fov: the angle of the cones of the first families, in degrees.

    Returns:
        M = max(1, 2(A - 1)) normals for each head, with components -1, 0 or 1; zeros for undirected heads, which come
        last.

    Raises:
        ValueError: fewer heads than the first family has cones, axes below 1, or 45 degrees on other than two axes.

    Examples:
        >>> lookhere_cones(4)[0].tolist()  # the triangle on the right: columns grow at least as fast as rows change
        [[1.0, 1.0], [-1.0, 1.0]]
    """
    if axes < 1:
        raise ValueError(f"lookhere's axes must be at least 1, got {axes}")
    families = _families(axes, fov)
    if axes > 1 and heads < len(families[0]):
        rule = f"lookhere's heads must be at least {len(families[0])} on {axes} axes with fov={fov}"
        raise ValueError(f"{rule}, got {heads}")
    cones: list[list[tuple[int, ...]]] = []
    room = heads - UNDIRECTED if heads >= 12 else heads
    for family in families:
        if len(cones) + len(family) > room:
            break
        cones += family
    count = max(1, 2 * (axes - 1))
    normals = np.zeros((heads, count, axes), np.float32)
    for h, cone in enumerate(cones):
        normals[h] = [*cone, *cone[-1:] * (count - len(cone))]
    return jnp.asarray(normals)


def _families(axes: int, fov: int) -> list[list[list[tuple[int, ...]]]]:
    """Return the families of cones in the order in which they are added, a cone being its normals."""
    units = [tuple(int(a == b) for b in range(axes)) for a in reversed(range(axes))]
    times = lambda sign, unit: tuple(sign * x for x in unit)
    plus = lambda one, other: tuple(x + y for x, y in zip(one, other, strict=True))
    sides = list(itertools.product(units, (1, -1)))
    others = lambda unit: [times(sign, other) for other in units if other != unit for sign in (1, -1)]
    halves = [[times(sign, unit)] for unit, sign in sides]
    if axes == 1:
        return [halves]
    triangles = [[plus(times(sign, unit), other) for other in others(unit)] for unit, sign in sides]
    signs = list(itertools.product((1, -1), repeat=axes))
    corners = [[times(sign, unit) for sign, unit in zip(row, units, strict=True)] for row in signs]
    diagonals = [[row] for row in signs]
    if fov == 45 and axes == 2:
        eighths = [[plus(times(sign, unit), times(-1, other)), other] for unit, sign in sides for other in others(unit)]
        return [eighths, triangles]
    orders = {90: [triangles, corners, halves], 180: [halves, diagonals, triangles]}
    if fov not in orders:
        rule = "45, 90 or 180 on two axes" if axes == 2 else f"90 or 180 on {axes} axes"
        raise ValueError(f"lookhere's fov must be {rule}, got {fov}")
    return orders[fov]


@checked
def lookhere_slopes(cones: Float[Array, "H M A"], *, depth: float = 0.0) -> Float[Array, " H"]:
    """Return the slope of each head, `(1.5 - depth) · s_h`: s_h is 1, or 1/2, 1/8, 1/32, 1/128 for undirected heads.

    From the fifth undirected head on, the four numbers are repeated.

    Args:
        cones: the normals, from `lookhere_cones`; zeros for undirected heads.
        depth: depth of the layer: 0 is the first, 1 the last.

    Returns:
        Positive slopes, logits per patch.

    Raises:
        ValueError: a depth outside 0 ... 1.

    Examples:
        >>> lookhere_slopes(lookhere_cones(6), depth=0.5).tolist()
        [1.0, 1.0, 1.0, 1.0, 0.5, 0.125]
    """
    if not 0.0 <= depth <= 1.0:
        raise ValueError(f"lookhere's depth must be from 0 to 1, got {depth}")
    return (1.5 - depth) * _head_slopes(cones)


def _head_slopes(cones: Float[Array, "H M A"]) -> Float[Array, " H"]:
    undirected = jnp.all(cones == 0, axis=(1, 2))
    number = (jnp.cumsum(undirected) - 1) % UNDIRECTED
    return jnp.where(undirected, 0.5 * 0.25 ** number.astype(jnp.float32), 1.0)


@checked
def lookhere_bias(
    q_positions: Num[Array, "T *A"],
    k_positions: Num[Array, "S *A"],
    slopes: Float[Array, " H"],
    cones: Float[Array, "H M A"],
) -> Float[Array, "H T S"]:
    """Return `-m_h · |p_j - p_i|` inside each head's cone, and -inf outside.

    Args:
        q_positions: positions of the queries: `(T,)` in tokens, or `(T, A)` in patches.
        k_positions: positions of the keys, `(S,)` or `(S, A)`.
        slopes: logits per patch, from `lookhere_slopes`.
        cones: normals, from `lookhere_cones`.

    Returns:
        Logits; -inf hides the key from the query.

    Raises:
        ValueError: cones of another number of axes than the positions have.

    Examples:
        >>> cones = lookhere_cones(2, axes=1)  # one head looks ahead, the other back
        >>> lookhere_bias(jnp.arange(1), jnp.arange(-1, 2), jnp.ones(2), cones)[:, 0].tolist()
        [[-inf, -0.0, -1.0], [-1.0, -0.0, -inf]]
    """
    axes = axes_of(q_positions)
    if cones.shape[-1] != axes:
        raise ValueError(f"cones must have normals of {axes} axes, as the positions have, got shape {cones.shape}")
    relative = float_differences(q_positions, k_positions)
    return jax.vmap(lambda slope, normals: _term(slope, normals, relative, axes))(slopes, cones)


def _term(
    slope: Float[Array, ""], normals: Float[Array, "M A"], relative: Num[Array, "..."], axes: int
) -> Float[Array, "..."]:
    """Return the bias of one head."""
    relative = relative.astype(jnp.float32)
    parts = [relative] if axes == 1 else [lax.index_in_dim(relative, a, -1, keepdims=False) for a in range(axes)]
    seen = _inside(normals[0], parts)
    for normal in normals[1:]:
        seen &= _inside(normal, parts)
    return jnp.where(seen, -slope * token_distance(relative, axes), -jnp.inf)


def _inside(normal: Float[Array, " A"], parts: Sequence[Float[Array, "*R"]]) -> Array:
    """Return where `normal · Δ >= 0`; exact for whole numbers up to 2^23."""
    return sum((normal[a] * part for a, part in enumerate(parts[1:], start=1)), normal[0] * parts[0]) >= 0


@encoding_factory()
def lookhere(
    dims: Dims,
    *,
    fov: FovDegrees = 90,
    slope_scale: float = 1.0,
    depth: float = 0.0,
    extend: Extension | None = None,
) -> Encoding:
    """Make LookHere for these dims: `bias = -m_h · |p_j - p_i|` inside the head's cone, else -inf.

    `m_h = slope_scale · (1.5 - depth) · s_h`. The slopes and the normals of the cones are constants. The models of
    `pejax.models` give each layer the slopes of its depth.

    Args:
        dims: H and `axes` determine the cones (`lookhere_cones`).
        fov: the angle of the cones of the first families, in degrees.
        slope_scale: factor of every slope.
        depth: depth of a layer that is used by itself: 0 is the first of a model, 1 the last.
        extend: an extension of `pejax.extensions` that works on any encoding, such as `pi()`. None = no extension.

    Raises:
        ValueError: too few heads, an unknown fov, a `slope_scale` that is not positive, or a depth outside 0 ... 1.
    """
    if not slope_scale > 0:
        raise ValueError(f"lookhere's slope_scale must be positive, got {slope_scale}")
    lookhere_slopes(lookhere_cones(dims.heads, dims.axes, fov=fov), depth=depth)  # refuses what it must

    def constants() -> Params:
        cones = lookhere_cones(dims.heads, dims.axes, fov=fov)
        return {"heads": {"slope": slope_scale * lookhere_slopes(cones, depth=depth), "normals": cones}}

    def layer_constants(layers: int) -> Params:
        slopes = _head_slopes(lookhere_cones(dims.heads, dims.axes, fov=fov))
        by_layer = jnp.linspace(1.5, 0.5, layers) if layers > 1 else jnp.full(1, 1.5)
        return {"heads": {"slope": slope_scale * by_layer[:, None] * slopes}}

    def distance(params: Params, relative: Array) -> Array:
        check_axes("lookhere", relative, dims.axes)
        return _term(params["slope"], params["normals"], relative, dims.axes)

    return Encoding(
        constants=constants,
        layer_constants=layer_constants,
        bias=from_distance(distance),
        distance_bias=distance,
        shift_invariant=True,
        hides=True,
    )
