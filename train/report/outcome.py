"""The outcome of a section in one sentence: which encoding is ahead, by how much, or that nothing can be said."""

from train.compare.table import cell_text
from train.report.blocks import capital
from train.report.groups import Group, Series
from train.report.leads import Lead, lead_of
from train.report.texts import plain

NAME = 60
"""Most characters of the name of an encoding."""

NAMED = 3
"""Most encodings that are named as equal to the best."""


def outcome(group: Group) -> str:
    """Return the sentence: on the trained and the largest size, by the difference seed by seed to the best.

    One seed has no interval over seeds. The same weights with and without an extension are then told apart by that of
    the test examples.
    """
    what = group.measures[0]
    sizes = group.sizes(what)
    asked = dict.fromkeys(size for size in (sizes[-1], group.key.trained) if size in sizes)
    if len(group.series) == 1:
        return f"Only {_name(group.series[0])} was measured: nothing can be said on which encoding is better."
    return capital(f"{'; '.join(_at(group, what, size) for size in asked)}.")


def _at(group: Group, what: str, size: int) -> str:
    place = f"at {size} {group.unit}{', the trained size,' if size == group.key.trained else ''}"
    ranked = sorted(
        (series for series in group.series if size in series.means.get(what, {})),
        key=lambda series: series.means[what][size].mean, reverse=group.higher,
    )  # fmt: skip
    if len(ranked) < 2:
        return f"{place} only {_name(ranked[0])} was measured"
    best, *followers = ranked
    leads = [lead_of(group, best, series, what, size) for series in followers]
    behind = next((n for n, lead in enumerate(leads) if lead and lead.told), None)
    if behind is None or not (lead := leads[behind]):
        return f"{place} {_untold(best, followers[0], leads[0], what)}"
    lead_text, by = f"ahead of {_name(followers[behind])}", _by(lead, what)
    if lead.on:
        caveat = "other seeds not tried" if lead.by.seeds == 1 else "other seeds may differ"
        untold = [_name(series) for series, lead in zip(followers, leads, strict=True) if not (lead and lead.told)]
        return f"{place} {_name(best)} is {lead_text} {by}, {caveat}{_not_told(untold)}"
    if behind == 0:
        return f"{place} {_name(best)} is the best, {lead_text} {by}"
    return f"{place} {_name(best)} is {lead_text} {by}{_not_told([_name(series) for series in followers[:behind]])}"


def _untold(best: Series, other: Series, lead: Lead | None, what: str) -> str:
    """Return what is said of the best and the next one, if the best is not told apart from any."""
    said = f"nothing can be said: {_name(best)}"
    if lead is None:
        return f"{said} is ahead of {_name(other)}, but they have no seed in common"
    if lead.by.mean:
        return f"{said} is ahead of {_name(other)} {_by(lead, what)}"
    if lead.on:
        return f"{_name(best)} and {_name(other)} are equal{lead.on} ({_of(lead, what)})"
    return f"{said} and {_name(other)} are equal{' on average' * (lead.by.seeds > 1)} ({_of(lead, what)})"


def _not_told(names: list[str]) -> str:
    named = f"{', '.join(names[:NAMED])}{f' and {len(names) - NAMED} more' if len(names) > NAMED else ''}"
    return f", but not told apart from {named}" if names else ""


def _by(lead: Lead, what: str) -> str:
    return f"by {cell_text(lead.by._replace(mean=abs(lead.by.mean)))} ({_of(lead, what)}){lead.on}"


def _of(lead: Lead, what: str) -> str:
    return f"{what}, {lead.by.seeds} seed{'s' * (lead.by.seeds > 1)}"


def _name(series: Series) -> str:
    return plain(series.label, NAME)
