"""Values of config.json that people and programs write: equal numbers are taken, others refused in one line."""

import json
import re

import numpy as np
import pytest
from safetensors import safe_open

from pejax import interop
from pejax.interop import files
from pejax.interop.config import Config, read_json
from pejax.interop.model_config import read_config
from pejax.interop.source_files import open_source
from tests.support.cases import mostly_slow
from tests.support.hub_folders import CONFIGS, rewrite, tensors, write
from tests.support.hub_pictures import PICTURES

ALL = {**CONFIGS, **PICTURES}
QUICK = ("llama", "gpt2", "t5", "vit")
ODD = [
    *("16", "x", 16.0, 2.5, -1, 0, 10**400, float("inf"), float("nan"), True, False, None, [], [1], ["x", 2.0]),
    *({}, {"a": 1}, {"rope_type": []}, {"rope_type": "longrope", "long_factor": 2.0}),
]

OLD = {
    **{"return_dict": True, "output_hidden_states": False, "output_attentions": False, "torchscript": False},
    **{"torch_dtype": "float32", "use_bfloat16": False, "tf_legacy_loss": False, "pruned_heads": {}, "prefix": "a"},
    **{"is_decoder": False, "cross_attention_hidden_size": 8, "task_specific_params": {}, "num_labels": 2},
    **{"add_cross_attention": False, "tie_encoder_decoder": False, "max_length": 20, "min_length": 0, "num_beams": 4},
    **{"do_sample": False, "early_stopping": True, "num_beam_groups": 1, "diversity_penalty": 0.0, "top_k": 50},
    **{"temperature": 1.0, "top_p": 1.0, "typical_p": 1.0, "repetition_penalty": 1.0, "length_penalty": 1.0},
    **{"no_repeat_ngram_size": 3, "encoder_no_repeat_ngram_size": 0, "bad_words_ids": [[5]], "output_scores": False},
    **{"num_return_sequences": 1, "chunk_size_feed_forward": 0, "return_dict_in_generate": False, "problem_type": "a"},
    **{"forced_bos_token_id": 0, "forced_eos_token_id": 2, "remove_invalid_values": False, "suppress_tokens": [1]},
    **{"exponential_decay_length_penalty": [1, 2.0], "begin_suppress_tokens": [1], "finetuning_task": "mnli"},
    **{"export_model_type": "transformer", "output_past": True, "tokenizer_class": "BertTokenizer"},
    **{"id2label": {"0": "A", "1": "B"}, "label2id": {"A": 0, "B": 1}, "decoder_start_token_id": 0},
    **{"_name_or_path": "a", "_commit_hash": "a", "transformers_version": "4.26.0", "architectures": None},
}
"""Keys that `to_dict()` of transformers 4.26 and before wrote for every model."""


def refusal(config: dict) -> str:
    """Return why a config is refused, or nothing."""
    try:
        read_config(config)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", mostly_slow(ALL, QUICK))
def test_any_value_of_any_key_is_read_or_refused_in_one_line(name):
    config = ALL[name]
    for key in config.keys() - {"model_type"}:
        for value in ODD:
            message = refusal({**config, key: value})
            assert "\n" not in message, (key, value)
            assert len(message) < 1000, (key, value)


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("mistral", {"sliding_window": "5"}, "sliding_window must be an integer of at least 1, got '5'"),
        ("mistral", {"sliding_window": 5.5}, "sliding_window must be an integer of at least 1, got 5.5"),
        ("qwen2, windows", {"max_window_layers": "1"}, "max_window_layers must be an integer of at least 0, got '1'"),
        ("gemma2", {"attn_logit_softcapping": "50"}, "attn_logit_softcapping must be a number, got '50'"),
        ("gemma2", {"attn_logit_softcapping": 0}, "attn_logit_softcapping must be a number above 0, got 0"),
        ("phi3, longrope", {"original_max_position_embeddings": "16"}, "must be an integer of at least 1, got '16'"),
        ("llama", {"hidden_act": ["silu"]}, "hidden_act must be one of gelu, gelu_python, gelu_new,"),
        ("llama", {"rope_theta": "500"}, "rope_theta must be a number, got '500'"),
        ("llama", {"num_hidden_layers": 1_000_000}, "num_hidden_layers must be at most 10000, got 1000000"),
        ("gpt2", {"n_layer": 10**9}, "n_layer must be at most 10000, got 1000000000"),
        ("mixtral", {"num_local_experts": 10**9}, "num_local_experts must be at most 10000, got 1000000000"),
        ("smollm3", {"no_rope_layers": ["x", 1]}, "no_rope_layers must be num_hidden_layers=2 numbers, 0 for a layer"),
        ("qwen3", {"layer_types": [[], {}]}, "layer_types must be num_hidden_layers=2 names out of"),
        ("mixtral", {"num_local_experts": 4, "num_experts": 8}, "must be absent or num_local_experts=4, got 8"),
        *(
            (name, {"rope_local_base_freq": 5.0}, "be known to change nothing, got rope_local_base_freq = 5.0")
            for name in ("gemma2", "ministral", "qwen2, windows", "gpt_oss", "granite_swa", "vaultgemma")
        ),
    ],
)
def test_a_value_that_cannot_be_read_is_named(name, keys, message):
    with pytest.raises(ValueError, match=r"^config\.json: ") as error:
        read_config({**CONFIGS[name], **keys})
    assert message in str(error.value)


