"""No door of causal attention shows a token what follows it in the arrays, whatever the positions are."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

import pejax
from pejax import Dims, Encoding, TokenPositions, attend, attention_fn, dot_product_attention, linear_attention
from pejax._attention.core.order import follow_arrays
from pejax.models import Decoder, attention_module, decoder

T, H, D = 8, 2, 4
DIMS = Dims(H, D, causal=True, extent=T)
RISES, RESTARTS = [5, 6, 7, 8, 9, 10, 11, 12], [0, 1, 2, 3, 0, 1, 2, 3]
PADDED, FALLS = [1, 1, 1, 0, 1, 2, 3, 4], [7, 6, 5, 4, 3, 2, 1, 0]
LATER = 5
"""The first of the tokens that are changed."""


def distance_bias(params, relative):
    return -0.3 * jnp.abs(relative).astype(jnp.float32)


OWN = Encoding(distance_bias=distance_bias, shift_invariant=True)
ROPE, ALIBI = (pejax.make_encoding(name, DIMS) for name in ("rope", "alibi"))


def by_head(call):
    """Return `(x, positions) -> output` from `(q, k, v, positions) -> output`: queries, keys and values depend on x."""
    return lambda x, at: call(*(jnp.roll(x, n, axis=1).reshape(T, H, D) for n in range(3)), at)


def linen_layer():
    def layer(x, at):
        function = attention_fn(OWN, positions=at, causal=True)
        module = nn.MultiHeadDotProductAttention(num_heads=H, attention_fn=function)
        return module.apply(module.init(jax.random.key(0), x[None]), x[None])[0]

    return layer


def nnx_layer():
    module = attention_module(ROPE, DIMS, nnx.Rngs(0))
    parts = nnx.split(nnx.MultiHeadAttention(H, H * D, decode=False, attention_fn=module, rngs=nnx.Rngs(1)))

    def attended(x, at):
        layer = nnx.merge(*parts)
        with layer.attention_fn.at(at):
            return layer(x[None])[0]

    return attended


def whole_decoder():
    model = Decoder(decoder(vocab=16, length=T, width=H * D, layers=1, heads=H), rngs=nnx.Rngs(0))
    state = nnx.state(model, nnx.Param)
    nnx.update(model, jax.tree.map(lambda leaf: leaf + 0.3, state))  # the output is not zero at the start
    return lambda x, at: model(jnp.round(jnp.abs(x[None, :, 0])).astype(jnp.int32) % 16, tokens=TokenPositions(at))[0]


GRID = pejax.make_encoding("none", Dims(H, D, causal=True, axes=2, extent=(2, 4)))
ALONE = {"hooks": pejax.attention_hooks(ALIBI, {}), "causal": True}
EXTENDED = pejax.extend_encoding(OWN, DIMS, pejax.extensions.pi(factor=2))
DOORS = {
    "attend": lambda: by_head(lambda q, k, v, at: attend(OWN, q, k, v, positions=at, causal=True)),
    "attend in a window": lambda: by_head(lambda q, k, v, at: attend(ROPE, q, k, v, positions=at, window=3)),
    "attend at a distance": lambda: by_head(
        lambda q, k, v, at: attend(ROPE, q, k, v, positions=at, distance_range=(1, 4))
    ),
    "attend, extended": lambda: by_head(lambda q, k, v, at: attend(EXTENDED, q, k, v, positions=at, extent=T)),
    "attend, composed": lambda: by_head(
        lambda q, k, v, at: attend(pejax.compose_encodings(ROPE, OWN), q, k, v, positions=at)
    ),
    "dot_product_attention": lambda: by_head(
        lambda q, k, v, at: dot_product_attention(q, k, v, positions=at, window=4, **ALONE)
    ),
    "attention_fn": lambda: by_head(lambda q, k, v, at: attention_fn(ALIBI, positions=at)(q, k, v)),
    "linear_attention": lambda: by_head(lambda q, k, v, at: linear_attention(ROPE, q, k, v, positions=at)),
    "attend on several axes": lambda: by_head(lambda q, k, v, at: attend(GRID, q, k, v, positions=at)),
    "Linen": linen_layer,
    "attention_module": nnx_layer,
    "Decoder": whole_decoder,
}


@pytest.mark.parametrize("door", DOORS)
def test_the_future_changes_nothing_in_the_past(door):
    layer = DOORS[door]()
    compiled = jax.jit(layer, compiler_options={"xla_backend_optimization_level": 0})
    x = jnp.asarray(np.random.default_rng(0).normal(size=(T, H * D)) * 4, jnp.float32)
    for at in (RISES, RESTARTS, PADDED, FALLS):
        before, after = (compiled(inputs, jnp.asarray(at)) for inputs in (x, x.at[LATER:].add(2.0)))
        np.testing.assert_array_equal(before[:LATER], after[:LATER])
        assert jnp.any(before[LATER:] != after[LATER:])
    with pytest.raises(ValueError, match=r"positions must rise from token to token .* segments_of_positions.* order="):
        layer(x, jnp.asarray(RESTARTS))


@pytest.mark.parametrize("call", [attend, linear_attention, lambda item, *qkv: attention_fn(item)(*qkv)])
def test_a_record_without_dims_must_be_told_whether_it_is_causal(call):
    q = jnp.ones((T, H, D))
    with pytest.raises(ValueError, match=r"causal must be True or False .* made without dims .* got None"):
        call(Encoding(), q, q, q)
    call(Encoding(dims=DIMS), q, q, q)


def test_an_extended_record_has_the_dims_it_was_extended_for():
    scaled = Dims(H, D, causal=True, extent=T, scale=3.0)
    q, k, v = jnp.asarray(np.random.default_rng(1).normal(size=(3, T, H, D)), jnp.float32)
    extended = pejax.extend_encoding(OWN, scaled, pejax.extensions.pi(factor=2))
    named = Encoding(distance_bias=distance_bias, dims=scaled)
    output = pejax.extend_encoding(named, scaled, pejax.extensions.pi(factor=2))
    np.testing.assert_array_equal(attend(extended, q, k, v), attend(output, q, k, v))
    with pytest.raises(ValueError, match="the dims that the encoding was made for"):
        attend(extended, q[:, :1], k[:, :1], v[:, :1])


def test_each_way_out_of_the_refusal_works():
    q, k, v = jnp.asarray(np.random.default_rng(2).normal(size=(3, T, H, D)), jnp.float32)
    at, half = jnp.asarray(RESTARTS), T // 2
    packed = attend(ROPE, q, k, v, positions=TokenPositions(at, segment_ids=pejax.segments_of_positions(at)))
    alone = [attend(ROPE, *(x[side] for x in (q, k, v))) for side in (slice(half), slice(half, T))]
    np.testing.assert_allclose(packed, jnp.concatenate(alone), atol=1e-6)
    one = attend(ROPE, q, k, v, positions=TokenPositions(at, order=jnp.arange(T)))
    np.testing.assert_allclose(jax.jit(lambda at: attend(ROPE, q, k, v, positions=at))(at), one, atol=1e-6)


def test_caches_and_positions_that_rise_are_read_as_before():
    q, k, v = jnp.asarray(np.random.default_rng(3).normal(size=(3, T, H, D)), jnp.float32)
    output, at = attend(ALIBI, q, k, v), jnp.arange(T)
    np.testing.assert_array_equal(attend(ALIBI, q, k, v, positions=at), attend(ALIBI, q, k, v, positions=at + 7))
    step = attend(ALIBI, q[3:4], k, v, positions=at[3:4], k_positions=at)
    np.testing.assert_allclose(step[0], output[3], atol=1e-6)
    assert follow_arrays(3 * at, (T,), causal=True, spans=True).order is None


COUNT = jax.jit(lambda at, ids: follow_arrays(TokenPositions(at, segment_ids=ids), (T,), causal=True, spans=True).order)


@given(st.lists(st.integers(-2, 30), min_size=T, max_size=T), st.lists(st.integers(0, 2), min_size=T, max_size=T))
def test_the_count_of_traced_positions_rises_and_keeps_distances(at, ids):
    at, ids = np.asarray(at), np.asarray(ids)
    count = np.asarray(COUNT(jnp.asarray(at), jnp.asarray(ids)))
    for segment in set(ids.tolist()) - {0}:
        mine, own = count[ids == segment], at[ids == segment]
        assert np.all(np.diff(mine) > 0)
        risen = np.diff(own) > 0
        np.testing.assert_array_equal(np.diff(mine)[risen], np.diff(own)[risen])


def test_a_count_that_would_not_fit_is_that_of_the_slots():
    far = jnp.asarray([0, 2**30, 0, 2**30, 0, 2**30, 0, 2**30])
    assert COUNT(far, jnp.ones(T, jnp.int32)).tolist() == list(range(T))
    most = jnp.asarray([-(2**31) + 1, 2**31 - 1, *range(2, T)])
    assert np.all(np.diff(np.asarray(COUNT(most, jnp.ones(T, jnp.int32)))) > 0)


def test_a_cache_takes_tokens_in_the_order_of_their_positions():
    model = Decoder(decoder(vocab=16, length=T, width=H * D, layers=1, heads=H), rngs=nnx.Rngs(0))
    ids, cache = jnp.ones((1, 4), jnp.int32), model.stack.empty_cache(1, T)
    with pytest.raises(ValueError, match=r"in the order of their positions, got 3 at token 1 and 0 at token 2"):
        model.cached(ids, cache, tokens=TokenPositions(jnp.asarray([2, 3, 0, 1])), extent=T)


def test_a_jump_between_the_largest_integers_begins_a_document():
    ends = jnp.asarray([2**31 - 1, -(2**31), 1 - 2**31, 5])
    assert pejax.segments_of_positions(ends).tolist() == [1, 2, 2, 3]


@pytest.mark.parametrize("positions", [jnp.arange(T), jnp.arange(2 * T).reshape(2, T)])
def test_positions_and_segments_need_not_both_be_batched(positions):
    q, k, v = jnp.asarray(np.random.default_rng(4).normal(size=(3, 2, T, H, D)), jnp.float32)
    segments = jnp.asarray([[1] * T, [1] * 3 + [2] * (T - 3)])
    segments = segments if positions.ndim == 1 else segments[1]
    run = lambda at, ids: attend(ALIBI, q, k, v, positions=TokenPositions(at, segment_ids=ids), window=3)
    np.testing.assert_allclose(jax.jit(run)(positions, segments), run(positions, segments), atol=1e-6)
