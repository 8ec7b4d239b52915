"""Laws of attention: masks by gradients, dropout, merging, memory, sharding, edges."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.tree_util import Partial

from pejax import Hooks, TokenPositions, attention_weights, dot_product_attention, merge_attention
from pejax._attention.core.dropout import Dropout, keep_pairs
from pejax._attention.core.masks import visible
from pejax._attention.core.options import Options
from pejax._attention.xla import blockwise
from tests.support.cases import mostly_slow

QUICK = {"xla_backend_optimization_level": "0"}  # most of the time goes into compiling
IMPLEMENTATIONS = ("reference", "blockwise")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Let short sequences have many tiles."""
    monkeypatch.setattr(blockwise, "BLOCK", 8)


def qkv(t=12, s=None, heads=2, kv_heads=2, batch=(2,), dim=4, seed=0):
    rng = np.random.default_rng(seed)
    shapes = ((t, heads), (s or t, kv_heads), (s or t, kv_heads))
    return [jnp.asarray(rng.normal(size=(*batch, *shape, dim)), jnp.float32) for shape in shapes]


def tilted(params, q, k, q_positions, k_positions):
    """Reads everything a bias may read."""
    distance = (k_positions[None] - q_positions[:, None]).astype(jnp.float32)
    return params["slope"] * distance + params["mix"] * q @ k.T


TILTED = Hooks(bias=Partial(tilted, {"heads": {"slope": jnp.asarray([0.1, -0.3])}, "all": {"mix": jnp.asarray(0.2)}}))


@pytest.mark.slow
@pytest.mark.parametrize("implementation", mostly_slow(IMPLEMENTATIONS, ["blockwise"]))
def test_a_value_moves_exactly_the_queries_that_see_it(implementation):
    q, k, v = qkv(11, batch=())
    segments = jnp.asarray([1] * 4 + [2] * 6 + [0])
    tokens = TokenPositions(jnp.arange(11), segment_ids=segments)
    options = {"causal": True, "window": 3, "distance_range": (1, 5)}
    run = lambda v: dot_product_attention(
        q, k, v, positions=tokens, hooks=TILTED, implementation=implementation, **options
    )
    moves = np.abs(jax.jit(jax.jacobian(run), compiler_options=QUICK)(v)).max((1, 2, 4, 5))
    np.testing.assert_array_equal(moves > 0, visible(Options(1.0, **options), tokens, tokens))


@pytest.mark.slow
def test_jit_and_vmap_change_nothing():
    q, k, v = qkv(12, 20, heads=4)
    hooks = Hooks(bias=Partial(tilted, {"heads": {"slope": jnp.arange(4.0)}, "all": {"mix": jnp.asarray(0.2)}}))

    def run(q, k, v):
        tokens = {"positions": jnp.arange(8, 20), "k_positions": jnp.arange(20)}
        return dot_product_attention(q, k, v, **tokens, hooks=hooks, causal=True, implementation="blockwise")

    plain = run(q, k, v)
    np.testing.assert_allclose(jax.jit(run)(q, k, v), plain, atol=1e-6)
    np.testing.assert_allclose(jax.vmap(run)(q, k, v), plain, atol=1e-6)
    np.testing.assert_allclose(run(*(x[None] for x in (q, k, v)))[0], plain, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_batch_split_over_devices_attends_as_on_one(implementation):
    q, k, v = qkv(12, batch=(8,))
    segments = jnp.asarray(np.random.default_rng(1).integers(0, 3, (8, 12)))

    @functools.partial(jax.jit, compiler_options=QUICK)
    def run(q, k, v, segments):
        def loss(q, k, v):
            tokens = TokenPositions(jnp.arange(12), segment_ids=segments)
            out = dot_product_attention(
                q, k, v, positions=tokens, hooks=TILTED, causal=True, implementation=implementation
            )
            return jnp.sum(out**2), out

        return jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)(q, k, v)

    split = NamedSharding(Mesh(np.asarray(jax.devices()), ("data",)), PartitionSpec("data"))
    (_, out), gradients = run(*jax.device_put((q, k, v, segments), split))
    assert out.sharding.is_equivalent_to(split, 4)
    want = run(q, k, v, segments)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), (out, gradients), (want[0][1], want[1]))


@pytest.mark.slow
def test_inside_shard_map():
    q, k, v = qkv(12, batch=(8,))
    mesh = Mesh(np.asarray(jax.devices()), ("data",))
    run = lambda q, k, v: dot_product_attention(
        q, k, v, positions=jnp.arange(12), hooks=TILTED, implementation="blockwise"
    )
    each = jax.shard_map(run, mesh=mesh, in_specs=PartitionSpec("data"), out_specs=PartitionSpec("data"))
    np.testing.assert_allclose(each(q, k, v), run(q, k, v), atol=1e-6)


