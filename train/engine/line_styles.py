"""Colors, dashes and markers of curves: those of the encoding, the same in every figure, and no two alike in one."""

import itertools
import re
from collections.abc import Iterator, Sequence

from pejax._visualize.style import DASHES, LINES, THEMES, LineStyle

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
"""Markers of matplotlib."""

COLORS = THEMES["light"].lines
"""Colors by the number in a style."""


def numbered(i: int) -> LineStyle:
    """Return the style of curve i where curves are no encodings: neighbors differ in all three where they can."""
    turn = i // len(COLORS)
    return LineStyle(i % len(COLORS), DASHES[turn % len(DASHES)], MARKERS[(i + turn) % len(MARKERS)])


def line_styles(labels: Sequence[str]) -> list[LineStyle]:
    """Return the style of each label.

    A label that begins with an encoding has its style, or its color if another label has the style already.
    """
    presets = [LINES.get(name[0]) if (name := re.match(r"\w+(?=$|[ (,])", label)) else None for label in labels]
    reserved, styles = {style for style in presets if style}, []
    for style in presets:
        if style is None or style in styles:
            style = next((choice for choice in _alternatives(style) if choice not in reserved), numbered(len(styles)))
            reserved.add(style)
        styles.append(style)
    return styles


def _alternatives(style: LineStyle | None) -> Iterator[LineStyle]:
    """Yield other styles of this color, with other dashes first; for None, styles of all colors."""
    if style is None:
        for dash, marker, color in itertools.product(DASHES, MARKERS, range(len(COLORS))):
            yield LineStyle(color, dash, marker)
        return
    for marker, dash in itertools.product((style.marker, *MARKERS), DASHES):
        if dash != style.dash:
            yield LineStyle(style.color, dash, marker)
