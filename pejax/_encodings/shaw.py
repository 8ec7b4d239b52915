"""Shaw: a learned vector for each clipped relative position, added to keys and to values after their projection.

    logits[h, i, j] += scale · q_i · key_table[clip(p_j - p_i)]
    output[h, i]    += Σ_j w_ij · value_table[clip(p_j - p_i)]          clip: to -m ... m, or -m_l ... m_r

All heads share the tables. Each query is first multiplied by the 2m + 1 rows of the table, and each pair then looks up
its product, so that no T × S × D array is made. Where m_l and m_r differ, the end row of the shorter side is repeated.

Reference:
    Shaw et al. 2018, "Self-Attention with Relative Position Representations" (arXiv 1803.02155), equations 3 to 5;
    code: tensor2tensor `common_attention.py:_generate_relative_positions_matrix`.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from pejax._calls.arguments import checked
from pejax._encodings.factory import encoding_factory
from pejax._ops.clipped_lookup import collect, gather_rows, pick, scatter_rows
from pejax._ops.relative import axes_of, axis_shape, check_axes, check_table, relative_positions, sum_over_axes
from pejax._record.dims import Dims
from pejax._record.encoding import Encoding, Params
from pejax._record.specs import Extension


@checked
def shaw_logits(
    q: Float[Array, "T H D"],
    q_positions: Num[Array, "T *A"],
    k_positions: Num[Array, "S *A"],
    key_table: Float[Array, "*A R D"],
    *,
    scale: float | None = None,
    clip: tuple[int, int] | None = None,
) -> Float[Array, "H T S"]:
    """Return `scale · q_i · key_table[clip(p_j - p_i) + m]`, on A > 1 axes the sum of one such term per axis.

    Args:
        q: queries, unscaled.
        q_positions: positions of the queries in tokens, `(T,)` or `(T, A)`; a fractional difference interpolates
            linearly between two rows.
        k_positions: positions of the keys, `(S,)` or `(S, A)`.
        key_table: rows for -m ... m, R = 2m + 1.
        scale: factor that multiplies q·k; None = D^-0.5.
        clip: (m_l, m_r), in tokens before and after the query; the rows are then those for -m_l ... m_r. None = (m, m).

    Returns:
        Logits.

    Raises:
        ValueError: an even number of rows or fewer than 3, rows that are not those of `clip`, or a table that does not
            have the axes of the positions.
    """
    axes, key_table = _checked_table(key_table, q_positions, clip)
    scale = float(q.shape[-1] ** -0.5) if scale is None else scale
    return jax.vmap(lambda q: scale * _key_term(key_table, q, q_positions, k_positions, axes), in_axes=1)(q)


@checked
def shaw_values(
    weights: Float[Array, "H T S"],
    q_positions: Num[Array, "T *A"],
    k_positions: Num[Array, "S *A"],
    value_table: Float[Array, "*A R D"],
    *,
    clip: tuple[int, int] | None = None,
) -> Float[Array, "T H D"]:
    """Return `Σ_j w_ij · value_table[clip(p_j - p_i) + m]`, on A > 1 axes the sum of one such term per axis.

    Args:
        weights: attention weights.
        q_positions: positions of the queries in tokens, `(T,)` or `(T, A)`; a fractional difference interpolates
            linearly between two rows.
        k_positions: positions of the keys, `(S,)` or `(S, A)`.
        value_table: rows for -m ... m, R = 2m + 1.
        clip: as in `shaw_logits`.

    Raises:
        ValueError: as in `shaw_logits`.
    """
    axes, value_table = _checked_table(value_table, q_positions, clip)
    head = lambda weights: _value_term(value_table, weights, q_positions, k_positions, axes)
    return jax.vmap(head, out_axes=1)(weights)


def _checked_table(
    table: Float[Array, "*A R D"], positions: Num[Array, "T *A"], clip: tuple[int, int] | None
) -> tuple[int, Float[Array, "*A N D"]]:
    """Return the number of axes, and the table with as many rows on both sides."""
    axes, rows = axes_of(positions), table.shape[-2]
    check_table("shaw's table", table.shape[:-2], axes)
    if clip is None and (rows < 3 or rows % 2 == 0):
        raise ValueError(f"shaw's table must have 2m + 1 rows with m at least 1, got {rows}")
    sides = _checked_clip(rows // 2 if clip is None else clip)
    if rows != sum(sides) + 1:
        raise ValueError(
            f"shaw's table must have {sum(sides) + 1} rows, one per distance, with clip={clip}, got {rows}"
        )
    return axes, _both_sides(table, sides)


def _checked_clip(clip: int | tuple[int, int]) -> tuple[int, int]:
    """Return the clips before and after the query."""
    before, after = clip if isinstance(clip, tuple) else (clip, clip)
    if min(before, after) < 0 or max(before, after) < 1:
        raise ValueError(f"shaw's clip must be at least 1, or two numbers of at least 0 and not both 0, got {clip}")
    return before, after


def _both_sides(table: Float[Array, "*A R D"], clip: tuple[int, int]) -> Float[Array, "*A N D"]:
    """Return the table with the end row of the shorter side repeated, so that both sides have as many rows."""
    repeats = tuple(max(clip) - side for side in clip)
    return jnp.pad(table, [(0, 0)] * (table.ndim - 2) + [repeats, (0, 0)], mode="edge") if any(repeats) else table


def _key_term(table: Array, q: Float[Array, "T D"], q_positions: Array, k_positions: Array, axes: int) -> Array:
    def term(table: Array, q_positions: Num[Array, " T"], k_positions: Num[Array, " S"]) -> Float[Array, "T S"]:
        scores = q.astype(jnp.float32) @ table.astype(jnp.float32).T
        if _whole(q_positions, k_positions):
            return pick(scores, q_positions, k_positions)
        parts = _between(relative_positions(q_positions, k_positions), len(table))
        return functools.reduce(jnp.add, (part * gather_rows(scores, rows) for rows, part in parts))

    return sum_over_axes(term, axes, table, q_positions, k_positions)


def _value_term(table: Array, weights: Float[Array, "T S"], q_positions: Array, k_positions: Array, axes: int) -> Array:
    weights = weights.astype(jnp.float32)

    def term(table: Array, q_positions: Num[Array, " T"], k_positions: Num[Array, " S"]) -> Float[Array, "T D"]:
        if _whole(q_positions, k_positions):
            by_row = collect(len(table), weights, q_positions, k_positions)
        else:
            parts = _between(relative_positions(q_positions, k_positions), len(table))
            by_row = functools.reduce(jnp.add, (scatter_rows(part * weights, rows, len(table)) for rows, part in parts))
        return by_row @ table.astype(jnp.float32)

    return sum_over_axes(term, axes, table, q_positions, k_positions)


def _whole(*positions: Array) -> bool:
    return all(jnp.issubdtype(x.dtype, jnp.integer) for x in positions)


def _between(relative: Float[Array, "T S"], rows: int) -> list[tuple[Int[Array, "T S"], Float[Array, "T S"]]]:
    """Return the two rows of the table that each pair reads, and with what weights."""
    m = (rows - 1) // 2
    place = jnp.clip(relative, -m, m) + m
    below = jnp.minimum(jnp.floor(place), 2 * m - 1)
    above = (place - below).astype(jnp.float32)
    row = below.astype(jnp.int32)
    return [(row, 1.0 - above), (row + 1, above)]


@encoding_factory()
def shaw(
    dims: Dims, *, clip: int | tuple[int, int] = 16, values: bool = True, extend: Extension | None = None
) -> Encoding:
    """Make Shaw's encoding for these dims, with one set of tables per axis in every layer; the axes' terms are summed.

    The tables are drawn uniformly between ±`sqrt(6 / (R + D))` with R rows (Glorot), as in tensor2tensor.

    Args:
        dims: D, `axes` and `scale`.
        clip: m, in tokens. All keys m or more tokens before the query share a row, and all m or more after it; the
            table has R = 2m + 1 rows. Two numbers are m_l before the query and m_r after it, R = m_l + m_r + 1, such as
            (64, 8) in Wav2Vec2-BERT.
        values: whether values have a table too. False = positions affect only the logits.
        extend: an extension of `pejax.extensions` that works on any encoding, such as `pi()`. None = no extension.

    Raises:
        ValueError: a clip below 1, or two below 0 or both 0.
    """
    sides = _checked_clip(clip)
    shape = (*axis_shape(dims.axes), sum(sides) + 1, dims.head_dim)
    bound = (6.0 / (shape[-2] + shape[-1])) ** 0.5

    def init_layer(key: Array) -> Params:
        names = ("key_table", "value_table")[: 1 + values]
        draw = lambda key: jax.random.uniform(key, shape, jnp.float32, -bound, bound)
        return {
            "all": {name: draw(subkey) for name, subkey in zip(names, jax.random.split(key, len(names)), strict=True)}
        }

    def bias(params: Params, q: Array, k: Array, q_positions: Array, k_positions: Array) -> Array:
        del k
        check_axes("shaw", q_positions, dims.axes)
        table = _both_sides(params["key_table"], sides)
        return dims.scale * _key_term(table, q, q_positions, k_positions, dims.axes)

    def add_values(params: Params, weights: Array, q_positions: Array, k_positions: Array) -> Array:
        check_axes("shaw", q_positions, dims.axes)
        table = _both_sides(params["value_table"], sides)
        return _value_term(table, weights, q_positions, k_positions, dims.axes)

    return Encoding(
        init_layer=init_layer, bias=bias, relative_values=add_values if values else None, shift_invariant=True
    )
