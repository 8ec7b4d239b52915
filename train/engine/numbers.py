"""Measured numbers: one record for all programs, from the evaluation to the page, and what a program says of them."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from train.engine.intervals import packed, t95, unpacked_losses, unpacked_shares, wilson

LARGEST_LOG = 700.0
"""Largest logarithm of a finite number."""

At = int | tuple[int, ...]
"""A size, a length, or a shape: height and width, behind the frames of a video."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Number:
    """One measured number.

    Args:
        measure: name of the quantity, one of the program's (`Kind`).
        at: where it was measured.
        of: the part that it was measured on, such as a task; empty = everything.
        value: the number; NaN = there is none.
        low: lower end of its 95 % interval over the examples; NaN = no interval.
        high: upper end.
        count: number of examples: images, questions or tokens; 0 = unknown.
        beside: the same number of true data; NaN = there is none.
        refused: why the encoding does not support this place; empty = it does.
        log: whether it is the exponential of a mean, which has the interval: a perplexity.
        outcomes: what it is made of, one per example or region of text, in their order: 1 for a right answer, 0 for a
            wrong one, or a loss; None = not stored.
    """

    measure: str
    at: At
    of: str = ""
    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    count: int = 0
    beside: float = math.nan
    refused: str = ""
    log: bool = False
    outcomes: Float[np.ndarray, " N"] | None = dataclasses.field(default=None, compare=False, repr=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Number) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def _values(self) -> tuple[Any, ...]:
        """Return the fields that are compared; a NaN, which two numbers lack alike, is equal."""
        values = (getattr(self, field.name) for field in dataclasses.fields(self) if field.compare)
        return tuple("none" if value != value else value for value in values)

    @property
    def place(self) -> int:
        """Where it is in tables and figures: the height of a picture, or the frames of a video."""
        return self.at if isinstance(self.at, int) else self.at[0]

    @property
    def half(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2

    @property
    def shape(self) -> tuple[int, ...]:
        """Where it was measured, as a shape."""
        return self.at if isinstance(self.at, tuple) else (self.at,)

    @property
    def known(self) -> bool:
        """Whether there is a number."""
        return not math.isnan(self.value)


class Measure(NamedTuple):
    """A quantity that a program measures.

    Attributes:
        name: in tables and stored results, with its unit.
        form: format of a number in Markdown.
        higher: whether a higher number is better.
        heading: line above its Markdown table, with {trained}; empty = none, None = it is in no such table.
    """

    name: str
    form: str = "{:.1f}"
    higher: bool = True
    heading: str | None = ""


class Kind(NamedTuple):
    """What the evaluations of a program have in common.

    Attributes:
        measures: the quantities; the first one is drawn, compared and reported.
        subject: what is measured, for the report: "Images".
        examples: name of the test examples: "images".
        at: name of the places: "image side".
        unit: their unit in words: "pixels".
        short: their unit in tables: "px".
        trained: label of the trained place in figures, with {}: "trained at {} px".
        ylabel: label of the first quantity in figures.
        title: of the figure, with {data}; empty = a panel for each part, which is its title, with shares from 0 to 1.
        part: name of the first quantity on a part, with {of}.
        lead: text above the tables, with {trained}.
        refused: text of a refused number in Markdown.
        most: the trained place is the largest one of many: "up to ".
    """

    measures: tuple[Measure, ...]
    subject: str
    examples: str
    at: str
    unit: str
    short: str
    trained: str
    ylabel: str
    title: str = ""
    part: str = ""
    lead: str = ""
    refused: str = "refused"
    most: str = ""

    @property
    def higher(self) -> bool:
        """Whether a higher number of the first quantity is better."""
        return self.measures[0].higher

    @property
    def log(self) -> bool:
        """Whether the first quantity is a perplexity, whose axes are logarithmic."""
        return self.measures[0].name == PERPLEXITY


PERPLEXITY = "perplexity"
"""The measure of language models."""


def share(measure: str, at: At, right: Bool[np.ndarray, " N"], of: str = "", beside: float = math.nan) -> Number:
    """Return the share of right answers in percent, with Wilson's interval."""
    number = share_of(measure, at, int(right.sum()), len(right), of=of, beside=beside)
    return dataclasses.replace(number, outcomes=right.astype(np.float64))


def share_of(
    measure: str, at: At, correct: int, count: int, each: str = "", of: str = "", beside: float = math.nan
) -> Number:
    """Return the share of right answers in percent, given their number.

    Args:
        measure: name of the quantity.
        at: where it was measured.
        correct: number of right ones.
        count: number of all.
        each: which ones are right, by `packed`; empty = unknown.
        of: the part that it was measured on.
        beside: the same of true data.

    Raises:
        ValueError: numbers that do not fit each other.
    """
    low, high = wilson(correct, count)
    outcomes = unpacked_shares(each, count)
    if outcomes is not None:
        _require_correct(outcomes, correct)
    return Number(
        measure=measure, at=at, of=of, value=100 * correct / count, low=100 * low, high=100 * high, count=count,
        beside=beside, outcomes=outcomes,
    )  # fmt: skip


def _require_correct(outcomes: Float[np.ndarray, " N"], correct: int) -> None:
    """Raise ValueError where outcomes are not those of a share with so many right answers."""
    if outcomes.sum() != correct:
        raise ValueError(f"each must have correct={correct} right ones, got {int(outcomes.sum())}")


def mean(measure: str, at: At, values: Float[np.ndarray, "regions tokens"], *, log: bool = True) -> Number:
    """Return a mean, with its 95 % interval; regions of text count as independent, tokens within one do not.

    `mean ± t · s / √n`, with s the standard deviation of the means of the n regions; infinite for a single one.

    Args:
        measure: name of the quantity.
        at: where it was measured.
        values: losses, in nats.
        log: whether the number is a perplexity, the exponential of the mean.
    """
    means = values.astype(np.float64).mean(axis=1)
    n = len(means)
    half = math.inf if n == 1 else t95(n) * float(means.std(ddof=1)) / math.sqrt(n)
    return mean_of(measure, at, float(means.mean()), half, values.size, means, log=log)


def mean_of(
    measure: str, at: At, mean: float, half: float, count: int, outcomes: np.ndarray | None = None, *, log: bool = True
) -> Number:
    """Return a mean of so many tokens and half the width of its interval as a number, or as its perplexity."""
    value, low, high = (perplexity_of(end) if log else end for end in (mean, mean - half, mean + half))
    return Number(measure=measure, at=at, value=value, low=low, high=high, count=count, log=log, outcomes=outcomes)


def aspect(shape: tuple[int, ...], trained: tuple[int, ...]) -> str:
    """Return the part of results that a shape belongs to: the aspect ratio in words, "1 x 2", empty for squares.

    That of a video is the size of its frames, "28 x 28", empty for the trained one.
    """
    *frames, height, width = shape
    if frames:
        return "" if shape[1:] == trained[1:] else f"{height} x {width}"
    divisor = math.gcd(height, width)
    return "" if height == width else f"{height // divisor} x {width // divisor}"


def require_number(number: Number) -> Number:
    """Return a number after checking its fields, which may come from somebody else.

    Raises:
        ValueError: naming the field, the rule and the value.
    """
    kinds: dict[str, Any] = {"measure": str, "of": str, "refused": str, "count": int, "log": bool}
    kinds |= dict.fromkeys(("value", "low", "high", "beside"), int | float)
    for name, kind in kinds.items():
        value = getattr(number, name)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ValueError(f"{name} must be {getattr(kind, '__name__', kind)}, got {value!r}")
    if not number.shape or not all(type(size) is int for size in number.shape):
        raise ValueError(f"at must be int, or a few of them, got {number.at!r}")
    if number.low > number.value + TINY or number.high < number.value - TINY:
        raise ValueError(f"value must be in its interval, {number.low} to {number.high}, got {number.value}")
    return number


TINY = 1e-9
"""Rounding of an interval that ends at its number."""


def stored(number: Number) -> dict[str, Any]:
    """Return a number as JSON, without what it does not have."""
    values = {field.name: getattr(number, field.name) for field in dataclasses.fields(number)}
    outcomes = values.pop("outcomes")
    entries = {name: value for name, value in values.items() if value != DEFAULTS.get(name) and value == value}
    for end in ("low", "high"):
        if not math.isfinite(entries.get(end, 0.0)):
            del entries[end]
    text = "" if outcomes is None else packed(outcomes if number.log else outcomes.astype(bool))
    return {**entries, **({"each": text} if text else {})}


DEFAULTS = {field.name: field.default for field in dataclasses.fields(Number)}


def from_stored(values: Mapping[str, Any]) -> Number:
    """Return a number from its JSON.

    Raises:
        ValueError: it has a value that no number has.
        TypeError: it has another field, or lacks one.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"a number must be an object, got {values!r}")
    fields = {name: value for name, value in values.items() if name not in ("each", "at")}
    at = values.get("at", ())
    number = require_number(Number(**fields, at=tuple(at) if isinstance(at, list) else at))
    text = values.get("each", "")
    outcomes = unpacked_losses(text) if number.log else unpacked_shares(text, number.count)
    if outcomes is not None and not number.log:
        _require_correct(outcomes, round(number.value * number.count / 100))
    return dataclasses.replace(number, outcomes=outcomes)


def perplexity_of(loss: float) -> float:
    """Return `exp(loss)`, infinite where it overflows."""
    return math.inf if loss > LARGEST_LOG else math.exp(loss)


def difference(number: Number, other: Number) -> tuple[float, float] | None:
    """Return the difference of two numbers of the same examples, and half the width of its 95 % interval.

    `d = x - y`, below it `sqrt(a² + b² - 2rab)` with `a = x - low(x)`, `b = high(y) - y`, above it the same of the
    other ends; half is the larger one. r is the correlation of the outcomes, example by example: of right answers this
    is the score interval of paired proportions, of means that of Student's t of the paired differences. Without
    outcomes r = 0, as of other examples: wider, unless what is right for one tends to be wrong for the other.

    Of perplexities, x and y are their logarithms, and both results are multiplied by the slope
    `(exp(x) - exp(y)) / (x - y)`: perplexities are told apart where their losses are.

    Args:
        number: the first number.
        other: the second number, of the same measure.

    Returns:
        Both in the unit of the numbers; half is NaN where an interval is infinite. None: not of equally many examples.

    Reference:
        Newcombe 1998, "Improved confidence intervals for the difference between binomial proportions based on paired
        data", Statistics in Medicine 17(22), method 8; Zou and Donner 2008, "Construction of confidence limits about
        effect measures", Statistics in Medicine 27(10).
    """
    if number.count != other.count:
        return None
    (x, low, high), (y, low_other, high_other) = map(_mean_and_ends, (number, other))
    ends = (x - low, high_other - y), (high - x, y - low_other)
    r = correlation(number.outcomes, other.outcomes)
    gap, d = number.value - other.value, x - y
    slope = gap / d if d else number.value if number.log else 1.0
    if not all(map(math.isfinite, (gap, *ends[0], *ends[1]))):
        return gap, math.nan
    return gap, slope * max(math.sqrt(max(0.0, a * a + b * b - 2 * r * a * b)) for a, b in ends)


def _mean_and_ends(number: Number) -> tuple[float, float, float]:
    """Return a number and the ends of its interval, or their logarithms."""
    log = lambda value: math.log(value) if value > 0 else -math.inf
    mean, low, high = (log(value) if number.log else value for value in (number.value, number.low, number.high))
    return mean, low, high


def correlation(values: np.ndarray | None, other: np.ndarray | None) -> float:
    """Return the correlation of two lists of numbers; 0 where one is missing, constant, or of another length."""
    if values is None or other is None or len(values) != len(other):
        return 0.0
    x, y = values - values.mean(), other - other.mean()
    scale = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / scale if scale else 0.0
