"""Positions of descriptions against the models' own code: transformers' `get_rope_index`, diffusers' ids and tables."""

import inspect
from collections.abc import Callable
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from pejax import next_position, positions_of, segments_of_positions
from pejax.placement import RULES, image, longcat_image, qwen2_5_vl, sound, text, unplaced, video, z_image_omni
from tests.support.peers import peer

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

COMPARED: set[str] = set()
"""Rules that are compared here with a model's own code."""

NOT_IN_PEERS = {
    "spatial_reset": "MRoPE-I is in no release of transformers: its formula is in EXPECTED of test_placement.py",
    "mhrope": "the rule of MRoPE-I, in no release of transformers",
}
"""Rules whose models neither transformers nor diffusers has, and what stands in for their code."""


def compares(*rules: str) -> Callable:
    """Enter rules as compared by a test."""
    COMPARED.update(rules)
    return lambda test: test


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
    "GLM-4V": ("glm4v", "Glm4vModel", "glm4v", [TEXT, IMAGE, FRAMES]),
    "ERNIE 4.5 VL": ("ernie4_5_vl_moe", "Ernie4_5_VLMoeModel", "ernie4_5_vl", [TEXT, IMAGE, IMAGES, VIDEO]),
}
"""Module and class of transformers, rule, and what is compared."""


def own_index(module, name, parts, frames_are_videos=False, padding=0):
    """Return positions `(T, 3)` by `get_rope_index` of a class of transformers, of which no model is made."""
    return own_index_and_next(module, name, parts, frames_are_videos, padding)[0]


def own_index_and_next(module, name, parts, frames_are_videos=False, padding=0):
    """Return the positions, and that of the first token that is generated: the count of tokens + the model's delta."""
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
    result, delta = model.get_rope_index(
        torch.zeros(1, len(types), dtype=torch.long),
        mm_token_type_ids=torch.tensor([types]),
        image_grid_thw=torch.tensor(sizes["image"]) if sizes["image"] else None,
        video_grid_thw=torch.tensor(sizes["video"]) if sizes["video"] else None,
        attention_mask=torch.tensor([[0] * padding + [1] * (len(types) - padding)]),
        **({"second_per_grid_ts": torch.tensor(seconds)} if seconds else {}),
    )
    return result[:, 0].numpy().T, len(types) - padding + int(delta[0, 0])


@compares("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm4v", "ernie4_5_vl")
@pytest.mark.parametrize("model", MODELS)
def test_positions_are_those_of_transformers(model):
    module, name, rule, described = MODELS[model]
    for parts in described:
        np.testing.assert_array_equal(positions(*parts, rule=rule), own_index(module, name, parts))
    padded = positions_of(described[1], rule=rule)
    np.testing.assert_array_equal(own_index(module, name, described[1], padding=3)[3:], padded.positions)


LONG = [text(1), video(40, 4, 4), text(3)]
"""The text after the video is passed by its frames."""


@pytest.mark.parametrize("model", MODELS)
def test_generation_goes_on_where_it_does_in_transformers(model):
    module, name, rule, described = MODELS[model]
    timed = [text(1), video(40, 8, 8, patch=(1, 2, 2), fps=2), text(3)]
    long = {"qwen2_vl": [LONG], "ernie4_5_vl": [LONG], "qwen2_5_vl": [timed]}.get(rule, [])
    for parts in [*described, *long]:
        assert next_position(parts, rule=rule) == own_index_and_next(module, name, parts)[1]
    for parts in long:
        assert next_position(parts, rule=rule) == 41 > positions(*parts, text(1), rule=rule)[-1].max()


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