def test_weights_are_those_of_the_output():
    q, k, v = qkv(9, 10)
    tokens = {
        "positions": jnp.arange(1, 10),
        "k_positions": TokenPositions(jnp.arange(10), segment_ids=jnp.ones((2, 10), int).at[0].set(0)),
    }
    options = {**tokens, "hooks": TILTED, "causal": True, "soft_cap": 4.0}
    weights = attention_weights(q, k, **options)
    assert weights.shape == (2, 2, 9, 10)
    np.testing.assert_allclose(weights.sum(-1), jnp.asarray([0.0, 1.0])[:, None, None] * jnp.ones((2, 2, 9)), atol=1e-6)
    np.testing.assert_allclose(
        jnp.einsum("bhts,bshd->bthd", weights, v), dot_product_attention(q, k, v, **options), atol=1e-6
    )


@pytest.mark.slow
def test_distance_ranges_merge_into_the_whole():
    q, k, v = qkv(13)

    def merged(q, k, v):
        call = lambda low, high: dot_product_attention(
            q, k, v, positions=jnp.arange(13), hooks=TILTED, causal=True, distance_range=(low, high), return_lse=True
        )
        output, lse = merge_attention([call(0, 2), call(2, 7), call(7, 99), call(99, 100)])
        return jnp.sum(output**2) + jnp.sum(lse**3), (output, lse)

    def whole(q, k, v):
        output, lse = dot_product_attention(
            q, k, v, positions=jnp.arange(13), hooks=TILTED, causal=True, return_lse=True
        )
        return jnp.sum(output**2) + jnp.sum(lse**3), (output, lse)

    run = lambda f: jax.jit(jax.value_and_grad(f, argnums=(0, 1, 2), has_aux=True), compiler_options=QUICK)(q, k, v)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5, rtol=1e-5), run(merged), run(whole))


@pytest.mark.slow
def test_merging_what_saw_nothing_gives_zeros_without_nan():
    blind = (jnp.zeros((3, 1, 2)), jnp.full((3, 1), -jnp.inf))
    (output, lse), pull = jax.vjp(lambda part: merge_attention([part, blind]), blind)
    assert (output == 0).all()
    assert (lse == -jnp.inf).all()
    assert all((x == 0).all() for x in jax.tree.leaves(pull((jnp.ones_like(output), jnp.zeros_like(lse)))))


@pytest.mark.slow
def test_dropout_keeps_its_share_everywhere_and_anew_for_each_seed_batch_head_and_row():
    ids = jnp.arange(256, dtype=jnp.uint32)
    one = lambda seed, batch, head: keep_pairs(Dropout(seed, batch, head), ids, ids, 0.25)
    number = lambda n: jnp.asarray(n, jnp.uint32)
    seeds = [jnp.asarray(words, jnp.uint32) for words in ([0, 0], [0, 0], [0, 0], [0, 1], [1, 0])]
    streams = zip(seeds, (0, 0, 1, 0, 0), (0, 1, 0, 0, 0), strict=True)
    masks = np.stack([one(seed, number(batch), number(head)) for seed, batch, head in streams]).astype(float)
    np.testing.assert_allclose(masks.mean((1, 2)), 0.75, atol=0.01)
    np.testing.assert_allclose(masks.mean(1), 0.75, atol=0.15)  # 5.5 standard deviations of 256 draws
    np.testing.assert_allclose(masks.mean(2), 0.75, atol=0.15)
    spread = (masks - 0.75) / np.sqrt(0.75 * 0.25)
    between = np.einsum("ats,bts->ab", spread, spread) / 256**2
    np.testing.assert_allclose(between, np.eye(5), atol=0.02)
    rows, columns = (spread[0] @ spread[0].T / 256, spread[0].T @ spread[0] / 256)
    for pairs in (rows, columns):
        assert np.abs(pairs - np.diag(np.diag(pairs))).max() < 0.4  # 6.4 standard deviations


@pytest.mark.slow
def test_dropout_leaves_the_mean_and_follows_its_key():
    q, k, v = qkv(8, batch=(256,), heads=1, kv_heads=1)
    q, k, v = (jnp.broadcast_to(x[:1], x.shape) for x in (q, k, v))
    run = lambda key, rate: dot_product_attention(q, k, v, positions=jnp.arange(8), dropout=(key, rate))
    plain, first = run(jax.random.key(0), 0.0), run(jax.random.key(0), 0.5)
    np.testing.assert_allclose(first.mean(0), plain[0], atol=0.3)
    assert (first == run(jax.random.key(0), 0.5)).all()
    assert (first != run(jax.random.key(1), 0.5)).mean() > 0.9
    assert (first == run(jax.random.PRNGKey(0), 0.5)).all()


