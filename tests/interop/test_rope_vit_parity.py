"""Vision transformers of rope-vit against timm: at the trained size, other sizes, and sides that differ."""

import json

import numpy as np
import pytest

from pejax.interop import load, save
from pejax.models import vit
from tests.support.hub_folders import tensors
from tests.support.hub_pictures import images_of, see
from tests.support.peers import peer

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

WIDTH, LAYERS, HEADS, PATCH, CLASSES = 48, 3, 3, 4, 5
KINDS = {
    "vit_small_patch16_rope_224": "rope_axial(indexing='xy')",
    "vit_base_patch16_rope_ape_224": "learned+rope_axial(indexing='xy')",
    "vit_small_patch16_rope_mixed_224": "rope_mixed",
    "vit_large_patch16_rope_mixed_ape_224": "learned+rope_mixed",
}
GRIDS = {"trained": (6, 6), "larger": (10, 10), "not square": (4, 9), "wide": (7, 13)}


def made(name: str, folder):
    """Return a random model of timm, and write its folder as timm does."""
    torch = peer("torch")
    timm = pytest.importorskip("timm", reason="timm is not in the extra: it needs torchvision", exc_type=ImportError)
    torch.manual_seed(0)
    sizes = {"img_size": 24, "patch_size": PATCH, "embed_dim": WIDTH, "depth": LAYERS, "num_heads": HEADS}
    fixed = "_ape" in name
    model = timm.create_model(name, num_classes=CLASSES, dynamic_img_size=not fixed, mlp_ratio=2, **sizes).eval()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            is_factor = "gamma" in path or ("norm" in path and path.endswith("weight"))
            parameter.normal_(std=0.1 if is_factor else 0.2)
            parameter += float(is_factor)
        if "mixed" in name:
            model.rope.freqs.normal_(std=0.7)
    from safetensors.torch import save_file

    folder.mkdir()
    save_file(model.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    config = {"architecture": name, "num_classes": CLASSES, "num_features": WIDTH, "global_pool": "token"}
    (folder / "config.json").write_text(json.dumps({**config, "model_args": sizes}))
    return model


@pytest.mark.parametrize("name", KINDS)
def test_logits_are_those_of_timm_and_what_is_saved_is_what_was_loaded(name, tmp_path):
    theirs, torch = made(name, tmp_path / "timm"), peer("torch")
    sizes = vit(24, PATCH, 3, CLASSES, WIDTH, LAYERS, HEADS, mlp_ratio=2, pe=KINDS[name], layer_scale=1e-5)
    ours, source = load(tmp_path / "timm", config=sizes)
    for size, (rows, columns) in GRIDS.items():
        if "_ape" in name and size != "trained":
            continue  # timm resizes the table when a model is made
        images = images_of(PATCH * rows, PATCH * columns)
        with torch.no_grad():
            expected = theirs(torch.as_tensor(images.transpose(0, 3, 1, 2).copy())).numpy()
        assert np.std(expected) > 0.1
        largest = np.max(np.abs(see(ours, images) - expected))
        print(f"largest difference: {name}: {size} {largest:.1e}")
        assert largest < 1e-4 + 1e-7 * (rows * columns + 1), size
    save(ours, tmp_path / "out", source)
    before, after = tensors(tmp_path / "timm"), tensors(tmp_path / "out")
    assert before.keys() == after.keys()
    assert all(value.tobytes() == after[key].tobytes() for key, value in before.items())
