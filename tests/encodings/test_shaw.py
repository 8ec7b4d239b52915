"""Shaw: vectors for clipped distances on keys and values, against loops and transformers; nothing is T x S x D."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pejax import Dims, dot_product_attention, grid_positions, make_encoding
from pejax._attention.core.hooks import attention_hooks
from pejax._ops import clipped_lookup
from tests.support.biases import clipped, compiled, largest_intermediate, types_unchecked
from tests.support.cases import mostly_slow, slow
from tests.support.peers import peer

shaw_logits, shaw_values = compiled("shaw_logits"), compiled("shaw_values")

RNG = np.random.default_rng(0)
draw = lambda *shape: jnp.asarray(RNG.normal(size=shape), jnp.float32)


def test_logits_and_values_are_the_papers_loops():
    q, keys, values, m = draw(7, 2, 4), draw(5, 4), draw(5, 4), 2
    weights = jax.nn.softmax(draw(2, 7, 9))
    q_at, k_at = jnp.arange(3, 10), jnp.arange(9)
    logits = np.asarray(shaw_logits(q, q_at, k_at, keys, scale=0.3))
    output = np.asarray(shaw_values(weights, q_at, k_at, values))
    q64, keys64, values64, weights64 = (np.asarray(x, np.float64) for x in (q, keys, values, weights))
    expected = np.zeros((7, 2, 4))
    for h, i, j in np.ndindex(2, 7, 9):
        row = clipped(j - (i + 3), m)
        assert logits[h, i, j] == pytest.approx(0.3 * q64[i, h] @ keys64[row], abs=1e-6)
        expected[i, h] += weights64[h, i, j] * values64[row]
    np.testing.assert_allclose(output, expected, atol=1e-6)


@pytest.mark.slow
def test_a_grid_sums_one_term_an_axis():
    q, keys, values = draw(6, 1, 4), draw(2, 3, 4), draw(2, 3, 4)
    at, weights = grid_positions(2, 3), jax.nn.softmax(draw(1, 6, 6))
    for axis in (0, 1):
        only = jnp.zeros((2, 1, 1)).at[axis].set(1.0)
        one = shaw_logits(q, at[:, axis], at[:, axis], keys[axis])
        np.testing.assert_allclose(shaw_logits(q, at, at, only * keys), one, atol=1e-6)
        one = shaw_values(weights, at[:, axis], at[:, axis], values[axis])
        np.testing.assert_allclose(shaw_values(weights, at, at, only * values), one, atol=1e-6)


def test_values_are_linear_in_the_weights():
    at, table, (a, b) = jnp.arange(5), draw(7, 4), (draw(2, 5, 5), draw(2, 5, 5))
    mixed = shaw_values(2.0 * a - 3.0 * b, at, at, table)
    parts = 2.0 * shaw_values(a, at, at, table) - 3.0 * shaw_values(b, at, at, table)
    np.testing.assert_allclose(mixed, parts, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("clip", mostly_slow([(3, 1), (0, 2), (4, 0), (2, 2)], [(3, 1)]), ids=str)
def test_the_two_sides_may_be_clipped_at_two_distances(clip):
    """Also in attention, with gradients, and where the keys lie far to one side."""
    left, right = clip
    q, keys, values, weights = draw(7, 1, 4), draw(left + right + 1, 4), draw(left + right + 1, 4), draw(1, 7, 9)
    for begin in (-20, 0, 20):
        q_at, k_at = jnp.arange(3, 10), begin + jnp.arange(9)
        row = np.clip(np.asarray(k_at)[None] - np.asarray(q_at)[:, None], -left, right) + left
        logits = shaw_logits(q, q_at, k_at, keys, scale=1.0, clip=clip)
        np.testing.assert_allclose(logits[0], np.einsum("td,tsd->ts", q[:, 0], np.asarray(keys)[row]), atol=1e-5)
        output = shaw_values(weights, q_at, k_at, values, clip=clip)
        np.testing.assert_allclose(
            output[:, 0], np.einsum("ts,tsd->td", weights[0], np.asarray(values)[row]), atol=1e-5
        )
    encoding = make_encoding(f"shaw(clip={clip})", Dims(heads=1, head_dim=4))
    params = {"key_table": keys, "value_table": values}
    np.testing.assert_allclose(encoding.bias(params, q[:, 0], q[:, 0], q_at, k_at), 0.5 * logits[0], atol=1e-5)
    np.testing.assert_allclose(encoding.relative_values(params, weights[0], q_at, k_at), output[:, 0], atol=1e-5)
    slope = jax.grad(lambda table: shaw_logits(q, q_at, k_at, table, scale=1.0, clip=clip).sum())(keys)
    expected = np.zeros(keys.shape)
    np.add.at(expected, row, np.asarray(q)[:, 0, None])
    np.testing.assert_allclose(slope, expected, atol=1e-5)


@pytest.mark.parity
@pytest.mark.parametrize("clip", [(3, 3), (4, 2)], ids=str)
def test_attention_is_that_of_wav2vec2_bert(clip):
    torch, bert = peer("torch"), peer("transformers.models.wav2vec2_bert.modeling_wav2vec2_bert")
    torch.manual_seed(0)
    config = peer("transformers").Wav2Vec2BertConfig(
        hidden_size=16,
        num_attention_heads=4,
        position_embeddings_type="relative_key",
        left_max_position_embeddings=clip[0],
        right_max_position_embeddings=clip[1],
        attn_implementation="eager",
    )
    module = bert.Wav2Vec2BertSelfAttention(config).eval()
    x = torch.randn(1, 9, 16)
    with torch.no_grad():
        theirs = module(x, output_attentions=True)[1][0].numpy()
        q, k = (part(x)[0].view(9, 4, 4).numpy() for part in (module.linear_q, module.linear_k))
    table = jnp.asarray(module.distance_embedding.weight.detach().numpy())
    at = jnp.arange(9)
    logits = np.einsum("thd,shd->hts", q, k) / 2 + shaw_logits(jnp.asarray(q), at, at, table, clip=clip)
    np.testing.assert_allclose(jax.nn.softmax(logits), theirs, atol=1e-5)


@pytest.mark.slow
def test_fractional_positions_interpolate_between_two_rows():
    q, table, m = draw(1, 1, 4), draw(7, 4), 3
    q_at, k_at = jnp.zeros(1), jnp.asarray([-9.0, -3.0, -0.75, 0.0, 0.5, 2.25, 3.0, 9.0])
    y = np.asarray(q[0, 0] @ table.T)
    expected = np.interp(np.asarray(k_at), np.arange(-m, m + 1), y)
    np.testing.assert_allclose(shaw_logits(q, q_at, k_at, table, scale=1.0)[0, 0], expected, atol=1e-6)
    outputs = [shaw_values(jnp.ones((1, 1, 1)), q_at, at[None], table)[0, 0] for at in k_at]
    np.testing.assert_allclose(jnp.stack(outputs) @ q[0, 0], expected, atol=1e-6)
    slope = jax.jit(jax.grad(lambda at: shaw_logits(q, q_at, at, table, scale=1.0).sum()))(k_at)
    np.testing.assert_allclose(slope[2], y[3] - y[2], atol=1e-6)
    np.testing.assert_allclose(slope[5], y[6] - y[5], atol=1e-6)
    np.testing.assert_array_equal(slope[jnp.asarray([0, 7])], 0.0)


def test_nothing_is_as_large_as_tokens_x_tokens_x_channels():
    dims = Dims(heads=1, head_dim=64)
    encoding = make_encoding("shaw", dims)
    params = jax.eval_shape(encoding.init_layer, jax.random.key(0))["all"]
    tokens = 48
    q, weights, at = jnp.zeros((tokens, 64)), jnp.zeros((tokens, tokens)), jnp.arange(tokens)

    def total(params, q, weights, at):
        return encoding.bias(params, q, q, at, at).sum() + encoding.relative_values(params, weights, at, at).sum()

    for positions in (at, at.astype(jnp.float32)):
        size = largest_intermediate(jax.value_and_grad(total, (0, 1, 2)), params, q, weights, positions)
        assert tokens**2 <= size <= 4 * tokens**2


@pytest.mark.slow
def test_attention_adds_both_terms_with_the_scale_of_the_dims_and_shared_tables():
    dims = Dims(heads=4, head_dim=4, kv_heads=2, scale=0.7)
    encoding = make_encoding("shaw(clip=2)", dims)
    params = jax.jit(encoding.init_layer)(jax.random.key(0))
    assert {name: leaf.shape for name, leaf in params["all"].items()} == {"key_table": (5, 4), "value_table": (5, 4)}
    q, k, v, at = draw(6, 4, 4), draw(6, 2, 4), draw(6, 2, 4), jnp.arange(6)
    hooks = attention_hooks(encoding, params)
    ours = jax.jit(
        lambda q, k, v: dot_product_attention(q, k, v, positions=at, k_positions=at, scale=0.7, hooks=hooks)
    )(q, k, v)
    row = np.clip(np.arange(6)[None] - np.arange(6)[:, None], -2, 2) + 2
    keys, values = (np.asarray(params["all"][name], np.float64)[row] for name in ("key_table", "value_table"))
    for h in range(4):
        k_h, v_h, q_h = (np.asarray(x, np.float64) for x in (k[:, h // 2], v[:, h // 2], q[:, h]))
        logits = 0.7 * np.einsum("td,tsd->ts", q_h, k_h[None] + keys)
        weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        np.testing.assert_allclose(ours[:, h], np.einsum("ts,tsd->td", weights, v_h[None] + values), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(13, 11), slow((6, 30)), slow((30, 6)), (3, 4)], ids=str)
def test_picking_by_strips_is_picking_pair_by_pair(monkeypatch, shape):
    """Wherever the keys begin: before, across and after the queries; and the gradients are each other's transpose."""
    monkeypatch.setattr(clipped_lookup, "STRIP", 4)
    (t, s), m = shape, 2
    scores, weights = draw(t, 2 * m + 1), draw(t, s)

    @jax.jit
    def both(scores, weights, q_at, k_at):
        picked, back = jax.vjp(lambda scores: clipped_lookup.pick(scores, q_at, k_at), scores)
        collected, spread = jax.vjp(lambda weights: clipped_lookup.collect(2 * m + 1, weights, q_at, k_at), weights)
        return picked, spread(scores)[0], collected, back(weights)[0]

    for begin in range(-s - m - 1, t + m + 2):
        relative = np.arange(s) + begin - np.arange(t)[:, None]
        row = np.clip(relative, -m, m) + m
        picked, spread, collected, back = both(scores, weights, jnp.arange(t), begin + jnp.arange(s))
        expected = np.take_along_axis(np.asarray(scores), row, axis=1)
        np.testing.assert_array_equal(picked, expected)
        np.testing.assert_array_equal(spread, expected)
        expected = np.stack([np.where(row == r, weights, 0).sum(1) for r in range(2 * m + 1)], axis=1)
        np.testing.assert_allclose(collected, expected, atol=1e-5)
        np.testing.assert_allclose(back, expected, atol=1e-5)


