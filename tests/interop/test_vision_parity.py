"""Loaded and saved vision transformers against transformers: at the trained size, other sizes, and sides that differ.

`pytest -n 0 -m parity tests/interop -rP` prints the largest difference of each.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from pejax.interop import load, save
from pejax.models import ViT
from pejax.models.networks.vit import images_to_patches
from tests.support.hub_folders import tensors
from tests.support.hub_pictures import PICTURES, images_of, see
from tests.support.peers import peer

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

GRIDS = {"trained": (6, 6), "larger": (10, 10), "smaller": (3, 3), "not square": (4, 9), "wide": (7, 13)}
"""Rows and columns of patches; 4 x 9 are as many as trained."""
CLASSES = {
    "deit, classes": "DeiTForImageClassification", "deit, teacher": "DeiTForImageClassificationWithTeacher",
    "clip_vision_model": "CLIPVisionModel",
    "clip_vision_model, projection": "CLIPVisionModelWithProjection", "siglip_vision_model": "SiglipVisionModel",
    "siglip2_vision_model": "Siglip2VisionModel", "vit_mae": "ViTMAEForPreTraining",
}  # fmt: skip


def maker(name: str):
    """Return the class of transformers that makes and loads such a model."""
    kind = "AutoModelForImageClassification" if "classes" in name else "AutoModel"
    return getattr(peer("transformers"), CLASSES.get(name, kind))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return tmp_path_factory.mktemp("pictures")


def made(folders, name: str):
    """Return a random model of transformers, and the folder it is saved in."""
    torch, transformers = peer("torch"), peer("transformers")
    config = {key: value for key, value in PICTURES[name].items() if key != "architectures"}
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(config.pop("model_type"), **config)
    kind = maker(name)
    create = kind.from_config if kind.__name__.startswith("Auto") else kind._from_config
    model = create(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            is_factor = "lambda1" in path or ("norm" in path and path.endswith("weight"))
            parameter.normal_(std=0.1 if is_factor else 0.2)
            if is_factor:
                parameter += 1.0
    folder = folders / name.replace(", ", "_")
    if not folder.exists():
        model.save_pretrained(folder)
    return model, folder


def with_tower(model) -> bool:
    return model.config.model_type in ("clip", "siglip", "siglip2", "aimv2") or "Projection" in type(model).__name__


def theirs(model, images: np.ndarray) -> np.ndarray:
    """Return logits or states of transformers; those of CLIP with the norm that it applies to CLS alone."""
    torch, model = peer("torch"), getattr(model, "vision_model", model) if with_tower(model) else model
    kind = model.config.model_type
    model = model.vit if kind == "vit_mae" else model
    options = {}
    pixels = torch.as_tensor(images.transpose(0, 3, 1, 2).copy())
    if kind == "siglip2_vision_model":
        patch = model.config.patch_size
        pixels = torch.as_tensor(np.asarray(images_to_patches(jnp.asarray(images), patch)))
        shape = [images.shape[1] // patch, images.shape[2] // patch]
        options["spatial_shapes"] = torch.as_tensor([shape] * len(images))
        options["pixel_attention_mask"] = torch.ones(pixels.shape[:2], dtype=torch.int64)
    elif not kind.startswith(("dino", "aimv2")):
        options["interpolate_pos_encoding"] = True
    if kind == "vit_mae":  # with `mask_ratio` 0 it masks no patch, and sorts them by this noise
        patches = images[0, :: model.config.patch_size, :: model.config.patch_size, 0].size
        options["noise"] = torch.arange(patches, dtype=torch.float32).expand(len(images), -1)
    with torch.no_grad():
        out = model(pixels, **options)
        if "logits" in out:
            return out.logits.numpy()
        if kind == "clip_vision_model":
            return model.post_layernorm(out.last_hidden_state).numpy()
        return out.last_hidden_state.numpy()


@pytest.mark.parametrize("name", PICTURES)
def test_states_and_logits_are_those_of_transformers(name, folders):
    peers_model, folder = made(folders, name)
    ours, _ = load(folder)
    assert isinstance(ours, ViT)
    largest = {}
    fixed = name.startswith("aimv2") and "native" not in name  # transformers has its table at the trained size alone
    for size, (rows, columns) in {**GRIDS, **dict.fromkeys(GRIDS if fixed else (), GRIDS["trained"])}.items():
        images = images_of(4 * rows, 4 * columns)
        expected = theirs(peers_model, images)
        result = see(ours, images)
        assert result.shape == expected.shape
        assert np.std(expected) > 0.1
        largest[size] = np.max(np.abs(result - expected))
        assert largest[size] < 1e-4 + 1e-7 * (rows * columns + ours.prefix), (size, largest[size])
    print(f"largest difference: {name}: " + ", ".join(f"{size} {value:.1e}" for size, value in largest.items()))


@pytest.mark.parametrize("name", PICTURES)
def test_what_is_saved_is_what_transformers_saved(name, folders, tmp_path):
    peers_model, folder = made(folders, name)
    model, source = load(folder)
    save(model, tmp_path / "out", source)
    before, after = tensors(folder), tensors(tmp_path / "out")
    assert before.keys() == after.keys()
    for key, value in before.items():
        assert value.dtype == after[key].dtype
        assert value.tobytes() == after[key].tobytes(), key
    again = maker(name).from_pretrained(tmp_path / "out", attn_implementation="eager").eval()
    images = images_of(24, 24)
    np.testing.assert_array_equal(theirs(again, images), theirs(peers_model, images))


@pytest.mark.parametrize("name", ["vit", "deit, teacher", "clip_vision_model", "dinov2_with_registers"])
def test_what_was_trained_here_is_the_same_there(name, folders, tmp_path):
    """Tokens and rows of the table that moved apart are split again."""
    _, folder = made(folders, name)
    model, source = load(folder)
    draw = np.random.default_rng(0)
    for token in filter(None, (model.cls, model.registers, *model.position.values())):
        token[...] = token[...] + 0.1 * draw.normal(size=token.shape).astype(np.float32)
    save(model, tmp_path / "out", source)
    there = maker(name).from_pretrained(tmp_path / "out", attn_implementation="eager").eval()
    images = images_of(32, 20)
    assert np.max(np.abs(see(model, images) - theirs(there, images))) < 1e-4
    again, _ = load(tmp_path / "out")
    np.testing.assert_allclose(again.cls[...], model.cls[...], rtol=0, atol=1e-6)
