"""Positions that are no grid, as docs/coordinates.md shows them: each kind of material with its figure."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pejax
from benchmarks.memory import temporary_at
from pejax import Dims, adapt, attend, init_params, make_encoding, offset_positions, segment_ids_of
from tests.support.cases import normal

pytestmark = pytest.mark.slow


def exact_attention(q, k, v, bias=0.0, causal=False):
    """Return attention of rotated queries and keys `(T, H, D)` in float64."""
    q, k, v = (np.asarray(x, float) for x in (q, k, v))
    logits = np.einsum("thd,shd->hts", q, k) / np.sqrt(q.shape[-1]) + bias
    if causal:
        logits = np.where(np.tri(len(q), dtype=bool), logits, -np.inf)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.einsum("hts,shd->thd", weights / weights.sum(axis=-1, keepdims=True), v)


def turned(x, angles):
    """Rotate neighboring channels of `(T, H, D)` by angles `(T, F)` in float64."""
    first, second = np.asarray(x, float)[..., ::2], np.asarray(x, float)[..., 1::2]
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    pairs = first * cos - second * sin, second * cos + first * sin
    return np.stack(pairs, axis=-1).reshape(x.shape)


def series(count=64):
    """Return irregular time stamps of a million seconds, since 1970, with gaps of up to a day."""
    rng = np.random.default_rng(0)
    gaps = np.where(rng.random(count - 1) < 0.2, rng.uniform(1e4, 86400, count - 1), rng.uniform(0.1, 60, count - 1))
    since = np.concatenate([[0.0], np.cumsum(gaps)])
    return 1.7642e9 + np.round(since * 1e6 / since[-1] * 8) / 8


@pytest.mark.parametrize("form", ["float64", "datetime64[ns]"])
def test_a_million_seconds_with_gaps_are_those_of_float64(form):
    times = series()
    values = times if form == "float64" else (times * 8).astype(np.int64) * 125_000_000
    positions, origin = offset_positions(values if form == "float64" else values.astype("M8[ns]"))
    assert float(positions[-1]) == 1e6
    dims = Dims(heads=2, head_dim=16, causal=True)
    q, k, v = (normal(64, 2, 16, seed=seed) for seed in range(3))
    tokens = pejax.TokenPositions(positions, order=jnp.arange(64))
    out = attend(make_encoding("rope", dims), q[None], k[None], v[None], positions=tokens)[0]
    angles = np.outer(times - times[0], np.asarray(pejax.rope_frequencies(16), float))
    expected = exact_attention(turned(q, angles), turned(k, angles), v, causal=True)
    np.testing.assert_allclose(out, expected, atol=1e-6)
    later, _ = offset_positions((values if form == "float64" else values.astype("M8[ns]"))[-3:], origin=origin)
    np.testing.assert_array_equal(later, positions[-3:])


def test_times_as_positions_are_refused_where_float32_would_round_them_and_without_an_order():
    dims = Dims(heads=2, head_dim=16, causal=True)
    alibi, q = make_encoding("alibi", dims), normal(1, 64, 2, 16)
    with pytest.raises(ValueError, match=r"positions must not lose digits in float32, .*pejax.offset_positions"):
        attend(alibi, q, q, q, positions=series())
    seconds = offset_positions(series())[0]
    with pytest.raises(ValueError, match="must have an order"):
        attend(alibi, q, q, q, positions=seconds)
    out = attend(alibi, q, q, q, positions=pejax.TokenPositions(seconds, order=jnp.arange(64)))[0]
    distances = np.abs(series()[:, None] - series()[None])
    bias = -np.asarray(pejax.alibi_slopes(2), float)[:, None, None] * distances
    np.testing.assert_allclose(out, exact_attention(q[0], q[0], q[0], bias, causal=True), atol=1e-6)


def test_hours_of_a_day_are_near_across_midnight():
    encoding = make_encoding("rope(periodic=24.0)", Dims(heads=1, head_dim=16))
    hours = jnp.asarray([23.5, 0.5, 11.5, 12.5])
    turn = np.asarray(encoding.rotate({}, jnp.ones((4, 1, 16)), hours), float)[:, 0]
    np.testing.assert_allclose(turn[0] @ turn[1], turn[2] @ turn[3], atol=1e-5)


@pytest.mark.parametrize("labels", [[0, 0, 0, 1, 1, 1, 1, 2], ["A", "A", "A", "B", "B", "B", "B", "C"], "hashes"])
def test_chains_counted_from_0_are_each_chain_alone(labels):
    rng = np.random.default_rng(0)
    if labels == "hashes":
        labels = np.repeat(rng.integers(2**62, 2**63, 3), (3, 4, 1))
    dims = Dims(heads=2, head_dim=16)
    rope, q = make_encoding("rope", dims), normal(1, 8, 2, 16)
    residues = jnp.arange(8)
    both = attend(rope, q, q, q, positions=pejax.TokenPositions(residues, segment_ids=segment_ids_of([labels])))
    for begin, end in ((0, 3), (3, 7), (7, 8)):
        part = q[:, begin:end]
        alone = attend(rope, part, part, part, positions=residues[begin:end])
        np.testing.assert_allclose(both[:, begin:end], alone, atol=3e-7)
    first = both[:, :3]
    assert float(jnp.abs(first).max()) > 0.1  # 0 = padding: it would be zero without `segment_ids_of`


def test_ids_of_64_bits_are_refused_by_the_function_that_numbers_them():
    ids = np.repeat([[2**40, 2**41]], 4, axis=1)
    for read in (pejax.packed_positions, lambda ids: pejax.TokenPositions(np.arange(8), segment_ids=ids)):
        with pytest.raises(
            ValueError, match=r"segment_ids must fit int32, .*number the labels by pejax.segment_ids_of"
        ):
            attend(make_encoding("rope", Dims(2, 16)), *(normal(1, 8, 2, 16),) * 3, positions=read(ids))


def test_the_first_lines_say_that_0_is_padding():
    for thing in (pejax.TokenPositions, pejax.packed_positions):
        assert "padding" in (thing.__doc__ or "").splitlines()[0]
        assert "0" in (thing.__doc__ or "").splitlines()[0]


def relpos(dims, clip=4):
    """AlphaFold's relative positions of residues: a clipped offset in a chain, one more bin for other chains."""

    def bias(params, q, k, q_positions, k_positions):
        offset = jnp.clip(k_positions[None, :, 0] - q_positions[:, None, 0], -clip, clip) + clip
        same = q_positions[:, None, 1] == k_positions[None, :, 1]
        return params["table"][jnp.where(same, offset, 2 * clip + 1)]

    init = lambda key: {"heads": {"table": jax.random.normal(key, (dims.heads, 2 * clip + 2))}}
    return pejax.Encoding(init=init, bias=bias, dims=dims)


