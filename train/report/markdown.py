"""The report as markdown, with its plots as image files beside it."""

from train.report.blocks import Cell, Document, Plot, Section, Table


def markdown(document: Document, stem: str) -> str:
    """Return the markdown of a document; the image of a plot is the file `STEM-NAME.png` beside it."""
    parts = [f"# {_text(document.title)}", *(f"**{_text(one)}**" for one in document.outcomes), _text(document.lead)]
    for section in document.sections:
        parts += _section(section, 2, stem)
    return "\n\n".join([*parts, _text(document.footer)]) + "\n"


def _section(section: Section, level: int, stem: str) -> list[str]:
    parts = [f"{'#' * level} {_text(section.title)}"]
    for block in section.blocks:
        if isinstance(block, Section):
            parts += _section(block, level + 1, stem)
        elif isinstance(block, Table):
            parts += [_text(block.caption), _table(block)]
        elif isinstance(block, Plot):
            parts += [f"![{_text(block.title)}](<{stem}-{block.name}.png>)", _text(block.caption)]
        else:
            parts.append(_text(block))
    return parts


def _table(table: Table) -> str:
    heads = [f"**{_text(head)}**" if i in table.strong else _text(head) for i, head in enumerate(table.heads)]
    rule = "|".join("---" if i in table.worded else "---:" for i in range(len(heads)))
    lines = [f"| {' | '.join(heads)} |", f"|{rule}|"]
    lines += [f"| {' | '.join(map(_cell, row))} |" for row in table.rows]
    return "\n".join(lines)


def _cell(cell: Cell) -> str:
    text = _text(cell.text)
    return f"**{text}**" if cell.strong and text else text


def _text(text: str) -> str:
    """Return a text on one line, in which nothing is read as HTML or as a column of a table."""
    return " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
