"""Texts in Markdown files: names of runs, encodings and data are shown as they are, whatever they contain."""

import re

from pejax._process.text import printable

ACTIVE = re.compile(
    r"""
    (?P<list>\[(?:[^\W_]|(?<=[^\W_])_(?=[^\W_])|[ ,.'"()=-])*\](?![(\[:]))  # [0, 1], which stays
    | [<`|$\[\]]                         # HTML, code, cells, formulas, links and images
    | &(?=\#?\w+;)                       # entities
    | \\(?=[!-/:-@\[-`{-~]|$)            # a backslash, which would undo the one before the next character
    | \*(?!(?<=\s\*)\s)                  # emphasis, but no asterisk alone between spaces
    | (?<![^\W_])_ | _(?![^\W_])         # emphasis, but no underscore inside a word
    | ~(?=~) | (?<=~)~                   # text that is crossed out, and fences of code
    | ^(?:\#|>|[-+](?=\s))               # at the begin of a text, heads, quotations and lists
    """,
    re.VERBOSE,
)
"""Characters that Markdown, as GitHub reads it, could take for more than themselves."""

ENTITIES = {"<": "&lt;", "&": "&amp;"}


def escape_markdown(text: str) -> str:
    """Return a text on one line, of which Markdown shows every character; ordinary names stay as they are."""
    line = printable(" ".join(text.split()))
    return ACTIVE.sub(lambda match: match["list"] or ENTITIES.get(match[0], f"\\{match[0]}"), line)