def test_offsets_of_residues_in_chains_are_a_table_that_trains():
    dims = Dims(heads=2, head_dim=16, axes=2)
    encoding = relpos(dims)
    params, q = init_params(encoding, jax.random.key(0)), normal(1, 5, 2, 16)
    at = jnp.asarray([[0, 0], [1, 0], [6, 0], [0, 1], [1, 1]])
    out = attend(encoding, q, q, q, params=params, positions=at)
    places = np.asarray(at)
    offset = np.clip(places[None, :, 0] - places[:, None, 0], -4, 4) + 4
    bins = np.where(places[:, None, 1] == places[None, :, 1], offset, 9)
    bias = np.asarray(params["heads"]["table"], float)[:, bins]
    np.testing.assert_allclose(out[0], exact_attention(q[0], q[0], q[0], bias), atol=1e-6)
    slopes = jax.grad(lambda params: jnp.sum(attend(encoding, q, q, q, params=params, positions=at) ** 2))(params)
    moved = np.abs(np.asarray(slopes["heads"]["table"])).max(axis=0) > 0
    assert {*np.flatnonzero(moved)} == {*bins.ravel().tolist()}


def test_atoms_are_those_of_esmfold_2_in_one_line():
    """2 pairs turn with each of x, y, z, base 20, and 10 with the number of the residue, base 10,000."""
    rng = np.random.default_rng(0)
    places = np.concatenate([8 * rng.normal(size=(20, 3)), np.repeat(np.arange(5.0), 4)[:, None]], axis=1)
    dims = Dims(heads=1, head_dim=32, axes=4)
    encoding = make_encoding("rope_axial(widths=(4, 4, 4, 20), base=(20, 20, 20, 1e4), pairing='half')", dims)
    x = normal(20, 1, 32)
    result = np.asarray(encoding.rotate(adapt(encoding, {}), x, jnp.asarray(places, jnp.float32)))[:, 0]
    near, far = 20.0 ** -(np.arange(2) / 2), 1e4 ** -(np.arange(10) / 10)
    angles = np.concatenate([np.outer(places[:, axis], near) for axis in range(3)] + [np.outer(places[:, 3], far)], 1)
    first, second = np.split(np.asarray(x, float)[:, 0], 2, axis=1)
    expected = [first * np.cos(angles) - second * np.sin(angles), second * np.cos(angles) + first * np.sin(angles)]
    np.testing.assert_allclose(result, np.concatenate(expected, axis=1), atol=5e-6)