def test_a_list_of_factors_is_a_list():
    scaling = {**CONFIGS["phi3, longrope"]["rope_scaling"], "long_factor": 2.0}
    message = "config.json: rope_scaling: long_factor must be a list of numbers, got 2.0"
    with pytest.raises(ValueError, match=re.escape(message)):
        read_config({**CONFIGS["phi3, longrope"], "rope_scaling": scaling})


def test_equal_numbers_are_one_value():
    for name, key in [("mistral", "sliding_window"), ("llama", "num_hidden_layers"), ("llama", "vocab_size")]:
        value = CONFIGS[name][key]
        assert read_config({**CONFIGS[name], key: float(value)}) == read_config(CONFIGS[name])
    length = {"original_max_position_embeddings": 16.0}
    yarn = CONFIGS["llama, yarn"]
    assert read_config({**yarn, "rope_scaling": {**yarn["rope_scaling"], **length}}) == read_config(yarn)


@pytest.mark.parametrize("name", CONFIGS)
def test_what_old_versions_wrote_changes_nothing(name):
    config = CONFIGS[name]
    assert read_config({**OLD, "is_encoder_decoder": "t5" in config["model_type"], **config}) == read_config(config)


def test_names_of_one_activation():
    plain = read_config(CONFIGS["bert"])
    assert read_config({**CONFIGS["bert"], "hidden_act": "gelu_python"}) == plain
    first = lambda name: read_config({**CONFIGS["gemma"], "hidden_act": name}).layers[0].mlp.activation
    assert [first(name) for name in ("gelu", "gelu_python")] == ["gelu_tanh", "gelu"]


def test_a_null_is_no_default():
    nanochat, t5 = CONFIGS["nanochat"], {**CONFIGS["t5"], "tie_word_embeddings": True}
    cap = lambda **keys: read_config({**nanochat, **keys}).head.cap
    assert (cap(), cap(final_logit_softcapping=None)) == (15.0, None)
    scale = lambda **keys: read_config({**t5, **keys}).decoder.head.scale
    assert (scale(), scale(scale_decoder_outputs=None)) == (32**-0.5, 1.0)


@pytest.mark.parametrize("name", ["qwen2_vl_text", "qwen2_5_vl_text"])
def test_texts_of_models_of_images_have_their_own_defaults(name):
    config = {**CONFIGS["qwen2"], "model_type": name, "num_attention_heads": 8}
    kept = {key: value for key, value in config.items() if key not in ("num_key_value_heads", "rms_norm_eps")}
    layer = read_config(kept).layers[0]
    assert (layer.attention.kv_heads, layer.norm.epsilon) == (8, 1e-5)


def test_dynamic_scaling_starts_at_the_length_of_the_model():
    scaling = {"rope_type": "dynamic", "factor": 2.0}
    plain = read_config({**CONFIGS["llama"], "rope_scaling": scaling})
    scaling = {**scaling, "original_max_position_embeddings": 16}
    assert read_config({**CONFIGS["llama"], "rope_scaling": scaling}) == plain


