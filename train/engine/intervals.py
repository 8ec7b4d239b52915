"""95 % intervals: of a proportion, of a mean, and of the difference of two scores of the same examples."""

import base64
import binascii
import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

Z95 = 1.959963984540054
"""Two-sided 95 % quantile of the standard normal."""


def wilson(correct: int, count: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a proportion.

    `(p + z²/2n ± z·sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n)` with p = correct/count, n = count.

    Raises:
        ValueError: more correct ones than there are.

    Reference:
        Wilson 1927, "Probable inference, the law of succession, and statistical inference", JASA 22(158).
    """
    if not 0 <= correct <= count:
        raise ValueError(f"correct must be from 0 to count={count}, got {correct}")
    p, z2 = correct / count, Z95**2 / count
    half = Z95 * (p * (1 - p) / count + z2 / (4 * count)) ** 0.5
    low, high = (p + z2 / 2 - half) / (1 + z2), (p + z2 / 2 + half) / (1 + z2)
    return max(0.0, low), min(1.0, high)


T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Two-sided 95 % quantiles of Student's t at 1 to 15 degrees of freedom; beyond, 1.96 + 2.5/freedom is within 0.005."""


def t95(count: int) -> float:
    """Return the two-sided 95 % quantile of Student's t for the mean of `count` numbers, at least two."""
    return T95[count - 2] if count - 2 < len(T95) else 1.96 + 2.5 / (count - 1)


LARGEST_LOG = 700.0
"""Largest logarithm of a finite number."""


class Score(NamedTuple):
    """A number that was measured on test examples.

    Attributes:
        value: the number, or its logarithm.
        low: lower end of its 95 % interval over the examples.
        high: upper end.
        count: number of examples: images, questions or tokens.
        outcomes: what it is made of, one number per example or region of text, in their order; None = not stored.
        log: whether value and its ends are logarithms: losses of a perplexity.
    """

    value: float
    low: float
    high: float
    count: int
    outcomes: Float[np.ndarray, " N"] | None = None
    log: bool = False

    @property
    def number(self) -> float:
        """The number itself; infinite where it overflows."""
        if self.log:
            return math.inf if self.value > LARGEST_LOG else math.exp(self.value)
        return self.value


def share(correct: int, count: int, text: str) -> Score:
    """Return the score of right answers, in percent, with Wilson's interval.

    Args:
        correct: number of right ones.
        count: number of all.
        text: which ones are right, by `packed`; empty = unknown.

    Raises:
        ValueError: numbers that do not fit each other.
    """
    low, high = wilson(correct, count)
    score = Score(100 * correct / count, 100 * low, 100 * high, count)
    if not text:
        return score
    bits = np.frombuffer(_bytes_of(text, -(-count // 8)), np.uint8)
    outcomes = np.unpackbits(bits, count=count).astype(np.float64)
    if outcomes.sum() != correct:
        raise ValueError(f"each must have correct={correct} right ones, got {int(outcomes.sum())}")
    return score._replace(outcomes=outcomes)


def difference(first: Score, second: Score) -> tuple[float, float] | None:
    """Return the difference of two scores of the same examples, and half the width of its 95 % interval.

    `d = x - y`, below it `sqrt(a² + b² - 2rab)` with `a = x - low(x)`, `b = high(y) - y`, above it the same of the
    other ends; half is the larger one. r is the correlation of the outcomes, example by example: of right answers this
    is the score interval of paired proportions, of means that of Student's t of the paired differences. Without
    outcomes r = 0, as of other examples: wider, unless what is right for one tends to be wrong for the other.

    Of logarithms, both are multiplied by the slope `(exp(x) - exp(y)) / (x - y)`: perplexities are told apart where
    their losses are.

    Returns:
        Both in the unit of the numbers; half is NaN where an interval is infinite. None: not of equally many examples.

    Reference:
        Newcombe 1998, "Improved confidence intervals for the difference between binomial proportions based on paired
        data", Statistics in Medicine 17(22), method 8; Zou and Donner 2008, "Construction of confidence limits about
        effect measures", Statistics in Medicine 27(10).
    """
    if first.count != second.count:
        return None
    x, y, d = first.value, second.value, first.value - second.value
    ends = (x - first.low, second.high - y), (first.high - x, y - second.low)
    r = correlation(first.outcomes, second.outcomes)
    gap = first.number - second.number
    slope = gap / d if d else first.number if first.log else 1.0
    if not all(map(math.isfinite, (gap, *ends[0], *ends[1]))):
        return gap, math.nan
    return gap, slope * max(math.sqrt(max(0.0, a * a + b * b - 2 * r * a * b)) for a, b in ends)


def correlation(first: np.ndarray | None, second: np.ndarray | None) -> float:
    """Return the correlation of two lists of numbers; 0 where one is missing, constant, or of another length."""
    if first is None or second is None or len(first) != len(second):
        return 0.0
    x, y = first - first.mean(), second - second.mean()
    scale = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / scale if scale else 0.0


LARGEST = 7500
"""Most bytes of outcomes that are stored, 60,000 right or wrong answers or 1,875 losses: 10,000 characters."""


def packed(outcomes: np.ndarray) -> str:
    """Return outcomes as text: bits of right and wrong answers, or losses in float32; empty if they are too many."""
    array = np.packbits(outcomes) if outcomes.dtype == bool else outcomes.astype("<f4")
    return base64.b64encode(array.tobytes()).decode() if array.nbytes <= LARGEST else ""


def unpacked_losses(text: str) -> Float[np.ndarray, " N"] | None:
    """Return losses from their text by `packed`; None if it is empty.

    Raises:
        ValueError: it is not the text of losses.
    """
    return np.frombuffer(_bytes_of(text), "<f4").astype(np.float64) if text else None


def _bytes_of(text: str, size: int | None = None) -> bytes:
    """Return the bytes in a text, `size` of them, or a multiple of 4."""
    try:
        content = base64.b64decode(text, validate=True)
    except binascii.Error as wrong:
        raise ValueError(f"each must be outcomes in base64: {wrong}") from None
    if len(content) != size if size is not None else len(content) % 4:
        raise ValueError(f"each must be {size if size is not None else 'a multiple of 4'} bytes, got {len(content)}")
    return content
