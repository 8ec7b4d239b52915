"""What commands print: plain characters where an encoding lacks others, no control characters, and a quiet end."""

import codecs
import contextlib
import io
import os
import signal
import sys
import unicodedata
from collections.abc import Callable
from typing import TextIO

PLAIN = {
    "·": "-", "×": "x", "±": "+-", "Δ": "delta", "π": "pi", "µ": "u", "…": "...", "→": "->", "←": "<-", "–": "-",
    "—": "-", "−": "-", "‘": "'", "’": "'", "“": '"', "”": '"', "≤": "<=", "≥": ">=", "∞": "inf",
}  # fmt: skip
"""What stands for a character that the encoding of the output lacks; for all others it is a question mark."""

HANDLER = "pejax.plain"
"""Name of the codec error handler that `plain_output` sets."""

REORDERING = {*"\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069", "\u2028", "\u2029"}
"""Characters that change the order or the lines in which a terminal shows others."""


def printable(text: str) -> str:
    r"""Return a text without control characters, which a terminal would obey: `\x1b` in place of an escape.

    Line feeds and tabs stay; half of a surrogate pair, as in a path that is not UTF-8, is written as an escape, too.
    """
    return "".join(
        character.encode("unicode_escape").decode()
        if character not in "\n\t" and (unicodedata.category(character) in ("Cc", "Cs") or character in REORDERING)
        else character
        for character in text
    )


def plain(text: str, encoding: str) -> str:
    """Return a text with plain characters in place of those that an encoding lacks."""
    return text.encode(encoding, HANDLER).decode(encoding)


def plain_output() -> None:
    """Make the standard streams write plain characters in place of those that their encodings lack.

    A stream that the shell has closed discards what is written.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, io.TextIOWrapper(io.FileIO(os.devnull, "w"), encoding="utf-8"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=HANDLER)


def discard(stream: TextIO) -> None:
    """Let a stream whose reader is gone, as after `| head -1`, discard what is written, also at the exit of Python."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def complain(line: str) -> None:
    """Write a line to the standard error output at once, past its buffer; one that is closed is ignored."""
    with contextlib.suppress(OSError):
        os.write(2, f"{printable(line)}\n".encode(getattr(sys.stderr, "encoding", None) or "ascii", HANDLER))


def run(command: Callable[[], object]) -> None:
    """Run a command that prints; it ends without a traceback at Ctrl-C, where nobody reads on, and on a full disk.

    Raises:
        SystemExit: with the status of a process that the signal ended, or 2.
    """
    plain_output()
    try:
        try:
            command()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        discard(sys.stdout)
        raise SystemExit(128 + signal.SIGPIPE) from None
    except OSError as refused:
        discard(sys.stdout)
        complain(f"error: {refused}")
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        complain("stopped")
        raise SystemExit(128 + signal.SIGINT) from None


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(PLAIN.get(character, "?") for character in error.object[error.start : error.end]), error.end


codecs.register_error(HANDLER, _replace)
