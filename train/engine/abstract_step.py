"""The training step of a program on shapes, without data or arrays, and its sizes and arithmetic."""

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh
from jax.stages import Compiled, Lowered
from jaxtyping import Array

from pejax.models import LayerConfig
from train.devices.flops import columns, layer_pairs, layer_products
from train.devices.mesh import batch_sharding, training_execution
from train.engine.config import RunConfig
from train.engine.loop import Metrics, init_state, make_step, state_shapes, state_shardings
from train.engine.optimizers import make_optimizer
from train.engine.task import Split, recipe

BACKWARD_AGAIN = 1.5
"""Extra arithmetic of the tiled backward pass of attention, in forward passes: the gradients of queries and of keys
each recompute the logits and their gradients, three products per pair, and the forward pass has two."""


class Work(NamedTuple):
    """The sizes that determine memory, arithmetic and traffic.

    Attributes:
        batch: B, examples per step.
        parts: parts of a batch that are computed one after another.
        tokens: T, per example.
        width: C.
        layers: L.
        queries: H·D.
        keys: K·D.
        heads: K, sharded over the devices of `tensor`.
        hidden: channels inside the MLP, all branches.
        columns: columns of the head's kernel.
        rows: rows of the head's input, per example.
        table: elements of the embedding table, which every device gathers.
        layer: elements of the kernels of a layer.
        item: bytes per number in the computation.
        remat: rematerialization, one of `Execution`.
        causal: whether a query attends only to keys before it.
        model_flops: FLOPs of a step, without recomputation.
        layer_flops: FLOPs of the forward pass of a step through the layers.
        pair_flops: the part of `layer_flops` for pairs of query and key in attention.
    """

    batch: int
    parts: int
    tokens: int
    width: int
    layers: int
    queries: int
    keys: int
    heads: int
    hidden: int
    columns: int
    rows: int
    table: int
    layer: int
    item: int
    remat: str
    causal: bool
    model_flops: int
    layer_flops: int
    pair_flops: int


class AbstractStep(NamedTuple):
    """The training step of a program, on shapes.

    Attributes:
        config: settings of the run.
        split: the model.
        loss: `Task.loss` of the program.
        sums: names of the sums that it returns.
        batch: shapes of a batch.
        work: its sizes.
        state: bytes of the training state, all devices together.
        unit: unit of throughput, "tokens", "images" or "videos".
        units: number of units per step.
    """

    config: RunConfig
    split: Split
    loss: Callable[..., tuple[Array, Metrics]]
    sums: tuple[str, ...]
    batch: dict[str, jax.ShapeDtypeStruct]
    work: Work
    state: int
    unit: str
    units: int


def work_of(config: RunConfig, layers: tuple[LayerConfig, ...], masked: bool, *, tokens: int, **sizes: Any) -> Work:
    """Return the sizes of a step; layers of several kinds count as layers of one kind, with their mean size.

    Args:
        config: settings of the run.
        layers: one config per layer.
        masked: whether self-attention is causal.
        tokens: T, per example.
        **sizes: the fields that do not follow from these.
    """

    def mean(numbers: Iterable[int]) -> int:
        return sum(numbers) // len(layers)

    products = [layer_products(layer, config.width) for layer in layers]
    pairs = sum(layer_pairs(layer, tokens, masked) for layer in layers)
    return Work(
        batch=config.batch,
        parts=config.accumulate,
        tokens=tokens,
        width=config.width,
        layers=len(layers),
        queries=mean(columns(layer.attention)[0] for layer in layers),
        keys=mean(columns(layer.attention)[1] for layer in layers),
        heads=math.gcd(*(layer.attention.kv_heads for layer in layers)),
        hidden=mean(layer.mlp.hidden * (1 + layer.mlp.gated) for layer in layers),
        layer=mean(products) // 2,
        item=2 if config.dtype == "bfloat16" else 4,
        remat=config.remat,
        layer_flops=config.batch * (tokens * sum(products) + pairs),
        pair_flops=config.batch * pairs,
        **sizes,
    )


def bytes_of(shapes: Any) -> int:
    """Return the bytes of a pytree of arrays or shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


def state_bytes(config: RunConfig, split: Split) -> int:
    """Return the bytes of the training state, all devices together."""
    steps = recipe(config, make_optimizer(config, 1, 1)[0], ())
    return bytes_of(jax.eval_shape(partial(init_state, recipe=steps), split.shapes))


def compile_step(subject: AbstractStep, mesh: Mesh) -> Compiled:
    """Compile the training step that the program would run on the mesh, without making arrays."""
    return lower_step(subject, mesh).compile()


def lower_step(subject: AbstractStep, mesh: Mesh) -> Lowered:
    """Lower the training step that the program would run on the mesh, without making arrays."""
    config = subject.config
    steps = recipe(config, make_optimizer(config, 1, 1)[0], subject.sums)
    shardings = state_shardings(subject.split, steps, mesh)
    state = state_shapes(subject.split, steps, shardings)
    rows = batch_sharding(mesh)
    batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=rows), subject.batch)
    loss = partial(subject.loss, execution=training_execution(mesh, config.remat))
    with jax.set_mesh(mesh):
        return make_step(loss, steps, shardings, mesh).lower(state, batch)
