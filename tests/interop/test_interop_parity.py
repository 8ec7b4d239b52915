"""Loaded and saved models against transformers: logits of random models of every architecture, padded and long.

`pytest -n 0 -m parity tests/interop -rP` prints the largest difference of each.
"""

import inspect
import json
import warnings

import jax.numpy as jnp
import numpy as np
import pytest

from pejax.interop import load, save
from pejax.interop.architectures import ARCHITECTURES
from pejax.interop.config import read_json
from pejax.models import generate
from pejax.models.generation import by_layer
from tests.support.hub_folders import CONFIGS, run, target_of, tensors, write
from tests.support.hub_pictures import PICTURES
from tests.support.peers import peer

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

OF_ROBERTA = ("roberta", "xlm-roberta", "camembert", "mpnet", "esm")
ELSEWHERE = ("new", "mimo", "qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text", "granite_docling_text")
"""A type that transformers has not, and text towers: in test_families_parity.py and test_trunks_parity.py."""
CLASSES = {
    "modernbert-decoder": "AutoModelForCausalLM", "siglip_text_model": "SiglipTextModel",
    "siglip2_text_model": "Siglip2TextModel", "metaclip_2_text_model": "MetaClip2TextModel",
}  # fmt: skip
"""Classes that make a model, where its type does not say so."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


def maker(name: str):
    """Return the class of transformers that makes and loads such a model."""
    model_type = CONFIGS[name]["model_type"]
    masked = ("roformer", "gte", "jina_embeddings_v3", "electra", "mpnet", "esm")
    kind = "AutoModelForMaskedLM" if "bert" in model_type or model_type in masked else "AutoModelForCausalLM"
    kind = "AutoModelForSeq2SeqLM" if "t5" in model_type else "AutoModel" if "clip" in model_type else kind
    return getattr(peer("transformers"), CLASSES.get(model_type, kind))


def made(folders, name: str):
    """Return a random model of transformers, and the folder it is saved in."""
    torch, transformers = peer("torch"), peer("transformers")
    config = dict(CONFIGS[name])
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(config.pop("model_type"), **config)
    kind = maker(name)
    create = kind.from_config if kind.__name__.startswith("Auto") else kind._from_config
    model = create(config, attn_implementation="eager").eval()
    shifted = "gemma" in name or name == "nemotron"
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if not parameter.requires_grad:  # RoFormer's angles
                continue
            is_factor = path.endswith("weight") and (parameter.ndim == 1 or "_norm" in path)
            parameter.normal_(std=0.1 if is_factor else 0.2)
            if is_factor and not shifted:
                parameter += 1.0
    folder = folders / name.replace(", ", "_")
    if not folder.exists():
        model.save_pretrained(folder)
    return model, folder


def logits(model, ids, mask=None):
    """Return the logits of transformers; positions count the tokens that are not padding."""
    torch = peer("torch")
    options = {}
    if mask is not None:
        options["attention_mask"] = torch.as_tensor(mask)
        if "position_ids" in inspect.signature(model.forward).parameters:
            learned = getattr(model.config, "position_embedding_type", "absolute") == "absolute"
            rows = model.config.model_type in OF_ROBERTA and learned  # their positions are rows of the table
            first = model.config.pad_token_id + 1 if rows else 0
            options["position_ids"] = torch.as_tensor(first + np.maximum(np.cumsum(mask, axis=1) - 1, 0))
    if model.config.is_encoder_decoder:
        options["decoder_input_ids"] = torch.as_tensor(target_of(ids))
        options |= {} if mask is None else {"decoder_attention_mask": options["attention_mask"]}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return made_by(model(torch.as_tensor(ids), use_cache=False, **options))


def made_by(output) -> np.ndarray:
    """Return the logits in the output of a model of transformers, or its states."""
    return (output.logits if "logits" in output else output.last_hidden_state).numpy()


def ids_of(length: int) -> np.ndarray:
    return np.random.default_rng(1).integers(2, 97, (2, length))


def test_every_architecture_is_compared():
    result = {config["model_type"] for config in (*CONFIGS.values(), *PICTURES.values())}
    assert result == {*ARCHITECTURES} - {*ELSEWHERE}


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_transformers(name, folders):
    theirs, folder = made(folders, name)
    ours, _ = load(folder)
    length = 40
    ids = ids_of(length)
    expected = logits(theirs, ids)
    assert np.std(expected) > 0.1
    difference = np.max(np.abs(run(ours, ids) - expected))
    print(f"largest difference: {name}: {difference:.1e} of a standard deviation of {np.std(expected):.2f}")
    assert difference < 1e-4 + 1e-7 * length


@pytest.mark.parametrize("name", CONFIGS)
def test_padding_on_either_side_changes_nothing(name, folders):
    theirs, folder = made(folders, name)
    ours, _ = load(folder)
    ids, mask = ids_of(14), np.ones((2, 14), int)
    mask[0, :4], mask[1, 10:] = 0, 0
    seen = mask.astype(bool)
    difference = np.abs(run(ours, ids, mask) - logits(theirs, ids, mask))[seen]
    assert np.max(difference) < 1e-4


DECODERS = [name for name in CONFIGS if "t5" not in name]


@pytest.mark.parametrize("name", DECODERS)
def test_an_attention_mask_says_to_both_the_same(name, folders):
    """Without positions: those that the architecture counts, of padding on the left, on the right and in between."""
    theirs, folder = made(folders, name)
    ours, _ = load(folder)
    torch, ids, mask = peer("torch"), ids_of(14), np.ones((2, 14), int)
    mask[0, :4], mask[1, 5:7], mask[1, 11:] = 0, 0, 0
    mask[1, 5:7] = name == "mpnet"  # its bias counts padding between tokens, and its table of positions does not
    for reference in (ids, np.where(mask, ids, theirs.config.pad_token_id or 0)):
        with torch.no_grad():
            expected = made_by(
                theirs(torch.as_tensor(reference), attention_mask=torch.as_tensor(mask), use_cache=False)
            )
        compute = ours if ours.head is not None else ours.states
        result = compute(jnp.asarray(reference), attention_mask=jnp.asarray(mask))
        difference = np.max(np.abs(np.asarray(result) - expected)[mask.astype(bool)])
        print(f"largest difference with an attention mask: {name}: {difference:.1e}")
        assert difference < 1e-4


@pytest.mark.parametrize("name", ["llama", "gpt2", "opt", "bloom", "gpt_neox"])
def test_a_list_of_prompts_is_continued_as_a_padded_batch_is(name, folders):
    """In `generate`, transformers counts no padding, whatever the same model does in a plain call."""
    theirs, folder = made(folders, name)
    ours, _ = load(folder)
    torch, ids, mask = peer("torch"), ids_of(9), np.ones((2, 9), int)
    mask[0, :4] = 0
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    expected = theirs.generate(torch.as_tensor(ids), attention_mask=torch.as_tensor(mask), **options)
    result = generate(ours, [ids[0, 4:], ids[1]], 6)
    np.testing.assert_array_equal(result, expected[:, 9:].numpy())


@pytest.mark.parametrize("smallest", [0, 2**20], ids=["by layer", "one program"])
def test_longrope_switches_its_factors_where_transformers_does(smallest, folders, monkeypatch):
    """At token 17 of 16 both compute all tokens again, with the long factors; later ones are added one by one."""
    theirs, folder = made(folders, "phi3, longrope")
    ours, _ = load(folder)
    monkeypatch.setattr(by_layer, "SMALLEST", smallest)
    ids = ids_of(8)[:1]
    options = {"max_new_tokens": 24, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    expected = theirs.generate(peer("torch").as_tensor(ids), **options)[:, 8:].numpy()
    np.testing.assert_array_equal(generate(ours, ids, 24), expected)
    assert (np.asarray(generate(ours, ids, 24, policy="stepwise")) == expected).sum() < 24


@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_saved_is_what_transformers_saved(name, folders, tmp_path):
    theirs, folder = made(folders, name)
    save(*_order(load(folder), tmp_path / "out"))
    before, after = tensors(folder), tensors(tmp_path / "out")
    assert before.keys() == after.keys()
    for key, value in before.items():
        assert value.dtype == after[key].dtype
        assert value.tobytes() == after[key].tobytes(), key
    again = maker(name).from_pretrained(tmp_path / "out", attn_implementation="eager").eval()
    np.testing.assert_array_equal(logits(again, ids_of(9)), logits(theirs, ids_of(9)))


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("gemma", "hidden_act", "gelu_python"),
        ("nanochat", "final_logit_softcapping", None),
        ("t5", "scale_decoder_outputs", None),
        ("umt5", "scale_decoder_outputs", None),
    ],
)
def test_a_value_means_what_it_means_to_transformers(name, key, value, folders, monkeypatch):
    changed = f"{name}, changed"
    monkeypatch.setitem(CONFIGS, changed, {**CONFIGS[name], key: value})
    theirs, folder = made(folders, changed)
    config = read_json(folder / "config.json")
    (folder / "config.json").write_text(json.dumps({**config, key: value}))
    assert np.max(np.abs(run(load(folder)[0], ids_of(40)) - logits(theirs, ids_of(40)))) < 1e-4


def _order(loaded, out):
    model, source = loaded
    return model, out, source


@pytest.mark.parametrize(
    "extend",
    [
        "linear(factor=4.0)", "ntk(factor=4.0)", "dynamic_ntk(factor=2.0)", "yarn(factor=4.0)", "llama3(factor=4.0)",
        "longrope(factor=4.0, long_factors=(1.0, 1.5, 2.0, 4.0))",
    ],
)  # fmt: skip
def test_a_saved_extension_is_that_of_transformers(extend, tmp_path):
    folder = write(tmp_path / "a", max_position_embeddings=16)
    model, source = load(folder, extend=extend)
    save(model, tmp_path / "b", source)
    theirs = maker("llama").from_pretrained(tmp_path / "b", attn_implementation="eager").eval()
    ids = ids_of(40)
    assert np.max(np.abs(run(model, ids) - logits(theirs, ids))) < 1e-4


def test_a_mixtral_saved_with_an_extension_is_that_of_transformers(tmp_path):
    model, source = load(write(tmp_path / "a", "mixtral", max_position_embeddings=16), extend="yarn(factor=4.0)")
    save(model, tmp_path / "b", source)
    theirs = maker("mixtral").from_pretrained(tmp_path / "b", attn_implementation="eager").eval()
    assert np.max(np.abs(run(model, ids_of(40)) - logits(theirs, ids_of(40)))) < 1e-4
