"""`train.plan` with the compiler for GPUs: the trainers' own steps."""

import math

import pytest

from tests.support.absent_gpu import compiler
from tests.support.cases import slow
from train.devices.mesh import parse_mesh
from train.plan.estimate import estimate
from train.plan.program import main, plan, read
from train.plan.topology import absent_mesh, parse_topology

__all__ = ["compiler"]

pytestmark = pytest.mark.gpu_aot

MODEL = [
    "lm", "--width=256", "--heads=4", "--layers=2", "--hidden=512", "--vocab=512", "--length=1024", "--dtype=bfloat16",
]  # fmt: skip


@pytest.mark.parametrize("name", ["a100:1", "h100:8", "h200:12", "b200:64"])
def test_absent_gpus_are_of_the_kind_and_the_number_that_was_asked_for(name):
    topology = parse_topology(name)
    devices = absent_mesh(topology).devices.reshape(-1)
    assert len(set(devices)) == topology.devices
    assert {device.device_kind[: len(topology.device.kind)] for device in devices} == {topology.device.kind}
    assert len({device.process_index for device in devices}) == math.ceil(topology.devices / 8)


@pytest.mark.parametrize(
    ("topology", "mesh"),
    [
        ("h200:1", ""),
        slow("a100:1", ""),
        slow("b200:1", ""),
        slow("h100:8", "fsdp=4,tensor=2"),
        slow("h100:16", "data=2,fsdp=2,tensor=2,sequence=2"),
    ],
)
def test_the_step_of_the_language_model_compiles_split_as_declared(topology, mesh):
    subject, machine, _ = read([*MODEL, "--batch=64", f"--topology={topology}", f"--mesh={mesh}"])
    sizes = parse_mesh(mesh or "data=1")
    step, guess = plan(subject, machine, sizes), estimate(subject, machine, sizes)
    batch = 2 * 4 * 64 // (sizes["data"] * sizes["fsdp"]) * 1025
    assert step.memory["arguments"] == pytest.approx(guess.memory["state"] + batch, rel=0.05)
    assert 0.3 < sum(step.memory.values()) / sum(guess.memory.values()) < 1.2
    assert step.kernels > 0
    assert step.collectives.unknown_loops == 0
    sent = sum(guess.sent.values())
    assert 0.3 * sent <= step.collectives.sent <= 3 * sent
    kinds = {(entry.kind, entry.axes) for entry in step.collectives.traffic}
    assert (("all-gather", "fsdp") in kinds) == (sizes["fsdp"] > 1)
    assert (("all-reduce", "tensor") in kinds) == (sizes["tensor"] > 1)
    assert (("collective-permute", "sequence") in kinds) == (sizes["sequence"] > 1)


@pytest.mark.slow
def test_the_compilers_figures_stand_beside_the_estimates(capsys):
    flags = ["--size=32", "--patch=4", "--width=128", "--layers=2", "--batch=16", "--dtype=bfloat16"]
    assert main(["vit", *flags, "--topology=h200:2", "--mesh=data=2"]) == 0
    out = capsys.readouterr().out
    assert "fits: 0.0" in out
    assert "memory of a device, GiB       compiled  estimated" in out
    assert "images/s" in out


@pytest.mark.slow
def test_what_does_not_fit_is_said_with_both_amounts(capsys):
    assert main([*MODEL, "--batch=32768", "--topology=h100:1", "--mesh=data=1"]) == 1
    assert "does not fit: needs" in capsys.readouterr().out
