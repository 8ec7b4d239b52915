"""Folders of checkpoints whose names hold brackets, as `sweep[lr=a]` does."""

import fnmatch
import os
from collections.abc import Iterator
from typing import Self

from etils.epath.gpath import PosixGPath


class LiteralPath(PosixGPath):
    """A path for orbax, whose own take their names for patterns.

    With brackets in them, orbax did not find what it had just written, left it as it was, and could not read it later.
    """

    def glob(self, pattern: str) -> Iterator[Self]:
        """Yield the entries of this folder whose names match the pattern."""
        for name in fnmatch.filter(os.listdir(self), pattern):
            yield self / name
