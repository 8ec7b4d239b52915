"""Weak scaling, estimated: the same work for each device, on more and more of them, each time on the best mesh."""

import dataclasses
from typing import NamedTuple

from train.plan.abstract_step import Subject
from train.plan.estimate import Estimate, ranked
from train.plan.topology import Topology

COUNTS = (64, 128, 256, 512, 1024, 2048, 4096)
"""Chips."""


class ScalingRow(NamedTuple):
    """One number of chips.

    Attributes:
        chips: of the machine.
        batch: examples in a step.
        estimate: of the best mesh.
        one_slice: whether the chips' own network joins so many.
    """

    chips: int
    batch: int
    estimate: Estimate
    one_slice: bool

    @property
    def overlapped(self) -> float:
        """Share of the step that is arithmetic, where all traffic goes on beside it."""
        return self.estimate.compute / self.estimate.bound

    @property
    def in_turn(self) -> float:
        """Share of the step that is arithmetic, where no traffic does."""
        return self.estimate.compute / (self.estimate.compute + self.estimate.network)


def scaling(subject: Subject, topology: Topology, counts: tuple[int, ...] = COUNTS) -> list[ScalingRow]:
    """Return estimates for machines of this family, the batch growing with them.

    Args:
        subject: whose batch is that of `topology`.
        topology: of any size.
        counts: chips.

    Raises:
        ValueError: a number of chips whose batch is not whole, or that no mesh shares evenly.
    """
    rows = []
    for chips in counts:
        devices = chips * topology.device.chip
        batch, left = divmod(subject.work.batch * devices, topology.devices)
        if left or batch % subject.work.parts or not batch:
            rule = f"batch must grow with the chips to a whole number on {chips} of them"
            raise ValueError(f"{rule}, got {subject.work.batch} on {topology.devices // topology.device.chip}")
        machine = topology._replace(devices=devices)
        best = ranked(_with_batch(subject, batch), machine)[0]
        rows.append(ScalingRow(chips, batch, best, not topology.device.slice or devices <= topology.device.slice))
    return rows


def _with_batch(subject: Subject, batch: int) -> Subject:
    """Return the step at another batch: all arithmetic is in proportion."""
    work = subject.work
    flops = {name: getattr(work, name) * batch // work.batch for name in ("model_flops", "layer_flops", "pair_flops")}
    config = dataclasses.replace(subject.config, batch=batch)
    return subject._replace(
        config=config, work=work._replace(batch=batch, **flops), units=subject.units * batch // work.batch
    )
