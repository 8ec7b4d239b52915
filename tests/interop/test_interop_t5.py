"""T5: an encoder-decoder written out in NumPy, the scale of its head, its ties, and its copies of the table."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pejax.functions import t5_bias
from pejax.interop import load, save, source_from_config
from pejax.interop.command import main
from pejax.models import EncoderDecoder, generate_answers
from tests.support.hub_folders import CONFIGS, drawn, rewrite, run, target_of, tensors, write

IDS = np.random.default_rng(0).integers(0, 97, (1, 12))
UNSCALED, SCALED = 1.0, 32**-0.5


# An independent T5 v1.0 with one layer on either side


def rms(x, weight):
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-6) * weight


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def attended(t, name, x, states, bias, heads=4):
    q, k, v = (
        (y @ t[f"{name}.{part}.weight"].T).reshape(len(y), heads, -1)
        for part, y in zip("qkv", (x, states, states), strict=True)
    )
    weights = softmax(np.einsum("ihd,jhd->hij", q, k) + bias)  # no scale
    return np.einsum("hij,jhd->ihd", weights, v).reshape(len(x), -1) @ t[f"{name}.o.weight"].T


def stack(t, side, x, states=None):
    layer = f"{side}.block.0.layer."
    table = t[f"{layer}0.SelfAttention.relative_attention_bias.weight"].T
    places, table = jnp.arange(len(x)), jnp.asarray(table, jnp.float32)
    bias = np.asarray(t5_bias(places, places, table, bidirectional=states is None, max_distance=20), np.float64)
    bias = bias if states is None else np.where(np.tri(len(x), dtype=bool), bias, -np.inf)
    y = rms(x, t[f"{layer}0.layer_norm.weight"])
    x = x + attended(t, f"{layer}0.SelfAttention", y, y, bias)
    if states is not None:
        x = x + attended(t, f"{layer}1.EncDecAttention", rms(x, t[f"{layer}1.layer_norm.weight"]), states, 0.0)
    last = f"{layer}{1 if states is None else 2}."
    y = rms(x, t[f"{last}layer_norm.weight"]) @ t[f"{last}DenseReluDense.wi.weight"].T
    x = x + np.maximum(y, 0) @ t[f"{last}DenseReluDense.wo.weight"].T
    return rms(x, t[f"{side}.final_layer_norm.weight"])


@pytest.mark.slow
def test_a_t5_is_the_one_written_out_in_numpy(tmp_path):
    folder = write(tmp_path / "a", "t5", num_layers=1)
    t = {name: value.astype(np.float64) for name, value in tensors(folder).items()}
    states = stack(t, "encoder", t["shared.weight"][IDS[0]])
    decoded = stack(t, "decoder", t["shared.weight"][target_of(IDS)[0]], states)
    model, _ = load(folder)
    assert isinstance(model, EncoderDecoder)
    np.testing.assert_allclose(run(model, IDS)[0], decoded * SCALED @ t["shared.weight"].T, atol=2e-5)


# The head


@pytest.mark.parametrize(
    ("name", "keys", "scale"),
    [
        ("t5", {}, SCALED), ("t5", {"tie_word_embeddings": True}, SCALED), ("t5", {"tie_word_embeddings": False}, 1.0),
        ("t5", {"tie_word_embeddings": True, "scale_decoder_outputs": False}, UNSCALED),
        ("t5", {"tie_word_embeddings": False, "scale_decoder_outputs": True}, SCALED),
        ("mt5", {}, UNSCALED), ("mt5", {"tie_word_embeddings": False}, UNSCALED),
    ],
)  # fmt: skip
def test_the_scale_of_the_head_is_what_the_keys_say(name, keys, scale):
    config = source_from_config({**CONFIGS[name], **keys}).config
    assert config.decoder.head.scale == scale
    assert {block.attention.scale for block in (*config.encoder.layers, *config.decoder.layers)} == {1.0}
    assert {(layer.cross.scale, str(layer.cross.pe)) for layer in config.decoder.layers} == {(1.0, "none")}


@pytest.mark.parametrize(
    ("said", "head", "tied"),
    [
        (None, "other", False),
        pytest.param(None, "copy", True, marks=pytest.mark.slow),
        pytest.param(False, "other", False, marks=pytest.mark.slow),
    ],
)
def test_the_file_decides_whether_the_head_is_tied_and_the_scale_stays(said, head, tied, tmp_path):
    folder = write(tmp_path / "a", "t5", num_layers=1)
    scale = SCALED if said is not False else UNSCALED
    values = tensors(folder)
    if head:
        values["lm_head.weight"] = values["shared.weight"] + (head == "other")
    rewrite(folder, values, **({} if said is None else {"tie_word_embeddings": said}))
    model, source = load(folder)
    assert isinstance(model, EncoderDecoder)
    assert (model.head.kernel is None) == tied
    assert model.head.config.scale == scale
    save(model, tmp_path / "b", source)
    assert (folder / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()
    again, _ = load(tmp_path / "b")
    assert again.config == model.config


# Copies, what is carried, what is refused


def test_copies_of_the_table_follow_it(tmp_path):
    folder = write(tmp_path / "a", "t5", num_layers=1)
    values = tensors(folder)
    copies = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    unused = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    rewrite(folder, {**values, **dict.fromkeys(copies, values["shared.weight"]), unused: np.ones((8, 4), np.float32)})
    model, source = load(folder)
    assert [*source.carried] == [unused]
    model.embedding.table[...] = model.embedding.table[...] + 1.0
    save(model, tmp_path / "b", source)
    saved = tensors(tmp_path / "b")
    for name in ("shared.weight", *copies):
        np.testing.assert_allclose(saved[name], values["shared.weight"] + 1.0, atol=1e-6)
    rewrite(folder, {**values, copies[1]: values["shared.weight"] + 1.0})
    with pytest.raises(ValueError, match=r"embed_tokens\.weight must be the same as shared\.weight, got other values"):
        load(folder)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"is_encoder_decoder": 0}, "is_encoder_decoder must be true or false, got 0"),
        ({"feed_forward_proj": "gated-xielu"}, "feed_forward_proj must be one of gelu, gelu_python,"),
        ({"feed_forward_proj": "gated-silu", "is_gated_act": False}, "is_gated_act must be True, got False"),
        ({"dense_act_fn": "gelu"}, "dense_act_fn must be 'relu', got 'gelu'"),
        ({"relative_attention_num_buckets": 7}, "buckets must be even and at least 4"),
    ],
)
def test_what_is_not_computed_is_refused(keys, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        source_from_config({**CONFIGS["t5"], **keys})


# Use


@pytest.mark.slow
def test_answers_are_those_of_the_forward_pass(tmp_path):
    model, _ = load(write(tmp_path / "a", "t5", num_layers=1))
    answers = generate_answers(model, jnp.asarray(IDS), None, 5)
    target = jnp.concatenate([jnp.zeros((1, 1), jnp.int32), answers[:, :-1]], axis=1)
    logits = jax.jit(lambda source, target: model(source, target))(jnp.asarray(IDS), target)
    np.testing.assert_array_equal(answers, jnp.argmax(logits, axis=-1))


def test_it_is_drawn_anew_and_extended(tmp_path):
    source = source_from_config({**CONFIGS["mt5"], "num_layers": 1}, dtype="bfloat16")
    save(drawn(source), tmp_path / "a", source)
    model, _ = load(tmp_path / "a", dtype="bfloat16", extend="pi")
    assert model.config.decoder.dtype == "bfloat16"
    assert {str(layer.attention.pe.extend) for layer in model.config.encoder.layers} == {"pi"}


@pytest.mark.slow
def test_the_command_prints_both_stacks(tmp_path, capsys):
    main([str(write(tmp_path / "a", "t5, gated", num_layers=1))])
    lines = capsys.readouterr().out.splitlines()
    encoding = "encoding: t5(buckets=8, max_distance=20)"
    assert f"encoder.{encoding}: 1 layer(s), from layer 0" in lines
    assert f"decoder.{encoding}: 3 layer(s), from layer 0" in lines
    assert json.loads((tmp_path / "a" / "config.json").read_text())["num_decoder_layers"] == 3
