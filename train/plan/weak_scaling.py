"""Weak scaling, estimated: the same work per device on more and more devices, with the best mesh for each number."""

import dataclasses
from typing import NamedTuple

from train.engine.abstract_step import AbstractStep
from train.plan.estimate import Estimate, rank_meshes
from train.plan.topology import Topology

COUNTS = (64, 128, 256, 512, 1024, 2048, 4096)
"""Numbers of chips."""


class ScalingRow(NamedTuple):
    """The estimate for one number of chips.

    Attributes:
        chips: number of chips.
        batch: examples per step.
        estimate: estimate of the best mesh.
        one_slice: whether one slice has this many chips.
    """

    chips: int
    batch: int
    estimate: Estimate
    one_slice: bool

    @property
    def full_overlap(self) -> float:
        """Fraction of the step that is arithmetic, if all traffic overlaps with it."""
        return self.estimate.compute / self.estimate.bound

    @property
    def no_overlap(self) -> float:
        """Fraction of the step that is arithmetic, if no traffic overlaps with it."""
        return self.estimate.compute / (self.estimate.compute + self.estimate.network)


def scaling(subject: AbstractStep, topology: Topology, counts: tuple[int, ...] = COUNTS) -> list[ScalingRow]:
    """Return estimates for machines of this family, with a batch in proportion to the number of chips.

    Args:
        subject: the step, with the batch for `topology`.
        topology: a machine of any size.
        counts: numbers of chips.

    Raises:
        ValueError: the batch for a number of chips is not an integer, or no mesh divides the work evenly.
    """
    rows = []
    for chips in counts:
        devices = chips * topology.device.chip
        batch, remainder = divmod(subject.work.batch * devices, topology.devices)
        if remainder or batch % subject.work.parts or not batch:
            rule = f"batch must be an integer when scaled to {chips} chips"
            raise ValueError(f"{rule}, got {subject.work.batch} on {topology.devices // topology.device.chip}")
        machine = topology._replace(devices=devices)
        best = rank_meshes(_with_batch(subject, batch), machine)[0]
        rows.append(ScalingRow(chips, batch, best, not topology.device.slice or devices <= topology.device.slice))
    return rows


def _with_batch(subject: AbstractStep, batch: int) -> AbstractStep:
    """Return the step with another batch size; all arithmetic is proportional to it."""
    work = subject.work
    flops = {name: getattr(work, name) * batch // work.batch for name in ("model_flops", "layer_flops", "pair_flops")}
    config = dataclasses.replace(subject.config, batch=batch)
    return subject._replace(
        config=config, work=work._replace(batch=batch, **flops), units=subject.units * batch // work.batch
    )
