"""The hooks of an encoding that attention calls, bound to the encoding's parameters."""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

import jax
from jax.tree_util import Partial

from pejax._calls.arguments import checked
from pejax._record.encoding import Encoding, Params, check_embedded, named, with_constants


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Hooks:
    """The hooks that attention calls, each `jax.tree_util.Partial(hook, params)` or None; `attention_hooks` makes them.

    Each runs for one head; what it returns is described at the field of `Encoding` with its name.

    Attributes:
        bias: `(q, k, q_positions, k_positions) -> (T, S)`; if None, attention derives it from `distance_bias`.
        relative_values: `(weights, q_positions, k_positions) -> (T, D)`, added to the output.
        distance_bias: `(key - query) -> (R,)`, the bias of R distances.
        relative_keys: `(key - query) -> (a, v, u)`, the parts of the same bias in a faster form.
        unplaced_bias: `() -> ()`, bias of every key without a position.
        causal: whether the encoding was made for a causal model: attention then refuses `causal=False`.
        hides: whether the bias may be -inf, which hides a key from a query.
    """

    bias: Any = None
    relative_values: Any = None
    distance_bias: Any = None
    relative_keys: Any = None
    unplaced_bias: Any = None
    causal: bool = field(default=False, metadata={"static": True})
    hides: bool = field(default=False, metadata={"static": True})

    def items(self) -> Iterator[tuple[str, Any]]:
        """Iterate over the names and values of the hooks that are not None."""
        values = ((name, getattr(self, name)) for name in HOOK_NAMES)
        return ((name, value) for name, value in values if value is not None)


HOOK_NAMES = tuple(entry.name for entry in fields(Hooks) if not entry.metadata.get("static"))
"""Names of the fields that hold hooks; the static ones are facts, which `jit` compiles in."""


@checked
def attention_hooks(encoding: Encoding, params: Params, *, rotated: bool = False, embedded: bool = False) -> Hooks:
    """Return the argument `hooks` of `dot_product_attention` for an encoding and its parameters.

    Attention refuses the hooks of an encoding made for a causal model (`Dims.causal`) unless its `causal` is True.

    Args:
        encoding: the encoding whose hooks are bound.
        params: merged parameters; adapted (`adapt`) if the encoding depends on the length or grid.
        rotated: whether the caller rotates q and k by the encoding; if it has `bands`, once per band.
        embedded: whether `encoding.embed` is applied to the input of the model.

    Raises:
        ValueError: the encoding rotates while `rotated` is False, or embeds while `embedded` is False: positions would
            be lost.
    """
    if (encoding.rotate or encoding.rotate_keys or encoding.bands) and not rotated:
        raise ValueError(
            f"{named(encoding)} rotates queries and keys, which no hook of attention does: call attend, or rotate both "
            "and pass rotated=True, got False"
        )
    check_embedded(encoding, embedded)
    return bound_hooks(encoding, params)


def bound_hooks(encoding: Encoding, params: Params) -> Hooks:
    """Return the encoding's hooks of attention, each bound to the parameters that hooks read: "all" and "heads"."""
    params = with_constants(encoding, params)
    hook_params = {name: params[name] for name in ("all", "heads") if name in params}
    hooks = {name: hook for name in HOOK_NAMES if (hook := getattr(encoding, name)) is not None}
    bound = {name: Partial(hook, hook_params) for name, hook in hooks.items()}
    return Hooks(**bound, causal=encoding.causal, hides=encoding.hides)
