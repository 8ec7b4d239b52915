"""Every picture: its example runs, its numbers are those of the library's functions, and it leaves pyplot alone."""

import dataclasses
import doctest
import inspect
import runpy
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure

import pejax
from pejax import visualize
from pejax._visualize import attention_by_distance, command
from pejax._visualize.layer import make_layer, weights_of
from pejax._visualize.pictures import EARLIER
from pejax._visualize.style import THEMES
from pejax._visualize.turning import measured_frequencies
from pejax.visualize import Animation
from tests.support.cases import mostly_slow, slow

METHODS = [name for name, _ in inspect.getmembers(visualize.Pictures, inspect.isfunction) if name[0] != "_"]
DRAWING = {name: getattr(visualize.Pictures, name) for name in METHODS}
DRAWING |= {name: getattr(visualize, name) for name in visualize.__all__ if name.startswith(("plot_", "animate_"))}
DIMS = pejax.Dims(heads=2, head_dim=8, extent=8, causal=True)
BOTH_SIDES = pejax.Dims(heads=2, head_dim=8, extent=8)
GRID = pejax.Dims(heads=2, head_dim=8, axes=2, extent=(3, 4))


def images(figure):
    """Return the numbers of every heat map of a figure, panel by panel, without its color bars."""
    return [np.ma.filled(image.get_array(), np.nan) for axes in figure.axes for image in axes.get_images()]


def lines(axes):
    """Return the curves of a panel by their labels."""
    return {line.get_label(): line.get_xydata() for line in axes.get_lines()}


@pytest.mark.slow
@pytest.mark.parametrize("name", mostly_slow(DRAWING, ("animate_needle", "bias", "embedding", "plot_slopes")))
def test_the_example_of_a_picture_runs(name):
    """It ends in a figure or an animation with something in every panel."""
    examples = doctest.DocTestParser().get_examples(inspect.getdoc(DRAWING[name]))
    space = {"pejax": pejax, "jax": jax}
    for example in examples:
        exec(example.source, space)
    drawing = space.get("figure", space.get("animation"))
    if isinstance(drawing, Animation):
        drawing.draw(drawing.frames - 1)
        drawing = drawing.figure
    if isinstance(drawing, Figure):
        assert all(axes.has_data() or not axes.axison for axes in drawing.axes)
        drawing.draw_without_rendering()
    else:
        assert len(drawing.data) > 0
        assert len(drawing.frames) == 3


@pytest.mark.parametrize("name", DRAWING)
def test_the_docstring_of_a_picture_says_all(name):
    text = inspect.getdoc(DRAWING[name])
    for section in ("Args:", "Raises:", "Reference:", "Examples:"):
        assert f"\n{section}" in text, section
    for argument in {*inspect.signature(DRAWING[name]).parameters} - {"self"}:
        assert f"\n    {argument}: " in text, argument


@pytest.mark.parametrize("name", EARLIER)
def test_a_function_of_an_earlier_version_calls_its_method(name, monkeypatch):
    monkeypatch.setattr(visualize.Pictures, EARLIER[name], lambda pictures, **options: (pictures, options))
    encoding, params = pejax.encodings.alibi(DIMS), {"heads": {}}
    pictures, options = getattr(visualize, name)(encoding, GRID, params, name="A", theme="dark", length=3)
    assert (pictures.encoding, pictures.params, pictures.dims) == (encoding, params, GRID)
    assert (pictures.name, pictures.colors, options) == ("A", THEMES["dark"], {"length": 3})
    assert getattr(visualize, name)(encoding)[0].dims == DIMS


def test_every_method_was_a_function():
    assert sorted(EARLIER.values()) == sorted(METHODS)


def test_pyplot_is_left_alone():
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()
    assert "pyplot" not in inspect.getsource(command)


@pytest.mark.parametrize("name", ["plot_slopes", "plot_needle", "plot_visited_tiles"])
def test_a_dark_picture_has_light_ink_on_dark_paper(name):
    figure = getattr(visualize, name)(theme="dark")
    paper = np.mean(figure.get_facecolor()[:3])
    for axes in figure.axes:
        ink = np.mean(matplotlib_color(axes.title.get_color()))
        assert ink - paper > 0.6
        assert np.mean(axes.get_facecolor()[:3]) == paper


