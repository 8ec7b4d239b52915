"""Calls of hooks: errors name the hook, because it may be the caller's own function, and what it must return."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import jax
import jax.numpy as jnp

from pejax._calls.kinds import shown

LIBRARIES = frozenset({"pejax", "jax", "jaxlib", "jaxtyping", "numpy", "flax", *sys.stdlib_module_names})
"""Packages whose code is nobody's own hook."""

FAILURES = (TypeError, ValueError, AttributeError, LookupError, NameError, ArithmeticError)
"""What a wrong hook raises. Others pass: a kernel that cannot, memory that is short, a failed assertion."""


def hook_name(name: str, hook: Callable[..., Any]) -> str:
    """Return a hook for messages: its field of `Encoding`, the name of the function there, and whether it is yours."""
    function = getattr(hook, "func", hook)
    yours = "" if _root(getattr(function, "__module__", None)) in LIBRARIES else "your own "
    return f"{yours}{name} hook {getattr(function, '__qualname__', type(function).__name__)}"


@contextlib.contextmanager
def naming_hook(name: str, hook: Callable[..., Any], params: Mapping[str, Any], *operands: Any) -> Iterator[None]:
    """Name a hook in the errors of its call, the body of the `with` block.

    What the library refuses by itself passes unchanged, unless a function of somebody else called it.

    Args:
        name: the field of `Encoding`.
        hook: the function in it.
        params: the parameters that it receives.
        *operands: its other arguments.
    """
    try:
        yield
    except FAILURES as error:
        _explain_missing(hook_name(name, hook), params, error)
        if _is_told(error.__traceback__):
            raise
        shapes = f" at {', '.join(map(shown, operands))}" if operands else ""
        first_line = f"{error}".strip().partition("\n")[0]
        kind = ValueError if isinstance(error, ValueError) else TypeError
        message = f"{hook_name(name, hook)} failed{shapes}: {type(error).__name__}: {first_line}"
        raise kind(message) from error


@contextlib.contextmanager
def naming_missing(reader: str, params: Mapping[str, Any]) -> Iterator[None]:
    """Raise a ValueError that explains a missing parameter, in place of the KeyError of `reader`."""
    try:
        yield
    except KeyError as error:
        _explain_missing(reader, params, error)
        raise


def call_token_hook(
    name: str, hook: Callable[..., Any], params: Mapping[str, Any], x: jax.Array, positions: jax.Array
) -> jax.Array:
    """Return the result of `embed`, or of a rotation, which must be like x.

    Raises:
        ValueError, TypeError: naming the hook, which fails or returns something else.
    """
    with naming_hook(name, hook, params, x, positions):
        result = hook(params, x, positions)
    is_alike = getattr(result, "shape", None) == x.shape
    if not is_alike or (result.dtype != x.dtype and not jnp.issubdtype(result.dtype, jnp.floating)):
        letters = "(*B, T, C)" if name == "embed" else "(*B, T, H, D)"
        rule = f"must return floats {letters} = {x.shape} like its x, at positions {positions.shape}"
        raise ValueError(f"{hook_name(name, hook)} {rule}, got {shown(result)}")
    return result


def check_returned(
    name: str, hook: Callable[..., Any], letters: str, shape: Sequence[int], result: Any, relative: Any = None
) -> None:
    """Raise ValueError for a result of a hook of pairs that is not numbers of a shape: broadcasting would hide it.

    Args:
        name: the field of `Encoding`.
        hook: the function in it.
        letters: names of the axes.
        shape: their sizes.
        result: what the hook returned.
        relative: the relative positions that it received. None = it received none.
    """
    got = () if isinstance(result, int | float) else getattr(result, "shape", None)
    is_number = got == () or jnp.issubdtype(getattr(result, "dtype", bool), jnp.number)
    if got != tuple(shape) or not is_number or jnp.iscomplexobj(result):
        at = ""
        if relative is not None:
            at = f" at relative {'(R, A)' if len(relative.shape) > 1 else '(R,)'} = {tuple(relative.shape)}"
        rule = f"must return {letters} = {tuple(shape)}{at}"
        raise ValueError(f"{hook_name(name, hook)} {rule}, got {shown(result)}")


def check_params(name: str, hook: Callable[..., Any], params: Any) -> Any:
    """Return the parameters that a hook returned; raise TypeError for anything but a mapping."""
    if not isinstance(params, Mapping):
        raise TypeError(f"{hook_name(name, hook)} must return a dict of parameters, got {shown(params)}")
    return params


def _explain_missing(reader: str, params: Mapping[str, Any], error: Exception) -> None:
    """Raise ValueError for the KeyError of a name that the parameters lack."""
    name = error.args[0] if isinstance(error, KeyError) and error.args else None
    if name is not None and name not in params:
        rule = "pass params=pejax.init_params(encoding, key); hooks read 'heads' and 'all' of what pejax.adapt returns"
        raise ValueError(f"{reader} reads {name!r}, which its parameters lack, got {sorted(params)}: {rule}") from error


def _root(module: str | None) -> str:
    """Return the package of a module."""
    return (module or "pejax").partition(".")[0]


def _is_told(trace: TracebackType | None) -> bool:
    """Return whether an error names a hook already, or is the library's own, with no function of others below it."""
    modules = []
    while trace is not None:
        modules.append(str(trace.tb_frame.f_globals.get("__name__", "")))
        trace = trace.tb_next
    if len(modules) > 1 and modules[-1] == __name__:
        return True
    roots = list(map(_root, modules))
    return roots[-1] == "pejax" and LIBRARIES.issuperset(roots)
