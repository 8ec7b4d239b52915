"""The page of a report: one file that is safe, well-formed and readable, and works in a real headless Chromium."""

import dataclasses
import html.parser
import re
from pathlib import Path

import pytest

from pejax import ENCODINGS
from pejax._visualize.style import DASHES, LINES
from tests.support.chromium import in_chromium, needs_chromium
from tests.support.report_runs import lm_run, vit_run
from train.engine.line_styles import COLORS, MARKERS, line_styles, numbered
from train.report import page as paging
from train.report.blocks import Plot, plots
from train.report.charts import SHAPES, draw_chart, styles
from train.report.collect import collect
from train.report.content import Material, document
from train.report.groups import group_runs
from train.report.inside import entropy_section, learned_section
from train.report.markdown import markdown
from train.report.page import page
from train.report.probe_file import Learned, Probe
from train.report.records import Left

VOID = {"meta", "link", "br", "wbr", "hr", "img", "input"}
EVIL = '<script>alert("1")</script>&'


def probe_of(trained: int, largest: int) -> Probe:
    """Return a probe of two layers of two heads, and of frequencies and slopes."""
    entropies = {f"{size}": {"layer": [[0.5, 1.0], [size / 20, 2.0]]} for size in (trained, largest)}
    slopes = Learned("heads/slope", (2,), 0.1, (0.1, 0.2, 0.3), (0.2, 0.3, 0.4), ([0.1, 0.3], [0.2, 0.4]))
    pair = [[[[3.0, 0.5], [4.0, 0.1]]], [[[6.0, 0.5], [8.0, 0.2]]]]
    frequencies = Learned("frequencies", (1, 1, 2, 2), 1.0, (0.1, 1.0, 4.0), (0.2, 2.0, 8.0), tuple(pair))
    return Probe(30, 1000, 10, 10**9, 2**28, trained, entropies, {}, (slopes, frequencies))


def material(folder: Path) -> Material:
    """Return what a report of images and of text is made from, with names that try to be HTML."""
    for seed in (0, 1):
        for place, pe in enumerate(("none", "learned", "rope_mixed", "alibi", EVIL)):
            scores = {12: 20 + place + seed, 28: 60 - place, 64: 90 - 10 * place}
            vit_run(folder / f"vit-{place}-{seed}", pe, seed, scores)
    lm_run(folder / "rope", "rope", 0, {64: 1.0, 128: 1.0, 2048: 4.0})
    lm_run(folder / "learned", "learned", 0, {64: 1.1, 128: 0.9, 2048: "too long"})
    collection = collect([folder])
    groups, twice = group_runs(collection.runs)
    probes = {folder / "vit-2-0": probe_of(28, 64), folder / "rope": probe_of(128, 2048)}
    omissions = (Left(f"runs/{EVIL}", "a | b"), *collection.left, *twice)
    return Material(("runs",), tuple(groups), omissions, probes, {"runs/none": "it has no checkpoint"}, "today")


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> tuple[Material, str]:
    """A report and its page."""
    contents = material(tmp_path_factory.mktemp("runs"))
    return contents, page(document(contents))


