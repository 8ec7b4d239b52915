"""The training step of `train.lm` on shapes, for `train.plan` and the memory in a report."""

import jax
import jax.numpy as jnp

from train.devices.flops import text_flops
from train.engine.abstract_step import AbstractStep, state_bytes, work_of
from train.engine.task import Facts
from train.lm.config import Config
from train.lm.model import SUMS, Language


def make_model(config: Config, facts: Facts) -> Language:
    """Return the model of a config."""
    return Language(config, facts.vocab)


def abstract_step(language: Language) -> AbstractStep:
    """Return the step of `train.lm`.

    Raises:
        ValueError: the encoding does not support the trained length.
    """
    if refused := language.refusal(language.config.length):
        raise ValueError(refused)
    config, text = language.config, language.decoder
    shape = (config.batch, config.length + 1)
    work = work_of(
        config,
        text.layers,
        text.causal,
        tokens=config.length,
        columns=text.vocab,
        rows=config.length,
        table=text.vocab * config.width,
        causal=text.causal,
        model_flops=text_flops(text, config.batch, config.length),
    )
    batch = {name: jax.ShapeDtypeStruct(shape, jnp.int32) for name in ("ids", "segments")}
    units = config.batch * config.length
    return AbstractStep(
        config, language, language.loss, SUMS, batch, work, state_bytes(config, language), "tokens", units
    )
