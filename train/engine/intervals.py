"""95 % intervals of a proportion and of a mean, and the outcomes that numbers are made of as text."""

import base64
import binascii

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


LARGEST = 7500
"""Most bytes of outcomes that are stored, 60,000 right or wrong answers or 1,875 losses: 10,000 characters."""


def packed(outcomes: np.ndarray) -> str:
    """Return outcomes as text: bits of right and wrong answers, or losses in float32; empty if they are too many."""
    array = np.packbits(outcomes) if outcomes.dtype == bool else outcomes.astype("<f4")
    return base64.b64encode(array.tobytes()).decode() if array.nbytes <= LARGEST else ""


def unpacked_shares(text: str, count: int) -> Float[np.ndarray, " N"] | None:
    """Return right answers as 1 and wrong ones as 0 from their text by `packed`; None if it is empty.

    Raises:
        ValueError: it is not the text of so many.
    """
    if not text:
        return None
    return np.unpackbits(np.frombuffer(_bytes_of(text, -(-count // 8)), np.uint8), count=count).astype(np.float64)


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
