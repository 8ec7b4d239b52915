"""T5 against transformers where the head is not the table, and in greedy generation."""

import warnings

import jax.numpy as jnp
import numpy as np
import pytest

from pejax.interop import load
from pejax.models import generate_answers
from tests.support.hub_folders import rewrite, run, target_of, tensors, write
from tests.support.peers import peer

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]
IDS = np.random.default_rng(1).integers(2, 97, (2, 40))


def theirs(folder):
    return peer("transformers").AutoModelForSeq2SeqLM.from_pretrained(folder, attn_implementation="eager").eval()


@pytest.mark.parametrize(
    "keys", [{}, {"tie_word_embeddings": False}, {"tie_word_embeddings": True, "scale_decoder_outputs": False}]
)
@pytest.mark.parametrize("head", ["none", "other"])
def test_the_head_is_tied_and_scaled_as_by_transformers(keys, head, tmp_path):
    torch = peer("torch")
    if head == "none" and keys.get("tie_word_embeddings") is False:
        pytest.skip("refused here: the config says that there is a head")
    folder = write(tmp_path / "a", "t5")
    values = tensors(folder)
    if head == "other":
        values["lm_head.weight"] = values["shared.weight"][::-1].copy()
    rewrite(folder, values, **keys)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ids, target = torch.as_tensor(IDS), torch.as_tensor(target_of(IDS))
        expected = theirs(folder)(ids, decoder_input_ids=target).logits.numpy()
    assert np.max(np.abs(run(load(folder)[0], IDS) - expected)) < 1e-4


def test_greedy_answers_are_those_of_transformers(tmp_path):
    torch = peer("torch")
    folder = write(tmp_path / "a", "t5, gated", tie_word_embeddings=True, num_decoder_layers=2)
    model, _ = load(folder)
    options = {"max_new_tokens": 12, "do_sample": False, "decoder_start_token_id": 0, "eos_token_id": None}
    expected = theirs(folder).generate(torch.as_tensor(IDS), **options)[:, 1:].numpy()
    np.testing.assert_array_equal(np.asarray(generate_answers(model, jnp.asarray(IDS), None, 12)), expected)
