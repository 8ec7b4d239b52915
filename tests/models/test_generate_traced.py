"""Generation inside transforms is generation outside of them; prompts of many lengths share few programs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from pejax.models import EncoderDecoder, Rolling, Sampling, encoder_decoder, generate, generate_answers, stream
from pejax.models.generation import decoder as generation
from pejax.models.generation.prompts import rounded, rounded_prompts
from tests.support.cases import slow
from tests.support.decoders import ids_of, logits, make

DRAWN = Sampling(1.0, top_k=5)
WITH_LOGITS = {"return_logits": True}

CASES = [
    slow({"pe": "rope"}, {"sampling": DRAWN, "key": jax.random.key(3)}),
    slow({"pe": "learned"}, {}),
    slow({"pe": "t5"}, {"window": 5, "first": 2}),
    slow({"pe": "fire", "length": 12}, {"window": 3, "first": 1, "renumber": False}),
    slow({"pe": "rope(base=4)", "extend": "dynamic_ntk(factor=2)", "length": 4}, {}),
    slow({"pe": "rope(base=4)", "extend": "dynamic_ntk(factor=2)", "length": 4}, {"policy": "recompute"}),
    slow({"pe": "learned", "extend": "resize", "length": 4}, {"policy": "recompute"}),
    slow({"pe": "alibi", "extend": "slopes", "length": 16}, {}),
]


def close(actual, expected) -> None:
    np.testing.assert_allclose(actual, expected, atol=1e-5 * max(1.0, float(np.abs(expected).max())))


@pytest.mark.parametrize(("made", "options"), CASES, ids=str)
def test_traced_prompts_and_parameters_are_answered_as_known_ones(made, options):
    """Known prompts are padded to a rounded length, traced ones are not: padding changes nothing, either."""
    model, prompts, padding = make(**made), ids_of(2, 7), jnp.asarray([[1] * 7, [0] * 3 + [1] * 4])
    static, params = nnx.split(model)

    @jax.jit
    def traced(params, prompts, padding):
        return generate(nnx.merge(static, params), prompts, 5, segment_ids=padding, **options, **WITH_LOGITS)

    new, result = traced(params, prompts, padding)
    expected, whole = generate(model, prompts, 5, segment_ids=padding, **options, **WITH_LOGITS)
    np.testing.assert_array_equal(new, expected)
    close(result, whole)


def test_what_transforms_return_for_generation():
    """A batch of keys, a scan over them, `nnx.jit` of a model, a list of rows: traced, and not computed."""
    model, prompts, keys = make(), ids_of(2, 3), jax.random.split(jax.random.key(0), 3)
    drawn = lambda key: generate(model, prompts, 4, sampling=DRAWN, key=key)
    scan = lambda keys: jax.lax.scan(lambda _, key: (None, drawn(key)), None, keys)[1]
    rows = lambda ids: generate(model, [ids[0], ids[1, 1:]], 4, stop=ids[0])
    assert jax.eval_shape(jax.vmap(drawn), keys).shape == (3, 2, 4)
    assert jax.eval_shape(scan, keys).shape == (3, 2, 4)
    assert nnx.eval_shape(nnx.jit(lambda model, ids: generate(model, ids, 4)), model, prompts).shape == (2, 4)
    assert jax.eval_shape(rows, prompts).shape == (2, 4)


@pytest.mark.slow
def test_no_tracer_leaks():
    model = make(layers=1)
    with jax.checking_leaks():
        assert jax.eval_shape(lambda ids: generate(model, ids, 2), ids_of(2, 3)).shape == (2, 2)


def mean_surprise(params, static, prompts, new):
    """Return the loss of tokens that a model has generated."""
    scores = nnx.merge(static, params)(jnp.concatenate([prompts, new], axis=1))[:, prompts.shape[1] - 1 : -1]
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(scores), new[..., None], axis=-1))


@pytest.mark.slow
def test_sampling_in_a_scan_of_training_steps_is_a_loop_of_both():
    """Each step draws texts from the model as it is, and trains it on them."""
    model, prompts = make(pe="rope + t5"), ids_of(3, 4)
    static, params = nnx.split(model)

    def step(params, key):
        new = generate(nnx.merge(static, params), prompts, 5, sampling=Sampling(1.0), key=key)
        gradients = jax.grad(mean_surprise)(params, static, prompts, new)
        return jax.tree.map(lambda leaf, gradient: leaf - 0.5 * gradient, params, gradients), new

    keys = jax.random.split(jax.random.key(1), 3)
    trained, texts = jax.jit(lambda params: jax.lax.scan(step, params, keys))(params)
    for number, key in enumerate(keys):
        params, new = step(params, key)
        np.testing.assert_array_equal(texts[number], new)
    jax.tree.map(close, trained, params)
    assert (np.asarray(texts[0]) != np.asarray(texts[2])).any()


@pytest.mark.slow
def test_a_vmap_over_keys_is_each_key_alone():
    model, prompts, keys = make(), ids_of(2, 3), jax.random.split(jax.random.key(2), 4)
    drawn = lambda key: generate(model, prompts, 5, sampling=DRAWN, key=key)
    np.testing.assert_array_equal(jax.vmap(drawn)(keys), [drawn(key) for key in keys])


@pytest.mark.slow
def test_a_vmap_over_parameters_and_prompts_is_each_model_alone():
    models, prompts = [make(seed) for seed in (0, 1)], ids_of(2, 1, 4)
    static, _ = nnx.split(models[0])
    params = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(nnx.split(model)[1] for model in models))
    answered = jax.vmap(lambda params, prompts: generate(nnx.merge(static, params), prompts, 4))(params, prompts)
    np.testing.assert_array_equal(answered, [generate(*pair, 4) for pair in zip(models, prompts, strict=True)])


@pytest.mark.slow
def test_gradients_go_through_the_logits_of_generation():
    model, prompts = make(), ids_of(1, 4)
    static, params = nnx.split(model)

    def score(params):
        new, result = generate(nnx.merge(static, params), prompts, 3, **WITH_LOGITS)
        return jnp.sum(jnp.take_along_axis(jax.nn.log_softmax(result), new[..., None], axis=-1))

    new = generate(model, prompts, 3)
    expected = jax.grad(lambda params: -3.0 * mean_surprise(params, static, prompts, new))(params)
    jax.tree.map(close, jax.grad(score)(params), expected)


@pytest.mark.slow
def test_answers_inside_jit_are_those_outside():
    config = encoder_decoder(vocab=13, width=16, encoder_layers=1, decoder_layers=1, heads=2, hidden=16)
    model, source = EncoderDecoder(config, rngs=nnx.Rngs(0)), ids_of(2, 6)
    padding = jnp.asarray([[1] * 6, [1] * 4 + [0] * 2])
    static, params = nnx.split(model)
    answer = lambda params, source, padding, start, key: generate_answers(
        nnx.merge(static, params), source, padding, 4, start=start, sampling=DRAWN, key=key
    )
    arrays = (params, source, padding, jnp.asarray(3), jax.random.key(4))
    np.testing.assert_array_equal(jax.jit(answer)(*arrays), answer(*arrays))


STREAM_IN_JIT = (
    "stream yields known tokens, which there are none of where jax.jit, jax.lax.scan or the like traces: call generate"
)


@pytest.mark.parametrize(
    ("message", "transform", "call"),
    [
        ("count must be known when generation is traced", jax.jit, lambda n: generate(make(), ids_of(1, 3), n)),
        (
            "sampling must be known when generation is traced",
            jax.jit,
            lambda n: generate(make(), ids_of(1, 3), 2, sampling=Sampling(n), key=jax.random.key(0)),
        ),
        (STREAM_IN_JIT, jax.jit, lambda n: stream(make(), n * ids_of(1, 3), 2, stop=0)),
        (
            "where jax.vmap traces: call generate",
            lambda call: lambda n: jax.vmap(call)(n[None]),
            lambda n: stream(make(), n * ids_of(1, 3), 2),
        ),
        (STREAM_IN_JIT, jax.jit, lambda n: [next(stream(make(), ids_of(1, 3), 2)), n][1]),
    ],
    ids=["count", "sampling", "stream in jit", "stream in vmap", "stream of known prompts in jit"],
)
def test_what_must_be_known_is_refused_in_one_line(message, transform, call):
    with pytest.raises(TypeError) as refusal:
        transform(call)(jnp.asarray(2))
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_lengths_are_rounded_to_few():
    lengths = np.asarray([rounded(length) for length in range(1, 4097)])
    assert sorted(set(lengths.tolist()))[:10] == [16, 32, 48, 64, 80, 96, 112, 128, 160, 192]
    excess = lengths - np.arange(1, 4097)
    assert excess.min() == 0
    assert (excess <= np.maximum(15, np.arange(1, 4097) / 4)).all()
    assert len(set(lengths.tolist())) == 28


def test_prompts_of_few_lengths_keep_their_tokens_at_the_end():
    ids, is_read = rounded_prompts(np.asarray([[5, 6, 7], [0, 0, 8]]), np.asarray([[1] * 3, [0, 0, 1]]) == 1, None)
    assert ids.shape == is_read.shape == (2, 16)
    np.testing.assert_array_equal(ids[:, 13:], [[5, 6, 7], [0, 0, 8]])
    np.testing.assert_array_equal(is_read[:, 12:], [[0, 1, 1, 1], [0, 0, 0, 1]])
    short, long = (rounded_prompts(ids[:, -n:], is_read[:, -n:], Rolling(5)) for n in (4, 6))
    assert (short[0].shape, long[0].shape) == ((2, 5), (2, 16))  # a prompt that fits the cache still does


@pytest.mark.slow
def test_twenty_lengths_of_prompts_compile_two_programs(monkeypatch):
    """As many as there are rounded lengths from 2 to 21; it was one for each."""
    model = make(vocab=12)  # of this test alone
    read, programs = generation.read, []
    monkeypatch.setattr(generation, "read", lambda *operands: programs.append(1) or read(*operands))
    for length in range(2, 22):
        prompt = ids_of(1, length)
        new = generate(model, prompt, 4)
        ids = jnp.concatenate([prompt, new], axis=1)
        padded = jnp.pad(ids, ((0, 0), (0, 25 - ids.shape[1])))
        expected = jnp.argmax(logits(model, padded)[0], axis=-1)
        np.testing.assert_array_equal(new[0], expected[length - 1 : length + 3])
    assert len(programs) == 2
