"""Checks of properties that an encoding must have, also for your own encodings. Each returns the measured deviation.

    shift      logits(p + c) = logits(p)  for any offset c added to all positions
    norm       |rotate(x, p)| = |x|
    tile       hook(tile of its arguments) = tile of hook(all of its arguments)
    kernels    which kernels of GPUs and TPUs take it, found without one

The checks draw random tokens and positions, inside and beyond the trained extent, and run the encoding in float32 as a
dense attention layer would: adapted parameters, `embed`, random projections to queries and keys, `rotate`, `bias`,
`relative_values`.

    encoding = make_encoding("rope", dims)
    params = init_params(encoding, jax.random.key(0))
    assert_shift_invariant(encoding, params)
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from pejax._attention.kernel_use import kernel_use
from pejax._attention.kernels.kernel_call import WAY_OUT
from pejax._record.dims import Dims
from pejax._record.encoding import Encoding, Params, named, own_dims, pair_bias, split_params
from pejax._record.probe import Probe, compiled, dense_terms, draw_probe, extent_of, queries_and_keys, settle

__all__ = [
    "Probe",
    "assert_norm_preserved",
    "assert_runs_in_kernels",
    "assert_shift_invariant",
    "assert_tile_consistent",
    "dense_terms",
    "draw_probe",
    "queries_and_keys",
    "settle",
    "shift_deviation",
]


def shift_deviation(
    encoding: Encoding,
    params: Params,
    dims: Dims | None = None,
    *,
    seed: int = 0,
    reach: float = 2.0,
    dtype: DTypeLike = jnp.int32,
) -> float:
    """Return the largest change of logits and values when one offset is added to all positions.

    Args: as in `assert_shift_invariant`. A learned table has no values beyond its extent: measure it with `reach=1`.

    Returns:
        The largest change over heads and pairs of tokens, divided by the largest term or by 1.
    """
    dims = own_dims(encoding, dims)
    probe = draw_probe(seed, dims, reach=reach / 2, dtype=dtype)
    offset = np.floor(np.asarray(extent_of(dims)) * reach / 2).astype(probe.positions.dtype)
    shifted = probe._replace(positions=probe.positions + offset)
    before, after = (dense_terms(encoding, params, dims, tokens) for tokens in (probe, shifted))
    return _largest_deviation(zip(jax.tree.leaves(after), jax.tree.leaves(before), strict=True))


def assert_shift_invariant(
    encoding: Encoding,
    params: Params,
    dims: Dims | None = None,
    *,
    seed: int = 0,
    reach: float = 8.0,
    dtype: DTypeLike = jnp.int32,
    tolerance: float = 1e-5,
) -> float:
    """Check that `logits(p + c) = logits(p)`, and return the deviation (`shift_deviation`).

    Args:
        encoding: the record; its field `shift_invariant` is not read.
        params: merged parameters of the model and one layer, not adapted.
        dims: the dims that the encoding was made for. None = its own.
        seed: random seed of tokens and positions.
        reach: upper bound of the positions and of their shifted copies, in trained extents.
        dtype: dtype of the positions.
        tolerance: the largest deviation that passes.

    Raises:
        AssertionError: logits or values that change by more, or are not finite.
    """
    deviation = shift_deviation(encoding, params, dims, seed=seed, reach=reach, dtype=dtype)
    return _within(deviation, tolerance, "adding one offset to all positions changes the logits")


def assert_norm_preserved(
    encoding: Encoding,
    params: Params,
    dims: Dims | None = None,
    *,
    seed: int = 0,
    reach: float = 8.0,
    dtype: DTypeLike = jnp.int32,
    tolerance: float = 1e-5,
) -> float:
    """Check that `|rotate(x, p)| = |x|` for queries and keys, and return the largest relative deviation.

    An encoding that rotates nothing passes with 0.

    Args: as in `assert_shift_invariant`; positions are drawn below `reach` trained extents, without an offset.

    Raises:
        AssertionError: a norm that changes by more, or is not finite.
    """
    if encoding.rotate is None and encoding.rotate_keys is None:
        return 0.0
    dims = own_dims(encoding, dims)
    probe = draw_probe(seed, dims, reach=reach, dtype=dtype)
    ratios = _norm_ratios(encoding, params, dims, probe)
    return _within(_largest_deviation([(ratios, np.ones(()))]), tolerance, "rotate changes the norm")


@compiled
def _norm_ratios(encoding: Encoding, params: Params, dims: Dims, probe: Probe) -> Float[Array, "2 T H"]:
    """Return `|rotate(x, p)| / |x|` of queries and keys."""
    params = settle(encoding, params, dims)
    before = queries_and_keys(dataclasses.replace(encoding, embed=None, rotate=None, rotate_keys=None), params, probe)
    after = queries_and_keys(dataclasses.replace(encoding, embed=None), params, probe)
    return jnp.linalg.norm(jnp.stack(after), axis=-1) / jnp.linalg.norm(jnp.stack(before), axis=-1)


def assert_tile_consistent(
    encoding: Encoding,
    params: Params,
    dims: Dims | None = None,
    *,
    seed: int = 0,
    reach: float = 2.0,
    dtype: DTypeLike = jnp.int32,
    tolerance: float = 1e-5,
) -> float:
    """Check that `bias` and `relative_values` give the same result tile by tile as for all tokens at once.

    A tile of `bias` must equal that slice of the bias of all pairs, and `relative_values` must sum over tiles of keys.
    Tiles of several queries and keys are compared, and those of every single pair.
    Attention relies on both, as it calls the hooks for one block of queries and keys at a time. If the encoding has
    both `bias` and `distance_bias`, the two are also checked to be equal.

    Args: as in `assert_shift_invariant`; positions are drawn below `reach` trained extents, without an offset.

    Returns:
        The largest deviation over heads and hooks, divided by the largest term or by 1; 0 without those hooks.

    Raises:
        AssertionError: a tile that differs by more, or is not finite.
    """
    dims = own_dims(encoding, dims)
    probe = draw_probe(seed, dims, reach=reach, dtype=dtype)
    deviation = _largest_deviation(_tiles_and_slices(encoding, params, dims, probe))
    return _within(deviation, tolerance, "a tile of a hook differs from the slice of its full result")


def assert_runs_in_kernels(
    encoding: Encoding,
    dims: Dims | None = None,
    *,
    implementations: Sequence[str] | None = None,
    dtype: DTypeLike = jnp.bfloat16,
) -> dict[str, str]:
    """Check that attention with the encoding runs in kernels of a GPU or TPU, and return what each implementation says.

    Nothing runs and no device is needed: about 1,024 tokens at whole positions are traced by the code that chooses and
    refuses on one device. What a compiler says there is not known before; `check_kernels` asks it. Without a kernel,
    attention falls back to the implementation "blockwise", which takes any hook, also in linear memory.

    Args:
        encoding: the record.
        dims: the dims that the encoding was made for, `causal` among them. None = its own.
        implementations: of "cudnn", "gpu" and "tpu", those that are asked; one of them must run. None = all.
        dtype: type of queries, keys and values.

    Returns:
        By implementation, "runs: " and how the bias gets into a tile, or the reason why it does not run.

    Raises:
        AssertionError: none of them runs; the reasons name the hook, the operation and the way out.
        ValueError: an unknown implementation.

    Examples:
        >>> import pejax
        >>> alibi = pejax.encodings.alibi(pejax.Dims(heads=4, head_dim=64, causal=True))
        >>> assert_runs_in_kernels(alibi, implementations=["tpu"])
        {'tpu': 'runs: the bias is computed in every tile'}
    """
    use = kernel_use(encoding, own_dims(encoding, dims), dtype, implementations)
    if not any(text.startswith("runs") for text in use.values()):
        reasons = "; ".join(f"{name}: {reason.removesuffix(f'; {WAY_OUT}')}" for name, reason in use.items())
        raise AssertionError(f"{named(encoding)} runs in no kernel of {', '.join(use)}: {reasons}; {WAY_OUT}")
    return use


@compiled
def _tiles_and_slices(encoding: Encoding, params: Params, dims: Dims, probe: Probe) -> list[tuple[Array, Array]]:
    """Return, for every hook and all heads, its result tile by tile and the same slice of its full result."""
    params = settle(encoding, params, dims)
    shared, heads = split_params(params)
    q, k = queries_and_keys(encoding, params, probe)
    one_head = lambda heads, q, k: _tiles_of_head(encoding, {**shared, **heads}, q, k, probe.positions)
    return jax.vmap(one_head, in_axes=(0, 1, 1))(heads, q, k)


def _tiles_of_head(
    encoding: Encoding, params_h: Params, q: Array, k: Array, positions: Array
) -> list[tuple[Array, Array]]:
    """Return the pairs of one head: for some of the queries two tiles of keys, and every pair of tokens as a tile.

    A hook that reads a number off its whole tile, such as the largest position, may find the same one in a large tile.
    """
    tokens = len(positions)
    rows, key_tiles = slice(1, tokens // 2), (slice(0, tokens // 3), slice(tokens // 3, tokens))
    pairs, bias, values = [], pair_bias(encoding), encoding.relative_values
    if bias is not None:
        full = bias(params_h, q, k, positions, positions)
        tiles = [bias(params_h, q[rows], k[keys], positions[rows], positions[keys]) for keys in key_tiles]
        pairs.append((jnp.concatenate(tiles, axis=1), full[rows]))
        of_pair = lambda q, k, p, s: bias(params_h, q[None], k[None], p[None], s[None])[0, 0]
        pairs.append((_each_pair(of_pair, (0, None, 0, None), (None, 0, None, 0))(q, k, positions, positions), full))
        if encoding.distance_bias is not None:
            pairs.append((encoding.distance_bias(params_h, positions - positions[0]), full[0]))
    if values is not None:
        weights = jax.nn.softmax(q @ k.T)
        full = values(params_h, weights, positions, positions)
        tiles = [values(params_h, weights[rows, keys], positions[rows], positions[keys]) for keys in key_tiles]
        pairs.append((sum(tiles[1:], tiles[0]), full[rows]))
        of_pair = lambda weight, p, s: values(params_h, weight[None, None], p[None], s[None])[0]
        pairs.append((_each_pair(of_pair, (0, 0, None), (0, None, 0))(weights, positions, positions).sum(axis=1), full))
    return pairs


def _each_pair(
    hook: Callable[..., Array], queries: tuple[int | None, ...], keys: tuple[int | None, ...]
) -> Callable[..., Array]:
    """Return the function that calls a hook of one query and one key on all pairs, by the axes of its arguments."""
    return jax.vmap(jax.vmap(hook, in_axes=keys), in_axes=queries)


def _largest_deviation(pairs: Iterable[tuple[Array | np.ndarray, Array | np.ndarray]]) -> float:
    """Return the largest `max |actual - expected| / max(1, max |expected|)` of the pairs; NaN if any number is NaN."""
    arrays = [(np.asarray(actual), np.asarray(expected)) for actual, expected in pairs]
    return float(np.max([0.0, *(_deviation(*pair) for pair in arrays)]))


def _deviation(actual: np.ndarray, expected: np.ndarray) -> float:
    """Return the deviation of one pair; equal infinities, which hide the same keys, deviate by 0."""
    same_infinity = np.isinf(expected) & (actual == expected)
    actual, expected = np.where(same_infinity, 0.0, actual), np.where(same_infinity, 0.0, expected)
    return float(np.max(np.abs(actual - expected)) / np.maximum(1.0, np.max(np.abs(expected))))


def _within(deviation: float, tolerance: float, rule: str) -> float:
    """Return the deviation, or raise AssertionError where it exceeds the tolerance or is NaN."""
    chex.assert_trees_all_close(deviation, 0.0, rtol=0.0, atol=tolerance, custom_message=f"{rule}: {deviation:.3g}")
    return deviation
