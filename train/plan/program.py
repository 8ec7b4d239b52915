"""Whether a training step fits on a machine: compiled for TPUs and GPUs without having them.

    python -m train.plan lm --preset=llama_7b --length=131072 --batch=32 --topology=v5p:8x8x8
    python -m train.plan lm --preset=llama_7b --topology=v5e:16x16 --mesh=fsdp=64,tensor=4
    python -m train.plan vit --preset=imagenet100 --topology=v6e:4x4
    python -m train.plan seq2seq --preset=table --topology=v5e:2x2
    python -m train.plan lm --preset=llama_7b --topology=h100:64       estimated where jax[cuda13] is not installed
    python -m train.plan lm --preset=llama_7b --topology=v5p:4x4x4 --scale      to 4,096 chips, estimated

All other options are those of the program, and so is the step, but on shapes: no data is read and no array is made.
Without --mesh, meshes are tried in the order of their estimates until one fits. The exit status is 1 if none fits.
"""

import re
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from jax.errors import JaxRuntimeError
from jax.stages import Compiled
from rich.console import Console

from train.devices.absent_gpus import INSTALL
from train.devices.memory import GIB
from train.devices.mesh import require_divisible
from train.engine.abstract_step import AbstractStep, compile_step
from train.engine.options import require_rules
from train.engine.parser import parse
from train.engine.programs import program
from train.engine.stopping import report_errors, stop_on_signals
from train.engine.task import Facts
from train.engine.terminal import user_console
from train.plan.collectives import Collectives, collectives
from train.plan.estimate import Estimate, Sizes, estimate, rank_meshes
from train.plan.options import PlanOptions, parser
from train.plan.report import (
    describe,
    mesh_text,
    print_bounds,
    print_collectives,
    print_estimate,
    print_memory,
    print_scaling,
)
from train.plan.topology import Topology, absent_mesh, parse_topology, require_product
from train.plan.weak_scaling import scaling

KERNEL = re.compile(r'custom_call_target="(?:tpu_custom_call|__gpu\$xla\.gpu\.triton|__cudnn\$fmha\w+)"')
"""A call of a kernel of attention: of Mosaic on a TPU, of Triton or cuDNN on a GPU."""

ATTEMPTS = 4
"""Maximum number of meshes that are compiled."""


class CompiledStep(NamedTuple):
    """A compiled step: bytes of memory on a device, traffic, and the number of calls of kernels of attention."""

    memory: dict[str, int]
    collectives: Collectives
    kernels: int


