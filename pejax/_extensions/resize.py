"""Resampling of a learned table for sequences longer than the table."""

from pejax._ops.resize import resize_grid
from pejax._record.specs import Extension, Term


def resize() -> Extension:
    """Return resampling as the `extend` of `learned` on one axis: a longer sequence resamples the table.

    Without this extension, a sequence longer than the table is refused. On grids the table is always resampled. If the
    length is traced, the table is read at the centers of the resampled cells, which is equivalent.
    """
    return Extension((Term("resize", "factory", resize_grid, ()),))
