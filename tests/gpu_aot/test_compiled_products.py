"""Matrix products, compiled for an H200: no factor is folded into one that also adds a bias.

XLA of jax 0.10 and 0.11.0 folds the c of `(x @ w + b) * c` into the product, and adds b as it is (docs/known-traps.md).
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from pejax._ops.matmul import product
from pejax.models import Decoder, DiT, EncoderDecoder, ViT, decoder, dit, encoder_decoder, vit
from tests.support.absent_gpu import Program, compiler, program
from tests.support.cases import slow
from tests.support.gpu_ledger import products

__all__ = ["compiler"]

pytestmark = pytest.mark.gpu_aot

SIZES = {"width": 64, "heads": 4}
IDS = jax.ShapeDtypeStruct((4, 64), jnp.int32)
IMAGES = jax.ShapeDtypeStruct((4, 32, 32, 3), jnp.float32)
TIMES = jax.ShapeDtypeStruct((4,), jnp.float32)


def model_and_inputs(network: Callable, config: Any, *inputs: Any) -> tuple[nnx.Module, tuple[Any, ...]]:
    """Return a model on shapes, and the shapes of its inputs."""
    return nnx.eval_shape(lambda: network(config, rngs=nnx.Rngs(0))), inputs


def language(style: str, pe: str) -> tuple[nnx.Module, tuple[Any, ...]]:
    return model_and_inputs(Decoder, decoder(**SIZES, layers=2, length=64, vocab=128, pe=pe, style=style), IDS)


def bias_and_cap() -> tuple[nnx.Module, tuple[Any, ...]]:
    config = decoder(**SIZES, layers=2, length=64, vocab=128, pe="none")
    head = dataclasses.replace(config.head, bias=True, cap=30.0, tied=False)
    return model_and_inputs(Decoder, dataclasses.replace(config, head=head), IDS)


def translation() -> tuple[nnx.Module, tuple[Any, ...]]:
    config = encoder_decoder(128, 64, 64, **SIZES, pe="t5", style="gpt2", soft_cap=30.0)
    return model_and_inputs(EncoderDecoder, config, IDS, IDS)


def pictures(pe: str) -> tuple[nnx.Module, tuple[Any, ...]]:
    return model_and_inputs(ViT, vit(**SIZES, layers=2, image_size=32, patch=8, pe=pe, channels=3), IMAGES)


def diffusion() -> tuple[nnx.Module, tuple[Any, ...]]:
    return model_and_inputs(DiT, dit(**SIZES, layers=2, image_size=32, patch=8, channels=3), IMAGES, TIMES)


MODELS = {
    "a head with a bias and a cap": bias_and_cap,
    **{
        f"{style}, {pe}": functools.partial(language, style, pe)
        for style, pe in (
            *(("gpt2", pe) for pe in ("learned", "alibi", "t5", "cpb", "fire", "shaw", "transformer_xl")),
            ("llama", "rope"),
        )
    },
    "encoder and decoder": translation,
    **{f"vit, {pe}": functools.partial(pictures, pe) for pe in ("learned", "rope_mixed", "cpb")},
    "dit": diffusion,
}


def require_right_factors(result: Program) -> None:
    """Require that no product has a factor that is not that of its bias, too."""
    calls = products(result.text)
    assert calls
    assert [call for call in calls if call.alpha != 1 and "BIAS" in call.epilogue] == []


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_product_with_a_bias_times_a_factor_is_not_folded(dtype):
    x, kernel, bias = (jax.ShapeDtypeStruct(shape, dtype) for shape in ((1024, 768), (768, 512), (512,)))
    require_right_factors(program(lambda *operands: product(*operands) * 0.22, x, kernel, bias))


@pytest.mark.parametrize("name", [next(iter(MODELS)), *map(slow, list(MODELS)[1:])])
def test_no_model_has_a_factor_beside_a_bias(name):
    model, inputs = MODELS[name]()
    graph, state = nnx.split(model)

    def loss(state, *inputs):
        return jnp.sum(nnx.merge(graph, state)(*inputs).astype(jnp.float32))

    require_right_factors(program(jax.value_and_grad(loss, allow_int=True), state, *inputs))
