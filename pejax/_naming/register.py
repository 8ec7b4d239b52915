"""Registers an encoding of your own by name, after checks of its factory on small dims."""

import inspect
import keyword
import re
import typing
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pejax._encodings.factory import EncodingFactory
from pejax._naming.parse import OUTSIDE
from pejax._record.dims import Dims
from pejax._record.encoding import Encoding, Params, init_params, pair_bias, split_params
from pejax._record.probe import Probe, draw_probe, settle
from pejax.encodings import ENCODINGS
from pejax.extensions import EXTENSIONS

SMALL = (
    Dims(heads=2, head_dim=8, extent=8),
    Dims(heads=2, head_dim=8, extent=8, causal=True),
    Dims(heads=2, head_dim=8, axes=2, extent=(2, 4)),
)
"""Dims on which a factory is tried: a sequence, a causal one, an image."""

BUILT_IN = frozenset(ENCODINGS)


def register_encoding(
    name: str,
    factory: Callable[..., Encoding],
    *,
    takes: Sequence[str] = (),
    dims: Sequence[Dims] = SMALL,
    replace: bool = False,
) -> EncodingFactory[...]:
    """Add a factory of your own to `pejax.ENCODINGS`, so that specs, sums, patterns and `extend` work with its name.

    `factory(dims, option=default, ...)` returns an `Encoding` or raises ValueError for dims that it does not support.
    Options are plain values: numbers, texts, and tuples of them. Annotations, or else the defaults, say their types.

    Args:
        name: a Python identifier, `"mine"`; or the place of the factory, `"my_module:mine"`, as `--pe` of `train` names
            it.
        factory: the function. It is called once per set of arguments: equal arguments give the same object.
        takes: extensions of `pejax.extensions` that it applies itself, in its argument `extend`. Those that work on any
            encoding, such as `pi`, are applied to what it returns.
        dims: dims that the factory is tried with until it accepts some; the hooks of that record are tried, by shapes
            alone. Empty = no trial, where JAX must not be used yet.
        replace: whether to replace an encoding of your own of this name.

    Returns:
        The factory with a further argument `extend`, as those of `pejax.encodings` have it.

    Raises:
        ValueError: a name that is taken or no identifier, an argument of the factory without a default or of an
            unsuitable kind, unknown extensions, parameters or results of hooks of a wrong shape, or no dims accepted.
        TypeError: something else than a function, a factory that fails, or returns something else than an `Encoding`.

    Examples:
        >>> import pejax
        >>> def steep(dims, slope=1.0):
        ...     return pejax.Encoding(distance_bias=lambda params, r: -slope * abs(r).astype(jnp.float32), dims=dims)
        >>> steep = pejax.register_encoding("steep", steep)
        >>> pejax.make_encoding("steep(slope=2)", pejax.Dims(heads=4, head_dim=16)).spec
        steep(slope=2.0)
        >>> del pejax.ENCODINGS["steep"]
    """
    _check_name(name)
    _check_signature(name, factory)
    _check_takes(name, factory, takes)
    if not isinstance(dims, Sequence) or not all(isinstance(item, Dims) for item in dims):
        raise TypeError(f"{name}: dims must be a sequence of pejax.Dims to try the factory with, got {dims!r}")
    entry = EncodingFactory(factory, tuple(takes), name)
    entry.__annotations__ = {key: parameter.annotation for key, parameter in _typed(factory).items()} | {
        "extend": inspect.signature(entry).parameters["extend"].annotation
    }
    earlier = ENCODINGS.get(name)
    if earlier is not None and not (replace and name not in BUILT_IN):
        if name not in BUILT_IN and earlier.__wrapped__ is factory and earlier.takes == entry.takes:
            return earlier
        way = "choose another one" if name in BUILT_IN else "choose another one, or give replace=True"
        raise ValueError(f"name must not be taken, got {name!r}: {way}")
    refusal = try_encoding(entry, dims)
    if refusal:
        raise ValueError(f"{name} must accept some of the dims that it is tried with, dims=..., got: {refusal}")
    dict.__setitem__(ENCODINGS, name, entry)
    return entry


def try_encoding(factory: EncodingFactory[...], dims: Sequence[Dims] = SMALL) -> str:
    """Make the encoding for the first dims that it accepts, and check the shapes of its parameters and hooks.

    Returns:
        Why it refuses all of them; empty if it does not.

    Raises:
        ValueError, TypeError: as `register_encoding` says.
    """
    name, refusals = factory.__name__, list[str]()
    for candidate in dims:
        try:
            encoding = factory(candidate)
        except ValueError as refused:
            refusals.append(f"{refused}")
        except Exception as broken:  # whatever the code of a user raises
            if isinstance(broken, TypeError) and f"{broken}".startswith(f"{name} must return"):
                raise
            raise TypeError(f"{name} failed for {candidate}: {type(broken).__name__}: {broken}") from broken
        else:
            _check_record(name, encoding, candidate)
            return ""
    return refusals[0] if refusals else ""


def _check_name(name: str) -> None:
    if not isinstance(name, str):
        raise TypeError(f"register_encoding takes a name and then a factory, got {type(name).__name__}")
    if not re.fullmatch(OUTSIDE, name) and (not name.isidentifier() or keyword.iskeyword(name)):
        raise ValueError(f"name must be an identifier, 'mine', or a place, 'my_module:mine', got {name!r}")


