"""A rolling cache: each way to count equals dense attention over the kept keys at those positions; blocks, batches."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pejax._tokens.positions import TokenPositions
from pejax.models import Rolling, generate, stream
from pejax.models.generation import steps
from tests.support.cases import mostly_slow, slow
from tests.support.decoders import TEXT_ENCODINGS, ids_of, make, of_config, rows_oracle

WINDOW, FIRST, COUNT = 3, 2, 10
EXTENDED = [
    ("rope(base=4)", "dynamic_ntk(factor=2)"),
    ("rope(base=4)", "self_extend(window=2)"),
    ("alibi", "slopes"),
    ("rope(base=4)", "linear+log_n"),
    ("rope(base=4)", "rerope(window=2)"),
    ("rope(base=4)", "yarn(factor=4)"),
    ("shaw", "pi"),
    ("none", "log_n"),
]


def kept(i: int, first: int, renumber: bool) -> dict[int, int]:
    """Return the position of every key that query i sees."""
    keys = [j for j in range(i + 1) if j < first or i - j < WINDOW]
    return {j: (n if renumber else j) for n, j in enumerate(keys)}


def shift_invariant(pe: str) -> bool:
    return make(pe=pe).stack.encoding.shift_invariant


def embeds(pe: str) -> bool:
    return make(pe=pe).stack.encoding.embed is not None


def close(actual, expected) -> None:
    size = max(1.0, float(np.abs(np.asarray(expected)).max()))
    np.testing.assert_allclose(np.asarray(actual) / size, np.asarray(expected) / size, rtol=0, atol=1e-5)


def check_oracle(model, first, renumber, prompt) -> None:
    """Compare the logits of a generation with the loop over kept keys."""
    options = {"window": WINDOW, "first": first, "renumber": renumber, "return_logits": True}
    new, result = generate(model, ids_of(1, prompt), COUNT - prompt, **options)
    ids = jnp.concatenate([ids_of(1, prompt), new], axis=1)[0, :-1]
    expected = rows_oracle(model, ids, lambda i: kept(i, first, renumber))
    close(result[0], expected[prompt - 1 :])


@pytest.mark.slow
@pytest.mark.parametrize("pe", mostly_slow([pe for pe in TEXT_ENCODINGS if shift_invariant(pe)], ("rope",)))
def test_without_first_tokens_both_ways_to_count_are_one(pe):
    model, options = make(pe=pe), {"window": WINDOW, "return_logits": True}
    _, anew = generate(model, ids_of(2, 6), 6, **options)
    _, own = generate(model, ids_of(2, 6), 6, renumber=False, **options)
    close(anew, own)


@pytest.mark.slow
@pytest.mark.parametrize("renumber", [True, False])
@pytest.mark.parametrize("pe", TEXT_ENCODINGS)
def test_it_is_dense_attention_over_the_kept_keys(pe, renumber):
    if renumber and embeds(pe):
        pytest.skip("refused")
    check_oracle(make(pe=pe), FIRST, renumber, prompt=8)


@pytest.mark.parametrize("renumber", [True, False])
@pytest.mark.parametrize(("pe", "extend"), [pytest.param(*item, marks=pytest.mark.slow) for item in EXTENDED], ids=str)
def test_it_is_dense_attention_with_the_parameters_of_the_length_that_it_counts(pe, extend, renumber):
    check_oracle(make(pe=pe, extend=extend, length=4), FIRST, renumber, prompt=7)


@pytest.mark.slow
def test_the_ways_to_count_differ_where_there_are_first_tokens():
    model, options = make(pe="rope(base=4)"), {"window": WINDOW, "first": FIRST, "return_logits": True}
    _, anew = generate(model, ids_of(1, 8), 4, **options)
    _, own = generate(model, ids_of(1, 8), 4, renumber=False, **options)
    assert float(jnp.abs(anew - own).max()) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("renumber", [slow(True), False])
@pytest.mark.parametrize("size", [4, *(pytest.param(size, marks=pytest.mark.slow) for size in (2, 5, 11))])
def test_a_block_of_tokens_is_one_token_at_a_time(size, renumber):
    """Also where the block is longer than the window, and where the first tokens are in the block."""
    model, rolling = make(pe="rope(base=4) + alibi"), Rolling(WINDOW, FIRST, renumber)
    ids = ids_of(2, 11)

    @jax.jit
    def run(cache, start, block):
        tokens = TokenPositions(start + jnp.arange(block.shape[1], dtype=jnp.int32))
        return model.cached(block, cache, tokens=tokens, extent=1)

    def by(size):
        cache, result = model.stack.empty_cache(2, rolling), []
        for start in range(0, 11, size):
            logits, cache = run(cache, start, ids[:, start : start + size])
            result.append(logits)
        return jnp.concatenate(result, axis=1), cache

    (logits, cache), (expected, slots) = by(size), by(1)
    close(logits, expected)
    for item, other in zip(jax.tree.leaves(cache), jax.tree.leaves(slots), strict=True):
        close(item, other)
    assert cache.tokens.positions.shape == (2, FIRST + WINDOW)
    assert {leaf.shape[-2] for layer in cache.layers for leaf in jax.tree.leaves(layer)} == {FIRST + WINDOW}


@pytest.mark.slow
@pytest.mark.parametrize("pe", ["rope(base=4)", "fire"])
def test_prompts_of_unequal_lengths_are_answered_as_each_alone(pe, monkeypatch):
    monkeypatch.setattr(steps, "BLOCK", 2)
    model, options = make(pe=pe, length=12), {"window": WINDOW, "first": FIRST, "return_logits": True}
    prompts = [ids_of(n, seed=n) for n in (12, 3)]
    new, result = generate(model, prompts, 6, **options)
    for row, prompt in enumerate(prompts):
        alone, expected = generate(model, [prompt], 6, **options)
        np.testing.assert_array_equal(new[row], alone[0])
        close(result[row], expected[0])


@pytest.mark.slow
def test_only_the_last_document_of_a_packed_prompt_is_kept():
    model, ids, options = make(), ids_of(1, 9), {"window": WINDOW, "first": FIRST, "return_logits": True}
    _, result = generate(model, ids, 4, segment_ids=jnp.asarray([[1] * 4 + [2] * 5]), **options)
    close(result, generate(model, ids[:, 4:], 4, **options)[1])


@pytest.mark.slow
def test_a_cache_that_never_fills_changes_nothing():
    model, ids = make(pe="rope(base=4)"), ids_of(2, 5)
    expected = generate(model, ids, 4, return_logits=True)[1]
    for renumber in (True, False):
        close(generate(model, ids, 4, window=8, renumber=renumber, return_logits=True)[1], expected)


@pytest.mark.slow
def test_layers_with_windows_of_their_own():
    model = make(pe="rope(base=4)")
    layers = tuple(
        dataclasses.replace(layer, attention=dataclasses.replace(layer.attention, window=window))
        for layer, window in zip(model.config.layers, (2, None), strict=True)
    )
    mixed = of_config(dataclasses.replace(model.config, layers=layers))
    _, result = generate(mixed, ids_of(1, 8), 4, window=5, return_logits=True)
    _, own = generate(mixed, ids_of(1, 8), 4, window=5, renumber=False, return_logits=True)
    close(result, own)


@pytest.mark.slow
def test_a_stream_is_what_generate_returns():
    model, prompts, options = make(), [ids_of(9), ids_of(2)], {"window": WINDOW, "first": FIRST, "stop": (0, 1)}
    tokens = jnp.stack([*stream(model, prompts, 5, **options)], axis=1)
    np.testing.assert_array_equal(tokens, generate(model, prompts, 5, **options)[:, : tokens.shape[1]])


@pytest.mark.slow
def test_what_a_rolling_cache_cannot_do_is_refused():
    model = make(pe="rope(base=4)", extend="dynamic_ntk(factor=2)", length=4)
    with pytest.raises(ValueError, match="policy must be 'stepwise' with a window"):
        generate(model, ids_of(1, 3), 4, window=6, policy="recompute")
    model = make(pe="fire")
    tokens = TokenPositions(jnp.arange(4, dtype=jnp.int32))
    with pytest.raises(ValueError, match="a rolling cache takes one token at a time where the positions of the keys"):
        model.cached(ids_of(1, 4), model.stack.empty_cache(1, Rolling(2)), tokens=tokens, extent=4)