class Reader(html.parser.HTMLParser):
    """Reads a page and notes what is not well-formed, its ids, links and the levels of its headings."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.named: list[str] = []
        self.links: list[str] = []
        self.levels: list[int] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.open += [] if tag in VOID else [tag]
        self.scripts += tag == "script"
        self.ids += [attributes["id"] or ""] if "id" in attributes else []
        self.named += (attributes.get("aria-labelledby") or "").split()
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "xlink:href", "action")]
        self.levels += [int(tag[1])] if re.fullmatch("h[1-6]", tag) else []
        assert not [name for name in attributes if name.startswith("on")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_complete(report):
    reader = Reader()
    reader.feed(report[1])
    assert reader.open == []
    assert len(set(reader.ids)) == len(reader.ids)
    assert set(reader.named) <= set(reader.ids)
    assert {link[1:] for link in reader.links if link.startswith("#")} <= set(reader.ids)
    assert reader.levels[0] == 1
    assert all(after - before <= 1 for before, after in zip(reader.levels, reader.levels[1:], strict=False))


def test_the_page_needs_no_network(report):
    reader = Reader()
    reader.feed(report[1])
    assert all(link.startswith(("#", "data:")) for link in reader.links)
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest", report[1])
    assert "default-src 'none'" in report[1]


def test_names_are_shown_and_never_run(report):
    reader = Reader()
    reader.feed(report[1])
    assert reader.scripts == 1
    assert "<script>alert" not in report[1]
    assert "&lt;script&gt;alert(&#34;1&#34;)&lt;/script&gt;&amp;" in report[1]
    text = markdown(document(report[0]), "report")
    assert "<script>" not in text
    assert "a \\| b" in text


def test_every_table_has_a_caption_headers_and_sort_buttons(report):
    for table in re.findall(r"<table>.*?</table>", report[1], re.S):
        assert "<caption" in table
        heads = re.findall(r'<th scope="col".*?</th>', table, re.S)
        assert heads
        assert all('aria-sort="none"' in head and "<button" in head for head in heads)
        rows = re.findall(r"<tr>.*?</tr>", table.partition("<tbody>")[2], re.S)
        assert all(len(re.findall(r"<t[hd]", row)) == len(heads) for row in rows)
        assert all('<th scope="row"' in row for row in rows)


def luminance(color: str) -> float:
    """Return the relative luminance of `#rrggbb`, as WCAG 2.2 defines it."""
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_contrast_is_that_of_wcag():
    themes = re.findall(r":root[^{]*\{([^}]*)\}", (paging.TEMPLATES / "page.css").read_text())
    assert len(themes) == 3
    assert themes[1].split() == themes[2].split()  # dark by the system, and dark by choice
    for theme in themes:
        colors = {name: luminance(color) for name, color in re.findall(r"--(\w+): (#\w{6});", theme)}
        ratio = lambda a, b: (max(a, b) + 0.05) / (min(a, b) + 0.05)
        for ground in ("paper", "panel"):
            assert all(ratio(colors[name], colors[ground]) >= 4.5 for name in ("ink", "soft", "link", "trained"))
            assert all(ratio(colors[f"p{i}"], colors[ground]) >= 3.0 for i in range(len(COLORS)))


def test_curves_are_told_apart_without_color():
    assert len(SHAPES) == len(MARKERS)
    count = len(COLORS) * len(DASHES)
    assert len({styles(numbered(i)) for i in range(count)}) == count
    assert len({styles(numbered(i))[1:] for i in range(len(MARKERS))}) == len(MARKERS)
    labels = [*ENCODINGS, "rope + pi", "rope + yarn", "alibi(slope_scale=2)", "learned+rope", "mine:own", "cosine"]
    looks = dict(zip(labels, line_styles(labels), strict=True))
    assert len({styles(look)[1:] for look in looks.values() if look.color == 0}) >= 5  # all in the color of RoPE
    assert len(set(looks.values())) == len(labels)
    assert all(looks[name] == look for name, look in LINES.items() if name in looks)
    assert {looks[name].color for name in ("rope", "rope + pi", "rope + yarn")} == {LINES["rope"].color}
    css = (paging.TEMPLATES / "page.css").read_text()
    assert all(f".c{i} " in css for i in range(len(COLORS)))
    assert all(f".d{i} " in css for i in range(1, len(DASHES)))


@pytest.mark.parametrize("narrow", [True, False])
def test_charts_keep_inside_their_frames(narrow, report):
    sections = document(report[0]).sections
    all_plots = [plot for section in sections for plot in plots(section)]
    assert {plot.kind for plot in all_plots} == {"curves", "scatter", "strips"}
    for plot in all_plots:
        chart = draw_chart(plot, narrow=narrow)
        frame = chart.frame
        assert 0 < frame.left < frame.right <= frame.width
        for line in chart.lines:
            for x, y, _ in line.marks:
                assert frame.left - 12 <= x <= frame.right + 12
                assert frame.top - 12 <= y <= frame.bottom + 12
        for ticks in (chart.x_ticks, chart.y_ticks):
            assert len({text for _, text in ticks}) == len(ticks)
        if chart.mark:
            assert [text for at, text in chart.x_ticks if abs(at - chart.mark[0]) < 0.5] == [plot.mark[1].split()[-1]]


def test_learned_parameters_and_entropies_are_those_of_the_probe(report):
    (images, _), probes = report[0].groups, report[0].probes
    section = learned_section(images, probes, {}, "learned")
    slopes, frequencies = (block for block in section.blocks if isinstance(block, Plot))
    assert [(p.x, p.y) for p in slopes.curves[0].points] == [(0.1, 0.2), (0.3, 0.4)]
    assert [(p.x, p.y) for p in frequencies.curves[0].points] == [(3.0, 6.0), (0.5, 0.5), (4.0, 8.0), (0.1, 0.2)]
    assert "one component of one frequency" in frequencies.caption
    section = entropy_section(images, probes, {"x": "no checkpoint"}, "entropy")
    plot = next(block for block in section.blocks if isinstance(block, Plot))
    assert [(p.x, p.y) for p in plot.curves[0].points][:3] == [(0.5, 0), (1.0, 0), (28 / 20, 0)]
    assert [p.y for p in plot.curves[0].points] == [0] * 4 + [1] * 4
    assert "alibi, learned, none: the weights were not read" in section.blocks[-1]


def test_a_size_whose_entropy_was_refused_is_named(report):
    images = report[0].groups[0]
    folder = next(iter(report[0].probes))
    refused = dataclasses.replace(probe_of(28, 64), entropies={}, refused={"64": "no"})
    section = entropy_section(images, {folder: refused}, {}, "entropy")
    assert section.blocks[0] == "Not measured: rope_mixed at 64: no."


# In Chromium


CLICKS = """
const one = (query) => document.querySelector(query);
const seen = (element) => getComputedStyle(element).display !== "none";
const curve = () => [...document.querySelectorAll("#s1-1 .big [data-series='2-^'], #s1-loss .big [data-series='2-^']")];
const toggle = one("#s1-1 .toggle[data-series='2-^']");
found.enabled = !toggle.disabled;
found.before = curve().map(seen);
toggle.click();
found.off = [toggle.getAttribute("aria-pressed"), ...curve().map(seen), one("#said").textContent];
toggle.click();
found.on = [toggle.getAttribute("aria-pressed"), ...curve().map(seen)];
one("#s1-1 .none").click();
found.none = [...document.querySelectorAll("#s1-1 .big [data-series]")].filter(seen).length;
one("#s1-1 .every").click();
found.every = [...document.querySelectorAll("#s1-1 .big [data-series]")].filter(seen).length;
const table = one("#s1 table");
const order = () => [...table.tBodies[0].rows].map((row) => row.cells[0].textContent.slice(0, 5));
const head = table.tHead.rows[0].cells[4];
const sort = head.querySelector("button");
sort.click();
found.ascending = [head.getAttribute("aria-sort"), ...order()];
sort.click();
found.descending = [head.getAttribute("aria-sort"), ...order()];
const name = table.tHead.rows[0].cells[0];
name.querySelector("button").click();
found.named = [name.getAttribute("aria-sort"), head.getAttribute("aria-sort"), ...order()];
const ground = () => getComputedStyle(document.body).backgroundColor;
found.grounds = ["light", "dark"].map((theme) => { one(`.theme[data-theme=${theme}]`).click(); return ground(); });
found.alerts = typeof window.evil;
"""


@needs_chromium
def test_curves_toggle_and_tables_sort_in_chromium(report, tmp_path):
    state = in_chromium(report[1], CLICKS, tmp_path)
    evil = EVIL[:5]
    assert state["enabled"]
    assert state["before"] == [True, True]
    assert state["off"] == ["false", False, False, "alibi hidden"]
    assert state["on"] == ["true", True, True]
    assert (state["none"], state["every"]) == (0, 5)
    assert state["ascending"] == ["ascending", evil, "alibi", "rope_", "learn", "none"]
    assert state["descending"] == ["descending", "none", "learn", "rope_", "alibi", evil]
    assert state["named"] == ["ascending", "none", evil, "alibi", "learn", "none", "rope_"]
    assert state["grounds"] == ["rgb(255, 255, 255)", "rgb(22, 24, 29)"]


FIT = """
const root = document.documentElement;
found.width = window.innerWidth;
found.over = root.scrollWidth - window.innerWidth;
found.charts = [...document.querySelectorAll("svg.chart")].filter((svg) => svg.getClientRects().length).map(
  (svg) => svg.classList[1]);
