"""The arithmetic of one tile, as functions of arrays: kernels on Mosaic GPU run it in registers, tests as it is.

Logits are in base 2, l = logits·log₂e, so that exp2 makes the weights, which is one instruction. Where
l = factor·x + shift with a positive factor, x is kept: the product and the shift are then part of the difference under
exp2, of one instruction as well.

Every array of a tile has the tile's shape, because registers do not broadcast by themselves. A tile has queries as rows
and keys as columns, or the other way round, if it is transposed.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from pejax._attention.core.dropout import keep_words
from pejax._attention.core.masks import Sides, all_of, keep_hidden, pair_masks
from pejax._attention.core.options import Options
from pejax._attention.kernels.tokens_first import LOG2_E


class Fields(NamedTuple):
    """What a tile's scores are made of beside its products; None = not needed.

    Attributes:
        bias: bias of each pair times `bias_unit`.
        shift: the bias of all pairs, a number, times `bias_unit`.
        placed: whether query and key have a position: the others have no bias.
        key_bias: bias of each key, in base 2.
        orders: order of queries and of keys.
        segments: segment ids of queries and of keys.
        dropout_words: the word of each query and of each key that dropout hashes.
    """

    bias: Array | None = None
    shift: Array | None = None
    placed: Array | None = None
    key_bias: Array | None = None
    orders: Sides = None
    segments: Sides = None
    dropout_words: Sides = None


class Scores(NamedTuple):
    """The scores of a tile: `factor·x + shift` are its logits in base 2, and what their gradient needs.

    Attributes:
        x: logits before the factor, -inf where the query does not see the key.
        factor: a positive number.
        shift: a number. None = 0.
        cap_derivative: d logits / d (scale·q·k + bias). None = 1 everywhere.
        keep: factors by which dropout multiplies the weights. None = 1 everywhere.
        placed: as in `Fields`.
    """

    x: Array
    factor: float
    shift: Array | None
    cap_derivative: Array | None
    keep: Array | None
    placed: Array | None

    def before_shift(self, logits: Array) -> Array:
        """Return logits in base 2, or what they are compared with, less the shift."""
        return logits if self.shift is None else logits - self.shift


class TileGradients(NamedTuple):
    """The weights of a tile after dropout, and the gradients of its scores.

    Attributes:
        weights: weights after dropout.
        d_scores: gradient of scale·q·k + bias.
        d_bias: gradient of the bias by distance.
        d_logits: gradient of the logits after the cap.
    """

    weights: Array
    d_scores: Array
    d_bias: Array
    d_logits: Array


def bias_unit(options: Options) -> float:
    """Return the factor of a bias that kernels read: log₂e, or 1 / cap where the cap comes next."""
    return LOG2_E if options.soft_cap is None else 1 / options.soft_cap


def scores(options: Options, products: Array, fields: Fields) -> Scores:
    """Return the scores of a tile from its products q·k."""
    unit = options.scale * bias_unit(options)
    may_fold = fields.bias is None and fields.key_bias is None and options.soft_cap is None and unit > 0
    x, factor = (products, unit) if may_fold else (products * unit, 1.0)
    shift, cap_derivative, keep = None, None, None
    if fields.bias is not None:
        x = x + (fields.bias if fields.placed is None else jnp.where(fields.placed, fields.bias, 0.0))
    if fields.shift is not None:
        x, shift = (x, fields.shift) if may_fold else (x + fields.shift, None)
    if options.soft_cap is not None:
        tanh = 1 - 2 / (1 + jnp.exp2(2 * LOG2_E * x))  # GPUs have an instruction for tanh, but of 11 bits
        x, cap_derivative = keep_hidden(options, x, options.soft_cap * LOG2_E * tanh), 1 - tanh * tanh
    if fields.key_bias is not None:
        x = x + fields.key_bias
    mask = all_of(pair_masks(options, fields.orders, fields.segments))
    x = x if mask is None else jnp.where(mask, x, -jnp.inf)
    if fields.dropout_words is not None:
        rate = options.dropout_rate
        keep = jnp.where(keep_words(fields.dropout_words[0] + fields.dropout_words[1], rate), 1 / (1 - rate), 0.0)
    return Scores(x, factor, shift, cap_derivative, keep, fields.placed)


def softmax_step(tile: Scores, row_max: Array, total: Array) -> tuple[Array, Array, Array, Array]:
    """Return the maximum and the total of each row after one more tile, its weights, and how much older sums shrink.

    Args:
        tile: scores of the tile.
        row_max: maximum of each row so far, in base 2.
        total: sum of the weights of each row so far, relative to the maximum; dropout does not change it.
    """
    tile_max = jnp.max(tile.x, axis=1) * tile.factor
    new_max = jnp.maximum(row_max, tile_max if tile.shift is None else tile_max + tile.shift)
    finite_max = jnp.where(new_max == -jnp.inf, 0.0, new_max)
    weights = jnp.exp2(tile.x * tile.factor - across(tile.before_shift(finite_max), tile.x.shape, 0))
    shrink = jnp.exp2(row_max - finite_max)
    total = total * shrink + jnp.sum(weights, axis=1)
    return new_max, total, weights if tile.keep is None else weights * tile.keep, shrink


def ends_of_rows(row_max: Array, total: Array) -> tuple[Array, Array]:
    """Return the divisor of each row's sums, and its log-sum-exp: 1 and -inf where the row sees nothing."""
    sees_nothing = total == 0
    divisor = jnp.where(sees_nothing, 1.0, total)
    return divisor, jnp.where(sees_nothing, -jnp.inf, (row_max + jnp.log2(divisor)) / LOG2_E)


def weights_of(tile: Scores, lse: Array) -> Array:
    """Return the weights of a tile before dropout; `lse`: log-sum-exp of each query in base 2, 0 for -inf."""
    return jnp.exp2(tile.x * tile.factor - tile.before_shift(lse))


def tile_gradients(tile: Scores, weights: Array, d_weights: Array, mean: Array) -> TileGradients:
    """Return the weights after dropout and the gradients of a tile.

    Args:
        tile: scores of the tile.
        weights: weights before dropout.
        d_weights: gradient of the weights after dropout.
        mean: `Rows.mean` of each query.
    """
    kept = weights if tile.keep is None else weights * tile.keep
    d_weights = d_weights if tile.keep is None else d_weights * tile.keep
    d_logits = weights * (d_weights - mean)
    d_scores = d_logits if tile.cap_derivative is None else d_logits * tile.cap_derivative
    d_bias = d_scores if tile.placed is None else jnp.where(tile.placed, d_scores, 0.0)
    return TileGradients(kept, d_scores, d_bias, d_logits)


def across(x: Array, shape: tuple[int, ...], axis: int) -> Array:
    """Return an array of a tile's shape from one number per row (axis 0) or per column (axis 1)."""
    return lax.broadcast_in_dim(x, shape, (axis,))
