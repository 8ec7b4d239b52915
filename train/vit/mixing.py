"""Mixup and CutMix: every image of a batch is mixed with another image, and so are their labels.

    image_i <- λ image_i + (1 - λ) image_{B-1-i}      Mixup:  λ ~ Beta(mixup, mixup)
    image_i <- image_{B-1-i} inside a rectangle       CutMix: λ ~ Beta(cutmix, cutmix), λ <- 1 - its fraction of pixels
    label_i <- λ label_i + (1 - λ) label_{B-1-i}

All images of a batch have the same λ. Mixing runs on the devices, since a batch may be sharded over many machines.

Reference:
    Zhang et al. 2018, "mixup" (arXiv 1710.09412), equation 2.
    Yun et al. 2019, "CutMix" (arXiv 1905.04899), equations 1 and 2.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key


def mix(
    images: Float[Array, "B S S C"],
    labels: Float[Array, "B classes"],
    mixup: float,
    cutmix: float,
    key: Key[Array, ""],
) -> tuple[Float[Array, "B S S C"], Float[Array, "B classes"]]:
    """Return a batch mixed with itself in reverse order, and its labels mixed in the same way.

    Args:
        images: normalized.
        labels: probabilities of the classes.
        mixup: Beta parameter of Mixup; 0 = off.
        cutmix: Beta parameter of CutMix; 0 = off; if both are on, each has probability 1/2.
        key: random key of the choice between them, of λ and of the rectangle.
    """
    which, of_mixup, of_cutmix = jax.random.split(key, 3)

    def apply_mixup() -> tuple[Array, Array]:
        weight = jax.random.beta(of_mixup, mixup, mixup)
        return blend(images, weight), blend(labels, weight)

    def apply_cutmix() -> tuple[Array, Array]:
        inside = cut_box(images.shape[1], cutmix, of_cutmix)
        patchwork = jnp.where(inside[:, :, None], images[::-1], images)
        return patchwork, blend(labels, 1.0 - jnp.mean(inside.astype(jnp.float32)))

    if not cutmix:
        return apply_mixup()
    if not mixup:
        return apply_cutmix()
    return jax.lax.cond(jax.random.bernoulli(which), apply_mixup, apply_cutmix)


def blend(array: Float[Array, "B *rest"], weight: Float[Array, ""]) -> Float[Array, "B *rest"]:
    """Return `weight · array_i + (1 - weight) · array_{B-1-i}`."""
    return weight * array + (1.0 - weight) * array[::-1]


def cut_box(side: int, cutmix: float, key: Key[Array, ""]) -> Bool[Array, "side side"]:
    """Return the mask of a square with 1 - λ of the area of an image and a uniformly random center, clipped to it."""
    of_weight, of_center = jax.random.split(key)
    weight = jax.random.beta(of_weight, cutmix, cutmix)
    reach = jnp.floor(side * jnp.sqrt(1.0 - weight) / 2.0).astype(jnp.int32)
    center = jax.random.randint(of_center, (2, 1), 0, side)
    pixels = jnp.arange(side, dtype=jnp.int32)
    rows, columns = (center - reach <= pixels) & (pixels < center + reach)
    return rows[:, None] & columns
