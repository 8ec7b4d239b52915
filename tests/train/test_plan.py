"""`train.plan` without a TPU compiler: counts, estimates, the text of programs, and what it says of bad input."""

import importlib.util
import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.errors import JaxRuntimeError
from jax.sharding import PartitionSpec

from tests.support.cli import refused
from train.devices.absent_gpus import machines
from train.devices.mesh import AXES, make_mesh, parse_mesh
from train.engine.abstract_step import compile_step
from train.plan import program as plan
from train.plan.collectives import collectives
from train.plan.estimate import ROOM, arithmetic, divides, estimate, meshes, rank_meshes
from train.plan.program import main, read, shortage
from train.plan.topology import GIB, parse_topology
from train.plan.weak_scaling import scaling

LM = [
    "lm", "--width=32", "--heads=4", "--layers=3", "--length=64", "--batch=8", "--vocab=48", "--hidden=48",
    "--topology=h100:8",
]  # fmt: skip
VIT = ["vit", "--width=32", "--heads=4", "--layers=2", "--size=28", "--patch=7", "--batch=8", "--topology=h100:8"]
SEQ2SEQ = [
    "seq2seq", "--width=32", "--heads=4", "--layers=2", "--encoder_layers=3", "--length=15", "--batch=8",
    "--cross=unified", "--topology=h100:8",
]  # fmt: skip
SEVEN = ["lm", "--preset=llama_7b", "--topology=v5p:8x8x8", "--length=131072", "--batch=32"]


@pytest.mark.parametrize(
    ("text", "devices"),
    [("v5e:4x4", 16), ("v5p:8x8x8", 512), ("v6e:16x16", 256), ("tpu7x:4x4x4", 128), ("h100:64", 64)],
)
def test_a_topology_has_its_chips_devices(text, devices):
    assert parse_topology(text).devices == devices


def test_llama_7b_has_the_published_number_of_parameters():
    subject, _, _ = read(SEVEN)
    assert sum(leaf.size for leaf in jax.tree.leaves(subject.split.shapes)) == 6_738_415_616


@pytest.mark.parametrize("argv", [LM, [*LM, "--style=gpt2"], [*LM, "--kv_heads=2"], VIT, SEQ2SEQ])
def test_layers_and_ends_make_up_the_forward_pass(argv):
    work = read(argv)[0].work
    ends = 2 * work.batch * work.width * work.rows * work.columns
    patches = 2 * 8 * 16 * 49 * 3 * 32 if argv == VIT else 0
    assert work.model_flops == 3 * (work.layer_flops + ends + patches)
    assert 0 < work.pair_flops < work.layer_flops


