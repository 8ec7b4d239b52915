"""Transformer-XL: the fixed sinusoid of the distance, against loops, the official relative shift and transformers."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

from pejax import Dims, Hooks, TokenPositions, dot_product_attention, grid_positions, make_encoding
from pejax._attention.core.hooks import attention_hooks
from pejax._attention.xla import cpu
from tests.support.biases import compiled, largest_intermediate, types_unchecked
from tests.support.peers import peer

transformer_xl_logits = compiled("transformer_xl_logits")

RNG = np.random.default_rng(0)
draw = lambda *shape: jnp.asarray(RNG.normal(size=shape), jnp.float32)
double = lambda *arrays: [np.asarray(array, np.float64) for array in arrays]
T, S, H, D, C = 5, 8, 2, 4, 6
QUICK = {"xla_backend_optimization_level": "0"}  # most of the time goes into compiling


def sinusoid(distance, channels, base=10000.0):
    """Return [sin, cos] of the distances at the float32 frequencies, in float64: `(..., C)`."""
    frequencies = np.float32(base ** (-2.0 * np.arange(channels // 2) / channels)).astype(np.float64)
    angles = np.multiply.outer(np.asarray(distance, np.float64), frequencies)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)


def parameters(axes=()):
    return draw(H, D), draw(H, *axes, D), draw(H, *axes, C, D)


def test_logits_are_the_papers_loop_for_any_positions():
    q, k, (u, v, w_r) = draw(T, H, D), draw(S, H, D), parameters()
    q_at, k_at = jnp.asarray([3, 1000, 0, 7, 70000]), jnp.asarray([0, 5, 69999, 2, 1, 1, 999, 12])
    logits = transformer_xl_logits(q, k, q_at, k_at, u, v, w_r, scale=0.3)
    q64, k64, u64, v64, w64 = double(q, k, u, v, w_r)
    r = sinusoid(np.asarray(q_at)[:, None] - np.asarray(k_at)[None], C)
    for h, i, j in np.ndindex(H, T, S):
        term = (q64[i, h] + v64[h]) @ (r[i, j] @ w64[h]) + u64[h] @ k64[j, h]
        assert logits[h, i, j] == pytest.approx(0.3 * term, abs=2e-5)


def test_logits_are_the_official_relative_shift():
    """Keys are 3 cached tokens and the 5 queries' own; the shift is right where no key is after its query."""
    q, k, (u, v, w_r) = draw(T, H, D), draw(S, H, D), parameters()
    q64, k64, u64, v64, w64 = double(q, k, u, v, w_r)
    memory = S - T
    r = np.einsum("jc,hcd->jhd", sinusoid(np.arange(S - 1, -1, -1), C), w64)
    content = np.einsum("ihd,jhd->hij", q64 + u64, k64)
    position = np.einsum("ihd,jhd->hij", q64 + v64, r)
    padded = np.concatenate([np.zeros((H, T, 1)), position], axis=-1)
    shifted = padded.reshape(H, S + 1, T)[:, 1:].reshape(H, T, S)
    official = (content + shifted) / np.sqrt(D)
    ours = transformer_xl_logits(q, k, memory + jnp.arange(T), jnp.arange(S), u, v, w_r)
    ours = np.asarray(ours, np.float64) + np.einsum("ihd,jhd->hij", q64, k64) / np.sqrt(D)
    seen = np.tril(np.ones((T, S), bool), memory)
    np.testing.assert_allclose(ours[:, seen], official[:, seen], atol=1e-5)


@pytest.mark.slow
def test_a_grid_sums_one_term_an_axis_and_the_key_term_once():
    at, q, k, (u, v, w_r) = grid_positions(2, 3), draw(6, H, D), draw(6, H, D), parameters((2,))
    none = jnp.zeros((H, D))
    one = [transformer_xl_logits(q, k, at[:, a], at[:, a], none, v[:, a], w_r[:, a]) for a in (0, 1)]
    keys = D**-0.5 * np.einsum("hd,jhd->hj", u, k)[:, None]
    logits = transformer_xl_logits(q, k, at, at, u, v, w_r)
    np.testing.assert_allclose(logits, one[0] + one[1] + keys, atol=2e-5)


def test_query_heads_share_key_heads_in_order():
    q, k, (u, v, w_r), at = draw(T, H, D), draw(T, 1, D), parameters(), jnp.arange(T)
    shared = transformer_xl_logits(q, k, at, at, u, v, w_r)
    np.testing.assert_allclose(shared, transformer_xl_logits(q, jnp.tile(k, (1, H, 1)), at, at, u, v, w_r), atol=1e-6)


