"""Laws that any encoding can be held to, one's own included: each check returns what it measured.

    shift      logits(p + c) = logits(p)  for one shift c of all positions
    norm       |rotate(x, p)| = |x|
    tile       hook(tile of its arguments) = tile of hook(all of them)

The checks draw tokens and positions, in and beyond the trained extent, and run the encoding in float32 as a dense
layer would: adapted parameters, `embed`, random projections to queries and keys, `rotate`, `bias`, `relative_values`.

    encoding = make_encoding("rope", dims)
    params = init_params(encoding, jax.random.key(0))
    assert_shift_invariant(encoding, params, dims)
"""

import functools
from collections.abc import Callable, Iterable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Num

from pejax._encoding import Dims, Encoding, Extent, Params, adapt, pair_bias, split_params

DEFAULT_LENGTH = 32  # tokens along each axis where the dims know no extent

compiled: Callable = functools.partial(jax.jit, static_argnames=("encoding", "dims"))


class Probe(NamedTuple):
    """Random tokens, the projections to queries and keys, and positions, that an encoding is measured on."""

    x: Float[Array, "T C"]
    q_kernel: Float[Array, "C H D"]
    k_kernel: Float[Array, "C K D"]
    positions: Num[Array, "T *A"]


class Terms(NamedTuple):
    """All that a layer sees of the positions, in float32.

    Attributes:
        logits: scaled q·k plus the bias.
        values: what the encoding adds to the attention output; None without a `relative_values` hook.
    """

    logits: Float[Array, "H T S"]
    values: Float[Array, "H T D"] | None


def extent_of(dims: Dims) -> Extent:
    """Return the trained extent, or `DEFAULT_LENGTH` tokens along each axis where the dims do not know it."""
    if dims.extent is not None:
        return dims.extent
    return DEFAULT_LENGTH if dims.axes == 1 else (DEFAULT_LENGTH,) * dims.axes


def settle(encoding: Encoding, params: Params, dims: Dims) -> Params:
    """Return the parameters adapted to the trained extent."""
    return adapt(encoding, params, extent_of(dims))


def draw_positions(
    seed: int, dims: Dims, tokens: int, *, reach: float = 2.0, dtype: DTypeLike = jnp.int32
) -> Num[Array, "T *A"]:
    """Draw positions uniformly from `[0, reach · extent)` along each axis.

    Args:
        seed: of the draw.
        dims: `extent` is the trained length or grid, `axes` the number of axes.
        tokens: T.
        reach: in extents; above 1 goes beyond what training saw.
        dtype: a float type draws quarters of a token, which add without rounding.
    """
    parts = 4 if jnp.issubdtype(dtype, jnp.floating) else 1
    ends = parts * np.maximum(1, np.floor(reach * np.asarray(extent_of(dims)))).astype(np.int64)
    draws = np.random.default_rng(seed).integers(ends, size=(tokens, *ends.shape))
    return jnp.asarray((draws / parts).astype(dtype))


def draw_probe(seed: int, dims: Dims, *, tokens: int = 12, reach: float = 2.0, dtype: DTypeLike = jnp.int32) -> Probe:
    """Draw `tokens` tokens with the projections of one layer; `reach` and `dtype` as in `draw_positions`."""
    normal = np.random.default_rng(seed).standard_normal
    draw = lambda scale, *shape: jnp.asarray(scale * normal(shape), jnp.float32)
    return Probe(
        x=draw(1.0, tokens, dims.width),
        q_kernel=draw(dims.width**-0.5, dims.width, dims.heads, dims.head_dim),
        k_kernel=draw(dims.width**-0.5, dims.width, dims.kv_heads, dims.head_dim),
        positions=draw_positions(seed + 1, dims, tokens, reach=reach, dtype=dtype),
    )