@compares("flux")
def test_positions_are_those_of_flux_and_its_table_turns_by_them():
    torch, pipeline = peer("torch"), diffusers("pipelines.flux.pipeline_flux").FluxPipeline
    ids = torch.cat([torch.zeros(5, 3), pipeline._prepare_latent_image_ids(1, 4, 6, "cpu", torch.float32)])
    result = positions(text(5), image(4, 6), rule="flux")
    np.testing.assert_array_equal(result, ids)
    cos, sin = transformer("flux").FluxPosEmbed(10000, [16, 56, 56])(ids)
    close(angles(result, (16, 56, 56), 1e4), cos[:, ::2], sin[:, ::2])


@compares("flux2")
def test_positions_are_those_of_flux_2_with_references():
    torch, pipeline = peer("torch"), diffusers("pipelines.flux2.pipeline_flux2").Flux2Pipeline
    latents = torch.zeros(1, 8, 4, 6)
    ids = [pipeline._prepare_text_ids(torch.zeros(1, 7, 3)), pipeline._prepare_latent_ids(latents)]
    ids += [pipeline._prepare_image_ids([torch.zeros(1, 8, 2, 3), torch.zeros(1, 8, 5, 2)])]
    result = positions(text(7), image(4, 6), image(2, 3), image(5, 2), rule="flux2")
    np.testing.assert_array_equal(result, torch.cat(ids, 1)[0])


@compares("longcat_image")
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


@compares("qwen_image")
@pytest.mark.parametrize("sizes", [[(1, 4, 6)], [(1, 5, 3)], [(1, 4, 6), (1, 9, 3)], [(3, 4, 5)]])
def test_positions_are_those_of_qwen_image(sizes):
    torch = peer("torch")
    rope = transformer("qwenimage").QwenEmbedRope(10000, [16, 56, 56], scale_rope=True)
    reference, words = rope([sizes], torch.device("cpu"), max_txt_seq_len=7)
    pictures = [video(*size) if size[0] > 1 else image(*size[1:]) for size in sizes]
    result = angles(positions(text(7), *pictures, rule="qwen_image"), (16, 56, 56), 1e4)
    complex_close(result[:7], words)
    complex_close(result[7:], reference)


@compares("qwen_image_layered")
@pytest.mark.parametrize("layers", [[(4, 6), (4, 6), (4, 6)], [(2, 2)] * 6])
def test_positions_are_those_of_qwen_image_layered(layers):
    torch = peer("torch")
    rope = transformer("qwenimage").QwenEmbedLayer3DRope(10000, [16, 56, 56], scale_rope=True)
    reference, words = rope([[(1, *size) for size in layers]], 5, torch.device("cpu"))
    parts = [text(5), *(image(*size) for size in layers)]
    result = angles(positions(*parts, rule="qwen_image_layered"), (16, 56, 56), 1e4)
    complex_close(result, np.concatenate([words, reference]))


@compares("qwen_image_2_1")
def test_positions_are_those_of_qwen_image_2_1():
    torch = peer("torch")
    parts = [text(3), image(2, 4), text(2), image(5, 3), text(4)]
    mask = torch.tensor([part.is_picture for part in parts for _ in range(part.tokens)])
    rope = transformer("qwenimage21").QwenImage21Rope(10000, [16, 56, 56])
    reference = rope([(1, 2, 4), (1, 5, 3)], mask, torch.device("cpu"))
    complex_close(angles(positions(*parts, rule="qwen_image_2_1"), (16, 56, 56), 1e4), reference)


@compares("lumina2")
def test_positions_are_those_of_lumina_2():
    torch = peer("torch")
    rope = transformer("lumina2").Lumina2RotaryPosEmbed(10000, [32, 32, 32])
    mask = torch.tensor([[1] * 7 + [0] * 2])
    reference = rope(torch.zeros(1, 4, 8, 12), mask)[3][0]
    complex_close(angles(positions(text(7), image(8, 12, patch=2), rule="lumina2"), (32, 32, 32), 1e4), reference)


