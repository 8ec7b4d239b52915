"""Mixup and CutMix: every image of a batch mixed with another one, and its label likewise.

    image_i <- λ image_i + (1 - λ) image_{B-1-i}      Mixup:  λ ~ Beta(mixup, mixup)
    image_i <- image_{B-1-i} inside a rectangle       CutMix: λ ~ Beta(cutmix, cutmix), λ <- 1 - its share of pixels
    label_i <- λ label_i + (1 - λ) label_{B-1-i}

One λ serves the batch. They run on the devices: a batch may be spread over many machines.

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
    """Return a batch mixed with itself in reverse order, and its labels likewise.

    Args:
        images: normalised.
        labels: probabilities of the classes.
        mixup: the Beta parameter; 0 = no Mixup.
        cutmix: likewise; where both are on, each is taken with probability 1/2.
        key: draws which, λ and the rectangle.
    """
    which, of_mixup, of_cutmix = jax.random.split(key, 3)

    def mixed() -> tuple[Array, Array]:
        share = jax.random.beta(of_mixup, mixup, mixup)
        return blend(images, share), blend(labels, share)

    def cut() -> tuple[Array, Array]:
        inside = cut_box(images.shape[1], cutmix, of_cutmix)
        found = jnp.where(inside[:, :, None], images[::-1], images)
        return found, blend(labels, 1.0 - jnp.mean(inside.astype(jnp.float32)))

    if not cutmix:
        return mixed()
    if not mixup:
        return cut()
    return jax.lax.cond(jax.random.bernoulli(which), mixed, cut)


def blend(array: Float[Array, "B *rest"], share: Float[Array, ""]) -> Float[Array, "B *rest"]:
    """Return `share · array_i + (1 - share) · array_{B-1-i}`."""
    return share * array + (1.0 - share) * array[::-1]


def cut_box(side: int, cutmix: float, key: Key[Array, ""]) -> Bool[Array, "side side"]:
    """Return which pixels are in a square of 1 - λ of an image, its centre uniform, what is outside cut off."""
    of_share, of_centre = jax.random.split(key)
    share = jax.random.beta(of_share, cutmix, cutmix)
    reach = jnp.floor(side * jnp.sqrt(1.0 - share) / 2.0).astype(jnp.int32)
    centre = jax.random.randint(of_centre, (2, 1), 0, side)
    pixels = jnp.arange(side, dtype=jnp.int32)
    rows, columns = (centre - reach <= pixels) & (pixels < centre + reach)
    return rows[:, None] & columns