found.buttons = [...document.querySelectorAll("main .legend button")].map((b) => b.getBoundingClientRect().height);
"""


@needs_chromium
@pytest.mark.parametrize(("width", "size"), [pytest.param(1280, "big", marks=pytest.mark.slow), (500, "small")])
def test_the_page_fits_a_desktop_and_a_phone_in_chromium(width, size, report, tmp_path):
    state = in_chromium(report[1], FIT, tmp_path, f"--window-size={width},900")
    assert state["width"] == width
    assert state["over"] <= 0
    assert set(state["charts"]) == {size}
    assert min(state["buttons"]) >= 24  # WCAG 2.2, target size


PRINT = """
const count = () => document.querySelectorAll("details:not([open])").length;
found.before = count();
window.dispatchEvent(new Event("beforeprint"));
found.printed = count();
window.dispatchEvent(new Event("afterprint"));
found.after = count();
"""


@needs_chromium
@pytest.mark.slow
def test_everything_is_open_in_print_in_chromium(report, tmp_path):
    state = in_chromium(report[1], PRINT, tmp_path)
    assert state["before"] == state["after"] > 0
    assert state["printed"] == 0


@needs_chromium
def test_the_page_is_read_without_scripts_in_chromium(report, tmp_path):
    quiet = re.sub(r"<script>.*?</script>", "", report[1], flags=re.S)
    script = """
    found.curves = document.querySelectorAll("#s1-1 .big .line").length;
    found.rows = document.querySelector("#s1 table").tBodies[0].rows.length;
    found.disabled = [...document.querySelectorAll("button")].every((button) => button.disabled);
    """
    assert in_chromium(quiet, script, tmp_path) == {"curves": 5, "rows": 5, "disabled": True}
