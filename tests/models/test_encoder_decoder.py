"""The encoder-decoder: cached = whole, padded = not, four policies of cross-attention, parameters for each part."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from pejax import ENCODINGS, Dims, TokenPositions
from pejax.models import EncoderDecoder, Sampling, encoder_decoder, generate_answers
from pejax.models.networks.encoder_decoder import EncoderOutput
from pejax.models.stack.cross_positions import CROSS, cross_encoding
from tests.support.cases import slow
from tests.support.penalties import penalized_by_loops

TINY = {
    "vocab": 13, "source_length": 8, "target_length": 6, "width": 16, "encoder_layers": 1, "decoder_layers": 1,
    "heads": 2, "hidden": 16,
}  # fmt: skip
LENGTHS = (3, 7)

quickly = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


@functools.cache
def made(**options) -> tuple[encoder_decoder, object, object]:
    """Return a tiny model, split, every parameter drawn: no zero hides what it multiplies."""
    config = encoder_decoder(**{**TINY, **options})
    static, shapes = nnx.split(nnx.eval_shape(lambda: EncoderDecoder(config, rngs=nnx.Rngs(0))))
    rng = np.random.default_rng(0)

    def draw(path, leaf):
        centre = 1.0 if "scale" in jax.tree_util.keystr(path) else 0.0
        return jnp.asarray(centre + 0.3 * rng.normal(size=leaf.shape), leaf.dtype)

    return config, static, jax.tree_util.tree_map_with_path(draw, shapes)


@pytest.fixture(autouse=True)
def compiled_in_a_hurry():
    """What is compiled here runs once: do not optimise it."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


def model_of(**options) -> EncoderDecoder:
    _, static, params = made(**options)
    return nnx.merge(static, params)


def ids(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).integers(TINY["vocab"], size=shape), jnp.int32)


SOURCE, TARGET = ids(2, 8), ids(2, 4, seed=1)
SEGMENTS = jnp.asarray([[1] * n + [0] * (8 - n) for n in LENGTHS], jnp.int32)


def by_token(model: EncoderDecoder) -> jax.Array:
    """Return the logits of a padded batch, one target token after the other."""
    encoded = model.encode(SOURCE, SEGMENTS)
    count = TARGET.shape[1]

    def step(cache, at):
        token, position = at
        here = TokenPositions(jnp.broadcast_to(position, (2, 1)))
        logits, cache = model.cached(token[:, None], cache, encoded, tokens=here, extent=count)
        return cache, logits[:, 0]

    steps = TARGET.T, jnp.arange(count, dtype=jnp.int32)
    return jax.lax.scan(step, model.empty_cache(encoded, count), steps)[1].swapaxes(0, 1)


@functools.partial(quickly, static_argnums=0)
def alone_and_cached(static, params):
    """Return the first example's logits, by itself in one pass, and from a padded batch with a cache."""
    model = nnx.merge(static, params)
    return model(SOURCE[:1, : LENGTHS[0]], TARGET[:1]), by_token(model)[:1]


