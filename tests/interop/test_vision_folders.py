"""Vision transformers in and out: bytes, tokens with rows of the table, heads, towers, extensions, the command."""

import json
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import save_file

from pejax.interop import load, save, source_from_config
from pejax.interop.command import main
from pejax.interop.model_config import architecture_of, read_config
from pejax.interop.slots import expected_shapes, model_slots
from pejax.models import Decoder, ViT, decoder
from tests.support.cases import slow
from tests.support.hub_folders import drawn, rewrite, tensors, write
from tests.support.hub_pictures import BODY, FIVE, PICTURES, SIZES, TEXT, images_of, see

WHOLE = [name for name, config in PICTURES.items() if "vision_config" not in config]
LAYOUTS = ("dinov2, gated", "siglip2_vision_model", "clip_vision_model")
"""Configs that differ in how tensors become parameters."""


def same_bytes(one, other) -> bool:
    configs = [json.loads((folder / "config.json").read_text()) for folder in (one, other)]
    weights = [(folder / "model.safetensors").read_bytes() for folder in (one, other)]
    return configs[0] == configs[1] and weights[0] == weights[1]


def dense(layer, x: np.ndarray) -> np.ndarray:
    return x @ np.asarray(layer.kernel[...]) + np.asarray(layer.bias[...])


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in LAYOUTS else pytest.mark.slow) for name in WHOLE]
)
def test_what_is_loaded_is_saved_byte_by_byte(name, tmp_path):
    write(tmp_path / "a", name)
    model, source = load(tmp_path / "a")
    assert isinstance(model, ViT)
    save(model, tmp_path / "b", source)
    assert same_bytes(tmp_path / "a", tmp_path / "b")


# Tokens that have rows of the table of positions


@pytest.mark.parametrize(
    ("dtype", "name"), [("bfloat16", "deit"), pytest.param("float32", "vit", marks=pytest.mark.slow)]
)
def test_a_token_takes_its_row_and_gives_it_back(dtype, name, tmp_path):
    write(tmp_path / "new", name, dtype)
    values, draw = tensors(tmp_path / "new"), np.random.default_rng(1)
    kind, rows = name, 2 if name == "deit" else 1
    names = [f"{kind}.embeddings.{token}_token" for token in ("cls", "distillation")[:rows]]
    table = f"{kind}.embeddings.position_embeddings"
    for item in (*names, table):
        values[item] = draw.normal(size=values[item].shape).astype(values[item].dtype)
    folder = rewrite(tmp_path / "new", values)
    model, source = load(folder)
    for token, item, row in zip((model.cls, model.registers), names, range(rows), strict=False):
        summed = values[item][0].astype(np.float32) + values[table][0, row].astype(np.float32)
        np.testing.assert_array_equal(token[...], summed)
    np.testing.assert_array_equal(source.carried[table], values[table][:, :rows])
    save(model, tmp_path / "same", source)
    assert same_bytes(folder, tmp_path / "same")
    model.cls[...] = model.cls[...].at[0, 3].add(0.5)
    save(model, tmp_path / "other", source)
    after = tensors(tmp_path / "other")
    moved = (after[names[0]].astype(np.float32) - values[names[0]].astype(np.float32))[0, 0]
    np.testing.assert_allclose(
        moved, np.where(np.arange(32) == 3, 0.5, 0.0), atol=0.02 if dtype == "bfloat16" else 2e-3
    )
    assert np.count_nonzero(moved) == 1
    assert after[table].tobytes() == values[table].tobytes()


# Heads, names, towers


