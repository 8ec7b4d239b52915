"""Options of a command line, each declared once: its default, its text in `--help`, its rules, and what it determines.

    lr: float = option(2e-3, "peak learning rate", "training", above=0, tuned=True)

A class of options may declare one again with another default: `lr: float = option(3e-3)` keeps all other facts. Nothing
here, nor in the modules that declare options, imports JAX, so that a mistyped command is answered before that.
"""

import dataclasses
import inspect
import math
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar, dataclass_transform

GROUPS = (
    "encoding", "data", "model", "training", "augmentation", "run", "evaluation and reports", "devices and memory",
)  # fmt: skip
"""Titles of the groups of options in `--help`, in their order."""

LARGEST = 2**31 - 1
"""Largest integer that an option takes, where it does not give its own: JAX computes in 32 bits."""

Kind = TypeVar("Kind")


class Declared(NamedTuple):
    """An option as its class declares it: default and facts."""

    default: Any
    facts: dict[str, Any]


def option(default: Any = dataclasses.MISSING, text: str = "", group: str = "", **facts: Any) -> Any:
    """Declare an option of a class that `options` decorates.

    Args:
        default: its value where the command line gives none; left out, the option is required.
        text: its line in `--help`.
        group: one of `GROUPS`.
        **facts: rules and roles. Rules are `at_least`, `above`, `below`, `at_most` and `choices`. Roles are

            shape       it determines the shapes of the parameters: copied from the run `--init`, and must equal it
            copied      it is copied from the run `--init` and may be overridden
            free        it may change when a run is resumed or evaluated, since the weights do not depend on it
            trains      the weights depend on it: an evaluation may change it, a resumed run may not
            tuned       it is one of the optimizer, by which runs in one table may differ, as after a sweep
            series      runs in one table may differ by it
            late        runs of earlier versions did not store it: its default describes them
            recorded    it is stored with a run and no option

            and `alias` is another name of the option.
    """
    texts = {"text": text} if text else {}
    groups = {"group": group} if group else {}
    return Declared(default, {**texts, **groups, **facts})


@dataclass_transform(frozen_default=True)
def options(kind: type[Kind]) -> type[Kind]:
    """Make a class of options a frozen dataclass; one that is declared again keeps the facts that it does not give."""
    for name in inspect.get_annotations(kind):
        declaration = kind.__dict__.get(name)
        if isinstance(declaration, Declared):
            former = getattr(kind, "__dataclass_fields__", {}).get(name)
            facts = {**(former.metadata["facts"] if former else {}), **declaration.facts}
            # What simple_parsing reads. It is not imported: programs without a command line have options, too.
            parsed = {"cmd": not facts.get("recorded"), "custom_args": {"help": facts.get("text", "")}}
            aliases = {"alias": [facts["alias"]]} if "alias" in facts else {}
            metadata = {"facts": facts, **parsed, **aliases}
            setattr(kind, name, dataclasses.field(default=declaration.default, metadata=metadata))
    return dataclasses.dataclass(frozen=True)(kind)


def facts_of(kind: Any) -> dict[str, dict[str, Any]]:
    """Return the facts of the options of a class or an instance, by name."""
    return {field.name: field.metadata["facts"] for field in dataclasses.fields(kind)}


def names_of(kind: Any, *roles: str) -> tuple[str, ...]:
    """Return the names of the options that have one of the roles."""
    return tuple(name for name, facts in facts_of(kind).items() if any(facts.get(role) for role in roles))


def require_rules(values: Any) -> None:
    """Check that every option keeps the rules that it declares.

    Raises:
        ValueError: naming the option, the rule and the value.
    """
    for name, facts in facts_of(values).items():
        value = getattr(values, name)
        if "choices" in facts and value not in facts["choices"]:
            raise ValueError(f"{name} must be one of {', '.join(facts['choices'])}, got {value!r}")
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int | float) and not isinstance(number, bool):
                _require_number(name, number, facts)


def _require_number(name: str, number: float, facts: dict[str, Any]) -> None:
    if not math.isfinite(number):
        raise ValueError(f"{name} must be a finite number, got {number}")
    low, high = facts.get("at_least", -math.inf), facts.get("at_most", math.inf)
    fits = low <= number <= high and facts.get("above", -math.inf) < number < facts.get("below", math.inf)
    if not fits:
        raise ValueError(f"{name} must {' and '.join(_rules(facts))}, got {number}")
    if isinstance(number, int) and "at_most" not in facts and number > LARGEST:
        raise ValueError(f"{name} must be below {LARGEST + 1}, got {number}")


def _rules(facts: dict[str, Any]) -> Iterator[str]:
    """Yield the bounds of a number in words."""
    low, last, end = facts.get("at_least"), facts.get("at_most"), facts.get("below")
    top = f"below {end}" if last is None else f"at most {last}"
    is_bounded = last is not None or end is not None
    if low is not None and is_bounded:
        yield f"be from {low} to {top.removeprefix('at most ')}"
    elif low is not None:
        yield "not be negative" if low == 0 else f"be at least {low}"
    if "above" in facts:
        yield "be positive" if facts["above"] == 0 and not is_bounded else f"be above {facts['above']}"
    if low is None and is_bounded:
        yield f"be {top}"