@pytest.mark.slow
@pytest.mark.parametrize("frame", [slow(0), 2])
def test_every_frame_of_a_dark_animation_has_light_ink(frame):
    for animation in (
        visualize.Pictures(pejax.encodings.rope(DIMS), theme="dark").rotation_animation(positions=3),
        visualize.animate_needle(positions=5, theme="dark"),
    ):
        animation.draw(frame)
        for axes in animation.figure.axes:
            for text in (axes.title, axes.xaxis.label, *axes.get_xticklabels()):
                assert np.mean(matplotlib_color(text.get_color())) > 0.7


@pytest.mark.slow
def test_panels_stay_in_place_from_frame_to_frame(tmp_path):
    animation = visualize.Pictures(pejax.encodings.rope(DIMS)).rotation_animation(positions=3)
    places, draw = [], animation.draw

    def drawn(i):
        draw(i)
        places.append([axes.get_position().bounds for axes in animation.figure.axes])

    animation._replace(draw=drawn).save(tmp_path / "rotation.gif")
    assert places[1] == places[2] == places[3]  # the first is before the layout


def matplotlib_color(color):
    """Return red, green and blue."""
    from matplotlib.colors import to_rgb

    return to_rgb(color)


# Every picture that suits an encoding, as the command draws it, small


SUITED = [
    (name, picture.name)
    for name, variants in [(name, command.variants_of(name)) for name in pejax.ENCODINGS]
    for picture in command.PICTURES
    if picture.suits(variants)
]
LIGHT = {"needle", "rotary_steps", "slopes", "embedding", "grid_bias"}
ONCE = {"alibi", "rope", "learned"}


def test_every_encoding_has_pictures_of_what_it_does():
    for name in pejax.ENCODINGS:
        names = {picture for item, picture in SUITED if item == name}
        encoding = pejax.make_encoding(name, DIMS)
        assert ("bias" in names) == (encoding.bias is not None)
        assert ("rotation" in names) == (encoding.rotate is not None)
        assert ("embedding" in names) == (encoding.embed is not None)
        assert {"attention_weights", "extrapolation", "attention_entropy", "token_points"} <= names


@pytest.mark.parametrize(
    ("name", "picture"),
    [pytest.param(*pair, marks=() if pair[0] in ONCE and pair[1] in LIGHT else pytest.mark.slow) for pair in SUITED],
)
def test_a_picture_of_the_command_is_drawn(name, picture):
    (suited,) = [suited for suited in command.PICTURES if suited.name == picture]
    drawing = suited.draw(command.variants_of(name), "light")
    if isinstance(drawing, str):
        assert drawing.startswith("<!doctype html>")
        return
    drawing = drawing.figure if isinstance(drawing, Animation) else drawing
    assert all(axes.has_data() or not axes.axison for axes in drawing.axes)


@pytest.mark.slow
@pytest.mark.parametrize("picture", [picture.name for picture in command.TOGETHER])
def test_a_picture_of_all_encodings_is_drawn(picture):
    (item,) = [item for item in command.TOGETHER if item.name == picture]
    assert all(axes.has_data() or not axes.axison for axes in item.draw(None, "dark").axes)


# Numbers


def test_embedding_is_the_sinusoid():
    figure = visualize.Pictures(pejax.encodings.sinusoidal(DIMS)).embedding(length=12)
    np.testing.assert_allclose(images(figure)[0], pejax.sinusoidal_embedding(jnp.arange(12), 16), atol=1e-7)
    curves = visualize.Pictures(pejax.encodings.sinusoidal(DIMS)).embedding_curves(length=12, channels=[0, 3])
    expected = np.asarray(pejax.sinusoidal_embedding(jnp.arange(12), 16))
    for axes, channel in zip(curves.axes, (0, 3), strict=True):
        np.testing.assert_allclose(axes.get_lines()[0].get_ydata(), expected[:, channel], atol=1e-7)


@pytest.mark.slow
def test_similarity_is_the_one_that_was_computed():
    """At 512 channels from position 0: .741, .679, .616, .535 at 5, 10, 20, 40."""
    dims = pejax.Dims(heads=8, head_dim=64, extent=50)
    figure = visualize.Pictures(pejax.encodings.sinusoidal(dims)).position_similarity()
    np.testing.assert_allclose(images(figure)[0][0, [0, 5, 10, 20, 40]], [1, 0.741, 0.679, 0.616, 0.535], atol=6e-4)


def test_a_right_angle_walks_the_needle_around():
    figure = visualize.plot_needle(positions=4)
    tips = figure.axes[0].get_lines()[-1].get_xydata()
    np.testing.assert_allclose(tips, [[1, 0], [0, 1], [-1, 0], [0, -1]], atol=1e-6)


