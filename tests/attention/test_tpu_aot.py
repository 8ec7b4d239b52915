"""The TPU's kernels and a train step around them, compiled ahead of time for real topologies; no TPU is needed.

Run with `pytest -m tpu`, in a session of its own: libtpu (the tpu extra) reads its environment once.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.stages import Compiled

from pejax import (
    Dims,
    TokenPositions,
    adapt,
    dot_product_attention,
    grid_positions,
    init_params,
    make_encoding,
)
from pejax._attention.core.hooks import attention_hooks
from pejax.models import Decoder, decoder
from tests.support import pair_hooks
from tests.support.tpu import compiler

__all__ = ["compiler"]

pytestmark = pytest.mark.tpu

TOPOLOGIES = ("v5e:4x4", "v5p:4x4x4", "v6e:16x16")
ENCODINGS = ("none", "alibi", "t5", "kerple")
HEADS, KEY_HEADS, D = 4, 2, 64
PAIRS = ("gates", "transformer_xl", "fire", "shaw")
"""Biases of pairs: products of both tokens, of matrices, units of each pair, rows of a table and of one of values."""


@functools.cache
def mesh_of(topology: str) -> Mesh:
    """Return the devices of a topology in a row."""
    result = topologies.get_topology_desc(platform="tpu", topology_name=topology)
    return Mesh(np.asarray(result.devices).reshape(-1), ("data",))


def compiled(
    topology: str,
    spec: str,
    length: int,
    dtype: Any = jnp.bfloat16,
    by_key: bool = False,
    heads: int = HEADS,
    dim: int = D,
    axes: int = 1,
    **options: Any,
) -> Compiled:
    """Compile attention with all its gradients, one example of packed tokens on each device; `by_key`: a key bias."""
    mesh = mesh_of(topology)
    split, replicated = PartitionSpec("data"), PartitionSpec()
    grid = length if axes == 1 else (length // 32, 32)
    dims = Dims(heads, dim, kv_heads=KEY_HEADS, axes=axes, extent=grid, causal=True)
    encoding = pair_hooks.encoding(spec, dims) if spec in pair_hooks.HOOKS else make_encoding(spec, dims)
    settle = lambda key: adapt(encoding, init_params(encoding, key), grid)

    def one(q, k, v, segments, params):
        positions = jnp.arange(length) if axes == 1 else grid_positions(*grid)
        tokens = TokenPositions(positions, order=jnp.arange(length), segment_ids=segments)
        hooks = attention_hooks(encoding, params)
        bias = jnp.repeat(jnp.mean(k.astype(jnp.float32), axis=-1), heads // KEY_HEADS, axis=-1) if by_key else None
        where = {"positions": tokens, "causal": True, "hooks": hooks, "key_bias": bias}
        out = dot_product_attention(q, k, v, implementation="tpu", **where, **options)
        return jnp.sum(out.astype(jnp.float32) ** 2)[None]

    def loss(*operands):
        specs = (split,) * 4 + (replicated,)
        return jnp.sum(jax.shard_map(one, mesh=mesh, in_specs=specs, out_specs=split)(*operands))

    place = lambda shape, spec, kind: jax.ShapeDtypeStruct(shape, kind, sharding=NamedSharding(mesh, spec))
    operands = [place((mesh.size, length, h, dim), split, dtype) for h in (heads, KEY_HEADS, KEY_HEADS)]
    segments = place((mesh.size, length), split, jnp.int32)
    params = jax.tree.map(lambda x: place(x.shape, replicated, x.dtype), jax.eval_shape(settle, jax.random.key(0)))
    with jax.set_mesh(mesh):
        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 4))).lower(*operands, segments, params).compile()


@pytest.mark.parametrize("spec", ENCODINGS)
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_every_kernel_compiles(topology, spec):
    compiled(topology, spec, 2048)


@pytest.mark.parametrize("spec", ENCODINGS)
def test_every_kernel_compiles_in_float32_with_every_option_at_an_odd_length(spec):
    key = jax.random.key(0)
    options = {"window": 300, "soft_cap": 30.0, "dropout": (key, 0.1), "distance_range": (2, 500)}
    compiled("v5e:4x4", spec, 1100, jnp.float32, by_key=True, **options)


@pytest.mark.parametrize(("topology", "spec"), [*((name, "relative_table") for name in TOPOLOGIES), ("v5e:4x4", "cpb")])
def test_lookups_on_a_grid_compile(topology, spec):
    compiled(topology, spec, 1024, axes=2)


@pytest.mark.parametrize(
    ("topology", "dim"),
    [(TOPOLOGIES[0], 64), (TOPOLOGIES[0], 128), (TOPOLOGIES[1], 64), (TOPOLOGIES[2], 64)]
    + [pytest.param(topology, 128, marks=pytest.mark.long) for topology in TOPOLOGIES[1:]],
)
@pytest.mark.parametrize("spec", PAIRS)
def test_biases_of_pairs_compile(topology, spec, dim):
    compiled(topology, spec, 1024, heads=8, dim=dim)


@pytest.mark.parametrize("spec", ["fire(signed=True)", "transformer_xl", "shaw"])
def test_biases_of_pairs_compile_on_two_axes_with_every_option_in_float32(spec):
    options = {"window": 300, "soft_cap": 30.0, "dropout": (jax.random.key(0), 0.1), "distance_range": (2, 500)}
    compiled("v5e:4x4", spec, 1120, jnp.float32, by_key=True, axes=2, **options)


@pytest.mark.parametrize("topology", ["v5e:4x4", pytest.param("v6e:16x16", marks=pytest.mark.long)])
@pytest.mark.parametrize("name", pair_hooks.HOOKS)
def test_every_operation_that_hooks_of_pairs_may_do_compiles(name, topology):
    compiled(topology, name, 256)


@pytest.mark.parametrize(
    "spec",
    [
        "none",
        "alibi",
        "gates",
        pytest.param("t5", marks=pytest.mark.long),
        pytest.param("kerple", marks=pytest.mark.long),
    ],
)
def test_temporary_memory_is_a_few_times_the_operands_at_any_length(spec):
    for length in (32768, 131072):
        operands = length * 2 * (HEADS + KEY_HEADS) * 128 * 2  # q, k, v and the output; heads of 64 take rows of 128
        assert compiled("v5e:4x4", spec, length).memory_analysis().temp_size_in_bytes <= 4 * operands


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_train_step_of_the_decoder_split_over_the_batch_compiles(topology):
    mesh, length = mesh_of(topology), 1024
    split, replicated = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), ()))
    config = decoder(width=256, heads=4, kv_heads=2, layers=2, length=length, pe="alibi", dtype="bfloat16")
    model, state = nnx.split(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))))

    def loss(state, ids):
        logits = nnx.merge(model, state)(ids[:, :-1])
        result = jnp.take_along_axis(jax.nn.log_softmax(logits), ids[:, 1:, None], axis=-1)
        return -jax.lax.pmean(jnp.mean(result), "data")

    def step(state, ids):
        specs = (PartitionSpec(), PartitionSpec("data"))
        share = jax.shard_map(loss, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=False)
        value, slopes = jax.value_and_grad(share, allow_int=True)(state, ids)
        update = lambda x, dx: x - 0.1 * dx if jnp.issubdtype(x.dtype, jnp.floating) else x
        return value, jax.tree.map(update, state, slopes)

    state = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=replicated), state)
    ids = jax.ShapeDtypeStruct((mesh.size, length + 1), jnp.int32, sharding=split)
    with jax.set_mesh(mesh):
        step = jax.jit(step, donate_argnums=0).lower(state, ids)
        assert "tpu_custom_call" in step.as_text()
        step.compile()
