"""Early refusal of arrays that cannot fit into memory, by lower bounds on their size."""

import os

GIB = 2**30
FLOAT = 4
"""Bytes of a float32: a parameter, or a value of an image; bfloat16 activations take half."""


def host_memory() -> int:
    """Return the bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def require_room(needs: int, has: int, what: str) -> None:
    """Check that arrays fit.

    Args:
        needs: lower bound on the bytes needed.
        has: bytes of memory.
        what: needs the memory, in words, with the options that determine it.

    Raises:
        ValueError: they do not fit.
    """
    if needs > has:
        raise ValueError(f"{what} must fit the memory, {has / GIB:.1f} GiB, got {needs / GIB:,.1f} GiB at least")
