"""The cross-entropy of a language model whose logits need not be in memory all at once.

    loss_i = log Σ_v exp(x_i · w_v) - x_i · w_{label of i}

Where one device would hold more than `LOGITS_AT_ONCE` of them, they are made in chunks of tokens, forward and again
backward. Each device has its own tokens, and its own columns w where they are split; the sums over columns are added up
over the devices that share them.
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
from pejax.models import Execution

LOGITS_AT_ONCE = 2**27
"""On one device: half a gigabyte in float32. Forward and backward hold a few arrays of this size."""


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
        states: normed, of the last layer.
        columns: of the head, float32; multiplied in the type of the states.
        labels: from 0 to V-1.
        execution: over which devices this is computed.
        at_once: logits that a device may hold; above it they are made in chunks.
    """
    split = {} if execution.mesh is None else dict(execution.mesh.shape)
    vocab = execution.heads if columns.shape[1] % split.get(execution.heads, 1) == 0 else None
    devices = math.prod(split.get(axis, 1) for axis in (*execution.batch, execution.sequence, vocab))
    if labels.size * columns.shape[1] <= at_once * devices:
        logits = product(states, columns.astype(states.dtype))
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    if execution.mesh is None:
        return _in_chunks(states, columns, labels, at_once=at_once, vocab=None)
    own = functools.partial(_in_chunks, at_once=at_once, vocab=vocab)
    tokens = PartitionSpec(execution.batch or None, execution.sequence)
    specs = tokens, PartitionSpec(None, vocab), tokens
    return jax.shard_map(own, mesh=execution.mesh, in_specs=specs, out_specs=tokens, check_vma=False)(
        states, columns, labels
    )


def _in_chunks(states: Array, columns: Array, labels: Array, *, at_once: int, vocab: str | None) -> Array:
    """Return the cross-entropy of this device's tokens, from its columns, which start at its place on `vocab`."""
    width, own = columns.shape
    first = lax.axis_index(vocab) * own if vocab else 0

    @jax.checkpoint
    def chunk(some: tuple[Array, Array]) -> Array:
        rows, wanted = some
        logits = product(rows, columns.astype(rows.dtype))  # here, so that the columns' gradient is summed in float32
        top = lax.stop_gradient(jnp.max(logits, axis=-1))
        top = lax.pmax(top, vocab) if vocab else top
        total = jnp.sum(jnp.exp(logits - top[:, None]), axis=-1)
        place = wanted - first
        here = (place >= 0) & (place < own)
        found = jnp.take_along_axis(logits, jnp.clip(place, 0, own - 1)[:, None], axis=-1)[:, 0]
        found = jnp.where(here, found, 0.0)
        total, found = lax.psum((total, found), vocab) if vocab else (total, found)
        return jnp.log(total) + top - found

    count = math.ceil(labels.size * own / at_once)
    size = math.ceil(labels.size / count)
    missing = count * size - labels.size
    rows = jnp.pad(states.reshape(-1, width), ((0, missing), (0, 0))).reshape(count, size, width)
    wanted = jnp.pad(labels.reshape(-1), (0, missing)).reshape(count, size)
    return lax.map(chunk, (rows, wanted)).reshape(-1)[: labels.size].reshape(labels.shape)
