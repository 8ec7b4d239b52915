"""Two pictures of docs/gallery.md: when the methods appeared, and which came from which."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from pejax._visualize.style import SMALL, THEMES, Axes, Canvas, Figure, Theme


class Method(NamedTuple):
    """One published method.

    Attributes:
        name: name of the method.
        year: year of the first version.
        month: month of the first version.
        acts: part of the model that it changes, one of `KINDS`.
        source: authors and place of publication.
        parents: names of the methods that it builds on, the nearest first.
        here: name in this library, "" = it is not there.
    """

    name: str
    year: int
    month: int
    acts: str
    source: str
    parents: tuple[str, ...] = ()
    here: str = ""


KINDS = ("input", "logits", "queries and keys", "frequencies, positions or slopes", "nothing")
MARKERS = ("o", "s", "D", "^", "X")

# The date is that of the first arXiv version, which its number gives; elsewhere of the post.
METHODS = (
    Method("learned table", 2017, 5, "input", "Gehring et al., arXiv 1705.03122", (), "learned"),
    Method("sinusoid", 2017, 6, "input", "Vaswani et al., arXiv 1706.03762", (), "sinusoidal"),
    Method("Shaw", 2018, 3, "logits", "Shaw et al., arXiv 1803.02155", ("learned table",), "shaw"),
    Method("Transformer-XL", 2019, 1, "logits", "Dai et al., arXiv 1901.02860", ("Shaw", "sinusoid"), "transformer_xl"),
    Method("T5 bias", 2019, 10, "logits", "Raffel et al., arXiv 1910.10683", ("Shaw",), "t5"),
    Method("powers of two", 2020, 3, "input", "Mildenhall et al., arXiv 2003.08934", ("sinusoid",), "fourier"),
    Method("random Fourier features", 2020, 6, "input", "Tancik et al., arXiv 2006.10739",
           ("powers of two",), "fourier"),
    Method("table of a grid", 2020, 10, "input", "Dosovitskiy et al., arXiv 2010.11929", ("learned table",), "learned"),
    Method("relative table", 2021, 3, "logits", "Liu et al., arXiv 2103.14030", ("Shaw",), "relative_table"),
    Method("RoPE", 2021, 4, "queries and keys", "Su et al., arXiv 2104.09864", ("sinusoid",), "rope"),
    Method("learned Fourier features", 2021, 6, "input", "Li et al., arXiv 2106.02795",
           ("random Fourier features",), "fourier"),
    Method("ALiBi", 2021, 8, "logits", "Press et al., arXiv 2108.12409", ("T5 bias",), "alibi"),
    Method("continuous position bias", 2021, 11, "logits", "Liu et al., arXiv 2111.09883", ("relative table",), "cpb"),
    Method("log-n scaling", 2021, 12, "queries and keys", "Su, kexue.fm 8823", (), "log_n"),
    Method("KERPLE", 2022, 5, "logits", "Chi et al., arXiv 2205.09921", ("ALiBi",), "kerple"),
    Method("xPos", 2022, 12, "queries and keys", "Sun et al., arXiv 2212.10554", ("RoPE",)),
    Method("NoPE", 2023, 5, "nothing", "Kazemnejad et al., arXiv 2305.19466", (), "none"),
    Method("position interpolation", 2023, 6, KINDS[3], "Chen et al., arXiv 2306.15595", ("RoPE",), "linear"),
    Method("NTK-aware", 2023, 6, KINDS[3], "bloc97, reddit.com", ("position interpolation",), "ntk"),
    Method("dynamic NTK", 2023, 7, KINDS[3], "emozilla, reddit.com", ("NTK-aware",), "dynamic_ntk"),
    Method("ReRoPE", 2023, 8, "queries and keys", "Su, kexue.fm 9708", ("RoPE",), "rerope"),
    Method("YaRN", 2023, 9, KINDS[3], "Peng et al., arXiv 2309.00071", ("NTK-aware", "log-n scaling"), "yarn"),
    Method("FIRE", 2023, 10, "logits", "Li et al., arXiv 2310.04418", ("KERPLE",), "fire"),
    Method("slope scaling", 2023, 10, KINDS[3], "Al-Khateeb et al., arXiv 2310.13017",
           ("ALiBi", "position interpolation"), "slopes"),
    Method("ALiBi on images", 2023, 11, "logits", "Fuller et al., arXiv 2311.00566", ("ALiBi",), "alibi"),
    Method("Self-Extend", 2024, 1, "queries and keys", "Jin et al., arXiv 2401.01325", ("ReRoPE",), "self_extend"),
    Method("LongRoPE", 2024, 2, KINDS[3], "Ding et al., arXiv 2402.13753", ("YaRN",), "longrope"),
    Method("Resonance RoPE", 2024, 3, KINDS[3], "Wang et al., arXiv 2403.00071", ("YaRN",), "resonance"),
    Method("axial RoPE for ViT", 2024, 3, "queries and keys", "Heo et al., arXiv 2403.13298", ("RoPE",), "rope_axial"),
    Method("RoPE-Mixed", 2024, 3, "queries and keys", "Heo et al., arXiv 2403.13298",
           ("axial RoPE for ViT",), "rope_mixed"),
    Method("LookHere", 2024, 5, "logits", "Fuller et al., arXiv 2405.13985", ("ALiBi on images",), "lookhere"),
    Method("time-aware scaling", 2024, 6, KINDS[3], "Zhuo et al., arXiv 2406.18583", ("NTK-aware",), "by_step"),
    Method("Llama 3.1", 2024, 7, KINDS[3], "Grattafiori et al., arXiv 2407.21783", ("YaRN",), "llama3"),
    Method("HoPE", 2024, 10, KINDS[3], "Chen et al., arXiv 2410.21216", ("RoPE",), "hard_clip"),
    Method("RIFLEx", 2025, 2, KINDS[3], "Zhao et al., arXiv 2502.15894", ("NTK-aware", "YaRN"), "riflex"),
    Method("Llama 4 scaling", 2025, 4, "queries and keys", "Meta, llama.com", ("log-n scaling",), "llama4"),
    Method("DroPE", 2025, 12, "nothing", "arXiv 2512.12167", ("NoPE", "RoPE")),
    Method("soft clipping", 2026, 2, KINDS[3], "arXiv 2602.05258", ("HoPE",), "soft_clip"),
)  # fmt: skip


def draw_timeline(theme: Theme = THEMES["light"]) -> Figure:
    """Draw when each method appeared, by the date of its first version, and the part of the model that it changes.

    Learned tables came before the sinusoid, by a month; Shaw's relative positions in 2018; T5's bias in 2019; RoPE in
    April 2021, four months before ALiBi.
    """
    ordered = sorted(METHODS, key=lambda method: (method.year, method.month))
    canvas = Canvas(theme, panel=(8.0, 0.28 * len(ordered) + 1.0))
    axes = canvas.panels[0, 0]
    begin = min(method.year for method in ordered)
    for row, method in enumerate(ordered):
        at, kind = method.year + (method.month - 0.5) / 12, KINDS.index(method.acts)
        axes.plot([begin, at], [row, row], color=theme.faint, linewidth=0.6, zorder=0)
        axes.plot(at, row, MARKERS[kind], markersize=6, color=theme.lines[kind])
        late = at > 2022.3
        text = f"{method.year}-{method.month:02d}  {method.source}"
        _note(axes, text, (at, row), -8 if late else 8, theme, 0.6, ha="right" if late else "left", fontsize=SMALL)
    axes.set_yticks(range(len(ordered)), [method.name for method in ordered])
    axes.invert_yaxis()
    axes.set(xlabel="year of the first version", title="methods by date", xlim=(begin, 2026.4))
    axes.set_xticks(range(begin, 2027))
    canvas.grid(axes)
    _legend_of_kinds(canvas, axes, MARKERS)
    return canvas.figure


def _note(axes: Axes, text: str, at: tuple[float, int], right: float, theme: Theme, pad: float, **style: Any) -> None:
    """Write a text beside a point, so many typographic points to the right of it."""
    box = {"facecolor": theme.paper, "edgecolor": "none", "pad": pad}
    options = {"textcoords": "offset points", "va": "center", "color": theme.ink, "bbox": box, **style}
    axes.annotate(text, at, xytext=(right, 0), **options)


def _legend_of_kinds(canvas: Canvas, axes: Axes, markers: Sequence[str]) -> None:
    for kind, color, marker in zip(KINDS, canvas.theme.lines, markers, strict=False):
        axes.plot([], [], marker, color=color, label=kind)
    canvas.legend(axes, loc="upper right", title="acts on", title_fontsize=SMALL)
    axes.get_legend().get_title().set_color(canvas.theme.ink)


def _in_tree_order() -> list[tuple[Method, int]]:
    """Return the methods with the depth of each, every one below its nearest parent."""

    def below(parent: str | None, depth: int) -> list[tuple[Method, int]]:
        found = []
        for method in METHODS:
            if (method.parents[0] if method.parents else None) == parent:
                found += [(method, depth), *below(method.name, depth + 1)]
        return found

    return below(None, 0)


def draw_family_tree(theme: Theme = THEMES["light"]) -> Figure:
    """Draw which method came from which: a line from each to its nearest parent, a dotted one from a second parent.

    The parents are the methods that the papers say they build on or compare with.
    """
    ordered = _in_tree_order()
    place = {method.name: (depth, row) for row, (method, depth) in enumerate(ordered)}
    canvas = Canvas(theme, panel=(8.0, 0.29 * len(ordered) + 0.8))
    axes = canvas.panels[0, 0]
    for method, depth in ordered:
        row, color = place[method.name][1], theme.lines[KINDS.index(method.acts)]
        for i, parent in enumerate(method.parents):
            x, y = place[parent]
            if i == 0:
                axes.plot([x, x, depth], [y, row, row], color=theme.faint, linewidth=1.2, zorder=0)
            else:
                bend = {"arrowstyle": "-", "linestyle": ":", "color": color, "linewidth": 1.2, "zorder": 0}
                bend["connectionstyle"] = "arc3,rad=-0.25"
                axes.annotate("", xy=(depth, row), xytext=(x, y), arrowprops=bend)
        axes.plot(depth, row, "o", markersize=7, color=color)
        label = f"{method.name}, {method.year}" + (f"  ({method.here})" if method.here else "")
        _note(axes, label, (depth, row), 9, theme, 0.4, fontsize=SMALL)
    deepest = max(depth for _, depth in ordered)
    axes.set(xlim=(-0.3, deepest + 1.9), title="which method came from which; (its name here)")
    axes.set_ylim(len(ordered) - 0.3, -0.7)
    axes.set_axis_off()
    _legend_of_kinds(canvas, axes, "o" * len(KINDS))
    return canvas.figure