@pytest.mark.parity
def test_attention_is_that_of_wav2vec2_conformer():
    torch, conformer = peer("torch"), peer("transformers.models.wav2vec2_conformer.modeling_wav2vec2_conformer")
    torch.manual_seed(0)
    config = peer("transformers").Wav2Vec2ConformerConfig(
        hidden_size=16, num_attention_heads=4, position_embeddings_type="relative", attn_implementation="eager"
    )
    module = conformer.Wav2Vec2ConformerSelfAttention(config).eval()
    x = torch.randn(1, 9, 16)
    with torch.no_grad():
        torch.nn.init.normal_(module.pos_bias_u)
        torch.nn.init.normal_(module.pos_bias_v)
        embedded = conformer.Wav2Vec2ConformerRelPositionalEmbedding(config)(x)
        theirs = module(x, relative_position_embeddings=embedded, output_attentions=True)[1][0].numpy()
        q, k = (part(x)[0].view(9, 4, 4).numpy() for part in (module.linear_q, module.linear_k))
        u, v, w = (p.numpy() for p in (module.pos_bias_u, module.pos_bias_v, module.linear_pos.weight))
    sines_first = np.concatenate([w[:, 0::2], w[:, 1::2]], axis=1)
    w_r = sines_first.reshape(4, 4, 16).transpose(0, 2, 1)
    at = jnp.arange(9)
    bias = transformer_xl_logits(*(jnp.asarray(x) for x in (q, k)), at, at, *(jnp.asarray(x) for x in (u, v, w_r)))
    logits = np.einsum("thd,shd->hts", q, k) / 2 + bias
    np.testing.assert_allclose(jax.nn.softmax(logits), theirs, atol=1e-5)


def test_phases_are_exact_far_from_the_origin():
    """A shift of ten million tokens is nothing: the sinusoid is of the distance, never a learned table."""
    q, k, (u, v, w_r), at = draw(T, H, D), draw(T, H, D), parameters(), jnp.arange(T)
    logits = transformer_xl_logits(q, k, at, at, u, v, w_r)
    far = transformer_xl_logits(q, k, at + 10_000_019, at + 10_000_019, u, v, w_r)
    np.testing.assert_allclose(far, logits, atol=2e-5)


