"""Models in GGUF files: the same as in the folder that they were made from, quantized or not; what is refused."""

import math
import struct
import tracemalloc

import gguf
import numpy as np
import pytest
from flax import nnx

from pejax import extensions
from pejax.interop import load, save
from pejax.interop.command import main
from pejax.specs import parse
from tests.support.gguf_files import byte_tokens, write_gguf
from tests.support.hub_folders import tensors, write

KIND = gguf.GGMLQuantizationType


def assert_same(model, expected):
    """Check that two models have the same config and parameters."""
    assert model.config == expected.config
    ours, theirs = (dict(nnx.to_flat_state(nnx.state(item))) for item in (model, expected))
    assert ours.keys() == theirs.keys()
    for path, value in theirs.items():
        np.testing.assert_array_equal(ours[path][...], value[...], err_msg=str(path))


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("llama, tied", "qwen3")]


@pytest.mark.parametrize("name", ["llama", "qwen2", *SLOW])
def test_a_file_is_the_folder_that_it_was_made_from(name, tmp_path):
    folder = write(tmp_path / "a", name)
    model, source = load(write_gguf(tmp_path / "a.gguf", folder))
    assert_same(model, load(folder)[0])
    save(model, tmp_path / "b", source)
    assert (tmp_path / "b" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert_same(load(tmp_path / "b")[0], model)


@pytest.mark.parametrize("kind", [KIND.Q4_1, KIND.BF16])
def test_weights_of_other_types_are_those_that_gguf_converts(kind, tmp_path):
    folder = write(tmp_path / "a", "qwen2", intermediate_size=64)
    model, source = load(write_gguf(tmp_path / "a.gguf", folder, kind=kind))
    name = "model.layers.1.mlp.up_proj.weight"
    expected = gguf.dequantize(gguf.quantize(tensors(folder)[name], kind), kind)
    np.testing.assert_array_equal(model.stack.layers.blocks.mlp.up.kernel[1].T, expected)
    save(model, tmp_path / "b", source)
    saved = tensors(tmp_path / "b")[name]
    assert str(saved.dtype) == ("bfloat16" if kind == KIND.BF16 else "float32")
    np.testing.assert_array_equal(saved.astype(np.float32), expected)


def test_a_folder_may_hold_the_file(tmp_path):
    folder = write(tmp_path / "a")
    (tmp_path / "b").mkdir()
    write_gguf(tmp_path / "b" / "one.gguf", folder)
    assert_same(load(tmp_path / "b")[0], load(folder)[0])
    write_gguf(tmp_path / "b" / "two.gguf", folder)
    rule = "must be the path of one GGUF file, or a folder with one model"
    refused(tmp_path / "b", f"{rule}, got one.gguf, two.gguf")


def test_what_the_metadata_says_of_positions_is_read(tmp_path):
    folder, path = write(tmp_path / "a"), tmp_path / "a.gguf"
    attention_of = lambda **keys: load(write_gguf(path, folder, **keys))[1].config.layers[0].attention
    assert attention_of(llama__rope__freq_base=700.0).pe == parse("rope(base=700.0, pairing='half')")
    assert attention_of(llama__rope__freq_base=None).pe == parse("rope(base=10000.0, pairing='half')")
    linear = {"llama__rope__scaling__type": "linear", "llama__rope__scaling__factor": 4.0}
    assert str(attention_of(**linear).pe.extend) == "linear(factor=4.0)"
    assert str(attention_of(llama__rope__scale_linear=4.0).pe.extend) == "linear(factor=4.0)"
    yarn = {**linear, "llama__rope__scaling__type": "yarn", "llama__rope__scaling__original_context_length": 16}
    assert str(attention_of(**yarn).pe.extend) == "yarn(factor=4.0, trained_length=16)"


def llama3_factors(base, channels, factor, low=1.0):
    """Return the numbers that frequencies are divided by, as llama.cpp's converter computes them."""
    result = []
    for channel in range(0, channels, 2):
        wavelength = 2 * math.pi * base ** (channel / channels)
        smooth = (8192 / wavelength - low) / (4.0 - low)
        middle = 1 / ((1 - smooth) / factor + smooth)
        result.append(1.0 if wavelength < 8192 / 4.0 else factor if wavelength > 8192 / low else middle)
    return np.array(result, np.float32)


def test_the_factors_of_llama_3_are_read(tmp_path):
    folder = write(tmp_path / "a", num_attention_heads=2, num_key_value_heads=1)
    factors = llama3_factors(5e5, 16, 32.0)
    assert len({*factors.tolist()}) > 2
    base = {"llama__rope__freq_base": 5e5}
    file = write_gguf(tmp_path / "a.gguf", folder, more={"rope_freqs.weight": factors}, **base)
    model, source = load(file)
    scaled = extensions.llama3(trained_length=8192, factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0)
    assert model.config.layers[0].attention.pe.extend == scaled
    save(model, tmp_path / "b", source)
    assert load(tmp_path / "b")[0].config == model.config
    other = {"rope_freqs.weight": llama3_factors(5e5, 16, 32.0, low=2.0)}
    file = write_gguf(tmp_path / "a.gguf", folder, more=other, **base)
    refused(file, "rope_freqs.weight must be the factors of Llama 3 with low_freq_factor=1, high_freq_factor=4")


# What is refused


def refused(path, *messages, **options):
    """Check that a path is refused in one line with these messages."""
    with pytest.raises(ValueError) as error:  # noqa: PT011
        load(path, **options)
    result = str(error.value)
    assert str(path) in result
    assert "\n" not in result
    assert len(result) < 400 + len(str(path))
    for message in messages:
        assert message in result


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("models") / "llama")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"llama__logit_scale": 2.0}, ": every key must be read or be known to change nothing, got llama.logit_scale"),
        (
            {"llama__rope__scaling__type": "dynamic"},
            "llama.rope.scaling.type must be none, linear, yarn or longrope, got 'dyn",
        ),
        ({"llama__rope__scaling__type": "longrope"}, "must hold the tensor rope_factors_long.weight of its longrope"),
        ({"llama__expert_count": 8}, "must have the key llama.expert_used_count, got none"),
        ({"llama__expert_used_count": 2}, "llama.expert_used_count must be 0, got 2"),
        ({"llama__vocab_size": 96}, "llama.vocab_size must be 97, got 96"),
        ({"llama__rope__dimension_count": 4}, "llama.rope.dimension_count must be 8, got 4"),
        ({"llama__block_count": None}, "must have the key llama.block_count, got none"),
        ({"llama__block_count": 3}, "must hold the tensor model.layers.2."),
        ({"llama__block_count": 1}, "has a tensor without a part in the model: model.layers.1."),
        ({"llama__feed_forward_length": 40}, "must have shape (32, 40) per its metadata, got (32, 48)"),
        (
            {"llama__attention__head_count_kv": [2, 1]},
            "head_count_kv must be one number, or one for each of 2 layers, all the same, got [2, 1]",
        ),
        ({"llama__feed_forward_length": [48]}, "must be one number, or one for each of 2 layers, all the same, got"),
        ({"llama__attention__head_count": 3}, "of a llama: heads must be a multiple of kv_heads, got heads=3"),
        (
            {"llama__attention__sliding_window": 4, "llama__attention__sliding_window_pattern": [True]},
            "got llama.attention.sliding_window_pattern = [True]",
        ),
        ({"llama__block_count": 20_000}, "llama.block_count must be at most 10000, got 20000"),
        ({"general__type": "adapter"}, "general.type must be 'model', got 'adapter'"),
        ({"split__count": 3}, "must be named NAME-0000N-of-0000M.gguf, of which M is split.count, got split.count = 3"),
        ({"general__alignment": 24}, "got general.alignment = 24, which is no power of 2"),
    ],
)
def test_metadata_that_is_not_understood(keys, message, folder, tmp_path):
    refused(write_gguf(tmp_path / "a.gguf", folder, **keys), message)


