"""Intervals: the difference of two numbers of the same examples, and the text of their outcomes."""

import dataclasses
import json
import math

import numpy as np
import pytest

from train.engine.files import with_digest
from train.engine.intervals import LARGEST, packed, t95, unpacked_losses, wilson
from train.engine.numbers import PERPLEXITY, Number, difference, mean, share, share_of
from train.lm.results import PerplexityResults
from train.vit.results import TOP1, ResolutionResults

RIGHT = np.array([1, 1, 1, 1, 1, 1, 1, 1, 0, 0], bool)
OTHER = np.array([1, 1, 0, 0, 0, 0, 0, 0, 1, 0], bool)


def answers(right: np.ndarray) -> Number:
    return share(TOP1, 28, right)


def losses(values: list[float]) -> Number:
    return mean("loss", 8, np.array(values)[:, None], log=False)


def test_right_answers_are_compared_by_the_score_interval_of_pairs():
    """Newcombe's method 8: both right 2, one alone 6, the other alone 1, neither 1; phi = (2·1 - 6·1) / √(8·2·3·7)."""
    (low, high), (low_other, high_other) = wilson(8, 10), wilson(3, 10)
    phi = -4 / math.sqrt(8 * 2 * 3 * 7)
    half = lambda a, b: 100 * math.sqrt(a**2 - 2 * phi * a * b + b**2)
    below, above = half(0.8 - low, high_other - 0.3), half(high - 0.8, 0.3 - low_other)
    assert difference(answers(RIGHT), answers(OTHER)) == (pytest.approx(50.0), pytest.approx(max(below, above)))
    assert difference(answers(OTHER), answers(RIGHT)) == (pytest.approx(-50.0), pytest.approx(max(below, above)))


def test_of_many_images_it_is_the_interval_of_mcnemar():
    """`1.96 √(b + c - (b - c)²/n) / n` with b and c images that one of the two alone has right."""
    overlap, b, c, n = 3000, 2500, 300, 10_000
    right = np.arange(n) < overlap + b
    baseline = (np.arange(n) < overlap) | (np.arange(n) >= n - c)
    d, half = difference(answers(right), answers(baseline)) or (0, 0)
    assert d == pytest.approx(22.0)
    assert half == pytest.approx(196 * math.sqrt(b + c - (b - c) ** 2 / n) / n, rel=0.01)


def test_means_are_compared_by_the_interval_of_their_differences():
    values, baseline = [2.0, 3.0, 5.0, 4.0], [2.5, 3.25, 6.0, 4.75]
    gaps = np.subtract(values, baseline)
    half = t95(4) * gaps.std(ddof=1) / 2
    assert difference(losses(values), losses(baseline)) == (pytest.approx(gaps.mean()), pytest.approx(half))
    assert difference(losses(values), losses(values)) == (0.0, pytest.approx(0.0, abs=1e-6))


def test_without_outcomes_it_is_that_of_two_samples():
    number, baseline = (
        dataclasses.replace(losses(values), outcomes=None) for values in ([2.0, 3.0, 5.0], [2.5, 3.0, 6.0])
    )
    d, half = difference(number, baseline) or (0, 0)
    assert d == pytest.approx(-0.5)
    assert half == pytest.approx(math.hypot(number.high - number.value, baseline.high - baseline.value))
    d, wider = difference(share_of(TOP1, 28, 6000, 10_000), share_of(TOP1, 28, 5900, 10_000)) or (0, 0)
    right = np.arange(10_000) < 6000
    _, narrower = difference(answers(right), answers(np.arange(10_000) < 5900)) or (0, 0)
    assert narrower < 0.25 < wider


def test_other_examples_and_endless_intervals_have_no_interval():
    assert difference(answers(RIGHT), answers(RIGHT[:9])) is None
    number = mean(PERPLEXITY, 8, np.full((1, 9), 0.7))
    assert (number.low, number.high) == (0.0, math.inf)
    assert math.isnan((difference(number, number) or (0, 0))[1])


def test_outcomes_are_stored_unless_they_are_too_many():
    assert share_of(TOP1, 28, 8, 10, packed(RIGHT)).outcomes.tolist() == RIGHT.tolist()
    values = unpacked_losses(packed(np.array([2.5, 0.125])))
    assert values is not None
    assert values.tolist() == [2.5, 0.125]
    assert len(packed(np.ones(8 * LARGEST, bool))) == 10_000  # the longest text that a report reads
    assert packed(np.ones(8 * LARGEST + 1, bool)) == packed(np.ones(LARGEST // 4 + 1)) == ""
    assert unpacked_losses("") is None


@pytest.mark.parametrize(
    ("outcomes", "rule"),
    [
        (packed(OTHER), "must have correct=8 right ones, got 3"),
        ("AAAA", "must be 2 bytes, got 3"),
        ("?", "must be outcomes in base64"),
    ],
)
def test_outcomes_that_do_not_fit_their_number_are_refused(outcomes, rule, tmp_path):
    numbers = (answers(RIGHT),)
    ResolutionResults("rope", "fashion", 28, 10, "none", "a note", numbers).store(tmp_path)
    path = tmp_path / "results.json"
    (number,) = ResolutionResults.load(path).numbers
    assert number == numbers[0]
    assert number.outcomes.tolist() == RIGHT.tolist()
    stored = json.loads(path.read_text())
    stored["numbers"][0]["each"] = outcomes
    path.write_text(json.dumps(with_digest({k: v for k, v in stored.items() if k != "digest"})))
    with pytest.raises(ValueError, match=f"each {rule}"):
        ResolutionResults.load(path)


def test_perplexities_of_the_same_text_are_compared_by_its_regions(tmp_path):
    """Regions differ much, and the same region little: without outcomes nothing would be told."""
    regions = np.array([2.0, 3.0, 4.0, 3.5])
    numbers = lambda values: (mean(PERPLEXITY, 8, values[:, None]),)
    baseline = PerplexityResults("rope", "shakespeare", 4, 10, "none", "a note", numbers(regions))
    candidate = dataclasses.replace(baseline, extend="yarn", numbers=numbers(regions - 0.1))
    for results in (baseline, candidate):
        results.store(tmp_path)
        assert type(results).load(tmp_path / f"{results.stem}.json") == results
    longer, shorter = (
        type(baseline).load(tmp_path / f"{results.stem}.json").scored[PERPLEXITY][8]
        for results in (baseline, candidate)
    )
    d, half = difference(longer, shorter) or (0, 0)
    assert d == pytest.approx(math.exp(3.125) - math.exp(3.025))
    assert half == pytest.approx(0.0, abs=1e-3)
    gap, independent = difference(dataclasses.replace(longer, outcomes=None), shorter) or (0, 0)
    halves = (2 * math.log(longer.high) - 6.25, 2 * math.log(shorter.high) - 6.05)
    assert independent / gap == pytest.approx(math.hypot(*halves) / 0.2)
