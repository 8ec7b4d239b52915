"""Memory, arithmetic and traffic of a training step on a mesh, estimated from sizes, to rank meshes before compiling.

On one device of d x f x t x s (data, fsdp, tensor, sequence), n = B / (d f parts) examples of T / s tokens:

    state           parameters and optimizer state, sharded; gradients, sharded like the parameters
    saved           the activations before each layer, and those that `remat` saves inside
    layer           live arrays in the backward pass of one layer; its kernels, gathered over fsdp
    ends            the full embedding table and its gradient; a chunk of logits

    fsdp            kernels, gathered in the forward and backward pass; gradients, reduce-scattered
    data, sequence  gradients, all-reduced
    tensor          activations, all-reduced twice per layer in the forward pass, the backward pass and recomputation
    sequence        keys and values around the ring, and their gradients in the backward pass

After compiling, the compiler's figures are printed beside the estimates.
"""

import functools
import itertools
import math
from typing import NamedTuple

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding

from train.devices.mesh import AXES, RULES, parameter_shardings, require_divisible
from train.engine.abstract_step import BACKWARD_AGAIN, AbstractStep, Work, bytes_of
from train.engine.task import Split
from train.lm.cross_entropy import LOGITS_AT_ONCE
from train.plan.topology import Topology

ROOM = 0.85
"""Fraction of the memory that an estimate may fill; compiled steps may need a tenth more than estimated."""

Sizes = dict[str, int]
"""Number of devices along each axis of the mesh."""


class Arithmetic(NamedTuple):
    """FLOPs of a step.

    Attributes:
        model: without recomputation.
        again: recomputation that saves memory.
        busiest: FLOPs of the device with the most work: with a causal mask, the last one along `sequence`.
    """

    model: float
    again: float
    busiest: float


class Estimate(NamedTuple):
    """The estimated cost of a step on a mesh.

    Attributes:
        sizes: sizes of the mesh.
        memory: bytes on a device, by purpose.
        sent: bytes that a device sends, by axis of the mesh.
        arithmetic: FLOPs of the step.
        compute: seconds of arithmetic on the busiest device, at its peak.
        network: seconds of sending.
    """

    sizes: Sizes
    memory: dict[str, float]
    sent: dict[str, float]
    arithmetic: Arithmetic
    compute: float
    network: float

    @property
    def bound(self) -> float:
        """Lower bound on the seconds of a step, with arithmetic and traffic at the same time."""
        return max(self.compute, self.network)


def estimate(subject: AbstractStep, topology: Topology, sizes: Sizes) -> Estimate:
    """Return the estimated cost of a step on a mesh."""
    work, device = subject.work, topology.device
    count = arithmetic(work, sizes)
    sent = _sent(work, sizes, sum(leaf.size for leaf in jax.tree.leaves(subject.split.shapes)))
    compute, network = count.busiest / device.peak, sum(sent.values()) / device.network
    return Estimate(sizes, step_memory(subject, sizes), sent, count, compute, network)


def arithmetic(work: Work, sizes: Sizes) -> Arithmetic:
    """Return the FLOPs of a step and of the busiest device."""
    ring = sizes["sequence"] > 1
    pairs = work.pair_flops * (3 + BACKWARD_AGAIN + ring)
    again = work.pair_flops * (BACKWARD_AGAIN + ring)
    if work.remat == "full":
        again += work.layer_flops
        pairs += work.pair_flops
    ring_steps, devices = sizes["sequence"], math.prod(sizes.values())
    # The last device of a causal ring has one half-masked block, else full ones; on average it is half of all blocks.
    slowest = (2 * ring_steps - 1) / ring_steps if work.causal else 1
    total = work.model_flops + again
    return Arithmetic(work.model_flops, again, (total - pairs + slowest * pairs) / devices)


def meshes(work: Work, devices: int) -> list[Sizes]:
    """Return all meshes over this number of devices that divide the work evenly."""
    divisors = [size for size in range(1, devices + 1) if devices % size == 0]
    candidates = []
    for fsdp, tensor, sequence in itertools.product(divisors, repeat=3):
        data, remainder = divmod(devices, fsdp * tensor * sequence)
        sizes: Sizes = dict(zip(AXES, (data, fsdp, tensor, sequence), strict=True))
        if not remainder and data and divides(work, sizes):
            candidates.append(sizes)
    return candidates


