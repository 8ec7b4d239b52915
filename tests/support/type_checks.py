"""The runtime type checks of the test run: an int may stand for a float, as it may to every static type checker."""

from collections.abc import Callable

from beartype import BeartypeConf, beartype

_check = beartype(conf=BeartypeConf(is_pep484_tower=True))
_made: dict[tuple, Callable] = {}


def check(function: Callable) -> Callable:
    """Check the arguments of what jaxtyping makes of a function: the same signature with an empty body.

    A hook is a new function in every encoding that is made. Its checks are written once, by far the slowest part.
    """
    optional = len(function.__defaults__ or ()), *(function.__kwdefaults__ or ())
    key = function.__module__, function.__qualname__, function.__code__, optional, repr(function.__annotations__)
    if key not in _made:
        _made[key] = _check(function)
    return _made[key]
