"""The training step of a program on shapes, without data or arrays, and its sizes and arithmetic."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.stages import Compiled
from jaxtyping import Array

from pejax.models import LayerConfig
from train.devices.flops import (
    TRAINING,
    columns,
    dit_flops,
    head_products,
    layer_pairs,
    layer_products,
    pair_products,
    self_products,
    text_flops,
    text_pair_flops,
    vit_flops,
)
from train.devices.mesh import batch_sharding, training_execution
from train.dit import config as dit_config
from train.dit import model as diffuse
from train.engine.config import RunConfig
from train.engine.loop import Metrics, init_state, make_step, state_shapes, state_shardings
from train.engine.optimizers import make_optimizer
from train.engine.task import Split, recipe
from train.lm import config as lm_config
from train.lm import model as language
from train.seq2seq import config as seq2seq_config
from train.seq2seq import model as answer
from train.seq2seq.tasks import VOCAB
from train.vit import config as vit_config
from train.vit import model as classify

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


def lm_step(config: lm_config.Config, vocab: int) -> AbstractStep:
    """Return the step of `train.lm`.

    Raises:
        ValueError: the config does not fit the model or its encoding.
    """
    model = language.Language(config, vocab)
    if refused := model.refusal(config.length):
        raise ValueError(refused)
    shape, text = (config.batch, config.length + 1), model.decoder
    work = _work(
        config,
        text.layers,
        text.causal,
        tokens=config.length,
        columns=vocab,
        rows=config.length,
        table=vocab * config.width,
        causal=text.causal,
        model_flops=text_flops(text, config.batch, config.length),
    )
    batch = {name: jax.ShapeDtypeStruct(shape, jnp.int32) for name in ("ids", "segments")}
    units = config.batch * config.length
    return AbstractStep(config, model, model.loss, language.SUMS, batch, work, _state(config, model), "tokens", units)


def vit_step(config: vit_config.Config, channels: int, classes: int) -> AbstractStep:
    """Return the step of `train.vit`.

    Raises:
        ValueError: the config does not fit the model or its encoding.
    """
    model = classify.Classifier(config, channels, classes)
    picture, side = model.vit, config.size
    work = _work(
        config,
        picture.layers,
        False,
        tokens=picture.prefix + picture.grid[0] * picture.grid[1],
        columns=classes,
        rows=1,
        table=0,
        causal=False,
        model_flops=vit_flops(picture, config.batch),
    )
    batch = {
        "image": jax.ShapeDtypeStruct((config.batch, side, side, channels), jnp.float32),
        "label": jax.ShapeDtypeStruct((config.batch,), jnp.int32),
    }
    return AbstractStep(
        config, model, model.loss, classify.SUMS, batch, work, _state(config, model), "images", config.batch
    )


def dit_step(config: dit_config.Config, channels: int, classes: int) -> AbstractStep:
    """Return the step of `train.dit`.

    Raises:
        ValueError: the config does not fit the model or its encoding.
    """
    model = diffuse.Sampler(config, channels, classes)
    picture = model.dit
    tokens = math.prod(picture.grid)
    work = _work(
        config,
        picture.layers,
        False,
        tokens=tokens,
        columns=picture.pixels,
        rows=tokens,
        table=(classes + 1) * config.width,
        causal=False,
        model_flops=dit_flops(picture, config.batch),
    )
    batch = {
        "image": jax.ShapeDtypeStruct((config.batch, *picture.shape, channels), jnp.float32),
        "label": jax.ShapeDtypeStruct((config.batch,), jnp.int32),
    }
    state = _state(config, model)
    unit = "videos" if config.frames else "images"
    return AbstractStep(config, model, model.loss, diffuse.SUMS, batch, work, state, unit, config.batch)


def seq2seq_step(config: seq2seq_config.Config) -> AbstractStep:
    """Return the step of `train.seq2seq`, with all sources and targets of the maximum length.

    The layers of encoder and decoder count as layers of one kind, with their mean size.

    Raises:
        ValueError: the config does not fit the model or its encodings.
    """
    model = answer.Answerer(config)
    if refused := model.refusal(config.length):
        raise ValueError(refused)
    pair, tokens = model.network, config.length + 1
    encoder, decoder = pair.encoder.layers, pair.decoder.layers
    kernels = sum(layer_products(layer, config.width) for layer in (*encoder, *decoder))
    kernels += len(decoder) * self_products(pair.cross_attention, config.width)
    pairs = sum(layer_pairs(layer, tokens, False) for layer in encoder)
    pairs += sum(layer_pairs(layer, tokens, True) for layer in decoder)
    pairs += len(decoder) * tokens**2 * pair_products(pair.cross_attention)
    model_flops = text_pair_flops(pair, config.batch, tokens, tokens)
    work = _work(
        config,
        (*encoder, *decoder),
        False,
        tokens=tokens,
        columns=VOCAB,
        rows=tokens,
        table=VOCAB * config.width,
        causal=False,  # only the self-attention of the decoder is
        model_flops=model_flops,
    )
    work = work._replace(
        layer=kernels // (2 * work.layers),
        layer_flops=model_flops // TRAINING - config.batch * tokens * head_products(pair.decoder),
        pair_flops=config.batch * pairs,
    )
    names = ("source", "source_segments", "target", "target_segments")
    batch = {name: jax.ShapeDtypeStruct((config.batch, tokens), jnp.int32) for name in names}
    units = config.batch * tokens
    return AbstractStep(config, model, model.loss, answer.SUMS, batch, work, _state(config, model), "tokens", units)


def _work(config: RunConfig, layers: tuple[LayerConfig, ...], masked: bool, *, tokens: int, **sizes: Any) -> Work:
    """Return the sizes of a step; layers of several kinds count as layers of one kind, with their mean size.

    Args:
        config: settings of the run.
        layers: one config per layer.
        masked: whether self-attention is causal.
        tokens: T, per example.
        **sizes: the fields that do not follow from these.
    """
    mean = lambda numbers: sum(numbers) // len(layers)
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


def _state(config: RunConfig, split: Split) -> int:
    steps = recipe(config, make_optimizer(config, 1, 1)[0], ())
    return bytes_of(jax.eval_shape(partial(init_state, recipe=steps), split.shapes))


def compile_step(subject: AbstractStep, mesh: Mesh) -> Compiled:
    """Compile the training step that the program would run on the mesh, without making arrays."""
    config = subject.config
    steps = recipe(config, make_optimizer(config, 1, 1)[0], subject.sums)
    shardings = state_shardings(subject.split, steps, mesh)
    state = state_shapes(subject.split, steps, shardings)
    rows = batch_sharding(mesh)
    batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=rows), subject.batch)
    loss = partial(subject.loss, execution=training_execution(mesh, config.remat))
    with jax.set_mesh(mesh):
        return make_step(loss, steps, shardings, mesh).lower(state, batch).compile()
