"""A ViT and a DINOv3 of one layer, loaded, against the same written out in NumPy; and what other loaders do to them."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from pejax import models
from pejax.interop import load
from tests.support.hub_pictures import images_of, see


def norm(t, name, x, epsilon):
    centered = x - x.mean(-1, keepdims=True)
    y = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + epsilon)
    return y * t[f"{name}.weight"] + t[f"{name}.bias"]


def dense(t, name, x):
    return x @ t[f"{name}.weight"].T + t.get(f"{name}.bias", 0.0)


def gelu(x):
    erf = np.vectorize(math.erf)
    return x * (1 + erf(x / np.sqrt(2))) / 2


def attended(q, k, v, heads):
    """Attention of (T, C), all heads."""
    q, k, v = (x.reshape(len(x), heads, -1).swapaxes(0, 1) for x in (q, k, v))
    scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True) @ v).swapaxes(0, 1).reshape(q.shape[1], -1)


def patches_of(t, name, image, patch):
    """Convolve by hand: the patch at row r and column c, in raster order."""
    kernel, rows, columns = t[f"{name}.weight"], image.shape[0] // patch, image.shape[1] // patch
    cut = lambda r, c: image[r * patch : (r + 1) * patch, c * patch : (c + 1) * patch]
    result = [np.einsum("yxc,ocyx->o", cut(r, c), kernel) for r in range(rows) for c in range(columns)]
    return np.stack(result) + t[f"{name}.bias"]


def bicubic(old: int, new: int) -> np.ndarray:
    """Return the matrix of torch's bicubic resize: Keys' kernel of slope -3/4, without a low-pass filter."""

    def kernel(x):
        x = abs(x)
        if x >= 2:
            return 0.0
        return 1.25 * x**3 - 2.25 * x**2 + 1 if x <= 1 else -0.75 * (x**3 - 5 * x**2 + 8 * x - 4)

    matrix = np.zeros((new, old))
    for n in range(new):
        center = (n + 0.5) * old / new - 0.5
        for m in range(int(np.floor(center)) - 1, int(np.floor(center)) + 3):
            matrix[n, min(max(m, 0), old - 1)] += kernel(center - m)
    return matrix


def vit(t, image, resize, *, patch=2, side=3, heads=2):
    """One layer of ViT and its classifier; `resize` takes the table to the grid of the image."""
    prefix, layer = "vit.embeddings.", "vit.encoder.layer.0."
    table, size = t[f"{prefix}position_embeddings"][0], (image.shape[0] // patch, image.shape[1] // patch)
    rows = resize(table[1:].reshape(side, side, -1), size).reshape(-1, table.shape[-1])
    x = patches_of(t, f"{prefix}patch_embeddings.projection", image, patch) + rows
    x = np.concatenate([t[f"{prefix}cls_token"][0] + table[:1], x])
    y = norm(t, f"{layer}layernorm_before", x, 1e-12)
    q, k, v = (dense(t, f"{layer}attention.attention.{name}", y) for name in ("query", "key", "value"))
    x = x + dense(t, f"{layer}attention.output.dense", attended(q, k, v, heads))
    y = dense(t, f"{layer}intermediate.dense", norm(t, f"{layer}layernorm_after", x, 1e-12))
    x = x + dense(t, f"{layer}output.dense", gelu(y))
    return dense(t, "classifier", norm(t, "vit.layernorm", x, 1e-12)[0])


def turned(x, angles, narrow=lambda x: x):
    """Rotate channels c and c + D/2 of the patches of (T, heads, D), as DINOv3 does; `narrow` rounds its operands."""
    prefix, angles = len(x) - len(angles), np.tile(angles, 2)[:, None]
    cos, sin = (narrow(np.concatenate([np.full((prefix, *f.shape[1:]), item), f]))
                for item, f in ((1.0, np.cos(angles)), (0.0, np.sin(angles))))  # fmt: skip
    x, half = narrow(x), x.shape[-1] // 2
    return x * cos + narrow(np.concatenate([-x[..., half:], x[..., :half]], axis=-1)) * sin


def dinov3(t, image, narrow=lambda x: x, *, patch=2, heads=2):
    """One layer of DINOv3, with registers and without a bias of keys."""
    rows, columns = image.shape[0] // patch, image.shape[1] // patch
    x = patches_of(t, "embeddings.patch_embeddings", image, patch)
    x = np.concatenate([t["embeddings.cls_token"][0], t["embeddings.register_tokens"][0], x])
    at = np.stack(np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij"), -1).reshape(-1, 2)
    at = 2 * (at + 0.5) / [rows, columns] - 1
    pairs = x.shape[-1] // heads // 4
    angles = (2 * np.pi * at[:, :, None] * 100.0 ** (-np.arange(pairs) / pairs)).reshape(len(at), -1)
    y = norm(t, "layer.0.norm1", x, 1e-5)
    q, k, v = (dense(t, f"layer.0.attention.{name}_proj", y) for name in "qkv")
    q, k = (turned(z.reshape(len(z), heads, -1), angles, narrow).reshape(z.shape) for z in (q, k))
    branch = dense(t, "layer.0.attention.o_proj", attended(q, k, v, heads))
    x = x + t["layer.0.layer_scale1.lambda1"] * branch
    y = dense(t, "layer.0.mlp.up_proj", norm(t, "layer.0.norm2", x, 1e-5))
    x = x + t["layer.0.layer_scale2.lambda1"] * dense(t, "layer.0.mlp.down_proj", gelu(y))
    return norm(t, "norm", x, 1e-5)


def rope_vit(t, image, *, patch=2, heads=2):
    """One layer of RoPE-Mixed in the names of timm: x is the column, y the row, and CLS does not turn."""
    columns, at = image.shape[1] // patch, "blocks.0."
    x = patches_of(t, "patch_embed.proj", image, patch)
    place = np.arange(len(x))
    angles = (place % columns)[:, None, None] * t["rope.freqs"][0, 0]
    angles += (place // columns)[:, None, None] * t["rope.freqs"][1, 0]
    turn = np.concatenate([np.ones((1, *angles.shape[1:])), np.exp(1j * angles)])
    x = np.concatenate([t["cls_token"][0], x])
    q, k, v = np.split(dense(t, f"{at}attn.qkv", norm(t, f"{at}norm1", x, 1e-6)), 3, axis=-1)

    def turned_pairs(x):
        x = x.reshape(len(x), heads, -1, 2)
        turned = (x[..., 0] + 1j * x[..., 1]) * turn
        return np.stack([turned.real, turned.imag], axis=-1).reshape(len(x), -1)

    x = x + t[f"{at}gamma_1"] * dense(t, f"{at}attn.proj", attended(turned_pairs(q), turned_pairs(k), v, heads))
    y = gelu(dense(t, f"{at}mlp.fc1", norm(t, f"{at}norm2", x, 1e-6)))
    return dense(t, "head", norm(t, "norm", x + t[f"{at}gamma_2"] * dense(t, f"{at}mlp.fc2", y), 1e-6)[0])


TINY = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 20, "image_size": 6,
        "patch_size": 2}  # fmt: skip


def layer(prefix, **sizes):
    return {f"{prefix}{name.replace('__', '.')}": size for name, size in sizes.items()}


def by_hand(folder, config, linear, norms, whole, bare=()):
    """Write a folder of drawn tensors and return them in float64."""
    draw = np.random.default_rng(5)
    value = lambda shape, offset=0.0: (offset + 0.3 * draw.normal(size=shape)).astype(np.float32)
    values = {name: value(shape, float("lambda" in name or "gamma" in name)) for name, shape in whole.items()}
    for name, shape in linear.items():
        values[f"{name}.weight"] = value(shape)
        values |= {} if name in bare else {f"{name}.bias": value(shape[:1])}
    for name in norms:
        values |= {f"{name}.weight": value((16,), 1.0), f"{name}.bias": value((16,))}
    folder.mkdir(exist_ok=True)
    save_file(values, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return {name: value.astype(np.float64) for name, value in values.items()}


@pytest.fixture(scope="module")
def by_hand_vit(tmp_path_factory):
    folder, at = tmp_path_factory.mktemp("vit"), "vit.encoder.layer.0."
    square = {f"{at}attention.attention.{name}": (16, 16) for name in ("query", "key", "value")}
    linear = {
        **square, f"{at}attention.output.dense": (16, 16), f"{at}intermediate.dense": (20, 16),
        f"{at}output.dense": (16, 20), "classifier": (3, 16),
        "vit.embeddings.patch_embeddings.projection": (16, 3, 2, 2),
    }  # fmt: skip
    norms = (f"{at}layernorm_before", f"{at}layernorm_after", "vit.layernorm")
    shapes = {"vit.embeddings.cls_token": (1, 1, 16), "vit.embeddings.position_embeddings": (1, 10, 16)}
    labels = {"id2label": {"0": "a", "1": "b", "2": "c"}, "label2id": {"a": 0, "b": 1, "c": 2}}
    return folder, by_hand(folder, {"model_type": "vit", **TINY, **labels}, linear, norms, shapes)


@pytest.mark.parametrize("size", [pytest.param((6, 6), marks=pytest.mark.slow), (10, 8)])
def test_a_vit_is_the_one_written_out_in_numpy(size, by_hand_vit):
    folder, values = by_hand_vit
    model, _ = load(folder)
    images = images_of(*size)
    resize = lambda grid, to: np.einsum("ra,cb,abn->rcn", bicubic(3, to[0]), bicubic(3, to[1]), grid)
    expected = np.stack([vit(values, image, resize) for image in images.astype(np.float64)])
    assert np.max(np.abs(see(model, images) - expected)) < 1e-5
    # jax.image.resize has another bicubic kernel (slope -1/2), which a loader of others resizes tables with
    other = lambda grid, to: np.asarray(jax.image.resize(grid, (*to, 16), "cubic"), np.float64)
    by_other = np.stack([vit(values, image, other) for image in images.astype(np.float64)])
    assert np.max(np.abs(by_other - expected)) < 1e-6 if size == (6, 6) else np.max(np.abs(by_other - expected)) > 5e-3


@pytest.mark.slow
def test_a_dinov3_is_the_one_written_out_in_numpy(tmp_path):
    at = "layer.0."
    square = {f"{at}attention.{name}_proj": (16, 16) for name in "qkvo"}
    linear = {
        **square, f"{at}mlp.up_proj": (20, 16), f"{at}mlp.down_proj": (16, 20),
        "embeddings.patch_embeddings": (16, 3, 2, 2),
    }  # fmt: skip
    shapes = {
        "embeddings.cls_token": (1, 1, 16), "embeddings.mask_token": (1, 1, 16),
        "embeddings.register_tokens": (1, 2, 16), **{f"{at}layer_scale{n}.lambda1": (16,) for n in (1, 2)},
    }  # fmt: skip
    config = {"model_type": "dinov3_vit", **TINY, "num_register_tokens": 2}
    bare = (f"{at}attention.k_proj",)
    values = by_hand(tmp_path / "a", config, linear, (f"{at}norm1", f"{at}norm2", "norm"), shapes, bare)
    model, source = load(tmp_path / "a")
    assert [*source.carried] == ["embeddings.mask_token"]
    images = images_of(8, 12)
    expected = np.stack([dinov3(values, image) for image in images.astype(np.float64)])
    assert np.max(np.abs(see(model, images) - expected)) < 1e-5
    # a loader of others rotates in bfloat16: queries, keys, cosines and sines
    narrow = lambda x: np.asarray(x, jnp.bfloat16).astype(np.float64)
    rounded = np.stack([dinov3(values, image, narrow) for image in images.astype(np.float64)])
    assert np.max(np.abs(rounded - expected)) > 1e-3


@pytest.mark.slow
def test_rope_vit_is_the_one_written_out_in_numpy_on_grids_of_as_many_patches(tmp_path):
    """A cache of grids by the number of patches takes 6 x 3 for 3 x 6."""
    at = "blocks.0."
    linear = {f"{at}attn.qkv": (48, 16), f"{at}attn.proj": (16, 16), f"{at}mlp.fc1": (32, 16), f"{at}mlp.fc2": (16, 32),
              "head": (5, 16), "patch_embed.proj": (16, 3, 2, 2)}  # fmt: skip
    shapes = {"cls_token": (1, 1, 16), "rope.freqs": (2, 1, 2, 4), f"{at}gamma_1": (16,), f"{at}gamma_2": (16,)}
    values = by_hand(tmp_path / "a", {"architecture": "mine"}, linear, (f"{at}norm1", f"{at}norm2", "norm"), shapes)
    model, _ = load(tmp_path / "a", config=models.vit(6, 2, 3, 5, 16, 1, 2, mlp_ratio=2, layer_scale=1.0))
    for size in ((12, 6), (6, 12)):
        images = images_of(*size)
        expected = np.stack([rope_vit(values, image) for image in images.astype(np.float64)])
        assert np.max(np.abs(see(model, images) - expected)) < 1e-5, size
