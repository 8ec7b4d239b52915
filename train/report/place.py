"""The files of a report: a page, markdown and figures, which replace an earlier report and nothing else."""

import os
import stat
from pathlib import Path

from train.report.content import TITLE

HEAD = 4096
"""Bytes at the beginning of a file by which it is known."""

OWN = {
    ".html": f"<title>{TITLE}</title>",
    ".htm": f"<title>{TITLE}</title>",
    ".md": f"# {TITLE}\n",
    ".png": "Matplotlib",  # what draws the figures writes its name into them
}
"""Text at the beginning of a file of a report, by its suffix."""


def page_path(text: str) -> Path:
    """Return the path of the page.

    Raises:
        ValueError: it is a folder, ends in something else than .html, or would replace a file that is no report's.
    """
    path = Path(text)
    if path.suffix.lower() not in (".html", ".htm") or path.is_dir():
        raise ValueError(f"out must name a file that ends in .html, got {text!r}")
    for file in (path, path.with_suffix(".md")):
        require_replaceable(file)
    return path


def require_replaceable(path: Path) -> None:
    """Check that there is no file, or one that `train.report` wrote.

    Raises:
        ValueError: there is another one.
    """
    try:
        kind = os.stat(path).st_mode
    except OSError:  # whether it can be written is found out later
        return
    head = b""
    if stat.S_ISREG(kind):
        with path.open("rb") as file:
            head = file.read(HEAD)
    begin = OWN[path.suffix.lower()].encode()
    if not (head.startswith(begin) if path.suffix == ".md" else begin in head):
        raise ValueError(f"out must not replace a file that train.report did not write, got {path}: give another --out")
