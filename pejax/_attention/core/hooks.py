"""The hooks of an encoding that attention calls, bound to the encoding's parameters."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from jax.tree_util import Partial

from pejax._encoding import Encoding, Params, check_embedded, named, with_constants


class Hooks(NamedTuple):
    """The hooks that attention calls: each is `Partial(hook, params)`, or None. Made by `attention_hooks`.

    Attributes:
        bias: as `Encoding.bias`; derived from `distance_bias` where only that is given.
        relative_values: as `Encoding.relative_values`.
        distance_bias: as `Encoding.distance_bias`.
        relative_keys: as `Encoding.relative_keys`.
        unplaced_bias: as `Encoding.unplaced_bias`.
    """

    bias: Partial | None = None
    relative_values: Partial | None = None
    distance_bias: Partial | None = None
    relative_keys: Partial | None = None
    unplaced_bias: Partial | None = None


@dataclass(frozen=True)
class CausalHook:
    """A hook of an encoding made for a causal model; equal for equal hooks, so that jit knows it again."""

    hook: Callable[..., Any]

    def __call__(self, *operands: Any) -> Any:
        return self.hook(*operands)


@dataclass(frozen=True)
class HidingHook:
    """A bias hook of an encoding that hides keys by -inf; equal for equal hooks, so that jit knows it again."""

    hook: Callable[..., Any]

    def __call__(self, *operands: Any) -> Any:
        return self.hook(*operands)


def hides(hooks: Hooks) -> bool:
    """Return whether the bias may be -inf."""
    functions = [hook.func for hook in (hooks.bias, hooks.distance_bias) if hook is not None]
    return any(isinstance(f.hook if isinstance(f, CausalHook) else f, HidingHook) for f in functions)


def attention_hooks(encoding: Encoding, params: Params, *, rotated: bool = False, embedded: bool = False) -> Hooks:
    """Return the argument `hooks` of `dot_product_attention` for an encoding and its parameters.

    Attention refuses the hooks of an encoding made for a causal model (`Dims.causal`) unless its `causal` is True.

    Args:
        encoding: the record.
        params: merged parameters; adapted (`adapt`) if the encoding depends on the length or grid.
        rotated: whether the caller rotates q and k by the encoding (with bands, for each range of distances).
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
    hooks = bound_hooks(encoding, params)
    if not encoding.causal:
        return hooks
    return Hooks(*(None if hook is None else Partial(CausalHook(hook.func), *hook.args) for hook in hooks))


def bound_hooks(encoding: Encoding, params: Params) -> Hooks:
    """Return the hooks of attention, each bound to the parameters that hooks read."""
    params = with_constants(encoding, params)
    operands = {name: params[name] for name in ("all", "heads") if name in params}
    hiding = ("bias", "distance_bias") if encoding.hides else ()

    def bind(name: str) -> Partial | None:
        hook = getattr(encoding, name)
        return None if hook is None else Partial(HidingHook(hook) if name in hiding else hook, operands)

    return Hooks(*map(bind, Hooks._fields))