@compares("z_image")
def test_positions_are_those_of_z_image_with_what_it_fills_up():
    torch, owner = peer("torch"), transformer("z_image").ZImageTransformer2DModel
    model = owner.__new__(owner)
    made = model.patchify_and_embed([torch.zeros(4, 1, 8, 12)], [torch.zeros(20, 3)], 2, 1)
    picture, caption = made[3][0], made[4][0]
    parts = [unplaced(len(picture) - 24), text(32), image(8, 12, patch=2)]
    result = positions(parts[1], parts[2], parts[0], rule="z_image")
    np.testing.assert_array_equal(result, np.concatenate([caption[:32], picture]))


@compares("wan", "cosmos")
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


@compares("kandinsky5", "kandinsky6")
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


@compares("cogview4")
def test_positions_are_those_of_cogview_4():
    torch = peer("torch")
    rope = transformer("cogview4").CogView4RotaryPosEmbed(64, 2, (256, 256))
    cos, sin = rope(torch.zeros(1, 4, 14, 22))
    result = positions_of([text(3), image(14, 22, patch=2)], rule="cogview4")
    assert not np.any(np.asarray(result.has_position)[:3])
    close(angles(np.asarray(result.positions)[3:], (32, 32), 1e4), cos[:, :32], sin[:, :32])


@compares("ltx", "ltx2")
def test_positions_are_those_of_ltx():
    rope = transformer("ltx").LTXVideoRotaryPosEmbed(192)
    reference = rope._prepare_video_coords(1, 5, 3, 4, (8 / 25, 32, 32), "cpu")[0]
    result = positions(video(5, 3, 4, fps=25), rule="ltx")
    np.testing.assert_allclose(result, np.pi / 2 * (2 * np.asarray(reference, np.float64) - 1), atol=3e-7)
    rope = transformer("ltx2").LTX2AudioVideoRotaryPosEmbed(192)
    middles = np.asarray(rope.prepare_video_coords(1, 5, 3, 4, "cpu", fps=25.0)[0], np.float64).mean(-1).T
    result = positions(video(5, 3, 4, fps=25), rule="ltx2")
    np.testing.assert_allclose(result, np.pi / 2 * (2 * middles / (20, 2048, 2048) - 1), atol=3e-7)


@compares("krea2", "hidream", "ovis_image")
def test_positions_are_those_of_krea_2_hidream_and_ovis_image():
    torch = peer("torch")
    krea = diffusers("pipelines.krea2.pipeline_krea2").Krea2Pipeline
    ids = krea.prepare_position_ids(5, 4, 6, torch.device("cpu"))
    np.testing.assert_array_equal(positions(text(5), image(4, 6), rule="krea2"), ids)
    hidream = model_without_init(transformer("hidream_image").HiDreamImageTransformer2DModel, patch_size=2, max_seq=40)
    hidream.max_seq = 40
    ids = hidream.patchify(torch.zeros(1, 4, 8, 12))[3][0, :24]
    np.testing.assert_array_equal(positions(image(8, 12, patch=2), text(2), rule="hidream"), [*ids, *torch.zeros(2, 3)])
    ovis = diffusers("pipelines.ovis_image.pipeline_ovis_image").OvisImagePipeline
    own = SimpleNamespace(text_encoder=SimpleNamespace(dtype=torch.float32))
    ids = [ovis._prepare_prompt_embeds(own, None, torch.zeros(1, 5, 8), 1, 256, "cpu")[1]]
    ids += [ovis._prepare_latent_image_ids(1, 4, 6, "cpu", torch.float32)]
    np.testing.assert_array_equal(positions(text(5), image(4, 6), rule="ovis_image"), torch.cat(ids))


def model_without_init(owner, **config):
    """Return a model whose methods read its config only."""
    model = owner.__new__(owner)
    object.__setattr__(model, "_internal_dict", SimpleNamespace(**config))
    return model