@pytest.mark.slow
def test_the_file_decides_which_heads_there_are(tmp_path):
    folder = write(tmp_path / "a", "deit, teacher")
    model, _ = load(folder)
    assert model.config.classes == 5
    assert model.config.distilled
    images = images_of(24, 24)
    states = see(model, images, states=True)
    logits = dense(model.head, states[:, 0]) / 2 + dense(model.distilled_head, states[:, 1]) / 2
    np.testing.assert_allclose(see(model, images), logits, atol=1e-5)
    values = {name: value for name, value in tensors(folder).items() if "distillation_c" not in name}
    one = {name.replace("cls_classifier", "classifier"): value for name, value in values.items()}
    plain, source = load(rewrite(folder, one))
    assert not plain.config.distilled
    save(plain, tmp_path / "b", source)
    assert same_bytes(folder, tmp_path / "b")
    bare, source = load(rewrite(folder, {name: one[name] for name in one if "classifier" not in name}))
    assert bare.head is None
    save(bare, tmp_path / "c", source)
    assert same_bytes(folder, tmp_path / "c")


@pytest.mark.slow
def test_dinov2_classifies_cls_and_the_mean_of_the_patches(tmp_path):
    model, _ = load(write(tmp_path / "a", "dinov2, classes"))
    images = images_of(20, 28)
    states = see(model, images, states=True)
    features = np.concatenate([states[:, 0], states[:, 1:].mean(1)], axis=-1)
    np.testing.assert_allclose(see(model, images), dense(model.head, features), atol=1e-5)


def test_names_may_lack_the_prefix_and_what_is_not_computed_is_carried(tmp_path):
    folder = write(tmp_path / "a", "vit")
    values = {name.removeprefix("vit."): value for name, value in tensors(folder).items()}
    values |= {"pooler.dense.weight": np.ones((32, 32), np.float32), "pooler.dense.bias": np.ones(32, np.float32)}
    values["embeddings.mask_token"] = np.ones((1, 1, 32), np.float32)
    model, source = load(rewrite(folder, values))
    assert {"pooler.dense.weight", "pooler.dense.bias", "embeddings.mask_token"} < {*source.carried}
    save(model, tmp_path / "b", source)
    assert same_bytes(folder, tmp_path / "b")


