"""Positions of descriptions against the models' own code: transformers' `get_rope_index`, diffusers' ids and tables."""

import inspect
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from pejax import positions_of, segments_of_positions
from pejax.placement import RULES, image, longcat_image, qwen2_5_vl, text, unplaced, video
from tests.support.peers import peer

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]


def positions(*parts, rule):
    return np.asarray(positions_of(list(parts), rule=rule).positions)


def angles(found, widths, base):
    """Return angles `(n, F)` in float64: `widths` are the channels of each axis."""
    frequencies = [base ** (-np.arange(0, width, 2) / width) for width in widths]
    return np.concatenate([found[:, a, None].astype(float) * row for a, row in enumerate(frequencies)], -1)


def close(found, cos, sin, atol=1e-3):
    """Compare tables of a peer, whose angles are float32, with angles; a position one off is 0.8 away."""
    np.testing.assert_allclose(np.cos(found), np.asarray(cos), atol=atol)
    np.testing.assert_allclose(np.sin(found), np.asarray(sin), atol=atol)


# transformers

MERGE = 2
TEXT = [text(9)]
IMAGE = [text(3), image(8, 12, patch=2), text(5)]
IMAGES = [image(4, 4, patch=2), text(2), image(2, 14, patch=2), text(1), image(10, 6, patch=2), text(4)]
VIDEO = [text(3), video(18, 4, 6, patch=(1, 2, 2)), text(2), image(6, 2, patch=2), text(2)]
TIMED = [text(3), video(10, 4, 6, patch=(2, 2, 2), fps=4), text(2), video(4, 4, 4, patch=(2, 2, 2), fps=1), text(1)]
FRAMES = [text(4), image(6, 8, patch=2), text(4), image(6, 8, patch=2), text(7)]
"""Descriptions of the same sizes as `image_grid_thw` has them, in patches."""

MODELS = {
    "Qwen2-VL": ("qwen2_vl", "Qwen2VLModel", "qwen2_vl", [TEXT, IMAGE, IMAGES, VIDEO]),
    "Qwen2.5-VL": ("qwen2_5_vl", "Qwen2_5_VLModel", "qwen2_5_vl", [TEXT, IMAGE, IMAGES, TIMED]),
    "Qwen3-VL": ("qwen3_vl", "Qwen3VLModel", "qwen3_vl", [TEXT, IMAGE, IMAGES, FRAMES]),
    "Qwen3.5": ("qwen3_5", "Qwen3_5Model", "qwen3_vl", [TEXT, IMAGE, FRAMES]),
    "GLM-4V": ("glm4v", "Glm4vModel", "qwen3_vl", [TEXT, IMAGE, FRAMES]),
    "ERNIE 4.5 VL": ("ernie4_5_vl_moe", "Ernie4_5_VLMoeModel", "qwen2_vl", [TEXT, IMAGE, IMAGES, VIDEO]),
}
"""Module and class of transformers, rule, and what is compared."""


def own_index(module, name, parts, frames_are_videos=False, padding=0):
    """Return positions `(T, 3)` by `get_rope_index` of a class of transformers, of which no model is made."""
    torch, owner = peer("torch"), getattr(peer(f"transformers.models.{module}.modeling_{module}"), name)
    model = owner.__new__(owner)
    vision = SimpleNamespace(spatial_merge_size=MERGE, temporal_merge_size=1, tokens_per_second=2)
    object.__setattr__(model, "config", SimpleNamespace(vision_config=vision))
    kinds = {"text": 0, "image": 2 if frames_are_videos else 1, "video": 2}
    types = [0] * padding + [kinds[part.kind] for part in parts for _ in range(part.tokens)]
    pictures = [part for part in parts if part.is_picture]
    in_patches = lambda number: [(f, h * MERGE, w * MERGE) for f, h, w in (
        part.grid for part in pictures if kinds[part.kind] == number)]  # fmt: skip
    sizes = {"image": in_patches(1), "video": in_patches(2)}
    if frames_are_videos:  # one video of all frames
        sizes["video"] = [[len(sizes["video"]), *sizes["video"][0][1:]]]
    seconds = [float(part.seconds) for part in parts if part.seconds is not None]
    result, _ = model.get_rope_index(
        torch.zeros(1, len(types), dtype=torch.long),
        mm_token_type_ids=torch.tensor([types]),
        image_grid_thw=torch.tensor(sizes["image"]) if sizes["image"] else None,
        video_grid_thw=torch.tensor(sizes["video"]) if sizes["video"] else None,
        attention_mask=torch.tensor([[0] * padding + [1] * (len(types) - padding)]),
        **({"second_per_grid_ts": torch.tensor(seconds)} if seconds else {}),
    )
    return result[:, 0].numpy().T


