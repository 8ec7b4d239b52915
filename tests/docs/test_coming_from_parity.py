"""What docs/coming-from.md says is the same, beside the code of x-transformers, rotary-embedding-torch and timm."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pejax
from pejax.functions import resize_embedding, t5_bias
from tests.support.cases import normal
from tests.support.peers import peer

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

HEADS, LENGTH, CHANNELS = 4, 24, 64
DIMS = pejax.Dims(heads=HEADS, head_dim=CHANNELS, extent=LENGTH)
GRID = pejax.Dims(heads=HEADS, head_dim=CHANNELS, axes=2, extent=(4, 6))
X = normal(LENGTH, HEADS, CHANNELS)


def torch_package(name: str) -> Any:
    """Import a package of torch; skip the test where it, or something that it needs, is missing."""
    pytest.importorskip("torch", exc_type=ImportError)
    return pytest.importorskip(name, reason=f"{name} needs packages outside of the extra", exc_type=ImportError)


def rotated(spec: str, dims: pejax.Dims = DIMS, positions: Any = None) -> np.ndarray:
    """Return X, rotated as we do, `(T, H, D)`."""
    encoding = pejax.make_encoding(spec, dims)
    positions = (
        (jnp.arange(LENGTH) if dims.axes == 1 else pejax.grid_positions(4, 6)) if positions is None else positions
    )
    params = pejax.adapt(encoding, pejax.init_params(encoding, jax.random.key(0)), dims.extent)
    assert encoding.rotate is not None
    return np.asarray(encoding.rotate(params, X, positions))


def heads_first(array: np.ndarray = X) -> Any:
    """Return `(1, H, T, D)` for torch."""
    return peer("torch").tensor(np.asarray(array)).swapaxes(0, 1)[None]


def tokens_first(result: Any) -> np.ndarray:
    """Return `(T, H, D)` of theirs."""
    return result[0].swapaxes(0, 1).detach().numpy()


def x_rotary(**options: Any) -> np.ndarray:
    module = torch_package("x_transformers.x_transformers")
    freqs, scale = module.RotaryEmbedding(CHANNELS // 2, **options)(peer("torch").arange(LENGTH))
    return tokens_first(module.apply_rotary_pos_emb(heads_first(), freqs, scale))


def lucid(**options: Any) -> np.ndarray:
    embedding = torch_package("rotary_embedding_torch").RotaryEmbedding(dim=CHANNELS // 2, **options)
    return tokens_first(embedding.rotate_queries_or_keys(heads_first()))


def lucid_offset() -> np.ndarray:
    embedding = torch_package("rotary_embedding_torch").RotaryEmbedding(dim=CHANNELS // 2)
    return tokens_first(embedding.rotate_queries_or_keys(heads_first(), offset=10))


def timm_axial() -> np.ndarray:
    layers = torch_package("timm.layers.pos_embed_sincos")
    table = layers.RotaryEmbeddingCat(CHANNELS, in_pixels=False, feat_shape=[4, 6]).get_embed()
    return tokens_first(layers.apply_rot_embed_cat(heads_first(), table))


def timm_dinov3() -> np.ndarray:
    layers = torch_package("timm.layers.pos_embed_sincos")
    table = layers.RotaryEmbeddingDinoV3(CHANNELS, feat_shape=[4, 6], rotate_half=True).get_embed()
    return tokens_first(layers.apply_rot_embed_cat(heads_first(), table, half=True))


ROTATIONS: dict[str, tuple[Callable[[], np.ndarray], Callable[[], np.ndarray]]] = {
    "x-transformers rotary_pos_emb": (x_rotary, lambda: rotated("rope(rotary_dim=32)")),
    "x-transformers rotary_interpolation_factor": (
        functools.partial(x_rotary, interpolation_factor=4.0),
        lambda: rotated("rope(rotary_dim=32, extend='linear(factor=4)')"),
    ),
    "x-transformers rotary_base_rescale_factor": (
        functools.partial(x_rotary, base_rescale_factor=4.0),
        lambda: rotated("rope(rotary_dim=32, extend='ntk(factor=4)')"),
    ),
    "rotary-embedding-torch": (lucid, lambda: rotated("rope(rotary_dim=32)")),
    "rotary-embedding-torch theta": (
        functools.partial(lucid, theta=500.0),
        lambda: rotated("rope(base=500, rotary_dim=32)"),
    ),
    "rotary-embedding-torch interpolate_factor": (
        functools.partial(lucid, interpolate_factor=4.0),
        lambda: rotated("rope(rotary_dim=32, extend='linear(factor=4)')"),
    ),
    "rotary-embedding-torch theta_rescale_factor": (
        functools.partial(lucid, theta_rescale_factor=4.0),
        lambda: rotated("rope(rotary_dim=32, extend='ntk(factor=4)')"),
    ),
    "rotary-embedding-torch offset": (
        lucid_offset,
        lambda: rotated("rope(rotary_dim=32)", positions=10 + jnp.arange(LENGTH)),
    ),
    "timm RotaryEmbeddingCat": (timm_axial, lambda: rotated("rope_axial(base=10000)", GRID)),
    "timm RotaryEmbeddingDinoV3": (
        timm_dinov3,
        lambda: rotated(
            "rope_axial(preset='dinov3')",
            GRID,
            2 * np.pi * pejax.normalized_positions(pejax.grid_positions(4, 6), (4, 6)),
        ),
    ),
}


@pytest.mark.parametrize("name", ROTATIONS)
def test_a_rotation_is_theirs(name):
    theirs, ours = ROTATIONS[name]
    np.testing.assert_allclose(ours(), theirs(), atol=2e-5)


def test_the_alibi_of_x_transformers_is_ours():
    theirs = torch_package("x_transformers.x_transformers").AlibiPositionalBias(heads=HEADS)
    at = jnp.arange(LENGTH)
    ours = pejax.alibi_bias(at, at, pejax.alibi_slopes(HEADS))
    np.testing.assert_allclose(ours, theirs(LENGTH, LENGTH).numpy(), atol=1e-6)


def test_the_relative_bias_of_x_transformers_is_that_of_t5_times_a_scale():
    theirs = torch_package("x_transformers.x_transformers").RelativePositionBias(scale=CHANNELS**0.5, heads=HEADS)
    at, table = jnp.arange(LENGTH), theirs.relative_attention_bias.weight.detach().numpy().T * CHANNELS**0.5
    ours = t5_bias(at, at, jnp.asarray(table), bidirectional=True)
    np.testing.assert_allclose(ours, theirs(LENGTH, LENGTH).detach().numpy(), rtol=1e-5, atol=1e-5)


def test_the_scaled_sinusoid_of_x_transformers_is_ours_times_a_scale():
    theirs = torch_package("x_transformers.x_transformers").ScaledSinusoidalEmbedding(32)
    ours = pejax.sinusoidal_embedding(jnp.arange(LENGTH), 32, layout="concat")
    expected = theirs(peer("torch").zeros(1, LENGTH, 32)).detach().numpy() * 32**0.5
    np.testing.assert_allclose(ours, expected, atol=1e-5)


def test_the_resized_table_of_timm_is_ours():
    resample = torch_package("timm.layers.pos_embed").resample_abs_pos_embed
    table = normal(25, 8)
    theirs = resample(peer("torch").tensor(np.asarray(table))[None], [6, 9], [4, 6], num_prefix_tokens=1)
    ours = resize_embedding(table, (4, 6), (6, 9), antialias=True, prefix=1)
    np.testing.assert_allclose(ours, theirs[0].numpy(), atol=1e-5)
