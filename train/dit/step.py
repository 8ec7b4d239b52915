"""The training step of `train.dit` on shapes, for `train.plan` and the memory in a report."""

import math

import jax
import jax.numpy as jnp

from train.devices.flops import dit_flops
from train.dit.config import Config
from train.dit.model import SUMS, Sampler
from train.engine.abstract_step import AbstractStep, state_bytes, work_of
from train.engine.task import Facts


def make_model(config: Config, facts: Facts) -> Sampler:
    """Return the model of a config."""
    return Sampler(config, facts.channels, facts.classes)


def abstract_step(sampler: Sampler) -> AbstractStep:
    """Return the step of `train.dit`."""
    config, picture = sampler.config, sampler.dit
    tokens = math.prod(picture.grid)
    work = work_of(
        config,
        picture.layers,
        False,
        tokens=tokens,
        columns=picture.pixels,
        rows=tokens,
        table=(picture.classes + 1) * config.width,
        causal=False,
        model_flops=dit_flops(picture, config.batch),
    )
    batch = {
        "image": jax.ShapeDtypeStruct((config.batch, *picture.shape, picture.channels), jnp.float32),
        "label": jax.ShapeDtypeStruct((config.batch,), jnp.int32),
    }
    state = state_bytes(config, sampler)
    unit = "videos" if config.frames else "images"
    return AbstractStep(config, sampler, sampler.loss, SUMS, batch, work, state, unit, config.batch)
