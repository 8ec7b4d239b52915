"""Settings of sampling: what they do to logits, and that generation keeps account of the tokens that are there."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pejax.models import Sampling, generate, stream
from pejax.models.generation.sampling import History, check_sampling, logprobs_of, penalized, ranked
from tests.support.decoders import VOCAB, ids_of, make
from tests.support.penalties import penalized_by_loops

PENALTIES = Sampling(repetition_penalty=1.5, presence_penalty=0.75, frequency_penalty=0.5)
SEGMENTS = jnp.asarray([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [1, 1, 2, 2, 2]])


def test_penalties_are_those_of_a_loop_over_tokens():
    prompts, text = np.asarray([[1, 2, 2], [0, 3, 4]]), np.asarray([[5, 5, 1], [3, 6, 6]])
    is_token = np.asarray([[True, True, True], [False, True, True]])
    settings = (PENALTIES, Sampling(presence_penalty=2.0), Sampling(frequency_penalty=-1.5))
    logits = np.random.default_rng(0).normal(size=(2, 7)).astype(np.float32)

    def result(logits, sampling):
        history = History.start(sampling, jnp.asarray(prompts), jnp.asarray(is_token), 7)
        for step in jnp.asarray(text).T:
            history = history.add(step)
        return penalized(logits, sampling, history)

    results = jax.jit(lambda logits: [result(logits, sampling) for sampling in settings])(logits)
    for sampling, new in zip(settings, results, strict=True):
        for row in range(2):
            expected = penalized_by_loops(logits[row], prompts[row][is_token[row]], text[row].tolist(), sampling)
            np.testing.assert_allclose(new[row], expected, atol=1e-6)


def test_nothing_is_kept_where_nothing_reads_it():
    for sampling in (Sampling(), Sampling(0.7, 50, 0.9, 0.1)):
        assert History.start(sampling, ids_of(1, 3), jnp.ones((1, 3), bool), VOCAB) == History(None, None)
        assert History(None, None).add(jnp.zeros(1, jnp.int32)) == History(None, None)


def test_min_p_keeps_what_is_probable_enough_beside_the_most_probable():
    p = np.array([[0.1, 0.4, 0.2, 0.3], [0.97, 0.01, 0.01, 0.01]])
    kept = {
        Sampling(1.0, min_p=0.49): [3, 1],
        Sampling(1.0, min_p=0.51): [2, 1],
        Sampling(1.0, min_p=1.0): [1, 1],
        Sampling(2.0, min_p=0.49): [4, 1],
        Sampling(0.5, min_p=0.49): [2, 1],
        Sampling(1.0, top_p=0.65, min_p=0.49): [2, 1],
    }
    count = lambda logits, sampling: jnp.isfinite(ranked(logits, sampling)[0]).sum(-1)
    counts = jax.jit(lambda logits: [count(logits, sampling) for sampling in kept])(np.log(p).astype(np.float32))
    assert [row.tolist() for row in counts] == [*kept.values()]


def test_a_logarithm_of_a_probability_is_that_of_the_model():
    logits = jnp.asarray([[0.0, math.log(3.0)], [5.0, 5.0]], jnp.bfloat16)
    np.testing.assert_allclose(
        jax.jit(logprobs_of)(logits, jnp.asarray([1, 0])), [math.log(0.75), math.log(0.5)], atol=2e-3
    )


@pytest.mark.slow
def test_generation_penalizes_the_prompt_and_the_text_so_far():
    model, prompts = make(layers=1, pe="none"), ids_of(3, 5)
    new, logits = generate(model, prompts, 6, segment_ids=SEGMENTS, sampling=PENALTIES, return_logits=True)
    for row, read in enumerate(np.asarray(prompts)):
        own = read[np.asarray(SEGMENTS)[row] == np.asarray(SEGMENTS)[row, -1]]
        for step in range(6):
            text = np.asarray(new)[row, :step].tolist()
            expected = penalized_by_loops(logits[row, step], own, text, PENALTIES)
            assert int(new[row, step]) == expected.argmax()
    assert (np.asarray(new) != np.asarray(logits.argmax(-1))).any()


@pytest.mark.slow
def test_a_stream_has_the_same_penalties_and_the_logarithms_of_the_model():
    model, prompts, key = make(), ids_of(2, 5), jax.random.key(4)
    sampling = PENALTIES._replace(temperature=1.5, min_p=0.05, top_k=7)
    new, logits = generate(model, prompts, 6, sampling=sampling, key=key, return_logits=True, window=4)
    steps = [*stream(model, prompts, 6, sampling=sampling, key=key, return_logprobs=True, window=4)]
    np.testing.assert_array_equal(jnp.stack([ids for ids, _ in steps], 1), new)
    expected = jnp.take_along_axis(jax.nn.log_softmax(logits, -1), new[..., None], -1)[..., 0]
    np.testing.assert_allclose(jnp.stack([values for _, values in steps], 1), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("message", "setting"),
    [
        ("min_p must be from 0 to 1, got 1.5", {"min_p": 1.5}),
        ("min_p must be from 0 to 1, got nan", {"min_p": math.nan}),
        ("repetition_penalty must be above 0 and finite, got 0", {"repetition_penalty": 0.0}),
        ("repetition_penalty must be above 0 and finite, got inf", {"repetition_penalty": math.inf}),
        ("presence_penalty must be from -2 to 2, got 2.5", {"presence_penalty": 2.5}),
        ("frequency_penalty must be from -2 to 2, got nan", {"frequency_penalty": math.nan}),
    ],
)
def test_settings_out_of_range_are_refused(message, setting):
    with pytest.raises(ValueError, match=message):
        check_sampling(Sampling(**setting), VOCAB)
