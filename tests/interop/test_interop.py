"""Folders in and out: bytes, types, files, ties, names, and one Llama layer written out in NumPy."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pejax import extensions
from pejax.interop import load, model_config, save, source_from_config
from pejax.interop import source as source_record
from tests.support.cases import slow
from tests.support.hub_folders import CONFIGS, drawn, rewrite, run, tensors, write

IDS = np.random.default_rng(0).integers(0, 97, (2, 12))


def folder_bytes(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


LAYOUTS = (
    *("llama, tied", "qwen2", "gpt2", "gpt_neox", "gemma3_text", "phi3", "mpt", "opt", "bert"),
    *("modernbert, biases", "mixtral"),
)
"""Configs that differ in how tensors become parameters."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in LAYOUTS else pytest.mark.slow) for name in CONFIGS]
)
def test_what_is_loaded_is_saved_byte_by_byte(name, tmp_path):
    write(tmp_path / "a", name)
    model, source = load(tmp_path / "a")
    save(model, tmp_path / "b", source)
    assert folder_bytes(tmp_path / "a") == folder_bytes(tmp_path / "b")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]  # nothing temporary is left


# A Llama layer, independent of the library


def rms(x, weight):
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-5) * weight


def rotated(x, base):
    """Rotate channels c and c + D/2 of every head: x is (T, H, D)."""
    length, _, channels = x.shape
    angles = np.arange(length)[:, None, None] * base ** (-np.arange(0, channels, 2) / channels)
    first, second = np.split(x, 2, axis=-1)
    turned = [first * np.cos(angles) - second * np.sin(angles), second * np.cos(angles) + first * np.sin(angles)]
    return np.concatenate(turned, axis=-1)


