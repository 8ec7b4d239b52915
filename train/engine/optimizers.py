"""Optimizers by name: AdamW and LAMB, with linear warm-up, cosine decay and masked weight decay.

    AdamW    θ <- θ - lr · (m̂ / (√v̂ + ε) + λ θ)
    LAMB     θ <- θ - lr · |θ| / |u| · u,    u = m̂ / (√v̂ + ε) + λ θ        with weight decay; else as AdamW

Reference:
    Loshchilov & Hutter 2019 (arXiv 1711.05101), algorithm 2; You et al. 2020, "Large Batch Optimization for Deep
    Learning" (arXiv 1904.00962), algorithm 2, with trust ratio 1 for parameters without weight decay, as in DeiT III
    (Touvron et al. 2022, arXiv 2204.07118).
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from train.engine.config import RunConfig
from train.engine.metrics import STACKED

NO_DECAY = ("position", "cls", "registers")
"""Attributes of a model whose parameters get no weight decay; elsewhere only kernels get it."""


def make_optimizer(
    config: RunConfig, steps: int, warmup: int, restarts: Sequence[int] = ()
) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """Return the optimizer of a run and its learning-rate schedule.

    Args:
        config: names the optimizer, the peak learning rate and the weight decay.
        steps: total number of training steps.
        warmup: steps of linear warm-up from 0 to the peak.
        restarts: steps at which the run was finished and given more, ascending.
    """
    schedule = schedule_of(config, (*restarts, steps), warmup)
    ratios = [trust_ratios()] if config.optimizer == "lamb" else []
    optimizer = optax.chain(
        optax.scale_by_adam(b1=0.9, b2=0.999),
        optax.add_decayed_weights(config.weight_decay, decay_mask),
        *ratios,
        optax.scale_by_learning_rate(schedule),
    )
    return optimizer, schedule


def schedule_of(config: RunConfig, ends: Sequence[int], warmup: int) -> optax.Schedule:
    """Return the learning rate: warm-up and cosine decay, and where a finished run got more steps, the longer cosine.

    After the step ends[i] the rate rises in `warmup` steps from the end of the cosine over ends[i] steps to the cosine
    over ends[i + 1] steps, and follows it.
    """
    cosines = [
        optax.warmup_cosine_decay_schedule(
            0.0, config.lr, min(warmup, steps), max(steps, warmup + 1), end_value=config.lr_end
        )
        for steps in ends
    ]

    def schedule(step: Any) -> Any:
        rate = cosines[0](step)
        for begin, cosine in zip(ends[:-1], cosines[1:], strict=True):
            rise = jnp.clip((step - begin) / max(1, warmup), 0.0, 1.0)
            longer = config.lr_end + rise * (cosine(step) - config.lr_end)
            rate = jnp.where(step >= begin, longer, rate)
        return rate

    return schedule if len(ends) > 1 else cosines[0]


def decay_mask(params: Any) -> Any:
    """Return for every parameter whether it gets weight decay: kernels outside `NO_DECAY` do."""

    def decays(path: Any, leaf: Any) -> bool:
        del leaf
        return path_names(path)[-1] == "kernel" and not set(path_names(path)) & set(NO_DECAY)

    return jax.tree_util.tree_map_with_path(decays, params)


def path_names(path: Any) -> list[str]:
    """Return the attribute names on the path to a parameter."""
    return [str(entry.key) for entry in path]


def trust_ratios() -> optax.GradientTransformation:
    """Return the transformation that multiplies each update by |θ| / |update|, for parameters with weight decay.

    Layers are stacked on the leading axis, and each has its own ratio. The ratio is 1 if either norm is 0.
    """

    def scale(path: Any, update: Array, param: Array, decays: bool) -> Array:
        if not decays:
            return update
        axes = tuple(range(1 if STACKED in path_names(path) else 0, param.ndim))
        size, step = (norm(x, axes) for x in (param, update))
        positive = (size > 0) & (step > 0)
        return update * jnp.where(positive, size / jnp.where(positive, step, 1.0), 1.0)

    def update(updates: Any, state: optax.OptState, params: Any) -> tuple[Any, optax.OptState]:
        return jax.tree_util.tree_map_with_path(scale, updates, params, decay_mask(params)), state

    return optax.GradientTransformation(lambda _: optax.EmptyState(), update)  # pyright: ignore[reportArgumentType]


def norm(x: Float[Array, "..."], axes: tuple[int, ...]) -> Float[Array, "..."]:
    """Return the Euclidean norm over some axes, which are kept with size 1."""
    return jnp.sqrt(jnp.sum(jnp.square(x), axis=axes, keepdims=True))