@pytest.mark.parametrize("turns", [1, 2, 4, 8])
def test_the_busiest_device_of_a_causal_ring_is_the_slowest_of_every_turn(turns):
    work = read(["lm", "--width=32", "--heads=4", "--layers=1", "--length=4096", "--batch=8", "--topology=h100:8"])[
        0
    ].work
    seen = np.tril(np.ones((4096, 4096))).reshape(turns, 4096 // turns, turns, -1).sum(axis=(1, 3))  # queries', keys'
    slowest = sum(max(seen[i, (i - turn) % turns] for i in range(turns)) for turn in range(turns))
    sizes = parse_mesh(f"sequence={turns}")
    count = arithmetic(work, sizes)
    pairs = work.pair_flops * (4.5 + (turns > 1))
    even = (count.model + count.again - pairs) / turns
    np.testing.assert_allclose(count.busiest, even + pairs * slowest / seen.sum(), rtol=5e-3)


def test_what_remat_computes_again_is_the_layers():
    none, full = (read([*LM, f"--remat={name}"])[0].work for name in ("none", "full"))
    sizes = parse_mesh("data=8")
    assert arithmetic(full, sizes).again - arithmetic(none, sizes).again == full.layer_flops
    assert arithmetic(full, sizes).model == arithmetic(none, sizes).model


@pytest.mark.parametrize("devices", [1, 8, 12])
def test_meshes_are_all_that_share_the_work_evenly(devices):
    work = read(LM)[0].work  # 8 examples, 4 heads, 64 tokens
    candidates = [tuple(sizes.values()) for sizes in meshes(work, devices)]
    every = itertools.product(range(1, devices + 1), repeat=4)
    assert sorted(candidates) == sorted(
        (d, f, t, s) for d, f, t, s in every if d * f * t * s == devices and not (8 % (d * f) or 4 % t or 64 % s)
    )


def test_meshes_that_fit_come_first_by_their_bound():
    subject, topology, _ = read(SEVEN)
    entries = rank_meshes(subject, topology)
    fits = [sum(entry.memory.values()) <= ROOM * 95 * GIB for entry in entries]
    assert fits == sorted(fits, reverse=True)
    bounds = [entry.bound for entry, does in zip(entries, fits, strict=True) if does]
    assert bounds == sorted(bounds)
    assert all(divides(subject.work, entry.sizes) for entry in entries)


@pytest.mark.slow
@pytest.mark.parametrize(
    "argv", [LM, *(pytest.param(argv, marks=pytest.mark.slow) for argv in ([*VIT, "--pe=learned"], SEQ2SEQ))]
)
def test_arguments_and_traffic_of_the_real_step_are_as_estimated(argv):
    """Compiled for eight host devices, with the program's own step."""
    sizes = parse_mesh("fsdp=4,tensor=2")
    subject, topology, _ = read(argv)
    mesh = make_mesh(8, "fsdp=4,tensor=2")
    step, guess = compile_step(subject, mesh), estimate(subject, topology, sizes)
    batch = sum(leaf.size * leaf.dtype.itemsize for leaf in subject.batch.values()) / 4
    held = plan.memory(step)["arguments"]
    assert abs(held - batch - guess.memory["state"]) <= 2048  # scalars take 64 bytes each
    counts = collectives(step.as_text() or "", mesh)
    assert counts.unknown_loops == 0
    assert {"fsdp", "tensor"} <= {axis for entry in counts.traffic for axis in entry.axes.split(" x ")}
    assert 0.4 < counts.over("fsdp") / guess.sent["fsdp"] < 4


@pytest.mark.parametrize("sends", [False, True])
def test_a_loop_of_unknown_length_is_told_where_it_sends(sends):
    mesh = make_mesh(8, "data=8")

    @partial(
        jax.shard_map, mesh=mesh, in_specs=(PartitionSpec(AXES), None), out_specs=PartitionSpec(AXES), check_vma=False
    )
    def program(x, n):
        turn = lambda _, x: jnp.sin(lax.ppermute(x, "data", [(0, 1), (1, 0)]) if sends else x)
        return lax.psum(lax.fori_loop(0, n, turn, x), "data")

    shapes = jax.ShapeDtypeStruct((8 * 96,), jnp.float32), jax.ShapeDtypeStruct((), jnp.int32)
    counts = collectives(jax.jit(program).lower(*shapes).compile().as_text() or "", mesh)
    assert counts.unknown_loops == sends
    assert counts.sent > 0


def test_collectives_are_counted_with_their_loops_and_axes():
    mesh = make_mesh(8, "data=2,fsdp=2,tensor=2")

    @partial(jax.shard_map, mesh=mesh, in_specs=PartitionSpec(AXES), out_specs=PartitionSpec(AXES), check_vma=False)
    def program(x):
        def turn(x, _):
            x = lax.psum(x, "tensor") + lax.ppermute(x, "data", [(0, 1), (1, 0)])
            full_array = lax.all_gather(x, ("data", "fsdp"), tiled=True)
            return jnp.sin(lax.psum_scatter(jnp.cos(full_array), ("data", "fsdp"), tiled=True)), None

        x = lax.scan(turn, x, None, length=5)[0]
        return lax.all_to_all(x.reshape(2, -1), "fsdp", 0, 0).reshape(-1)

    text = jax.jit(program).lower(jax.ShapeDtypeStruct((8 * 96,), jnp.float32)).compile().as_text()
    counts = collectives(text or "", mesh)
    share = 96 * 4
    assert {(entry.kind, entry.axes, entry.times, entry.sent) for entry in counts.traffic} == {
        ("all-reduce", "tensor", 5, 5 * share),
        ("collective-permute", "data", 5, 5 * share),
        ("all-gather", "data x fsdp", 5, 5 * 3 * share),
        ("reduce-scatter", "data x fsdp", 5, 5 * 3 * share),
        ("all-to-all", "fsdp", 1, share / 2),
    }
    assert counts.unknown_loops == 0
    assert counts.sent == sum(entry.sent for entry in counts.traffic)


TEXT = """HloModule jit_step

%all-reduce-scatter.1 (input.1: f32[8,16]) -> f32[4,16] {
  %input.1 = f32[8,16]{1,0:T(8,128)} parameter(0)
  ROOT %all-reduce.9 = f32[8,16]{1,0:T(8,128)} all-reduce(%input.1), replica_groups=[4,2]<=[4,2], to_apply=%add
}

%body (p: (s32[], bf16[4,16])) -> (s32[], bf16[4,16]) {
  %all-gather.2 = bf16[1,8,16]{2,1,0:T(8,128)(2,1)} all-gather(%x), replica_groups={{0,4},{1,5},{2,6},{3,7}}
  %fusion.3 = f32[4,16]{1,0} fusion(%y), kind=kCustom, calls=%all-reduce-scatter.1
  %permute = (bf16[4,16], bf16[4,16], u32[], u32[]{:S(2)}) collective-permute-start(%z), source_target_pairs=PAIRS
  %collective-permute-done = bf16[4,16]{1,0} collective-permute-done(%collective-permute-start)
}

%condition (p: (s32[], bf16[4,16])) -> pred[] {
  %constant.1 = s32[]{:T(128)} constant(7)
  ROOT %lt.1 = pred[]{:T(512)} compare(%i, %constant.1), direction=LT
}

%endless (p: (s32[], bf16[4,16])) -> pred[] {
  ROOT %gt.1 = pred[] compare(%a, %b), direction=GT
}

ENTRY %main.1 (a: f32[4]) -> f32[4] {
  %while.1 = (s32[], bf16[4,16]) while(%t), condition=%condition, body=%body, metadata={op_name="while"}
  %while.2 = (s32[], bf16[4,16]) while(%t), condition=%endless, body=%empty
  %all-reduce.5 = (f32[4]{0}, s32[2,3]{1,0}) all-reduce(%a, %b), replica_groups=MESH, to_apply=%add
  %all-gather-start.6 = (f32[4]{0}, f32[32]{0}) all-gather-start(%a), replica_groups=[1,8]<=[8], dimensions={0}
  ROOT %all-reduce.7 = f32[4]{0} all-reduce(%c), replica_groups=[8,1]<=[8], to_apply=%add
}
"""
TEXT = TEXT.replace("PAIRS", "{{0,2},{2,0},{1,3},{3,1},{4,6},{6,4},{5,7},{7,5}}")
TEXT = TEXT.replace("MESH", "mesh['axis_0'=2,'axis_1'=4], device_ids=([2,2,2]T(1,0,2)) {'axis_1'}")


def test_the_ways_a_tpu_program_is_written():
    """Groups listed, counted and named by a mesh of their own; a reduce-scatter as a fusion; what is only started."""
    mesh = make_mesh(8, "data=2,fsdp=2,tensor=2")
    counts = collectives(TEXT, mesh)
    assert {(entry.kind, entry.axes): (entry.times, entry.sent) for entry in counts.traffic} == {
        ("all-gather", "data"): (7, 7 * 8 * 16 * 2 / 2),
        ("reduce-scatter", "tensor"): (7, 7 * 8 * 16 * 4 / 2),
        ("collective-permute", "fsdp"): (7, 7 * 4 * 16 * 2),
        ("all-reduce", "data x tensor"): (1, 2 * (16 + 24) * 3 / 4),
        ("all-gather", "data x fsdp x tensor"): (1, 7 * 16),
    }
    assert counts.unknown_loops == 0  # the endless one sends nothing


@pytest.mark.parametrize(
    ("line", "sent"),
    [
        ("((f32[4]{0}), f32[4]{0}) all-reduce-start(%a), replica_groups=[1,8]<=[8], to_apply=%add", 2 * 16 * 7 / 8),
        (
            "((f32[4]{0}, f32[2]{0}), (f32[4]{0}, f32[2]{0})) all-reduce-start(%a), replica_groups=[1,8]<=[8]",
            2 * 24 * 7 / 8,
        ),
        ("((f32[4]{0}), f32[32]{0}) all-gather-start(%a), replica_groups=[1,8]<=[8], dimensions={0}", 7 * 16),
        ("((f32[32]{0}), f32[4]{0}) reduce-scatter-start(%a), replica_groups=[1,8]<=[8]", 7 * 16),
    ],
)
def test_operands_in_a_tuple_of_their_own_as_a_gpu_program_is_written_are_not_sent_twice(line, sent):
    text = f"HloModule m\n\nENTRY %main.1 (a: f32[4]) -> f32[4] {{\n  %start = {line}\n}}\n"
    assert collectives(text, make_mesh(8, "data=2,fsdp=2,tensor=2")).sent == sent


def test_weak_scaling_keeps_each_chips_arithmetic():
    subject, topology, _ = read(["lm", "--preset=llama_7b", "--topology=v6e:8x8", "--batch=64"])
    rows = scaling(subject, topology)
    assert [row.chips for row in rows] == [64, 128, 256, 512, 1024, 2048, 4096]
    assert [row.batch for row in rows] == [64, 128, 256, 512, 1024, 2048, 4096]
    np.testing.assert_allclose([row.estimate.compute for row in rows], rows[0].estimate.compute)
    assert [row.one_slice for row in rows] == [True] * 3 + [False] * 4
    for row in rows:
        assert 0 < row.no_overlap <= row.full_overlap <= 1
        assert np.prod([*row.estimate.sizes.values()]) == row.chips


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (21.94G) "
            "exceeds available HBM (15.75G).",
            "does not fit: needs 21.94 GiB, has 15.75 GiB",
        ),
        ("RESOURCE_EXHAUSTED: Used 1.50T of 31.25G hbm.", "does not fit: needs 1536.00 GiB, has 31.25 GiB"),
        ("RESOURCE_EXHAUSTED: no figures", "does not fit: RESOURCE_EXHAUSTED: no figures"),
    ],
)
def test_running_out_of_memory_is_told_in_a_line(message, said):
    assert shortage(message) == said