@pytest.mark.slow
def test_memory_grows_linearly_with_the_length_forward_and_backward(monkeypatch):
    monkeypatch.setattr(blockwise, "BLOCK", 64)

    def temporary(length, implementation):
        def loss(*arrays):
            tokens = jnp.arange(length)
            return dot_product_attention(
                *arrays, positions=tokens, hooks=TILTED, causal=True, implementation=implementation
            ).sum()

        shapes = [jax.ShapeDtypeStruct((length, 2, 8), jnp.float32)] * 3
        compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2)), compiler_options=QUICK).lower(*shapes).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    # shorter ones fit into buffers whose sizes do not depend on the length
    short, middle, long = (temporary(length, None) for length in (4096, 8192, 16384))
    assert long - middle < 2.1 * (middle - short)
    assert long < 4 * 16384**2 / 10
    assert temporary(1024, "reference") > 4 * 1024**2


@pytest.mark.slow
@pytest.mark.parametrize("implementation", mostly_slow(IMPLEMENTATIONS, ["blockwise"]))
def test_half_precision_in_half_precision_out_with_float32_inside(implementation):
    half = [x.astype(jnp.bfloat16) for x in qkv(20)]

    @functools.partial(jax.jit, compiler_options=QUICK)
    def run(*arrays):
        tokens = jnp.arange(20)
        call = lambda *arrays: dot_product_attention(
            *arrays, positions=tokens, hooks=TILTED, return_lse=True, implementation=implementation
        )
        result, pull = jax.vjp(call, *arrays)
        return result, pull(result)

    (output, lse), gradients = run(*half)
    (want, want_lse), want_gradients = run(*(x.astype(jnp.float32) for x in half))
    assert (output.dtype, lse.dtype) == (jnp.bfloat16, jnp.float32)
    assert {x.dtype for x in gradients} == {jnp.dtype(jnp.bfloat16)}
    np.testing.assert_allclose(lse, want_lse, atol=1e-5)
    for a, b in zip((output, *gradients), (want, *want_gradients), strict=True):
        np.testing.assert_allclose(a.astype(jnp.float32), b, atol=3e-2 * float(jnp.abs(b).max()))


@pytest.mark.slow
@pytest.mark.parametrize("implementation", mostly_slow(IMPLEMENTATIONS, ["blockwise"]))
def test_huge_logits_neither_overflow_nor_lose_the_winner(implementation):
    q, k, v = qkv(9, batch=())

    @functools.partial(jax.jit, compiler_options=QUICK)
    def run(q):
        tokens = {"positions": jnp.arange(9), "implementation": implementation}
        call = lambda q: dot_product_attention(q, k, v, scale=1e4, return_lse=True, **tokens)
        result, pull = jax.vjp(call, q)
        return *result, *pull(result)

    output, lse, gradient = run(q)
    winner = jnp.argmax(jnp.einsum("thd,shd->hts", q, k), -1)
    np.testing.assert_allclose(output, jnp.stack([v[winner[h], h] for h in range(2)], 1), atol=1e-5)
    assert jnp.isfinite(lse).all()
    assert jnp.isfinite(gradient).all()


@pytest.mark.parametrize("implementation", [None, *IMPLEMENTATIONS])
@pytest.mark.parametrize(("batch", "t", "s"), [((2,), 0, 3), ((2,), 3, 0), ((0,), 3, 3)])
def test_nothing_to_attend_gives_zeros(implementation, batch, t, s):
    q, k = jnp.ones((*batch, t, 2, 4)), jnp.ones((*batch, s, 2, 4))
    tokens = {"positions": jnp.arange(t), "k_positions": jnp.arange(s)}
    output, lse = dot_product_attention(q, k, k, **tokens, return_lse=True, implementation=implementation)
    assert output.shape == q.shape
    assert (output == 0).all()
    assert lse.shape == (*batch, t, 2)
    assert (lse == -jnp.inf).all()
    assert attention_weights(q, k, **tokens).shape == (*batch, 2, t, s)


@pytest.mark.slow
def test_positions_shared_by_the_batch_are_those_repeated():
    q, k, v = qkv(6, batch=(2, 3))
    grid = jnp.stack([jnp.arange(6) // 3, jnp.arange(6) % 3], -1)
    far = Hooks(distance_bias=Partial(lambda p, relative: -jnp.abs(relative).sum(-1).astype(jnp.float32), {}))
    once = dot_product_attention(q, k, v, positions=grid, hooks=far)
    np.testing.assert_array_equal(
        dot_product_attention(q, k, v, positions=jnp.broadcast_to(grid, (2, 3, 6, 2)), hooks=far), once
    )
