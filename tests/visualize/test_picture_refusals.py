"""What cannot be drawn is refused in one line that names the picture, the rule and the value received."""

import inspect

import jax
import numpy as np
import pytest

import pejax
from pejax import visualize

DIMS = pejax.Dims(heads=2, head_dim=8, extent=8)
CAUSAL = pejax.Dims(heads=2, head_dim=8, extent=8, causal=True)
GRID = pejax.Dims(heads=2, head_dim=8, axes=2, extent=(3, 4))
VOLUME = pejax.Dims(heads=2, head_dim=12, axes=3, extent=(2, 3, 4))
NO_GRID = pejax.Dims(heads=2, head_dim=8, axes=2)
MADE = {
    name: pejax.make_encoding(name, DIMS) for name in ("none", "alibi", "rope", "sinusoidal", "shaw", "transformer_xl")
}
ROPE, ALIBI, SINUSOID = MADE["rope"], MADE["alibi"], MADE["sinusoidal"]
BANDS = pejax.make_encoding("rope", CAUSAL, "self_extend(group=2, window=3)")
FREQUENCIES = pejax.rope_frequencies(8)

REFUSED = [
    ("bias", (MADE["none"], DIMS), {}, r"must have bias or distance_bias, got an encoding without hooks"),
    ("bias", (ROPE, DIMS), {}, r"must have bias or distance_bias, got rotate"),
    ("bias", (ALIBI, DIMS), {"length": 0}, r"length must be at least 1, got 0"),
    ("bias", (ALIBI, DIMS), {"heads": [2]}, r"heads must be some of 0 ... 1, got \[2\]"),
    ("bias", (ALIBI, DIMS), {"heads": []}, r"heads must be some of 0 ... 1, got \[\]"),
    ("bias", (pejax.encodings.alibi(NO_GRID), NO_GRID), {}, r"extent must be the grid of patches, got None"),
    ("bias_curves", (pejax.encodings.alibi(GRID), GRID), {}, r"axes must be 1, got 2"),
    ("bias_curves", (MADE["shaw"], DIMS), {}, r"must read positions alone, got one that reads queries"),
    ("grid_bias", (ALIBI, DIMS), {}, r"axes must be 2, got 1"),
    ("grid_bias", (pejax.encodings.alibi(VOLUME), VOLUME), {}, r"axes must be 2, got 3"),
    ("grid_bias", (pejax.encodings.alibi(GRID), GRID), {"patch": (3, 0)}, r"grid \(3, 4\), got \(3, 0\)"),
    ("logit_terms", (BANDS, CAUSAL), {}, r"must rotate all pairs alike, got 2 bands"),
    ("plot_slopes", (), {"heads": ()}, r"heads must be at least one number, got \(\)"),
    ("plot_slopes", (), {"heads": (8, 0)}, r"heads\[1\] must be at least 1, got 0"),
    ("plot_slopes", (), {"length": 8}, r"trained_length and length go together, got None and 8"),
    ("plot_t5_buckets", (), {"reach": 0}, r"reach must be at least 1, got 0"),
    ("transformer_xl_terms", (MADE["shaw"], DIMS), {}, r"must have relative_keys, got bias, relative_values"),
    ("shaw_table", (MADE["transformer_xl"], DIMS), {}, r"must have a key_table, as shaw has, got no shared"),
    ("embedding", (ALIBI, DIMS), {}, r"must have embed, got bias, distance_bias"),
    ("embedding", (pejax.encodings.sinusoidal(GRID), GRID), {}, r"axes must be 1, got 2"),
    ("embedding_curves", (SINUSOID, DIMS), {"channels": [99]}, r"channels must be some of 0 ... 15, got \[99\]"),
    ("position_similarity", (SINUSOID, DIMS), {"length": 0}, r"length must be at least 1, got 0"),
    ("plot_needle", (), {"vector": (0.0, 0.0)}, r"two numbers, not both 0, got \(0.0, 0.0\)"),
    ("plot_needle", (), {"positions": 0}, r"positions must be from 1 to 12, got 0"),
    ("animate_needle", (), {"positions": 0}, r"positions must be at least 1, got 0"),
    ("animate_needle", (), {"distance": -1}, r"distance must be at least 0, got -1"),
    ("rotation", (SINUSOID, DIMS), {}, r"must have rotate, got embed"),
    ("rotation", (ROPE, DIMS), {"head": 2}, r"head must be some of 0 ... 1, got \[2\]"),
    ("rotation_animation", (ROPE, DIMS), {"positions": 0}, r"positions must be at least 1, got 0"),
    ("rotary_steps", (ROPE, DIMS), {"words": ()}, r"words must be at least 1, got 0"),
    ("rotation_angles", (ALIBI, DIMS), {}, r"must have rotate, got bias, distance_bias"),
    ("plot_plane_waves", ({}, GRID), {}, r"a mapping from names to encodings, with at least one, got \{\}"),
    ("plot_plane_waves", ({"rope": ROPE}, DIMS), {}, r"axes must be 2, got 1"),
    ("plot_wavelengths", (np.zeros(4),), {"base": 1e4, "trained_length": 8, "factor": 2.0}, r"all above 0, got shape"),
    ("plot_wavelengths", (FREQUENCIES,), {"base": 1e4, "trained_length": 0, "factor": 2.0}, r"at least 1, got 0"),
    ("plot_learned_frequencies", (np.ones((2, 3, 4)), np.ones((2, 3, 4))), {}, r"axes must be 1 or 2, got 3"),
    ("plot_learned_frequencies", (np.ones((2, 2, 4)), np.ones((2, 2, 5))), {}, r"alike, got \(2, 2, 4\) and"),
    ("plot_interpolated_positions", (), {"trained_length": 8, "length": 8}, r"above trained_length=8, got 8"),
    ("plot_interpolated_positions", (), {"wavelength": 0.0}, r"wavelength must be above 0, got 0.0"),
    ("plot_decay_bounds", (), {"trained_length": 0}, r"trained_length must be at least 1, got 0"),
    ("plot_logit_extrapolation", (), {"points": 0}, r"points must be from 1 to trained_length=2048, got 0"),
    ("attention_weights", (ROPE, DIMS), {"length": -1}, r"length must be at least 1, got -1"),
    ("plot_extrapolation", ({"rope": ROPE}, DIMS), {"times": 0}, r"times must be at least 1, got 0"),
    ("plot_extrapolation", ({"rope": ROPE}, pejax.Dims(2, 8)), {}, r"extent must be the trained length, got None"),
    ("plot_attention_entropy", ({"rope": ROPE}, DIMS), {"lengths": (8,)}, r"at least two, got \(8,\)"),
    ("plot_attention_entropy", ({"rope": ROPE}, DIMS), {"lengths": (8, 0)}, r"lengths\[1\] must be at least 1, got 0"),
    ("logits_by_distance", (ROPE, pejax.Dims(2, 8, width=20)), {}, r"width must be heads · head_dim = 16, got 20"),
    ("logits_by_distance", (BANDS, CAUSAL), {}, r"must rotate all pairs alike, got 2 bands"),
    ("plot_word_order", ({"rope": ROPE}, CAUSAL), {}, r"causal must be False: .*, got True"),
    ("plot_word_order", ({"rope": ROPE}, DIMS), {"sentence": ("a", "a")}, r"two different words, got \('a', 'a'\)"),
    ("plot_visited_tiles", (), {"length": 60}, r"a multiple of block=8, got 60"),
    ("plot_visited_tiles", (), {"segments": (60, 5)}, r"fit into 64 tokens, got \(60, 5\)"),
    ("token_points", (ROPE, DIMS), {"words": ("a",)}, r"at least four, for three directions, got 1"),
    ("token_points_animation", (ROPE, DIMS), {"frames": 0}, r"frames must be at least 1, got 0"),
    ("plot_slopes", (), {"theme": "sepia"}, r"one of light, dark, got 'sepia'"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("picture", "arguments", "options", "rule"), REFUSED, ids=[f"{item[0]}-{i}" for i, item in enumerate(REFUSED)]
)
def test_what_cannot_be_drawn_is_refused_in_one_line(picture, arguments, options, rule):
    if hasattr(visualize, picture):
        draw, name = getattr(visualize, picture), picture
    else:
        encoding, dims = arguments
        draw, name, arguments = getattr(visualize.Pictures(encoding, dims=dims), picture), f"Pictures.{picture}", ()
    with pytest.raises(ValueError, match=rule) as refusal:
        draw(*arguments, **options)
    assert "\n" not in str(refusal.value)
    assert str(refusal.value).startswith(f"{name}: ")


def test_what_cannot_be_a_subject_is_refused():
    with pytest.raises(ValueError, match="Pictures: theme must be one of light, dark, got 'gray'"):
        visualize.Pictures(ALIBI, theme="gray")
    encoding_without_dims = pejax.Encoding(distance_bias=lambda params, relative: -1.0 * relative)
    with pytest.raises(ValueError, match=r"Pictures: dims must be given .*, got an encoding made without dims"):
        visualize.Pictures(encoding_without_dims)
    assert visualize.Pictures(encoding_without_dims, dims=DIMS).dims == DIMS
    with pytest.raises(ValueError, match=r"plot_extrapolation: dims must be given .* made for different dims"):
        visualize.plot_extrapolation({"alibi": ALIBI, "rope": pejax.encodings.rope(CAUSAL)})


def test_every_picture_refuses_something():
    methods = {name for name, _ in inspect.getmembers(visualize.Pictures, inspect.isfunction) if name[0] != "_"}
    functions = {name for name in visualize.__all__ if name.startswith(("plot_", "animate_"))}
    assert methods | functions == {name for name, *_ in REFUSED}


def test_an_encoding_that_refuses_the_length_says_why():
    learned = {"learned": pejax.encodings.learned(DIMS)}
    with pytest.raises(ValueError, match="as long as the sequence, got a table of 8 for length 32"):
        visualize.plot_extrapolation(learned, DIMS)


@pytest.mark.slow
def test_an_animation_has_two_kinds_of_files(tmp_path):
    animation = visualize.Pictures(ROPE).rotation_animation(positions=2)
    with pytest.raises(ValueError, match=r"Animation.save: path must end in .gif or .html, got '.*\.png'"):
        animation.save(tmp_path / "a.png")
    assert jax.default_backend() == "cpu"
    assert animation.save(tmp_path / "a.gif").read_bytes()[:3] == b"GIF"
    page = animation.save(tmp_path / "a.html").read_text()
    assert page.count("iVBOR") == 2
    assert "http" not in page
    page = animation._replace(title='<script>"').save(tmp_path / "a.html").read_text()
    assert page.count("&lt;script&gt;&quot;") == 2
