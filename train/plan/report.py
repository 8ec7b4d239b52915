"""The output of `train.plan`: text and tables."""

import jax
from rich.console import Console

from train.devices.memory import GIB
from train.devices.mesh import AXES
from train.engine.abstract_step import AbstractStep
from train.plan.collectives import Collectives
from train.plan.estimate import Estimate, Sizes
from train.plan.topology import Topology
from train.plan.weak_scaling import ScalingRow


def mesh_text(sizes: Sizes) -> str:
    """Return a mesh in the syntax of `--mesh`."""
    return ",".join(f"{name}={size}" for name, size in sizes.items())


def describe(subject: AbstractStep, topology: Topology) -> str:
    """Return one line on the step and one on the machine."""
    config, work = subject.config, subject.work
    count = sum(leaf.size for leaf in jax.tree.leaves(subject.split.shapes))
    device = topology.device
    return (
        f"train.{config.program} · {config.pe} · {count:,} parameters · batch {work.batch:,} x {work.tokens:,} tokens"
        f" · {config.dtype} · remat {work.remat}\n"
        f"{topology.name} · {topology.devices:,} x {device.kind}, each {device.memory / GIB:.0f} GiB, "
        f"{device.peak / 1e12:,.0f} TFLOP/s in bfloat16, {device.network / 1e9:,.0f} GB/s between devices"
    )


def print_memory(memory: dict[str, int], guess: Estimate, topology: Topology, console: Console) -> None:
    """Print the memory of the compiled step on a device beside the estimate."""
    total, has = sum(memory.values()), topology.device.memory
    estimates = {"arguments": guess.memory["state"], "outputs": 0.0, "program": 0.0}
    estimates["temporaries"] = sum(guess.memory.values()) - estimates["arguments"]
    console.print(f"\nfits: {total / GIB:.2f} of {has / GIB:.0f} GiB on each device ({total / has:.0%})")
    console.print(f"{'memory of a device, GiB':28}{'compiled':>10}{'estimated':>11}")
    for name, size in memory.items():
        console.print(f"  {name:26}{size / GIB:10.2f}{estimates[name] / GIB:11.2f}")
    console.print(f"  {'all':26}{total / GIB:10.2f}{sum(guess.memory.values()) / GIB:11.2f}")


def print_collectives(collectives: Collectives, guess: Estimate, console: Console) -> None:
    """Print the traffic of a step by kind and axes, the largest first, and its sum beside the estimate."""
    console.print(f"\n{'collectives of a step':28}{'over':>20}{'instr.':>8}{'times':>8}{'GiB sent':>10}")
    small = [entry for entry in collectives.traffic if entry.sent < collectives.sent / 1000]
    for entry in collectives.traffic[: len(collectives.traffic) - len(small)]:
        line = f"  {entry.kind:26}{entry.axes:>20}{entry.instructions:8}{entry.times:8,}{entry.sent / GIB:10.3f}"
        console.print(line)
    if small:
        instructions, times = sum(entry.instructions for entry in small), sum(entry.times for entry in small)
        sent = sum(entry.sent for entry in small)
        console.print(f"  {'others, below a thousandth':26}{'':>20}{instructions:8}{times:8,}{sent / GIB:10.3f}")
    console.print(f"  {'all':26}{'estimated ' + format(sum(guess.sent.values()) / GIB, '.1f'):>20}", end="")
    console.print(f"{'':16}{collectives.sent / GIB:10.3f}")
    if collectives.unknown_loops:
        console.print(f"  loops with an unknown number of iterations, counted as one: {collectives.unknown_loops}")


def print_bounds(guess: Estimate, sent: float, subject: AbstractStep, topology: Topology, console: Console) -> None:
    """Print the arithmetic of a step, and lower bounds on its time where a device sends `sent` bytes."""
    device, flops = topology.device, guess.arithmetic
    compute, network = guess.compute, sent / device.network
    bound = max(compute, network)
    ideal = flops.model / topology.devices / device.peak
    even_share = (flops.model + flops.again) / topology.devices
    console.print(f"\narithmetic of a step: {flops.model:.4g} FLOP, and {flops.again:.4g} of recomputation")
    if flops.busiest > 1.001 * even_share:
        console.print(
            f"  the busiest device has {flops.busiest / even_share:.2f} times the mean (causal mask on sequence)"
        )
    console.print("a step takes at least")
    console.print(f"  {compute:10.3f} s of arithmetic, at peak FLOP/s")
    console.print(f"  {network:10.3f} s of network traffic, with all links busy")
    rate = subject.units / bound
    console.print(f"so at most {rate:,.0f} {subject.unit}/s, {rate / topology.devices:,.1f} per device")
    without_overlap = f"{ideal / (compute + network):.1%} without overlap of arithmetic and traffic"
    console.print(f"model FLOP utilization at most {ideal / bound:.1%}, {without_overlap}")


def print_estimate(guess: Estimate, subject: AbstractStep, topology: Topology, console: Console) -> None:
    """Print estimated memory, traffic and bounds for a machine that cannot be compiled for."""
    total, has = sum(guess.memory.values()), topology.device.memory
    word = "fits" if total <= has else "does not fit"
    console.print(f"mesh {mesh_text(guess.sizes)}")
    console.print(f"\n{word}: needs {total / GIB:.2f} GiB, has {has / GIB:.2f} GiB")
    for name, size in guess.memory.items():
        console.print(f"  {name:26}{size / GIB:10.2f}")
    console.print("\nGiB that a device sends per step, by axis")
    for name in AXES:
        console.print(f"  {name:26}{guess.sent[name] / GIB:10.3f}")
    print_bounds(guess, sum(guess.sent.values()), subject, topology, console)


def print_scaling(rows: list[ScalingRow], topology: Topology, console: Console) -> None:
    """Print the table of weak scaling, as markdown."""
    console.print(f"\nanalytic, for {topology.name.partition(':')[0]}: nothing was compiled or run")
    console.print("seconds per step, at peak FLOP/s and with all links busy, by axis of the mesh\n")
    console.print(
        "| chips | batch | mesh (d, f, t, s) | GiB | compute | data | fsdp | tensor | sequence | efficiency |"
    )
    console.print("|---|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        estimate, mark = row.estimate, "" if row.one_slice else "*"
        seconds = " | ".join(f"{estimate.sent[name] / topology.device.network:.3f}" for name in AXES)
        mesh = ", ".join(str(size) for size in estimate.sizes.values())
        console.print(
            f"| {row.chips:,}{mark} | {row.batch:,} | {mesh} | {sum(estimate.memory.values()) / GIB:.1f} | "
            f"{estimate.compute:.3f} | {seconds} | {row.no_overlap:.0%} to {row.full_overlap:.0%} |"
        )
    console.print("\nefficiency: fraction of a step that is arithmetic, without and with overlap of network traffic")
    if not all(row.one_slice for row in rows):
        console.print("*: more than one slice; the slower network between slices is not included")