def divides(work: Work, sizes: Sizes) -> bool:
    """Return whether a mesh divides the work evenly."""
    try:
        require_divisible(sizes, batch=work.batch // work.parts, kv_heads=work.heads, length=work.tokens)
    except ValueError:
        return False
    return True


def rank_meshes(subject: AbstractStep, topology: Topology) -> list[Estimate]:
    """Return the estimates of all meshes, best first: fitting ones by time, then the others by memory.

    Raises:
        ValueError: no mesh divides the work evenly.
    """
    estimates = [estimate(subject, topology, sizes) for sizes in meshes(subject.work, topology.devices)]
    if not estimates:
        rule = f"batch / accumulate, key heads and tokens must divide evenly over {topology.devices} devices"
        got = f"{subject.work.batch // subject.work.parts}, {subject.work.heads} and {subject.work.tokens}"
        raise ValueError(f"{rule}, got {got}")

    def order(entry: Estimate) -> tuple[float, ...]:
        memory = sum(entry.memory.values())
        fits = memory <= ROOM * topology.device.memory
        return (0, entry.bound, float(f"{entry.network:.1e}"), memory) if fits else (1, memory)

    return sorted(estimates, key=order)


def _local(work: Work, sizes: Sizes) -> float:
    """Return the number of tokens that a device processes at once."""
    return work.batch / work.parts / sizes["data"] / sizes["fsdp"] * work.tokens / sizes["sequence"]


def _logits(work: Work, sizes: Sizes) -> float:
    """Return the number of logits that a device computes at once."""
    return _local(work, sizes) * work.rows / work.tokens * work.columns / sizes["tensor"]


def step_memory(subject: AbstractStep, sizes: Sizes) -> dict[str, float]:
    """Return the estimated bytes of a training step on one device of a mesh, by purpose."""
    work, tensor, tokens = subject.work, sizes["tensor"], _local(subject.work, sizes)
    params = _parameter_bytes(
        subject.split, tuple((axis, sizes[axis] if axis in RULES.values() else 1) for axis in AXES)
    )
    qkv = (work.queries + 2 * work.keys) / tensor
    products = qkv + (work.queries + work.hidden) / tensor + 2 * work.width
    inside = {"full": 0, "products": products, "none": 2 * products - work.hidden / tensor + 6 * work.width}[work.remat]
    layer = work.item * (4 * work.width + 3 * qkv + 4 * work.hidden / tensor) + 4 * (qkv + 2 * work.width)
    kernels = work.layer / tensor * (2 * work.item + 4 if sizes["fsdp"] > 1 else 4)
    return {
        "state": params * subject.state / bytes_of(subject.split.shapes),
        "gradients": params * (1 + (work.parts > 1) + (work.item < 4) / 2),
        "saved": work.layers * tokens * (work.width + inside) * work.item,
        "layer": tokens * layer + kernels,
        "ends": work.table * (4 + work.item)
        + 3 * 4 * min(_logits(work, sizes), LOGITS_AT_ONCE["tpu"]),  # a GPU: half the bytes of twice as many
    }


@functools.lru_cache(maxsize=1024)
def _parameter_bytes(split: Split, sizes: tuple[tuple[str, int], ...]) -> int:
    """Return the bytes of the parameters on one device; cached, because it is slow and many meshes have the same."""
    mesh = AbstractMesh(tuple(size for _, size in sizes), AXES, axis_types=(AxisType.Auto,) * len(AXES))
    shardings = parameter_shardings(split.variables, mesh)  # pyright: ignore[reportArgumentType]

    def shard_bytes(leaf: jax.ShapeDtypeStruct, sharding: NamedSharding) -> int:
        return leaf.dtype.itemsize * math.prod(sharding.shard_shape(leaf.shape))

    return sum(jax.tree.leaves(jax.tree.map(shard_bytes, split.shapes, shardings)))


def _sent(work: Work, sizes: Sizes, parameters: int) -> dict[str, float]:
    data, fsdp, tensor, sequence = (sizes[axis] for axis in AXES)
    tokens, again = _local(work, sizes), work.remat == "full"
    part = lambda size: (size - 1) / size
    kernels = (work.layers * work.layer + work.width * work.columns) / tensor
    gradients = 2 * 4 * parameters / fsdp / tensor
    once = work.parts * work.layers * tokens
    ring = 2 * work.keys / tensor * (work.item * (2 + again) + 4)
    return {
        "data": gradients * part(data),
        "fsdp": part(fsdp) * (work.parts * kernels * (2 * work.item + 4) + work.table * (work.item + 2 * 4)),
        "tensor": once * (2 + again) * 2 * 2 * part(tensor) * work.width * work.item,
        "sequence": (once * sequence * ring if sequence > 1 else 0) + gradients * part(sequence),
    }