def test_gradients_are_those_of_the_loop():
    q, k, (u, v, w_r) = draw(T, H, D), draw(T, H, D), parameters()
    at = jnp.arange(T, dtype=jnp.float32)
    total = lambda q, at, w_r: jnp.sum(jnp.sin(transformer_xl_logits(q, k, at, at, u, v, w_r)))

    def plain(q, at, w_r):
        frequencies = jnp.asarray(10000.0 ** (-2.0 * np.arange(C // 2) / C), jnp.float32)
        angles = (at[:, None] - at[None])[..., None] * frequencies
        r = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
        term = jnp.einsum("ihd,hcd,ijc->hij", q + v, w_r, r) + jnp.einsum("hd,jhd->hj", u, k)[:, None]
        return jnp.sum(jnp.sin(0.5 * term))

    for ours, theirs in zip(*(jax.jit(jax.grad(f, (0, 1, 2)))(q, at, w_r) for f in (total, plain)), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_nothing_is_as_large_as_tokens_x_tokens_x_channels():
    encoding = make_encoding("transformer_xl", Dims(heads=1, head_dim=64))
    params = {"u": jnp.zeros(64), "v": jnp.zeros(64), "w_r": jnp.zeros((64, 64))}
    tokens = 96
    q, at = jnp.zeros((tokens, 64)), jnp.arange(tokens)
    total = lambda params, q: encoding.bias(params, q, q, at, at).sum()
    assert largest_intermediate(jax.value_and_grad(total, (0, 1)), params, q) <= 2 * tokens**2


def sides(t, s):
    """Yield tokens of queries and of keys, the queries being the last: three that count on, then two that do not."""
    index = jnp.broadcast_to(jnp.arange(s), (2, s))
    one = jnp.ones((2, s), jnp.int32)
    distances, fields = jnp.asarray([[0], [1]]), (index, one > 0, one)
    for k in (
        TokenPositions(index + 7, *fields),
        TokenPositions(index % 75, index, one > 0, 1 + index // 75),
        TokenPositions(index, index, index > s - t, one),
        TokenPositions(index**2 % 83, *fields),
    ):
        yield jax.tree.map(lambda x: x[:, -t:], k), k
    q = jax.tree.map(lambda x: x[:, -t:], k)
    yield q._replace(positions=index[:, :t] + distances), TokenPositions(index, *fields)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("t", "s", "backward", "options"),
    [(130, 150, 80, {"window": 40}), (90, 90, 40, {"causal": True, "soft_cap": 3.0})],
    ids=str,
)
def test_the_cpu_core_has_the_output_and_gradients_of_the_bias_for_any_positions(t, s, backward, options):
    """Its tiles read vectors where positions count on by one; those of 72 queries have two strips, the last in part."""
    encoding = make_encoding("transformer_xl", Dims(heads=4, head_dim=D, width=16, kv_heads=2))
    params = jax.tree.map(lambda x: 20.0 * x, encoding.init_layer(jax.random.key(0)))
    rng = np.random.default_rng(1)
    q, k, v, cotangent = (jnp.asarray(rng.normal(size=(2, *n, D)), "f") for n in ((t, 4), (s, 2), (s, 2), (t, 4)))

    def everything(implementation, q_tokens, k_tokens):
        def run(params, *arrays):
            sides = {"positions": q_tokens, "k_positions": k_tokens}
            return dot_product_attention(
                *arrays, **sides, hooks=attention_hooks(encoding, params), **options, implementation=implementation
            )

        output, pull = jax.vjp(run, params, q, k, v)
        return output, pull(cotangent)

    everything = jax.jit(everything, static_argnums=0, compiler_options=QUICK)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "BLOCK", 80)
        patch.setattr(cpu, "BACKWARD", backward)
        for tokens in sides(t, s):
            ours, plain = everything("cpu", *tokens), everything("reference", *tokens)
            chex.assert_trees_all_close(ours, plain, rtol=1e-4, atol=1e-4)


def test_vectors_of_the_wrong_shape_are_refused():
    q, hook = (
        jnp.zeros((32, 1, D)),
        lambda params, relative: (jnp.zeros((len(relative), D)), jnp.zeros(D), jnp.zeros(())),
    )
    hooks = Hooks(bias=Partial(lambda params, q, k, *at: q @ k.T, {}), relative_keys=Partial(hook, {}))
    with pytest.raises(ValueError, match=r"relative_keys hook .* must return .R, D., .D,., .D,. = .* got"):
        dot_product_attention(q, q, q, positions=jnp.arange(32), hooks=hooks, implementation="cpu")


@pytest.mark.slow
def test_memory_is_linear_in_the_length_with_vectors():
    encoding = make_encoding("transformer_xl", Dims(heads=1, head_dim=8))
    params = encoding.init_layer(jax.random.key(0))

    def temporary(length):
        def total(params, q):
            hooks = attention_hooks(encoding, params)
            return dot_product_attention(q, q, q, positions=jnp.arange(length), hooks=hooks, implementation="cpu").sum()

        shape = jax.ShapeDtypeStruct((length, 1, 8), jnp.float32)
        compiled = jax.jit(jax.grad(total, (0, 1)), compiler_options=QUICK).lower(params, shape).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporary(2048) < 2.1 * temporary(1024)


def test_parameters_start_small_in_every_layer():
    encoding = make_encoding("transformer_xl", Dims(heads=4, head_dim=8, axes=2))
    params = jax.jit(encoding.init_layer)(jax.random.key(0))["heads"]
    assert {name: leaf.shape for name, leaf in params.items()} == {
        "u": (4, 8),
        "v": (4, 2, 8),
        "w_r": (4, 2, 32, 8),
    }
    assert float(np.std(params["w_r"])) == pytest.approx(0.02, rel=0.05)


def test_the_factory_takes_scale_from_the_dims_and_base_from_its_argument():
    q, k, (u, v, w_r), at = draw(T, H, D), draw(T, H, D), parameters(), jnp.arange(T)
    encoding = make_encoding("transformer_xl(base=100)", Dims(H, D, width=C, scale=0.7))
    params = {"u": u, "v": v, "w_r": w_r}
    ours = jax.jit(jax.vmap(lambda params, q, k: encoding.bias(params, q, k, at, at), (0, 1, 1)))(params, q, k)
    logits = transformer_xl_logits(q, k, at, at, u, v, w_r, scale=0.7, base=100.0)
    np.testing.assert_allclose(ours, logits, atol=1e-5)
    loop = np.einsum("ihd,hcd,ijc->hij", q + v, w_r, sinusoid(at[:, None] - at[None], C, base=100.0))
    np.testing.assert_allclose(logits, 0.7 * (loop + np.einsum("hd,jhd->hj", u, k)[:, None]), atol=2e-5)


@pytest.mark.parametrize(
    ("spec", "width", "words"),
    [("transformer_xl", 9, "even width for its sinusoid, got 9"), ("transformer_xl(base=0)", 8, "base must be")],
)
def test_bad_options_are_refused(spec, width, words):
    with pytest.raises(ValueError, match=words):
        make_encoding(spec, Dims(1, width))


def test_bad_shapes_are_refused():
    at, (u, v, w_r) = jnp.arange(T), parameters()
    q, k = draw(T, H, D), draw(T, 3, D)
    with pytest.raises(ValueError, match="heads must be a multiple of key heads, got 2 and 3"):
        transformer_xl_logits(q, k, at, at, u, v, w_r)
    with types_unchecked(), pytest.raises(ValueError, match="v must be an array of floats \\(H, \\*A, D\\)"):
        transformer_xl_logits(q, q, jnp.zeros((T, 2)), jnp.zeros((T, 2)), u, v, w_r)
