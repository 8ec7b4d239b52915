"""The training step of `train.vit` on shapes, for `train.plan` and the memory in a report."""

import jax
import jax.numpy as jnp

from train.devices.flops import vit_flops
from train.engine.abstract_step import AbstractStep, state_bytes, work_of
from train.engine.task import Facts
from train.vit.config import Config
from train.vit.model import SUMS, Classifier


def make_model(config: Config, facts: Facts) -> Classifier:
    """Return the model of a config."""
    return Classifier(config, facts.channels, facts.classes)


def abstract_step(classifier: Classifier) -> AbstractStep:
    """Return the step of `train.vit`."""
    config, picture = classifier.config, classifier.vit
    work = work_of(
        config,
        picture.layers,
        False,
        tokens=picture.prefix + picture.grid[0] * picture.grid[1],
        columns=picture.classes,
        rows=1,
        table=0,
        causal=False,
        model_flops=vit_flops(picture, config.batch),
    )
    batch = {
        "image": jax.ShapeDtypeStruct((config.batch, config.size, config.size, picture.channels), jnp.float32),
        "label": jax.ShapeDtypeStruct((config.batch,), jnp.int32),
    }
    return AbstractStep(
        config, classifier, classifier.loss, SUMS, batch, work, state_bytes(config, classifier), "images", config.batch
    )
