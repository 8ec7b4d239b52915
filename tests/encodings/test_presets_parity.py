"""Presets of axial RoPE against the classes of diffusers and transformers that they are read from."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import pytest

from pejax import Dims, adapt, grid_positions, make_encoding, normalized_positions
from pejax.encodings import PRESETS
from tests.support.cases import normal
from tests.support.peers import peer

pytestmark = pytest.mark.parity

Rows = tuple[np.ndarray, Callable]
"""Positions `(T, A)` of tokens, and the function of the other library that rotates `(1, T, H, D)` at them."""

VIDEO = np.stack(np.meshgrid(*map(np.arange, (3, 4, 5)), indexing="ij"), -1).reshape(-1, 3)
PLANE = np.asarray(grid_positions(6, 10))
DRAWN = np.random.default_rng(2).integers(0, 60, (60, 4))
TWO_HEADS = {"hidden_size": 256, "num_attention_heads": 2}
PARTIAL = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}


def of_diffusers(name: str):
    return peer(f"diffusers.models.transformers.{name}")


def of_transformers(name: str):
    return peer(f"transformers.models.{name}.modeling_{name}")


def neighbors(cos, sin, *, of=-1) -> Callable:
    """Return diffusers' rotation by tables `(T, D)`."""
    rotate = peer("diffusers.models.embeddings").apply_rotary_emb
    return lambda x: rotate(x, (cos, sin), use_real_unbind_dim=of, sequence_dim=1)


def complex_numbers(table) -> Callable:
    """Return diffusers' rotation by a table `(T, D/2)` of complex numbers."""
    rotate = peer("diffusers.models.embeddings").apply_rotary_emb
    return lambda x: rotate(x, table[None], use_real=False)


def matrices(table) -> Callable:
    """Return the rotation by matrices `(1, T, 1, D/2, 2, 2)`."""
    return lambda x: (table * x.reshape(*x.shape[:-1], -1, 1, 2)).sum(-1).reshape(x.shape)


def by_ids(module: str, name: str, theta: float, widths: tuple[int, ...]) -> Rows:
    torch, at = peer("torch"), DRAWN[:, : len(widths)]
    ids = torch.tensor(at)
    return at, neighbors(*getattr(of_diffusers(module), name)(theta, widths)(ids))


def by_table(module: str, name: str, **options) -> Rows:
    torch, at = peer("torch"), DRAWN[:, :3]
    embedder = getattr(of_diffusers(module), name)(**options)
    return at, complex_numbers(embedder(torch.tensor(at)))


def of_volume(module: str, name: str, *options, of=-1, **named) -> Rows:
    embedder, x = getattr(of_diffusers(module), name)(*options, **named), peer("torch").ones(1, 1, 3, 4, 5)
    cos, sin = embedder(x)
    return VIDEO, neighbors(cos.reshape(60, -1), sin.reshape(60, -1), of=of)


def of_plane(module: str, name: str, *options, of=-1) -> Rows:
    return PLANE, neighbors(*getattr(of_diffusers(module), name)(*options)(peer("torch").ones(1, 1, 6, 10)), of=of)


def qwen_image() -> Rows:
    embedder = of_diffusers("transformer_qwenimage").QwenEmbedRope(10000, [16, 56, 56], scale_rope=True)
    video, text = embedder((1, 5, 10), max_txt_seq_len=10)
    picture = np.stack([np.zeros(50), *np.stack(np.asarray(grid_positions(5, 10)), -1) - [[3], [5]]], -1)
    at = np.concatenate([picture, np.repeat(5 + np.arange(10)[:, None], 3, 1)]).astype(int)
    return at, complex_numbers(peer("torch").cat([video, text]))


def lumina2() -> Rows:
    torch, at = peer("torch"), DRAWN[:, :3]
    embedder = of_diffusers("transformer_lumina2").Lumina2RotaryPosEmbed(10000, [32] * 3)
    return at, complex_numbers(embedder._get_freqs_cis(torch.tensor(at)[None])[0])


def prx() -> Rows:
    embedder = of_diffusers("transformer_prx").PRXEmbedND(64, 10000, [32, 32])
    return PLANE, matrices(embedder(peer("torch").tensor(PLANE)[None]).swapaxes(1, 2))


