"""Rectified flow: straight lines from pictures to noise, a model of their velocity, and ways back along it.

    x_t = (1 - t) x + t ε        ε ~ N(0, 1), t from 0 to 1
    v(x_t, t) ≈ ε - x            learned by the mean squared error
    x_{t-h} = x_t - h v(x_t, t)  from t = 1 to 0

Reference:
    Liu et al. 2023, "Flow Straight and Fast" (arXiv 2209.03003), section 2.
    Esser et al. 2024, "Scaling Rectified Flow Transformers" (arXiv 2403.03206), section 3.1: logit-normal times.
    Ho & Salimans 2022, "Classifier-Free Diffusion Guidance" (arXiv 2207.12598), equation 6.
    Karras et al. 2022, "Elucidating the Design Space" (arXiv 2206.00364), algorithm 1: Heun's method.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

Velocity = Callable[[Float[Array, "B *S"], Float[Array, " B"]], Float[Array, "B *S"]]
"""`(x_t, t) -> v`."""

Conditional = Callable[[Float[Array, "B *S"], Float[Array, " B"], Int[Array, " B"]], Float[Array, "B *S"]]
"""`(x_t, t, classes) -> v`."""


def draw_times(key: Key[Array, ""], count: int, kind: str) -> Float[Array, " B"]:
    """Draw the times of training images.

    Args:
        key: random key.
        count: B.
        kind: "uniform", or "logit_normal", the logistic function of a standard normal number, which is seldom near the
            ends.
    """
    if kind == "uniform":
        return jax.random.uniform(key, (count,))
    return jax.nn.sigmoid(jax.random.normal(key, (count,)))


def noisy(x: Float[Array, "B *S"], noise: Float[Array, "B *S"], time: Float[Array, " B"]) -> Float[Array, "B *S"]:
    """Return `(1 - t) x + t noise`."""
    t = time.reshape(-1, *(1,) * (x.ndim - 1))
    return (1 - t) * x + t * noise


def flow_losses(
    velocity: Float[Array, "B *S"], x: Float[Array, "B *S"], noise: Float[Array, "B *S"]
) -> Float[Array, " B"]:
    """Return the mean squared error of a predicted velocity, per image: 0 where it is `noise - x`."""
    return jnp.mean(jnp.square(velocity - (noise - x)), axis=tuple(range(1, x.ndim)))


def guide(velocity: Conditional, labels: Int[Array, " B"], none: int, scale: float) -> Velocity:
    """Return the velocity `v_none + scale · (v_class - v_none)` (classifier-free guidance).

    Both are computed as one batch of twice the size. With scale 1 only that of the class is computed.

    Args:
        velocity: velocity of a class, or of none.
        labels: class of each picture.
        none: the label of no class.
        scale: 0 = that of no class, above 1 = beyond that of the class.
    """
    if scale == 1:
        return lambda x, time: velocity(x, time, labels)
    pair_labels = jnp.concatenate([labels, jnp.full_like(labels, none)])

    def guided_velocity(x: Array, time: Array) -> Array:
        pairs, times = jnp.concatenate([x, x]), jnp.concatenate([time, time])
        of_class, of_none = jnp.split(velocity(pairs, times, pair_labels), 2)
        return of_none + scale * (of_class - of_none)

    return guided_velocity


def sample(velocity: Velocity, noise: Float[Array, "B *S"], steps: int, method: str) -> Float[Array, "B *S"]:
    """Return where the flow leads from noise at t = 1 to t = 0, in equal steps.

    Args:
        velocity: velocity of the flow.
        noise: standard normal numbers.
        steps: number of steps.
        method: "euler", exact for a velocity that does not change along a path, or "heun", exact for one that is linear
            in t there, with two evaluations per step.
    """
    size = 1.0 / steps

    def time_after(number: Array) -> Array:
        return jnp.full((len(noise),), 1.0, noise.dtype) - size * number

    def euler(x: Array, number: Array) -> tuple[Array, None]:
        return x - size * velocity(x, time_after(number)), None

    def heun(x: Array, number: Array) -> tuple[Array, None]:
        slope = velocity(x, time_after(number))
        return x - 0.5 * size * (slope + velocity(x - size * slope, time_after(number + 1))), None

    numbers = jnp.arange(steps, dtype=noise.dtype)
    return jax.lax.scan(euler if method == "euler" else heun, noise, numbers)[0]
