"""One tile of scores inside a kernel on a GPU: its logits, and the gradients with respect to the bias's inputs.

A tile has queries as rows and keys as columns, or the other way round, if it is transposed. The fields of `TokenRows`
broadcast to it: those of its rows are `(size, 1)`, those of its columns `(1, size)`.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jaxtyping import Array, Float, UInt32

from pejax._attention.core.dropout import Dropout, keep_pairs
from pejax._attention.core.masks import all_of, keep_hidden, pair_masks
from pejax._attention.core.options import Options
from pejax._attention.gpu.gpu_math import exp2, multiply_add
from pejax._attention.kernels.block_masks import Position, TokenRows
from pejax._attention.kernels.elementwise import Elementwise
from pejax._attention.kernels.tokens_first import LOG2_E
from pejax._ops.relative import difference


class Plan(NamedTuple):
    """The static settings of a kernel.

    Attributes:
        options: scale, masks, soft cap and dropout rate of the attention.
        blocks: numbers of queries and of keys in a tile, powers of two of at least 16.
        counts: numbers of query blocks and of key blocks, after padding.
        group: number of query heads per key head.
        bias: elementwise bias, whose `inside` is evaluated in every tile; None = the tile computes no bias.
        far: whether there are tiles in which all pairs have one bias, the first or the last of `Inputs.diagonals`.
        slots: number of slots where `Inputs.diagonals` are differences of slots.
        float_axes: number of position axes that it has gradients for.
        one_dropout: whether all examples and heads drop the same pairs.
        interpret: whether to run in Pallas's interpreter.
        inline: whether to use instructions of NVIDIA's GPUs that Pallas has no name for (`gpu_math`).
    """

    options: Options
    blocks: tuple[int, int]
    counts: tuple[int, int]
    group: int
    bias: Elementwise | None = None
    far: bool = False
    slots: int = 0
    float_axes: int = 0
    one_dropout: bool = False
    interpret: bool = False
    inline: bool = False

    def with_blocks(self, blocks: tuple[int, int]) -> "Plan":
        """Return the plan for tiles of another size."""
        lengths = (size * count for size, count in zip(self.blocks, self.counts, strict=True))
        counts = tuple(length // size for length, size in zip(lengths, blocks, strict=True))
        return self._replace(blocks=blocks, counts=counts)


class Inputs(NamedTuple):
    """Inputs of a kernel; each program loads its own part.

    Attributes:
        q: queries, padded in T and D.
        k: keys, padded in S and D.
        v: values, padded in S and D.
        q_tokens: tokens of the queries.
        k_tokens: tokens of the keys.
        numbers: parameters of the bias that is computed in tiles: arrays `(H,)`, one number per head.
        diagonals: bias of each diagonal, at index `j - i + T - 1`; R = T + S, both padded. Where tokens have slots,
            bias of each difference of two slots.
        dropout_words: six numbers of 32 bits that dropout hashes: the two of the seed, and the indices of the first
            example, head, query and key.
        key_bias: bias of each key, added to the logits after the cap.
        spans: where each program's loops begin and end, `(N, I, 6)` as `spans` returns; None = it visits all tiles, and
            all their pairs are visible.
    """

    q: Float[Array, "N T H D"]
    k: Float[Array, "N S K D"]
    v: Float[Array, "N S K D"]
    q_tokens: TokenRows
    k_tokens: TokenRows
    numbers: tuple[Array, ...] = ()
    diagonals: Float[Array, "H R"] | None = None
    dropout_words: UInt32[Array, "6"] | None = None
    key_bias: Float[Array, "N H S"] | None = None
    spans: Array | None = None


class Place(NamedTuple):
    """The place of a tile: example n, query head, block i of queries, block j of keys.

    `transposed` says whether queries are its columns. `constant` is the bias of all its pairs; None = they may differ.
    """

    n: Array
    head: Array
    i: Array
    j: Array
    transposed: bool = False
    constant: Array | None = None


class Scores(NamedTuple):
    """The logits of a tile, and two factors for their gradient, all in the shape of the tile.

    Attributes:
        logits: logits after the cap over `logit_scale`, -inf where the query does not see the key.
        cap_derivative: d logits / d (scale·q·k + bias). None = 1 everywhere.
        keep: factors by which dropout multiplies the weights. None = 1 everywhere.
    """

    logits: Array
    cap_derivative: Array | None
    keep: Array | None


def dot(plan: Plan, a: Array, b: Array, *, b_transposed: bool = False) -> Array:
    """Return a · b, or a · b^T, in float32."""
    if plan.interpret:  # the interpreter's platform may lack products of 16-bit types with float32 sums
        a, b = a.astype(jnp.float32), b.astype(jnp.float32)
    contract = (((1,), (1 if b_transposed else 0,)), ((), ()))
    return lax.dot_general(a, b, contract, precision=plan.options.precision, preferred_element_type=jnp.float32)


def tile_tokens(plan: Plan, inputs: Inputs, place: Place) -> tuple[TokenRows, TokenRows]:
    """Load the tokens of a tile's queries and keys."""

    def load_tokens(tokens: TokenRows, block: Array, size: int, are_rows: bool) -> TokenRows:
        def load_field(ref: Any) -> Array:
            x = ref[place.n if ref.shape[0] > 1 else 0, pl.ds(block * size, size)]
            return x[:, None] if are_rows else x[None, :]

        return jax.tree.map(load_field, tokens)

    q_size, k_size = plan.blocks
    q_tokens = load_tokens(inputs.q_tokens, place.i, q_size, not place.transposed)
    return q_tokens, load_tokens(inputs.k_tokens, place.j, k_size, place.transposed)