def hidream() -> Rows:
    embedder = of_diffusers("transformer_hidream_image").HiDreamImageEmbedND(10000, [64, 32, 32])
    return DRAWN[:, :3], matrices(embedder(peer("torch").tensor(DRAWN[None, :, :3])))


def kandinsky5() -> Rows:
    torch = peer("torch")
    embedder = of_diffusers("transformer_kandinsky").Kandinsky5RoPE3D((16, 24, 24))
    table = embedder((1, 3, 4, 5), [torch.arange(size) for size in (3, 4, 5)], (1.0, 2.0, 2.0))
    return VIDEO / [1, 2, 2], matrices(table.reshape(1, 60, 1, 32, 2, 2))


def kandinsky6() -> Rows:
    torch = peer("torch")
    embedder = of_diffusers("transformer_kandinsky6").Kandinsky6RoPE3D((32, 48, 48))
    table = embedder([torch.arange(size) for size in (3, 4, 5)])
    return VIDEO, matrices(table.reshape(1, 60, 1, 64, 2, 2))


def across_heads(rotate: Callable, tables: tuple) -> Callable:
    return lambda x: rotate(x.flatten(2), tables).reshape(x.shape)


def coordinates(positions: np.ndarray):
    """Return the coordinates `(1, A, T)` of positions π/2 · (2 c - 1), and the positions rounded to float32."""
    rounded = positions.astype(np.float32)
    of_trained = (rounded.astype(np.float64) * 2 / np.pi + 1) / 2 * [20, 2048, 2048][: rounded.shape[1]]
    return rounded, peer("torch").tensor(of_trained.T[None])


def ltx() -> Rows:
    module, torch = of_diffusers("transformer_ltx"), peer("torch")
    at, places = coordinates(np.pi / 2 * (2 * VIDEO * [8 / 25 / 20, 32 / 2048, 32 / 2048] - 1))
    tables = module.LTXVideoRotaryPosEmbed(dim=8 * 64)(torch.ones(1), video_coords=places)
    return at, across_heads(module.apply_rotary_emb, tables)


def ltx2(rope_type: str) -> Rows:
    module = of_diffusers("transformer_ltx2")
    embedder = module.LTX2AudioVideoRotaryPosEmbed(dim=8 * 64, rope_type=rope_type, num_attention_heads=8)
    middles = embedder.prepare_video_coords(1, 3, 4, 5, device="cpu").mean(-1)[0].numpy().T
    at, places = coordinates(np.pi / 2 * (2 * middles / [20, 2048, 2048] - 1))
    rotate = module.apply_interleaved_rotary_emb if rope_type == "interleaved" else module.apply_split_rotary_emb
    return at, across_heads(rotate, embedder(places))


def ltx2_audio() -> Rows:
    module = of_diffusers("transformer_ltx2")
    embedder = module.LTX2AudioVideoRotaryPosEmbed(dim=8 * 64, modality="audio", scale_factors=(4,))
    seconds = embedder.prepare_audio_coords(1, 60, device="cpu").mean(-1)[0].numpy().T
    at, places = coordinates(np.pi / 2 * (seconds / 10 - 1))
    return at, across_heads(module.apply_interleaved_rotary_emb, embedder(places))


def cogvideox() -> Rows:
    make = peer("diffusers.models.embeddings").get_3d_rotary_pos_embed
    return VIDEO * [1, 2, 3], neighbors(*make(64, ((0, 0), (8, 15)), (4, 5), 3))


def allegro() -> Rows:
    """With a factor per axis, which is what `extend` divides positions by."""
    module, torch = peer("diffusers.models.embeddings"), peer("torch")
    options = {"interpolation_scale": (1.0, 2.0, 4.0)}
    tables = module.get_3d_rotary_pos_embed_allegro(96, ((0, 0), (4, 5)), (4, 5), 3, **options)[:3]
    places = [torch.tensor(VIDEO[None, :, axis]) for axis in range(3)]
    rotate = module.apply_rotary_emb_allegro
    return VIDEO, lambda x: rotate(x.swapaxes(1, 2), tables, places).swapaxes(1, 2)


