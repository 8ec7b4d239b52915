"""The training step of `train.seq2seq` on shapes, for `train.plan` and the memory in a report."""

import jax
import jax.numpy as jnp

from train.devices.flops import (
    TRAINING,
    head_products,
    layer_pairs,
    layer_products,
    pair_products,
    self_products,
    text_pair_flops,
)
from train.engine.abstract_step import AbstractStep, state_bytes, work_of
from train.engine.task import Facts
from train.seq2seq.config import Config
from train.seq2seq.model import SUMS, Answerer
from train.seq2seq.tasks import VOCAB


def make_model(config: Config, facts: Facts) -> Answerer:
    """Return the model of a config."""
    del facts  # its vocabulary is that of the tasks
    return Answerer(config)


def abstract_step(answerer: Answerer) -> AbstractStep:
    """Return the step of `train.seq2seq`, with all sources and targets of the maximum length.

    The layers of encoder and decoder count as layers of one kind, with their mean size.

    Raises:
        ValueError: the encoding does not support the trained length.
    """
    if refused := answerer.refusal(answerer.config.length):
        raise ValueError(refused)
    config, pair = answerer.config, answerer.network
    tokens = config.length + 1
    encoder, decoder = pair.encoder.layers, pair.decoder.layers
    kernels = sum(layer_products(layer, config.width) for layer in (*encoder, *decoder))
    kernels += len(decoder) * self_products(pair.cross_attention, config.width)
    pairs = sum(layer_pairs(layer, tokens, False) for layer in encoder)
    pairs += sum(layer_pairs(layer, tokens, True) for layer in decoder)
    pairs += len(decoder) * tokens**2 * pair_products(pair.cross_attention)
    model_flops = text_pair_flops(pair, config.batch, tokens, tokens)
    work = work_of(
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
    return AbstractStep(
        config, answerer, answerer.loss, SUMS, batch, work, state_bytes(config, answerer), "tokens", units
    )
