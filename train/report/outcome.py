"""The outcome of a section in one sentence: which encoding is ahead, by how much, or that nothing can be said."""

from train.compare.table import Mean, cell_text
from train.report.blocks import capital
from train.report.groups import Group, Series, paired
from train.report.texts import plain

NAME = 60
"""Most characters of the name of an encoding."""

NAMED = 3
"""Most encodings that are named as equal to the best."""


def outcome(group: Group) -> str:
    """Return the sentence: on the trained and the largest size, by the difference seed by seed to the best."""
    what = group.measures[0]
    sizes = group.sizes(what)
    asked = dict.fromkeys(size for size in (sizes[-1], group.key.trained) if size in sizes)
    if len(group.series) == 1:
        return f"Only {_name(group.series[0])} was measured: nothing can be said on which encoding is better."
    return capital(f"{'; '.join(_at(group, what, size) for size in asked)}.")


def _at(group: Group, what: str, size: int) -> str:
    place = f"at {size} {group.unit}{', the trained size,' if size == group.key.trained else ''}"
    ranked = sorted(
        (one for one in group.series if size in one.means.get(what, {})),
        key=lambda one: one.means[what][size].mean, reverse=group.higher,
    )  # fmt: skip
    if len(ranked) < 2:
        return f"{place} only {_name(ranked[0])} was measured"
    best, *others = ranked
    leads = [paired(best, one, what, size) for one in others]
    behind = next((n for n, lead in enumerate(leads) if lead and abs(lead.mean) > lead.half), None)  # NaN: one seed
    if behind is not None and (lead := leads[behind]):
        by = f"{_name(others[behind])} {_by(lead, what)}"
        if behind == 0:
            return f"{place} {_name(best)} is the best, ahead of {by}"
        equal = [_name(one) for one in ranked[1 : behind + 1]]
        named = f"{', '.join(equal[:NAMED])}{f' and {len(equal) - NAMED} more' if len(equal) > NAMED else ''}"
        return f"{place} {_name(best)} is ahead of {by}, but not told apart from {named}"
    said, lead = f"{place} nothing can be said: {_name(best)}", leads[0]
    if lead is None:
        return f"{said} is ahead of {_name(others[0])}, but they have no seed in common"
    if lead.mean == 0:
        return f"{said} and {_name(others[0])} are equal{' on average' * (lead.seeds > 1)} ({_of(lead, what)})"
    return f"{said} is ahead of {_name(others[0])} {_by(lead, what)}"


def _by(lead: Mean, what: str) -> str:
    return f"by {cell_text(lead._replace(mean=abs(lead.mean)))} ({_of(lead, what)})"


def _of(lead: Mean, what: str) -> str:
    return f"{what}, {lead.seeds} seed{'s' * (lead.seeds > 1)}"


def _name(series: Series) -> str:
    return plain(series.label, NAME)
