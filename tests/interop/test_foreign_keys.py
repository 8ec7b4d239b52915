"""Keys that tools write into config.json: inert where no code of transformers reads them, whatever tool it was."""

import json

import pytest

from pejax import interop
from pejax.interop.__main__ import main
from pejax.interop.fields import FILE
from pejax.interop.model_config import notes, read_config
from tests.support.hub_folders import CONFIGS, write
from tests.support.peers import peer

TOOLS = {
    "Unsloth": ("llama", {"unsloth_fixed": True, "unsloth_version": "2026.1.2"}),
    "a cross-encoder": ("bert", {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}),
    "a reranker": ("bert", {"sentence_transformers": {"activation_fn": "x.Sigmoid", "version": "4.1.0"}}),
    "a server": ("llama", {"head_dtype": "model", "ep_size": 1, "model_max_length": 4096, "vocab_size_padded": 128}),
    "a trainer": ("llama", {"loss_type": "X", "model_name": "x", "tokenizer_name": "x", "chat_template": "x"}),
    "ids": ("llama", {"unk_token_id": 0, "mask_token_id": 4}),
    "kernels": ("llama", {"attn_implementation": "flash_attention_2", "use_flash_attention_2": True}),
    "switches that are off": ("llama", {"use_sliding_window": False, "qk_norm": False, "quantization_config": None}),
    "TinyBERT": ("bert", {"emb_size": 312, "pre_trained": "", "structure": [], "training": "", "embedding_size": 312}),
    "adapters": ("bert", {"adapters": {"adapters": {}, "config_map": {}}, "matryoshka_dimensions": [256, 128]}),
}


@pytest.mark.parametrize("tool", TOOLS)
def test_keys_of_tools_change_nothing(tool):
    name, keys = TOOLS[tool]
    assert read_config({**CONFIGS[name], **keys}) == read_config(CONFIGS[name])


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("llama", {"use_sliding_window": True}),
        ("llama", {"qk_norm": True}),
        ("llama", {"quant_scheme": "int8"}),
        ("llama", {"lora_rank": 8}),
        ("bert", {"alibi_starting_size": 4096}),
        ("bert", {"attention_bias": True}),
        ("gpt2", {"logit_softcap": 30.0}),
        ("llama", {"partial_rotary_factor": 0.5}),  # a field of every class
        ("gpt2", {"reorder_and_upcast": True}),  # of no class
        ("gemma2", {"use_bidirectional_attention": True}),
    ],
)
def test_keys_that_may_change_the_result_are_read_or_refused_without_an_advice(name, keys):
    if keys == {"reorder_and_upcast": True}:
        assert read_config({**CONFIGS[name], **keys}) == read_config(CONFIGS[name])
        return
    with pytest.raises(ValueError, match=rf"^config\.json: .*{next(iter(keys))}") as refusal:
        read_config({**CONFIGS[name], **keys})
    assert "ignore=" not in str(refusal.value)


CODE = {"auto_map": {"AutoConfig": "configuration_x.XConfig", "AutoModel": "modeling_x.XModel"}}


def test_code_of_the_folders_own_is_named_and_what_it_reads_is_unknown(tmp_path):
    with pytest.raises(ValueError, match="got pooled = 1; ignore=\\('pooled',\\) leaves it unread"):
        read_config({**CONFIGS["llama"], **CODE, "pooled": 1})
    folder = write(tmp_path / "a", "llama", **CODE)
    rule = "auto_map names code of the folder's own, modeling_x.XModel, which is not run: it is read as llama"
    with pytest.warns(UserWarning, match=rule):
        interop.load(folder)
    config = {"AutoConfig": "configuration_x.XConfig", "AutoTokenizer": ["x.XTokenizer", None]}
    interop.load(write(tmp_path / "b", "llama", auto_map=config))  # warnings are errors here


def test_the_command_names_what_is_not_obeyed(tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**CONFIGS["llama"], "unsloth_version": "2026.1", "model_name": "x"}))
    main([str(path)])
    assert capsys.readouterr().out.splitlines()[-1] == (
        "unread: model_name, unsloth_version, which no code of transformers reads"
    )
    path.write_text(json.dumps({**CONFIGS["llama"], **CODE}))
    main([str(path)])
    assert "modeling_x.XModel, which is not run" in capsys.readouterr().out.splitlines()[-1]
    assert notes(CONFIGS["llama"]) == []


def test_keys_of_a_text_tower_follow_the_same_rule():
    keys = {"model_type": "llava", "text_config": {**CONFIGS["llama"], "unsloth_version": "2026.1"}}
    assert notes(keys) == ["unread: text_config.unsloth_version, which no code of transformers reads"]
    with pytest.raises(ValueError, match="got lora_rank = 8"):
        read_config({"model_type": "llava", "text_config": {**CONFIGS["llama"], "lora_rank": 8}})


@pytest.mark.parity
def test_the_table_is_that_of_transformers():
    transformers = peer("transformers")
    stored = json.loads(FILE.read_text())
    if transformers.__version__ != stored["transformers"]:
        pytest.skip(f"the table is that of transformers {stored['transformers']}")
    from tests.support.config_fields import table

    assert table() == stored
