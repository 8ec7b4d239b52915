"""What the tests of biases share."""

import contextlib
import inspect
from collections.abc import Callable, Iterator

import jax
import jax.extend
import jaxtyping
import numpy as np

import pejax

STATIC = (
    "scale",
    "base",
    "variant",
    "causal",
    "threshold",
    "bidirectional",
    "buckets",
    "max_distance",
    "clip",
    "extent",
)


def compiled(name: str) -> Callable:
    """Return a public function of pejax under jit: one compilation a call instead of one an operation."""
    function = getattr(pejax.functions, name)
    return jax.jit(function, static_argnames=[option for option in STATIC if option in options(function)])


def options(function: Callable) -> list[str]:
    """Return the names of a function's arguments."""
    return list(inspect.signature(function).parameters)


@contextlib.contextmanager
def types_unchecked() -> Iterator[None]:
    """Switch the runtime type checks off, so that a function's own refusal is seen."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


def largest_intermediate(function: Callable, *args: jax.Array) -> int:
    """Return the most numbers in any array that a function makes on its way, the transformations inside it too.

    What `lax.platform_dependent` has for other platforms than CPUs and the default is left out: a TPU's compiler sums
    as it compares.
    """
    return _largest(jax.make_jaxpr(function)(*args).jaxpr)


def _largest(jaxpr: jax.extend.core.Jaxpr) -> int:
    sizes = [0]
    for equation in jaxpr.eqns:
        sizes += [variable.aval.size for variable in equation.outvars]
        inner = [*jax.extend.core.jaxprs_in_params(equation.params)]
        if platforms := equation.params.get("branches_platforms"):
            inner = [x for x, names in zip(inner, platforms, strict=True) if names is None or "cpu" in names]
        sizes += map(_largest, inner)
    return max(sizes)


def clipped(relative: int, m: int) -> int:
    """Return the row of a relative position in a table for -m ... m."""
    return int(np.clip(relative, -m, m)) + m
