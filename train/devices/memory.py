"""What cannot fit a machine's memory is refused before anything of it is made, by bounds from below."""

import os

GIB = 2**30
FLOAT = 4
"""Bytes of a parameter, and of a value of an image; activations of bfloat16 take half."""


def host_memory() -> int:
    """Return the bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def require_room(needs: int, has: int, what: str) -> None:
    """Check that arrays fit.

    Args:
        needs: bytes, at least.
        has: bytes.
        what: needs them, with the options that say how many.

    Raises:
        ValueError: naming what, the rule and both numbers.
    """
    if needs > has:
        raise ValueError(f"{what} must fit the memory, {has / GIB:.1f} GiB, got {needs / GIB:,.1f} GiB at least")