@compares("flux3")
def test_positions_are_those_of_flux_3_with_references():
    torch, own = peer("torch"), diffusers("modular_pipelines.flux3.before_denoise")
    words = next(step for step in vars(own).values() if hasattr(step, "_prepare_text_ids"))
    pictures = (4, 6, 0.5), (2, 3, 0.5, -1), (1, 2, 0.5, -2)
    ids = [words._prepare_text_ids(torch.zeros(1, 5, 8)), *(own._prepare_image_ids(*item) for item in pictures)]
    parts = [text(5), *(image(*item[:2]) for item in pictures)]
    np.testing.assert_array_equal(positions(*parts, rule="flux3"), torch.cat(ids))


@compares("fibo2")
def test_positions_are_those_of_fibo_2_in_its_own_forward():
    torch, owner = peer("torch"), transformer("bria_fibo2").BriaFibo2Transformer2DModel
    gist = {"min_num_gist_tokens": 7, "max_num_gist_tokens": 12, "gist_step": 1}
    small = {
        "dim": 128,
        "n_heads": 1,
        "n_layers": 1,
        "n_refiner_layers": 1,
        "cap_feat_dim": 8,
        "injection_layer_ids": [],
    }
    model, seen = owner(in_channels=4, perceiver_num_layers=1, **gist, **small).eval(), []
    table = model.rope_embedder
    model.rope_embedder = lambda ids: seen.append(ids.numpy()) or table(ids)
    context, words = [torch.zeros(1, 4, 4, 4), torch.zeros(1, 4, 8, 2)], torch.zeros(1, 1, 6, 8)
    with torch.no_grad():
        model(torch.zeros(1, 4, 8, 12), torch.ones(1), words, context_latents=context)
    pictures, gist = seen
    parts = [text(len(gist)), *(image(height, width, patch=2) for height, width in ((8, 12), (4, 4), (8, 2)))]
    np.testing.assert_array_equal(positions(*parts, rule=RULES["fibo2"](gist=12)), np.concatenate([gist, pictures]))
    assert inspect.signature(owner.__init__).parameters["max_num_gist_tokens"].default == 512


@compares("ideogram4")
def test_positions_are_those_of_ideogram_4():
    own = diffusers("pipelines.ideogram4.pipeline_ideogram4").Ideogram4Pipeline
    ids, _, _ = own._prepare_ids([5], 4, 6, 8, "cpu")
    np.testing.assert_array_equal(positions(text(5), image(4, 6), rule="ideogram4"), ids[0, 3:])


@compares("hunyuan_image", "glm_image", "prx", "patches")
def test_positions_are_those_of_hunyuan_image_glm_image_and_prx():
    torch, latents = peer("torch"), peer("torch").zeros(1, 4, 8, 12)
    ids = transformer("prx").get_image_ids(1, 8, 12, 2, torch.device("cpu"))[0]
    for rule in ("prx", "patches"):
        np.testing.assert_array_equal(positions(image(8, 12, patch=2), rule=rule), ids)
    hunyuan = transformer("hunyuanimage").HunyuanImageRotaryPosEmbed((2, 2), (64, 64), 256.0)
    glm = transformer("glm_image").GlmImageRotaryPosEmbed(128, 2)
    cos, sin = hunyuan(latents)
    tables = {"hunyuan_image": (cos[:, ::2], sin[:, ::2], 256.0)}
    cos, sin = glm(latents)
    tables["glm_image"] = (cos[:, :64], sin[:, :64], 1e4)
    for rule, (cos, sin, base) in tables.items():
        result = positions_of([image(8, 12, patch=2), text(3)], rule=rule)
        np.testing.assert_array_equal(result.has_position, [True] * 24 + [False] * 3)
        close(angles(np.asarray(result.positions)[:24], (64, 64), base), cos, sin)


