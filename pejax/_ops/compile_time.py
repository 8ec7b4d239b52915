"""Numbers that are computed where a program is traced, because all that they depend on is known there."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from jax.core import Tracer


def computed_now(function: Callable[[], Any]) -> Any:
    """Return a function's result, whose arrays are known, computed outside of the trace and the mesh at hand.

    Both belong to a thread. `jax.ensure_compile_time_eval` leaves the trace alone: in the mesh of a GPU that is not
    here, it would compute there.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function).result()


def are_known(*arrays: Any) -> bool:
    """Return whether the numbers of all arrays can be read here: none is traced, or held by another process."""
    return not any(isinstance(x, Tracer) or not getattr(x, "is_fully_addressable", True) for x in arrays)