def test_another_failure_of_the_compiler_is_not_hidden():
    with pytest.raises(JaxRuntimeError, match="INTERNAL"):
        shortage("INTERNAL: a bug")


@pytest.fixture
def no_gpu_compiler(monkeypatch):
    monkeypatch.setattr("train.plan.topology.missing_compiler", lambda: ["jax-cuda13-plugin", "nvidia-cuda-nvcc"])


def test_gpus_are_estimated_without_a_compiler_and_it_says_so(no_gpu_compiler, capsys):
    assert main([*LM, "--mesh=data=8"]) == 0
    out = capsys.readouterr().out
    needs = "compiling for h100:8 needs jax-cuda13-plugin, nvidia-cuda-nvcc, pip install -e '.[cuda]':"
    assert f"{needs} all figures below are estimates\n" in out
    assert "fits: needs 0.0" in out


@pytest.mark.slow
def test_every_program_is_estimated(no_gpu_compiler, capsys):
    assert main(LM) == 0
    out = capsys.readouterr().out
    assert "fits: needs 0.0" in out
    assert "tokens/s" in out
    assert main([*VIT, "--mesh=data=8"]) == 0
    assert "images/s" in capsys.readouterr().out
    assert main(SEQ2SEQ) == 0
    assert "train.seq2seq · rope · " in capsys.readouterr().out
    assert main(["lm", "--preset=llama_7b", "--batch=8", "--topology=a100:8", "--mesh=data=8"]) == 1
    assert "does not fit: needs 1" in capsys.readouterr().out