def test_a_key_may_be_ignored(folder, tmp_path):
    file = write_gguf(
        tmp_path / "a.gguf", folder, llama__logit_scale=1.0, general__name="a", quantize__imatrix__file=""
    )
    refused(file, "llama.logit_scale")
    _, source = load(file, ignore=("llama.logit_*",))
    assert source.config_json["model_type"] == "llama"


def test_keys_of_tools_and_of_what_comes_after_the_model_change_nothing(folder, tmp_path):
    file = write_gguf(
        tmp_path / "a.gguf", folder, mradermacher__quantized_by="x", mradermacher__quantize_version="2",
        quantize__imatrix__file="", llama__pooling_type=3,
    )  # fmt: skip
    assert load(file)[1].config_json == load(write_gguf(tmp_path / "b.gguf", folder))[1].config_json


def test_tensors_that_nothing_reads(folder, tmp_path):
    for name in ("rope_factors_short.weight", "blk.0.attn_q_norm.weight", "blk.0.attn_out_lora.weight"):
        file = write_gguf(tmp_path / "a.gguf", folder, more={name: np.ones(4, np.float32)})
        refused(file, "has a tensor without a part in the model: ")
    file = write_gguf(tmp_path / "a.gguf", folder, more={"blk.0.attn_q.bias": np.ones(32, np.float32)})
    refused(file, "must hold the tensor model.layers.0.self_attn.o_proj.bias, got none (and 6 more)")


