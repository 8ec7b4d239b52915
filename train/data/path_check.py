"""The check that a path is given behind the name of its reader: `file:novel.txt`. Nothing heavy is imported."""

import os
import re
from collections.abc import Collection


def require_no_path(spec: str, readers: Collection[str]) -> None:
    """Check that data are not given as a path alone.

    Args:
        spec: the data.
        readers: names of data, among them those that read a path.

    Raises:
        ValueError: a path, with the name of the reader to put in front of it.
    """
    before = spec.partition("(")[0]
    looks_like_a_path = os.path.exists(spec) or re.search(r"[/\\]|\.\w{2,5}$", before)
    if not looks_like_a_path or before.partition(":")[0] in readers:
        return
    form = "jsonl" if spec.endswith((".jsonl", ".json")) else "file"
    reader = next((name for name in (form, "folder") if name in readers), "")
    hint = f"; did you mean {reader}:{spec}?" if reader else ""
    raise ValueError(f"data must be the name of data, and a path after a colon, got {spec!r}{hint}")
