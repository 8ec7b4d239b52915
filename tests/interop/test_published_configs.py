"""Published config files, as they are: each is accepted, or refused for what the message names."""

import json
from pathlib import Path

import numpy as np
import pytest

from pejax import interop
from pejax.interop.architectures import ARCHITECTURES
from pejax.interop.command import main
from pejax.interop.model_config import read_config
from tests.support.hub_folders import drawn, run, write
from tests.support.published import ACCEPTED, FOLDER, VERDICTS

SMOLLM2 = "llama--SmolLM2-135M-Instruct.json"


def published(file: str, **other) -> dict:
    return {**json.loads((FOLDER / file).read_text()), **other}


def test_every_file_is_accepted_or_refused_as_before(capsys):
    with pytest.raises(SystemExit) as stopped:
        main([str(FOLDER)])
    assert stopped.value.code == 1
    *lines, total = capsys.readouterr().out.splitlines()
    result = dict(line.removeprefix(f"{FOLDER}/").split(" Known: ")[0].split(": ", 1) for line in lines)
    assert result == VERDICTS
    accepted = sum(verdict.startswith("accepted: ") for verdict in VERDICTS.values())
    assert total == f"{accepted} accepted, {len(VERDICTS) - accepted} refused"


def test_every_file_is_there():
    assert {path.name for path in FOLDER.glob("*.json")} == {*VERDICTS}
    assert len(VERDICTS) == 97
    guide = Path(__file__).parents[2] / "docs" / "interop.md"
    accepted = len(ACCEPTED)
    assert f"{accepted} are accepted and {97 - accepted} refused" in guide.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("file", "keys", "message"),
    [
        (SMOLLM2, {"rope_interleaved": True}, "rope_interleaved must be False, because it is not read, got True"),
        ("qwen2--Qwen2.5-7B.json", {"use_mrope": True}, "use_mrope must be False, because it is not read, got True"),
        ("phi3--Phi-4-mini-instruct.json", {"full_attn_mod": 2}, "full_attn_mod must be 1, because"),
        ("phi3--Phi-4-mini-instruct.json", {"lm_head_bias": True}, "lm_head_bias must be False, because"),
        ("gemma2--gemma-2-9b.json", {"sliding_window_size": 4095}, "sliding_window_size must be 4096, got 4095"),
        ("gemma2--gemma-2-9b.json", {"use_bidirectional_attention": True}, "use_bidirectional_attention must be False"),
        ("qwen3_moe--Qwen3-Coder-480B-A35B-Instruct.json", {"qkv_bias": True}, "qkv_bias must be False, because"),
        ("gpt2--gpt2.json", {"is_causal": False}, "is_causal must be True, because it is not read, got False"),
        ("mistral--Mistral-7B-v0.1.json", {"is_causal": False}, "is_causal must be true in a model with windows"),
        ("llama--Meta-Llama-3-8B.json", {"partial_rotary_factor": 0.5}, "partial_rotary_factor must be 1.0, got 0.5"),
        ("llama--Meta-Llama-3-8B.json", {"rotary_pct": 0.5}, "known to change nothing, got rotary_pct = 0.5"),
        ("llama--Meta-Llama-3-8B.json", {"rotary_emb_base": 5.0}, "known to change nothing, got rotary_emb_base = 5.0"),
        ("gpt_neox--pythia-12b-deduped-printed.json", {"rope_theta": 5.0}, "rope_theta must be 10000.0, got 5.0"),
        ("gemma3--gemma-3-1b-it.json", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping must be None, got 50"),
        ("bert--bert-base-uncased.json", {"pruned_heads": {"0": [1]}}, "pruned_heads must be {}, because"),
        ("gpt2--gpt2.json", {"add_cross_attention": True}, "add_cross_attention must be False, because"),
    ],
)  # fmt: skip
def test_a_value_that_would_change_something_is_refused(file, keys, message):
    read_config(published(file))
    with pytest.raises(ValueError, match=r"^config\.json: ") as error:
        read_config(published(file, **keys))
    assert message in str(error.value)


def test_a_decoder_may_see_both_sides():
    assert not read_config(published("qwen2--gte-Qwen2-7B-instruct.json")).causal
    assert read_config(published("qwen2--Qwen2-7B.json")).causal


def test_starcoder_takes_the_activation_that_its_class_reads():
    keys = published("starcoder2--starcoder2-7b.json")
    assert (keys["activation_function"], keys["hidden_act"]) == ("gelu", "gelu_pytorch_tanh")
    assert read_config(keys).layers[0].mlp.activation == "gelu_tanh"


def test_gemma_1_means_the_tanh_form():
    keys = published("gemma--gemma-2b.json")
    for other in ({}, {"hidden_act": "gelu", "hidden_activation": None}, {"hidden_act": "gelu_pytorch_tanh"}):
        assert read_config({**keys, **other}).layers[0].mlp.activation == "gelu_tanh"


@pytest.mark.slow
def test_the_guides_first_example_runs_with_the_published_config(tmp_path, monkeypatch):
    assert read_config(published(SMOLLM2)).width == 576
    small = {"hidden_size": 36, "intermediate_size": 24, "num_hidden_layers": 2, "vocab_size": 97}
    source = interop.source_from_config(published(SMOLLM2, **small), dtype="bfloat16")
    interop.save(drawn(source), tmp_path / "SmolLM2-135M", source)
    monkeypatch.chdir(tmp_path)
    model, source = interop.load("SmolLM2-135M")
    assert np.all(np.isfinite(run(model, np.arange(12)[None])))
    interop.save(model, "SmolLM2-135M-tuned", source)
    before, after = (tmp_path / name / "model.safetensors" for name in ("SmolLM2-135M", "SmolLM2-135M-tuned"))
    assert before.read_bytes() == after.read_bytes()
    assert json.loads((tmp_path / "SmolLM2-135M-tuned" / "config.json").read_text()) == published(SMOLLM2, **small)


def test_nothing_is_said_inert_that_matters():
    for entry in ARCHITECTURES.values():
        assert not {"is_causal", "use_bidirectional_attention"} & {*entry.inert}


def test_roberta_positions_start_after_the_row_of_padding(tmp_path):
    folder = write(tmp_path / "a", "roberta", pad_token_id=4)
    model, source = interop.load(folder)
    assert model.config.length == 50 - 5
    assert source.carried["roberta.embeddings.position_embeddings.weight"].shape == (5, 32)
    interop.save(model, tmp_path / "b", source)
    assert (tmp_path / "b" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
