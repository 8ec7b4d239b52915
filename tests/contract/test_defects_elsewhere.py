"""Defects that other libraries have or had, and the right result here: a test for each.

Further ones are tested where their subject is: a loader that rotates DINOv3 in bfloat16, one that resizes tables with
another bicubic kernel and a cache of grids by the number of patches in `interop/test_vision_numpy.py`; sinks, windows
and truncation left out in `interop/test_mistakes.py`; a decoding step that takes its own length for that of the text in
`models/test_nnx_attention.py`; sinks that a fused kernel refuses in `attention/test_sink.py`;
one slope for all layers of LookHere in `encodings/test_lookhere.py`.
"""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import pejax
from pejax.interop import rope_from_config, source_from_config
from pejax.models import attention_module

BASE, PAIRS, TRAINED = 1e4, 64, 4096
ROTARY = pejax.Rotary(BASE, 2 * PAIRS)


def frequencies(base: float = BASE) -> np.ndarray:
    return base ** (-np.arange(PAIRS) / PAIRS)


def encoding(spec: str, **dims):
    dims = {"heads": 2, "head_dim": 8, "axes": 1, "extent": 64, **dims}
    return pejax.make_encoding(spec, pejax.Dims(**dims))


def test_a_second_base_has_a_table_of_its_own():
    """A cache of cosines by size and type alone gives the second module the table of the first (equinox)."""
    x = jax.random.normal(jax.random.key(0), (1, 4, 2, 8))
    near, far = (encoding(f"rope(base={base})").rotate({}, x, jnp.arange(4)) for base in (1e4, 1e2))
    expected = pejax.rope_apply(x, jnp.arange(4), pejax.rope_frequencies(8, base=100.0))
    np.testing.assert_array_equal(far, expected)
    assert np.max(np.abs(far - near)) > 0.1


def test_dynamic_ntk_leaves_the_fastest_pair_alone():
    """All frequencies are divided alike, the fastest by 4.09 for a factor of 4 (keras-hub)."""
    plain, extend = pejax.rope_frequencies(2 * PAIRS), pejax.functions.extend_dynamic_ntk
    result, _ = extend(plain, ROTARY._replace(length=TRAINED), trained_length=TRAINED, factor=4.0)
    np.testing.assert_array_equal(result, np.float32(frequencies()))
    result, _ = extend(plain, ROTARY._replace(length=4 * TRAINED), trained_length=TRAINED, factor=4.0)
    larger = BASE * (4.0 * 4 - 3) ** (PAIRS / (PAIRS - 1))
    assert result[0] == 1.0
    np.testing.assert_allclose(result, frequencies(larger), rtol=1e-5)


def test_yarn_leaves_fast_pairs_alone_and_divides_slow_ones_once():
    """Other ends of the ramp, slow pairs divided twice, a root of the factor (levanter), no rounding (keras-hub)."""
    result, factor = pejax.extend_yarn(pejax.rope_frequencies(2 * PAIRS), ROTARY, trained_length=TRAINED, factor=4.0)
    turns = lambda count: 2 * PAIRS * np.log(TRAINED / (count * 2 * np.pi)) / (2 * np.log(BASE))
    low, high = int(np.floor(turns(32))), int(np.ceil(turns(1)))
    assert (low, high) == (20, 46)
    ratio = np.asarray(result, np.float64) / np.float32(frequencies())
    np.testing.assert_allclose(ratio[: low + 1], 1.0, rtol=1e-6)
    np.testing.assert_allclose(ratio[high:], 0.25, rtol=1e-6)
    middle = (33 - low) / (high - low)
    np.testing.assert_allclose(ratio[33], 1 - 0.75 * middle, rtol=1e-6)
    np.testing.assert_allclose(factor, 0.1 * np.log(4.0) + 1, rtol=1e-6)


