"""Token ids and what is said of them: ids without a row, masks of padding in every convention, refusals."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from pejax import TokenPositions
from pejax.models import EncoderDecoder, encoder_decoder
from tests.support.decoders import VOCAB, ids_of, make, of_config

MASK = jnp.asarray([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0], [1, 1, 0, 1, 1, 1]])
PAD = 3


def padded(padding, **options):
    return of_config(dataclasses.replace(make(**options).config, padding=padding))


def at(model, positions):
    """Return the logits of tokens at these positions."""
    return model(IDS, tokens=TokenPositions(jnp.asarray(positions, jnp.int32), segment_ids=MASK))


IDS = jnp.where(MASK, ids_of(3, 6) % PAD, PAD)
SKIPPED = [[0, 0, 0, 1, 2, 3], [0, 1, 2, 3, 4, 0], [0, 1, 0, 2, 3, 4]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("padding", "positions"), [("skipped", SKIPPED), ("counted", [[*range(6)]] * 3), (PAD, SKIPPED)], ids=str
)
@pytest.mark.parametrize("causal", [True, False])
def test_an_attention_mask_gives_the_positions_of_the_architecture(padding, positions, causal):
    model = padded(padding, pe="learned", causal=causal)
    result, expected = model(IDS, attention_mask=MASK), at(model, positions)
    seen = np.asarray(MASK, bool)
    np.testing.assert_allclose(result[seen], expected[seen], atol=1e-6)
    np.testing.assert_array_equal(model(IDS, attention_mask=MASK == 1), result)


@pytest.mark.slow
def test_the_conventions_differ_where_padding_is_on_the_left():
    skipped, counted = (padded(padding, pe="learned")(IDS, attention_mask=MASK) for padding in ("skipped", "counted"))
    assert float(jnp.abs(skipped - counted)[0, 2:].max()) > 1e-2
    np.testing.assert_allclose(skipped[1, :5], counted[1, :5], atol=1e-6)


@pytest.mark.slow
def test_ids_of_padding_count_nothing_whatever_the_mask_says():
    """As in RoBERTa: tokens of other ids that the mask hides are counted."""
    model, ids = padded(PAD, pe="learned"), IDS.at[0, 1].set(0)
    tokens = TokenPositions(jnp.asarray([[0, 0, 1, 2, 3, 4], *SKIPPED[1:]], jnp.int32), segment_ids=MASK)
    result, expected = model(ids, attention_mask=MASK), model(ids, tokens=tokens)
    np.testing.assert_allclose(result[np.asarray(MASK, bool)], expected[np.asarray(MASK, bool)], atol=1e-6)
    whole = IDS[:1, 2:]
    np.testing.assert_allclose(model(whole), at_start(model, whole), atol=1e-6)


def at_start(model, ids):
    return model(ids, tokens=TokenPositions(jnp.arange(ids.shape[1], dtype=jnp.int32)))


def refused(kind, message, call):
    with pytest.raises(kind, match=re.escape(message)) as error:
        call()
    assert "\n" not in str(error.value)


def test_masks_that_are_refused():
    model = make()
    call = lambda mask, **more: lambda: model(IDS, attention_mask=mask, **more)
    refused(TypeError, "an array of booleans (B, T) or None, got float32", call(jnp.zeros((3, 6))))
    refused(ValueError, "got int32 (3, 5) beside ids (3, 6)", call(MASK[:, 1:]))
    refused(ValueError, "got 0 to 2: numbers of documents belong in segment_ids", call(2 * MASK))
    message = "at most one of segment_ids, tokens, attention_mask may be given"
    refused(ValueError, message, call(MASK, segment_ids=MASK))
    refused(ValueError, message, call(MASK, tokens=TokenPositions(jnp.arange(6))))
    message = f"attention_mask must be given where ids hold padding, id {PAD}, got None"
    refused(ValueError, message, lambda: padded(PAD)(IDS))
    refused(TypeError, "padding must be a string or an int, got None", lambda: padded(None))
    for padding in ("left", VOCAB, -1):
        refused(ValueError, "padding must be one of skipped, counted", lambda padding=padding: padded(padding))


@pytest.mark.slow
@pytest.mark.parametrize("causal", [True, False])
def test_ids_outside_the_vocabulary_are_refused(causal):
    model = make(causal=causal)
    for wrong in (VOCAB, -1, 300):
        ids = ids_of(2, 4).at[1, 2].set(wrong)
        message = f"ids must be from 0 to {VOCAB - 1}, one of {VOCAB} ids, got {wrong}"
        refused(ValueError, message, lambda ids=ids: model(ids))
        refused(ValueError, message, lambda ids=ids: model.states(np.asarray(ids)))
    refused(TypeError, "ids must be an array of integers (B, T), got float32", lambda: model(jnp.ones((1, 4))))
    refused(TypeError, "ids must be an array of integers (B, T), got bool", lambda: model(jnp.ones((1, 4), bool)))
    assert jax.jit(lambda ids: model(ids))(jnp.full((1, 4), 300)).shape == (1, 4, VOCAB)
    known, wrong = ids_of(1, 4), jnp.full((1, 4), 300)
    refused(ValueError, "ids must be from 0 to 10", lambda: jax.jit(lambda: model(wrong))())
    assert jax.eval_shape(lambda: model(known)).shape == (1, 4, VOCAB)


def test_types_outside_the_table_are_refused():
    model = of_config(dataclasses.replace(make().config, types=2))
    message = "type_ids must be from 0 to 1, one of 2 ids, got 2"
    refused(ValueError, message, lambda: model(ids_of(1, 4), type_ids=jnp.full((1, 4), 2)))


@pytest.mark.slow
def test_ids_of_source_and_target_are_refused():
    model = EncoderDecoder(encoder_decoder(vocab=7, width=8, encoder_layers=1, decoder_layers=1), rngs=nnx.Rngs(0))
    right, wrong = jnp.full((1, 3), 6), jnp.full((1, 3), 7)
    message = "ids must be from 0 to 6, one of 7 ids, got 7"
    refused(ValueError, message, lambda: model(wrong, right))
    refused(ValueError, message, lambda: model(right, wrong))