def test_values_can_be_left_out():
    encoding = make_encoding("shaw(values=False)", Dims(heads=2, head_dim=4))
    assert encoding.relative_values is None
    assert list(jax.eval_shape(encoding.init_layer, jax.random.key(0))["all"]) == ["key_table"]


@pytest.mark.parametrize("clip", [0, (0, 0), (-1, 3)])
def test_a_clip_below_one_is_refused(clip):
    with pytest.raises(
        ValueError, match=re.escape(f"clip must be at least 1, or two numbers of at least 0 and not both 0, got {clip}")
    ):
        make_encoding(f"shaw(clip={clip})", Dims(heads=2, head_dim=4))


def test_rows_that_are_not_those_of_the_clip_are_refused():
    with pytest.raises(ValueError, match=re.escape("must have 5 rows, one per distance, with clip=(3, 1), got 7")):
        shaw_logits(jnp.zeros((3, 1, 4)), jnp.arange(3), jnp.arange(3), jnp.zeros((7, 4)), clip=(3, 1))


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((4, 4), "2m \\+ 1 rows with m at least 1, got 4"),
        ((1, 4), "got 1"),
        ((2, 3, 4), "_table must be an array of floats"),
    ],
)
def test_a_table_of_the_wrong_shape_is_refused(shape, words):
    at, table = jnp.arange(3), jnp.zeros(shape)
    with types_unchecked(), pytest.raises(ValueError, match=words):
        shaw_logits(jnp.zeros((3, 1, 4)), at, at, table)
    with types_unchecked(), pytest.raises(ValueError, match=words):
        shaw_values(jnp.zeros((1, 3, 3)), at, at, table)
