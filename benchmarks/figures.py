"""The figures of the results, drawn from the stored numbers of `benchmarks/results`: one command for all of them.

    python -m benchmarks.figures                 writes benchmarks/figures/*.svg, each for light and dark pages
    python -m benchmarks.figures --out=FOLDER

An encoding has the same line in all of them. At most six lines are colored, the others grey; each is named at its end.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pejax._visualize.style import DASHES, LINES, THEMES, Canvas, LineStyle

HERE = Path(__file__).parent
GAP = 0.047
"""Least distance between the names of two lines, as a part of the height of the axes."""
NARROW = 6.0
"""Width of a figure, inches, below which it is narrow."""


class Line(NamedTuple):
    """The numbers of one encoding, perhaps with an extension.

    Attributes:
        pe: the encoding.
        extend: the extension, or `none`.
        runs: score by size or length, for each seed.
    """

    pe: str
    extend: str
    runs: list[dict[int, float]]

    @property
    def name(self) -> str:
        """The encoding and its extension."""
        return self.pe if self.extend == "none" else f"{self.pe} + {self.extend}"

    def curve(self) -> dict[int, tuple[float, float, float]]:
        """Return the lowest, the mean and the highest score by size; refused sizes are left out."""
        columns = {size: [run[size] for run in self.runs if run.get(size) is not None] for size in self.runs[0]}
        return {at: (min(found), sum(found) / len(found), max(found)) for at, found in columns.items() if found}


class Chart(NamedTuple):
    """A figure.

    Attributes:
        name: name of the file, without suffix.
        title: the title, which says what the lines show.
        lines: the lines.
        colored: names of the lines in color, at most six; empty = all.
        trained: the trained size or length.
        x: label of the x axis.
        y: label of the y axis.
        logarithmic: whether both axes are.
        note: seeds, band and date, below the axes.
        panel: width and height, inches; a narrow figure has larger text on a phone, and long names in two lines.
    """

    name: str
    title: str
    lines: Sequence[Line]
    colored: Sequence[str] = ()
    trained: int = 0
    x: str = ""
    y: str = ""
    logarithmic: bool = False
    note: str = "1 seed"
    panel: tuple[float, float] = (6.4, 4.2)

    @property
    def is_narrow(self) -> bool:
        """Whether long names have two lines."""
        return self.panel[0] < NARROW


def read(file: str) -> list[dict[str, Any]]:
    """Return the lines of a file of results."""
    return [json.loads(line) for line in (HERE / "results" / file).read_text(encoding="utf-8").splitlines()]


def curves(task: str, data: str) -> list[Line]:
    """Return the lines of the tables of one seed."""
    return [
        Line(one["pe"], one["extend"], [{int(at): score for at, score in one["scores"].items()}])
        for one in read("curves.jsonl")
        if (one["task"], one["data"]) == (task, data)
    ]


def extended_images(file: str) -> list[Line]:
    """Return the lines of trainings on glyphs that were evaluated with extensions, over all their seeds."""
    found: dict[tuple[str, str], Line] = {}
    for one in read(file):
        results: Mapping[str, Any] = one["results"]
        if results["data"] == "glyphs":
            key = results["name"], results["extend"]
            found.setdefault(key, Line(*key, [])).runs.append({r["size"]: 100 * r["top1"] for r in results["rows"]})
    return list(found.values())


def charts() -> list[Chart]:
    """Return all figures."""
    of = {data: {line.name: line for line in curves("vit", data)} for data in ("fashion", "glyphs")}
    extended = {line.name: line for line in extended_images("images.jsonl")}
    story = [extended["rope_mixed + pi(stretch=True)"], of["glyphs"]["learned"], of["glyphs"]["alibi"]]
    story.insert(1, extended["rope_mixed"])
    shown = ("cpb", "learned", "transformer_xl", "alibi", "rope_mixed")
    images = {"trained": 28, "x": "image side (pixels)", "y": "top-1 (%)"}
    seeds = "RoPE-Mixed: mean and range of 3 seeds; others: 1 seed"
    short = "rope_mixed, cpb, alibi: mean and range of 3 seeds; others: 1 seed"
    stretched = [
        line for line in extended.values() if line.pe in ("rope_mixed", "cpb", "lookhere") and line.extend != "pi"
    ]
    scaled = [line for line in extended_images("seeds.jsonl") if line.extend == "pi"]
    shown_scaled = [f"{name} + pi" for name in ("rope_mixed", "rope_axial", "cpb", "lookhere", "learned", "alibi")]
    text = {line.name: line for line in curves("lm", "shakespeare")}
    plain = [line for line in text.values() if line.extend == "none" and "DroPE" not in line.pe]
    rope = [line for line in text.values() if line.pe == "rope"]
    shown_text = ("lookhere", "transformer_xl", "alibi", "fire", "rope", "sinusoidal")
    shown_extended = ("rope", *(f"rope + {name}" for name in ("pi", "ntk", "yarn", "self_extend", "rerope")))
    bytes_ = {"trained": 128, "x": "context (bytes)", "y": "perplexity per byte", "logarithmic": True}
    return [
        Chart("story", "Letters, trained at 28 pixels only", story, note=seeds, panel=(4.9, 3.7), **images),
        Chart(
            "vit_fashion", "Fashion-MNIST, trained at 28 pixels", [*of["fashion"].values()], ("fire", *shown), **images
        ),
        Chart("vit_glyphs", "Letters, trained at 28 pixels", [*of["glyphs"].values()], ("lookhere", *shown), **images),
        Chart("vit_glyphs_pi", "Letters, scaled positions", stretched, note=seeds, **images),
        Chart("vit_glyphs_scaled", "Letters, 6 epochs, read with pi", scaled, shown_scaled, note=short, **images),
        Chart("lm_shakespeare", "Shakespeare, trained at 128 bytes", plain, shown_text, **bytes_),
        Chart("lm_extensions", "RoPE, trained at 128 bytes, extended", rope, shown_extended, **bytes_),
    ]


def styles(lines: Sequence[Line]) -> dict[str, LineStyle]:
    """Return the style of each line: the color of its encoding, and a dash for each of its extensions.

    Where all lines are of one encoding, each extension has a color.
    """
    found, one = {}, len({line.pe for line in lines}) == 1
    for line in lines:
        own = LINES.get(line.pe, LineStyle(6, ":", "."))
        extensions = sorted(
            {other.extend for other in lines if other.pe == line.pe}, key=lambda name: (name != "none", name)
        )
        place = extensions.index(line.extend)
        if one:
            own = LineStyle(place % 7, DASHES[place // 7], own.marker)
        elif place:
            own = own._replace(dash=[dash for dash in DASHES if dash != own.dash][place - 1])
        found[line.name] = own
    return found


def draw(chart: Chart, theme: str, path: Path) -> None:
    """Write a figure as SVG, whose text stays text."""
    import matplotlib

    canvas = Canvas(THEMES[theme], panel=chart.panel)
    axes, ink = canvas.panels[0, 0], canvas.theme
    looks = styles(chart.lines)
    if chart.logarithmic:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_yticks([5, 10, 20, 50], ["5", "10", "20", "50"])
    ends = {}
    is_colored = lambda line: not chart.colored or line.name in chart.colored
    for line in sorted(chart.lines, key=is_colored):
        curve, look, colored = line.curve(), looks[line.name], is_colored(line)
        color = ink.lines[look.color] if colored else ink.faint
        low, mean, high = zip(*curve.values(), strict=True)
        if colored and low != high:
            axes.fill_between(list(curve), low, high, color=color, alpha=0.18, linewidth=0)
        shown = {"linewidth": 2.0 if colored else 1.0, "markersize": 4.5 if colored else 0, "alpha": 1.0}
        axes.plot(list(curve), mean, look.dash, color=color, marker=look.marker, zorder=3 if colored else 2, **shown)
        ends[line.name] = (list(curve)[-1], mean[-1], color if colored else ink.ink, colored)
    sizes = sorted({size for line in chart.lines for size in line.curve()})
    ends = {f"{name}{'' if end[0] == sizes[-1] else f' (to {end[0]})'}": end for name, end in ends.items()}
    if chart.is_narrow:
        ends = {name.replace(" + ", "\n+ "): end for name, end in ends.items()}
    ticks = sizes if len(sizes) < 10 else sizes[::2]
    axes.set_xticks(ticks, [f"{size}" for size in ticks])
    axes.minorticks_off()
    axes.axvline(chart.trained, color=ink.faint, linewidth=1.2, linestyle=(0, (2, 2)), zorder=0)
    canvas.grid(axes)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.set(xlabel=chart.x, ylabel=chart.y)
    axes.set_title(chart.title, loc="left", fontsize=12, color=ink.ink)
    axes.text(
        0,
        -0.22 if chart.is_narrow else -0.17,
        chart.note,
        transform=axes.transAxes,
        fontsize=8,
        color=ink.ink,
        alpha=0.75,
    )
    name_ends(axes, ends)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": chart.name, "font.family": "sans-serif"}):
        canvas.figure.savefig(path, format="svg", metadata={"Date": None}, bbox_inches="tight")


def name_ends(axes: Any, ends: Mapping[str, tuple[int, float, str, bool]]) -> None:
    """Write the name of each line at its end, moved apart where two would meet."""
    to_axes = lambda at, y: axes.transAxes.inverted().transform(axes.transData.transform((at, y)))
    axes.figure.canvas.draw()
    placed = sorted((to_axes(at, y)[1], name) for name, (at, y, _, _) in ends.items())
    heights: list[float] = []
    for y, _ in placed:
        heights.append(max(y, heights[-1] + GAP) if heights else y)
    over = max(0.0, heights[-1] - 1.0)
    for i in range(len(heights) - 1, -1, -1):  # those that were pushed out at the top move down again
        above = heights[i + 1] - GAP if i + 1 < len(heights) else heights[i] - over
        heights[i] = min(heights[i], above)
    for (_, name), height in zip(placed, heights, strict=True):
        _, _, color, colored = ends[name]
        size = 9 if colored else 8
        axes.text(1.015, height, name, transform=axes.transAxes, va="center", color=color, fontsize=size)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.figures", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=HERE / "figures", help="folder of the figures")
    out = parser.parse_args(argv).out
    out.mkdir(parents=True, exist_ok=True)
    for chart in charts():
        for theme in THEMES:
            path = out / f"{chart.name}{'' if theme == 'light' else f'-{theme}'}.svg"
            draw(chart, theme, path)
            print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