def queries_and_keys(
    encoding: Encoding, params: Params, probe: Probe
) -> tuple[Float[Array, "T H D"], Float[Array, "T H D"]]:
    """Return the rotated queries and keys of a probe, each key head repeated for its H/K query heads.

    `params` are settled: merged and adapted.
    """
    x = probe.x if encoding.embed is None else encoding.embed(params, probe.x, probe.positions)
    q = jnp.einsum("tc,chd->thd", x, probe.q_kernel)
    k = jnp.einsum("tc,chd->thd", x, probe.k_kernel)
    rotate_keys = encoding.rotate_keys or encoding.rotate
    if encoding.rotate is not None:
        q = encoding.rotate(params, q, probe.positions)
    if rotate_keys is not None:
        k = rotate_keys(params, k, probe.positions)
    return q, jnp.repeat(k, q.shape[1] // k.shape[1], axis=1)


@compiled
def dense_terms(encoding: Encoding, params: Params, dims: Dims, probe: Probe) -> Terms:
    """Run the encoding as one dense layer: `logits = scale · (q·k) + bias`, and `values` of their softmax.

    Args:
        encoding: the record.
        params: merged, before `adapt`.
        dims: those the encoding was made for.
        probe: the tokens.
    """
    params = settle(encoding, params, dims)
    shared, heads = split_params(params)
    q, k = queries_and_keys(encoding, params, probe)
    products, bias = jnp.einsum("thd,shd->hts", q, k), pair_bias(encoding)
    for low, high, *turns in encoding.bands:
        apart = jnp.abs(probe.positions[:, None] - probe.positions)
        inside = apart >= low if high is None else (apart >= low) & (apart < high)
        own = queries_and_keys(encoding._replace(rotate=turns[0], rotate_keys=turns[1]), params, probe)
        products = jnp.where(inside, jnp.einsum("thd,shd->hts", *own), products)

    def one_head(heads: Params, product: Array, q: Array, k: Array) -> tuple[Array, Array | None]:
        params_h = {**shared, **heads}
        logits = dims.scale * product
        if bias is not None:
            logits = logits + bias(params_h, q, k, probe.positions, probe.positions)
        if encoding.relative_values is None:
            return logits, None
        return logits, encoding.relative_values(params_h, jax.nn.softmax(logits), probe.positions, probe.positions)

    return Terms(*jax.vmap(one_head, in_axes=(0, 0, 1, 1))(heads, products, q, k))


def largest_deviation(pairs: Iterable[tuple[Array | np.ndarray, Array | np.ndarray]]) -> float:
    """Return the largest `max |actual - expected| / max(1, max |expected|)` of `(actual, expected)`; NaN if one is."""
    arrays = [(np.asarray(actual), np.asarray(expected)) for actual, expected in pairs]
    return float(np.max([0.0, *(np.max(np.abs(a - b)) / np.maximum(1.0, np.max(np.abs(b))) for a, b in arrays)]))


def shift_deviation(
    encoding: Encoding,
    params: Params,
    dims: Dims,
    *,
    seed: int = 0,
    reach: float = 2.0,
    dtype: DTypeLike = jnp.int32,
) -> float:
    """Return by how much one shift of all positions changes the logits (and the values), relative to the largest.

    Args: as `assert_shift_invariant` has them.

    Returns:
        The largest change over heads and pairs of tokens, divided by the largest term or 1.
    """
    probe = draw_probe(seed, dims, reach=reach / 2, dtype=dtype)
    step = np.ceil(np.asarray(extent_of(dims)) * reach / 2).astype(probe.positions.dtype)
    shifted = probe._replace(positions=probe.positions + step)
    before, after = (dense_terms(encoding, params, dims, one) for one in (probe, shifted))
    return largest_deviation(zip(jax.tree.leaves(after), jax.tree.leaves(before), strict=True))


def assert_shift_invariant(
    encoding: Encoding,
    params: Params,
    dims: Dims,
    *,
    seed: int = 0,
    reach: float = 8.0,
    dtype: DTypeLike = jnp.int32,
    tolerance: float = 1e-5,
) -> float:
    """Check `logits(p + c) = logits(p)` and return the deviation (`shift_deviation`, whose arguments it shares).

    Args:
        encoding: the record; whether it declares `shift_invariant` is not asked.
        params: one model's and one layer's, merged, before `adapt`.
        dims: those the encoding was made for.
        seed: of the draw.
        reach: the positions and their shifted copies stay within `reach` extents.
        dtype: of the positions.
        tolerance: the largest deviation that passes.

    Raises:
        AssertionError: the logits or values change by more, or are not finite.
    """
    deviation = shift_deviation(encoding, params, dims, seed=seed, reach=reach, dtype=dtype)
    return _within(deviation, tolerance, "one shift of all positions changes the logits")


def assert_norm_preserved(
    encoding: Encoding,
    params: Params,
    dims: Dims,
    *,
    seed: int = 0,
    reach: float = 8.0,
    dtype: DTypeLike = jnp.int32,
    tolerance: float = 1e-5,
) -> float:
    """Check `|rotate(x, p)| = |x|` for queries and keys, and return the largest relative deviation.

    Without `rotate` it is 0.

    Args: as `assert_shift_invariant` has them; `reach` says how far the positions go, in extents.

    Raises:
        AssertionError: some norm changes by more, or is not finite.
    """
    if encoding.rotate is None and encoding.rotate_keys is None:
        return 0.0
    probe = draw_probe(seed, dims, reach=reach, dtype=dtype)
    ratios = _norm_ratios(encoding, params, dims, probe)
    return _within(largest_deviation([(ratios, np.ones(()))]), tolerance, "rotate changes the norm")


@compiled
def _norm_ratios(encoding: Encoding, params: Params, dims: Dims, probe: Probe) -> Float[Array, "2 T H"]:
    """Return `|rotate(x, p)| / |x|` of queries and keys."""
    params = settle(encoding, params, dims)
    before = queries_and_keys(encoding._replace(embed=None, rotate=None, rotate_keys=None), params, probe)
    after = queries_and_keys(encoding._replace(embed=None), params, probe)
    return jnp.linalg.norm(jnp.stack(after), axis=-1) / jnp.linalg.norm(jnp.stack(before), axis=-1)


def assert_tile_consistent(
    encoding: Encoding,
    params: Params,
    dims: Dims,
    *,
    seed: int = 0,
    reach: float = 2.0,
    dtype: DTypeLike = jnp.int32,
    tolerance: float = 1e-5,
) -> float:
    """Check that a tile of `bias` is the slice of the whole, and that `values` adds up over tiles of keys.

    This is what lets attention ask for one block of queries and keys at a time. Where there is a `distance`, it is
    checked to be the bias, too.

    Args: as `assert_shift_invariant` has them; `reach` says how far the positions go, in extents.

    Returns:
        The largest deviation over heads and hooks, divided by the largest term or 1; 0 without those hooks.

    Raises:
        AssertionError: some tile differs by more, or is not finite.
    """
    probe = draw_probe(seed, dims, reach=reach, dtype=dtype)
    deviation = largest_deviation(_tiled_and_whole(encoding, params, dims, probe))
    return _within(deviation, tolerance, "a tile of a hook is not the tile of the whole")


@compiled
def _tiled_and_whole(encoding: Encoding, params: Params, dims: Dims, probe: Probe) -> list[tuple[Array, Array]]:
    """Return what tiles give and what the whole gives, for each hook and all heads."""
    params = settle(encoding, params, dims)
    shared, heads = split_params(params)
    q, k = queries_and_keys(encoding, params, probe)
    one_head = lambda heads, q, k: _tiles_of_head(encoding, {**shared, **heads}, q, k, probe.positions)
    return jax.vmap(one_head, in_axes=(0, 1, 1))(heads, q, k)


def _tiles_of_head(
    encoding: Encoding, params_h: Params, q: Array, k: Array, positions: Array
) -> list[tuple[Array, Array]]:
    tokens = len(positions)
    rows, halves = slice(1, tokens // 2), (slice(0, tokens // 3), slice(tokens // 3, tokens))
    pairs, bias = [], pair_bias(encoding)
    if bias is not None:
        whole = bias(params_h, q, k, positions, positions)
        tiles = [bias(params_h, q[rows], k[keys], positions[rows], positions[keys]) for keys in halves]
        pairs.append((jnp.concatenate(tiles, axis=1), whole[rows]))
        if encoding.distance_bias is not None:
            pairs.append((encoding.distance_bias(params_h, positions - positions[0]), whole[0]))
    if encoding.relative_values is not None:
        weights = jax.nn.softmax(q @ k.T)
        whole = encoding.relative_values(params_h, weights, positions, positions)
        tiles = [
            encoding.relative_values(params_h, weights[rows, keys], positions[rows], positions[keys]) for keys in halves
        ]
        pairs.append((sum(tiles[1:], tiles[0]), whole[rows]))
    return pairs


def _within(deviation: float, tolerance: float, rule: str) -> float:
    """Return the deviation, or raise AssertionError where it exceeds the tolerance or is NaN."""
    chex.assert_trees_all_close(deviation, 0.0, rtol=0.0, atol=tolerance, custom_message=f"{rule}: {deviation:.3g}")
    return deviation