@compares("z_image_omni")
@pytest.mark.parametrize("captions", [(32, 64, 32), (20, 40, 1)])
@pytest.mark.parametrize("towers", [[(5, 3), (9, 7)], [(3, 5), None], [None, None]])
def test_positions_are_those_of_z_image_with_several_pictures(captions, towers):
    """Their last pictures may lack features of SigLIP, as the one to be drawn does; fillings are left out."""
    torch, owner = peer("torch"), transformer("z_image").ZImageTransformer2DModel
    model, sizes = model_without_init(owner, siglip_feat_dim=8), [(4, 6), (8, 4)]
    latents = [torch.zeros(4, 1, 2 * height, 2 * width) for height, width in sizes]
    features = [None if size is None else torch.zeros(*size, 8) for size in towers]
    words = [torch.zeros(count, 3) for count in captions]
    lists = model.patchify_and_embed_omni([latents], [words], [features], 2, 1, [[0, 1]])
    filled = [count + -count % 32 for count in captions]
    given = [size for size in towers if size is not None]
    ids = cut(lists[5][0], filled, [2 * full - count for full, count in zip(filled, captions, strict=True)])
    for places, shapes in ((lists[4][0], sizes), (lists[6][0], given)):
        counts = [height * width for height, width in shapes]
        ids += cut(places, counts, [count + -count % 32 for count in counts])
    parts = [*map(text, filled), *(image(*size) for size in (*sizes, *given))]
    result = positions(*parts, rule=z_image_omni(captions=captions, siglip=len(given)))
    np.testing.assert_array_equal(result, np.concatenate(ids))


def cut(array, counts, lengths):
    """Return the first so many rows of each piece of an array, whose pieces have these lengths."""
    starts = [sum(lengths[:k]) for k in range(len(lengths))]
    return [array[start:][:count] for start, count in zip(starts, counts, strict=True)]


@compares("hunyuan_video", "allegro", "cogvideox1_5")
def test_positions_are_those_of_other_models_with_the_rule_of_wan():
    torch, embeddings = peer("torch"), diffusers("models.embeddings")
    latents = torch.zeros(1, 4, 3, 8, 12)
    clip = video(3, 8, 12, patch=(1, 2, 2))
    cos, sin = transformer("hunyuan_video").HunyuanVideoRotaryPosEmbed(2, 1, [16, 56, 56])(latents)
    close(angles(positions(clip, rule="hunyuan_video"), (16, 56, 56), 256.0), cos[:, ::2], sin[:, ::2])
    cos, sin = embeddings.get_3d_rotary_pos_embed(64, None, (4, 6), 3, grid_type="slice", max_size=(30, 45))
    close(angles(positions(clip, rule="cogvideox1_5"), (16, 24, 24), 1e4), cos[:, ::2], sin[:, ::2])
    sizes = SimpleNamespace(
        attention_head_dim=96, patch_size=2, **{f"interpolation_scale_{axis}": 1.0 for axis in "thw"}
    )
    own = SimpleNamespace(vae_scale_factor_spatial=1, transformer=SimpleNamespace(config=sizes))
    prepare = diffusers("pipelines.allegro.pipeline_allegro").AllegroPipeline._prepare_rotary_positional_embeddings
    grids = prepare(own, 1, 8, 12, 3, "cpu")[1]
    np.testing.assert_array_equal(positions(clip, rule="allegro"), np.stack([axis[0] for axis in grids], -1))


def test_frames_by_number_are_those_of_helios_framepack_and_chrono_edit():
    torch, numbers = peer("torch"), (5, 0, 9)
    clip = video(numbers, 4, 6)
    turns = transformer("helios").HeliosRotaryPosEmbed((44, 42, 42), 1e4)(torch.tensor([numbers]), 4, 6, "cpu")
    cos, sin = turns[0].reshape(2, 128, -1).swapaxes(1, 2)
    close(angles(positions(clip, rule="wan"), (44, 42, 42), 1e4), cos[:, ::2], sin[:, ::2])
    own = transformer("hunyuan_video_framepack").HunyuanVideoFramepackRotaryPosEmbed(2, 1, [16, 56, 56])
    cos, sin = own(torch.tensor(numbers), 8, 12, "cpu")
    close(angles(positions(clip, rule="hunyuan_video"), (16, 56, 56), 256.0), cos[:, ::2], sin[:, ::2])
    own = transformer("chronoedit").ChronoEditRotaryPosEmbed(128, (1, 2, 2), 64)
    cos, sin = own(torch.zeros(1, 4, 2, 8, 12))
    edit = positions(video((0, 7), 4, 6), rule="wan")
    close(angles(edit, (44, 42, 42), 1e4), cos[0, :, 0, ::2], sin[0, :, 0, ::2])


