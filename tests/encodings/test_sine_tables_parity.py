"""The tables of sines in docs/diffusion.md, and the middle of a learned one, against those of diffusers."""

import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.peers import peer

pytestmark = pytest.mark.parity

PAGE = Path(__file__).parents[2] / "docs" / "diffusion.md"
SIZES = [(4, 6), (5, 3), (8, 8)]


def of_page(name: str):
    """Return a function as a reader of the page has it."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    space: dict = {"jnp": jnp}
    exec("from pejax import grid_positions, sinusoidal_embedding", space)
    exec(next(block for block in blocks if f"def {name}(" in block), space)
    return space[name]


def added(model, latents) -> np.ndarray:
    """Return what a module adds to patches that are 0."""
    torch = peer("torch")
    torch.nn.init.zeros_(model.proj.weight)
    torch.nn.init.zeros_(model.proj.bias)
    with torch.no_grad():
        return model(latents)[0].numpy()


@pytest.mark.parametrize("size", SIZES)
def test_the_table_of_pixart(size):
    own = peer("diffusers.models.embeddings").PatchEmbed(16, 16, 2, 4, embed_dim=32, interpolation_scale=2)
    table = added(own, peer("torch").zeros(1, 4, 2 * size[0], 2 * size[1]))
    np.testing.assert_allclose(of_page("pixart")(*size, 32, side=8, scale=2), table, atol=1e-6)


@pytest.mark.parametrize("size", SIZES)
def test_the_table_of_sd3(size):
    own = peer("diffusers.models.embeddings").PatchEmbed(16, 16, 2, 4, embed_dim=32, pos_embed_max_size=24)
    table = added(own, peer("torch").zeros(1, 4, 2 * size[0], 2 * size[1]))
    np.testing.assert_allclose(of_page("sd3")(*size, 32, side=8, largest=24), table, atol=1e-6)


@pytest.mark.parametrize("size", SIZES)
def test_the_table_of_cogvideox_2b(size):
    own = peer("diffusers.models.embeddings").get_3d_sincos_pos_embed(64, size[::-1], 3, 1.875)
    np.testing.assert_allclose(of_page("cogvideox_2b")(3, *size, 64), own.flatten(0, 1), atol=1e-6)


@pytest.mark.parametrize("size", SIZES)
def test_the_middle_of_the_table_of_aura_flow(size):
    torch, module = peer("torch"), peer("diffusers.models.transformers.auraflow_transformer_2d")
    own = module.AuraFlowPatchEmbed(patch_size=2, in_channels=4, embed_dim=8, pos_embed_max_size=81)
    table = added(own, torch.zeros(1, 4, 2 * size[0], 2 * size[1]))
    learned = own.pos_embed.detach().numpy().reshape(9, 9, 8)
    np.testing.assert_array_equal(of_page("middle")(learned, *size), table)