@pytest.mark.slow
def test_products_of_turned_needles_stay_and_of_pushed_ones_do_not():
    animation = visualize.animate_needle(positions=20)
    animation.draw(19)
    turned, pushed = (lines(animation.figure.axes[2])[name][:, 1] for name in ("rotated (RoPE)", "pushed (sinusoid)"))
    np.testing.assert_allclose(turned, turned[0], atol=1e-6)
    assert np.ptp(pushed) > 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec",
    mostly_slow(["rope", "rope(pairing='half')", "rope(rotary_dim=4)", "rope_axial", "rope_mixed"], ["rope_mixed"]),
)
def test_frequencies_are_measured_on_the_encoding(spec):
    encoding = pejax.make_encoding(spec, DIMS)
    params = pejax.init_params(encoding, jax.random.key(0))
    expected = {
        "rope_axial": pejax.rope_axial_frequencies(8, axes=1)[0],
        "rope_mixed": params.get("frequencies", np.zeros((2, 1, 4)))[0, 0],
        "rope(rotary_dim=4)": pejax.rope_frequencies(8, rotary_dim=4),
    }.get(spec, pejax.rope_frequencies(8))
    result = measured_frequencies("test", encoding, DIMS, params)
    np.testing.assert_allclose(result[0, 0], expected, rtol=1e-5)


def test_angles_and_cosines_are_those_of_the_frequencies():
    figure = visualize.Pictures(pejax.encodings.rope(DIMS)).rotation_angles(length=20)
    angles, cosines = images(figure)
    expected = np.arange(20)[:, None] * pejax.rope_frequencies(8)
    np.testing.assert_allclose(angles, expected, rtol=1e-5)
    np.testing.assert_allclose(cosines, np.cos(expected), atol=1e-5)


@pytest.mark.slow
def test_rotary_steps_show_rotated_queries():
    figure = visualize.Pictures(pejax.encodings.rope(DIMS)).rotary_steps(words=("a", "b", "a"))
    before, angles, after = images(figure)
    expected = pejax.rope_apply(jnp.asarray(before, jnp.float32)[:, None], jnp.arange(3))[:, 0]
    np.testing.assert_allclose(after, expected, atol=1e-5)
    np.testing.assert_allclose(before[0], before[2])
    np.testing.assert_allclose(angles, np.arange(3)[:, None] * pejax.rope_frequencies(8), rtol=1e-4)


@pytest.mark.slow
def test_plane_waves_are_cosines_of_the_frequencies():
    axial = pejax.encodings.rope_axial(GRID)
    figure = visualize.plot_plane_waves({"axial": axial}, GRID, pairs=[0, 3])
    frequencies = pejax.rope_axial_frequencies(8)
    for wave, pair in zip(images(figure), (0, 3), strict=True):
        rows, columns = np.indices((3, 4))
        np.testing.assert_allclose(
            wave, np.cos(rows * frequencies[0, pair] + columns * frequencies[1, pair]), atol=1e-5
        )


@pytest.mark.slow
def test_bias_is_alibis_and_hides_keys_after_the_query():
    figure = visualize.Pictures(pejax.encodings.alibi(DIMS)).bias(length=6)
    expected = np.array(pejax.alibi_bias(jnp.arange(6), jnp.arange(6), pejax.alibi_slopes(2)))
    expected[:, ~np.tri(6, dtype=bool)] = np.nan
    np.testing.assert_allclose(images(figure), expected)


def test_bias_curves_and_slopes_are_alibis():
    figure = visualize.Pictures(pejax.encodings.alibi(DIMS)).bias_curves(length=10)
    drawn = lines(figure.axes[0])
    for head, slope in enumerate(np.asarray(pejax.alibi_slopes(2))):
        np.testing.assert_allclose(drawn[f"head {head}"][:, 1], -slope * np.arange(10))
    slopes = visualize.plot_slopes(heads=(12,), trained_length=4, length=8)
    plain, scaled = slopes.axes[0].get_lines()
    np.testing.assert_allclose(plain.get_ydata(), pejax.alibi_slopes(12))
    np.testing.assert_allclose(scaled.get_ydata(), pejax.alibi_slopes(12) / 2)


