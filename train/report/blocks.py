"""The content of a report, free of its form: sections of texts, tables and plots, for page, markdown and PNGs."""

from typing import NamedTuple

from pejax._visualize.style import LineStyle


class Cell(NamedTuple):
    """One cell of a table.

    Attributes:
        text: text that is shown.
        value: it is sorted by; None = it has no number and comes last. Empty = the text.
        strong: the best of its column.
    """

    text: str
    value: float | str | None = ""
    strong: bool = False

    @property
    def key(self) -> float | str | None:
        """The sort key."""
        return self.text if self.value == "" else self.value


class Table(NamedTuple):
    """A table whose first column has the headers of its rows.

    Attributes:
        caption: description.
        heads: headings of the columns.
        rows: cells, row by row.
        strong: indices of columns that are emphasized: the trained size.
        folded: whether the page shows it when asked.
    """

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    strong: tuple[int, ...] = ()
    folded: bool = False

    @property
    def worded(self) -> tuple[int, ...]:
        """Indices of the columns that hold texts, not numbers."""
        numbers = lambda i: any(isinstance(row[i].key, float | int) for row in self.rows)
        return tuple(i for i in range(len(self.heads)) if i == 0 or not numbers(i))


class Point(NamedTuple):
    """A point of a curve, with the ends of its interval; equal to y where there is none."""

    x: float
    y: float
    low: float
    high: float
    text: str


class Curve(NamedTuple):
    """A curve, or the points of one kind.

    Attributes:
        label: name of the curve.
        style: color, dash and marker.
        points: by ascending x.
        seeds: points of single seeds, drawn small where there are too few for a band.
    """

    label: str
    style: LineStyle
    points: tuple[Point, ...]
    seeds: tuple[Point, ...] = ()

    @property
    def drawn(self) -> tuple[Point, ...]:
        """All points."""
        return (*self.points, *self.seeds)


class Axis(NamedTuple):
    """An axis.

    Attributes:
        label: quantity and unit.
        log: its base; 0 = linear.
        ticks: where; empty = round numbers.
    """

    label: str
    log: int = 0
    ticks: tuple[float, ...] = ()


class Plot(NamedTuple):
    """A plot.

    Attributes:
        kind: `curves`; `scatter`, points about the diagonal; `strips`, one row per curve, its points on two lanes.
        name: name of the file, without suffix.
        title: heading.
        caption: remarks for readers.
        x: the axis.
        y: the axis; of strips, the names of the lanes are in `lanes`.
        curves: curves in the order of the legend.
        mark: where the trained size is, and its label; None = nowhere.
        dots: whether every point has a marker.
        lanes: names of the lanes of strips.
        scope: plots of one scope show and hide their curves together.
    """

    kind: str
    name: str
    title: str
    caption: str
    x: Axis
    y: Axis
    curves: tuple[Curve, ...]
    mark: tuple[float, str] | None = None
    dots: bool = True
    lanes: tuple[str, ...] = ()
    scope: str = ""


class Section(NamedTuple):
    """A part of a report.

    Attributes:
        name: anchor.
        title: heading.
        blocks: texts, tables, plots and subsections.
    """

    name: str
    title: str
    blocks: tuple["str | Table | Plot | Section", ...]


class Document(NamedTuple):
    """A report.

    Attributes:
        title: heading.
        outcomes: paragraphs at the top: what was found.
        lead: the paragraph after them.
        sections: parts of the report.
        footer: when and with which versions it was made.
    """

    title: str
    outcomes: tuple[str, ...]
    lead: str
    sections: tuple[Section, ...]
    footer: str


def capital(text: str) -> str:
    """Return a text with a capital letter at its beginning."""
    return text[:1].upper() + text[1:]


def plots(section: Section) -> list[Plot]:
    """Return all plots of a section and its subsections, in order."""
    all_plots = []
    for block in section.blocks:
        all_plots += plots(block) if isinstance(block, Section) else [block] if isinstance(block, Plot) else []
    return all_plots
