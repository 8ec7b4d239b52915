"""Numbers that are computed where a program is traced, because all that they depend on is known there."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
from jax.core import Tracer

TRANSFORMS = {"BatchTracer": "jax.vmap", "JVPTracer": "jax.jvp", "LinearizeTracer": "jax.grad"}
"""The transform that traces by tracers of a type; those of all others are of one type."""


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


def transform_of(tree: Any) -> str:
    """Return the transform that traces a leaf of a pytree, as users call it, for messages; empty if none is traced."""
    tracers = [type(leaf).__name__ for leaf in jax.tree.leaves(tree) if isinstance(leaf, Tracer)]
    return TRANSFORMS.get(tracers[0], "jax.jit, jax.lax.scan or the like") if tracers else ""