def tile_bias(plan: Plan, inputs: Inputs, place: Place, q_tokens: TokenRows, k_tokens: TokenRows) -> Array | None:
    """Return the bias of a tile, 0 in pairs in which a token has no position. None = no bias."""
    if place.constant is not None:
        bias = jnp.broadcast_to(place.constant, plan.blocks[::-1] if place.transposed else plan.blocks)
    elif inputs.diagonals is not None:
        bias = inputs.diagonals[place.head, _differences(plan, place, q_tokens, k_tokens)]
    elif plan.bias is not None:
        bias = _computed_bias(plan, head_numbers(inputs, place), q_tokens.positions, k_tokens.positions)
    else:
        return None
    return placed_only(bias, q_tokens, k_tokens)


def _differences(plan: Plan, place: Place, q_tokens: TokenRows, k_tokens: TokenRows) -> Array:
    """Return the index in `Inputs.diagonals` of each pair: its difference j - i, or of slots, minus the lowest."""
    q_size, k_size = plan.blocks
    if q_tokens.slots is not None and k_tokens.slots is not None:
        return k_tokens.slots - q_tokens.slots + (plan.slots - 1)
    q_index = place.i * q_size + lax.broadcasted_iota(jnp.int32, (q_size, 1), 0)
    k_index = place.j * k_size + lax.broadcasted_iota(jnp.int32, (1, k_size), 1)
    if place.transposed:
        q_index = place.i * q_size + lax.broadcasted_iota(jnp.int32, (1, q_size), 1)
        k_index = place.j * k_size + lax.broadcasted_iota(jnp.int32, (k_size, 1), 0)
    return k_index - q_index + (plan.counts[0] * q_size - 1)


def end_biases(plan: Plan, inputs: Inputs, head: Array) -> tuple[Array, Array] | None:
    """Return the bias of one head where keys are far before the query, and far after it; None = `Plan.far` is False."""
    if not plan.far:
        return None
    last = sum(size * count for size, count in zip(plan.blocks, plan.counts, strict=True)) - 1
    return inputs.diagonals[head, 0], inputs.diagonals[head, last]  # pyright: ignore[reportOptionalSubscript]


def _computed_bias(
    plan: Plan, numbers: list[Array], q_positions: tuple[Position, ...], k_positions: tuple[Position, ...]
) -> Array:
    """Return the elementwise bias of a tile from the positions of its queries and keys, one per axis."""
    relative = tuple(map(_distances, q_positions, k_positions))
    return plan.bias.inside(numbers, relative).astype(jnp.float32)  # pyright: ignore[reportOptionalMemberAccess]


def _distances(q: Position, k: Position) -> Array:
    """Return key - query on one axis; the sum of two parts is the difference rounded once."""
    if len(q) == 1:
        return difference(q[0], k[0])
    return (k[0] - q[0]) + (k[1] - q[1])


def head_numbers(inputs: Inputs, place: Place) -> list[Array]:
    """Load `Inputs.numbers` of one head."""
    return [ref[place.head] for ref in inputs.numbers]


def placed_only(x: Array, q_tokens: TokenRows, k_tokens: TokenRows) -> Array:
    """Return x, an array of the shape of a tile, with 0 in pairs in which a token has no position."""
    if q_tokens.has_position is None:
        return x
    return jnp.where((q_tokens.has_position != 0) & (k_tokens.has_position != 0), x, 0.0)


