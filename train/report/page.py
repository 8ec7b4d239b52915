"""The page: a document -> one HTML file that needs nothing else, by the templates beside this module.

Jinja escapes every text: names of folders and encodings are shown as they are, whatever they contain.
"""

import re
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from train.report.blocks import Cell, Document, Plot, Section, Table
from train.report.charts import SHAPES, draw_chart, styles

TEMPLATES = Path(__file__).parent / "templates"

MANY = 400
"""Number of rows from which a table is folded on the page, whatever it says itself."""


def page(document: Document) -> str:
    """Return the HTML of a document."""
    loader = jinja2.FileSystemLoader(TEMPLATES)
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.tests.update(
        text=lambda block: isinstance(block, str),
        table=lambda block: isinstance(block, Table),
        plot=lambda block: isinstance(block, Plot),
        section=lambda block: isinstance(block, Section),
    )
    environment.filters.update(sort_key=sort_key, breakable=breakable)
    raw = lambda name: Markup((TEMPLATES / name).read_text(encoding="utf-8"))  # our own files, not data
    return environment.get_template("page.html").render(
        document=document, drawn=draw_chart, styles=styles, shapes=SHAPES, many=MANY, css=raw("page.css"),
        script=raw("page.js"),
    )  # fmt: skip


def breakable(text: str) -> Markup:
    """Return a text, escaped, that a narrow screen may break before "(" and after "_", "," and "/"."""
    return Markup(re.sub(r"(?=\()|(?<=[_,/])", "<wbr>", f"{escape(text)}"))


def sort_key(cell: Cell) -> str:
    """Return the sort key of a cell as an attribute: a number, a text, or nothing, which comes last."""
    return "" if cell.key is None else f"{cell.key}"