def test_longrope_by_a_factor_below_one_leaves_the_attention_as_it_is():
    keys = {**CONFIGS["phi3, longrope"], "original_max_position_embeddings": 128}
    assert dict(read_config(keys).layers[0].attention.pe.extend.terms[0].options)["factor"] == 1.0


def test_a_config_may_begin_with_a_byte_order_mark(tmp_path):
    (tmp_path / "config.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(CONFIGS["llama"]).encode())
    assert read_json(tmp_path / "config.json") == CONFIGS["llama"]


def test_nested_keys_may_be_ignored():
    scaling = {**CONFIGS["llama, yarn"]["rope_scaling"], "finetuned": True, "attn_factor": 1.0}
    keys = {**CONFIGS["llama, yarn"], "rope_scaling": scaling}
    with pytest.raises(ValueError, match=r"got attn_factor = 1\.0, finetuned = True$"):
        read_config(keys)
    with pytest.raises(ValueError, match=r"got attn_factor = 1\.0$"):
        read_config(keys, ignore=("rope_scaling.finetuned",))
    for ignore in (["rope_scaling.*"], ["*_factor", "rope_scaling.finetuned"]):
        assert read_config(keys, ignore=ignore) == read_config(CONFIGS["llama, yarn"])


def test_a_pattern_in_a_string_is_one_pattern(tmp_path):
    """Its letter `*` alone would leave every key and every tensor unread."""
    keys = {**CONFIGS["llama"], "alibi": True, "classifier_kind": "x"}
    with pytest.raises(ValueError, match=r"got alibi = True$"):
        read_config(keys, ignore="classifier*")
    with pytest.raises(ValueError, match=r"got alibi = True$"):
        Config(keys, inert="*").close([*CONFIGS["llama"]])
    assert read_config({**CONFIGS["llama"], "alibi": True}, ignore="alibi") == read_config(CONFIGS["llama"])
    folder = write(tmp_path / "a")
    rewrite(folder, {**tensors(folder), "model.layers.0.self_attn.q_proj.bias": np.ones(32, np.float32)})
    with pytest.raises(ValueError, match=r"q_proj\.bias"):
        open_source(folder, ignore="classifier.*")
    for wrong in (5, None, ("a", 3), [b"a"]):
        with pytest.raises(TypeError, match="ignore"):
            interop.load(folder, ignore=wrong)


@pytest.mark.slow
def test_ignored_tensors_are_carried_and_written_back(tmp_path):
    folder = write(tmp_path / "a", "bert")
    head = {"classifier.weight": np.ones((3, 32), np.float16), "classifier.bias": np.arange(3, dtype=np.int64)}
    rewrite(folder, {**tensors(folder), **head}, classifier_kind="x")  # a key of a tool
    way_out = "classifier.bias (and 1 more): load_classifier reads those of classifiers, ignore=('classifier.*',) loads"
    with pytest.raises(ValueError, match=re.escape(way_out)):
        interop.load(folder)
    model, source = interop.load(folder, ignore=("classifier*",))
    assert set(source.carried) >= {*head}
    interop.save(model, tmp_path / "b", source)
    assert (tmp_path / "b" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert read_json(tmp_path / "b" / "config.json") == read_json(folder / "config.json")


def test_a_pattern_leaves_out_no_tensor_of_the_model(tmp_path):
    folder = write(tmp_path / "a")
    model, source = interop.load(folder, ignore=("*",))
    assert not source.carried
    assert model.config == interop.load(folder)[0].config


def test_a_name_in_place_of_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rule = "must be a folder with config.json and safetensors files, or a GGUF file, got nothing there; pejax downloads"
    for path, name in [("SmolLM2-135M", "OWNER/SmolLM2-135M"), ("HuggingFaceTB/SmolLM2-135M",) * 2]:
        message = f"{path} {rule} none: `hf download {name} --local-dir {path}` does"
        with pytest.raises(ValueError, match=re.escape(message)):
            interop.load(path)
        with pytest.raises(ValueError, match=re.escape(message)):
            interop.load_tokenizer(path)


def test_values_are_read_from_a_file_that_is_opened_once(tmp_path, monkeypatch):
    folder, opened = write(tmp_path / "a"), []
    monkeypatch.setattr(files, "safe_open", lambda path, **options: opened.append(path) or safe_open(path, **options))
    interop.load(folder)
    assert len(opened) == 2  # the header, then all values
