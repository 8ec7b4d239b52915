"""Numbers as evaluations make them, for tests of what is done with them."""

import math
from collections.abc import Mapping

from train.engine.numbers import PERPLEXITY, Number, mean_of, share_of
from train.vit.results import TOP1


def top1(right: Mapping[int, int], count: int = 100) -> tuple[Number, ...]:
    """Return top-1 at each size: images that are right, of `count`."""
    return tuple(share_of(TOP1, size, correct, count) for size, correct in right.items())


def perplexities(losses: Mapping[int, float | str], half: float = 0.1, count: int = 999) -> tuple[Number, ...]:
    """Return the perplexity at each length: the loss in nats, or why it is refused."""
    return tuple(
        Number(measure=PERPLEXITY, at=length, refused=loss)
        if isinstance(loss, str)
        else mean_of(PERPLEXITY, length, loss, half, count)
        for length, loss in losses.items()
    )


def loss_of(number: Number) -> float:
    """Return the mean that a number is the exponential of, or itself."""
    return math.log(number.value) if number.log else number.value