@pytest.mark.parametrize("extend", ["none", "yarn(factor=4)"])
def test_positions_beyond_the_trained_length_turn_further(extend):
    """Positions are clipped at the trained length (keras-hub), or the rows of a table of phases run out (maxtext)."""
    x = jnp.ones((1, 3, 1, 8))
    far = jnp.array([63, 200, 900])
    made = pejax.make_encoding("rope", pejax.Dims(heads=1, head_dim=8, axes=1, extent=64), extend)
    result = np.asarray(made.rotate({}, x, far), np.float64)[0, :, 0]
    turn = np.angle((result[1:, 0] + 1j * result[1:, 1]) / (result[0, 0] + 1j * result[0, 1]))
    np.testing.assert_allclose(turn, np.angle(np.exp(1j * np.array([137.0, 837.0]))), atol=1e-3)


@pytest.mark.slow
def test_the_factor_of_llama_3_is_that_of_the_config():
    """A factor of 8 is written into the code (maxtext); another model's base, and no scaling (tunix)."""
    scaling = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 8192}  # fmt: skip
    config = {"hidden_size": 2048, "num_attention_heads": 32, "max_position_embeddings": 131072, "rope_theta": 500000.0}
    pe = rope_from_config({**config, "rope_scaling": scaling}, pairing="half")
    assert dict(pe.options)["base"] == 500000.0
    dims = pejax.Dims(heads=32, head_dim=64, axes=1, extent=131072)
    x = jnp.zeros((1, 1, 1, 64)).at[..., 31].set(1.0)  # in the slowest pair; the halves of the head are paired
    turned = np.asarray(pejax.make_encoding(pe, dims).rotate({}, x, jnp.array([1000])))[0, 0, 0]
    slowest = 500000.0 ** (-62 / 64) / 32
    np.testing.assert_allclose(np.arctan2(turned[63], turned[31]), 1000 * slowest, rtol=1e-4)


def test_slopes_of_twelve_heads_are_those_of_eight_and_of_sixteen():
    """Slopes are 2^(-8h/n) for any number n of heads (EasyDeL, attention-gym)."""
    first, between = 2.0 ** -np.arange(1, 9), 2.0 ** -(np.arange(4) + 0.5)
    np.testing.assert_allclose(pejax.alibi_slopes(12), np.concatenate([first, between]), rtol=1e-6)
    assert np.max(np.abs(np.asarray(pejax.alibi_slopes(12)) - 2.0 ** (-8 * np.arange(1, 13) / 12))) > 0.2


def test_no_key_has_a_positive_bias_without_a_causal_mask():
    """Keys after the query gain by their distance (attention-gym)."""
    place = jnp.arange(9)
    bias = pejax.alibi_bias(place, place, pejax.alibi_slopes(3))
    np.testing.assert_array_equal(bias, jnp.swapaxes(bias, 1, 2))
    assert float(bias.max()) == 0.0
    assert float(bias.min()) == -8 * float(pejax.alibi_slopes(3).max())


