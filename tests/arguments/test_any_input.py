"""Any value as any argument of any public function: a result as with the plain value, or a refusal in one line.

Types are not checked at run time here: what counts is what users see, who have no checker.
"""

import collections
import inspect
import linecache
import math
import re
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from beartype import BeartypeConf
from beartype.door import is_bearable

import pejax
from pejax import models, specs
from tests.support.cases import slow
from tests.support.plain_calls import GROUPS, NO_CALLS, Call, plain_calls

OWN = str(Path(pejax.__file__).parent)
TOWER = BeartypeConf(is_pep484_tower=True)
LATER = {"generate", "generate_answers", "stream", "Sampling", "PositionalAttention", "logical_axes", "partition_specs"}
"""Names of `pejax.models` with tests of refusals of their own, or whose argument is any pytree."""


@pytest.fixture(autouse=True)
def users_promotion():
    """Types are promoted as they are for users, not strictly."""
    with jax.numpy_dtype_promotion("standard"):
        yield


class Thing:
    """A value that no function takes."""

    def __repr__(self) -> str:
        return "a thing"


ANY = [
    None, [], (), {}, [4, 4], [[1, 2], [3]], np.int64(4), 4, 2.5, np.float32(0.5), -1, 0, -2.5, 1e30, math.nan,
    math.inf, "four", "", True, np.bool_(True), Thing(), Thing, jnp.int32(4), jnp.float32(0.5), 3 + 4j,
    jnp.ones((2, 3, 4)), jnp.zeros(0), jnp.arange(3), np.ones(2, bool), np.asarray(["a"]), [None], ("a", 1),
]  # fmt: skip
"""Values that stand in for every argument."""

FEW = (None, [], np.int64(4), -2.5, math.nan, "four", True, Thing(), jnp.ones((2, 3, 4)), jnp.zeros(0))
"""Those that stand in for the arguments of slow calls."""

QUICK = ("records", "factories")
"""Groups of calls that compile nothing."""

OTHER_NAMES = {"table": "buckets"}
"""What a refusal may call an argument."""


def replacements(call: Call, name: str) -> list[Any]:
    """Return what stands in for an argument: any value, and those that resemble it."""
    return [*(FEW if call.slow else ANY), *_resembling(call.arguments[name])]


def _resembling(value: Any) -> Iterator[Any]:
    if isinstance(value, bool):
        yield from (np.bool_(value), int(value), str(value))
    elif isinstance(value, int | float):
        yield from (np.asarray(value)[()], np.asarray(value), jnp.asarray(value), str(value), [value], (value,))
        yield float(value) if isinstance(value, int) else round(value) + 1
    elif isinstance(value, str):
        yield from (value.upper(), value + "x", [value], value.encode())
    elif isinstance(value, tuple) and not hasattr(value, "_fields"):
        yield from (list(value), value[:-1], value + value)
        if all(isinstance(item, int | float) for item in value):
            yield from (np.asarray(value), jnp.asarray(value))
    elif isinstance(value, np.ndarray | jax.Array) and not jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        known = np.asarray(value)
        yield from (known, known.tolist(), value[None], value[:0], value[..., :0], value[:-1], value[..., :-1])
        yield from (value[0], value.astype(bool), value.astype(complex))
        yield value.astype(np.int32 if jnp.issubdtype(value.dtype, jnp.floating) else np.float32)
        yield value.astype(jnp.bfloat16)


def plain_forms(value: Any, hint: Any) -> list[Any]:
    """Return the value itself, and the plain values that it may stand for, as far as the annotation allows them."""
    ways = (lambda item: item, int, float, bool, tuple, jnp.asarray, lambda item: tuple(np.asarray(item).tolist()))
    result = []
    for way in ways:
        try:
            form = way(value)
        except Exception:
            continue
        if type(form) is bool and not isinstance(value, bool | np.bool_):
            continue
        if isinstance(form, int) and not isinstance(form, bool) and (isinstance(value, float | str) or form != value):
            continue
        if isinstance(form, float) and isinstance(value, str | bool):
            continue
        if hint is inspect.Parameter.empty or is_bearable(form, hint, conf=TOWER):
            result.append(form)
    return result