def test_a_number_may_be_given_for_every_layer(folder, tmp_path):
    counts = {"llama__attention__head_count_kv": [2, 2], "llama__feed_forward_length": [48, 48]}
    config = load(write_gguf(tmp_path / "a.gguf", folder, **counts))[1].config_json
    assert (config["num_key_value_heads"], config["intermediate_size"]) == (2, 48)


@pytest.mark.parametrize("family", ["gemma3n", "mamba", "controlvector"])
def test_other_architectures(family, tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", family)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ValueError, match=f"one of arcee, bert, .*; others are not read yet, got '{family}'"):
        load(tmp_path / "a.gguf")


def damaged(path, whole, at, data):
    path.write_bytes(whole[:at] + data + whole[at + len(data) :])
    return path


def test_damaged_files(folder, tmp_path):
    path = write_gguf(tmp_path / "a.gguf", folder)
    content = path.read_bytes()
    for size in (0, 3, 10, 30, 200, 1000, len(content) - 4):
        path.write_bytes(content[:size])
        refused(path)
    refused(path, "unaligned, outside the file or in another tensor")
    refused(damaged(path, content, 0, b"GGML"), "must begin with the bytes GGUF, got b'GGML'")
    refused(damaged(path, content, 4, struct.pack("<I", 1)), "must be of GGUF version 2 or 3, got 1")
    refused(damaged(path, content, 4, struct.pack(">I", 3)), "big-endian, which is not supported")
    refused(tmp_path / "nothing.gguf", "must be a file that can be read, got No such file or directory")


@pytest.mark.parametrize("claim", [10 * 2**30, 2**63, 2**64 - 1])
def test_lengths_that_the_file_cannot_hold_are_not_believed(claim, folder, tmp_path):
    path = write_gguf(tmp_path / "a.gguf", folder, **byte_tokens())
    content, said = path.read_bytes(), struct.pack("<Q", claim)
    tokens = content.index(b"tokenizer.ggml.tokens") + len(b"tokenizer.ggml.tokens") + 8
    tracemalloc.start()
    for at in (8, 16, 24, tokens, tokens + 8):  # tensors, keys, the first key, an array of texts, its first text
        refused(damaged(path, content, at, said), "must have a whole GGUF header, got ")
    dims = content.index(b"output_norm.weight") + len(b"output_norm.weight") + 4
    refused(damaged(path, content, dims, said), "output_norm.weight")
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()


def test_types_that_are_not_read(folder, tmp_path):
    path = write_gguf(tmp_path / "a.gguf", folder, kind=KIND.F16)
    content = path.read_bytes()
    at = content.index(b"output.weight") + len(b"output.weight") + 4 + 16
    assert content[at : at + 4] == struct.pack("<I", KIND.F16)
    for kind, name in ((KIND.Q8_1, "Q8_1"), (KIND.I32, "I32"), (999, "999")):
        refused(
            damaged(path, content, at, struct.pack("<I", kind)),
            f"must have a type that the package gguf converts, got {name}",
        )


def test_tensors_that_overlap(folder, tmp_path):
    path = write_gguf(tmp_path / "a.gguf", folder)
    content = path.read_bytes()
    at = content.index(b"output_norm.weight") + len(b"output_norm.weight") + 4 + 8 + 4
    refused(damaged(path, content, at, struct.pack("<Q", 0)), "unaligned, outside the file or in another tensor")


def test_the_command_says_what_a_file_holds(folder, tmp_path, capsys):
    main([str(write_gguf(tmp_path / "a.gguf", folder, kind=KIND.F16))])
    assert capsys.readouterr().out.startswith("llama: 21,728 numbers in 21 tensors, 1 file(s), F16 and F32\nvocab=97 ")