OFTEN = [
    ("learned", "none"), ("rope", "query_only"), ("t5", "separate"), ("rope", "unified"),
    ("fire", "unified"), ("shaw", "unified"),
]  # fmt: skip
SELDOM = [
    (pe, cross) for pe in ENCODINGS for cross in CROSS if cross != "query_only" or pe.startswith("rope")
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pe", "cross"), [pytest.param(*case, marks=() if i < 1 else pytest.mark.slow) for i, case in enumerate(OFTEN)]
)
def test_cached_and_padded_is_whole_and_not(pe, cross):
    _, static, params = made(pe=pe, cross=cross)
    alone, cached = alone_and_cached(static, params)
    assert float(jnp.abs(alone).max()) > 0.5
    np.testing.assert_allclose(cached, alone, rtol=1e-5, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(("pe", "cross"), sorted(set(SELDOM) - set(OFTEN)))
def test_every_encoding_cached_and_padded_is_whole_and_not(pe, cross):
    test_cached_and_padded_is_whole_and_not(pe, cross)


@pytest.mark.parametrize("extend", [slow("dynamic_ntk"), pytest.param("yarn(factor=4)+log_n", marks=pytest.mark.long)])
def test_what_follows_the_length_follows_each_examples_own(extend):
    """All but one of eight source tokens are padding where the trained length is two."""
    _, static, params = made(pe="rope", cross="unified", extend=extend, source_length=2, target_length=2)
    alone, cached = alone_and_cached(static, params)
    np.testing.assert_allclose(cached, alone, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_every_option_at_once():
    options = {"style": "gpt2", "kv_heads": 1, "qk_norm": True, "soft_cap": 5.0, "tied": True, "decoder_layers": 2}
    _, static, params = made(pe="rope", cross="unified", **options)
    alone, cached = alone_and_cached(static, params)
    np.testing.assert_allclose(cached, alone, rtol=1e-5, atol=2e-5)


@pytest.mark.long
def test_bfloat16_is_near_float32():
    wide, narrow = (
        alone_and_cached(*made(pe="rope", cross="unified", dtype=dtype)[1:]) for dtype in ("float32", "bfloat16")
    )
    assert narrow[0].dtype == jnp.float32
    for item, other in zip(wide, narrow, strict=True):
        np.testing.assert_allclose(item, other, rtol=0, atol=0.1)
    assert float(jnp.abs(wide[0] - narrow[0]).max()) > 1e-4


HEADS, WIDTH = 2, 4
Q_IN, K_IN = np.random.default_rng(5).normal(size=(2, 2, 3, 2 * WIDTH))


def turned(x: np.ndarray, position: float) -> np.ndarray:
    """Rotate neighbouring channels of one head by position · 10000^(-2i/D), as complex numbers."""
    pairs = x[0::2] + 1j * x[1::2]
    pairs = pairs * np.exp(1j * position * 10000.0 ** (-np.arange(0, len(x), 2) / len(x)))
    return np.stack([pairs.real, pairs.imag], axis=-1).reshape(-1)


def oracle(layer, states: np.ndarray, x: np.ndarray, lengths: tuple[int, ...], pe: str, cross: str) -> np.ndarray:
    """Return cross-attention in float64, one query, head and key at a time."""
    kernel = lambda part: np.asarray(part.kernel[...], np.float64)
    output = np.zeros(x.shape)
    for b, length in enumerate(lengths):
        for t in range(x.shape[1]):
            place = t + length if cross == "unified" else t
            heads = []
            for h in range(HEADS):
                q = (x[b, t] @ kernel(layer.q)).reshape(HEADS, WIDTH)[h]
                logits, values = [], []
                for s in range(length):
                    k, v = (states[b, s] @ kernel(layer.kv)).reshape(HEADS, 2, WIDTH)[h]
                    bias = -(2.0 ** (-8 * (h + 1) / HEADS)) * abs(s - place) if pe == "alibi" else 0.0
                    turn = turned if pe == "rope" and cross != "none" else lambda x, _: x
                    logits.append(turn(q, place) @ (k if cross == "query_only" else turn(k, s)) / 2.0 + bias)
                    values.append(v)
                weights = np.exp(np.asarray(logits) - max(logits))
                heads.append(weights @ np.asarray(values) / weights.sum())
            output[b, t] = np.concatenate(heads) @ kernel(layer.out)
    return output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pe", "cross"),
    [("rope", "none"), ("rope", "query_only"), ("rope", "separate"), ("rope", "unified"), ("alibi", "unified")],
)
def test_one_layer_is_what_the_policy_says(pe, cross):
    """Two sources of different length in one batch: the policy looks at each by itself."""
    model = model_of(pe=pe, cross=cross, width=8)
    static, params = nnx.split(model.decoder.layers.blocks)
    layer = nnx.merge(static, jax.tree.map(lambda leaf: leaf[0], params)).cross
    lengths = (2, 3)
    segments = jnp.asarray([[1, 1, 0], [1, 1, 1]], jnp.int32)
    states, x = jnp.asarray(K_IN, jnp.float32), jnp.asarray(Q_IN, jnp.float32)
    encoded = EncoderOutput(states, TokenPositions(jnp.arange(3, dtype=jnp.int32), segment_ids=segments), 3)
    memory = model.cross_context(encoded, TokenPositions(jnp.arange(3, dtype=jnp.int32)), 3)
    result = layer(x, memory, layer.keys_values(states))
    np.testing.assert_allclose(result, oracle(layer, K_IN, Q_IN, lengths, pe, cross), rtol=1e-5, atol=1e-5)


@functools.partial(quickly, static_argnums=0)
def logits_of(static, params, source, target, source_segments, target_segments):
    segments = {"source_segments": source_segments, "target_segments": target_segments}
    return nnx.merge(static, params)(source, target, **segments)


@pytest.mark.slow
def test_packed_is_separate():
    """Two examples in one row, each by its own segment, are what they are in two rows."""
    _, static, params = made(pe="rope", cross="unified")
    left, right = jnp.asarray([[1] * 3 + [2] * 5], jnp.int32), jnp.asarray([[1, 1, 2, 2]], jnp.int32)
    packed = logits_of(static, params, SOURCE[:1], TARGET[:1], left, right)
    model = nnx.merge(static, params)
    alone = quickly(lambda: (model(SOURCE[:1, :3], TARGET[:1, :2]), model(SOURCE[:1, 3:], TARGET[:1, 2:])))()
    np.testing.assert_allclose(packed, jnp.concatenate(alone, axis=1), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_the_decoder_is_causal_and_the_encoder_is_not():
    _, static, params = made(pe="rope", cross="unified")
    ones = jnp.ones((2, 8), jnp.int32)
    run = functools.partial(logits_of, static, params, source_segments=ones, target_segments=ones[:, :4])
    before = run(SOURCE, TARGET)
    later = run(SOURCE, TARGET.at[:, 2].add(1) % 13)
    np.testing.assert_array_equal(later[:, :2], before[:, :2])
    assert float(jnp.abs(later[:, 2] - before[:, 2]).min()) > 0
    first = quickly(lambda source: nnx.merge(static, params).encode(source).states[:, 0])
    assert float(jnp.abs(first(SOURCE) - first(SOURCE.at[:, 7].add(1) % 13)).max()) > 1e-4


@pytest.mark.parametrize(
    "pe",
    [
        slow("t5"),
        *(pytest.param(pe, marks=pytest.mark.long) for pe in ("shaw", "learned", "rope_mixed", "transformer_xl")),
    ],
)
def test_gradients_reach_every_parameter(pe):
    _, static, params = made(pe=pe, cross="unified", source_length=8, target_length=4)

    def loss(params):
        return jnp.sum(jnp.sin(nnx.merge(static, params)(SOURCE, TARGET)))

    for path, slope in jax.tree_util.tree_leaves_with_path(quickly(jax.grad(loss))(params)):
        assert float(jnp.abs(slope).max()) > 0, jax.tree_util.keystr(path)


@pytest.mark.slow
def test_each_part_has_one_table_of_its_own():
    model = model_of(pe="t5", cross="separate", decoder_layers=2)
    tables = [part.position["heads"]["table"][...] for part in (model.encoder, model.decoder, model)]
    assert [table.shape for table in tables] == [(2, 32)] * 3
    for stack in (model.encoder, model.decoder):
        assert not stack.layers.blocks.attention.position
    assert not model.decoder.layers.blocks.cross.position
    assert model.encoder.dims.causal is False
    assert model.decoder.dims.causal is True
    mixed = model_of(pe="none", decoder_pe="rope", cross_pe="rope_mixed", cross="separate", decoder_layers=2)
    assert mixed.decoder.layers.blocks.cross.position["frequencies"].shape == (2, 2, 1, 4)
    assert mixed.encoder.encoding.rotate is None


def test_what_is_added_to_the_input_has_no_part_in_cross_attention():
    dims = Dims(heads=2, head_dim=8, extent=8)
    for pe in ("learned", "sinusoidal", "none"):
        for policy in ("separate", "unified"):
            assert cross_encoding(policy, pe, dims) == cross_encoding("none", "rope", dims)
    assert cross_encoding("separate", "learned(extend='log_n')", dims).embed is None


@pytest.mark.slow
def test_answers_are_the_likeliest_tokens_until_the_end():
    _, static, params = made(pe="rope", cross="unified")
    target = jnp.full((2, 6), 3, jnp.int32)
    for at in range(5):
        logits = logits_of(static, params, SOURCE, target, SEGMENTS, jnp.ones((2, 6), jnp.int32))
        target = target.at[:, at + 1].set(jnp.argmax(logits[:, at], axis=-1))
    likeliest = target[:, 1:].tolist()
    stop = likeliest[0][1]
    ends = [row.index(stop) if stop in row else 5 for row in likeliest]
    expected = [[*row[:end], *[stop] * (5 - end)] for row, end in zip(likeliest, ends, strict=True)]
    answers = generate_answers(nnx.merge(static, params), SOURCE, SEGMENTS, 5, start=3, stop=stop)
    np.testing.assert_array_equal(answers, expected)
    assert expected[0] != likeliest[0]


@pytest.mark.slow
def test_answers_are_penalized_for_their_own_tokens_and_the_start_and_not_for_the_source():
    _, static, params = made(pe="rope", cross="unified")
    sampling = Sampling(repetition_penalty=3.0, presence_penalty=0.75, frequency_penalty=0.5)
    answers = generate_answers(nnx.merge(static, params), SOURCE, SEGMENTS, 5, start=3, sampling=sampling)
    target = jnp.pad(answers, ((0, 0), (1, 0)), constant_values=3)
    logits = logits_of(static, params, SOURCE, target, SEGMENTS, jnp.ones((2, 6), jnp.int32))
    for row, answer in enumerate(np.asarray(answers).tolist()):
        for at, token in enumerate(answer):
            assert token == penalized_by_loops(logits[row, at], [3], answer[:at], sampling).argmax()
    assert (answers != jnp.argmax(logits[:, :5], axis=-1)).any()


@pytest.mark.slow
def test_answers_are_drawn_by_the_key():
    model = model_of(pe="rope", cross="unified")
    drawn = [
        generate_answers(model, SOURCE, None, 5, sampling=Sampling(temperature=3.0), key=jax.random.key(seed))
        for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert bool((drawn[0] != drawn[2]).any())


REFUSED = {
    "cross must be one of none, query_only, separate, unified, got 'shared'": {"cross": "shared"},
    "cross='query_only' needs an encoding that rotates and does nothing else, got 'alibi'": {
        "cross": "query_only", "pe": "alibi",
    },
    "cross='query_only' needs an encoding that rotates and does nothing else, got 'learned'": {
        "cross": "query_only", "decoder_pe": "learned",
    },
    "cross='query_only' needs an encoding that rotates and does nothing else, got 'none'": {
        "cross": "query_only", "cross_pe": "none",
    },
    "did you mean 'rope'": {"cross": "separate", "cross_pe": "rop"},
    "source_length must be at least 1, got 0": {"source_length": 0},
    "decoder_layers must be at least 1, got 0": {"decoder_layers": 0},
    "hidden must be at least 1, got 0": {"hidden": 0},
    "style must be one of llama, gpt2, got 'bert'": {"style": "bert"},
    "dtype must be one of float32, bfloat16, got 'float16'": {"dtype": "float16"},
    "width must be a multiple of heads": {"heads": 3},
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_bad_configurations_are_refused(message):
    with pytest.raises(ValueError, match=re.escape(message)):
        nnx.eval_shape(lambda: EncoderDecoder(encoder_decoder(**{**TINY, **REFUSED[message]}), rngs=nnx.Rngs(0)))


def test_an_unknown_policy_is_refused_where_the_record_is_made():
    with pytest.raises(ValueError, match="cross must be one of none, query_only, separate, unified, got 'both'"):
        cross_encoding("both", "rope", Dims(heads=2, head_dim=8, extent=8))


@pytest.mark.parametrize("segments", [None, jnp.ones((2, 9), jnp.int32)])
def test_a_source_longer_than_a_learned_table_is_refused(segments):
    model = model_of(pe="learned", cross="none")
    with pytest.raises(ValueError, match="got a table of 8 for length 9"):
        jax.eval_shape(lambda: model(ids(2, 9), TARGET, source_segments=segments))
    with pytest.raises(ValueError, match="got a table of 6 for length 7"):
        jax.eval_shape(lambda: model(SOURCE, ids(2, 7)))


ASKED = {
    "count must be at least 1, got 0": {"count": 0},
    "temperature=1.0 needs a key, got None": {"sampling": Sampling(temperature=1.0)},
    "temperature must be 0, or finite and at least 1e-06, got -1.0": {"sampling": Sampling(temperature=-1.0)},
    "source must be from 0 to 12, one of 13 ids, got 13": {"source": SOURCE.at[1, 2].set(13)},
    "start must be from 0 to 12, one of 13 ids, got -1": {"start": -1},
    "source_segments must be 0 or 1, because an answer has one source, got 2": {"source_segments": SEGMENTS * 2},
    "source_segments must be 0 or 1, because an answer has one source, got -1": {"source_segments": -SEGMENTS},
}


@pytest.mark.parametrize("message", ASKED)
def test_bad_questions_are_refused(message):
    asked = {"source": SOURCE, "source_segments": SEGMENTS, "count": 3, **ASKED[message]}
    with pytest.raises(ValueError, match=message):
        generate_answers(model_of(pe="rope"), **asked)