def scores(
    plan: Plan, inputs: Inputs, place: Place, products: Array, q_tokens: TokenRows, k_tokens: TokenRows, masked: bool
) -> Scores:
    """Return the scores of a tile from its products q·k.

    Args:
        plan: static settings.
        inputs: references to the inputs.
        place: place of the tile.
        products: q·k, or k·q if the tile is transposed.
        q_tokens: tokens of the queries.
        k_tokens: tokens of the keys.
        masked: whether the tile may have masked pairs; if not, no mask is computed.
    """
    scale, cap_derivative, keep = plan.options.scale, None, None
    bias = tile_bias(plan, inputs, place, q_tokens, k_tokens)
    if logit_scale(plan, inputs) != 1:
        logits = products
    else:
        logits = scale * products if bias is None else multiply_add(products, scale, bias, plan.inline)
    if (cap := plan.options.soft_cap) is not None:
        tanh = jnp.tanh(logits / cap)
        logits, cap_derivative = keep_hidden(plan.options, logits, cap * tanh), 1 - tanh * tanh
    if inputs.key_bias is not None:
        key_bias = inputs.key_bias[place.n, place.head, pl.ds(place.j * plan.blocks[1], plan.blocks[1])]
        logits = logits + (key_bias[:, None] if place.transposed else key_bias[None, :])
    as_sides = lambda q_field, k_field: None if q_field is None else (q_field, k_field)
    orders = as_sides(q_tokens.order, k_tokens.order)
    segments = as_sides(q_tokens.segment_ids, k_tokens.segment_ids)
    mask = all_of(pair_masks(plan.options, orders, segments)) if masked else None
    logits = logits if mask is None else jnp.where(mask, logits, -jnp.inf)
    if inputs.dropout_words is not None:
        keep = _keep(plan, inputs.dropout_words, place, (q_tokens.place, k_tokens.place))
    return Scores(logits, cap_derivative, keep)


def logit_scale(plan: Plan, inputs: Inputs) -> float:
    """Return the factor between `Scores.logits` and the logits: that of q·k where nothing is added to it, else 1.

    Maxima of logits are those of q·k only if it is positive.
    """
    alone = plan.bias is None and inputs.diagonals is None and inputs.key_bias is None
    return plan.options.scale if alone and plan.options.soft_cap is None and plan.options.scale > 0 else 1.0


def exponentials(plan: Plan, inputs: Inputs, logits: Array, shifts: Array) -> Array:
    """Return e^(logits - shifts), as a power of two.

    Args:
        plan: static settings.
        inputs: tell the unit of the logits.
        logits: `Scores.logits` of a tile.
        shifts: natural logarithms over ln 2; they broadcast to the tile.
    """
    return exp2(multiply_add(logits, logit_scale(plan, inputs) * LOG2_E, -shifts, plan.inline), plan.inline)


def _keep(plan: Plan, dropout_words: Any, place: Place, places: tuple[Array | None, Array | None]) -> Array:
    """Return 1 / (1 - rate) for the pairs that dropout keeps, else 0.

    `places` are those of queries and keys which moved to their slots.
    """
    zero = jnp.uint32(0)
    batch, head = (
        (zero, zero)
        if plan.one_dropout
        else (x.astype(jnp.uint32) + dropout_words[i] for x, i in ((place.n, 2), (place.head, 3)))
    )
    dropout = Dropout((dropout_words[0], dropout_words[1]), batch, head, dropout_words[4], dropout_words[5])  # pyright: ignore[reportArgumentType]
    in_order = lambda block, size: block * size + lax.iota(jnp.int32, size)
    rate, (q_size, k_size) = plan.options.dropout_rate, plan.blocks
    indices = in_order(place.i, q_size), in_order(place.j, k_size)
    q, k = (
        (index if moved is None else moved.reshape(-1)).astype(jnp.uint32)
        for index, moved in zip(indices, places, strict=True)
    )
    factors = jnp.where(keep_pairs(dropout, q, k, rate), 1 / (1 - rate), 0.0)
    return factors.T if place.transposed else factors


def scores_gradient(tile: Scores, weights: Array, d_weights: Array, mean: Array) -> tuple[Array, Array, Array]:
    """Return the weights after dropout, and the gradients of scale·q·k + bias and of the logits after the cap.

    Args:
        tile: scores of the tile.
        weights: weights of the tile before dropout.
        d_weights: gradient of the weights after dropout.
        mean: `Rows.mean` of each query, as a row or a column.
    """
    if tile.keep is not None:
        d_weights = d_weights * tile.keep
    d_logits = weights * (d_weights - mean)
    if tile.keep is not None:
        weights = weights * tile.keep
    return weights, d_logits if tile.cap_derivative is None else d_logits * tile.cap_derivative, d_logits


def bias_gradient(
    plan: Plan, inputs: Inputs, place: Place, d_scores: Array, q_tokens: TokenRows, k_tokens: TokenRows
) -> tuple[list[Array], tuple[Array, ...], tuple[Array, ...]]:
    """Return a tile's contribution to the gradients of the inputs of a bias that is computed in it.

    Returns:
        The gradients of `Inputs.numbers`, one number each, and of the positions of queries and of keys, one array per
        axis in their shape; () for integer positions, which have no gradient.
    """
    numbers, d_scores = head_numbers(inputs, place), placed_only(d_scores, q_tokens, k_tokens)
    positions = q_tokens.positions, k_tokens.positions
    if plan.float_axes:
        _, pullback = jax.vjp(functools.partial(_computed_bias, plan), numbers, *positions)
        d_numbers, *sides = pullback(d_scores)
        d_q, d_k = (tuple(part for (part,) in side) for side in sides)
        return d_numbers, d_q, d_k
    _, pullback = jax.vjp(lambda numbers: _computed_bias(plan, numbers, *positions), numbers)
    return *pullback(d_scores), (), ()
