"""Cached decoding equals its policy's oracle, for every encoding and every way to stretch it; sampling; refusals."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pejax._tokens.positions import TokenPositions
from pejax.models import Sampling, generate, stream
from pejax.models.generation.sampling import sample
from tests.support.cases import mostly_slow, slow
from tests.support.decoders import LENGTH, TEXT_ENCODINGS, VOCAB, ids_of, logits, make, rows_oracle

SEGMENTS = jnp.array([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1], [1, 1, 1, 2, 2, 2]])
"""A whole prompt, one padded on the left, two documents of which the second goes on."""

TRAINED = 4
LONGROPE = "longrope(short_factors=(1.0, 1.5), long_factors=(2.0, 6.0), factor=4)"
EXTENDED = [
    ("rope(base=4)", "dynamic_ntk(factor=2)"),
    ("rope(base=4)", "self_extend(window=2)"),
    ("alibi", "slopes"),
    ("learned", "resize"),
    ("rope(base=4)", "linear+log_n"),
    ("rope(base=4)", LONGROPE),
    ("rope(pairing='half', base=4)", "yarn"),
    ("rope(base=4)", "ntk(factor=3)"),
    ("rope(base=4)", "rerope(window=2)"),
    ("rope(base=4)", "llama3(factor=3, low_freq_factor=1, high_freq_factor=2)+llama4(floor_length=3)"),
    ("sinusoidal", "pi"),
    ("shaw", "pi"),
    ("none", "log_n"),
]


def one_quick(number: int) -> list:
    """Return all extensions, of which every run has one; the rest is slow."""
    return [pytest.param(*case, marks=() if n == number else pytest.mark.slow) for n, case in enumerate(EXTENDED)]


def full_segments(segments, count):
    return jnp.concatenate([segments, jnp.repeat(segments[:, -1:], count, axis=1)], axis=1)


def close(actual, expected) -> None:
    size = max(1.0, float(np.abs(np.asarray(expected)).max()))
    np.testing.assert_allclose(np.asarray(actual) / size, np.asarray(expected) / size, rtol=0, atol=1e-5)


@pytest.mark.parametrize("pe", mostly_slow(TEXT_ENCODINGS, ("t5",)))
def test_cached_decoding_is_the_full_forward_pass(pe):
    model, prompts = make(pe=pe), ids_of(3, 6)
    new, result = generate(model, prompts, 3, segment_ids=SEGMENTS, return_logits=True)
    ids = jnp.concatenate([prompts, new], axis=1)
    expected = logits(model, ids[:, :-1], full_segments(SEGMENTS, 2))[:, 5:]
    close(result, expected)
    np.testing.assert_array_equal(new, jnp.argmax(expected, -1))


@pytest.mark.slow
@pytest.mark.parametrize(("pe", "extend"), one_quick(1), ids=str)
def test_recompute_is_the_full_forward_pass_at_the_present_length(pe, extend):
    model, prompts, segments = make(pe=pe, extend=extend, length=TRAINED), ids_of(3, 3), SEGMENTS[:, 1:4]
    new, result = generate(model, prompts, 4, segment_ids=segments, return_logits=True, policy="recompute")
    ids = jnp.concatenate([prompts, new], axis=1)
    for row, start in enumerate((0, 1, 2)):
        own = jnp.pad(ids[row, start:-1], (0, start))[None]
        for n in range(4):
            length = 3 + n - start
            whole = logits(model, own, (jnp.arange(6) < length).astype(jnp.int32)[None], extent=jnp.asarray(length))
            close(result[row, n], whole[0, length - 1])


@pytest.mark.slow
@pytest.mark.parametrize(("pe", "extend"), one_quick(0), ids=str)
def test_stepwise_is_dense_attention_with_the_parameters_of_each_row(pe, extend):
    model, prompts, segments = make(pe=pe, extend=extend, length=TRAINED), ids_of(3, 3), SEGMENTS[:, 1:4]
    new, result = generate(model, prompts, 4, segment_ids=segments, return_logits=True, policy="stepwise")
    ids = jnp.concatenate([prompts, new], axis=1)
    close(result[0], rows_oracle(model, ids[0, :6])[2:])
    close(result[1], rows_oracle(model, ids[1, 1:6])[1:])


@pytest.mark.slow
def test_the_policies_differ_where_the_parameters_do():
    model, prompts = make(pe="rope(base=4)", extend="dynamic_ntk(factor=2)", length=TRAINED), ids_of(1, 3)
    _, stepwise = generate(model, prompts, 4, return_logits=True)
    _, recompute = generate(model, prompts, 4, return_logits=True, policy="recompute")
    np.testing.assert_allclose(stepwise[:, :2], recompute[:, :2], atol=1e-5)
    assert float(jnp.abs(stepwise[:, 3] - recompute[:, 3]).max()) > 1e-4


@pytest.mark.slow
def test_a_stop_token_fills_the_rest():
    model, prompts = make(), ids_of(4, 5)
    free = np.asarray(generate(model, prompts, 6))
    stop = int(free[0, 2])
    for row, until in zip(np.asarray(generate(model, prompts, 6, stop=stop)), free, strict=True):
        first = np.flatnonzero(until == stop)
        end = first[0] if len(first) else 6
        np.testing.assert_array_equal(row[:end], until[:end])
        assert (row[end:] == stop).all()


@pytest.mark.parametrize(
    "kind", [slow(list), slow(tuple), slow(np.asarray), jnp.asarray], ids=["list", "tuple", "numpy", "jax"]
)
def test_several_stop_tokens_of_any_integer_kind(kind):
    model, prompts = make(), ids_of(4, 5)
    free = np.asarray(generate(model, prompts, 6))
    stop = [int(free[0, 2]), int(free[1, 4])]
    for row, until in zip(np.asarray(generate(model, prompts, 6, stop=kind(stop))), free, strict=True):
        end = next((n for n, item in enumerate(until) if item in stop), 5)
        np.testing.assert_array_equal(row[: end + 1], until[: end + 1])
        assert (row[end:] == until[end]).all() or end == 5


@pytest.mark.slow
def test_one_stop_token_of_any_integer_kind():
    model, prompts = make(), ids_of(1, 5)
    stop = int(generate(model, prompts, 3)[0, 1])
    one = generate(model, prompts, 6, stop=stop)
    for same in (np.int64(stop), jnp.int32(stop), (stop,), np.uint8(stop)):
        np.testing.assert_array_equal(generate(model, prompts, 6, stop=same), one)
    np.testing.assert_array_equal(generate(model, prompts, 6, stop=()), generate(model, prompts, 6))


@pytest.mark.slow
def test_a_stream_ends_where_every_row_has_stopped():
    model, prompts = make(), ids_of(3, 5)
    ids = np.asarray(generate(model, prompts, 8))
    stop = sorted({int(row[n]) for n, row in enumerate(ids)})
    filled = np.asarray(generate(model, prompts, 8, stop=stop))
    ends = [next(n for n, item in enumerate(row) if item in stop) for row in ids]
    tokens = np.stack([*stream(model, prompts, 8, stop=stop)], axis=1)
    assert tokens.shape[1] == max(ends) + 1
    np.testing.assert_array_equal(tokens, filled[:, : tokens.shape[1]])


@pytest.mark.slow
@pytest.mark.parametrize("pe", mostly_slow(TEXT_ENCODINGS, ("learned",)))
def test_prompts_of_unequal_lengths_are_answered_as_each_alone(pe):
    model = make(pe=pe)
    prompts = [[1, 2, 3, 4, 5], (6,), np.asarray([7, 8, 9, 10, 0])]  # as long as the first: one program
    new, result = generate(model, prompts, 4, return_logits=True)
    for row, prompt in enumerate(prompts):
        alone, expected = generate(model, [prompt], 4, return_logits=True)
        np.testing.assert_array_equal(new[row], alone[0])
        close(result[row], expected[0])


def test_text_is_refused_where_ids_belong():
    for prompts in ("To be", ["To be"]):
        with pytest.raises(TypeError, match="prompts must be token ids"):
            generate(make(), prompts, 2)
    with pytest.raises(TypeError, match=r"stop must be token ids; texts end the pieces of Tokenizer.stream"):
        generate(make(), [[1]], 2, stop="end")
    for ids in ([[1.0, 2.0]], np.ones((1, 2)), jnp.ones((1, 2), bool)):
        with pytest.raises(TypeError, match="prompts must be integers"):
            generate(make(), ids, 2)


@pytest.mark.slow
def test_sampling_draws_from_the_distribution_it_says():
    p = np.array([0.4, 0.3, 0.2, 0.1])
    many = jnp.broadcast_to(jnp.log(jnp.asarray(p, jnp.float32)), (4000, 4))
    share = lambda **how: np.bincount(sample(jax.random.key(0), many, Sampling(**how)), minlength=4) / 4000
    np.testing.assert_allclose(share(temperature=1.0), p, atol=0.03)
    np.testing.assert_allclose(share(temperature=0.5), p**2 / (p**2).sum(), atol=0.03)
    np.testing.assert_allclose(share(temperature=1.0, top_k=2), [4 / 7, 3 / 7, 0, 0], atol=0.03)
    np.testing.assert_allclose(share(temperature=1.0, top_p=0.65), [4 / 7, 3 / 7, 0, 0], atol=0.03)
    np.testing.assert_allclose(share(temperature=1.0, top_p=0.75), [4 / 9, 3 / 9, 2 / 9, 0], atol=0.03)
    np.testing.assert_array_equal(share(), [1, 0, 0, 0])


@pytest.mark.slow
def test_the_same_key_gives_the_same_text():
    model, prompts, how = make(), ids_of(2, 4), Sampling(temperature=2.0)
    one, again, other = (generate(model, prompts, 5, sampling=how, key=jax.random.key(n)) for n in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert (np.asarray(one) != np.asarray(other)).any()


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("count must be at least 1, got 0", {"count": 0}),
        ("prompts must be (B, T), both at least 1, or a list of B lists", {"prompts": jnp.ones((1, 0), jnp.int32)}),
        ("got one list of ids: [ids] is a batch of one prompt", {"prompts": [1, 2]}),
        ("each of at least 1 id, got [[1, 2], []]", {"prompts": [[1, 2], []]}),
        ("each of at least 1 id, got [[[1, 2], [3]]]", {"prompts": [[[1, 2], [3]]]}),
        (f"stop must be from 0 to {VOCAB - 1}, one of {VOCAB} ids, got 99", {"stop": 99}),
        (f"stop must be from 0 to {VOCAB - 1}, one of {VOCAB} ids, got -1", {"stop": [3, -1]}),
        ("stop must be one id or a list of ids, got [[1, 2], [3]]", {"stop": [[1, 2], [3]]}),
        ("segment_ids must have the shape of prompts, (1, 4), got (1, 3)", {"segment_ids": [[1, 1, 1]]}),
        ("policy must be one of stepwise, recompute, or None, got 'lazy'", {"policy": "lazy"}),
        ("temperature must be 0, or finite and at least 1e-06, got -1", {"sampling": Sampling(-1.0)}),
        (f"top_k must be from 0 to the size of the vocabulary, {VOCAB}, got 99", {"sampling": Sampling(top_k=99)}),
        ("top_p must be above 0 and at most 1, got 0.0", {"sampling": Sampling(top_p=0.0)}),
        ("temperature=1.0 needs a key, got None", {"sampling": Sampling(1.0)}),
        (f"prompts must be from 0 to {VOCAB - 1}, one of {VOCAB} ids, got {VOCAB}", {"prompts": [[VOCAB] * 4]}),
        ("prompts must be from 0 to 10, one of 11 ids, got -3", {"prompts": [[-3] * 4]}),
        ("prompts must be from 0 to 10, one of 11 ids, got 4294967301", {"prompts": np.full((1, 2), 2**32 + 5)}),
        ("window must be at least 1 and first at least 0, got 0 and 0", {"window": 0}),
        ("window must be at least 1 and first at least 0, got 4 and -1", {"window": 4, "first": -1}),
        ("first needs a window, whose cache keeps the first tokens too, got first=4 without one", {"first": 4}),
        ("learned is added to the input, so cached keys keep", {"window": 2, "made": {"pe": "learned"}}),
        ("end in a token, not in 0", {"segment_ids": [[1, 1, 1, 0]]}),
        (f"got a table of {LENGTH} for length {LENGTH + 1}", {"made": {"pe": "learned"}, "count": LENGTH - 2}),
        ("generation needs a causal model, got causal=False", {"made": {"causal": False}}),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_in_one_line(message, options):
    options = {"made": {}, "prompts": ids_of(1, 4), "count": 2} | options
    options |= {name: jnp.asarray(options[name]) for name in ("segment_ids",) if name in options}
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        generate(make(**options.pop("made")), options.pop("prompts"), options.pop("count"), **options)
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_a_learned_table_serves_its_whole_length():
    new = generate(make(pe="learned"), ids_of(1, 4), LENGTH - 3)
    assert new.shape == (1, LENGTH - 3)


@pytest.mark.slow
def test_ties_are_drawn_from_no_more_than_k_tokens():
    even = jnp.zeros((500, 6))
    assert set(np.asarray(sample(jax.random.key(0), even, Sampling(1.0, top_k=2)))) == {0, 1}
    assert set(np.asarray(sample(jax.random.key(0), even, Sampling(1.0, top_p=0.5)))) == {0, 1, 2}


@pytest.mark.slow
def test_a_packed_prompt_needs_a_table_for_its_last_document_alone():
    packed = jnp.array([[1] * (LENGTH - 1) + [2]])
    assert generate(make(pe="learned"), ids_of(1, LENGTH), 4, segment_ids=packed).shape == (1, 4)


@pytest.mark.slow
def test_a_cache_refuses_what_it_cannot_hold():
    model, ids = make(), ids_of(1, 2)
    cache, here = model.stack.empty_cache(1, 3), TokenPositions(jnp.arange(2))
    _, cache = model.cached(ids, cache, tokens=here, extent=2)
    for message, tokens in (
        ("a cache of 3 slots, 2 of them used, cannot take 2 more tokens", here),
        ("a cache holds tokens at integer positions", TokenPositions(jnp.arange(2.0))),
        ("a cache holds tokens at integer positions", TokenPositions(jnp.arange(2), order=jnp.arange(2))),
    ):
        with pytest.raises(ValueError, match=message):
            model.cached(ids, cache, tokens=tokens, extent=2)


@pytest.mark.slow
def test_constants_are_there_where_generation_adapts():
    """ALiBi's slopes are constants, and "slopes" flattens them by the length."""
    prompts = ids_of(2, 3)
    assert generate(make(pe="alibi", extend="slopes", length=TRAINED), prompts, TRAINED).shape == (2, TRAINED)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["stepwise", "recompute"])
def test_a_stream_is_what_generate_returns(policy):
    model, prompts, segments = (
        make(pe="rope(base=4)", extend="dynamic_ntk(factor=2)", length=TRAINED),
        ids_of(3, 6),
        SEGMENTS,
    )
    options = {"segment_ids": segments, "sampling": Sampling(1.0, top_k=5), "key": jax.random.key(3), "policy": policy}
    tokens = [*stream(model, prompts, 4, **options)]
    np.testing.assert_array_equal(jnp.stack(tokens, axis=1), generate(model, prompts, 4, **options))


def test_a_stream_refuses_before_the_first_token():
    with pytest.raises(ValueError, match="count must be at least 1"):
        stream(make(pe="rope"), ids_of(1, 3), 0)
