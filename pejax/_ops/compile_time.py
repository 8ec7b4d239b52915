"""Numbers that are computed where a program is traced, because all that they depend on is known there."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np


def computed_now(function: Callable[[], Any]) -> Any:
    """Return a function's result, a pytree of NumPy arrays, computed outside of the trace and the mesh at hand.

    Both belong to a thread. `jax.ensure_compile_time_eval` leaves the trace alone: in the mesh of a GPU that is not
    here, it would compute there.
    """
    with ThreadPoolExecutor(1) as thread:
        return jax.tree.map(np.asarray, thread.submit(function).result())
