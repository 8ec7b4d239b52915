"""The frame of every page: one HTML text with its style, controls, panels, numbers and script."""

import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pejax._visualize.style import THEMES, Theme

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""The browser fetches nothing for a page."""


class Page(str):
    """HTML of a page, a `str` that notebooks show in a frame."""

    def _repr_html_(self) -> str:
        style = "width: 100%; height: 46rem; border: 0"  # the script gives the frame the height of the page
        return f'<iframe srcdoc="{html.escape(self)}" title="A page to play with" style="{style}"></iframe>'

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text("A page to play with, which is not shown here.")


def _file(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def _colors(theme: str, colors: Theme) -> str:
    lines = "".join(f"--line{i}: {color}; " for i, color in enumerate(colors.lines))
    named = f"--ink: {colors.ink}; --faint: {colors.faint}; --paper: {colors.paper}; --mark: {colors.mark}; "
    return f"{named}{lines}color-scheme: {theme};"


def _style() -> str:
    """Return the style sheet, in the colors of the pictures, for light and dark."""
    light, dark = (_colors(theme, colors) for theme, colors in THEMES.items())
    by_system = f"@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"
    chosen = f":root[data-theme='light'] {{ {light} }} :root[data-theme='dark'] {{ {dark} }}"
    return f":root {{ {light} }}\n{by_system}\n{chosen}\n{_file('frame.css')}"


def slider(
    name: str, label: str, ends: tuple[float, float], value: float, *, step: float = 1, shown: str | None = None
) -> str:
    """Return a slider with buttons for single steps.

    Args:
        name: its id.
        label: what it sets.
        ends: the least and the largest value.
        value: the first value.
        step: from one value to the next.
        shown: how the first value is written; None = as the number that it is.
    """
    button = lambda sign, way: (
        f'<button type="button" data-of="{name}" data-way="{way}" aria-label="{label}, one step {way}">{sign}</button>'
    )
    box = f'<input type="range" id="{name}" min="{ends[0]}" max="{ends[1]}" step="{step}" value="{value}">'
    title = f'<label for="{name}">{label}</label> <output for="{name}" id="{name}-shown">{shown or value}</output>'
    return f'<div class="control wide">{title}<span>{button("−", "down")}{box}{button("+", "up")}</span></div>'


def choice(name: str, label: str, options: Mapping[str, str], chosen: str) -> str:
    """Return a list of options, from value to label."""
    items = "".join(
        f'<option value="{value}"{" selected" * (value == chosen)}>{text}</option>' for value, text in options.items()
    )
    return f'<div class="control"><label for="{name}">{label}</label><select id="{name}">{items}</select></div>'


def panel(name: str, caption: str, still: str = "", *, size: tuple[int, int] = (360, 230)) -> str:
    """Return a figure; one without a still is hidden until the script draws it."""
    hidden = "" if still else " hidden"
    drawing = f'<svg id="{name}" viewBox="0 0 {size[0]} {size[1]}" role="img" aria-labelledby="{name}-caption">'
    return f'<figure{hidden}>{drawing}{still}</svg><figcaption id="{name}-caption">{caption}</figcaption></figure>'


def page(
    title: str, text: str, *, controls: Sequence[str], panels: Sequence[str], still: str, script: str, data: Any
) -> Page:
    """Return the HTML of a page.

    Args:
        title: heading.
        text: what the page shows, HTML.
        controls: `slider` and `choice`.
        panels: figures, by `panel`.
        still: what the pictures show where scripts do not run.
        script: name of the script file.
        data: numbers that the script reads, JSON.
    """
    numbers = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return Page(f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{html.escape(title)}</title>
<style>
{_style()}</style>
</head>
<body>
<main aria-labelledby="heading">
<h1 id="heading">{html.escape(title)}</h1>
<p>{text}</p>
<p id="missing">The controls need scripts, which do not run here. {still}</p>
<form><fieldset disabled>
{"".join(controls)}
</fieldset></form>
<p id="said"></p>
<div id="panels">
{"".join(panels)}
</div>
</main>
<script type="application/json" id="data">{numbers}</script>
<script>
{_file("frame.js")}{_file(script)}</script>
</body>
</html>
""")


def polyline(points: Sequence[tuple[float, float]], kind: str) -> str:
    """Return a line of a still."""
    return f'<path class="{kind}" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in points)}"/>'
