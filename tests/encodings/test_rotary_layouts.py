"""Layouts of rotary frequencies: sections of several axes, slow pairs that do not turn, DINOv3's coordinates."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

from pejax import Dims, grid_positions, make_encoding, normalized_positions, rope_frequencies
from tests.support.cases import normal
from tests.support.peers import peer

SECTIONS = "rope(sections=(2, 3, 3), pairing='half')"
VOLUME = Dims(heads=2, head_dim=16, axes=3, extent=(8, 8, 8))


def turned(spec, dims, x, positions):
    return make_encoding(spec, dims).rotate({}, x, positions)


def places(count=9):
    return jnp.asarray(np.random.default_rng(3).integers(0, 50, (count, 3)), jnp.int32)


def test_each_section_turns_with_its_own_axis():
    x, at = normal(9, 2, 16), places()
    frequencies = 10000.0 ** (-np.arange(8) / 8)
    angles = np.asarray(at)[:, np.repeat([0, 1, 2], [2, 3, 3])] * frequencies
    pairs = np.asarray(x[..., :8]) + 1j * np.asarray(x[..., 8:])
    expected = pairs * np.exp(1j * angles)[:, None]
    expected = np.concatenate([expected.real, expected.imag], -1)
    np.testing.assert_allclose(turned(SECTIONS, VOLUME, x, at), expected, atol=3e-6)


def test_a_token_at_the_same_position_on_all_axes_turns_as_in_a_text():
    x, at = normal(9, 2, 16), jnp.arange(9)
    text = turned("rope(pairing='half')", Dims(heads=2, head_dim=16), x, at)
    np.testing.assert_array_equal(turned(SECTIONS, VOLUME, x, jnp.stack([at] * 3, -1)), text)
    one = turned("rope(sections=(8,), pairing='half')", Dims(heads=2, head_dim=16), x, at)
    np.testing.assert_array_equal(one, text)


def test_sections_are_extended_as_a_text_is():
    x, at = normal(9, 2, 16), jnp.arange(9)
    extended = "extend='yarn(factor=4, trained_length=8)'"
    text = turned(f"rope({extended})", Dims(heads=2, head_dim=16), x, at)
    rotated = turned(f"rope(sections=(2, 3, 3), {extended})", VOLUME, x, jnp.stack([at] * 3, -1))
    np.testing.assert_allclose(rotated, text, atol=1e-6)


@pytest.mark.slow
def test_proportional_pairs_span_the_head_and_the_slow_ones_rest():
    result = rope_frequencies(16, base=100.0, rotary_dim=6, layout="proportional")
    np.testing.assert_allclose(result, [1.0, 100 ** (-1 / 8), 100 ** (-2 / 8), 0, 0, 0, 0, 0], rtol=1e-6)
    np.testing.assert_array_equal(rope_frequencies(16, layout="proportional"), rope_frequencies(16))
    x, at = normal(5, 2, 16), jnp.arange(5)
    out = turned("rope(layout='proportional', rotary_dim=6, pairing='half')", Dims(heads=2, head_dim=16), x, at)
    channels = [3, 4, 5, 6, 7, 11, 12, 13, 14, 15]
    np.testing.assert_array_equal(out[..., channels], x[..., channels])
    assert jnp.all(jnp.any(out[1:] != x[1:], axis=(0, 1))[jnp.asarray([0, 1, 2, 8, 9, 10])])


@pytest.mark.parametrize(
    ("spec", "dims", "words"),
    [
        ("rope(sections=(2, 3))", VOLUME, "sections must be one count of pairs per axis, axes=3, got (2, 3)"),
        ("rope(sections=(2, 3, 4))", VOLUME, "sections must count 8 pairs together, got (2, 3, 4)"),
        ("rope(sections=(-1, 5, 4))", VOLUME, "sections must count 8 pairs together, got (-1, 5, 4)"),
        ("rope(layout='last')", VOLUME, "layout must be one of leading, proportional, got 'last'"),
    ],
)
def test_bad_layouts_are_refused(spec, dims, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        make_encoding(spec, dims)


# Other people's code


@pytest.mark.parity
def test_sections_are_those_of_qwen2_vl():
    torch, module = peer("torch"), peer("transformers.models.qwen2_vl.modeling_qwen2_vl")
    config = peer("transformers").Qwen2VLTextConfig(
        hidden_size=32, num_attention_heads=2, num_key_value_heads=2,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]},
    )  # fmt: skip
    x, at = normal(9, 2, 16), places()
    cos, sin = module.Qwen2VLRotaryEmbedding(config)(torch.ones(1), torch.tensor(np.asarray(at).T[:, None]))
    theirs, _ = module.apply_rotary_pos_emb(*[torch.tensor(np.asarray(x))[None]] * 2, cos, sin, unsqueeze_dim=2)
    np.testing.assert_allclose(turned(SECTIONS, VOLUME, x, at), theirs[0].numpy(), atol=1e-5)


@pytest.mark.parity
def test_proportional_frequencies_are_those_of_gemma():
    rope_utils = peer("transformers.modeling_rope_utils")
    parameters = {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25}
    config = peer("transformers").LlamaConfig(hidden_size=64, num_attention_heads=1, rope_parameters=parameters)
    theirs, factor = rope_utils.ROPE_INIT_FUNCTIONS["proportional"](config, "cpu")
    assert factor == 1.0
    ours = rope_frequencies(64, base=1e6, rotary_dim=16, layout="proportional")
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-6)


@pytest.mark.parity
def test_coordinates_as_positions_turn_as_in_dinov3():
    torch, module = peer("torch"), peer("transformers.models.dinov3_vit.modeling_dinov3_vit")
    config = peer("transformers").DINOv3ViTConfig(hidden_size=32, num_attention_heads=2, patch_size=4)
    cos, sin = module.DINOv3ViTRopePositionEmbedding(config).eval()(torch.ones(1, 3, 12, 20))
    x = normal(15, 2, 16)
    theirs, _ = module.apply_rotary_pos_emb(*[torch.tensor(np.asarray(x)).transpose(0, 1)] * 2, cos, sin)
    at = 2 * np.pi * normalized_positions(grid_positions(3, 5), (3, 5))
    ours = turned("rope_axial(base=100, pairing='half')", Dims(heads=2, head_dim=16, axes=2), x, at)
    np.testing.assert_allclose(ours, theirs.transpose(0, 1).numpy(), atol=1e-5)