def minimax_h3() -> Rows:
    module, torch, at = of_diffusers("transformer_minimax_h3"), peer("torch"), DRAWN[:, :3] / 3
    tables = module.MiniMaxH3RotaryPosEmbed()(torch.tensor(at))
    return at, lambda x: module._apply_rotary_emb(x, *tables)


def sections(module: str, rotary: str, config: str, **text) -> Rows:
    """Return the rotation of a language model."""
    torch, module_, at = peer("torch"), of_transformers(module), DRAWN[:, :3]
    made = getattr(module_, rotary)(getattr(module_, config)(**text))
    cos, sin = made(torch.ones(1), torch.tensor(at).T[:, None])
    return at, lambda x: module_.apply_rotary_pos_emb(x, x, cos, sin, unsqueeze_dim=2)[0]


def cosmos3() -> Rows:
    torch, at = peer("torch"), DRAWN[:, :3] + [15000, 0, 0]
    rotary = of_diffusers("transformer_cosmos3").Cosmos3VLTextRotaryEmbedding(128, 5e6, (24, 20, 20))
    cos, sin = rotary(torch.tensor(at).T[:, None], "cpu", torch.float64)
    return at, neighbors(cos[0], sin[0], of=-2)


def ideogram4() -> Rows:
    torch, at = peer("torch"), DRAWN[:, :3] + 65536
    rotary = of_diffusers("transformer_ideogram4").Ideogram4MRoPE(256, 5_000_000, (24, 20, 20))
    cos, sin = rotary(torch.tensor(at)[None])
    return at, neighbors(cos[0], sin[0], of=-2)


def vision(module: str, rotary: str, config: str, at: np.ndarray, apply: str, **options) -> Rows:
    torch, module_ = peer("torch"), of_transformers(module)
    cos, sin = getattr(module_, rotary)(getattr(module_, config)(**options))(torch.ones(1), torch.tensor(at))
    return at, lambda x: getattr(module_, apply)(x[0], x[0], cos, sin)[0][None]


def pixtral() -> Rows:
    torch, module = peer("torch"), of_transformers("pixtral")
    rotary = module.PixtralVisionRotaryEmbedding(module.PixtralVisionConfig())
    cos, sin = rotary(torch.ones(1), torch.tensor(PLANE))
    return PLANE, lambda x: module.apply_rotary_pos_emb(x, x, cos, sin, unsqueeze_dim=1)[0]


def gemma4() -> Rows:
    torch, module = peer("torch"), of_transformers("gemma4")
    places = torch.tensor(PLANE[None, :, ::-1].copy())  # columns come first
    cos, sin = module.Gemma4VisionRotaryEmbedding(module.Gemma4VisionConfig())(torch.ones(1), places)
    return PLANE, lambda x: module.apply_multidimensional_rope(x, cos, sin, places, unsqueeze_dim=2)


def sam(module: str, rotary: str, config: str, **options) -> Rows:
    torch, module_ = peer("torch"), of_transformers(module)
    places = torch.tensor(PLANE[:, ::-1].copy())  # columns come first
    cos, sin = getattr(module_, rotary)(getattr(module_, config)(**options))(torch.ones(1), places)
    rotate = lambda x: module_.apply_rotary_pos_emb_2d(x, x, cos, sin)[0]
    return PLANE, lambda x: rotate(x.swapaxes(1, 2)).swapaxes(1, 2)


def llama4() -> Rows:
    module = of_transformers("llama4")
    table = module.Llama4VisionRotaryEmbedding(module.Llama4VisionConfig(image_size=84, patch_size=14))(
        peer("torch").ones(1)
    )
    at = np.asarray(grid_positions(6, 6))
    return at + 1, lambda x: module.vision_apply_rotary_emb(x, x, table[: len(at)])[0]


def dinov3() -> Rows:
    torch, module = peer("torch"), of_transformers("dinov3_vit")
    config = module.DINOv3ViTConfig(hidden_size=512, num_attention_heads=8, patch_size=4)
    cos, sin = module.DINOv3ViTRopePositionEmbedding(config).eval()(torch.ones(1, 3, 24, 40))
    at = 2 * np.pi * np.asarray(normalized_positions(grid_positions(6, 10), (6, 10)))
    rotate = lambda x: module.apply_rotary_pos_emb(x, x, cos, sin)[0]
    return at, lambda x: rotate(x.swapaxes(1, 2)).swapaxes(1, 2)


