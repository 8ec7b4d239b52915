"""The cross-entropy of a language model, without all its logits in memory at once.

    loss_i = log Σ_v exp(x_i · w_v) - x_i · w_{label of i}

If one device would hold more than `LOGITS_AT_ONCE` logits, they are computed in chunks of tokens, and computed again in
the backward pass. Each device has its shard of the tokens, and of the columns w if they are sharded; the sums over
columns are then added up over the devices.
"""

import functools
import math

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from pejax._ops.matmul import product
from pejax.models import Decoder, Execution

LOGITS_AT_ONCE = 2**27
"""Logits per device: half a gigabyte in float32. The forward and backward passes hold a few arrays of this size."""


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
    segments = None if segment_ids is None else segment_ids[:, :-1]
    states = model.states(ids[:, :-1], segment_ids=segments, execution=execution)
    if model.head is not None and model.head.is_product:
        return cross_entropy(states, model.columns(), ids[:, 1:], execution)
    return _of_any_head(model, states, ids[:, 1:])


def cross_entropy(
    states: Float[Array, "B T C"],
    columns: Float[Array, "C V"],
    labels: Int[Array, "B T"],
    execution: Execution = Execution(),
    *,
    at_once: int = LOGITS_AT_ONCE,
) -> Float[Array, "B T"]:
    """Return the cross-entropy of each token, in nats.

    Args:
        states: states of the last layer, after the final norm.
        columns: columns of the head, float32; multiplied in the dtype of the states.
        labels: true tokens, from 0 to V-1.
        execution: the devices and shardings.
        at_once: most logits that a device may hold; if there are more, they are computed in chunks.
    """
    split = {} if execution.mesh is None else dict(execution.mesh.shape)
    # The columns of the head are sharded over the axis that shards attention heads, where it divides them.
    vocab = execution.heads if columns.shape[1] % split.get(execution.heads, 1) == 0 else None
    devices = math.prod(split.get(axis, 1) for axis in (*execution.batch, execution.sequence, vocab))
    if labels.size * columns.shape[1] <= at_once * devices:
        logits = product(states, columns.astype(states.dtype))
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    if execution.mesh is None:
        return _in_chunks(states, columns, labels, at_once=at_once, vocab=None)
    of_shard = functools.partial(_in_chunks, at_once=at_once, vocab=vocab)
    tokens = PartitionSpec(execution.batch or None, execution.sequence)
    specs = tokens, PartitionSpec(None, vocab), tokens
    return jax.shard_map(of_shard, mesh=execution.mesh, in_specs=specs, out_specs=tokens, check_vma=False)(
        states, columns, labels
    )


def _in_chunks(states: Array, columns: Array, labels: Array, *, at_once: int, vocab: str | None) -> Array:
    """Return the cross-entropy of this device's tokens; its shard of the columns is given by its index on `vocab`."""
    width, shard = columns.shape
    first = lax.axis_index(vocab) * shard if vocab else 0

    @jax.checkpoint
    def chunk(part: tuple[Array, Array]) -> Array:
        rows, targets = part
        logits = product(
            rows, columns.astype(rows.dtype)
        )  # cast here, so that the gradient of the columns is summed in float32
        top = lax.stop_gradient(jnp.max(logits, axis=-1))
        top = lax.pmax(top, vocab) if vocab else top
        total = jnp.sum(jnp.exp(logits - top[:, None]), axis=-1)
        index = targets - first
        inside = (index >= 0) & (index < shard)
        label_logits = jnp.take_along_axis(logits, jnp.clip(index, 0, shard - 1)[:, None], axis=-1)[:, 0]
        label_logits = jnp.where(inside, label_logits, 0.0)
        total, label_logits = lax.psum((total, label_logits), vocab) if vocab else (total, label_logits)
        return jnp.log(total) + top - label_logits

    count = math.ceil(labels.size * shard / at_once)
    size = math.ceil(labels.size / count)
    padding = count * size - labels.size
    rows = jnp.pad(states.reshape(-1, width), ((0, padding), (0, 0))).reshape(count, size, width)
    targets = jnp.pad(labels.reshape(-1), (0, padding)).reshape(count, size)
    return lax.map(chunk, (rows, targets)).reshape(-1)[: labels.size].reshape(labels.shape)


def _of_any_head(model: Decoder, states: Float[Array, "B T C"], labels: Int[Array, "B T"]) -> Float[Array, "B T"]:
    """Return the cross-entropies of a head that is not a product, with the logits of a part in memory at once."""
    batch, tokens = labels.shape
    chunks = min(tokens, math.ceil(labels.size * model.config.vocab / LOGITS_AT_ONCE))
    padding = -tokens % chunks

    def cut(x: Array) -> Array:
        x = jnp.pad(x, ((0, 0), (0, padding), *((0, 0),) * (x.ndim - 2)))
        return jnp.moveaxis(x.reshape(batch, chunks, -1, *x.shape[2:]), 1, 0)

    @jax.checkpoint
    def chunk(part: tuple[Array, Array]) -> Array:
        rows, targets = part
        return optax.softmax_cross_entropy_with_integer_labels(model.logits(rows), targets)

    return jnp.moveaxis(jax.lax.map(chunk, (cut(states), cut(labels))), 0, 1).reshape(batch, -1)[:, :tokens]
