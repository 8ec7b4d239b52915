"""The cross-entropy of a language model, without all its logits in memory at once, and its gradients.

    loss_i = log Σ_v exp(x_i · w_v) - x_i · w_{label of i}

If one device would hold more than `LOGITS_AT_ONCE` logits, they are computed in chunks of tokens. Training knows the
weight a_i of every loss beforehand, so that a chunk gives its part of the gradients of `Σ_i a_i loss_i` while its
logits are there, and they are not computed again:

    g_iv = a_i (exp(x_i · w_v) / Σ_u exp(x_i · w_u) - [v = label of i])    dx_i = Σ_v g_iv w_v    dw_v = Σ_i g_iv x_i

Each device has its shard of the tokens, and of the columns w if they are sharded; the sums over columns are then added
up over the devices.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from pejax._ops.backend import platform
from pejax._ops.derivatives import Rules, differentiable
from pejax._ops.matmul import kernel_gradient, product
from pejax.models import Decoder, Execution

LOGITS_AT_ONCE = {"cpu": 2**27, "gpu": 2**28, "tpu": 2**27}
"""Logits per device: 2^27 are half a gigabyte in float32. A pass holds a few arrays of this size."""
LOWEST = float(np.finfo(np.float32).min)
"""Logit of a column that is no token."""
ALIGNED = 64
"""The number of columns is made a multiple of this for 16-bit products on a GPU, which copies other matrices."""


def token_losses(
    model: Decoder,
    ids: Int[Array, "B T_1"],
    segment_ids: Int[Array, "B T_1"] | None = None,
    execution: Execution = Execution(),
) -> Float[Array, "B T"]:
    """Return the cross-entropy of every token after the first, in nats.

    Args:
        model: a decoder with a head.
        ids: the tokens.
        segment_ids: document of each token; None = all of one document.
        execution: the devices and shardings.
    """
    states = _states(model, ids, segment_ids, execution)
    if model.head is not None and model.head.is_product:
        return cross_entropy(states, model.columns(), ids[:, 1:], execution)
    return _of_any_head(model, states, ids[:, 1:])


def total_loss(
    model: Decoder,
    ids: Int[Array, "B T_1"],
    weights: Float[Array, "B T"],
    segment_ids: Int[Array, "B T_1"] | None = None,
    execution: Execution = Execution(),
) -> Float[Array, ""]:
    """Return `Σ weights · loss` over every token after the first; its gradients need no more memory than its value.

    Args:
        model: a decoder with a head.
        ids: the tokens.
        weights: weight of the loss of each token; it gets no gradient.
        segment_ids: document of each token; None = all of one document.
        execution: the devices and shardings.
    """
    states = _states(model, ids, segment_ids, execution)
    if model.head is not None and model.head.is_product:
        return weighted_cross_entropy(states, model.columns(), ids[:, 1:], weights, execution)
    return jnp.sum(_of_any_head(model, states, ids[:, 1:]) * weights)


def _states(model: Decoder, ids: Array, segment_ids: Array | None, execution: Execution) -> Float[Array, "B T C"]:
    """Return the states of every token but the last, after the final norm."""
    segments = None if segment_ids is None else segment_ids[:, :-1]
    return model.states(ids[:, :-1], segment_ids=segments, execution=execution)


def cross_entropy(
    states: Float[Array, "B T C"],
    columns: Float[Array, "C V"],
    labels: Int[Array, "B T"],
    execution: Execution = Execution(),
    *,
    at_once: int | None = None,
) -> Float[Array, "B T"]:
    """Return the cross-entropy of each token, in nats.

    Args:
        states: states of the last layer, after the final norm.
        columns: columns of the head; multiplied in the dtype of the states.
        labels: true tokens, from 0 to V-1.
        execution: the devices and shardings.
        at_once: most logits that a device may hold; if there are more, they are computed in chunks. None = those of
            `LOGITS_AT_ONCE`.
    """
    return _losses(_split(columns, labels, execution, at_once), states, columns, labels)


def _losses(split: "_Split", states: Array, columns: Array, labels: Array) -> Float[Array, "B T"]:
    """Return the cross-entropy of each token, computed in the chunks of `split`."""
    if split.chunks == 1:
        logits = product(states, columns.astype(states.dtype))
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels)

    def of_shard(columns: Array, states: Array, labels: Array) -> Array:
        first, column = _first_column(split, columns), jnp.arange(columns.shape[1])

        @jax.checkpoint
        def chunk(part: tuple[Array, Array]) -> Array:
            rows, targets = part
            return _chunk_losses(split, product(rows, columns), targets, column + first)[0]

        losses = lax.map(chunk, _cut(split.chunks, states.reshape(-1, states.shape[-1]), labels.reshape(-1)))
        return losses.reshape(-1)[: labels.size].reshape(labels.shape)

    return _per_shard(split, of_shard, columns, (states, labels), lambda tokens, _: tokens)


def weighted_cross_entropy(
    states: Float[Array, "B T C"],
    columns: Float[Array, "C V"],
    labels: Int[Array, "B T"],
    weights: Float[Array, "B T"],
    execution: Execution = Execution(),
    *,
    at_once: int | None = None,
) -> Float[Array, ""]:
    """Return `Σ weights · loss`; the gradients with respect to states and columns are computed beside the value.

    The arguments are those of `cross_entropy`, and `weights`: the weight of the loss of each token, without a gradient.
    """
    split, weights = _split(columns, labels, execution, at_once), lax.stop_gradient(weights)
    if split.chunks == 1 and platform() != "gpu":
        return jnp.sum(cross_entropy(states, columns, labels, execution, at_once=at_once) * weights)
    return differentiable(_RULES, split, (states, columns, labels, weights))[0]


class _Split(NamedTuple):
    """How a loss is split.

    Attributes:
        execution: the devices and shardings.
        vocab: mesh axis that columns are split over; None = none.
        tokens: V, the number of columns of all devices.
        chunks: number of parts of a device's tokens.
    """

    execution: Execution
    vocab: str | None
    tokens: int
    chunks: int


def _split(columns: Array, labels: Array, execution: Execution, at_once: int | None) -> _Split:
    """Return how a loss is split so that no device holds more than `at_once` logits."""
    at_once = at_once or LOGITS_AT_ONCE[platform()]
    sizes = {} if execution.mesh is None else dict(execution.mesh.shape)
    # The columns of the head are sharded over the axis that shards attention heads, where it divides them.
    vocab = execution.heads if columns.shape[1] % sizes.get(execution.heads, 1) == 0 else None
    devices = math.prod(sizes.get(axis, 1) for axis in (*execution.batch, execution.sequence, vocab))
    chunks = max(1, math.ceil(labels.size * columns.shape[1] / (at_once * devices)))
    return _Split(execution, vocab, columns.shape[1], chunks)


def _weighted(split: _Split, operands: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array]:
    """Return the sum, and its gradients with respect to states and columns.

    Args:
        split: how the loss is split.
        operands: states, columns, labels and weights.
    """
    states, columns, labels, weights = operands

    def of_shard(columns: Array, states: Array, labels: Array, weights: Array) -> tuple[Array, Array, Array]:
        first, width = _first_column(split, columns), columns.shape[1]
        narrow = states.dtype.itemsize < 4 and platform() == "gpu"
        kernel = jnp.pad(columns, ((0, 0), (0, -width % ALIGNED if narrow else 0))).astype(states.dtype)
        column = jnp.arange(kernel.shape[1])
        numbers = jnp.where(column < width, column + first, -1)

        def chunk(sums: tuple[Array, Array], part: tuple[Array, Array, Array]) -> tuple[tuple[Array, Array], Array]:
            rows, targets, weight = part
            logits, pull = jax.vjp(lambda rows: product(rows, kernel), rows)
            logits = jnp.where(column < width, logits, LOWEST)
            losses, log_sum = _chunk_losses(split, logits, targets, numbers)
            is_label = numbers == targets[:, None]
            slopes = (jnp.exp(logits - log_sum[:, None]) - is_label.astype(logits.dtype)) * weight[:, None]
            d_columns = kernel_gradient(rows, slopes.astype(rows.dtype))
            return (sums[0] + jnp.sum(losses * weight), sums[1] + d_columns), pull(slopes)[0]

        wide = jnp.float32 if states.dtype.itemsize < 4 else states.dtype
        tokens = states.reshape(-1, states.shape[-1]), labels.reshape(-1), weights.reshape(-1).astype(wide)
        parts = _cut(split.chunks, *tokens)
        sums = jnp.zeros((), wide), jnp.zeros(kernel.shape, wide)
        (total, d_columns), d_rows = lax.scan(chunk, sums, parts)
        d_states = d_rows.reshape(-1, states.shape[-1])[: labels.size].reshape(states.shape)
        if split.execution.mesh is not None:
            axes = (*split.execution.batch, *filter(None, (split.execution.sequence,)))
            total, d_columns = lax.psum((total, d_columns), axes)
            d_states = lax.psum(d_states, split.vocab) if split.vocab else d_states
        return total, d_states, d_columns[:, :width].astype(columns.dtype)

    specs = lambda tokens, kernel: (PartitionSpec(), tokens, kernel)
    total, d_states, d_columns = _per_shard(split, of_shard, columns, (states, labels, weights), specs)
    return total, d_states, d_columns


def _in_logits(split: _Split, operands: tuple[Array, Array, Array, Array]) -> Array:
    """Return the sum, by operations that have forward mode."""
    *tokens, weights = operands
    return jnp.sum(_losses(split, *tokens) * weights)


def _scaled_gradients(split: _Split, operands: Any, saved: tuple[Array, Array], cotangents: Any) -> list[Array]:
    """Return the gradients of states, columns and weights; those of the weights are not used."""
    del split
    scaled = [(cotangents[0] * x.astype(cotangents[0].dtype)).astype(x.dtype) for x in saved]
    return [*scaled, jnp.zeros_like(operands[3])]


_RULES = Rules(
    run=_weighted,
    plain=_in_logits,
    save=lambda split, operands, outputs: outputs[1:],
    pull=_scaled_gradients,
    filled=False,
)


def _per_shard(
    split: _Split, of_shard: Callable[..., Any], columns: Array, tokens: tuple[Array, ...], outputs: Callable[..., Any]
) -> Any:
    """Return `of_shard(columns, *tokens)`, where each device has its shards of both.

    Args:
        split: the devices.
        of_shard: function of one device.
        columns: columns of the head.
        tokens: arrays `(B, T, ...)`.
        outputs: returns the shardings of the result, given those of tokens and columns.
    """
    execution = split.execution
    if execution.mesh is None:
        return of_shard(columns, *tokens)
    by_token, by_column = PartitionSpec(execution.batch or None, execution.sequence), PartitionSpec(None, split.vocab)
    specs = by_column, *(by_token,) * len(tokens)
    run = jax.shard_map(
        of_shard, mesh=execution.mesh, in_specs=specs, out_specs=outputs(by_token, by_column), check_vma=False
    )
    return run(columns, *tokens)


def _first_column(split: _Split, columns: Array) -> Array | int:
    """Return the index of the first column of this device."""
    return lax.axis_index(split.vocab) * columns.shape[1] if split.vocab else 0


def _cut(chunks: int, *arrays: Array) -> Any:
    """Return arrays of tokens in chunks of one size, filled with 0."""
    fill = -len(arrays[0]) % chunks
    pad = lambda x: jnp.pad(x, ((0, fill), *((0, 0),) * (x.ndim - 1)))
    return tuple(pad(x).reshape(chunks, -1, *x.shape[1:]) for x in arrays)


def _chunk_losses(
    split: _Split, logits: Float[Array, "N V"], targets: Int[Array, " N"], columns: Int[Array, " V"]
) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
    """Return losses and the logarithms of the sums of exponentials, of all devices together.

    Args:
        split: the devices.
        logits: logits of this device's columns; `LOWEST` where a column is no token.
        targets: true tokens, which may be on another device; the loss of one that is on none is NaN.
        columns: numbers of the columns; -1 = no token.
    """
    top, total, label_logits = _row_sums(logits, columns == targets[:, None])
    if split.vocab:
        highest = lax.pmax(lax.stop_gradient(top), split.vocab)
        total, label_logits = lax.psum((total * jnp.exp(top - highest), label_logits), split.vocab)
        top = highest
    log_sum = jnp.log(total) + top
    is_known = (targets >= 0) & (targets < split.tokens)
    return jnp.where(is_known, log_sum - label_logits, jnp.nan), log_sum


@jax.custom_jvp
def _row_sums(
    logits: Float[Array, "N V"], is_label: Bool[Array, "N V"]
) -> tuple[Float[Array, " N"], Float[Array, " N"], Float[Array, " N"]]:
    """Return the largest logit of each row, the sum of exponentials over its own, and the logit of the label, or 0."""
    label_logits = jnp.where(is_label, logits, 0.0)
    if platform() == "gpu":
        zero = jnp.zeros((), logits.dtype)
        return lax.reduce(
            (logits, jnp.ones_like(logits), label_logits), (jnp.full_like(zero, LOWEST), zero, zero), _merge, (1,)
        )
    top = jnp.max(logits, axis=-1)  # a reduction of several arrays would be a slow loop
    return top, jnp.sum(jnp.exp(logits - top[:, None]), axis=-1), jnp.sum(label_logits, axis=-1)


@_row_sums.defjvp
def _row_sums_change(primals: tuple[Array, Array], tangents: tuple[Array, Any]) -> tuple[Any, Any]:
    """Return the sums and their change: the largest logit counts as constant, as the loss does not depend on it."""
    (logits, is_label), (change, _) = primals, tangents
    top, total, label_logits = _row_sums(logits, is_label)
    d_total = jnp.sum(jnp.exp(logits - lax.stop_gradient(top)[:, None]) * change, axis=-1)
    d_label = jnp.sum(jnp.where(is_label, change, 0.0), axis=-1)
    return (top, total, label_logits), (jnp.zeros_like(top), d_total, d_label)


def _merge(left: tuple[Array, ...], right: tuple[Array, ...]) -> tuple[Array, Array, Array]:
    """Return the largest logit, the sum of exponentials over its own, and the label's logit of two parts of a row.

    All three are found in one pass over the logits.
    """
    (a, a_total, a_label), (b, b_total, b_label) = left, right
    factor = jnp.exp(-jnp.abs(a - b))
    total = jnp.where(a > b, a_total + factor * b_total, factor * a_total + b_total)
    return jnp.maximum(a, b), total, a_label + b_label


def _of_any_head(model: Decoder, states: Float[Array, "B T C"], labels: Int[Array, "B T"]) -> Float[Array, "B T"]:
    """Return the cross-entropies of a head that is not a product, with the logits of a part in memory at once."""
    batch, tokens = labels.shape
    chunks = min(tokens, math.ceil(labels.size * model.config.vocab / LOGITS_AT_ONCE[platform()]))
    padding = -tokens % chunks

    def cut(x: Array) -> Array:
        x = jnp.pad(x, ((0, 0), (0, padding), *((0, 0),) * (x.ndim - 2)))
        return jnp.moveaxis(x.reshape(batch, chunks, -1, *x.shape[2:]), 1, 0)

    @jax.checkpoint
    def chunk(part: tuple[Array, Array]) -> Array:
        rows, targets = part
        return optax.softmax_cross_entropy_with_integer_labels(model.logits(rows), targets)

    return jnp.moveaxis(jax.lax.map(chunk, (cut(states), cut(labels))), 0, 1).reshape(batch, -1)[:, :tokens]