FLUX = (10000, (16, 56, 56))
CLASSES: dict[str, Callable[[], Rows]] = {
    "flux": lambda: by_ids("transformer_flux", "FluxPosEmbed", *FLUX),
    "flux Bria": lambda: by_ids("transformer_bria", "BriaEmbedND", *FLUX),
    "flux FIBO": lambda: by_ids("transformer_bria_fibo", "BriaFiboEmbedND", *FLUX),
    "longcat_image": lambda: by_ids("transformer_longcat_image", "LongCatImagePosEmbed", *FLUX),
    "ovis_image": lambda: by_ids("transformer_ovis_image", "OvisImagePosEmbed", *FLUX),
    "fibo2": lambda: by_table("transformer_bria_fibo2", "RopeEmbedder", axes_dims=[32, 48, 48]),
    "flux2": lambda: by_ids("transformer_flux2", "Flux2PosEmbed", 2000, (32,) * 4),
    "flux3": lambda: by_ids("transformer_flux3", "Flux3PosEmbed", 10000, (32,) * 4),
    "qwen_image": qwen_image,
    "hunyuan_image": lambda: of_plane("transformer_hunyuanimage", "HunyuanImageRotaryPosEmbed", (1, 1), (64, 64)),
    "z_image": lambda: by_table("transformer_z_image", "RopeEmbedder", axes_dims=[32, 48, 48]),
    "krea2": lambda: by_ids("transformer_krea2", "Krea2RotaryPosEmbed", 1000, (32, 48, 48)),
    "lumina2": lumina2,
    "prx": prx,
    "hidream": hidream,
    "cogview4": lambda: of_plane("transformer_cogview4", "CogView4RotaryPosEmbed", 64, 1, (6, 10), of=-2),
    "glm_image": lambda: of_plane("transformer_glm_image", "GlmImageRotaryPosEmbed", 64, 1, of=-2),
    "ideogram4": ideogram4,
    "wan": lambda: of_volume("transformer_wan", "WanRotaryPosEmbed", 128, (1, 1, 1), 64),
    "wan SkyReels": lambda: of_volume("transformer_skyreels_v2", "SkyReelsV2RotaryPosEmbed", 128, (1, 1, 1), 64),
    "wan ChronoEdit": lambda: of_volume("transformer_chronoedit", "ChronoEditRotaryPosEmbed", 128, (1, 1, 1), 64),
    "cosmos": lambda: of_volume("transformer_cosmos", "CosmosRotaryPosEmbed", 128, patch_size=(1, 1, 1), of=-2),
    "cosmos3": cosmos3,
    "hunyuan_video": lambda: of_volume("transformer_hunyuan_video", "HunyuanVideoRotaryPosEmbed", 1, 1, [16, 56, 56]),
    "hunyuan_video 1.5": lambda: of_volume(
        "transformer_hunyuan_video15", "HunyuanVideo15RotaryPosEmbed", 1, 1, [16, 56, 56]
    ),
    "hunyuan_video Motif": lambda: of_volume("transformer_motif_video", "MotifVideoRotaryPosEmbed", 1, 1, [16, 56, 56]),
    "kandinsky5": kandinsky5,
    "kandinsky6": kandinsky6,
    "ltx": ltx,
    "ltx2": lambda: ltx2("interleaved"),
    "ltx2 pairing='half'": lambda: ltx2("split"),
    "ltx2_audio": ltx2_audio,
    "cogvideox": cogvideox,
    "minimax_h3": minimax_h3,
    "allegro extend='pi(factor=(1, 2, 4))'": allegro,
    "qwen2_vl": lambda: sections("qwen2_vl", "Qwen2VLRotaryEmbedding", "Qwen2VLTextConfig", **TWO_HEADS),
    "qwen3_vl": lambda: sections("qwen3_vl", "Qwen3VLTextRotaryEmbedding", "Qwen3VLTextConfig", head_dim=128),
    "glm4v": lambda: sections(
        "glm4v", "Glm4vTextRotaryEmbedding", "Glm4vTextConfig", **TWO_HEADS, rope_parameters=PARTIAL
    ),
    "ernie4_5_vl": lambda: sections(
        "ernie4_5_vl_moe", "Ernie4_5_VLMoeTextRotaryEmbedding", "Ernie4_5_VLMoeTextConfig", **TWO_HEADS
    ),
    "pixtral": pixtral,
    "gemma4_vision": gemma4,
    "llama4_vision": llama4,
    "dinov3": dinov3,
    "kimi_vision": lambda: vision(
        *("kimi_k25", "Kimi_K25VisionRotaryEmbedding", "Kimi_K25VisionConfig", PLANE, "apply_rotary_pos_emb_vision")
    ),
    "minimax_m3_vision": lambda: vision(
        *("minimax_m3_vl", "MiniMaxM3VLVisionRotaryEmbedding", "MiniMaxM3VLVisionConfig", VIDEO),
        "apply_rotary_pos_emb_vision",
    ),
    "sam2": lambda: sam(
        *("sam2_video", "Sam2VideoVisionRotaryEmbedding", "Sam2VideoConfig"), memory_attention_hidden_size=64
    ),
    "sam3": lambda: sam("sam3", "Sam3ViTRotaryEmbedding", "Sam3ViTConfig", hidden_size=128, num_attention_heads=2),
}
"""By preset, and a model or options beside it."""
INEXACT = ("cosmos3", "ideogram4", "kandinsky5", "ltx", "ltx2", "ltx2 pairing='half'", "ltx2_audio")
"""Classes that compute angles in float32, of such sizes that they are off by more than 1e-4."""
HEAD_DIMS = {"llama4_vision": 48, "kimi_vision": 72}


