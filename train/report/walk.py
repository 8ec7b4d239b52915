"""The folders below the given ones, within limits: a tree may come from somebody else, and may be the whole disk."""

import fnmatch
import itertools
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from train.engine.run_files import MODEL

DEEPEST, FOLDERS, ENTRIES = 16, 10_000, 20_000
"""Most levels below a given folder, folders in all, and entries of one folder that are looked at."""

COMPARISON, RUN = "results.jsonl", "config.json"
"""Files by which a comparison and a run are known."""

PARTS = ("checkpoints", "tensorboard", "profile", "offending-*", ".*")
"""Folders inside a run folder, which hold no runs."""

RUNS, LEVELS = ("runs", "sweep"), 2
"""Folders of a comparison that hold its runs, and the levels below a comparison that they take."""


class Place(NamedTuple):
    """One folder.

    Attributes:
        path: path of the folder.
        names: names of its entries.
        folders: whether there are folders or links to folders in it, apart from the parts of a run.
        linked: whether it was reached by a link.
    """

    path: Path
    names: frozenset[str]
    folders: bool
    linked: bool


def places(top: Path, leave: Callable[[Path, str], None], seen: set[str]) -> Iterator[Place]:
    """Yield a folder and all below it in the order of their names, each once, without the parts of run folders.

    A link is followed to a run, or to a comparison and its runs, and no further: it may lead anywhere.

    Args:
        top: folder at the top.
        leave: called with each omitted folder and the reason.
        seen: real paths of the folders that were yielded; they are added to it.
    """
    stack: list[tuple[Path, int, int | None]] = [(top, 0, None)]  # path, levels below the top, levels after a link
    while stack:
        path, depth, allowance = stack.pop()
        real = os.path.realpath(path)
        if real in seen:
            continue
        if len(seen) >= FOLDERS:
            leave(path, f"this and all after it: a report looks at {FOLDERS:,} folders at most")
            return
        seen.add(real)
        try:
            names, folders, links = _read(path, allowance)
        except OSError as refused:
            leave(path, f"cannot be read: {refused.strerror}")
            continue
        if len(names) == ENTRIES:
            leave(path, f"it has {ENTRIES:,} entries or more, and others are not looked at")
        less = None if allowance is None else allowance - 1
        below: list[tuple[Path, int, int | None]] = [(path / name, depth + 1, less) for name in folders]
        for link in links:
            levels = _levels(link)
            if levels is None:
                leave(link, "a link to a folder that is no run is not followed")
            else:
                below.append((link, depth + 1, levels))
        yield Place(path, names, bool(below or links), allowance is not None)
        if below and depth == DEEPEST:
            leave(below[0][0], f"this and all in it: a report looks {DEEPEST} levels deep at most")
        else:
            stack += sorted(below, key=lambda item: item[0], reverse=True)


def _read(path: Path, allowance: int | None) -> tuple[frozenset[str], list[str], list[Path]]:
    """Return the names in a folder, the names of folders to look at, and the links to folders that may be followed.

    Args:
        path: path of the folder.
        allowance: levels below it to look at after a link; None = it was reached without a link.

    Raises:
        OSError: it cannot be read.
    """
    with os.scandir(path) as entries:
        items = list(itertools.islice(entries, ENTRIES))
    runs = (
        {item.name for item in items} & set(RUNS)
        if allowance == LEVELS
        else {item.name for item in items if allowance != 0}
    )
    parts = (*PARTS, MODEL) if any(item.name == RUN for item in items) else PARTS
    candidates = [
        item for item in items if item.name in runs and not any(fnmatch.fnmatchcase(item.name, part) for part in parts)
    ]
    folders = sorted(item.name for item in candidates if item.is_dir(follow_symlinks=False))
    links = [
        path / item.name
        for item in candidates
        if allowance is None and item.is_symlink() and os.path.isdir(path / item.name)
    ]
    return frozenset(item.name for item in items), folders, links


def _levels(link: Path) -> int | None:
    """Return the number of levels below the target of a link to look at; None = it is not followed."""
    return LEVELS if is_file(link / COMPARISON) else 0 if is_file(link / RUN) else None


def is_file(path: Path) -> bool:
    """Return whether there is a regular file, not a link to one."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False