def test_16384_points_take_the_memory_of_their_queries_and_keys():
    dims = Dims(heads=4, head_dim=16, axes=3)
    place = jax.ShapeDtypeStruct((16384, 3), jnp.float32)
    planned, _ = temporary_at(place, make_encoding("kerple", dims), dims, "float32")
    array = 4 * dims.heads * 16384**2
    assert planned < 24 * 2**20 < array / 100


@pytest.mark.parametrize("spec", ["kerple", "alibi"])
def test_points_have_the_gradients_of_a_dense_bias(spec):
    dims = Dims(heads=4, head_dim=16, axes=3)
    encoding, (q, points) = make_encoding(spec, dims), (normal(1, 40, 4, 16), 3 * normal(40, 3, seed=1))
    params = init_params(encoding, jax.random.key(0))

    def total(params, q, points, implementation):
        out = attend(encoding, q, q, q, params=params, positions=points, implementation=implementation)
        return jnp.sum(jnp.sin(out))

    ours, dense = (
        jax.jit(jax.grad(total, argnums=(0, 1, 2)), static_argnums=3)(params, q, points, name)
        for name in ("blockwise", "reference")
    )
    for result, expected in zip(jax.tree.leaves(ours), jax.tree.leaves(dense), strict=True):
        np.testing.assert_allclose(result, expected, atol=2e-5, rtol=2e-4)
        assert float(jnp.abs(expected).max()) > 1e-3
    # moved and turned points have the same distances
    turn, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))
    moved = jnp.asarray(np.asarray(points) @ turn + 5.0, jnp.float32)
    before, after = (float(total(params, q, at, "blockwise")) for at in (points, moved))
    np.testing.assert_allclose(after, before, rtol=1e-4)


def test_a_sphere_has_the_chords_of_unit_vectors_across_the_date_line():
    latitude, longitude = np.radians([0.0, 0.0, 60.0]), np.radians([179.5, -179.5, 0.0])
    unit = np.stack(
        [np.cos(latitude) * np.cos(longitude), np.cos(latitude) * np.sin(longitude), np.sin(latitude)], axis=-1
    )
    places = jnp.asarray(unit, jnp.float32)
    bias = np.asarray(pejax.alibi_bias(places, places, jnp.ones(1)))[0]
    np.testing.assert_allclose(bias[0, 1], -2 * np.sin(np.radians(0.5)), atol=1e-6)


def test_longitude_is_near_across_the_date_line_with_a_period_and_far_without_one():
    dims, ones = Dims(heads=1, head_dim=8, axes=2), jnp.ones((3, 1, 8))
    places = jnp.asarray([[0.0, 179.5], [0.0, -179.5], [0.0, 178.5]])
    products = {}
    for spec in ("rope_axial", "rope_axial(periodic=(None, 360.0))"):
        turn = np.asarray(make_encoding(spec, dims).rotate({}, ones, places), float)[:, 0]
        products[spec] = turn[0] @ turn[1], turn[0] @ turn[2]
    across, inland = products["rope_axial"]
    np.testing.assert_allclose([across, inland], [4.86, 7.07], atol=0.01)
    across, inland = products["rope_axial(periodic=(None, 360.0))"]
    np.testing.assert_allclose(across, inland, atol=2e-6)