class InFloat64:
    """The module torch, for code that names float32."""

    def __getattr__(self, name: str):
        return getattr(peer("torch"), "float64" if name == "float32" else name)


def rerun_in_float64(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Replace float32 in the code of one model by float64."""
    torch = peer("torch")
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    model = {"ltx2_audio": "ltx2", "kandinsky5": "kandinsky"}.get(name, name.partition(" ")[0])
    monkeypatch.setattr(of_diffusers(f"transformer_{model}"), "torch", InFloat64())


@pytest.mark.parametrize("name", CLASSES)
def test_a_preset_turns_as_the_class_it_is_read_from(name, monkeypatch):
    """To 1e-4; where theirs is less exact, to the rounding of frequencies to float32, of their code in float64."""
    if name in INEXACT:
        rerun_in_float64(monkeypatch, name)
    at, rotate = CLASSES[name]()
    preset, _, options = name.partition(" ")
    made = PRESETS[preset]
    dims = Dims(heads=8, head_dim=made.head_dim or HEAD_DIMS.get(preset, 64), axes=made.axes)
    spec = f"rope_axial(preset={preset!r}{f', {options}' if '=' in options else ''})"
    encoding = make_encoding(spec, dims)
    x, at32 = normal(len(at), 8, dims.head_dim), at.astype(np.float32)
    ours = encoding.rotate(
        adapt(encoding, {}, (60,) * made.axes), x, jnp.asarray(at32[:, 0] if made.axes == 1 else at32)
    )
    theirs = rotate(peer("torch").tensor(np.asarray(x))[None])[0].numpy()
    largest = np.abs(at32).max() * (1e4 if "ltx" in name else 1.0)
    rounding = 2.0**-23 * largest if name in INEXACT else 0.0
    np.testing.assert_allclose(ours, theirs, atol=1e-4 + rounding)


def test_the_angles_of_vjepa_2_are_no_rotation():
    own = of_transformers("vjepa2").rotate_queries_or_keys
    x = peer("torch").ones(1, 1, 5, 8)
    norms = own(x, peer("torch").arange(5.0)).norm(dim=-1) / x.norm(dim=-1)
    assert abs(norms - 1).max() > 0.1


def test_every_preset_with_a_class_is_compared():
    assert {name.partition(" ")[0] for name in CLASSES} == PRESETS.keys() - {"mhrope"}