def test_the_table_of_weak_scaling_says_that_it_is_analytic(capsys):
    assert main(["lm", "--preset=llama_7b", "--topology=v5p:4x4x4", "--batch=64", "--scale"]) == 0
    out = capsys.readouterr().out
    assert "analytic, for v5p: nothing was compiled or run" in out
    assert sum(line.startswith("| ") for line in out.splitlines()) == 8


BAD = {
    "--topology=v9:2x2": "topology must be of v5e, v5p, v6e, tpu7x, a100, h100, h200, b200, such as v5p:8x8x8",
    "--topology=v5p:8x8": "the shape of v5p must be 3 counts of chips joined by x, got '8x8'",
    "--topology=h100:2x2": "the shape of h100 must be a count of GPUs, got '2x2'",
    "--topology=v5e:0x4": "the shape of v5e must be 2 counts of chips joined by x, got '0x4'",
    "--mesh=data=4": "the product of mesh must be the 8 devices of h100:8, got data=4 = 4",
    "--mesh=dat=8": "mesh must be of the axes data, fsdp, tensor, sequence, got 'dat'",
    "--mesh=tensor=8": "key heads must be a multiple of 8, the devices of tensor, got 4",
    "--mesh=data=8 --batch=12": "batch must be a multiple of 8, the devices of data x fsdp, got 12",
    "--mesh=sequence=8 --length=36": "tokens must be a multiple of 8, the devices of sequence, got 36",
    "--batch=3 --length=33 --heads=1": "must divide evenly over 8 devices, got 3, 1 and 33",
    "--batch=3 --scale --topology=h100:128": "batch must be an integer when scaled to 64 chips",
    "--devices=8": "devices must not be given, because --topology sets it, got 8",
    "--vocab=0": "vocab must be at least 1, got 0",
    "--heads=3": "width must be a multiple of heads",
    "--lenght=8": "unknown option --lenght; did you mean --length?",
}


@pytest.mark.parametrize("flags", BAD)
def test_bad_input_is_one_line(flags, capsys):
    assert BAD[flags] in refused(capsys, lambda: main([*LM, *flags.split()]))


@pytest.mark.parametrize(
    ("count", "split"), [(1, (1, 1)), (8, (1, 8)), (12, (2, 6)), (13, (13, 1)), (64, (8, 8)), (100, (20, 5))]
)
def test_gpus_are_in_machines_of_as_many_as_fit(count, split):
    assert machines(count) == split


def test_a_missing_compiler_names_the_command_that_installs_it(capsys, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *args: None if name == "libtpu" else find(name, *args)
    )
    error = refused(capsys, lambda: main([*LM, "--topology=v5e:2x4"]))
    assert "pip install -e '.[tpu]'" in error
