"""The operands of attention: checked once, batch flattened, heads grouped by the key head they share."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.tree_util import Partial
from jaxtyping import Array, Bool, Float, Shaped, UInt32

from pejax._attention.core.dropout import Dropout
from pejax._attention.core.hooks import Hooks
from pejax._attention.core.order import count_from_zero, count_unplaced, known_box
from pejax._attention.core.reference import PairArrays
from pejax._calls.hook_calls import check_returned, naming_hook
from pejax._ops.backend import vmap_or_map
from pejax._ops.pytrees import wide
from pejax._record.encoding import Params, from_distance, split_params
from pejax._tokens.positions import TokenPositions, as_token_positions

HeadFunction = Callable[..., tuple[Array, Array]]
"""Attention of one head:
`(q, k, v, hooks, q_tokens, k_tokens, key_bias, dropout, pair_arrays) -> (output, log-sum-exp)`, with q and the output
`(T, D)`, k and v `(S, D)`, the key bias `(S,)` and the log-sum-exp `(T,)`."""


class Origin(NamedTuple):
    """Global indices of the first example, head, query and key of a shard: dropout counts from there.

    Queries and keys that moved, as to the slots of a grid, have a number each.
    """

    batch: UInt32[Array, ""] | np.uint32 = np.uint32(0)
    head: UInt32[Array, ""] | np.uint32 = np.uint32(0)
    query: UInt32[Array, "*T"] | np.uint32 = np.uint32(0)
    key: UInt32[Array, "*S"] | np.uint32 = np.uint32(0)


class Operands(NamedTuple):
    """The arrays of one call: N = the product of *B, G = H / K query heads for each key head.

    Attributes:
        q: queries.
        k: keys.
        v: values.
        shared: the hooks, bound to the parameters that all heads share.
        per_head: for the name of each hook, its parameters that differ by head; the arrays begin with the axes K, G.
        q_tokens: positions of the queries, every field `(T,)` or `(N, T)`; on A > 1 axes, positions have A at the end.
        k_tokens: positions of the keys, `(S,)` or `(N, S)` likewise.
        key_bias: bias of each key, added to the logits after the cap.
        seed: two random 32-bit numbers that dropout hashes. None = no dropout.
        pair_arrays: mask and bias that the caller gives as arrays, `(N, K, G, T, S)`.
        origin: global indices of the first example, head, query and key in these arrays.
    """

    q: Float[Array, "N K G T D"]
    k: Float[Array, "N K S D"]
    v: Float[Array, "N K S D"]
    shared: Hooks
    per_head: dict[str, Params]
    q_tokens: TokenPositions
    k_tokens: TokenPositions
    key_bias: Float[Array, "N K G S"] | None
    seed: UInt32[Array, "2"] | None
    pair_arrays: PairArrays
    origin: Origin = Origin()


class Layout(NamedTuple):
    """The static structure of the operands; hashable.

    Attributes:
        q_axes: batch axis of each field of the queries' `TokenPositions`: 0, or None for a field that is not batched.
        k_axes: the same for the keys' `TokenPositions`.
        one_dropout: whether all examples and heads drop the same pairs.
        in_order: whether queries and keys are known to be the same tokens, at 0 ... T-1.
        by_place: whether known positions, which may have gaps, let fused kernels count tokens by their place in the
            arrays; otherwise the program decides where it runs.
        box: the lowest and the highest position on each axis, where positions are known, whole and distinct, and a bias
            depends on their distance; None = they are not, or `in_order` tells all.
        unplaced: numbers of queries and of keys that have no position, where `box` is known.
    """

    q_axes: TokenPositions
    k_axes: TokenPositions
    one_dropout: bool = False
    in_order: bool = False
    by_place: bool = False
    box: tuple[tuple[int, int], ...] | None = None
    unplaced: tuple[int, int] = (0, 0)


def over_heads(function: HeadFunction, operands: Operands, layout: Layout) -> tuple[Array, Array]:
    """Apply a function of one head to all of them: `vmap` over the batch, `vmap_or_map` over heads.

    The heads of a single query, as in decoding, are computed at once. Tokens that are not batched stay so, and a bias
    that does not read q and k is evaluated once for the whole batch.

    Returns:
        The function's outputs with N, K, G in front.
    """
    q, k, v, shared, per_head, q_tokens, k_tokens, key_bias, seed, pair_arrays, origin = operands
    n, key_heads, group_size, queries = q.shape[:4]
    lift = jax.vmap if queries == 1 else vmap_or_map
    batch_id, head_id = jnp.arange(n, dtype=jnp.uint32), jnp.arange(key_heads * group_size, dtype=jnp.uint32)
    batch_id, head_id = batch_id + origin.batch, head_id + origin.head
    if layout.one_dropout:
        batch_id, head_id = jnp.zeros_like(batch_id), jnp.zeros_like(head_id)

    # Each function takes away one axis: N, then K with the k and v that a group of heads shares, then G.
    def example(q, k, v, q_tokens, k_tokens, batch_id, bias_and_pair_arrays):
        def group(q, k, v, group_operands):
            def head(q, head_operands):
                params, head_id, (key_bias, pair_arrays) = head_operands
                dropout = None if seed is None else Dropout(seed, batch_id, head_id, origin.query, origin.key)
                hooks = bind_hooks(shared, params)
                return function(q, k, v, hooks, q_tokens, k_tokens, key_bias, dropout, pair_arrays)

            if group_size == 1:  # with an axis of size 1, XLA copies into another layout around every loop
                outputs = head(*jax.tree.map(lambda x: x[0], (q, group_operands)))
                return jax.tree.map(lambda x: x[None], outputs)
            return lift(head)(q, group_operands)

        head_ids = head_id.reshape(key_heads, group_size)
        return lift(group)(q, k, v, (per_head, head_ids, bias_and_pair_arrays))

    in_axes = (0, 0, 0, layout.q_axes, layout.k_axes, 0, 0)
    return jax.vmap(example, in_axes)(q, k, v, q_tokens, k_tokens, batch_id, (key_bias, pair_arrays))


def bind_hooks(shared: Hooks, head_params: Mapping[str, Params]) -> Hooks:
    """Return the hooks of one head, each bound to the parameters that all heads share and to those of the head.

    Args:
        shared: the hooks, bound to the parameters that all heads share.
        head_params: the parameters of this head, by the name of the hook.
    """
    bound = {name: Partial(hook.func, {**hook.args[0], **head_params[name]}) for name, hook in shared.items()}
    return replace(shared, **bound)


def prepare(
    q: Array,
    k: Array,
    v: Array,
    positions: TokenPositions | Array | None,
    k_positions: TokenPositions | Array | None,
    hooks: Hooks,
    seed: Array | None,
    mask: Array | None = None,
    bias_array: Array | None = None,
    key_bias: Array | None = None,
    axes: int | None = None,
) -> tuple[Operands, Layout]:
    """Check the arguments, derive a bias hook from `distance_bias` if there is none, and make the `Operands`.

    Args:
        q: queries `(*B, T, H, D)`.
        k: keys `(*B, S, K, D)`.
        v: values `(*B, S, K, D)`.
        positions: positions of the queries. None = 0 ... T-1.
        k_positions: positions of the keys. None = `positions`.
        hooks: the hooks. The result of `unplaced_bias` becomes part of the key bias.
        seed: two random 32-bit numbers that dropout hashes. None = no dropout.
        mask: True where a query may see a key; broadcasts to `(*B, H, T, S)`.
        bias_array: bias of each pair; broadcasts to `(*B, H, T, S)`.
        key_bias: bias of each key `(*B, S, H)`.
        axes: A, axes of the positions, where it is known: it says what a square array of them is.

    Raises:
        ValueError: shapes that do not fit together, or positions that are missing.
        TypeError: an array of another type than its argument takes.
    """
    # First, so that the derived bias gets parameters of its own where those of every hook are split by head, below.
    hooks = replace(hooks, bias=derived_bias(hooks.bias, hooks.distance_bias))
    check_arrays(q, k, v)
    *batch, length, heads, dim = q.shape
    k_length, key_heads = k.shape[-3:-1]
    check_positions_given(q, k, positions, k_positions)
    given = [side for side in (positions, k_positions) if side is not None]
    in_order = all(count_from_zero(as_token_positions(side)) for side in given) and length == k_length
    positions = jnp.arange(length) if positions is None else positions
    q_tokens, q_axes = check_tokens("positions", positions, tuple(batch), length, axes)
    k_positions = positions if k_positions is None else k_positions
    k_tokens, k_axes = check_tokens("k_positions", k_positions, tuple(batch), k_length, axes)
    if _position_shape(q_tokens, q_axes) != _position_shape(k_tokens, k_axes):
        shapes = f"{q_tokens.positions.shape} and {k_tokens.positions.shape}"
        raise ValueError(f"positions and k_positions must have the same axes, got {shapes}")
    # One number per key and head is a key bias, so `unplaced_bias` ends here: no implementation has to know that hook.
    key_biases = check_key_bias(key_bias, (*batch, k_length, heads))
    if hooks.unplaced_bias is not None and k_tokens.has_position is not None:
        hook, params = check_hook("unplaced_bias", hooks.unplaced_bias, heads)
        unplaced = _unplaced_bias(hook, params, heads, k_tokens.has_position)
        key_biases = unplaced if key_biases is None else key_biases + unplaced
    hooks = replace(hooks, unplaced_bias=None)
    checked_hooks = {name: check_hook(name, hook, heads) for name, hook in hooks.items()}
    n, head_axes = math.prod(batch), (key_heads, heads // key_heads)
    caller_shape, grouped_shape = (*batch, heads, length, k_length), (n, *head_axes, length, k_length)
    grouped = lambda name, array: None if array is None else pair_array(name, array, caller_shape, grouped_shape)
    pair_arrays = PairArrays(mask=grouped("mask", mask), bias=grouped("bias", bias_array))
    if key_biases is not None:
        key_biases = jnp.broadcast_to(key_biases, (n, heads, k_length)).reshape(n, *head_axes, k_length)
    q, k, v = clear_unused((q, k, v), (q_tokens, k_tokens), mask)  # while their axes are still those of the mask
    operands = Operands(
        q=jnp.moveaxis(q.reshape(n, length, *head_axes, dim), 1, 3),
        k=jnp.moveaxis(k.reshape(n, k_length, key_heads, dim), 1, 2),
        v=jnp.moveaxis(v.reshape(n, k_length, key_heads, dim), 1, 2),
        shared=replace(hooks, **{name: shared for name, (shared, _) in checked_hooks.items()}),
        per_head={
            name: jax.tree.map(lambda x: x.reshape(*head_axes, *x.shape[1:]), params)
            for name, (_, params) in checked_hooks.items()
        },
        q_tokens=q_tokens,
        k_tokens=k_tokens,
        key_bias=key_biases,
        seed=seed,
        pair_arrays=pair_arrays,
    )
    shared = q_axes.positions is None and k_axes.positions is None
    looked_up = hooks.distance_bias is not None and shared and not in_order
    box = known_box(q_tokens, k_tokens) if looked_up and q_axes.has_position is k_axes.has_position is None else None
    unplaced = (0, 0) if box is None else (count_unplaced(q_tokens), count_unplaced(k_tokens))
    return operands, Layout(q_axes, k_axes, in_order=in_order, box=box, unplaced=unplaced)


def clear_unused(
    arrays: tuple[Array, Array, Array], sides: tuple[TokenPositions, TokenPositions], mask: Array | None
) -> list[Array]:
    """Return q, k and v with 0 for padding, for queries that see no key in any head, and for keys that no query sees.

    A NaN there would reach outputs and gradients, since implementations multiply it by a weight of 0.

    Args:
        arrays: q `(*B, T, H, D)`, k and v `(*B, S, K, D)`.
        sides: tokens of the queries and of the keys, whose segment 0 is padding.
        mask: mask array that broadcasts to `(*B, H, T, S)`. Only it is searched for such queries and keys, not `causal`
            and the other masks of `Options`. None = padding alone is cleared.
    """
    cleared = []
    # A query sees nothing if its row of the mask, on the keys' axis, is False throughout; a key, if its column is.
    for x, tokens, axis_of_others in zip(arrays, (*sides, sides[1]), (-1, -2, -2), strict=True):
        if tokens.segment_ids is not None:
            is_token = (tokens.segment_ids != 0).reshape(*(x.shape[:-3] if tokens.segment_ids.ndim > 1 else ()), -1)
            x = jnp.where(is_token[..., None, None], x, 0)
        if mask is not None:
            full_mask = mask.reshape((1,) * (x.ndim - mask.ndim) + mask.shape)
            x = jnp.where(jnp.any(full_mask, axis=(-3, axis_of_others))[..., None, None], x, 0)
        cleared.append(x)
    return cleared


@dataclass(frozen=True)
class _FromDistance:
    """The bias hook that a distance_bias hook implies; equal for equal hooks, so that jit does not trace it again."""

    distance: Callable[[Params, Array], Array]

    def __call__(self, params: Params, q: Array, k: Array, q_positions: Array, k_positions: Array) -> Array:
        return from_distance(self.distance)(params, q, k, q_positions, k_positions)


def derived_bias(bias: Partial | None, distance: Partial | None) -> Partial | None:
    """Return `bias`, or the one that `distance_bias` implies."""
    if bias is not None or distance is None:
        return bias
    return Partial(_FromDistance(distance.func), *distance.args)


def check_positions_given(q: Array, k: Array, positions: object, k_positions: object) -> None:
    """Raise ValueError for missing positions if q and k differ in length: queries after a cache do not start at 0."""
    missing = [name for name, value in (("positions", positions), ("k_positions", k_positions)) if value is None]
    if missing and k.shape[-3] != q.shape[-3]:
        lengths = f"T={q.shape[-3]}, S={k.shape[-3]} of q (*B, T, H, D) = {q.shape} and k (*B, S, K, D) = {k.shape}"
        raise ValueError(f"{' and '.join(missing)} must be given if q and k have different lengths, got {lengths}")


def check_key_bias(key_bias: Array | None, shape: tuple[int, ...]) -> Float[Array, "N H S"] | None:
    """Return a key bias `(*B, S, H)` as `(N, H, S)`, in at least 32 bits; raise an error for another shape or type."""
    if key_bias is None:
        return None
    if not jnp.issubdtype(getattr(key_bias, "dtype", bool), jnp.floating):
        given_type = getattr(key_bias, "dtype", type(key_bias).__name__)
        raise TypeError(f"key_bias must be a floating-point array (*B, S, H), got {given_type}")
    if key_bias.shape != shape:
        raise ValueError(f"key_bias must be (*B, S, H) = {shape}, got shape {key_bias.shape}")
    return jnp.moveaxis(wide(key_bias.reshape(math.prod(shape[:-2]), *shape[-2:])), -1, 1)


def _unplaced_bias(
    shared: Partial, per_head: Params, heads: int, placed: Bool[Array, "*N S"]
) -> Float[Array, "*N H S"]:
    """Return the key bias from `unplaced_bias`: the number of each head at keys without a position, 0 at the others.

    It has no gradient.

    Args:
        shared: the hook, bound to the parameters that all heads share.
        per_head: the parameters of the heads, each with a leading axis H.
        heads: H.
        placed: whether each key has a position.
    """

    def number(params: Params) -> Array:
        head_params = {**shared.args[0], **params}
        with naming_hook("unplaced_bias", shared, head_params):
            result = shared.func(head_params)
        check_returned("unplaced_bias", shared, "one number, ()", (), result)
        return jnp.asarray(result, jnp.float32)

    numbers = lax.stop_gradient(jax.vmap(number, axis_size=heads)(per_head))
    return jnp.where(placed[..., None, :], 0.0, numbers[:, None])


def check_arrays(q: Array, k: Array, v: Array) -> None:
    """Raise an error unless q is `(*B, T, H, D)`, k and v `(*B, S, K, D)`, H a multiple of K, all floating point."""
    if q.ndim < 3:
        raise ValueError(f"q must be (*B, T, H, D), got {q.shape}")
    if k.shape != v.shape:
        raise ValueError(f"k and v must have the same shape, got {k.shape} and {v.shape}")
    if k.ndim != q.ndim or k.shape[:-3] != q.shape[:-3] or k.shape[-1] != q.shape[-1]:
        raise ValueError(f"q (*B, T, H, D) and k (*B, S, K, D) must agree in *B and D, got {q.shape} and {k.shape}")
    if 0 in (*q.shape[-2:], k.shape[-2]) or q.shape[-2] % k.shape[-2]:
        rule = "q's heads must be a multiple of k's, with at least one head and one channel"
        raise ValueError(f"{rule}, got q {q.shape} and k {k.shape}")
    for name, array in (("q", q), ("k", k), ("v", v)):
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise TypeError(f"{name} must be floating point, got {array.dtype}")


def check_sharding(**arrays: Array) -> None:
    """Raise ValueError for an array that is split over explicit axes of a mesh: tiles would cross its shards."""
    for name, array in arrays.items():
        spec = jax.typeof(array).sharding.spec
        if any(part is not None for part in spec):
            hint = "give a Sharding, or use a mesh with axis_types of AxisType.Auto"
            raise ValueError(f"{name} must not be split over explicit mesh axes, got {spec}: {hint}")


def check_tokens(
    name: str, tokens: TokenPositions | Array, batch: tuple[int, ...], length: int, axes: int | None = None
) -> tuple[TokenPositions, TokenPositions]:
    """Return the tokens with *B flattened to N, and the batch axis of each of their fields: 0, or None without one.

    Args:
        name: name of the argument in errors.
        tokens: positions `(T,)` or `(*B, T)`, or with A > 1 axes `(T, A)` or `(*B, T, A)`, or a record of them.
        batch: *B.
        length: T.
        axes: A, where it is known; with 1, a square array is `(*B, T)`.

    Raises:
        ValueError: a field of another shape, or positions whose shape can be read in two ways.
        TypeError: a field of another type.
    """
    tokens = as_token_positions(tokens, (*batch, length))
    unbatched, batched, shape = (length,), (*batch, length), tokens.positions.shape
    # Up to 4 axes may be meant; a larger square shape is read as (*B, T).
    if axes != 1 and shape == batched == (length, length) and 2 <= length <= 4:
        raise ValueError(f"{name} {shape} is both (*B, T) and (T, A): pass (T,), or (*B, T, A) for axes")
    last = () if shape in (unbatched, batched) else shape[-1:]
    if shape[: len(shape) - len(last)] not in (unbatched, batched) or last in ((0,), (1,)):
        rule = f"(T,), (*B, T), or with A > 1 axes (T, A), (*B, T, A), where *B={batch} and T={length}"
        raise ValueError(f"{name} must be {rule}, got {shape}")
    for field, dtype in (("order", jnp.integer), ("has_position", jnp.bool_), ("segment_ids", jnp.integer)):
        value = getattr(tokens, field)
        if value is not None and value.shape not in (unbatched, batched):
            raise ValueError(f"{name}.{field} must be (T,) or (*B, T), *B={batch}, T={length}, got {value.shape}")
        if value is not None and not jnp.issubdtype(value.dtype, dtype):
            raise TypeError(
                f"{name}.{field} must be {'bool' if field == 'has_position' else 'integer'}, got {value.dtype}"
            )
    have_batch = [bool(batch) and x is not None and x.ndim == len(batched) for x in tokens]
    have_batch[0] = bool(batch) and shape == (*batched, *last)  # positions may have an axis more
    flattened = lambda x: x.reshape(-1, *x.shape[len(batch) :])
    flat: list[Any] = [flattened(x) if has_batch else x for x, has_batch in zip(tokens, have_batch, strict=True)]
    batch_axes: list[Any] = [0 if has_batch else None for has_batch in have_batch]
    return TokenPositions(*flat), TokenPositions(*batch_axes)


def check_partials(**hooks: Any) -> None:
    """Raise TypeError for a hook that is not `Partial(hook, params)`."""
    for name, hook in hooks.items():
        bound = isinstance(hook, Partial) and len(hook.args) == 1 and not hook.keywords
        if hook is not None and not (bound and isinstance(hook.args[0], Mapping)):
            hint = "attention_hooks makes them from an encoding, and attention_fn takes an array of biases"
            shape, type_name = getattr(hook, "shape", None), getattr(hook, "__qualname__", type(hook).__name__)
            received = type_name if shape is None else f"{type_name} of shape {shape}"
            rule = f"{name} must be jax.tree_util.Partial(hook, params), params a mapping"
            raise TypeError(f"{rule}, got {received}: {hint}")


def check_hooks(hooks: Hooks) -> None:
    """Raise TypeError for anything but `Hooks` of `Partial(hook, params)`."""
    if not isinstance(hooks, Hooks):
        raise TypeError(f"hooks must be a result of attention_hooks, got {type(hooks).__name__}")
    check_partials(**dict(hooks.items()))


def check_hooks_causal(causal: bool, hooks: Hooks) -> None:
    """Raise ValueError if the hooks' encoding was made for a causal model and `causal` is False."""
    if hooks.causal and not causal:
        raise ValueError("causal must be True with hooks of an encoding made with Dims(causal=True), got False")


