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
from pejax._attention.kernels.block_masks import TokenRows
from pejax._attention.kernels.elementwise import Elementwise
from pejax._ops.relative import difference


class Plan(NamedTuple):
    """The static settings of a kernel.

    Attributes:
        options: scale, masks, soft cap and dropout rate of the attention.
        blocks: numbers of queries and of keys in a tile, powers of two of at least 16.
        counts: numbers of query blocks and of key blocks, after padding.
        group: number of query heads per key head.
        bias: elementwise bias, whose `inside` is evaluated in every tile; None = the tile computes no bias.
        one_dropout: whether all examples and heads drop the same pairs.
        interpret: whether to run in Pallas's interpreter.
    """

    options: Options
    blocks: tuple[int, int]
    counts: tuple[int, int]
    group: int
    bias: Elementwise | None = None
    one_dropout: bool = False
    interpret: bool = False

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
        diagonals: bias of each diagonal, at index `j - i + T - 1`; R = T + S, both padded.
        dropout_words: six numbers of 32 bits that dropout hashes: the two of the seed, and the indices of the first
            example, head, query and key.
        key_bias: bias of each key, added to the logits after the cap.
        spans: where each program's loop begins and ends, `(N, I, 4)` as `block_masks.spans` returns; None = it visits
            all tiles.
    """

    q: Float[Array, "N H T D"]
    k: Float[Array, "N K S D"]
    v: Float[Array, "N K S D"]
    q_tokens: TokenRows
    k_tokens: TokenRows
    numbers: tuple[Array, ...] = ()
    diagonals: Float[Array, "H R"] | None = None
    dropout_words: UInt32[Array, "6"] | None = None
    key_bias: Float[Array, "N H S"] | None = None
    spans: Array | None = None


class Place(NamedTuple):
    """The place of a tile: example n, query head, block i of queries, block j of keys.

    `transposed` says whether queries are its columns.
    """

    n: Array
    head: Array
    i: Array
    j: Array
    transposed: bool = False


class Scores(NamedTuple):
    """The logits of a tile, and two factors for their gradient, all in the shape of the tile.

    Attributes:
        logits: logits after the cap, -inf where the query does not see the key.
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
    if inputs.diagonals is not None:
        q_size, k_size = plan.blocks
        q_index = place.i * q_size + lax.broadcasted_iota(jnp.int32, (q_size, 1), 0)
        k_index = place.j * k_size + lax.broadcasted_iota(jnp.int32, (1, k_size), 1)
        if place.transposed:
            q_index = place.i * q_size + lax.broadcasted_iota(jnp.int32, (1, q_size), 1)
            k_index = place.j * k_size + lax.broadcasted_iota(jnp.int32, (k_size, 1), 0)
        bias = inputs.diagonals[place.head, k_index - q_index + (plan.counts[0] * q_size - 1)]
    elif plan.bias is not None:
        bias = _computed_bias(plan, head_numbers(inputs, place), q_tokens.positions, k_tokens.positions)
    else:
        return None
    return placed_only(bias, q_tokens, k_tokens)


def _computed_bias(
    plan: Plan, numbers: list[Array], q_positions: tuple[Array, ...], k_positions: tuple[Array, ...]
) -> Array:
    """Return the elementwise bias of a tile from the positions of its queries and keys, one array per axis."""
    relative = tuple(map(difference, q_positions, k_positions))
    return plan.bias.inside(numbers, relative).astype(jnp.float32)  # pyright: ignore[reportOptionalMemberAccess]


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
    logits, cap_derivative, keep = plan.options.scale * products, None, None
    bias = tile_bias(plan, inputs, place, q_tokens, k_tokens)
    logits = logits if bias is None else logits + bias
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
        keep = _keep(plan, inputs.dropout_words, place)
    return Scores(logits, cap_derivative, keep)


def _keep(plan: Plan, dropout_words: Any, place: Place) -> Array:
    """Return 1 / (1 - rate) for the pairs that dropout keeps, else 0."""
    zero = jnp.uint32(0)
    batch, head = (
        (zero, zero)
        if plan.one_dropout
        else (x.astype(jnp.uint32) + dropout_words[i] for x, i in ((place.n, 2), (place.head, 3)))
    )
    dropout = Dropout((dropout_words[0], dropout_words[1]), batch, head, dropout_words[4], dropout_words[5])  # pyright: ignore[reportArgumentType]
    indices = lambda block, size: (block * size + lax.iota(jnp.int32, size)).astype(jnp.uint32)
    rate, (q_size, k_size) = plan.options.dropout_rate, plan.blocks
    factors = jnp.where(
        keep_pairs(dropout, indices(place.i, q_size), indices(place.j, k_size), rate), 1 / (1 - rate), 0.0
    )
    return factors.T if place.transposed else factors


def scores_gradient(tile: Scores, lse: Array, d_weights: Array, mean: Array) -> tuple[Array, Array, Array]:
    """Return the weights after dropout, and the gradients of scale·q·k + bias and of the logits after the cap.

    Args:
        tile: scores of the tile.
        lse: log-sum-exp of each query, 0 for -inf, as a row or a column.
        d_weights: gradient of the weights after dropout.
        mean: `Rows.mean` of each query, as a row or a column.
    """
    weights = jnp.exp(tile.logits - lse)
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
        axis in the shape of `TokenRows.positions`; () for integer positions, which have no gradient.
    """
    numbers, d_scores = head_numbers(inputs, place), placed_only(d_scores, q_tokens, k_tokens)
    positions = q_tokens.positions, k_tokens.positions
    if q_tokens.positions and jnp.issubdtype(q_tokens.positions[0].dtype, jnp.floating):
        _, pullback = jax.vjp(functools.partial(_computed_bias, plan), numbers, *positions)
        return pullback(d_scores)
    _, pullback = jax.vjp(lambda numbers: _computed_bias(plan, numbers, *positions), numbers)
    return *pullback(d_scores), (), ()
