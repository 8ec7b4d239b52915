"""Vectors of texts from states: every mode against a loop, and what comes after the model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pejax.interop.heads import Head, HeadValues, head_logits
from pejax.interop.pooling import POOLS, Dense, pooled, torch_activation
from pejax.interop.predictions import LONGEST_ANSWER, best_answer
from pejax.interop.similarity import SIMILARITIES
from pejax.interop.text_batches import Tokens, batches, padded_length, row_count

RNG = np.random.default_rng(0)
STATES = RNG.normal(size=(3, 7, 4)).astype(np.float32)
LENGTHS, LEFT_OUT = (7, 3, 5), (0, 1, 2)


def by_loop(mode: str, states: np.ndarray, length: int, left_out: int) -> np.ndarray:
    """Return the vector of one text, in float64."""
    kept = states[left_out:length].astype(np.float64)
    numbers = np.arange(left_out + 1, length + 1)[:, None]
    return {
        "cls": kept[0], "lasttoken": kept[-1], "max": kept.max(axis=0), "mean": kept.sum(axis=0) / len(kept),
        "mean_sqrt_len_tokens": kept.sum(axis=0) / np.sqrt(len(kept)),
        "weightedmean": (numbers * kept).sum(axis=0) / numbers.sum(),
    }[mode]  # fmt: skip


def test_every_mode_is_that_of_a_loop():
    """A state of padding may be anything; several modes are one after the other."""
    mask = (np.arange(7) < np.asarray(LENGTHS)[:, None]).astype(np.int32)
    states = np.where(mask[..., None], STATES, np.nan)
    result = jax.jit(lambda *inputs: pooled([*POOLS], *inputs))(states, mask, np.asarray(LEFT_OUT, np.int32))
    rows = zip(STATES, LENGTHS, LEFT_OUT, strict=True)
    expected = [np.concatenate([by_loop(mode, *row) for mode in POOLS]) for row in rows]
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def test_states_of_16_bits_are_summed_in_float32():
    states, mask, left_out = jnp.ones((1, 4097, 1), jnp.bfloat16), jnp.ones((1, 4097), int), jnp.zeros(1, int)
    result = jax.jit(lambda *inputs: pooled(["mean_sqrt_len_tokens"], *inputs))(states, mask, left_out)
    np.testing.assert_allclose(result, [[4097**0.5]], rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cosine", [0.6, 0.0]), ("dot", [3.0, 0.0]),
        ("euclidean", [-(20.0**0.5), -(125.0**0.5)]), ("manhattan", [-6.0, -15.0]),
    ],
)  # fmt: skip
def test_similarities(name, expected):
    a, b = np.asarray([[3, 4]], np.float32), np.asarray([[1, 0], [8, -6]], np.float32)
    np.testing.assert_allclose(SIMILARITIES[name](a, b), [expected], rtol=1e-6, atol=1e-6)


def test_heads_are_those_of_numpy():
    pools = ("first", "last", "mean", "patches", "")
    kernels = RNG.normal(size=(2, 4, 4)).astype(np.float32)
    scale, shift, bias = RNG.normal(size=(3, 4)).astype(np.float32)
    out, dense = (
        Dense(jnp.asarray(kernels[0][:, :3]), None, "identity"),
        Dense(jnp.asarray(kernels[1]), jnp.asarray(bias), "tanh"),
    )
    values = HeadValues(out, dense, jnp.asarray(scale), jnp.asarray(shift), 1e-3)
    mask, last = jnp.asarray((np.arange(7) < 5).astype(np.int32)[None]), jnp.asarray([3], jnp.int32)
    compute = lambda x: [head_logits(Head("out", pool), values, x, mask, last) for pool in pools]
    result = dict(zip(pools, jax.jit(compute)(STATES[:1]), strict=True))
    x = STATES[0].astype(np.float64)
    pooled_states = {"first": x[0], "last": x[3], "mean": x[:5].mean(axis=0), "patches": x.mean(axis=0), "": x}
    for pool, y in pooled_states.items():
        y = np.tanh(y @ kernels[1] + bias)
        y = (y - y.mean(axis=-1, keepdims=True)) / np.sqrt(y.var(axis=-1, keepdims=True) + 1e-3) * scale + shift
        np.testing.assert_allclose(result[pool][0], y @ kernels[0][:, :3], atol=1e-5)


def test_activations_are_named_and_never_imported():
    assert torch_activation("torch.nn.modules.linear.Identity", "a") == "identity"
    for path in (
        "os.system.Tanh",
        "torch.nn.functional.tanh",
        "torch.nn.modules.Softplus",
        "Tanh",
        None,
        "torch.nnTanh",
    ):
        with pytest.raises(ValueError, match=r"a must be torch.nn's Identity, Tanh, .*, got "):
            torch_activation(path, "a")


class Pair:
    """What the package `tokenizers` gives for a pair: two tokens of a question, then those of the context."""

    def __init__(self, tokens: int) -> None:
        self.sequence_ids = [None, 0, 0, None, *[1] * tokens, None]
        self.offsets = [(0, 0), (0, 1), (2, 3), (0, 0), *((2 * n, 2 * n + 1) for n in range(tokens)), (0, 0)]


def test_the_answer_is_the_most_probable_part_of_the_context():
    pair, context = Pair(30), " ".join("abcdefghijklmnopqrstuvwxyz0123")
    for seed in range(20):
        logits = 3 * np.random.default_rng(seed).normal(size=(35, 2)).astype(np.float32)
        begins, ends = (np.exp(column) / np.exp(column).sum() for column in logits[4:34].astype(float).T)
        spans = [(a, b) for a in range(30) for b in range(a, min(30, a + LONGEST_ANSWER))]
        first, last = max(spans, key=lambda span: begins[span[0]] * ends[span[1]])
        answer = best_answer(context, logits, pair)
        assert (answer.start, answer.end) == (2 * first, 2 * last + 1)
        assert answer.label == context[2 * first : 2 * last + 1]
        np.testing.assert_allclose(answer.score, begins[first] * ends[last], rtol=1e-5)


# Batches


def test_lengths_are_few_and_waste_at_most_a_third():
    lengths = [padded_length(length, 100) for length in range(1, 101)]
    assert sorted({*lengths}) == [12, 16, 24, 32, 48, 64, 96, 100]
    assert all(length <= padded <= max(12, 1.5 * length) for length, padded in enumerate(lengths, 1))


def test_rows_fill_the_devices():
    counts = {rows: row_count(rows, 24, 8) for rows in range(1, 25)}
    assert sorted({*counts.values()}) == [8, 16, 24]
    assert all(rows <= count for rows, count in counts.items())


def test_every_row_is_in_one_batch_the_longest_first():
    rows = [Tokens(np.full(n, n, np.int32), np.ones(n, np.int32)) for n in (3, 20, 1, 14, 7, 2, 9)]
    result = [*batches(rows, 3, most=18, multiple=2, types=True)]
    assert [numbers.tolist() for numbers, _ in result] == [[1, 3, 6], [4, 0, 5], [2]]
    for numbers, batch in result:
        assert len(batch.ids) % 2 == 0
        for number, ids, mask, types in zip(numbers, *batch, strict=False):
            assert ids[: mask.sum()].tolist() == rows[number].ids.tolist()
            assert types.tolist() == mask.tolist()
            assert not ids[mask.sum() :].any()