def refuse_pair_arrays(operands: Operands) -> None:
    """Raise NotImplementedError for a mask or a bias given as an array."""
    if any(x is not None for x in operands.pair_arrays):
        raise NotImplementedError("a mask or bias array has the size of the scores: use 'dense' or 'reference'")


def check_hook(name: str, hook: Partial, heads: int) -> tuple[Partial, Params]:
    """Return the hook bound to the parameters that all heads share, and the parameters that differ by head.

    All floats among the parameters get at least 32 bits.

    Args:
        name: name of the hook in errors.
        hook: the hook, bound to all of its parameters.
        heads: H, the size of the leading axis of the parameters that differ by head.
    """
    params = hook.args[0]
    if set(params) - {"all", "heads"}:
        raise ValueError(f"{name}: params must hold only 'heads' and 'all', got {sorted(params)}")
    shared, per_head = jax.tree.map(lambda x: wide(jnp.asarray(x)), split_params(params))
    for path, leaf in jax.tree_util.tree_leaves_with_path(per_head):
        if leaf.shape[:1] != (heads,):
            where = jax.tree_util.keystr(path)
            raise ValueError(f"{name}: params['heads']{where} must lead with H={heads}, got shape {leaf.shape}")
    return Partial(hook.func, shared), per_head


def _position_shape(tokens: TokenPositions, batch_axes: TokenPositions) -> tuple[int, ...]:
    """Return the shape of one position: (A,), or () on one axis."""
    return tokens.positions.shape[1 if batch_axes.positions is None else 2 :]


def pair_array(
    name: str, array: Array, caller_shape: tuple[int, ...], grouped_shape: tuple[int, ...]
) -> Shaped[Array, "..."]:
    """Return a mask or bias array, broadcast to `(*B, H, T, S)` and reshaped to `(N, K, G, T, S)`."""
    try:
        return jnp.broadcast_to(array, caller_shape).reshape(grouped_shape)
    except ValueError:
        raise ValueError(f"{name} must broadcast to (*B, H, T, S) = {caller_shape}, got {jnp.shape(array)}") from None
