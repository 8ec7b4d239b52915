"""Will it fit: a train step compiled for machines that are not here, or estimated for those it cannot be compiled for.

    python -m train.plan lm --preset=llama_7b --length=131072 --batch=32 --topology=v5p:8x8x8
    python -m train.plan lm --preset=llama_7b --topology=v5e:16x16 --mesh=fsdp=64,tensor=4
    python -m train.plan vit --preset=imagenet100 --topology=v6e:4x4
    python -m train.plan seq2seq --preset=table --topology=v5e:2x2
    python -m train.plan lm --preset=llama_7b --topology=h100:64       estimated: GPUs' compiler needs the GPU
    python -m train.plan lm --preset=llama_7b --topology=v5p:4x4x4 --scale      to 4,096 chips, estimated

All other options are those of the program. The step is the program's own, on shapes: no data is read and no array made.
Without --mesh, meshes are tried in the order of their estimates until one fits. Exit status 1: it does not fit.
"""

import dataclasses
import re
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from jax.errors import JaxRuntimeError
from jax.stages import Compiled
from rich.console import Console

from train.devices.mesh import require_divisible
from train.engine.config import parse
from train.engine.parser import Parser
from train.engine.stopping import friendly
from train.lm import config as lm_config
from train.plan.abstract_step import Subject, answer_subject, compile_step, image_subject, language_subject
from train.plan.collectives import Collectives, collectives
from train.plan.estimate import Estimate, Sizes, estimate, ranked
from train.plan.report import (
    describe,
    mesh_text,
    print_bounds,
    print_collectives,
    print_estimate,
    print_memory,
    print_scaling,
)
from train.plan.topology import GIB, Topology, parse_topology, require_product, tpu_mesh
from train.plan.weak_scaling import scaling
from train.seq2seq import config as seq2seq_config
from train.vit import config as vit_config

ATTEMPTS = 4
"""Meshes that are compiled before the search gives up."""


@dataclasses.dataclass(frozen=True)
class PlanOptions:
    """Say whether a train step fits on a machine, and how fast it can be at most."""

    topology: str  # chips of a TPU slice, v5p:8x8x8 (v5e, v5p, v6e, tpu7x), or GPUs, h100:64 (a100, h100, h200, b200)
    vocab: int = 32000  # tokens that train.lm tells apart
    channels: int = 3  # of the images of train.vit
    classes: int = 1000  # of the images of train.vit
    scale: bool = False  # the same work for each chip on 64 to 4,096 chips, estimated, in place of the plan


class CompiledStep(NamedTuple):
    """What the compiler says of a step on a mesh: bytes of a device, traffic, and places that call a Mosaic kernel."""

    memory: dict[str, int]
    collectives: Collectives
    kernels: int


