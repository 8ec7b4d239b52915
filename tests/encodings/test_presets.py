"""Presets of axial RoPE: made, explained and refused."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

from pejax import Dims, explain, make_encoding
from pejax.encodings import PRESETS, rope_axial
from pejax.placement import RULES
from tests.support.cases import normal

VIDEO = Dims(heads=2, head_dim=128, axes=3)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_its_options_and_explained(name):
    preset = PRESETS[name]
    dims = Dims(heads=8, head_dim=preset.head_dim or 64, axes=preset.axes)
    encoding = make_encoding(f"rope_axial(preset={name!r})", dims)
    assert encoding is rope_axial(dims, preset=name) is rope_axial(dims, preset=name, **preset.options)
    assert str(encoding.spec) == f"rope_axial(preset={name!r})"
    assert rope_axial(dims, **preset.options).spec != encoding.spec
    said = explain(encoding)
    assert preset.positions in said
    assert preset.source in said
    assert all(f"{key}={value!r}" in said for key, value in preset.options.items())


def test_options_beside_a_preset_are_kept():
    """Also those that equal a default, and in the text of the spec."""
    other = rope_axial(VIDEO, preset="wan", base=100.0)
    assert other is make_encoding("rope_axial(preset='wan', base=100)", VIDEO) is not rope_axial(VIDEO, preset="wan")
    assert str(other.spec) == "rope_axial(base=100.0, preset='wan')"
    assert make_encoding(other.spec, VIDEO) is other
    small = Dims(heads=2, head_dim=16, axes=3)
    assert str(rope_axial(small, preset="wan", widths=(8, 4, 4)).spec) == "rope_axial(preset='wan', widths=(8, 4, 4))"


@pytest.mark.parametrize("name", sorted(PRESETS.keys() & RULES.keys()))
def test_the_rule_of_the_same_name_has_as_many_axes(name):
    assert len(RULES[name]().axes) == PRESETS[name].axes


@pytest.mark.slow
def test_mhrope_gives_whole_key_heads_to_the_axes():
    x, at = normal(5, 8, 16), np.random.default_rng(0).integers(0, 60, (5, 3))
    encoding = make_encoding("rope_axial(preset='mhrope')", Dims(heads=8, head_dim=16, axes=3))
    result = encoding.rotate({}, x, jnp.asarray(at))
    axis = np.repeat([0, 1, 2], [2, 3, 3])
    angles = at[:, axis, None] * 1e6 ** (-np.arange(8) / 8)
    pairs = (np.asarray(x[..., :8]) + 1j * np.asarray(x[..., 8:])) * np.exp(1j * angles)
    np.testing.assert_allclose(result, np.concatenate([pairs.real, pairs.imag], -1), atol=1e-5)


@pytest.mark.parametrize(
    ("spec", "dims", "words"),
    [
        ("rope_axial(preset='fluks')", VIDEO, "unknown preset 'fluks'; did you mean 'flux'? Known: flux, "),
        ("rope_axial(preset='SkyReels')", VIDEO, "unknown preset 'SkyReels'; did you mean 'wan'? Known: "),
        ("rope_axial(preset='HunyuanVideo-1')", VIDEO, "did you mean 'hunyuan_video'? Known: "),
        (
            "rope_axial(preset='QwenEmbedRope')",
            VIDEO,
            "unknown preset 'QwenEmbedRope'; did you mean 'qwen_image'? Known: ",
        ),
        ("rope_axial(preset='video')", VIDEO, "unknown preset 'video'. Known: flux, "),
        ("rope_axial(preset='a')", VIDEO, "unknown preset 'a'. Known: flux, "),
        ("rope_axial(preset='vjepa2')", VIDEO, "preset 'vjepa2' is not supported: its angles are laid out for halves"),
        ("rope_axial(preset='')", VIDEO, "unknown preset ''. Known: flux, "),
        ("rope_axial(preset='mochi')", VIDEO, "preset 'mochi' is not supported: its frequencies are learned"),
        ("rope_axial(preset='ernie_image')", VIDEO, "preset 'ernie_image' is not supported: its angles"),
        ("rope_axial(preset='pixtral')", VIDEO, "preset='pixtral' has axes=2, got Dims with axes=3"),
        (
            "rope_axial(preset='flux')",
            Dims(heads=2, head_dim=64, axes=3),
            "preset='flux' has head_dim=128, got Dims with head_dim=64",
        ),
        ("rope_axial(preset='mhrope')", VIDEO, "heads must be one count per axis, axes=3, and kv_heads=2 together"),
    ],
)
def test_a_preset_that_does_not_fit_is_refused_in_one_line(spec, dims, words):
    with pytest.raises(ValueError, match=re.escape(words)) as error:
        make_encoding(spec, dims)
    assert "\n" not in str(error.value)