@pytest.mark.parametrize("model", MODELS)
def test_positions_are_those_of_transformers(model):
    module, name, rule, described = MODELS[model]
    for parts in described:
        np.testing.assert_array_equal(positions(*parts, rule=rule), own_index(module, name, parts))
    padded = positions_of(described[1], rule=rule)
    np.testing.assert_array_equal(own_index(module, name, described[1], padding=3)[3:], padded.positions)


def test_frames_of_a_video_with_text_between_are_images_of_qwen3_vl():
    reference = own_index("qwen3_vl", "Qwen3VLModel", FRAMES, frames_are_videos=True)
    np.testing.assert_array_equal(positions(*FRAMES, rule="qwen3_vl"), reference)


def test_times_of_qwen2_5_vl_are_exact_where_float32_rounds_below_the_next_whole_number():
    """Of all fps of one decimal up to 60, 8 % have such frames among the first 512: frame 69 at 2.3 per second."""
    wrong = {}
    for fps in (1, 2.3, 3.7, 9.2, 23.976, 24, 29.97, 30):
        parts = [video(256, 2, 2, patch=(2, 2, 2), fps=fps)]
        reference = own_index("qwen2_5_vl", "Qwen2_5_VLModel", parts)[:, 0]
        ours = positions(*parts, rule=qwen2_5_vl())[:, 0]
        np.testing.assert_array_equal(ours, [frame * 4000 // round(1000 * fps) for frame in range(128)])
        wrong[fps] = np.flatnonzero(reference != ours).tolist()
    assert wrong == {1: [], 2.3: [69], 3.7: [111], 9.2: [69], 23.976: [], 24: [], 29.97: [], 30: []}


# diffusers


def diffusers(module):
    return peer(f"diffusers.{module}")


def transformer(name):
    return diffusers(f"models.transformers.transformer_{name}")


def test_positions_are_those_of_flux_and_its_table_turns_by_them():
    torch, pipeline = peer("torch"), diffusers("pipelines.flux.pipeline_flux").FluxPipeline
    ids = torch.cat([torch.zeros(5, 3), pipeline._prepare_latent_image_ids(1, 4, 6, "cpu", torch.float32)])
    result = positions(text(5), image(4, 6), rule="flux")
    np.testing.assert_array_equal(result, ids)
    cos, sin = transformer("flux").FluxPosEmbed(10000, [16, 56, 56])(ids)
    close(angles(result, (16, 56, 56), 1e4), cos[:, ::2], sin[:, ::2])


def test_positions_are_those_of_flux_2_with_references():
    torch, pipeline = peer("torch"), diffusers("pipelines.flux2.pipeline_flux2").Flux2Pipeline
    latents = torch.zeros(1, 8, 4, 6)
    ids = [pipeline._prepare_text_ids(torch.zeros(1, 7, 3)), pipeline._prepare_latent_ids(latents)]
    ids += [pipeline._prepare_image_ids([torch.zeros(1, 8, 2, 3), torch.zeros(1, 8, 5, 2)])]
    result = positions(text(7), image(4, 6), image(2, 3), image(5, 2), rule="flux2")
    np.testing.assert_array_equal(result, torch.cat(ids, 1)[0])


def test_positions_are_those_of_longcat_image():
    torch = peer("torch")
    prepare = diffusers("pipelines.longcat_image.pipeline_longcat_image").prepare_pos_ids
    ids = [prepare(0, "text", num_token=7), prepare(1, "image", (512, 512), height=4, width=3)]
    np.testing.assert_array_equal(positions(text(7), image(4, 3), rule="longcat_image"), torch.cat(ids))
    ids = [ids[0], *(prepare(n, "image", (7, 7), height=4, width=3) for n in (1, 2))]
    edit = positions(text(7), image(4, 3), image(4, 3), rule=longcat_image(start=None))
    np.testing.assert_array_equal(edit, torch.cat(ids))


def complex_close(found, reference):
    reference = np.asarray(reference)
    close(found, reference.real, reference.imag)


@pytest.mark.parametrize("sizes", [[(1, 4, 6)], [(1, 5, 3)], [(1, 4, 6), (1, 9, 3)], [(3, 4, 5)]])
def test_positions_are_those_of_qwen_image(sizes):
    torch = peer("torch")
    rope = transformer("qwenimage").QwenEmbedRope(10000, [16, 56, 56], scale_rope=True)
    reference, words = rope([sizes], torch.device("cpu"), max_txt_seq_len=7)
    pictures = [video(*size) if size[0] > 1 else image(*size[1:]) for size in sizes]
    result = angles(positions(text(7), *pictures, rule="qwen_image"), (16, 56, 56), 1e4)
    complex_close(result[:7], words)
    complex_close(result[7:], reference)


@pytest.mark.parametrize("layers", [[(4, 6), (4, 6), (4, 6)], [(2, 2)] * 6])
def test_positions_are_those_of_qwen_image_layered(layers):
    torch = peer("torch")
    rope = transformer("qwenimage").QwenEmbedLayer3DRope(10000, [16, 56, 56], scale_rope=True)
    reference, words = rope([[(1, *size) for size in layers]], 5, torch.device("cpu"))
    parts = [text(5), *(image(*size) for size in layers)]
    result = angles(positions(*parts, rule="qwen_image_layered"), (16, 56, 56), 1e4)
    complex_close(result, np.concatenate([words, reference]))


def test_positions_are_those_of_qwen_image_2_1():
    torch = peer("torch")
    parts = [text(3), image(2, 4), text(2), image(5, 3), text(4)]
    mask = torch.tensor([part.is_picture for part in parts for _ in range(part.tokens)])
    rope = transformer("qwenimage21").QwenImage21Rope(10000, [16, 56, 56])
    reference = rope([(1, 2, 4), (1, 5, 3)], mask, torch.device("cpu"))
    complex_close(angles(positions(*parts, rule="qwen_image_2_1"), (16, 56, 56), 1e4), reference)


def test_positions_are_those_of_lumina_2():
    torch = peer("torch")
    rope = transformer("lumina2").Lumina2RotaryPosEmbed(10000, [32, 32, 32])
    mask = torch.tensor([[1] * 7 + [0] * 2])
    reference = rope(torch.zeros(1, 4, 8, 12), mask)[3][0]
    complex_close(angles(positions(text(7), image(8, 12, patch=2), rule="lumina2"), (32, 32, 32), 1e4), reference)


def test_positions_are_those_of_z_image_with_what_it_fills_up():
    torch, owner = peer("torch"), transformer("z_image").ZImageTransformer2DModel
    model = owner.__new__(owner)
    made = model.patchify_and_embed([torch.zeros(4, 1, 8, 12)], [torch.zeros(20, 3)], 2, 1)
    picture, caption = made[3][0], made[4][0]
    parts = [unplaced(len(picture) - 24), text(32), image(8, 12, patch=2)]
    result = positions(parts[1], parts[2], parts[0], rule="z_image")
    np.testing.assert_array_equal(result, np.concatenate([caption[:32], picture]))


def test_positions_are_those_of_wan_and_cosmos():
    torch = peer("torch")
    cos, sin = transformer("wan").WanRotaryPosEmbed(128, (1, 2, 2), 1024)(torch.zeros(1, 4, 3, 8, 12))
    result = positions(video(3, 8, 12, patch=(1, 2, 2)), rule="wan")
    close(angles(result, (44, 42, 42), 1e4), cos[0, :, 0, ::2], sin[0, :, 0, ::2])
    for fps in (None, 30):
        rope = transformer("cosmos").CosmosRotaryPosEmbed(128, rope_scale=(1, 1, 1))
        cos, sin = rope(torch.zeros(1, 4, 3, 8, 12), fps)
        result = positions(video(3, 8, 12, patch=(1, 2, 2), fps=fps), rule="cosmos")
        close(angles(result, (44, 42, 42), 1e4), cos[:, :64], sin[:, :64])


@pytest.mark.parametrize("scale", [None, (1.0, 3.16, 3.16)])
def test_positions_are_those_of_kandinsky_5_and_6(scale):
    torch = peer("torch")
    indices = [torch.arange(size) for size in (3, 4, 6)]
    six = transformer("kandinsky6")
    reference = inspect.signature(six.Kandinsky6Transformer3DModel.__init__).parameters["scale_factor"].default
    tables = [
        six.Kandinsky6RoPE3D((32, 48, 48))(indices, scale or reference),
        transformer("kandinsky").Kandinsky5RoPE3D((32, 48, 48))((1, 3, 4, 6), indices, scale or (1.0, 2.0, 2.0)),
    ]
    for name, table in zip(("kandinsky6", "kandinsky5"), tables, strict=True):
        result = positions(video(3, 4, 6), rule=RULES[name](scale=scale) if scale else name)
        turns = table.reshape(72, 64, 2, 2)
        close(angles(result, (32, 48, 48), 1e4), turns[..., 0, 0], turns[..., 1, 0])


def test_positions_are_those_of_cogview_4():
    torch = peer("torch")
    rope = transformer("cogview4").CogView4RotaryPosEmbed(64, 2, (256, 256))
    cos, sin = rope(torch.zeros(1, 4, 14, 22))
    result = positions_of([text(3), image(14, 22, patch=2)], rule="cogview4")
    assert not np.any(np.asarray(result.has_position)[:3])
    close(angles(np.asarray(result.positions)[3:], (32, 32), 1e4), cos[:, :32], sin[:, :32])


def test_positions_are_those_of_ltx():
    rope = transformer("ltx").LTXVideoRotaryPosEmbed(192)
    reference = rope._prepare_video_coords(1, 5, 3, 4, (8 / 25, 32, 32), "cpu")[0]
    result = positions(video(5, 3, 4, fps=25), rule="ltx")
    np.testing.assert_allclose(result, np.pi / 2 * (2 * np.asarray(reference, np.float64) - 1), atol=3e-7)
    rope = transformer("ltx2").LTX2AudioVideoRotaryPosEmbed(192)
    middles = np.asarray(rope.prepare_video_coords(1, 5, 3, 4, "cpu", fps=25.0)[0], np.float64).mean(-1).T
    result = positions(video(5, 3, 4, fps=25), rule="ltx2")
    np.testing.assert_allclose(result, np.pi / 2 * (2 * middles / (20, 2048, 2048) - 1), atol=3e-7)


def test_a_packed_row_holds_the_positions_of_each_sequence():
    row = positions_of(IMAGE, TEXT, IMAGES, rule="qwen2_vl", length=120)
    segments = np.asarray(row.segment_ids)
    for n, parts in enumerate((IMAGE, TEXT, IMAGES), start=1):
        reference = own_index("qwen2_vl", "Qwen2VLModel", parts)
        np.testing.assert_array_equal(np.asarray(row.positions)[segments == n], reference)
    assert row.positions.dtype == jnp.int32


@pytest.mark.parametrize(
    "positions", [[0, 1, 2, 0, 1, 0], [1, 1, 0, 1, 2, 3], [5, 6, 7, 3, 4, 9], [0, 1, 2, 3, 4, 5], [0, 0, 0, 0, 0, 0]]
)
def test_a_jump_in_positions_begins_a_document_as_in_transformers(positions):
    position_ids = peer("torch").tensor([positions])
    packed = peer("transformers.masking_utils").find_packed_sequence_indices(position_ids)
    ours = segments_of_positions(jnp.asarray(positions))
    # `None`: transformers does not build a mask for a single document
    assert (ours - 1).tolist() == ([0] * 6 if packed is None else packed[0].tolist())