def hint_of(call: Call, name: str) -> Any:
    """Return the annotation of an argument; that of an argument passed on is free."""
    parameters = inspect.signature(call.function).parameters
    return parameters[name].annotation if name in parameters else inspect.Parameter.empty


def outcome(call: Call, name: str, value: Any) -> str:
    """Call with one argument replaced; return "computed" or "refused", or raise AssertionError.

    Raises:
        AssertionError: an exception that is not ours, a refusal that does not say what is wrong, or a result with a
            value that the annotation does not allow and that is no form of a plain one.
    """
    try:
        result = call.function(**{**call.arguments, name: value})
    except Exception as error:
        _check_refusal(error, name, value)
        return "refused"
    hint = hint_of(call, name)
    forms = plain_forms(value, hint)
    assert forms, f"computed with {name}={value!r}, which is not {hint}"
    assert not (isinstance(value, float) and not math.isfinite(value)), f"computed with {name}={value}"
    if not any(form is value for form in forms):
        expected = (call.function(**{**call.arguments, name: form}) for form in forms)
        assert any(same(result, item) for item in expected), f"{name}={value!r} gives another result than {forms}"
    return "computed"


def _check_refusal(error: Exception, name: str, value: Any) -> None:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    line = linecache.getline(frame.filename, frame.lineno or 0).strip()
    said = f"{name}={value!r}: {type(error).__name__} at {frame.filename}:{frame.lineno}: {error}"
    assert isinstance(error, ValueError | TypeError | NotImplementedError), said
    assert frame.filename.startswith(OWN), said
    assert line.startswith("raise"), said
    message = str(error)
    assert "\n" not in message, said
    words = [*name.split("_"), OTHER_NAMES.get(name, name)]
    named = any(word in message for word in words) and "got " in message
    quoted = isinstance(value, str) and any(part in value for part in re.findall(r"'([^']*)'", message))
    assert named or quoted, said


def same(result: Any, expected: Any) -> bool:
    """Return whether two results are equal, as far as they can be compared."""
    if isinstance(result, np.ndarray | jax.Array | np.generic | float | int):
        return np.allclose(np.asarray(result), np.asarray(expected), rtol=1e-5, atol=1e-6, equal_nan=True)
    if isinstance(result, list | tuple | dict) and type(result) is type(expected):
        leaves, others = jax.tree.leaves(result), jax.tree.leaves(expected)
        return len(leaves) == len(others) and all(map(same, leaves, others))
    return type(result) is type(expected) and (result == expected or not isinstance(result, str))


def cases(group: str) -> Iterator[tuple[str, Call, str, Any]]:
    """Yield all cases of a group: the name of a call, the call, an argument, and what stands in for it."""
    for name, call in plain_calls(group).items():
        for argument in call.arguments:
            for value in replacements(call, argument):
                yield name, call, argument, value


def judge(group: str, drawn: Iterable[tuple[str, Call, str, Any]]) -> None:
    """Judge cases; print how many were refused and computed, and fail with all that went wrong."""
    counts, wrong = collections.Counter[str](), []
    for name, call, argument, value in drawn:
        try:
            counts[outcome(call, argument, value)] += 1
        except AssertionError as failure:
            counts["wrong"] += 1
            wrong.append(f"{name}: {failure}")
    print(f"{group}: {counts.total()} drawn, {counts['refused']} refused, {counts['computed']} computed")
    assert not wrong, "\n".join(wrong)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # users see none of the warnings of JAX
@pytest.mark.parametrize("group", [group if group in QUICK else slow(group) for group in GROUPS])
def test_every_value_is_computed_with_or_refused_in_one_line(group):
    judge(group, cases(group))


@pytest.mark.slow
def test_every_public_name_has_a_plain_call():
    called = {name.split()[0].removeprefix("models.") for group in GROUPS for name in plain_calls(group)}
    public = {*pejax.__all__, *pejax.functions.__all__, *models.__all__} - LATER - NO_CALLS.keys()
    placing = {name: getattr(pejax.placement, name) for name in set(pejax.placement.__all__) - {"RULES"}}
    public |= {name for name, item in placing.items() if inspect.signature(item).parameters} - NO_CALLS.keys()
    assert public <= called
    assert {name for name in specs.__all__ if name not in ("Spec", "parse_call")} <= called
