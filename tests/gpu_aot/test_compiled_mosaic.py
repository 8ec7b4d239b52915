"""Attention on Mosaic GPU, compiled for an H200: registers, the instructions of the loops, and memory."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pejax import (
    Dims,
    Sharding,
    TokenPositions,
    adapt,
    attention_hooks,
    dot_product_attention,
    init_params,
    make_encoding,
)
from tests.support.absent_gpu import Program, assembled, compiler, program
from tests.support.cases import slow
from tests.support.gpu_ledger import ledger
from tests.support.sass_loops import innermost_loops
from train.devices.absent_gpus import absent_gpus

__all__ = ["compiler"]

pytestmark = [
    pytest.mark.gpu_aot,
    pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="Mosaic GPU of JAX 0.12"),
]

BATCH, HEADS = 2, 16


class Loops(NamedTuple):
    """Bounds of a kernel.

    Attributes:
        issued: instructions of an iteration of each loop: far tiles, if the bias has such; others of visible pairs;
            tiles with masked pairs.
        spilled: bytes that a thread spills.
    """

    issued: tuple[int, ...]
    spilled: int = 0


# By encoding and size of heads. What a thread of `key_gradients` spills at D = 128 are numbers of its loop, not tiles.
LOOPS = {
    ("none", 64): {
        "forward": Loops((421, 580)),
        "query_gradients": Loops((214, 329)),
        "key_gradients": Loops((261, 376)),
    },
    ("t5", 64): {
        "forward": Loops((428, 524, 680)),
        "query_gradients": Loops((220, 302, 350)),
        "key_gradients": Loops((278, 349, 399)),
        "diagonal_gradients": Loops((292, 380)),
    },
    ("alibi(learned=True)", 64): {
        "forward": Loops((522, 681)),
        "query_gradients": Loops((267, 350)),
        "key_gradients": Loops((313, 399)),
        "diagonal_gradients": Loops((292, 380)),
    },
    ("none", 128): {
        "forward": Loops((466, 619)),
        "query_gradients": Loops((244, 365)),
        "key_gradients": Loops((310, 438), spilled=112),
    },
    ("t5", 128): {
        "forward": Loops((469, 564, 717)),
        "query_gradients": Loops((259, 336, 386)),
        "key_gradients": Loops((326, 395, 455), spilled=116),
        "diagonal_gradients": Loops((319, 411)),
    },
}
"""A tile of the forward pass has 64 x 128 scores per warpgroup, one of the backward pass 64 x 64."""


def compiled(spec: str, size: int, length: int) -> Program:
    """Compile causal attention and all its gradients."""
    encoding = make_encoding(spec, Dims(HEADS, size, extent=length, causal=True))

    def attend(q, k, v, params):
        hooks = attention_hooks(encoding, params)
        return dot_product_attention(q, k, v, causal=True, implementation="mosaic_gpu", hooks=hooks)

    def both(q, k, v, cotangent, params):
        output, pull = jax.vjp(attend, q, k, v, params)
        return output, pull(cotangent)

    params = jax.eval_shape(lambda key: adapt(encoding, init_params(encoding, key), length), jax.random.key(0))
    operand = jax.ShapeDtypeStruct((BATCH, length, HEADS, size), jnp.bfloat16)
    return program(both, *[operand] * 4, params)


@pytest.mark.parametrize(("spec", "size"), [("none", 64), ("t5", 64), *(slow(*key) for key in [*LOOPS][2:])])
def test_kernels_use_tensor_cores_and_loops_are_short(spec, size):
    result, bounds = compiled(spec, size, 2048), LOOPS[spec, size]
    for name, bound in bounds.items():
        kernel = result.kernels[f"pejax_mosaic_{name}_mosaic_gpu_kernel"]
        issued = [loop.total() for loop in innermost_loops(kernel) if loop["HGMMA"]]
        assert kernel.spilled <= bound.spilled, name
        assert len(issued) == len(bound.issued), name
        assert all(got <= most for got, most in zip(issued, bound.issued, strict=True)), (name, issued)
    counts = ledger(result.text)
    assert sum(name.startswith("pejax_mosaic") for name in result.kernels) == len(bounds)
    assert counts.conditionals == 0
    assert counts.launches.total() <= (5 if spec == "none" else 14)
    assert counts.moved <= (4.4 if spec == "none" else 6.6) * 4 * BATCH * 2048 * HEADS * size * 2


@pytest.mark.parametrize("spec", ["none", slow("t5")])
def test_memory_is_linear_in_the_length(spec):
    """The gradient of a bias by distance has a tile of sums per head and diagonal of tiles near the middle."""
    shares = [compiled(spec, 64, length).temporary / (4 * BATCH * length * HEADS * 64 * 2) for length in (2048, 8192)]
    assert max(shares) <= (0.31 if spec == "t5" else 0.03)


FEATURES = {
    "packed, unplaced, key bias": {"spec": "alibi(learned=True)", "causal": True, "packed": True},
    "window, cap, dropout": {"spec": "kerple", "causal": True, "window": 50, "soft_cap": 5.0, "rate": 0.2},
    "range": {"spec": "t5", "distance_range": (60, 90)},
    "window of two sides": {"spec": "t5", "window": (90, 40)},
}


def featured(spec: str, packed: bool = False, rate: float = 0.0, **options: Any) -> Any:
    """Return a function of q, k, v and the parameters of an encoding to attention, and those parameters."""
    encoding = make_encoding(spec, Dims(4, 64, kv_heads=2, extent=300, causal=options.get("causal", False)))
    index = jnp.arange(300)
    tokens = TokenPositions(index, index, index > 1, jnp.repeat(jnp.asarray([1, 2]), 150)) if packed else None
    options |= {"dropout": (jax.random.key(0), rate)} if rate else {}
    options |= {"key_bias": jnp.ones((BATCH, 300, 4))} if packed else {}

    def attend(q, k, v, params):
        hooks = attention_hooks(encoding, params)
        return dot_product_attention(q, k, v, positions=tokens, hooks=hooks, implementation="mosaic_gpu", **options)

    return attend, jax.eval_shape(lambda key: adapt(encoding, init_params(encoding, key), 300), jax.random.key(0))


@pytest.mark.slow
@pytest.mark.parametrize("name", FEATURES)
def test_every_feature_compiles_and_spills_no_tile(name):
    """In float16, with grouped queries and a length that is no multiple of a tile."""
    attend, params = featured(**FEATURES[name])

    def both(q, k, v, cotangent, params):
        output, pull = jax.vjp(attend, q, k, v, params)
        return output, pull(cotangent)

    q, k = (jax.ShapeDtypeStruct((BATCH, 300, heads, 64), jnp.float16) for heads in (4, 2))
    result = program(both, q, k, k, q, params)
    kernels = {name: kernel for name, kernel in result.kernels.items() if name.startswith("pejax_mosaic")}
    assert len(kernels) == 4
    assert max(kernel.spilled for kernel in kernels.values()) <= 24  # a few numbers of a loop


@pytest.mark.slow
@pytest.mark.parametrize("axis", ["batch", "heads", "sequence"])
def test_shards_have_kernels_of_their_own(axis):
    mesh = Mesh(np.asarray(absent_gpus("h200", 2)), ("gpu",))
    sharding = Sharding(mesh, **{axis: "gpu"})
    place = NamedSharding(mesh, PartitionSpec())
    operand = jax.ShapeDtypeStruct((2, 512, 4, 64), jnp.bfloat16, sharding=place)
    attend = functools.partial(dot_product_attention, causal=True, implementation="mosaic_gpu", sharding=sharding)
    with jax.set_mesh(mesh):
        text = assembled(jax.jit(attend).lower(operand, operand, operand)).text
    assert "mosaic_gpu" in text