@pytest.mark.slow
def test_bias_curves_of_both_sides_are_those_of_the_table():
    encoding = pejax.encodings.t5(BOTH_SIDES)
    params = pejax.init_params(encoding, jax.random.key(1))
    figure = visualize.Pictures(encoding, params).bias_curves(length=5, heads=[1])
    buckets = pejax.t5_bucket(jnp.arange(-4, 5), bidirectional=True)
    expected = np.stack([np.arange(-4, 5), params["heads"]["table"][1][buckets]], axis=1)
    np.testing.assert_allclose(lines(figure.axes[0])["head 1"], expected, rtol=1e-6)


def test_bias_on_a_grid_is_euclidean():
    figure = visualize.Pictures(pejax.encodings.alibi(GRID)).grid_bias(patch=(1, 2), heads=[0])
    rows, columns = np.indices((3, 4))
    slope = float(pejax.alibi_slopes(2)[0])
    np.testing.assert_allclose(images(figure)[0], -slope * np.hypot(rows - 1, columns - 2), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["alibi", "shaw", "rope", "transformer_xl"])
def test_logits_are_products_and_bias_and_their_softmax_the_weights(name):
    figure = visualize.Pictures(pejax.make_encoding(name, DIMS)).logit_terms(length=5, head=1)
    products, bias, logits, weights = (np.nan_to_num(item, nan=-np.inf) for item in images(figure))
    np.testing.assert_allclose(np.tril(products + bias), np.tril(logits), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(jax.nn.softmax(logits, axis=-1), np.maximum(weights, 0), atol=1e-5)
    assert (np.abs(np.tril(bias)).max() > 0) == (name != "rope")


@pytest.mark.slow
def test_four_terms_of_transformer_xl_add_up():
    encoding = pejax.encodings.transformer_xl(DIMS)
    terms = images(visualize.Pictures(encoding).transformer_xl_terms(length=5, head=1))
    logits = images(visualize.Pictures(encoding).logit_terms(length=5, head=1))[2]
    np.testing.assert_allclose(np.sum(terms, axis=0), logits, atol=1e-5)
    assert np.nanmax(np.abs(np.diff(terms[2], axis=0))) < 1e-5  # no query in u·k
    for diagonal in range(5):  # no content in v·Wr
        assert np.ptp(np.diag(terms[3], -diagonal)) < 1e-5


@pytest.mark.slow
def test_t5_buckets_are_official():
    """0 → 0, -1 → 1, -8 → 8, ≤ -128 → 15, +1 → 17, +8 → 24, ≥ +128 → 31."""
    figure = visualize.plot_t5_buckets()
    drawn = [dict(line.get_xydata()) for line in figure.axes[0].get_lines()[:2]]
    buckets = {**drawn[0], **drawn[1]}
    expected = {0: 0, -1: 1, -8: 8, -16: 10, -128: 15, -160: 15, 1: 17, 8: 24, 64: 30, 128: 31}
    assert {at: buckets[at] for at in expected} == expected


@pytest.mark.slow
def test_shaws_table_is_clipped():
    figure = visualize.Pictures(pejax.encodings.shaw(BOTH_SIDES, clip=2)).shaw_table(length=7)
    at = np.arange(7)
    np.testing.assert_array_equal(images(figure)[0], np.clip(at - at[:, None], -2, 2) + 2)


def test_wavelengths_are_those_of_the_extensions():
    frequencies = pejax.rope_frequencies(16)
    rotary, options = pejax.Rotary(10000.0, 16), {"trained_length": 64, "factor": 4.0}
    figure = visualize.plot_wavelengths(frequencies, base=10000.0, **options, long_factors=np.linspace(1, 4, 8))
    drawn = lines(figure.axes[0])
    for name, extend in (("NTK", pejax.functions.extend_ntk), ("YaRN", pejax.extend_yarn), ("trained", None)):
        result = frequencies if extend is None else extend(frequencies, rotary, **options)[0]
        np.testing.assert_allclose(drawn[name][:, 1], 2 * np.pi / result, rtol=1e-5)
    np.testing.assert_allclose(drawn["LongRoPE"][:, 1], 2 * np.pi / frequencies * np.linspace(1, 4, 8), rtol=1e-5)


@pytest.mark.slow
def test_interpolated_positions_stay_in_the_trained_range():
    figure = visualize.plot_interpolated_positions(trained_length=64, length=128, wavelength=90.0)
    drawn = lines(figure.axes[2])["in the trained range"]
    np.testing.assert_allclose(drawn[:, 0], pejax.interpolate_positions(jnp.arange(0, 128, 2), 64, 128))
    np.testing.assert_allclose(drawn[:, 1], np.cos(2 * np.pi * drawn[:, 0] / 90), atol=1e-5)


@pytest.mark.slow
def test_bounds_hold_and_the_product_does_not_decay():
    right = visualize.plot_decay_bounds(head_dim=64, trained_length=64).axes[1]
    drawn = lines(right)
    assert np.all(drawn["|q·k|, one draw"][:, 1] <= drawn["bound of the product (RoFormer)"][:, 1])
    bound = drawn["bound of the interpolation error (PI)"][0, 1]
    assert 0 < drawn["interpolation error"][:, 1].max() <= bound
    assert np.any(np.diff(drawn["|q·k|, one draw"][:, 1]) > 0)
    draws = jax.random.normal(jax.random.key(0), (2, 32, 2), jnp.float32).reshape(2, 1, 1, 64)
    at = [pejax.rope_apply(draws[0], jnp.array([9])), pejax.rope_apply(draws[1], jnp.array([0]))]
    product = dict(drawn["|q·k|, one draw"])[9.0]
    np.testing.assert_allclose(product, abs(float(jnp.sum(at[0] * at[1]))), rtol=1e-4)


@pytest.mark.slow
def test_logits_explode_beyond_the_trained_length_and_not_within():
    figure = visualize.plot_logit_extrapolation()
    within, beyond, between = (lines(axes)["logit a(s)"][:, 1] for axes in figure.axes)
    assert np.abs(within).max() < 3
    assert np.abs(between).max() < 3
    assert np.abs(beyond).max() > 50


@pytest.mark.slow
def test_ropes_logits_are_not_monotone():
    dims = pejax.Dims(heads=1, head_dim=64, extent=50)
    figure = visualize.Pictures(pejax.encodings.rope(dims)).logits_by_distance(draws=8)
    mean = lines(figure.axes[0])["mean of 8 words"][:, 1]
    assert mean[0] == mean.max()
    assert np.diff(mean).max() > 0.2
    words = [jax.random.normal(jax.random.key(seed), (64,), jnp.float32) for seed in range(8)]
    turn = lambda word, at: pejax.rope_apply(word[None, None], jnp.array([at]))
    expected = np.mean([float(jnp.sum(turn(word, 0) * turn(word, 7))) / 8 for word in words])
    np.testing.assert_allclose(mean[7], expected, rtol=1e-4)


@pytest.mark.slow
def test_entropy_of_sinusoids_is_the_lowest_of_one_head():
    """The opposite of what one source concludes from the same comparison, with ALiBi's single head."""
    dims = pejax.Dims(heads=1, head_dim=32, extent=16)
    result = {
        name: attention_by_distance.entropies(pejax.make_encoding(name, dims), dims, None, 128, draws=6).mean()
        for name in ("sinusoidal", "rope", "alibi")
    }
    assert result["sinusoidal"] < result["rope"] - 0.2
    assert result["sinusoidal"] < result["alibi"] - 0.2
    assert abs(result["rope"] - 4.37) < 0.06
    assert abs(result["alibi"] - 4.37) < 0.06


@pytest.mark.slow
def test_weights_are_those_of_attend():
    """`attend` with the values e_j gives the weights."""
    for spec, extend in (("alibi", "none"), ("rope", "self_extend(group=2, window=3)")):
        encoding = pejax.make_encoding(spec, DIMS, extend)
        layer = make_layer(encoding, DIMS, None, 8)
        values = jnp.broadcast_to(jnp.eye(8, dtype=jnp.float32)[:, None], (8, 2, 8))
        params = pejax.init_params(encoding, jax.random.key(0))
        expected = pejax.attend(encoding, layer.q, layer.k, values, params=params, extent=8)
        np.testing.assert_allclose(weights_of(encoding, DIMS, layer), expected.transpose(1, 0, 2), atol=2e-6)


def test_without_position_word_order_is_lost():
    encodings = {name: pejax.make_encoding(name, BOTH_SIDES) for name in ("none", "rope", "t5")}
    figure = visualize.plot_word_order(encodings, BOTH_SIDES)
    difference = [np.abs(item).max() for item in images(figure)[2::3]]
    assert difference[0] < 1e-5
    assert min(difference[1:]) > 1e-2


@pytest.mark.slow
def test_tiles_visited_hold_all_pairs_that_are_seen():
    figure = visualize.plot_visited_tiles(length=16, block=4, window=5, segments=(5, 7))
    causal = images(figure)[1]
    np.testing.assert_array_equal(causal > 0.8, np.tri(16, dtype=bool))
    for numbers in images(figure):
        tiles = numbers.reshape(4, 4, 4, 4).max(axis=(1, 3)) > 0.4
        assert f"{tiles.sum()} of 16" in " ".join(axes.get_title() for axes in figure.axes)


def test_learned_frequencies_are_the_ones_given():
    before = np.asarray(pejax.rope_mixed_frequencies(jax.random.key(0), 2, 8))
    figure = visualize.plot_learned_frequencies(before, 2 * before)
    np.testing.assert_allclose(lines(figure.axes[1])["after"].T[::-1], 2 * before[1])


@pytest.mark.parametrize("name", ["none", "sinusoidal", "rope", "alibi"])
def test_token_points_move_as_the_encoding_moves_them(name):
    encoding = pejax.make_encoding(name, BOTH_SIDES)
    figure = visualize.Pictures(encoding).token_points(words=("a", "b") * 4, frames=2)
    clouds = [[np.stack([item.x, item.y, item.z], axis=1) for item in frame.data] for frame in figure.frames]
    assert all(np.ptp(cloud, axis=0).max() < 1e-5 for cloud in clouds[0])  # equal words are one point
    moved = max(np.abs(end - start).max() for start, end in zip(*clouds, strict=True))
    assert moved < 1e-5 if name == "none" else moved > 1e-3


def test_the_gallery_shows_every_picture_as_it_is_written():
    root = Path(__file__).parents[2]
    gallery = runpy.run_path(str(root / "docs" / "make_gallery.py"))
    assert gallery["page"]() == (root / "docs" / "gallery.md").read_text(), "run: python docs/make_gallery.py"
    items = [item for section in gallery["SECTIONS"].values() for item in section]
    shown = {item.function.removeprefix("Pictures.") for item in items}
    assert shown == {*DRAWING, ""}
    files = {item.file for item in items if item.picture}
    files |= {name.replace(".svg", "-dark.svg") for name in files}
    assert files == {path.name for path in gallery["FIGURES"].iterdir()}
    assert sum((gallery["FIGURES"] / name).stat().st_size for name in files) < 5e6


@pytest.mark.parametrize(
    ("dims", "drawn"),
    [
        (GRID, ["grid_bias", "logit_terms_on_a_grid"]),
        (DIMS, ["bias", "bias_curves", "logit_terms", "attention_weights", "extrapolation"]),
    ],
)
def test_an_encoding_for_some_dims_alone_has_their_pictures(dims, drawn):
    expected = dims.axes, dims.causal

    def narrow(dims):
        if (dims.axes, dims.causal) != expected:
            raise ValueError(f"narrow: axes and causal must be {expected}, got {dims.axes} and {dims.causal}")
        return dataclasses.replace(pejax.encodings.alibi(dims), spec=None)

    pejax.register_encoding("narrow", narrow, dims=[dims])
    try:
        variants = command.variants_of("narrow")
        assert [picture.name for picture in command.PICTURES if picture.suits(variants)] == drawn
    finally:
        del pejax.ENCODINGS["narrow"]


def test_an_encoding_that_takes_none_of_the_dims_says_why():
    with pytest.raises(ValueError, match="preset='flux' has axes=3, got Dims with axes=1"):
        command.variants_of("rope_axial(preset='flux')")


def test_every_encoding_and_extension_is_in_the_history():
    methods = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "history.py"))["METHODS"]
    names = {method.here for method in methods}
    elsewhere = {"pi", "resize"}  # position interpolation is there as linear, resizing as the table of a grid
    assert {*pejax.ENCODINGS, *pejax.EXTENSIONS} - elsewhere <= names
    dates = {method.name: (method.year, method.month) for method in methods}
    for method in methods:
        assert all(dates[parent] <= (method.year, method.month) for parent in method.parents), method.name
        if "arXiv" in method.source:
            assert method.source.split("arXiv ")[1][:4] == f"{method.year % 100}{method.month:02d}"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["alibi", "fire", "t5"])
def test_panels_that_share_a_scale_share_their_colors(name):
    figure = visualize.Pictures(pejax.make_encoding(name, DIMS)).bias(length=6)
    drawn = [image for axes in figure.axes for image in axes.get_images()]
    assert len({(image.get_cmap().name, image.get_clim()) for image in drawn}) == 1
    low, high = drawn[0].get_clim()
    numbers = np.array(images(figure))
    assert low <= np.nanmin(numbers)
    assert np.nanmax(numbers) <= high