@pytest.mark.slow
def test_the_last_keys_do_not_tie_in_bfloat16():
    """The bias is a slope times a position, rounded to bfloat16: 641 values for 2,048 keys (BLOOM in transformers)."""
    length, slope = 2048, float(pejax.alibi_slopes(2)[0])
    made = encoding("alibi", extent=length)
    narrow = lambda *shape: jnp.zeros(shape, jnp.bfloat16)
    v = narrow(1, length, 2, 8).at[0, -4:, :, :4].set(jnp.eye(4, dtype=jnp.bfloat16)[:, None])
    q, k = narrow(1, 1, 2, 8), narrow(1, length, 2, 8)
    last = pejax.TokenPositions(jnp.array([length - 1]))
    out = pejax.attend(made, q, k, v, positions=last, k_positions=pejax.TokenPositions(jnp.arange(length)))
    weights = np.asarray(out, np.float64)[0, 0, 0, :4]
    exact = np.exp(-slope * np.arange(4)[::-1])
    np.testing.assert_allclose(weights, exact * (1 - np.exp(-slope)), rtol=1e-2)
    rounded = np.asarray(jnp.bfloat16(slope) * jnp.arange(length, dtype=jnp.bfloat16))
    assert len(np.unique(rounded)) == 641
    assert len(np.unique(rounded[-4:])) == 1


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_a_pair_turns_by_one_frequency(pairing):
    """Neighboring channels are rotated by the frequencies of halves, so that lengths are not kept (V-JEPA 2)."""
    x = jax.random.normal(jax.random.key(1), (1, 5, 1, 8))
    result = np.asarray(pejax.rope_apply(x, jnp.arange(5), pejax.rope_frequencies(8), pairing=pairing), np.float64)
    pairs = lambda x: x.reshape(1, 5, 1, *((4, 2) if pairing == "interleaved" else (2, 4)))
    axis = -1 if pairing == "interleaved" else -2
    lengths = lambda x: np.linalg.norm(pairs(np.asarray(x, np.float64)), axis=axis)
    np.testing.assert_allclose(lengths(result), lengths(x), rtol=1e-6)
    tiled = np.tile(np.asarray(pejax.rope_frequencies(8), np.float64), 2) * np.arange(5)[:, None, None]
    even, odd = np.asarray(x, np.float64)[..., ::2], np.asarray(x, np.float64)[..., 1::2]
    crossed = np.stack([-odd, even], axis=-1).reshape(x.shape)
    wrong = np.asarray(x) * np.cos(tiled) + crossed * np.sin(tiled)
    assert np.max(np.abs(np.linalg.norm(wrong, axis=-1) - np.linalg.norm(x, axis=-1))) > 0.05


@pytest.mark.slow
def test_the_largest_exponent_of_slopes_is_that_of_the_config():
    """MPT's `alibi_bias_max` is read and not used (transformers)."""
    config = {"model_type": "mpt", "d_model": 32, "n_heads": 4, "n_layers": 1, "vocab_size": 97, "max_seq_len": 64,
              "expansion_ratio": 2, "attn_config": {"alibi": True, "alibi_bias_max": 16}}  # fmt: skip
    (layer,) = source_from_config(config).config.layers
    assert str(layer.attention.pe) == "alibi(bias_max=16.0)"
    made = encoding(layer.attention.pe, heads=4)
    nothing, v = jnp.zeros((1, 2, 4, 8)), jnp.zeros((1, 2, 4, 8)).at[0, 0].set(1.0)
    first = np.asarray(pejax.attend(made, nothing, nothing, v))[0, 1, :, 0]
    slopes = 2.0 ** -np.array([4, 8, 12, 16])
    np.testing.assert_allclose(np.log(1 / first - 1), slopes, atol=1e-6)


def test_truncation_of_nested_parameters_is_read():
    """`truncate` is looked for beside the parameters of the layer types, where it is not (transformers)."""
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 4096}
    config = {"hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 16384,
              "layer_types": ["full_attention"]}  # fmt: skip
    nested = {"rope_parameters": {"full_attention": {**yarn, "truncate": False}}}
    assert "truncate=False" in str(rope_from_config({**config, **nested}, "full_attention", pairing="half"))


NEEDS_ROPE = pytest.mark.skipif(not hasattr(nnx, "RoPE"), reason="this Flax has no nnx.RoPE")
"""Mark of the rows of a table in docs/known-traps.md: where one fails because Flax is right now, take the row out."""


def flax_layer(attend, **options):
    return nnx.MultiHeadAttention(4, 64, decode=False, attention_fn=attend, rngs=nnx.Rngs(0), **options)


def flax_rope():
    return functools.partial(nnx.dot_product_attention_with_rope, rope=nnx.RoPE())


def pejax_rope(**dims):
    made = encoding("rope(pairing='half')", heads=4, head_dim=16, **dims)
    return attention_module(made, None, nnx.Rngs(1))