def eigenvectors(count=4):
    """Return the adjacency of a random graph, and the first eigenvectors of its Laplacian after the constant one."""
    rng = np.random.default_rng(0)
    adjacency = np.triu(rng.random((12, 12)) < 0.3, 1)
    adjacency = (adjacency | adjacency.T).astype(float)
    return adjacency, np.linalg.eigh(np.diag(adjacency.sum(1)) - adjacency)[1][:, 1 : count + 1]


@pytest.mark.parametrize(
    ("spec", "changes"), [("rope_mixed", True), ("rope_axial", True), ("kerple", False), ("alibi", False)]
)
def test_the_sign_of_an_eigenvector_matters_to_rotations_and_not_to_distances(spec, changes):
    dims = Dims(heads=2, head_dim=16, axes=4)
    encoding, q = make_encoding(spec, dims), normal(1, 12, 2, 16)
    params, vectors = init_params(encoding, jax.random.key(0)), eigenvectors()[1]
    flipped = vectors * np.asarray([-1.0, 1.0, 1.0, 1.0])
    run = lambda at: attend(encoding, q, q, q, params=params, positions=jnp.asarray(10 * at, jnp.float32))
    change = float(jnp.abs(run(vectors) - run(flipped)).max())
    assert change > 0.1 if changes else change < 1e-6


def shortest_paths(adjacency):
    """Return the length of the shortest path of each pair, 11 where there is none."""
    distance = np.where(np.eye(len(adjacency)), 0, np.where(adjacency, 1, 11)).astype(int)
    for middle in range(len(adjacency)):
        distance = np.minimum(distance, distance[:, middle, None] + distance[None, middle])
    return distance


def test_shortest_paths_are_a_dense_bias_with_gradients():
    none, q = make_encoding("none", Dims(heads=2, head_dim=16)), normal(1, 12, 2, 16)
    hops, table = shortest_paths(eigenvectors()[0]), normal(2, 23)

    def run(table):
        return pejax.attention_fn(none, {}, positions=jnp.arange(12))(q, q, q, bias=table[:, hops][None])

    bias = np.asarray(table, float)[:, hops]
    np.testing.assert_allclose(run(table)[0], exact_attention(q[0], q[0], q[0], bias), atol=1e-6)
    slope = jax.grad(lambda table: jnp.sum(run(table) ** 2))(table)
    step = np.zeros((2, 23))
    step[1, 1] = 1e-4
    exact = lambda bias: (exact_attention(q[0], q[0], q[0], bias) ** 2).sum()
    moved = [(np.asarray(table, float) + sign * step)[:, hops] for sign in (1, -1)]
    np.testing.assert_allclose(slope[1, 1], (exact(moved[0]) - exact(moved[1])) / 2e-4, rtol=1e-3)
    with pytest.raises(TypeError, match=r"attend takes .*; got 'bias'"):
        attend(none, q, q, q, bias=bias)


@pytest.mark.parametrize("spec", ["cpb", "relative_table", "learned"])
def test_tables_and_networks_of_a_grid_need_its_extent_and_read_between_its_cells(spec):
    with pytest.raises(ValueError, match="extent"):
        make_encoding(spec, Dims(heads=2, head_dim=16, axes=2))
    dims = Dims(heads=2, head_dim=16, axes=2, extent=(8, 8))
    encoding, rng = make_encoding(spec, dims), np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: leaf + 0.3 * normal(*leaf.shape), init_params(encoding, jax.random.key(0)))
    q, points = normal(1, 9, 2, 16), rng.uniform(0.5, 6.5, (9, 2))

    def run(at):
        at = jnp.asarray(at, jnp.float32)
        settled = adapt(encoding, params, (8, 8))
        x = normal(9, 32) if encoding.embed is None else encoding.embed(settled, normal(9, 32), at)
        heads = x.reshape(1, 9, 2, 16)
        options = {"params": params, "positions": at, "extent": (8, 8), "embedded": True}
        return np.asarray(attend(encoding, heads, heads, q, **options))

    here = run(points)
    assert np.isfinite(here).all()
    near, far = (
        np.abs(run(points + rng.normal(size=(9, 2)) * 1e-3) - here).max(),
        np.abs(run(points[::-1]) - here).max(),
    )
    assert 0 < near < 0.02 * far
