"""The report as markdown, with its plots as image files beside it."""

from train.engine.markdown import escape_markdown
from train.report.blocks import Cell, Document, Plot, Section, Table


def markdown(document: Document, stem: str) -> str:
    """Return the markdown of a document; the image of a plot is the file `STEM-NAME.png` beside it."""
    outcomes = [f"**{escape_markdown(outcome)}**" for outcome in document.outcomes]
    parts = [f"# {escape_markdown(document.title)}", *outcomes, escape_markdown(document.lead)]
    for section in document.sections:
        parts += _section(section, 2, stem)
    return "\n\n".join([*parts, escape_markdown(document.footer)]) + "\n"


def _section(section: Section, level: int, stem: str) -> list[str]:
    parts = [f"{'#' * level} {escape_markdown(section.title)}"]
    for block in section.blocks:
        if isinstance(block, Section):
            parts += _section(block, level + 1, stem)
        elif isinstance(block, Table):
            parts += [escape_markdown(block.caption), _table(block)]
        elif isinstance(block, Plot):
            parts += [f"![{escape_markdown(block.title)}](<{stem}-{block.name}.png>)", escape_markdown(block.caption)]
        else:
            parts.append(escape_markdown(block))
    return parts


def _table(table: Table) -> str:
    texts = map(escape_markdown, table.heads)
    heads = [f"**{text}**" if i in table.strong else text for i, text in enumerate(texts)]
    rule = "|".join("---" if i in table.worded else "---:" for i in range(len(heads)))
    lines = [f"| {' | '.join(heads)} |", f"|{rule}|"]
    lines += [f"| {' | '.join(map(_cell, row))} |" for row in table.rows]
    return "\n".join(lines)


def _cell(cell: Cell) -> str:
    text = escape_markdown(cell.text)
    return f"**{text}**" if cell.strong and text else text
