"""Positions of described sequences: each rule against its formula token by token, packing, and what is refused."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pejax
from pejax import Dims, attend, next_position, positions_of
from pejax.encodings import PRESETS
from pejax.placement import (
    RULES,
    Rule,
    centered,
    cogvideox,
    cogview4,
    cosmos,
    cosmos3,
    counted,
    equal,
    fibo2,
    fitted,
    flux2,
    flux3,
    grid,
    image,
    kandinsky6,
    longcat_image,
    ltx,
    ltx2,
    middles,
    qwen2_5_vl,
    qwen2_vl,
    sam3,
    sound,
    text,
    unplaced,
    video,
    vision_tower,
    z_image_omni,
)
from tests.placement.test_placement_parity import COMPARED, NOT_IN_PEERS
from tests.support.biases import types_unchecked
from tests.support.cases import slow


def positions(*parts, rule):
    return np.asarray(positions_of(list(parts), rule=rule).positions)


def raster(*sides):
    return itertools.product(*map(range, sides))


def diagonal(start, count):
    return [(start + i,) * 3 for i in range(count)]


EXPECTED = {
    "qwen2_vl": ([text(2), video(5, 2, 3), text(2)], "qwen2_vl",
        [*diagonal(0, 2), *((2 + t, 2 + h, 2 + w) for t, h, w in raster(5, 2, 3)), *diagonal(2 + 3, 2)]),
    "qwen2_vl, resume": ([text(2), video(5, 2, 3), text(2)], qwen2_vl(resume="end"),
        [*diagonal(0, 2), *((2 + t, 2 + h, 2 + w) for t, h, w in raster(5, 2, 3)), *diagonal(2 + 4 + 1, 2)]),
    "qwen2_5_vl": ([text(1), video(4, 1, 2, patch=(2, 1, 1), fps=3), video(3, 2, 1, fps=0.4), image(1, 2)],
        qwen2_5_vl(tokens_per_second=4),
        [(0, 0, 0), *((1 + (0, 2)[t], 1 + h, 1 + w) for t, h, w in raster(2, 1, 2)),
         *((3 + 10 * t, 3 + h, 3 + w) for t, h, w in raster(3, 2, 1)), (5, 5, 5), (5, 5, 6)]),
    "qwen3_vl": ([image(2, 3), text(1), image(1, 1), text(1)], "qwen3_vl",
        [*((0, h, w) for h, w in raster(2, 3)), (3, 3, 3), (4, 4, 4), (5, 5, 5)]),
    "spatial_reset": ([text(2), video(4, 2, 3), text(1), image(2, 2)], "spatial_reset",
        [*diagonal(0, 2), *((2 + t, h, w) for t, h, w in raster(4, 2, 3)), (6, 6, 6),
         *((7, h, w) for h, w in raster(2, 2))]),
    "flux": ([text(2), image(2, 3), image(1, 2)], "flux",
        [(0, 0, 0)] * 2 + [(0, h, w) for h, w in raster(2, 3)] + [(1, 0, w) for w in range(2)]),
    "flux2": ([image(1, 2), text(2), image(2, 1), text(1), image(1, 1)], flux2(reference_step=7),
        [(0, 0, 0, 0), (0, 0, 1, 0), (0, 0, 0, 0), (0, 0, 0, 1), (7, 0, 0, 0), (7, 1, 0, 0), (0, 0, 0, 2),
         (14, 0, 0, 0)]),
    "longcat_image": ([text(2), image(1, 2)], "longcat_image", [(0, 0, 0), (0, 1, 1), (1, 512, 512), (1, 512, 513)]),
    "longcat_image, edit": ([text(3), image(1, 1), image(2, 1)], longcat_image(start=None),
        [(0, 0, 0), (0, 1, 1), (0, 2, 2), (1, 3, 3), (2, 3, 3), (2, 4, 3)]),
    "ovis_image": ([text(2), image(1, 2)], "ovis_image", [(0, 0, 0), (0, 1, 1), (0, 0, 0), (0, 0, 1)]),
    "lumina2": ([text(3), image(1, 2)], "lumina2", [(0, 0, 0), (1, 0, 0), (2, 0, 0), (3, 0, 0), (3, 0, 1)]),
    "z_image": ([image(1, 2), unplaced(30), text(32)], "z_image",
        [(33, 0, 0), (33, 0, 1)] + [(0, 0, 0)] * 30 + [(1 + i, 0, 0) for i in range(32)]),
    "qwen_image": ([image(2, 3), text(2), image(1, 5)], "qwen_image",
        [(0, h - 1, w - 2) for h, w in raster(2, 3)] + diagonal(2, 2) + [(1, -1, w - 3) for w in range(5)]),
    "qwen_image_layered": ([text(1), image(1, 1), image(2, 2), image(1, 1), image(1, 1)], "qwen_image_layered",
        [(3, 3, 3), (0, -1, -1), *((1, h - 1, w - 1) for h, w in raster(2, 2)), (2, -1, -1), (-1, -1, -1)]),
    "qwen_image_2_1": ([text(2), image(1, 4), text(1)], "qwen_image_2_1",
        [*diagonal(0, 2), *((2, -1, w - 2) for w in range(4)), (6, 6, 6)]),
    "cogview4": ([text(1), image(3, 2)], cogview4(reference=(8, 5)),
        [(0, 0)] + [((0, 2, 5)[h], (0, 2)[w]) for h, w in raster(3, 2)]),
    "wan": ([video(2, 2, 3)], "wan", list(raster(2, 2, 3))),
    "kandinsky6": ([video(2, 2, 3)], "kandinsky6", [(t, h / 2, w / 2) for t, h, w in raster(2, 2, 3)]),
    "kandinsky5, large": ([video(1, 2, 2)], kandinsky6(scale=(1, 4, 8)), [(0, h / 4, w / 8) for h, w in raster(2, 2)]),
    "cosmos": ([video(3, 1, 2, fps=30)], "cosmos", [(0.8 * t, h, w) for t, h, w in raster(3, 1, 2)]),
    "cosmos, frames": ([video(3, 1, 2)], cosmos(fps=12), list(raster(3, 1, 2))),
    "ltx": ([video(3, 1, 2, fps=25)], ltx(stride=(8, 16, 32)),
        np.pi / 2 * np.asarray([(2 * t * 8 / 25 / 20 - 1, 2 * h * 16 / 2048 - 1, 2 * w * 32 / 2048 - 1)
                                for t, h, w in raster(3, 1, 2)])),
    "ltx2": ([video(3, 2, 1, fps=25)], ltx2(),
        np.pi / 2 * np.asarray([(2 * (0.5, 5, 13)[t] / 25 / 20 - 1, 2 * (h * 32 + 16) / 2048 - 1, 16 / 1024 - 1)
                                for t, h, w in raster(3, 2, 1)])),
    "flux3": ([text(2), image(1, 2), image(2, 1), image(1, 1)], "flux3",
        [(0, 0, 0, 0.0), (0, 0, 0, 1), (0, 0, 0, 0), (0, 0, 0.5, 0), (0, 0, 0, -1), (0, 0.5, 0, -1), (0, 0, 0, -2)]),
    "fibo2": ([text(2), image(1, 2), image(1, 1)], fibo2(gist=4),
        [(1, 0, 0), (2, 0, 0), (5, 0, 0), (5, 0, 1), (6, 0, 0)]),
    "ideogram4": ([text(2), image(1, 2)], "ideogram4", [*diagonal(0, 2), (65536,) * 3, (65536, 65536, 65537)]),
    "hunyuan_image": ([text(1), image(2, 2)], "hunyuan_image", [(0, 0), *raster(2, 2)]),
    "z_image_omni": ([text(32), image(2, 1), text(32), image(2, 1)], z_image_omni(siglip=1),
        [*((1 + i, 0, 0) for i in range(32)), (33, 0, 0), (33, 1, 0), *((35 + i, 0, 0) for i in range(32)),
         (34, 0, 0), (34, 3, 0)]),
    "z_image_omni, filled up": ([text(32), text(32), image(1, 1), image(1, 1)], z_image_omni(captions=(20, 7)),
        [*((1 + i, 0, 0) for i in range(32)), *((23 + i, 0, 0) for i in range(32)), (21, 0, 0), (30, 0, 0)]),
    "cogvideox": ([text(1), video(1, 2, 6)], "cogvideox",
        [(0, 0, 0), *((0, 8 + h * (23 / 2 - 8), w * 45 / 6) for h, w in raster(2, 6))]),
    "cogvideox, tall": ([video((4, 9), 4, 2)], cogvideox(trained=(8, 9)),
        [(t, h * 2, 2 + w * (6 / 2 - 2)) for t in (4, 9) for h, w in raster(4, 2)]),
    "cosmos3": ([text(2), sound(3, fps=25), video(2, 1, 1, fps=16)], "cosmos3",
        [(0, 0, 0.0), (1, 1, 1), *((15002 + t * 24 / 25, 0, 0) for t in range(3)), (15002, 0, 0), (15003.5, 0, 0)]),
    "cosmos3, frames": ([text(1), sound(2), video(2, 1, 2)], cosmos3(margin=5),
        [(0, 0, 0), (6, 0, 0), (7, 0, 0), *((6 + t, 0, w) for t, _, w in raster(2, 1, 2))]),
    "minimax_h3": ([text(2), sound(2), sound(1), video(7, 1, 4)], "minimax_h3",
        [(0, 0, 0.0), (1, 0, 0), (2, 0, -16), (3, 0, -16), (2, 0, 32),
         *((2 + 5 / 3 * (0, 1, 5, 9, 13, 17, 18)[t], 8, 16 * (w - 1)) for t, _, w in raster(7, 1, 4))]),
    "ltx2_audio": ([sound(3, fps=25)], "ltx2_audio",
        [np.pi / 2 * (2 * middle / 100 / 20 - 1) for middle in (0.5, 3, 7)]),
    "wan, numbers": ([video((3, 0), 1, 2)], "wan", [(t, 0, w) for t in (3, 0) for w in range(2)]),
    "vision_tower": ([video(2, 2, 4)], vision_tower(block=2),
        2 * [(h, 2 * block + w) for block in range(2) for h, w in raster(2, 2)]),
    "qwen2_vl_vision": ([image(4, 2)], "qwen2_vl_vision", [(2 * block + h, w) for block, h, w in raster(2, 2, 2)]),
    "minimax_m3_vision": ([video(2, 2, 4)], "minimax_m3_vision",
        [(t, h, 2 * block + w) for t, block, h, w in raster(2, 2, 2, 2)]),
    "llama4_vision": ([image(2, 2), unplaced(1)], "llama4_vision",
        [*((h + 1, w + 1) for h, w in raster(2, 2)), (0, 0)]),
    "sam3": ([image(2, 4)], sam3(window=3), [(h * 0.75, w * 0.75) for h, w in raster(2, 4)]),
    "patches": ([unplaced(1), image(2, 3)], "patches", [(0, 0), *raster(2, 3)]),
    "dinov3": ([unplaced(2), image(2, 4)], "dinov3",
        2 * np.pi * np.asarray([(0, 0)] * 2 + [(h - 0.5, (w + 0.5) / 2 - 1) for h, w in raster(2, 4)])),
}  # fmt: skip
"""Parts, rule, and the position of every token."""


QUICK = ("qwen2_vl", "qwen2_5_vl", "flux", "qwen_image", "cogview4", "cosmos3", "minimax_h3", "vision_tower")


@pytest.mark.parametrize("name", [name if name in QUICK else slow(name) for name in EXPECTED])
def test_a_rule_places_every_token_by_its_formula(name):
    parts, rule, expected = EXPECTED[name]
    tokens = positions_of(parts, rule=rule)
    expected = np.asarray(expected)
    if expected.dtype.kind == "i":
        assert tokens.positions.dtype == jnp.int32
        np.testing.assert_array_equal(tokens.positions, expected)
    else:  # each number is rounded once
        assert tokens.positions.dtype == jnp.float32
        assert np.all(
            np.abs(np.asarray(tokens.positions, np.float64) - expected) <= np.abs(expected) * 2.0**-24 + 1e-12
        )
    np.testing.assert_array_equal(tokens.order, np.arange(len(expected)))
    assert tokens.segment_ids is None


def test_every_rule_has_a_formula_here():
    assert {RULES[name.partition(",")[0]] for name in EXPECTED} == set(RULES.values())


def test_every_preset_has_a_rule_of_its_name():
    assert PRESETS.keys() <= RULES.keys()


def test_every_rule_is_compared_with_its_model_or_the_model_is_named():
    assert COMPARED.isdisjoint(NOT_IN_PEERS)
    assert RULES.keys() == COMPARED | NOT_IN_PEERS.keys()


def test_a_rule_has_the_axes_of_the_preset_of_its_name():
    """Of presets that other rules serve: `patches` those of vision transformers."""
    for name in PRESETS:
        assert len(RULES[name]().axes) == PRESETS[name].axes, name


def test_descriptions_count_tokens_in_any_unit():
    assert image(8, 12, patch=2) == image(4, 6)
    assert image(224, 336, patch=28).grid == (1, 8, 12)
    assert video(8, 56, 84, patch=(2, 28, 28), fps=4) == video(4, 2, 3, fps=2)
    assert (video(4, 2, 3).tokens, text(12).tokens, unplaced(1).tokens) == (24, 12, 1)


def test_axes_of_coordinates():
    assert centered(1).tolist() == [-1]
    assert fitted(3, 3).tolist() == [0, 1, 2]
    assert middles(1).tolist() == [0.0]
    assert equal(counted(2, -1), 2).tolist() == [[-1, -1], [0, 0]]
    assert grid([7], [0, 1]).dtype == np.int64


def test_tokens_that_a_rule_does_not_place_have_no_position():
    tokens = positions_of([unplaced(2), image(1, 2), text(1)], rule="cogview4")
    np.testing.assert_array_equal(tokens.has_position, [False, False, True, True, False])
    assert positions_of([image(1, 2)], rule="cogview4").has_position is None
    alone = positions_of([unplaced(2)], rule="flux")
    np.testing.assert_array_equal(alone.positions, np.zeros((2, 3)))


@pytest.mark.parametrize(
    ("frames", "after", "expected"), [(40, 3, 41), (40, 60, 65), (2, 3, 8)]
)  # what transformers 5.24 gives
def test_generation_goes_on_after_the_last_of_all_positions(frames, after, expected):
    parts = [text(1), video(frames, 4, 4), text(after)]
    assert next_position(parts, rule="qwen2_vl") == expected
    assert next_position([unplaced(2), *parts, unplaced(1)], rule="qwen2_vl") == expected
    assert next_position([unplaced(2)], rule="qwen2_vl") == 0


IN_TURN = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "spatial_reset", "qwen_image_2_1")


@pytest.mark.slow
@pytest.mark.parametrize("rule", IN_TURN)
def test_what_follows_moves_nothing_before_it(rule):
    """As in generation: the positions of a prompt are those of the prompt and its answer."""
    parts = [text(3), image(2, 5), text(2), image(3, 1), text(4)]
    row_of_all = positions(*parts, rule=rule)
    for count in range(1, len(parts)):
        before = positions(*parts[:count], rule=rule)
        np.testing.assert_array_equal(row_of_all[: len(before)], before)


def test_a_packed_row_is_its_sequences_and_padding():
    first, second = [text(2), image(2, 2), unplaced(1)], [image(1, 3), text(1)]
    row = positions_of(first, second, rule="qwen_image", length=14)
    result = np.asarray(row.positions)
    np.testing.assert_array_equal(row.segment_ids, [1] * 7 + [2] * 4 + [0] * 3)
    np.testing.assert_array_equal(row.has_position, [True] * 6 + [False] + [True] * 4 + [False] * 3)
    np.testing.assert_array_equal(result[:7], positions(*first, rule="qwen_image"))
    np.testing.assert_array_equal(result[7:11], positions(*second, rule="qwen_image"))
    np.testing.assert_array_equal(result[11:], 0)
    np.testing.assert_array_equal(row.order, np.arange(14))
    np.testing.assert_array_equal(positions_of(first, rule="qwen_image", length=7).segment_ids, [1] * 7)
    batch = jax.tree.map(lambda *rows: np.stack(rows), row, positions_of(second, rule="qwen_image", length=14))
    assert batch.positions.shape == (2, 14, 3)


def test_positions_are_constants_under_jit():
    parts = [text(2), video(2, 1, 2, fps=3), text(1)]
    traced = jax.jit(lambda: positions_of(parts, rule="qwen2_5_vl", length=8))()
    for item, other in zip(traced, positions_of(parts, rule="qwen2_5_vl", length=8), strict=True):
        np.testing.assert_array_equal(item, other)


def test_a_rule_of_ones_own():
    place = lambda parts: [
        equal(counted(part.tokens), 1) if part.kind == "text" else grid(100 + counted(part.tokens)) for part in parts
    ]
    mine = Rule("mine", ("token",), place)
    np.testing.assert_array_equal(positions(unplaced(1), text(2), image(1, 2), rule=mine), [0, 0, 1, 100, 101])


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (lambda parts: [], "rule mine: place must return one array per part, 1, got 0"),
        (lambda parts: [np.zeros((3, 2), int)], r"positions of text\(2\) must be .* of shape \(2, 2\), got int64"),
        (lambda parts: [np.zeros((2, 2), bool)], "got bool"),
        (lambda parts: [np.zeros((2, 2), np.float16)], "must be integers or floats of 32 bits, .* got float16"),
        (lambda parts: [np.full((2, 2), np.nan)], "rule mine: positions must be finite, got nan"),
        (lambda parts: [np.full((2, 2), 2**31)], "rule mine: positions must fit int32, got 2147483648 to 2147483648"),
        (lambda parts: [np.full((2, 2), 2.0**24 + 1)], "float32 must hold positions to within 2.-10, got up to 1.67"),
        (lambda parts: [np.full((2, 2), 32768.302)], "float32 must hold positions to within"),
    ],
)
def test_positions_of_ones_own_rule_are_checked(place, words):
    with types_unchecked(), pytest.raises(ValueError, match=words):
        positions_of([text(2)], rule=Rule("mine", ("row", "column"), place))


@pytest.mark.slow
def test_positions_with_fractions_are_float64_where_jax_has_64_bits():
    parts = [video(3, 1, 1, fps=30)]
    with jax.enable_x64(True):
        result = positions_of(parts, rule="cosmos").positions
    assert result.dtype == jnp.float64
    np.testing.assert_array_equal(result[:, 0], [0.0, 0.8, 1.6])


REFUSED = [
    (lambda: sound(0), "sound: tokens must be at least 1, got 0"),
    (lambda: sound(3, fps=-1), "sound: fps must be above 0, got -1"),
    (lambda: video((), 2, 2), "video: frames must be at least 1, got 0"),
    (lambda: video((2**31, -5), 2, 2), "video: numbers of frames must fit int32, got 2147483648"),
    (lambda: video((0, 7), 2, 2, patch=(2, 1, 1)), r"numbers of frames are those of tokens, .* got \(2, 1, 1\)"),
    (lambda: positions_of([sound(2)], rule="wan"), r"wan places text and image and video only, got sound\(2\)"),
    (lambda: positions_of([sound(2)], rule="ltx2_audio"), r"a sound must have an fps, got sound\(2\)"),
    (
        lambda: positions_of([sound(2, fps=4), image(1, 1)], rule="minimax_h3"),
        r"rule minimax_h3 counts frames: a sound must have no fps, got sound\(2, seconds=1/4\)",
    ),
    (
        lambda: positions_of([sound(2), sound(2), sound(1), image(1, 1)], rule="minimax_h3"),
        r"places at most 2 sounds, beside a video, got image\(1, 1\), sound\(2\), sound\(2\), sound\(1\)",
    ),
    (lambda: positions_of([sound(2)], rule="minimax_h3"), r"beside a video, got sound\(2\)"),
    (lambda: positions_of([image(3, 2)], rule="qwen2_vl_vision"), r"multiples of block=2, got image\(3, 2\)"),
    (lambda: positions_of([text(513)], rule="fibo2"), "texts must have at most 512 tokens, those of a gist, got 513"),
    (lambda: positions_of([text(32), image(1, 1), image(1, 1)], rule="z_image_omni"), "every picture .* caption"),
    (lambda: positions_of([text(32), image(1, 1)], rule=z_image_omni(siglip=1)), "one of siglip=1 its picture, got"),
    (
        lambda: positions_of([text(7)], rule="z_image_omni"),
        r"texts must be captions=\[7\], filled up to multiples of 32, got \[7\]",
    ),
    (
        lambda: positions_of([text(32)], rule=z_image_omni(captions=(20, 7))),
        r"texts must be captions=\[20, 7\], filled up to multiples of 32, got \[32\]",
    ),
    (lambda: z_image_omni(siglip=-1), "siglip must be at least 0, got -1"),
    (lambda: cosmos3(fps=0), "fps must be above 0, got 0"),
    (lambda: cogvideox(trained=(0, 4)), r"trained must be above 0 on every axis, got \(0, 4\)"),
    (lambda: vision_tower(block=0), "block must be above 0, got 0"),
    (lambda: sam3(window=0), "window must be above 0, got 0"),
    (lambda: flux3(scale=0), "scale must be above 0, got 0"),
    (lambda: next_position([text(2)], rule="flux"), "rule must be of a model that generates text, such as .* got flux"),
    (lambda: next_position([], rule="qwen2_vl"), "sequences must have parts such as text.* got an empty one"),
    (lambda: image(0, 3), "image: height must be at least 1, got 0"),
    (lambda: image(3, -1), "image: width must be at least 1, got -1"),
    (lambda: image(4, 6, patch=0), "image: patch must be at least 1, got 0"),
    (lambda: text(0), "text: tokens must be at least 1, got 0"),
    (lambda: image(28, 30, patch=14), "image: width must be a multiple of its patch, 14, got 30"),
    (lambda: video(5, 4, 4, patch=(2, 2, 2)), "video: frames must be a multiple of its patch, 2, got 5"),
    (lambda: video(5, 4, 4, fps=0), "video: fps must be above 0, got 0"),
    (lambda: positions_of([text(2)], rule="qwen_imag"), "unknown rule 'qwen_imag'; did you mean 'qwen_image'?"),
    (lambda: positions_of([video(2, 2, 2)], rule="qwen3_vl"), r"qwen3_vl places text and image only, got video\(2, 2"),
    (lambda: positions_of([text(2)], rule="patches"), r"rule patches places image only, got text\(2\)"),
    (
        lambda: positions_of([video(2, 2, 2, fps=2)], rule="wan"),
        "rule wan counts frames: a video must have no fps, got",
    ),
    (lambda: kandinsky6(scale=(1, 0, 2)), r"scale must be above 0 on every axis, got \(1.0, 0.0, 2.0\)"),
    (lambda: positions_of([video(2, 2, 2)], rule="ltx"), "a video must have an fps, got video"),
    (lambda: positions_of([image(2, 2)] * 2, rule="lumina2"), r"places at most one picture, got image\(2, 2\), image"),
    (lambda: positions_of([image(2, 2)] * 3, rule="flux"), "rule flux places at most 2 pictures, got"),
    (lambda: positions_of([text(20)], rule="z_image"), "texts must be filled up to a multiple of 32, got 20"),
    (lambda: positions_of([text(9)], rule="flux", length=8), "length must be at least the 9 tokens .* got 8"),
    (
        lambda: positions_of([text(9)], [], rule="flux"),
        "sequences must have parts such as text.* got an empty one",
    ),
    (lambda: positions_of(rule="flux"), "sequences must have parts"),
    (lambda: positions_of([video(2, 1, 1, fps=1e-12)], rule="qwen2_5_vl"), "times must fit int32, got 2e.12 times 1"),
    (lambda: qwen2_vl(resume="max"), "resume must be one of side, end, got 'max'"),
    (lambda: qwen2_5_vl(tokens_per_second=0), "tokens_per_second must be above 0, got 0"),
    (lambda: cosmos(fps=-1), "fps must be above 0, got -1"),
    (lambda: ltx(stride=(8, 0, 32)), "stride must be above 0 on every axis"),
    (lambda: centered(0), "count must be at least 1, got 0"),
    (lambda: fitted(2, 0), "reference must be at least 1, got 0"),
    (lambda: grid(), "axes must be one list of coordinates each"),
    (lambda: equal(counted(2), 0), "axes must be at least 1, got 0"),
    (lambda: Rule("mine", ("row",), list, pictures=0), "pictures must be at least 1, or None, got 0"),
    (lambda: grid(np.ones((2, 2))), r"axes must be one list of coordinates each, got shapes \(\(2, 2\)\)"),
    (lambda: Rule("mine", (), list), "axes must name at least one axis"),
    (lambda: Rule("mine", ("row",), list, fps="maybe"), "fps must be one of refused, optional, needed, got 'maybe'"),
    (lambda: Rule("mine", ("row",), list, kinds=("clip",)), "kinds must be one of text, .*, sound, got 'clip'"),
]


@pytest.mark.parametrize(("call", "words"), REFUSED, ids=[words[:50] for _, words in REFUSED])
def test_a_description_that_does_not_fit_is_refused(call, words):
    with types_unchecked(), pytest.raises(ValueError, match=words) as refusal:
        call()
    assert "\n" not in str(refusal.value)


def test_a_part_outside_of_a_list_is_refused_with_an_example():
    with (
        types_unchecked(),
        pytest.raises(TypeError, match=r"sequences\[0\] must be a tuple of parts such as text\(12\) .* got text\(2\)"),
    ):
        positions_of(text(2), rule="flux")
    with (
        types_unchecked(),
        pytest.raises(TypeError, match=r"rule must be a string or a rule such as pejax.placement.flux\(\), got flux"),
    ):
        positions_of([text(2)], rule=RULES["flux"])
    with types_unchecked(), pytest.raises(TypeError, match="text: tokens must be an int, got a traced int32"):
        jax.jit(lambda count: positions_of([text(count)], rule="flux"))(3)


def test_a_rule_of_other_axes_than_the_encoding_is_refused():
    encoding = pejax.encodings.rope_axial(Dims(heads=2, head_dim=8, axes=2))
    q = jnp.ones((5, 2, 8))
    with pytest.raises(ValueError, match=r"positions of tokens \(5,\) on 2 axes must be \(5, 2\), got \(5, 3\)"):
        attend(encoding, q, q, q, positions=positions_of([text(1), image(2, 2)], rule="flux"))


@pytest.mark.slow
def test_a_packed_row_attends_as_its_sequences_do():
    rope = pejax.encodings.rope(Dims(heads=2, head_dim=12, axes=3, causal=True), sections=(2, 2, 2), base=100.0)
    first, second = [text(2), image(2, 2), text(1)], [image(1, 3), text(2)]
    q, k, v = jax.random.normal(jax.random.key(0), (3, 16, 2, 12))
    packed = attend(rope, q, k, v, positions=positions_of(first, second, rule="qwen2_vl", length=16))
    for parts, span in ((first, slice(0, 7)), (second, slice(7, 12))):
        alone = attend(rope, q[span], k[span], v[span], positions=positions_of(parts, rule="qwen2_vl"))
        np.testing.assert_allclose(packed[span], alone, atol=1e-6)
