"""Models that were made here, written for transformers: what `load` reads computes the same, and others are refused."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from pejax.interop import load, save, source_from_model
from pejax.models import Decoder, DiT, MoEConfig, ViT, decoder, dit, vit
from tests.support.cases import slow
from tests.support.decoders import of_config

SIZES = {"vocab": 97, "length": 32, "width": 48, "layers": 2, "heads": 4}
TEXTS = {
    "llama": {"kv_heads": 2, "pe": "rope(base=5e4)"},
    "llama, tied, halves": {"tied": True, "pe": "rope(pairing='half')"},
    "llama, yarn": {"extend": "yarn(factor=4)"},
    "llama, ntk": {"extend": "ntk(factor=4)"},
    "qwen3": {"qk_norm": True, "kv_heads": 2},
    "smollm3": {"pe": "rope*1 + none*1", "tied": True},
    "smollm3, none": {"pe": "none"},
    "gpt2": {"style": "gpt2", "pe": "learned"},
    "starcoder2": {"style": "gpt2", "kv_heads": 2},
}
"""Options of models by the `model_type` that they are written as."""


def text(**options) -> Decoder:
    return of_config(decoder(**SIZES, **options))


def picture(**options) -> ViT:
    model = ViT(vit(image_size=8, width=32, layers=2, pe="learned", **options), rngs=nnx.Rngs(0))
    draw = np.random.default_rng(0)
    nnx.update(model, jax.tree.map(lambda x: x + draw.normal(0, 0.2, x.shape).astype(np.float32), nnx.state(model)))
    return model


@pytest.mark.parametrize("name", [name if name in ("qwen3",) else slow(name) for name in TEXTS])
def test_a_text_model_is_written_and_read_again(name, tmp_path):
    model = text(**TEXTS[name])
    source = source_from_model(model)
    assert source.name == name.split(",")[0]
    save(model, tmp_path / "saved", source)
    read, _ = load(tmp_path / "saved")
    ids = jnp.asarray(np.random.default_rng(0).integers(0, 97, (2, 24)))
    logits = jax.jit(lambda model: model(ids))
    np.testing.assert_allclose(logits(read), logits(model), atol=3e-5)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_picture_model_is_written_and_read_again(dtype, tmp_path):
    model = picture()
    save(model, tmp_path / "saved", source_from_model(model, dtype=dtype))
    read, source = load(tmp_path / "saved")
    images = jax.random.normal(jax.random.key(0), (2, 8, 8, 1))
    np.testing.assert_allclose(read(images), model(images), atol=1e-5 if dtype == "float32" else 2e-2)
    assert (source.name, read.config.classes) == ("vit", 10)


def without_values(kind, config):
    return nnx.eval_shape(lambda: kind(config, rngs=nnx.Rngs(0)))


PICTURE = vit(image_size=8, width=32, layers=2, pe="learned", pool="mean", registers=2)
EXPERTS = replace(decoder(**SIZES).layers[0], mlp=MoEConfig(4, 2, decoder(**SIZES).layers[0].mlp))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (decoder(**SIZES, pe="alibi"), "LlamaForCausalLM is nearest, but for attention.pe (rope"),
        (decoder(**SIZES, soft_cap=30.0), "but for attention.soft_cap (None there, 30.0 here)"),
        (decoder(**SIZES, pe="rope(rotary_dim=6)"), "rotary_dim=6) here)"),
        (decoder(**SIZES, pe="rope*1 + rope(pairing='half')*1"), "pairing must be the same in all layers of model"),
        (replace(decoder(**SIZES), norm=None), "but for norm"),
        (replace(decoder(**SIZES), padding=5), "but for padding (None there, 5 here)"),
        (decoder(**SIZES, causal=False), "but for causal (True there, False here)"),
        (decoder(**SIZES, style="gpt2", qk_norm=True), "Qwen3ForCausalLM is nearest, but for mlp.gated"),
        (replace(decoder(**SIZES), head=None), "model must have a head and sizes of a class of transformers"),
        (replace(decoder(**SIZES), layers=(EXPERTS,)), "model must have a head and sizes of a class of transformers"),
        (PICTURE, "but for cls (True there, False here), registers (0 there, 2 here), pool (cls there, mean here)"),
        (dit(image_size=8, width=32, layers=1), "model must be a Decoder or a ViT, as transformers has no class"),
    ],
)
def test_a_model_that_no_class_computes_is_refused_with_the_nearest(config, words):
    kind = {"ViTConfig": ViT, "DiTConfig": DiT}.get(type(config).__name__, Decoder)
    with pytest.raises(ValueError, match=r"^model|^pairing") as refused:
        source_from_model(without_values(kind, config))
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
