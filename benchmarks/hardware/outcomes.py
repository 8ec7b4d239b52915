"""The outcomes of a case, and their texts in one line."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

"""Outcomes that fail nothing: `refused`, an implementation says that it does not support the case; `missing`, a package
is not installed."""

BEFORE = "before: "
"""Prefix of the ways of an earlier checkout, which processes of their own do."""

BAD = ("wrong", "error", "memory", "crashed", "hung")
"""Outcomes for which the command ends with status 1."""


class Case(NamedTuple):
    """One piece of work of a process.

    Attributes:
        stage: prove, measure, train or sample.
        name: unique within its stage.
        task: `module:function`; called with the arguments, it returns a mapping with an `outcome`.
        arguments: arguments that JSON can hold.
        limit: seconds after which it counts as hung.
        expected: seconds that it takes on an H200 beside other processes.
    """

    stage: str
    name: str
    task: str
    arguments: Mapping[str, Any] = {}
    limit: float = 60.0
    expected: float = 5.0


def verdict(errors: Mapping[str, float], tolerance: float) -> dict[str, Any]:
    """Return `proved` if every error is within the tolerance, else `wrong`; NaN never passes."""
    errors = {name: float(error) for name, error in errors.items()}
    figures = {"errors": errors, "tolerance": tolerance}
    bad = [name for name, error in errors.items() if not error <= tolerance]
    if not bad:
        return {"outcome": "proved", **figures, "message": f"largest error {max(errors.values(), default=0.0):.1e}"}
    told = ", ".join(f"{name} {errors[name]:.1e}" for name in bad)
    return {"outcome": "wrong", **figures, "message": f"error above {tolerance:.0e}: {told}"}


def finite(value: Any) -> Any:
    """Return a value with words for the numbers that JSON has not: NaN and infinities."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): finite(one) for name, one in value.items()}
    return [finite(one) for one in value] if isinstance(value, list | tuple) else value
