"""Models that were made here, as transformers opens them: the same logits, beyond the trained length too."""

import json

import jax
import numpy as np
import pytest

from pejax.interop import save, source_from_model
from tests.interop.test_new_source import TEXTS, picture, text
from tests.support.peers import peer

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("name", TEXTS)
def test_logits_are_those_of_transformers(name, tmp_path):
    torch, transformers = peer("torch"), peer("transformers")
    model = text(**TEXTS[name])
    save(model, tmp_path / "saved", source_from_model(model))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved", attn_implementation="eager").eval()
    kept = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert type(theirs).__name__ == kept["architectures"][0]
    assert theirs.config.eos_token_id is theirs.config.pad_token_id is None
    ids = np.random.default_rng(0).integers(0, 97, (2, 30 if "learned" in str(TEXTS[name]) else 60))
    with torch.no_grad():
        expected = theirs(torch.as_tensor(ids)).logits.numpy()
    np.testing.assert_allclose(model(ids), expected, atol=2e-5 * np.std(expected) + 1e-5)


def test_logits_of_pictures_are_those_of_transformers(tmp_path):
    torch, transformers = peer("torch"), peer("transformers")
    model = picture()
    save(model, tmp_path / "saved", source_from_model(model))
    theirs = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "saved").eval()
    images = np.asarray(jax.random.normal(jax.random.key(0), (2, 8, 8, 1)))
    with torch.no_grad():
        expected = theirs(torch.as_tensor(images.transpose(0, 3, 1, 2).copy())).logits.numpy()
    np.testing.assert_allclose(model(images), expected, atol=1e-5 + 2e-5 * np.std(expected))
