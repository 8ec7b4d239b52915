"""Parts of data that cannot be read, such as images, files, lines and records: they are named, and stop the program.

With `on_error='skip'` they are left out, which is said, and counted in the identity of the data.
"""

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pejax._process.text import printable

NAMED = 3
"""Bad parts that a message names."""


class BadData(ValueError):
    """Parts of the data that cannot be read, and could be left out."""


def require_readable(bad: Sequence[str], total: int, what: str, on_error: str) -> None:
    """Check that all parts of the data can be read, or say which are left out.

    Args:
        bad: for each part that cannot be read, its name and why.
        total: number of all parts.
        what: names them, "images of photos".
        on_error: `stop`, or `skip`: bad parts are left out.

    Raises:
        BadData: there are bad parts, and `on_error` is `stop`.
        ValueError: all parts are bad, or another `on_error`.
    """
    if on_error not in ("stop", "skip"):
        raise ValueError(f"on_error must be 'stop' or 'skip', got {on_error!r}")
    if not bad:
        return
    if len(bad) == total:
        raise ValueError(bad[0] if total == 1 else f"{what} must be readable, got none of {total:,}: {bad[0]}")
    remainder = f"; and {len(bad) - NAMED:,} more" if len(bad) > NAMED else ""
    count, names = f"{len(bad):,} of {total:,}", f"{'; '.join(bad[:NAMED])}{remainder}"
    if on_error == "stop":
        raise BadData(f"{what} must be readable, got {count} that {'is' if len(bad) == 1 else 'are'} not: {names}")
    say(f"{count} {what} are left out: {names}")


def say(line: str) -> None:
    """Print a line to the standard error output, in the first process only."""
    from train.devices.hosts import is_main_process  # imports JAX

    if is_main_process():
        sys.stderr.write(f"{printable(line)}\n")


@contextlib.contextmanager
def way_out(name: str, options: Mapping[str, Any]) -> Iterator[None]:
    """Add the option that leaves bad parts out, beside those of the data, to what is raised about them.

    Raises:
        BadData: raised inside.
    """
    try:
        yield
    except BadData as bad:
        arguments = ", ".join(f"{key}={value!r}" for key, value in {**options, "on_error": "skip"}.items())
        raise BadData(f'{bad}; to go on without: --data="{name}({arguments})"') from None


def identity_suffix(count: int) -> str:
    """Return the end of the identity of data whose parts are left out: "-without-2"; empty for none."""
    return f"-without-{count}" if count else ""


def note_suffix(count: int) -> str:
    """Return the end of the note on data whose parts are left out; empty for none."""
    return f"; left out, since unreadable: {count:,}" if count else ""
