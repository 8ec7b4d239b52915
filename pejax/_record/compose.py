"""Composes encodings that act in different places, such as a learned table and RoPE, into one record."""

import functools
from typing import Any

import jax

from pejax._calls.arguments import checked
from pejax._record.encoding import Encoding, merge_params
from pejax._record.params import Extent, Params
from pejax._record.specs import SumSpec

PLACES = {
    "embeds": ("embed",),
    "rotates": ("rotate", "rotate_keys", "bands"),
    "adds to the logits or values": ("bias", "distance_bias", "relative_keys", "relative_values"),
}
"""Hooks by the place where they act; at most one part acts in each place."""


@checked
def compose_encodings(*parts: Encoding) -> Encoding:
    """Return one encoding with the hooks of all parts, which act in different places.

    At most one part embeds (`learned`, ...), one rotates (`rope`, ...) and one adds to the logits or values
    (`alibi`, `t5`, ...). The parameters of the parts are merged, and each part adapts its own. In a string,
    `make_encoding("learned+rope", dims)`, it is written with `+`. Equal parts give the same object.

    Args:
        parts: two or more records, made for the same dims.

    Raises:
        ValueError: fewer than two parts, parts for different dims, a part without hooks, two parts that act in the
            same place or have different biases of keys without a position, or parts with parameters of the same name.

    Reference:
        Heo et al. 2024, "Rotary Position Embedding for Vision Transformer" (arXiv 2403.13298), section 4.1: RoPE
        together with a learned table.

    Examples:
        >>> import pejax
        >>> dims = pejax.Dims(heads=4, head_dim=16, axes=2, extent=(7, 7))
        >>> both = compose_encodings(pejax.encodings.learned(dims), pejax.encodings.rope_mixed(dims))
        >>> both is pejax.make_encoding("learned+rope_mixed", dims)
        True
    """
    if len(parts) < 2:
        raise ValueError(f"compose_encodings takes two or more encodings, got {len(parts)}")
    return _composed(parts)


@functools.cache
def _composed(parts: tuple[Encoding, ...]) -> Encoding:
    dims = {part.dims for part in parts if part.dims is not None}
    if len(dims) > 1:
        raise ValueError(f"the parts must be made for the same dims, got {' and '.join(map(str, dims))}")
    hooks = _hooks(parts)
    _check_names(parts)
    specs = [part.spec for part in parts if part.spec is not None]
    return Encoding(
        init=functools.partial(_drawn, tuple(part.init for part in parts)),
        init_layer=functools.partial(_drawn, tuple(part.init_layer for part in parts)),
        constants=_merged(parts, "constants"),
        adapt=functools.partial(_adapted, parts) if any(part.adapt for part in parts) else None,
        layer_constants=_merged(parts, "layer_constants"),
        shift_invariant=all(part.shift_invariant for part in parts),
        unplaced_bias=_unplaced_bias(parts),
        hides=any(part.hides for part in parts),
        periods=next((part.periods for part in parts if part.periods), ()),
        dims=next(iter(dims), None),
        spec=SumSpec(tuple(part for spec in specs for part in spec.parts)) if len(specs) == len(parts) else None,
        **hooks,
    )


def _hooks(parts: tuple[Encoding, ...]) -> dict[str, Any]:
    """Return the hooks of all parts, each from the part that acts in its place."""
    hooks: dict[str, Any] = {}
    acting = set()
    for place, names in PLACES.items():
        owners = [part for part in parts if any(getattr(part, name) for name in names)]
        if len(owners) > 1:
            raise ValueError(f"at most one part {place}, got {' and '.join(_name(part) for part in owners)}")
        hooks |= {name: getattr(owners[0], name) for name in names if owners}
        acting |= set(map(id, owners))
    for part in parts:
        if id(part) not in acting:
            rule = "a part must embed, rotate or add to the logits, to be seen beside the others"
            raise ValueError(f"{rule}, got {_name(part)}")
    return hooks


def _unplaced_bias(parts: tuple[Encoding, ...]) -> Any:
    """Return the one bias of keys without a position. Parts that are all extended by `pi` share it: it counts once."""
    by_hook = {part.unplaced_bias: part for part in parts if part.unplaced_bias is not None}
    if len(by_hook) > 1:
        raise ValueError(f"at most one part has an unplaced_bias, got {' and '.join(map(_name, by_hook.values()))}")
    return next(iter(by_hook), None)


def _name(part: Encoding) -> str:
    return str(part.spec or "an encoding without a spec")


def _check_names(parts: tuple[Encoding, ...]) -> None:
    """Raise ValueError where two parts have a parameter of the same name: shapes alone are computed."""
    key = jax.random.key(0)
    shapes = [jax.eval_shape(lambda part=part: merge_params(part.init(key), part.init_layer(key))) for part in parts]
    try:
        functools.reduce(merge_params, shapes)
    except ValueError:
        names = [sorted(params) for params in shapes]
        raise ValueError(f"the parts must have parameters of different names, got {names}") from None


def _drawn(inits: tuple[Any, ...], key: jax.Array) -> Params:
    """Draw the parameters of all parts, each from its own key."""
    keys = jax.random.split(key, len(inits))
    return functools.reduce(merge_params, [init(part_key) for init, part_key in zip(inits, keys, strict=True)])


def _merged(parts: tuple[Encoding, ...], name: str) -> Any:
    """Return a function to the merged constants of the parts, or None where no part has any."""
    functions = [getattr(part, name) for part in parts if getattr(part, name) is not None]
    if not functions:
        return None
    return lambda *layers: functools.reduce(merge_params, [function(*layers) for function in functions])


def _adapted(parts: tuple[Encoding, ...], params: Params, extent: Extent) -> Params:
    """Return the parameters after every part has adapted its own."""
    for part in parts:
        params = params if part.adapt is None else part.adapt(params, extent)
    return params
