"""Families beyond what is compared of every model: longer than trained, step by step, and files of their makers."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from test_interop_parity import ids_of, logits, made

from pejax.interop import load, save
from pejax.models import generate, generate_answers
from tests.support.hub_families import FAMILIES
from tests.support.hub_folders import rewrite, run, tensors
from tests.support.peers import peer

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]
LEARNED = ("electra", "mpnet", "esm, learned", "siglip_text_model", "siglip2_text_model", "metaclip_2_text_model")
CAUSAL = [name for name in FAMILIES if FAMILIES[name]["model_type"] in (
    "helium", "cwm", "internlm3", "granite_swa", "jais2", "olmo", "vaultgemma", "modernbert-decoder", "nanochat",
)]  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return tmp_path_factory.mktemp("families")


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in LEARNED])
def test_longer_texts_than_trained_on_have_the_logits_of_transformers(name, folders):
    theirs, folder = made(folders, name)
    length = 100
    ids = ids_of(length)
    every = np.ones((2, length), int)  # T5Gemma of transformers takes id 0 for padding where no mask is given
    difference = np.max(np.abs(run(load(folder)[0], ids) - logits(theirs, ids, every)))
    print(f"largest difference beyond the trained length: {name}: {difference:.1e}")
    assert difference < 1e-4 + 1e-7 * length


@pytest.mark.parametrize("name", CAUSAL)
def test_tokens_made_step_by_step_are_those_of_transformers(name, folders):
    theirs, folder = made(folders, name)
    torch, ids = peer("torch"), ids_of(12)
    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    expected = theirs.generate(torch.as_tensor(ids), attention_mask=torch.ones((2, 12), dtype=torch.long), **options)
    ours = generate(load(folder)[0], jnp.asarray(ids), 12)
    np.testing.assert_array_equal(np.asarray(ours), expected[:, 12:].numpy())


@pytest.mark.parametrize(("name", "start"), [("t5gemma", 2), ("umt5", 0)])
def test_answers_made_step_by_step_are_those_of_transformers(name, start, folders):
    theirs, folder = made(folders, name)
    torch, ids = peer("torch"), ids_of(12)
    options = {"max_new_tokens": 10, "do_sample": False, "eos_token_id": None, "decoder_start_token_id": start}
    expected = theirs.generate(torch.as_tensor(ids), attention_mask=torch.ones((2, 12), dtype=torch.long), **options)
    ours = generate_answers(load(folder)[0], jnp.asarray(ids), None, 10, start=start)
    np.testing.assert_array_equal(np.asarray(ours), expected[:, 1:].numpy())


@pytest.mark.parametrize("factor", [None, 2.0, 8.0])
def test_a_gte_of_its_makers_is_that_of_transformers(factor, folders, tmp_path):
    """Their NTK scaling multiplies the base by f and divides all angles by f^(2/D)."""
    torch, transformers = peer("torch"), peer("transformers")
    theirs, folder = made(folders, "gte")
    base, channels = FAMILIES["gte"]["rope_theta"], 8
    if factor is not None:
        scaled = {"rope_type": "linear", "factor": factor ** (2 / channels), "rope_theta": base * factor}
        config = transformers.GteConfig(**{**FAMILIES["gte"], "rope_parameters": scaled})
        other = transformers.GteForMaskedLM._from_config(config, attn_implementation="eager").eval()
        other.load_state_dict(theirs.state_dict())
        theirs = other
    names = {name.replace("gte.", "new.", 1): value for name, value in tensors(folder).items()}
    scaling = {} if factor is None else {"rope_scaling": {"type": "ntk", "factor": factor}}
    makers = {"position_embedding_type": "rope", "pack_qkv": True, "unpad_inputs": False, "logn_attention_scale": False,
              "layer_norm_type": "layer_norm", "logn_attention_clip1": False}  # fmt: skip
    config = {**FAMILIES["gte"], **scaling, **makers, "model_type": "new", "architectures": ["NewForMaskedLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    rewrite(tmp_path, names)
    ids = ids_of(40)
    difference = np.max(np.abs(run(load(tmp_path)[0], ids) - logits(theirs, ids)))
    print(f"largest difference: new, factor {factor}: {difference:.1e}")
    assert difference < 1e-4
    assert torch.is_tensor(next(theirs.parameters()))


@pytest.mark.parametrize("prefix", ["bert.", ""])
def test_a_nomic_bert_of_its_makers_is_that_of_transformers(prefix, folders, tmp_path):
    theirs, folder = made(folders, "nomic_bert")
    config = {
        "model_type": "nomic_bert", "vocab_size": 97, "n_embd": 32, "n_inner": 48, "n_layer": 2, "n_head": 4,
        "max_trained_positions": 48, "n_positions": 8192, "rotary_emb_base": 500, "layer_norm_epsilon": 1e-12,
        "activation_function": "swiglu", "type_vocab_size": 2, "prenorm": False, "rotary_emb_fraction": 1.0,
        "architectures": ["NomicBertForPreTraining"], "rotary_scaling_factor": None, "fused_bias_fc": True,
    }  # fmt: skip
    names = {name.replace("nomic_bert.", prefix, 1): value for name, value in tensors(folder).items()}
    (tmp_path / "config.json").write_text(json.dumps(config))
    rewrite(tmp_path, names)
    ids = ids_of(40)
    assert np.max(np.abs(run(load(tmp_path)[0], ids) - logits(theirs, ids))) < 1e-4


@pytest.mark.parametrize("rounded", [False, True])
def test_frequencies_in_a_file_of_esm_are_obeyed(rounded, folders, tmp_path):
    """As transformers does; in files of models that were trained in float16, they are rounded."""
    torch = peer("torch")
    theirs, folder = made(folders, "esm")
    stored = theirs.esm.rotary_embeddings.inv_freq
    exact = stored.clone()
    if rounded:
        stored.copy_(stored.to(torch.float16).to(torch.float32))
    values = {name: value for name, value in tensors(folder).items() if not name.endswith("inv_freq")}
    own = {f"esm.encoder.layer.{n}.attention.self.rotary_embeddings.inv_freq": stored.numpy().copy() for n in range(2)}
    own["esm.embeddings.position_embeddings.weight"] = np.ones((48, 32), np.float32)  # published files may have it
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.json").write_bytes((folder / "config.json").read_bytes())
    rewrite(tmp_path / "a", {**values, **own})
    ids = ids_of(1000)
    model, source = load(tmp_path / "a")
    difference = np.max(np.abs(run(model, ids) - logits(theirs, ids)))
    stored.copy_(exact)
    away = np.max(np.abs(run(load(folder)[0], ids) - run(model, ids)))
    print(f"largest difference: esm, rounded frequencies {rounded}: {difference:.1e}, {away:.1e} from exact ones")
    assert difference < 3e-4
    assert (away > 1e-2) == rounded
    save(model, tmp_path / "b", source)
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()