def _check_signature(name: str, factory: Callable[..., Encoding]) -> None:
    """Check the arguments of a factory: dims first, and all others by keyword, with defaults that can be compared."""
    if isinstance(factory, Encoding):
        raise TypeError(f"{name}: the factory must be a function of dims that returns an Encoding, got an Encoding")
    if not callable(factory):
        raise TypeError(f"{name}: the factory must be a function of dims, got {type(factory).__name__}")
    try:
        first, *options = inspect.signature(factory).parameters.values()
    except (ValueError, TypeError):
        raise ValueError(f"{name}: the factory must take dims first, got {factory!r}") from None
    if first.name != "dims" or first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        raise ValueError(f"{name}: the first argument of the factory must be dims, got {first}")
    for option in options:
        if option.kind not in (option.POSITIONAL_OR_KEYWORD, option.KEYWORD_ONLY):
            raise ValueError(f"{name}: every option of the factory must have a name of its own, got {option}")
        if option.default is option.empty:
            raise ValueError(f"{name}: every option of the factory must have a default, got {option.name} without one")
        try:
            hash(option.default)
        except TypeError:
            rule = "every default of the factory must be a plain value such as a number or a tuple"
            raise ValueError(f"{name}: {rule}, got {option.name} of {type(option.default).__name__}") from None


def _check_takes(name: str, factory: Callable[..., Encoding], takes: Sequence[str]) -> None:
    """Check that a factory takes known extensions, and has the argument for them."""
    if isinstance(takes, str) or not isinstance(takes, Sequence):
        raise TypeError(f"{name}: takes must be a tuple of names of extensions, got {takes!r}")
    unknown = [term for term in takes if term not in EXTENSIONS]
    if unknown:
        raise ValueError(f"{name}: takes must name extensions ({', '.join(EXTENSIONS)}), got {unknown[0]!r}")
    if takes and "extend" not in inspect.signature(factory).parameters:
        raise ValueError(f"{name}: takes needs an argument extend of the factory, got {', '.join(takes)} without one")


def _typed(factory: Callable[..., Encoding]) -> dict[str, inspect.Parameter]:
    """Return the arguments of a factory, with types from their defaults where they have no annotation."""
    try:
        hints = typing.get_type_hints(factory)
    except (NameError, TypeError):  # names for type checkers alone; a partial
        hints = {}
    by_default = {float: float, int: int | float, bool: bool, str: str}
    parameters = inspect.signature(factory).parameters
    return {
        key: parameter.replace(annotation=hints.get(key, by_default.get(type(parameter.default), Any)))
        for key, parameter in parameters.items()
        if key != "extend"
    }


def _check_record(name: str, encoding: Encoding, dims: Dims) -> None:
    """Check the shapes that the parameters and hooks of a record have on a few tokens; nothing is computed."""
    probe = draw_probe(0, dims)
    params = _shape(name, "init", lambda key: init_params(encoding, key), jax.random.key(0))
    if not isinstance(params, dict):
        raise TypeError(f"{name}: init and init_layer must return dicts, got {type(params).__name__}")
    params = _shape(name, "adapt", lambda params: settle(encoding, params, dims), params)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params.get("heads", {})):
        if leaf.shape[:1] != (dims.heads,):
            where = jax.tree_util.keystr(path)
            raise ValueError(f"{name}: params['heads']{where} must have H = {dims.heads} rows, got shape {leaf.shape}")
    _check_tokens(name, encoding, dims, params, probe)
    _check_pairs(name, encoding, dims, params, probe)


def _check_tokens(name: str, encoding: Encoding, dims: Dims, params: Params, probe: Probe) -> None:
    q, k = (jnp.zeros((len(probe.x), heads, dims.head_dim)) for heads in (dims.heads, dims.kv_heads))
    calls = {
        "embed": (encoding.embed, probe.x),
        "rotate": (encoding.rotate, q),
        "rotate_keys": (encoding.rotate_keys, k),
    }
    for hook, (function, x) in calls.items():
        if function is not None:
            _require_shape(name, hook, x.shape, function, params, x, probe.positions)


def _check_pairs(name: str, encoding: Encoding, dims: Dims, params: Params, probe: Probe) -> None:
    shared, heads = split_params(params)
    head_params = {**shared, **jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), heads)}
    tokens, positions = len(probe.x), probe.positions
    x, weights = jnp.zeros((tokens, dims.head_dim)), jnp.zeros((tokens, tokens))
    if encoding.distance_bias is not None:
        _require_shape(name, "distance_bias", (tokens,), encoding.distance_bias, head_params, positions - positions[0])
    bias = pair_bias(encoding)
    if bias is not None:
        _require_shape(name, "bias", (tokens, tokens), bias, head_params, x, x, positions, positions)
    if encoding.relative_values is not None:
        _require_shape(
            name, "relative_values", x.shape, encoding.relative_values, head_params, weights, positions, positions
        )
    if encoding.unplaced_bias is not None:
        _require_shape(name, "unplaced_bias", (), encoding.unplaced_bias, head_params)


def _require_shape(name: str, hook: str, shape: tuple[int, ...], function: Callable[..., Any], *operands: Any) -> None:
    result_shape = _shape(name, hook, function, *operands)
    if getattr(result_shape, "shape", None) != shape:
        got = f"shape {result_shape.shape}" if hasattr(result_shape, "shape") else type(result_shape).__name__
        raise ValueError(f"{name}: {hook} must return an array of shape {shape}, got {got}")


def _shape(name: str, hook: str, function: Callable[..., Any], *operands: Any) -> Any:
    """Return the shapes of a result.

    Raises:
        TypeError: the function fails.
    """
    try:
        return jax.eval_shape(function, *operands)
    except Exception as broken:  # whatever a hook of a user raises
        reason = " ".join(f"{broken}".split())
        raise TypeError(f"{name}: {hook} failed: {type(broken).__name__}: {reason}") from broken
