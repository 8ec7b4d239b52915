"""The hooks of an encoding, bound to its parameters: what attention takes of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from jax.tree_util import Partial

from pejax._encoding import Encoding, Params, check_embedded, with_constants


class Hooks(NamedTuple):
    """What attention takes of an encoding: each `Partial(hook, params)`, or None. Made by `attention_hooks`.

    Attributes:
        bias: as `Encoding.bias`; derived from `distance_bias` where only that is given.
        relative_values: as `Encoding.relative_values`.
        distance_bias: as `Encoding.distance_bias`.
        relative_keys: as `Encoding.relative_keys`.
    """

    bias: Partial | None = None
    relative_values: Partial | None = None
    distance_bias: Partial | None = None
    relative_keys: Partial | None = None


@dataclass(frozen=True)
class CausalHook:
    """A hook of an encoding made for a causal model; equal for equal hooks, so that jit knows it again."""

    hook: Callable[..., Any]

    def __call__(self, *operands: Any) -> Any:
        return self.hook(*operands)


def attention_hooks(encoding: Encoding, params: Params, *, rotated: bool = False, embedded: bool = False) -> Hooks:
    """Return what `dot_product_attention` takes of this encoding and its parameters, as its argument `hooks`.

    Those of an encoding made for a causal model (`Dims.causal`) are refused by attention that is not `causal`.

    Args:
        encoding: the record.
        params: adapted (`adapt`) where the encoding depends on the length or grid.
        rotated: says that q and k are rotated as the encoding has it (in bands, for each range of distances).
        embedded: says that `encoding.embed` is applied to the input of the model.

    Raises:
        ValueError: the encoding rotates, or embeds, and nothing says that this is done: position would be lost.
    """
    if (encoding.rotate or encoding.rotate_keys or encoding.bands) and not rotated:
        raise ValueError(
            "this encoding rotates queries and keys, which no hook of attention does: call attend, or rotate both and"
            " pass rotated=True, got False"
        )
    check_embedded(encoding, embedded)
    hooks = bound_hooks(encoding, params)
    if not encoding.causal:
        return hooks
    return Hooks(*(None if hook is None else Partial(CausalHook(hook.func), *hook.args) for hook in hooks))


def bound_hooks(encoding: Encoding, params: Params) -> Hooks:
    """Return the hooks of attention, each bound to the parameters that hooks read."""
    params = with_constants(encoding, params)
    operands = {name: params[name] for name in ("all", "heads") if name in params}
    bind = lambda hook: None if hook is None else Partial(hook, operands)
    return Hooks(*(bind(getattr(encoding, name)) for name in Hooks._fields))
