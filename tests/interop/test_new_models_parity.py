"""New models, written by pejax and loaded by transformers, on texts beyond the trained length where the peer can."""

import jax.numpy as jnp
import numpy as np
import pytest

from pejax.interop import load
from pejax.models import generate
from tests.support.hub_folders import run, target_of, write
from tests.support.peers import peer

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]
CLASSES = {"modernbert": "MaskedLM", "roformer": "MaskedLM", "t5": "Seq2SeqLM", "mt5": "Seq2SeqLM"}
LENGTHS = {"roformer": 48}  # its table of angles ends there
TRAINED = {"t5": {}, "mt5": {}, "xlnet": {}}  # have none


@pytest.mark.parametrize(
    "name", ["modernbert", "roformer", "t5", "mt5", "xlnet", "mixtral", "qwen3_moe", "olmoe", "gpt_oss"]
)
def test_transformers_computes_what_pejax_wrote(name, tmp_path):
    torch, transformers = peer("torch"), peer("transformers")
    folder = write(tmp_path / "a", name, **TRAINED.get(name, {"max_position_embeddings": 48}))
    length = LENGTHS.get(name, 80)
    ids = np.random.default_rng(2).integers(3, 97, (2, length))
    kind = getattr(transformers, f"AutoModelFor{CLASSES.get(name, 'CausalLM')}")
    theirs = kind.from_pretrained(folder, attn_implementation="eager").eval()
    options = {"decoder_input_ids": torch.as_tensor(target_of(ids))} if theirs.config.is_encoder_decoder else {}
    with torch.no_grad():
        expected = theirs(torch.as_tensor(ids), use_cache=False, **options).logits.numpy()
    difference = np.max(np.abs(run(load(folder)[0], ids) - expected))
    print(f"largest difference: {name}, {length} tokens: {difference:.1e}")
    assert np.std(expected) > 0.1
    assert difference < 1e-4 + 1e-7 * length


@pytest.mark.parametrize("name", ["mixtral", "gpt_oss"])
def test_greedy_tokens_are_those_of_transformers(name, tmp_path):
    torch, transformers = peer("torch"), peer("transformers")
    folder = write(tmp_path / "a", name)
    ids = np.random.default_rng(4).integers(3, 97, (2, 9))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    options = {"max_new_tokens": 10, "do_sample": False, "eos_token_id": None}
    expected = theirs.generate(torch.as_tensor(ids), attention_mask=torch.ones((2, 9), dtype=torch.long), **options)
    ours = generate(load(folder)[0], jnp.asarray(ids), 10)
    np.testing.assert_array_equal(np.asarray(ours), expected[:, 9:].numpy())