@pytest.mark.slow
@NEEDS_ROPE
@pytest.mark.parametrize("start", [10**5, 10**6, 10**7])
def test_angles_at_long_positions(start):
    """Flax's are products in float32. Frequencies in float32 are off by themselves, in both, as float64 shows."""
    at, width = np.arange(start, start + 4), 64
    theirs = 1.0 / (10000.0 ** (jnp.arange(0.0, width, 2) / width))
    ours = pejax.rope_frequencies(width)
    exact = 10000.0 ** (-np.arange(0, width, 2) / width)

    def error(rotated, frequencies):
        angles = at[:, None] * np.asarray(frequencies, np.float64)
        cos, sin = np.cos(angles), np.sin(angles)
        return np.abs(np.asarray(rotated, np.float64) - np.concatenate([cos - sin, cos + sin], -1)).max()

    x = jnp.ones((1, 4, width))
    by_flax = nnx.RoPE()(x, jnp.asarray(at, jnp.float32))[0]
    by_pejax = pejax.rope_apply(x[:, :, None], jnp.asarray(at), ours, pairing="half")[0, :, 0]
    assert error(by_flax, theirs) > 2e-8 * start
    assert error(by_pejax, ours) < 5e-7
    assert error(by_pejax, exact) < 2e-8 * start


@pytest.mark.slow
@NEEDS_ROPE
def test_the_type_of_queries_stays():
    x = jnp.ones((1, 4, 2, 16), jnp.bfloat16)
    with jax.numpy_dtype_promotion("standard"):
        assert nnx.RoPE()(x[:, :, 0]).dtype == jnp.float32
    assert pejax.rope_apply(x, jnp.arange(4)).dtype == jnp.bfloat16


@pytest.mark.parametrize("positions", [jnp.arange(6), jnp.asarray([[0, 1, 2, 0, 1, 2]] * 2)], ids=["(T,)", "(B, T)"])
@pytest.mark.slow
@NEEDS_ROPE
def test_input_positions_of_a_layer(positions):
    x = jax.random.normal(jax.random.key(0), (2, 6, 64))
    with pytest.raises(ValueError, match="vmap got inconsistent sizes"):
        flax_layer(flax_rope())(x, input_positions=positions)
    layer = flax_layer(pejax_rope())
    q, k, v = layer.query(x), layer.key(x), layer.value(x)
    q, k = (pejax.rope_apply(y, positions, pairing="half") for y in (q, k))
    want = layer.out(jax.nn.dot_product_attention(q, k, v))
    np.testing.assert_allclose(layer(x, input_positions=positions), want, atol=1e-6)


@pytest.mark.slow
@NEEDS_ROPE
def test_a_step_of_a_cache_has_the_angle_of_its_position():
    """Flax turns the query of a step, and all keys of the cache, by their places in these arrays: the query by 0."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 6, 64)), jnp.float32)

    def difference(attend, **positions):
        layer = flax_layer(attend)
        full = layer(x, mask=nnx.make_causal_mask(jnp.ones((2, 6))))
        layer.init_cache(x.shape)
        step = lambda i: layer(x[:, i : i + 1], decode=True, **{name: of(i) for name, of in positions.items()})
        return float(jnp.abs(jnp.concatenate([step(i) for i in range(6)], axis=1) - full).max())

    assert difference(flax_rope()) > 0.5
    assert difference(pejax_rope(causal=True), input_positions=lambda i: jnp.asarray([i])) < 1e-6


@pytest.mark.slow
@NEEDS_ROPE
def test_what_a_rotation_can_be():
    """No part of the channels, no pairs of neighbors, no axes, no extension."""
    assert set(inspect.signature(nnx.RoPE.__init__).parameters) == {"self", "theta", "embedding_size", "max_seq_len"}
    ours = set(inspect.signature(pejax.encodings.rope).parameters)
    assert {"rotary_dim", "pairing", "sections", "extend"} <= ours
