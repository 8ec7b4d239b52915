"""`train.plan` with the TPU compiler: the trainers' own steps, compiled ahead of time for real topologies.

Run with `pytest -m tpu`, in a session of its own: libtpu (the tpu extra) reads its environment once.
"""

import pytest

from tests.support.cli import refused
from tests.support.tpu import compiler
from train.devices.mesh import parse_mesh
from train.plan.estimate import estimate
from train.plan.program import CompiledStep, main, plan, read

__all__ = ["compiler"]

pytestmark = pytest.mark.tpu

MODEL = [
    "lm", "--width=256", "--heads=4", "--layers=2", "--hidden=512", "--vocab=512", "--dtype=bfloat16",
]  # fmt: skip


def planned(*argv: str) -> CompiledStep:
    subject, topology, _ = read(argv)
    return plan(subject, topology, parse_mesh(subject.config.mesh))


@pytest.mark.parametrize(
    ("topology", "mesh"),
    [
        ("v5e:4x4", "data=4,fsdp=2,tensor=2"),
        pytest.param("v5e:4x4", "data=2,fsdp=2,tensor=2,sequence=2", marks=pytest.mark.long),
        ("v5p:4x4x4", "data=2,fsdp=8,tensor=4"),
        ("v6e:16x16", "data=8,fsdp=8,tensor=4"),
    ],
)
def test_the_step_of_the_language_model_compiles_split_as_declared(topology, mesh):
    argv = [*MODEL, "--length=1024", "--batch=64", f"--topology={topology}", f"--mesh={mesh}"]
    step, (subject, machine, _) = planned(*argv), read(argv)
    sizes = parse_mesh(mesh)
    guess = estimate(subject, machine, sizes)
    batch = 2 * 4 * 64 // (sizes["data"] * sizes["fsdp"]) * 1025
    assert step.memory["arguments"] == pytest.approx(guess.memory["state"] + batch, rel=0.25)  # rows are padded
    assert step.kernels > 0
    assert step.collectives.unknown_loops == 0
    kinds = {(entry.kind, entry.axes) for entry in step.collectives.traffic}
    assert {("all-gather", "fsdp"), ("all-reduce", "tensor")} <= kinds
    assert (("collective-permute", "sequence") in kinds) == (sizes["sequence"] > 1)
    assert 0.3 < step.collectives.sent / sum(guess.sent.values()) < 3


@pytest.mark.long
def test_temporary_memory_grows_with_the_length_and_not_its_square():
    flags = ["--batch=8", "--topology=v5e:4x4", "--mesh=fsdp=8,tensor=2"]
    short, long = (planned(*MODEL, *flags, f"--length={length}").memory["temporaries"] for length in (16384, 65536))
    assert long < 5.5 * short  # 16 times, were it the square


def test_the_step_of_the_vision_transformer_compiles(capsys):
    flags = ["--size=32", "--patch=4", "--width=128", "--layers=2", "--batch=16", "--dtype=bfloat16"]
    assert main(["vit", *flags, "--topology=v5e:2x2", "--mesh=data=2,tensor=2"]) == 0
    out = capsys.readouterr().out
    assert "fits: 0.0" in out
    assert "images/s" in out


def test_what_does_not_fit_is_said_with_both_amounts(capsys):
    flags = ["--preset=llama_7b", "--length=32768", "--batch=16", "--topology=v5e:4x4", "--mesh=fsdp=16"]
    assert main(["lm", *flags]) == 1
    assert "does not fit: needs" in capsys.readouterr().out


def test_a_slice_that_there_is_not_is_one_line(capsys):
    error = refused(capsys, lambda: main([*MODEL, "--topology=v5e:3x5", "--batch=15"]))
    assert error.startswith("error: topology must be a slice that libtpu knows, got v5e:3x5: ")