class DoesNotFit(Exception):
    """The step needs more memory than a device has."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    with stop_on_signals(lambda: "run the same command again"), report_errors(ValueError, TypeError, OSError):
        subject, topology, options = read(sys.argv[1:] if argv is None else argv)
        console = user_console()
        console.print(describe(subject, topology))
        if options.scale:
            print_scaling(scaling(subject, topology), topology, console)
            return 0
        sizes = _mesh_option(subject, topology)
        if topology.is_gpu and topology.missing:
            best = estimate(subject, topology, sizes) if sizes else rank_meshes(subject, topology)[0]
            reason = f"compiling for {topology.name} needs {', '.join(topology.missing)}, {INSTALL}"
            console.print(f"{reason}: all figures below are estimates")
            print_estimate(best, subject, topology, console)
            return int(sum(best.memory.values()) > topology.device.memory)
        tries = [estimate(subject, topology, sizes)] if sizes else rank_meshes(subject, topology)[:ATTEMPTS]
        return _first_that_fits(subject, topology, tries, console)


def read(argv: Sequence[str]) -> tuple[AbstractStep, Topology, PlanOptions]:
    """Return the step, the machine and the options of a command line.

    Raises:
        ValueError: an unknown program or topology, or an option that breaks a rule.
    """
    arguments, trainer_arguments = parser(__doc__ or "").parse_known_args(list(argv))
    options: PlanOptions = arguments.options
    require_rules(options)
    topology = parse_topology(options.topology)
    trainer = program(arguments.program)
    facts = Facts(options.vocab, options.channels, options.classes)
    subject = trainer.abstract_step(parse(trainer.config, trainer_arguments), facts)
    if subject.config.devices:
        raise ValueError(f"devices must not be given, because --topology sets it, got {subject.config.devices}")
    return subject, topology, options


def plan(subject: AbstractStep, topology: Topology, sizes: Sizes) -> CompiledStep:
    """Compile the step and return its cost.

    Raises:
        DoesNotFit: the step needs more memory than a device has; the message has both amounts.
        ValueError: there is no compiler, or it does not know the topology.
    """
    mesh = absent_mesh(topology, mesh_text(sizes))
    try:
        step = compile_step(subject, mesh)
    except JaxRuntimeError as failed:
        raise DoesNotFit(shortage(str(failed))) from None
    needs, has = memory(step), topology.device.memory
    if sum(needs.values()) > has:  # the compiler for GPUs does not refuse it
        raise DoesNotFit(f"does not fit: needs {sum(needs.values()) / GIB:.2f} GiB, has {has / GIB:.2f} GiB")
    text = step.as_text() or ""
    return CompiledStep(needs, collectives(text, mesh), len(KERNEL.findall(text)))


def memory(step: Compiled) -> dict[str, int]:
    """Return the bytes of memory of a compiled step on one device, by purpose."""
    analysis: Any = step.memory_analysis()
    return {
        "arguments": analysis.argument_size_in_bytes,
        "outputs": analysis.output_size_in_bytes - analysis.alias_size_in_bytes,  # the others are arguments, donated
        "temporaries": analysis.temp_size_in_bytes,
        "program": analysis.generated_code_size_in_bytes,
    }


def shortage(message: str) -> str:
    """Return "does not fit: needs X GiB, has Y GiB" from the compiler's message about too little memory.

    Raises:
        JaxRuntimeError: the message is about another error.
    """
    if "RESOURCE_EXHAUSTED" not in message:
        raise JaxRuntimeError(message)
    amounts = re.search(r"([\d.]+)([KMGT]?) ?(?:of|\) exceeds available HBM \()\s*([\d.]+)([KMGT]?)", message)
    if not amounts:
        return f"does not fit: {' '.join(message.split())[:200]}"
    unit = {"": GIB**-1, "K": 2**-20, "M": 2**-10, "G": 1, "T": 2**10}
    needs, has = float(amounts[1]) * unit[amounts[2]], float(amounts[3]) * unit[amounts[4]]
    return f"does not fit: needs {needs:.2f} GiB, has {has:.2f} GiB"


def _mesh_option(subject: AbstractStep, topology: Topology) -> Sizes | None:
    """Return the checked sizes of --mesh, or None if it is not given."""
    if not subject.config.mesh:
        return None
    sizes, work = require_product(topology, subject.config.mesh), subject.work
    require_divisible(sizes, batch=work.batch // work.parts, kv_heads=work.heads, length=work.tokens)
    return sizes


def _first_that_fits(subject: AbstractStep, topology: Topology, tries: list[Estimate], console: Console) -> int:
    for number, guess in enumerate(tries, 1):
        console.print(f"compiling mesh {mesh_text(guess.sizes)} ({number} of at most {len(tries)}) ...")
        try:
            compiled_step = plan(subject, topology, guess.sizes)
        except DoesNotFit as reason:
            console.print(f"{mesh_text(guess.sizes)}: {reason}")
            continue
        print_memory(compiled_step.memory, guess, topology, console)
        console.print(f"attention: {compiled_step.kernels or 'no'} calls of kernels in the program")
        print_collectives(compiled_step.collectives, guess, console)
        print_bounds(guess, compiled_step.collectives.sent, subject, topology, console)
        return 0
    return 1
