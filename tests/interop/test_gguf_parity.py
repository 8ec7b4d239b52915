"""GGUF files of random models of transformers: logits of the model, and tensors that its own GGUF loader reads.

`pytest -n 0 -m parity tests/interop/test_gguf_parity.py -rP` prints the largest difference of each.
"""

import warnings

import numpy as np
import pytest

from pejax.interop import load, save
from pejax.interop.source_files import open_source
from tests.support.gguf_cases import HEADLESS, QUICK, SLOW, config_of
from tests.support.gguf_files import write_gguf
from tests.support.hub_folders import CONFIGS, run
from tests.support.peers import peer

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

KNOWN = ("llama", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3", "bloom", "starcoder2", "nemotron", "stablelm")
"""Families that the loader of transformers reads, without experts: it names their tensors otherwise than its files."""


def made(name, folder):
    """Return a random model of transformers, saved in a folder."""
    torch, transformers = peer("torch"), peer("transformers")
    said = dict(config_of(name)) if name != "llama" else dict(CONFIGS["llama"])
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(said.pop("model_type"), **said)
    kind = transformers.AutoModel if name in HEADLESS else transformers.AutoModelForCausalLM
    model = kind.from_config(config, attn_implementation="eager").eval()
    shifted = "gemma" in name or name == "nemotron"
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            is_factor = path.endswith("weight") and (parameter.ndim == 1 or "_norm" in path)
            parameter.normal_(std=0.1 if is_factor else 0.2)
            if is_factor and not shifted:
                parameter += 1.0
    model.save_pretrained(folder)
    return model


def outputs(model, ids):
    """Return the logits of a model of transformers, or its states."""
    torch = peer("torch")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        output = (
            model(torch.as_tensor(ids), use_cache=False)
            if model.config.model_type not in HEADLESS
            else model(torch.as_tensor(ids))
        )
    return (output.logits if "logits" in output else output.last_hidden_state).numpy()


@pytest.mark.parametrize("name", [*QUICK, *SLOW, *HEADLESS])
def test_outputs_are_those_of_the_model_that_the_file_was_made_from(name, tmp_path):
    theirs = made(name, tmp_path / "a")
    ours, _ = load(write_gguf(tmp_path / "a.gguf", tmp_path / "a", leave=("pooler.",)))
    ids = np.random.default_rng(1).integers(2, 97, (2, 30))
    expected = outputs(theirs, ids)
    assert np.std(expected) > 0.1
    difference = np.max(np.abs(run(ours, ids) - expected))
    print(f"largest difference: {name}: {difference:.1e} of a standard deviation of {np.std(expected):.2f}")
    assert difference < 1e-4


@pytest.mark.parametrize("name", KNOWN)
def test_tensors_are_those_that_transformers_reads(name, tmp_path):
    theirs = made(name, tmp_path / "a")
    path = write_gguf(tmp_path / "a.gguf", tmp_path / "a", general__name="a")
    loader = peer("transformers.modeling_gguf_pytorch_utils").load_gguf_checkpoint
    expected = loader(str(path), return_tensors=True, model_to_load=theirs)["tensors"]
    source, read = open_source(path)
    assert {*expected} == {*source.tensors}
    for key, value in expected.items():
        np.testing.assert_allclose(read(key, ()), value.numpy(), rtol=0, atol=1e-6, err_msg=key)


@pytest.mark.parametrize("name", ["gemma3_text", "olmo3", "phi3", "granite", "gpt_oss", "falcon, new", "modernbert"])
def test_the_saved_folder_is_one_of_transformers(name, tmp_path):
    theirs = made(name, tmp_path / "a")
    model, source = load(write_gguf(tmp_path / "a.gguf", tmp_path / "a", tokenizer__ggml__padding_token_id=0))
    save(model, tmp_path / "b", source)
    transformers = peer("transformers")
    kind = transformers.AutoModel if name in HEADLESS else transformers.AutoModelForCausalLM
    again = kind.from_pretrained(tmp_path / "b", attn_implementation="eager").eval()
    ids = np.random.default_rng(1).integers(2, 97, (2, 30))
    assert np.max(np.abs(outputs(again, ids) - outputs(theirs, ids))) < 1e-4