def test_parameters_may_be_kept_as_in_the_file_and_on_a_mesh(tmp_path):
    folder = write(tmp_path / "a", "dinov2_with_registers", "bfloat16")
    mesh = jax.make_mesh((1, 1), ("fsdp", "tensor"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    model, source = load(folder, params="file", mesh=mesh)
    assert model.cls.dtype == jnp.bfloat16
    assert model.cls[...].sharding.mesh == mesh
    wide, _ = load(folder)
    np.testing.assert_array_equal(model.cls[...], wide.cls[...].astype(jnp.bfloat16))
    save(model, tmp_path / "b", source)
    assert same_bytes(folder, tmp_path / "b")


def test_a_file_may_have_a_tensor_of_no_registers(tmp_path):
    folder = write(tmp_path / "a", "dinov3_vit", num_register_tokens=0)
    values = {**tensors(folder), "embeddings.register_tokens": np.zeros((1, 0, 32), np.float32)}
    model, source = load(rewrite(folder, values))
    assert model.registers is None
    save(model, tmp_path / "b", source)
    assert same_bytes(folder, tmp_path / "b")


def test_the_vision_tower_of_a_model_of_images_and_text(tmp_path, capsys):
    folder = write(tmp_path / "a", "clip_vision_model")
    tower, _ = load(folder)
    values = tensors(folder)
    values |= {f"text_model.encoder.layers.{n}.mlp.fc1.bias": np.full(3, n, np.float32) for n in range(30)}
    values |= {"logit_scale": np.full((), 2.5, np.float32), "visual_projection.weight": np.ones((6, 32), np.float32)}
    old = {"vision_config": {"hidden_size": 7}, "vision_config_dict": {**SIZES, "top_k": 50}, "text_config": TEXT}
    config = {"model_type": "clip", **old}
    save_file(values, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    model, source = load(folder)
    assert model.config == tower.config
    jax.tree.map(np.testing.assert_array_equal, nnx.state(model), nnx.state(tower))
    main([str(folder)])
    printed = capsys.readouterr().out.splitlines()
    assert "carried: 30 tensors of text_model" in printed
    assert "carried: logit_scale F32 ()" in printed
    assert "head: None" in printed
    save(model, tmp_path / "b", source)
    assert same_bytes(folder, tmp_path / "b")
    with pytest.raises(ValueError, match="model_type 'clip' names a model of several towers"):
        source_from_config(config)


# Sizes and extensions


def test_pixels_beyond_the_last_whole_patch_are_no_part_of_the_config():
    record = read_config({"model_type": "siglip_vision_model", **BODY, "intermediate_size": 9, "image_size": 27})
    assert (record.image_size, record.grid) == ((24, 24), (6, 6))
    record = read_config({"model_type": "vit", **SIZES, "image_size": [16, 24], "patch_size": [4, 4]})
    assert (record.image_size, record.patch) == ((16, 24), 4)
    record = read_config(PICTURES["siglip2_vision_model"])
    assert (record.image_size, record.grid) == ((24, 24), (6, 6))


@pytest.mark.slow
def test_an_extension_joins_the_encoding(tmp_path):
    folder = write(tmp_path / "a", "vit")
    model, source = load(folder)
    further, _ = load(folder, extend="pi")
    assert {str(layer.attention.pe.extend) for layer in further.config.layers} == {"pi"}
    jax.tree.map(np.testing.assert_array_equal, nnx.state(model), nnx.state(further))
    with pytest.raises(ValueError, match=re.escape("config.json of vit cannot hold an extension, got another layers")):
        save(further, tmp_path / "b", source)
    with pytest.raises(ValueError, match=re.escape("but for extensions, got a TransformerConfig")):
        save(Decoder(decoder(), rngs=nnx.Rngs(0)), tmp_path / "b", source)


def test_centered_coordinates_take_no_extension(tmp_path):
    rule = (
        "encodings must not be extended with coordinates='centered', which span every grid from edge to edge, got rope"
    )
    with pytest.raises(ValueError, match=re.escape(rule)):
        load(write(tmp_path / "a", "dinov3_vit"), extend="pi")


def test_a_classifier_of_two_labels_needs_no_key(tmp_path):
    source = source_from_config({**PICTURES["vit"], "architectures": ["ViTForImageClassification"]})
    save(drawn(source), tmp_path / "a", source)
    assert load(tmp_path / "a")[0].config.classes == 2
    named = {**PICTURES["vit"], "num_labels": 4, "label2id": FIVE["label2id"]}
    assert read_config(named).classes == 4


# The command


def test_the_command_prints_pictures(tmp_path, capsys):
    main([str(write(tmp_path / "a", "deit, teacher"))])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "deit: 18,250 numbers in 43 tensors, 1 file(s), F32"
    assert lines[1] == "image=(24, 24) patch=4 grid=(6, 6) channels=3 width=32 layers=2"
    assert lines[2] == "tokens: cls=True registers=1, coordinates 'index'"
    assert "head: 5 classes, pool 'cls', distilled=True" in lines
    assert "encoding: learned: 2 layer(s), from layer 0" in lines
    assert "carried: the first 2 rows of deit.embeddings.position_embeddings" in lines
    assert lines[-1] == "added: its row of the table of positions, to deit.embeddings.distillation_token"


@pytest.mark.parametrize(
    ("name", "width", "tensors", "numbers"),
    [
        ("vit_small_patch16_rope_224", 384, 175, 21_984_232),
        slow("vit_base_patch16_rope_mixed_ape_224", 768, 177, 86_594_536),
        slow("vit_large_patch16_rope_mixed_224", 1024, 344, 304_198_632),
    ],
)
def test_the_names_of_rope_vit_say_sizes(name, width, tensors, numbers):
    """Counted in the models of timm 1.0.31."""
    config = {"architecture": name, "num_classes": 1000, "num_features": width, "global_pool": "token"}
    shapes = expected_shapes(model_slots(read_config(config), architecture_of(config)))
    assert (len(shapes), sum(map(math.prod, shapes.values()))) == (tensors, numbers)