class DoesNotFit(Exception):
    """The compiler found too little memory."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    with friendly(ValueError, TypeError):
        subject, topology, options = read(sys.argv[1:] if argv is None else argv)
        console = Console(soft_wrap=True, highlight=False)
        console.print(describe(subject, topology))
        if options.scale:
            print_scaling(scaling(subject, topology), topology, console)
            return 0
        chosen = _mesh_given(subject, topology)
        if not topology.compiles:
            best = estimate(subject, topology, chosen) if chosen else ranked(subject, topology)[0]
            console.print(f"{topology.name} cannot be compiled for without it: all that follows is estimated")
            print_estimate(best, subject, topology, console)
            return int(sum(best.memory.values()) > topology.device.memory)
        tries = [estimate(subject, topology, chosen)] if chosen else ranked(subject, topology)[:ATTEMPTS]
        return _first_that_fits(subject, topology, tries, console)


def read(argv: Sequence[str]) -> tuple[Subject, Topology, PlanOptions]:
    """Return what the command line asks for.

    Raises:
        ValueError: an unknown program or topology, or an option that breaks a rule.
    """
    parser = Parser(prog="python -m train.plan", epilog="all other options are those of python -m train.PROGRAM")
    parser.add_argument("program", choices=("lm", "seq2seq", "vit"), help="whose train step")
    parser.add_arguments(PlanOptions, dest="options")
    found, rest = parser.parse_known_args(list(argv))
    options: PlanOptions = found.options
    for name in ("vocab", "channels", "classes"):
        if getattr(options, name) < 1:
            raise ValueError(f"{name} must be at least 1, got {getattr(options, name)}")
        if getattr(options, name) >= 2**31:
            raise ValueError(f"{name} must be below {2**31}, got {getattr(options, name)}")
    topology = parse_topology(options.topology)
    if found.program == "lm":
        subject = language_subject(parse(lm_config.Config, rest), options.vocab)
    elif found.program == "seq2seq":
        subject = answer_subject(parse(seq2seq_config.Config, rest))
    else:
        subject = image_subject(parse(vit_config.Config, rest), options.channels, options.classes)
    if subject.config.devices:
        raise ValueError(f"devices must not be given: --topology says how many, got {subject.config.devices}")
    return subject, topology, options


def plan(subject: Subject, topology: Topology, sizes: Sizes) -> CompiledStep:
    """Compile the step and read what it needs.

    Raises:
        DoesNotFit: with what it needs and what there is.
        ValueError: no compiler, or a topology that it does not know.
    """
    mesh = tpu_mesh(topology, mesh_text(sizes))
    try:
        step = compile_step(subject, mesh)
    except JaxRuntimeError as failed:
        raise DoesNotFit(shortage(str(failed))) from None
    text = step.as_text() or ""
    return CompiledStep(memory(step), collectives(text, mesh), text.count('custom_call_target="tpu_custom_call"'))


def memory(step: Compiled) -> dict[str, int]:
    """Return the bytes of a compiled step on one device, by what for."""
    found: Any = step.memory_analysis()
    return {
        "arguments": found.argument_size_in_bytes,
        "outputs": found.output_size_in_bytes - found.alias_size_in_bytes,  # the others are arguments, donated
        "temporaries": found.temp_size_in_bytes,
        "program": found.generated_code_size_in_bytes,
    }


def shortage(message: str) -> str:
    """Return "does not fit: needs X GiB, has Y GiB" from what the compiler says when memory runs out.

    Raises:
        JaxRuntimeError: it failed for another reason.
    """
    if "RESOURCE_EXHAUSTED" not in message:
        raise JaxRuntimeError(message)
    amounts = re.search(r"([\d.]+)([KMGT]?) ?(?:of|\) exceeds available HBM \()\s*([\d.]+)([KMGT]?)", message)
    if not amounts:
        return f"does not fit: {' '.join(message.split())[:200]}"
    unit = {"": GIB**-1, "K": 2**-20, "M": 2**-10, "G": 1, "T": 2**10}
    needs, has = float(amounts[1]) * unit[amounts[2]], float(amounts[3]) * unit[amounts[4]]
    return f"does not fit: needs {needs:.2f} GiB, has {has:.2f} GiB"


def _mesh_given(subject: Subject, topology: Topology) -> Sizes | None:
    """Return the sizes that --mesh names, checked, or None where it does not."""
    if not subject.config.mesh:
        return None
    sizes, work = require_product(topology, subject.config.mesh), subject.work
    require_divisible(sizes, batch=work.batch // work.parts, kv_heads=work.heads, length=work.tokens)
    return sizes


def _first_that_fits(subject: Subject, topology: Topology, tries: list[Estimate], console: Console) -> int:
    for number, guess in enumerate(tries, 1):
        console.print(f"compiling mesh {mesh_text(guess.sizes)} ({number} of at most {len(tries)}) ...")
        try:
            found = plan(subject, topology, guess.sizes)
        except DoesNotFit as reason:
            console.print(f"{mesh_text(guess.sizes)}: {reason}")
            continue
        print_memory(found.memory, guess, topology, console)
        console.print(f"attention: {found.kernels or 'no'} calls of the TPU's kernels in the program")
        print_collectives(found.collectives, guess, console)
        print_bounds(guess, found.collectives.sent, subject, topology, console)
        return 0
    return 1
