"""Texts of a report, which may come from anybody: unprintable characters are replaced, long texts shortened."""

import hashlib
from typing import TypeVar

from train.report.blocks import Cell, Curve, Document, Plot, Point

LONGEST = 4000
"""Most characters of a text."""

SHORT: dict[type, int] = {Cell: 400, Point: 400, Curve: 100}
"""Most characters of a text in these."""

DRAWN = 40
"""Most curves of a plot."""

UNKNOWN = "\N{REPLACEMENT CHARACTER}"

Block = TypeVar("Block")


def plain(text: str, most: int = LONGEST) -> str:
    """Return a text on one line, without characters that change how others are shown: controls, marks of direction.

    Args:
        text: any, also one with half of a surrogate pair, as the names of files may have.
        most: characters; a longer text keeps its ends, and a digest that tells it from others.
    """
    if len(text) > most:
        digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:8]
        text = f"{text[: most // 2]} ...{digest}... {text[-(most // 4) :]}"
    line = " ".join(text.split())
    return line if line.isprintable() else "".join(symbol if symbol.isprintable() else UNKNOWN for symbol in line)


def clean(document: Document) -> Document:
    """Return a report in which every text is plain, and no plot has more curves than can be told apart."""
    return _clean(document, LONGEST)


def _clean(block: Block, most: int) -> Block:
    """Return a block, or a part of one, with plain texts."""
    if isinstance(block, str):
        return plain(block, most)
    if not isinstance(block, tuple):
        return block
    if isinstance(block, Plot) and len(block.curves) > DRAWN:
        caption = f"{block.caption} The first {DRAWN} of {len(block.curves):,} are drawn; the tables have all."
        return _clean(block._replace(curves=block.curves[:DRAWN], caption=caption), most)
    parts = (_clean(part, SHORT.get(type(block), most)) for part in block)
    return type(block)(*parts) if hasattr(block, "_fields") else type(block)(parts)  # pyright: ignore
