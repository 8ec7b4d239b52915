"""Encodings in bands: each pair is rotated by the distance of its positions, whatever the order and the packing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pejax
from pejax import Dims, TokenPositions, attend, encodings, extensions
from pejax.placement import causal, mutual, order_of
from tests.support.cases import slow

DIMS = Dims(heads=2, head_dim=8, causal=True, extent=8)
T, W, G = 13, 3, 2
Q, K, V = jax.random.normal(jax.random.key(0), (3, 2, T, 2, 8))
ENCODINGS = {
    "rerope": encodings.rope(DIMS, extend=extensions.rerope(window=W)),
    "self_extend": encodings.rope(DIMS, extend=extensions.self_extend(window=W, group=G)),
    "with a bias": pejax.make_encoding(f"alibi+rope(extend='rerope(window={W})')", DIMS),
}


def seen_as(name: str, query: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Return the distance by which a pair is rotated, by the papers' formulas."""
    distance = query - key
    far = (query // G + W - W // G) - key // G if name == "self_extend" else np.full_like(distance, W)
    return np.where(distance < W, distance, far)


def dense(name: str, positions: np.ndarray, visible: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the output and log-sum-exp in double precision, pair by pair."""
    frequencies = 10000.0 ** -(np.arange(4) / 4)
    distances = seen_as(name, positions[:, None], positions[None])
    q, k, v = (np.asarray(x, float) for x in (Q, K, V))
    q, k = (x[..., 0::2] + 1j * x[..., 1::2] for x in (q, k))
    turns = np.exp(1j * distances[..., None] * frequencies)
    logits = np.einsum("bthf,bshf,tsf->bhts", q, np.conj(k), turns).real / np.sqrt(8)
    if name == "with a bias":
        slopes = np.asarray([1 / 16, 1 / 256])
        logits = logits - slopes[:, None, None] * np.abs(positions[:, None] - positions[None])
    logits = np.where(visible, logits, -np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        lse = np.log(np.sum(np.exp(logits), axis=-1))
        weights = np.where(np.isfinite(lse)[..., None], np.exp(logits - lse[..., None]), 0)
    return np.einsum("bhts,bshd->bthd", weights, v), lse.transpose(0, 2, 1)


PLACES = np.arange(T)
GAPS = np.cumsum([0, 1, 4, 1, 1, 2, 1, 7, 1, 1, 1, 3, 1])
SEGMENTS = np.asarray([1, 1, 1, 1, 1, 0, 0, 2, 2, 2, 1, 1, 1])
BLOCKS = np.asarray(order_of([mutual(6), causal(T - 6)]))
CASES = {
    "as it stands": (PLACES, None, None),
    "gaps": (GAPS, None, None),
    "gaps, an order": (GAPS, PLACES, None),
    "a mutual block": (PLACES, BLOCKS, None),
    "floats": (GAPS * 0.75, PLACES, None),
    "packed": (np.asarray(pejax.segment_positions(jnp.asarray(SEGMENTS))), PLACES, SEGMENTS),
}


@pytest.mark.parametrize("implementation", ["reference", slow("blockwise"), slow("cpu")])
@pytest.mark.parametrize("case", ["gaps, an order", "packed", *map(slow, ("as it stands", "gaps", "a mutual block"))])
@pytest.mark.parametrize("name", ["rerope", *map(slow, ("self_extend", "with a bias"))])
def test_pairs_turn_by_the_distance_of_their_positions(name, case, implementation):
    positions, order, segments = CASES[case]
    number = PLACES if order is None else order
    visible = number[:, None] >= number[None]
    if segments is not None:
        visible &= (segments[:, None] == segments[None]) & (segments != 0)
    fields = (None if field is None else jnp.asarray(field) for field in (order, None, segments))
    tokens = TokenPositions(jnp.asarray(positions), *fields)
    options = {"positions": tokens, "implementation": implementation, "return_lse": True}
    output, lse = attend(ENCODINGS[name], Q, K, V, **options)
    expected, expected_lse = dense(name, positions, visible)
    np.testing.assert_allclose(output, expected, atol=5e-6)
    np.testing.assert_allclose(lse, expected_lse, atol=5e-6)


def test_positions_that_are_no_integers_have_distances_too():
    positions, order, _ = CASES["floats"]
    tokens = TokenPositions(jnp.asarray(positions, jnp.float32), jnp.asarray(order))
    visible = order[:, None] >= order[None]
    output = attend(ENCODINGS["rerope"], Q, K, V, positions=tokens)
    np.testing.assert_allclose(output, dense("rerope", positions, visible)[0], atol=5e-6)


@pytest.mark.parametrize("limits", [(0, 1), (2, 5), slow((0, W))])
def test_a_range_of_distances_holds_in_every_band(limits):
    distances = PLACES[:, None] - PLACES[None]
    visible = (distances >= limits[0]) & (distances < limits[1])
    expected = dense("rerope", PLACES, visible)[0]
    for tokens in (None, TokenPositions(jnp.arange(T), jnp.arange(T))):
        output = attend(ENCODINGS["rerope"], Q, K, V, positions=tokens, distance_range=limits)
        np.testing.assert_allclose(output, expected, atol=5e-6)


@pytest.mark.slow
def test_gradients_reach_every_array_past_the_hidden_pairs():
    tokens = TokenPositions(jnp.asarray(GAPS), jnp.arange(T))

    def loss(arrays, implementation, positions):
        output = attend(ENCODINGS["rerope"], *arrays, positions=positions, implementation=implementation)
        return jnp.sum(jnp.sin(output))

    gradients = [jax.grad(loss)((Q, K, V), *way) for way in (("reference", jnp.asarray(GAPS)), ("cpu", tokens))]
    for ours, others in zip(*gradients, strict=True):
        np.testing.assert_allclose(ours, others, atol=5e-6)


@pytest.mark.slow
@pytest.mark.parametrize("extend", ["yarn", "dynamic_ntk", "self_extend(window=3)"])
def test_the_log_sum_exp_comes_back_with_an_extent_for_each_query(extend):
    encoding = pejax.make_encoding(f"rope(extend='{extend}')", DIMS)
    options = {"positions": jnp.arange(T), "return_lse": True}
    output, lse = attend(encoding, Q, K, V, extent=jnp.full((2, T), T), **options)
    expected, expected_lse = attend(encoding, Q, K, V, extent=T, **options)
    np.testing.assert_allclose(output, expected, atol=5e-6)
    np.testing.assert_allclose(lse, expected_lse, atol=5e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "extent"), [("alibi(extend='slopes')", [6, 7, 8]), ("rope(extend='dynamic_ntk')", [[6] * 6] * 3)]
)
def test_examples_and_queries_with_extents_of_their_own_drop_pairs_of_their_own(spec, extent):
    encoding = pejax.make_encoding(spec, Dims(heads=1, head_dim=6, extent=4))
    q, v = jnp.zeros((3, 6, 1, 6)), jnp.broadcast_to(jnp.eye(6)[None, :, None], (3, 6, 1, 6))
    options = {"positions": jnp.arange(6), "extent": jnp.asarray(extent)}
    kept = np.asarray(attend(encoding, q, q, v, dropout=(jax.random.key(3), 0.5), **options)) != 0
    assert not (kept == kept[:1]).all()
    assert not (kept == kept[:, :1]).all()
    assert 0.3 < kept.mean() < 0.7
    again = np.asarray(attend(encoding, q, q, v, dropout=(jax.random.key(3), 0.5), **options)) != 0
    np.testing.assert_array_equal(again, kept)
