"""The lead of one series of a section over another: over common seeds, or over test examples of the same weights."""

from typing import NamedTuple

from train.compare.table import Mean, mean_of
from train.engine.numbers import difference
from train.report.groups import Group, Series


def seed_difference(series: Series, reference: Series, what: str, size: int) -> Mean | None:
    """Return the mean difference to the reference over the seeds that both have, or None if there are none."""
    mine, theirs = series.numbers(what, size), reference.numbers(what, size)
    differences = [mine[seed] - theirs[seed] for seed in mine if seed in theirs]
    return mean_of(differences) if differences else None


def on_weights(series: Series, reference: Series, what: str, size: int) -> Mean | None:
    """Return the difference of two readings of the same weights, with the interval of the test examples.

    Over several runs both are means: an interval that is wide enough however the runs correlate.

    Returns:
        The difference, or None if a seed that both have is of two runs, or they have none, or not the same examples.
    """
    mine, theirs = series.measured(what, size), reference.measured(what, size)
    common = mine.keys() & theirs.keys()
    if not common or {at.seed for at in mine} & {at.seed for at in theirs} != {at.seed for at in common}:
        return None
    pairs = [difference(mine[run], theirs[run]) for run in sorted(common)]
    differences = [pair for pair in pairs if pair is not None]
    if len(differences) < len(pairs):
        return None
    mean, half = (sum(numbers) / len(differences) for numbers in zip(*differences, strict=True))
    return Mean(mean, half, len(differences))


class Lead(NamedTuple):
    """The lead of the best series over another one.

    Attributes:
        by: the difference and its interval: over seeds, or over the test examples of the same weights.
        on: the weights and examples, in words, that the interval is of; empty = it is over seeds.
    """

    by: Mean
    on: str

    @property
    def told(self) -> bool:
        """Whether it is beyond its interval; one seed has none over seeds."""
        return abs(self.by.mean) > self.by.half  # NaN: none


def lead_of(group: Group, best: Series, other: Series, what: str, size: int) -> Lead | None:
    """Return the lead, over the test examples where seeds do not tell it; None without a common seed."""
    seeds, examples = seed_difference(best, other, what, size), on_weights(best, other, what, size)
    over_seeds = Lead(seeds, "") if seeds else None
    if examples is None or (over_seeds and over_seeds.told):
        return over_seeds
    over_examples = Lead(examples, f" on the same weights and {group.examples}")
    is_tie = seeds is not None and seeds.mean == seeds.half == 0
    return over_examples if examples.seeds == 1 or over_examples.told or is_tie else over_seeds
