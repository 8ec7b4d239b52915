"""T5: buckets equal to the reference's at any distance, tables looked up per head and axis."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pejax import Dims, grid_positions, make_encoding
from tests.support.biases import compiled, types_unchecked
from tests.support.peers import peer

t5_bias, t5_bucket = compiled("t5_bias"), compiled("t5_bucket")

FAR = np.unique(np.concatenate([np.arange(5000), *(2**n + np.arange(-2, 3) for n in range(12, 21))]))
SIDES = np.concatenate([-FAR[::-1], FAR]).astype(np.int32)


def reference_bucket(relative, *, bidirectional, buckets=32, max_distance=128):
    """Return the bucket of one relative position from the formula, the logarithm in float64."""
    side, start, n = buckets, 0, max(-relative, 0)
    if bidirectional:
        side, start, n = buckets // 2, (buckets // 2) * (relative > 0), abs(relative)
    exact = side // 2
    if n < exact:
        return start + n
    steps = np.log(n / exact) / np.log(max_distance / exact) * (side - exact)
    return start + min(side - 1, exact + int(steps + 1e-9))


@pytest.mark.parity
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (64, 256), (320, 800), (8, 20), (30, 100), (4, 4096)])
def test_buckets_are_those_of_transformers(bidirectional, buckets, max_distance):
    torch, t5 = peer("torch"), peer("transformers.models.t5.modeling_t5")
    options = {"bidirectional": bidirectional, "max_distance": max_distance}
    theirs = t5.T5Attention._relative_position_bucket(torch.from_numpy(SIDES), num_buckets=buckets, **options)
    ours = t5_bucket(jnp.asarray(SIDES), buckets=buckets, **options)
    np.testing.assert_array_equal(ours, theirs.numpy())


@pytest.mark.parity
@pytest.mark.long
@pytest.mark.parametrize("bidirectional", [True, False])
def test_every_bucket_to_a_million_is_that_of_transformers(bidirectional):
    torch, t5 = peer("torch"), peer("transformers.models.t5.modeling_t5")
    relative = np.arange(-(2**20), 2**20 + 1, dtype=np.int32)
    theirs = t5.T5Attention._relative_position_bucket(torch.from_numpy(relative), bidirectional=bidirectional)
    np.testing.assert_array_equal(t5_bucket(jnp.asarray(relative), bidirectional=bidirectional), theirs.numpy())


def test_buckets_of_the_official_table():
    """The sign that keys after the query count from 16, and the edges: no diagram with 17 buckets or bucket(0) = 8."""
    past = {0: 0, **{-n: n for n in range(1, 8)}, -8: 8, -16: 10, -32: 12, -64: 14, -128: 15, -(10**6): 15}
    future = {1: 17, 8: 24, 64: 30, 128: 31, 10**6: 31}
    table = {**past, **future}
    buckets = t5_bucket(jnp.asarray(list(table)), bidirectional=True)
    np.testing.assert_array_equal(buckets, list(table.values()))


def test_causal_buckets_spend_all_on_the_past():
    relative = np.arange(-300, 301)
    buckets = np.asarray(t5_bucket(jnp.asarray(relative), bidirectional=False))
    assert set(buckets[relative > 0]) == {0}
    assert set(buckets[relative <= 0]) == set(range(32))
    np.testing.assert_array_equal(buckets[relative <= 0][-16:], np.arange(15, -1, -1))


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (10, 50), (4, 3)])
def test_buckets_follow_the_formula_and_floats_that_are_whole_agree(bidirectional, buckets, max_distance):
    options = {"bidirectional": bidirectional, "buckets": buckets, "max_distance": max_distance}
    relative = np.arange(-200, 201)
    expected = [reference_bucket(int(r), **options) for r in relative]
    np.testing.assert_array_equal(t5_bucket(jnp.asarray(relative), **options), expected)
    np.testing.assert_array_equal(t5_bucket(jnp.asarray(relative, jnp.float32), **options), expected)


def test_fractional_distances_round_down_and_never_meet_an_untrained_bucket():
    relative = jnp.asarray([-0.75, 0.75, -1.5, 1.5, -11.25, -11.32, 127.9, 128.0])
    np.testing.assert_array_equal(t5_bucket(relative, bidirectional=True), [0, 0, 1, 17, 8, 9, 31, 31])
    every = t5_bucket(jnp.linspace(-200, 200, 4001), bidirectional=True)
    assert set(np.asarray(every).tolist()) == set(range(32)) - {16}


def test_bias_reads_the_table_and_sums_over_axes():
    rng = np.random.default_rng(0)
    tables = rng.normal(size=(3, 2, 8)).astype(np.float32)
    positions = grid_positions(3, 4)
    bias = np.asarray(t5_bias(positions, positions[:5], jnp.asarray(tables), bidirectional=True, max_distance=6))
    options = {"bidirectional": True, "buckets": 8, "max_distance": 6}
    for h, i, j in np.ndindex(bias.shape):
        buckets = [reference_bucket(int(positions[j, a] - positions[i, a]), **options) for a in (0, 1)]
        assert bias[h, i, j] == pytest.approx(sum(tables[h, a, buckets[a]] for a in (0, 1)), abs=1e-6)


@pytest.mark.parity
@pytest.mark.parametrize("decoder", [False, True])
def test_bias_is_that_of_transformers(decoder):
    torch, t5 = peer("torch"), peer("transformers.models.t5.modeling_t5")
    config = peer("transformers").T5Config(d_model=16, d_kv=4, num_heads=4, is_decoder=decoder)
    module = t5.T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    with torch.no_grad():
        theirs = module.compute_bias(40, 40)[0].numpy()
    table = jnp.asarray(module.relative_attention_bias.weight.detach().numpy().T)
    encoding = make_encoding("t5", Dims(heads=4, head_dim=4, causal=decoder))
    at = jnp.arange(40)
    one_head = lambda table: encoding.distance_bias({"table": table}, (at[None] - at[:, None]).reshape(-1))
    ours = jax.jit(jax.vmap(one_head))(table)
    np.testing.assert_array_equal(ours.reshape(4, 40, 40), theirs)
    np.testing.assert_array_equal(t5_bias(at, at, table, bidirectional=not decoder), theirs)


def test_gradient_of_the_table_counts_the_pairs_in_a_bucket():
    at = jnp.arange(6)
    gradient = jax.grad(lambda table: t5_bias(at, at, table, bidirectional=False).sum())(jnp.zeros((1, 32)))
    np.testing.assert_array_equal(gradient[0, :7], [21, 5, 4, 3, 2, 1, 0])


def test_the_table_is_shared_by_layers_unless_asked_otherwise():
    key, dims = jax.random.key(0), Dims(heads=4, head_dim=16)
    table = jax.jit(make_encoding("t5", dims).init)(key)["heads"]["table"]
    assert table.shape == (4, 32)
    assert float(jnp.std(table)) == pytest.approx(64**-0.5, rel=0.2)
    assert make_encoding("t5", dims).init_layer(key) == {}
    by_layer = make_encoding('t5(share="layer")', dims)
    assert by_layer.init(key) == {}
    assert jax.eval_shape(by_layer.init_layer, key)["heads"]["table"].shape == (4, 32)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("t5(buckets=31)", "buckets must be even and at least 4 when bidirectional=True, got 31"),
        ("t5(buckets=2)", "at least 4"),
        ("t5(max_distance=8)", "max_distance must be above 8 with 32 buckets, got 8"),
        ("t5(share='head')", "share must be one of model, layer, got 'head'"),
    ],
)
def test_bad_options_are_refused(spec, words):
    with pytest.raises(ValueError, match=words):
        make_encoding(spec, Dims(heads=2, head_dim=4))


def test_causal_buckets_may_be_odd_but_not_one():
    make_encoding("t5(buckets=31)", Dims(heads=2, head_dim=4, causal=True))
    with pytest.raises(ValueError, match="at least 2 when bidirectional=False, got 1"):
        make_encoding("t5(buckets=1)", Dims(heads=2, head_dim=4, causal=True))


def test_a_table_without_the_axes_of_the_positions_is_refused():
    positions = grid_positions(2, 2)
    for table in (jnp.zeros((2, 8)), jnp.zeros((2, 3, 8))):
        with types_unchecked(), pytest.raises(ValueError, match="table must be an array of floats \\(H, \\*A, N\\)"):
            t5_bias(positions, positions, table, bidirectional=True)