def llama(t, ids, base, heads=4, kv_heads=2):
    x = t["model.embed_tokens.weight"][ids].astype(np.float64)
    length, layer = len(ids), lambda name: t[f"model.layers.0.{name}.weight"].astype(np.float64)
    y = rms(x, layer("input_layernorm"))
    split = lambda name, count: (y @ layer(f"self_attn.{name}_proj").T).reshape(length, count, -1)
    q, k = rotated(split("q", heads), base), rotated(split("k", kv_heads), base)
    k, v = (np.repeat(z, heads // kv_heads, axis=1) for z in (k, split("v", kv_heads)))
    scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(q.shape[-1])
    scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    x = x + np.einsum("hij,jhd->ihd", weights, v).reshape(length, -1) @ layer("self_attn.o_proj").T
    y = rms(x, layer("post_attention_layernorm"))
    gate, up = y @ layer("mlp.gate_proj").T, y @ layer("mlp.up_proj").T
    x = x + (gate / (1 + np.exp(-gate)) * up) @ layer("mlp.down_proj").T
    return rms(x, t["model.norm.weight"]) @ t["lm_head.weight"].T


def test_a_llama_layer_is_the_one_written_out_in_numpy(tmp_path):
    draw = np.random.default_rng(3)
    sizes = {"q": 32, "k": 16, "v": 16, "o": 32}
    shapes = {
        "model.embed_tokens": (97, 32), "model.norm": (32,), "lm_head": (97, 32),
        **{f"model.layers.0.self_attn.{name}_proj": (size, 32) for name, size in sizes.items()},
        **{f"model.layers.0.{name}": (32,) for name in ("input_layernorm", "post_attention_layernorm")},
        "model.layers.0.mlp.gate_proj": (48, 32), "model.layers.0.mlp.up_proj": (48, 32),
        "model.layers.0.mlp.down_proj": (32, 48),
    }  # fmt: skip
    value = lambda shape: 0.3 * draw.normal(size=shape) + (1.0 if len(shape) == 1 else 0.0)
    values = {f"{name}.weight": value(shape).astype(np.float32) for name, shape in shapes.items()}
    save_file(values, tmp_path / "model.safetensors", metadata={"format": "pt"})
    config = {**CONFIGS["llama"], "num_hidden_layers": 1, "rms_norm_eps": 1e-5, "rope_theta": 700.0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model, _ = load(tmp_path)
    expected = np.stack([llama(values, ids, 700.0) for ids in IDS])
    np.testing.assert_allclose(run(model, IDS), expected, atol=2e-5)


# Types


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_types_come_back(dtype, tmp_path):
    write(tmp_path / "a", "qwen2", dtype)
    model, source = load(tmp_path / "a")
    assert model.embedding.table.dtype == jnp.float32
    save(model, tmp_path / "b", source)
    assert folder_bytes(tmp_path / "b") == folder_bytes(tmp_path / "a")


@pytest.mark.slow
def test_the_computation_may_be_in_bfloat16(tmp_path):
    write(tmp_path / "a")
    wide, _ = load(tmp_path / "a")
    narrow, source = load(tmp_path / "a", dtype="bfloat16")
    assert 0.0 < np.max(np.abs(run(narrow, IDS) - run(wide, IDS))) < 0.3
    save(narrow, tmp_path / "b", source)
    assert folder_bytes(tmp_path / "b") == folder_bytes(tmp_path / "a")


def test_a_value_that_the_file_cannot_hold_is_refused(tmp_path):
    source = source_from_config(CONFIGS["llama"], dtype="float16")
    model = drawn(source)
    model.embedding.table[...] = model.embedding.table[...].at[3, 4].set(1e6)
    message = "model.embed_tokens.weight must fit into the type of the file, float16, got a value of magnitude 1e+06"
    with pytest.raises(ValueError, match=message.replace("+", r"\+")):
        save(model, tmp_path / "out", source)
    assert not list(tmp_path.iterdir())


# Files, names, ties


def test_shards_come_back_as_they_were(tmp_path):
    folder = write(tmp_path / "a")
    values = tensors(folder)
    (folder / "model.safetensors").unlink()
    files = {name: f"model-0000{1 + number % 2}-of-00002.safetensors" for number, name in enumerate(sorted(values))}
    for file in set(files.values()):
        save_file({name: values[name] for name in files if files[name] == file}, folder / file, {"format": "pt"})
    size = sum(value.nbytes for value in values.values())
    index = {"metadata": {"total_size": size}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    model, source = load(folder)
    save(model, tmp_path / "b", source)
    for file in set(files.values()):
        assert (folder / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert json.loads((tmp_path / "b" / "model.safetensors.index.json").read_text()) == index


@pytest.mark.slow
def test_names_may_lack_the_prefix_and_buffers_are_carried(tmp_path):
    folder = write(tmp_path / "a", "gpt2")
    model, _ = load(folder)
    values = {name.removeprefix("transformer."): value for name, value in tensors(folder).items()}
    values["h.0.attn.bias"] = np.tri(48, dtype=np.float32)[None, None]
    rewrite(folder, values)
    bare, source = load(folder)
    assert [*source.carried] == ["h.0.attn.bias"]
    np.testing.assert_array_equal(run(bare, IDS), run(model, IDS))
    save(bare, tmp_path / "b", source)
    assert (folder / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()


def test_rows_before_the_first_position_are_carried(tmp_path):
    folder = write(tmp_path / "a", "opt")
    values = tensors(folder)
    name = "model.decoder.embed_positions.weight"
    assert values[name].shape == (50, 32)
    values[name][:2] = [[7.0], [8.0]]
    rewrite(folder, values)
    model, source = load(folder)
    np.testing.assert_array_equal(source.carried[name], values[name][:2])
    np.testing.assert_array_equal(model.stack.position["table_0"][...], values[name][2:])
    save(model, tmp_path / "b", source)
    np.testing.assert_array_equal(tensors(tmp_path / "b")[name], values[name])


@pytest.mark.slow
def test_an_encoder_without_a_head_has_states(tmp_path):
    folder = write(tmp_path / "a", "bert")
    model, _ = load(folder)
    values = {name: value for name, value in tensors(folder).items() if not name.startswith("cls.")}
    old = lambda name: name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta")
    values = {old(name.removeprefix("bert.")): value for name, value in values.items()}
    values["pooler.dense.bias"] = np.ones(32, np.float32)
    rewrite(folder, values)
    bare, source = load(folder)
    assert bare.head is None
    np.testing.assert_array_equal(bare.states(jnp.asarray(IDS)), model.states(jnp.asarray(IDS)))
    save(bare, tmp_path / "b", source)
    assert (folder / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "head", "tied"),
    [
        (True, "other", False), (None, None, True),
        slow(True, "copy", True), slow(False, "copy", False), slow(True, None, True), slow(False, "other", False),
        slow(None, "other", False),
    ],
)  # fmt: skip
def test_the_file_decides_whether_the_head_is_tied(said, head, tied, tmp_path):
    folder = write(tmp_path / "a", tie_word_embeddings=True)
    values = tensors(folder)
    table = values["model.embed_tokens.weight"]
    if head:
        values["lm_head.weight"] = table + (head == "other")
    rewrite(folder, values, tie_word_embeddings=said)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    model, source = load(folder)
    assert model.head is not None
    assert (model.head.kernel is None) == tied
    save(model, tmp_path / "b", source)
    assert (folder / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()
    again, _ = load(tmp_path / "b")
    np.testing.assert_array_equal(run(again, IDS), run(model, IDS))


# Extensions


def test_an_extension_joins_that_of_the_file(tmp_path):
    folder = write(tmp_path / "a", "llama, yarn")
    model, source = load(folder, extend="log_n(trained_length=4)")
    pe = source.config.layers[0].attention.pe
    assert model.config.layers[0].attention.pe == pe.extended(extensions.log_n(trained_length=4))
    assert np.max(np.abs(run(model, IDS) - run(load(folder)[0], IDS))) > 1e-3


def test_an_extension_leaves_layers_without_positions_alone(tmp_path):
    model, _ = load(write(tmp_path / "a", "smollm3"), extend="yarn(factor=4)")
    assert [layer.attention.pe.extend for layer in model.config.layers] == [extensions.yarn(factor=4), None]


# Saving


def test_a_folder_that_is_there_is_not_touched(tmp_path):
    folder = write(tmp_path / "a")
    before = folder_bytes(folder)
    model, source = load(folder)
    with pytest.raises(ValueError, match="must be an empty folder or not exist"):
        save(model, folder, source)
    assert folder_bytes(folder) == before
    (tmp_path / "empty").mkdir()
    save(model, tmp_path / "empty", source)
    assert folder_bytes(tmp_path / "empty") == before


def test_loading_reads_the_config_once_and_makes_the_slots_once(tmp_path, monkeypatch):
    folder, calls = write(tmp_path / "a"), []
    for module, name in ((model_config, "architecture_of"), (model_config, "Config"), (source_record, "model_slots")):
        function = getattr(module, name)
        counted = lambda *arguments, name=name, function=function: calls.append(name) or function(*arguments)
        monkeypatch.setattr(module, name, counted)
    load(folder)
    assert calls == ["architecture_of", "Config", "model_slots"]


def test_files_say_that_they_are_for_pytorch(tmp_path):
    write(tmp_path / "a")
    header = (tmp_path / "a" / "model.safetensors").read_bytes()[8:]
    assert header.startswith(b'{"__metadata__":{"format":"pt"}')
    assert len(load_file(tmp_path / "a" / "model.safetensors")) == 21