@compares("cogvideox")
@pytest.mark.parametrize("size", [(20, 12), (4, 8), (30, 45), (45, 30), (1, 7), (60, 90), (31, 45)])
def test_positions_are_those_of_the_crop_of_cogvideox(size):
    region = diffusers("pipelines.cogvideo.pipeline_cogvideox").get_resize_crop_region_for_grid(size, 45, 30)
    cos, sin = diffusers("models.embeddings").get_3d_rotary_pos_embed(64, region, size, 3)
    result = positions_of([text(2), video(3, *size)], rule="cogvideox")
    assert not result.has_position[:2].any()
    close(angles(np.asarray(result.positions)[2:], (16, 24, 24), 1e4), cos[:, ::2], sin[:, ::2], atol=1e-4)


@compares("cosmos3")
@pytest.mark.parametrize(("fps", "rate"), [(16, 25), (30, 12.5), (None, None)])
def test_positions_are_those_of_cosmos_3_with_sound(fps, rate):
    """Their float32 rounds times beyond 15,000 to 1e-3."""
    torch, own = peer("torch"), diffusers("pipelines.cosmos.pipeline_cosmos3_omni")
    words, start = own.get_3d_mrope_ids_text_tokens(7, 0)
    start += 15000
    frames, _ = own.get_3d_mrope_ids_vae_tokens(3, 4, 6, start, fps=fps, temporal_compression_factor=4)
    tones, _ = own.get_3d_mrope_ids_vae_tokens(5, 1, 1, start, fps=rate, temporal_compression_factor=1)
    ids = torch.cat([words.float(), frames.float(), tones.float()], 1).T
    result = positions(text(7), video(3, 4, 6, fps=fps), sound(5, fps=rate), rule="cosmos3")
    np.testing.assert_allclose(result, ids, atol=2e-3)
    defaults = inspect.signature(transformer("cosmos3").Cosmos3OmniTransformer.__init__).parameters
    assert defaults["unified_3d_mrope_temporal_modality_margin"].default == 15000


@compares("minimax_h3")
@pytest.mark.parametrize("channels", [1, 2])
def test_positions_are_those_of_minimax_h3_with_sound(channels):
    torch = peer("torch")
    own = diffusers("modular_pipelines.minimax_h3.before_denoise").MiniMaxH3PrepareLayoutStep
    build = own.build_packed_sequence
    ids = build(torch.ones(5), 12, 10, 6, 9, (1, 2, 2), channels, 2, 0)[0]
    parts = [text(5), *[sound(9)] * channels, video(12, 10, 6, patch=(1, 2, 2))]
    np.testing.assert_allclose(positions(*parts, rule="minimax_h3"), ids, rtol=1e-7, atol=1e-6)


@compares("ltx2_audio")
def test_positions_are_those_of_the_audio_of_ltx_2():
    own = transformer("ltx2").LTX2AudioVideoRotaryPosEmbed(256, modality="audio", scale_factors=(4,))
    middles = np.asarray(own.prepare_audio_coords(1, 20, "cpu")[0, 0], np.float64).mean(-1)
    result = positions(sound(20, fps=own.audio_latents_per_second), rule="ltx2_audio")
    np.testing.assert_allclose(result, np.pi / 2 * (2 * middles / 20 - 1), atol=3e-7)


# vision transformers


@compares("pixtral")
def test_positions_are_those_of_pixtral():
    torch, module = peer("torch"), peer("transformers.models.pixtral.modeling_pixtral")
    config = module.PixtralVisionConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=32, patch_size=4
    )
    model = module.PixtralVisionModel(config).eval()
    sizes = torch.tensor([[16, 24], [8, 12]])
    calls = []
    model.patch_positional_embedding.register_forward_pre_hook(lambda _, operands: calls.append(operands))
    with torch.no_grad():
        model(torch.zeros(2, 3, 16, 24), image_sizes=sizes)
    row = positions_of([image(4, 6)], [image(2, 3)], rule="pixtral")
    np.testing.assert_array_equal(row.positions, calls[0][1])


@compares("gemma4_vision")
def test_positions_are_those_of_gemma_4_with_the_column_first():
    module = peer("transformers.models.gemma4.image_processing_pil_gemma4")
    images = module.Gemma4ImageProcessorPil(do_resize=False)(np.zeros((3, 6 * 16, 9 * 16)), return_tensors="np")
    at = images["image_position_ids"][0, :54]
    np.testing.assert_array_equal(positions(image(6, 9), rule="gemma4_vision")[:, ::-1], at)


@compares("vision_tower", "kimi_vision", "qwen2_vl_vision", "minimax_m3_vision")
@pytest.mark.parametrize(("rule", "block"), [("vision_tower", 1), ("kimi_vision", 1), ("qwen2_vl_vision", 2)])
def test_positions_are_those_of_vision_towers(rule, block):
    place = peer("transformers.vision_utils").get_vision_position_ids
    sizes = peer("torch").tensor([[3, 4, 6], [1, 8, 2]])
    row = positions_of([video(3, 4, 6)], [image(8, 2)], rule=rule)
    np.testing.assert_array_equal(row.positions, place(sizes, block))
    row = positions_of([video(3, 4, 6)], [image(8, 2)], rule="minimax_m3_vision")
    np.testing.assert_array_equal(row.positions, place(sizes, 2, include_temporal=True))


@compares("llama4_vision")
def test_positions_are_those_of_llama_4():
    module = peer("transformers.models.llama4.modeling_llama4")
    config = module.Llama4VisionConfig(image_size=84, patch_size=14, hidden_size=128, num_attention_heads=2)
    turns = module.Llama4VisionRotaryEmbedding(config)(peer("torch").ones(1))[:, 0]
    result = positions_of([image(6, 6), unplaced(1)], rule="llama4_vision")
    complex_close(angles(np.asarray(result.positions)[:, ::-1], (32, 32), 1e4), turns)


@compares("sam2", "sam3")
def test_positions_are_those_of_sam_2_and_3_with_the_column_first():
    layer = peer("transformers.models.sam3.modeling_sam3").Sam3ViTLayer
    config = SimpleNamespace(image_size=336, patch_size=14, window_size=8)
    for window, side in ((0, 24), (8, 8)):
        at = layer.precompute_positions(config, window)
        np.testing.assert_allclose(positions(image(side, side), rule=RULES["sam3"](window=8))[:, ::-1], at, atol=1e-6)
    memory = peer("transformers.models.sam2_video.modeling_sam2_video").Sam2VideoMemoryAttention
    at = memory.precompute_positions(SimpleNamespace(memory_attention_rope_feat_sizes=[6, 4]))
    frames = positions(video(2, 4, 6), rule="sam2")[:, ::-1]
    np.testing.assert_array_equal(frames, np.concatenate([at, at]))  # keys repeat the table of the queries


@compares("dinov3")
def test_positions_are_those_of_dinov3():
    torch, module = peer("torch"), peer("transformers.models.dinov3_vit.modeling_dinov3_vit")
    at = module.get_patches_center_coordinates(4, 6, dtype=torch.float64, device=torch.device("cpu"))
    np.testing.assert_allclose(positions(image(4, 6), rule="dinov3"), 2 * np.pi * np.asarray(at), atol=3e-7)


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
