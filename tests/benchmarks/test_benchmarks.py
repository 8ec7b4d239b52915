"""The benchmarks: ratios of made-up times, tables, and every part at toy sizes."""

import io
import json
import math
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import __main__ as command
from benchmarks import attention, memory, peers_jax, peers_rope, peers_steps, peers_torch, report, rope, steps, timing
from benchmarks.operands import Problem
from tests.support.peers import peer

SILENT = lambda what, share: None


def test_a_ratio_is_that_of_neighbours_in_time():
    """A machine that becomes ten times slower changes every time and no ratio."""
    base = [1.0, 2.0, 10.0, 4.0]
    assert timing.ratio([3.0 * x for x in base], base) == (3.0, 3.0, 3.0)
    assert np.median([2.0, 2.0, 30.0]) / np.median([1.0, 20.0, 10.0]) == pytest.approx(0.2)  # medians apart mislead
    assert timing.ratio([2.0, 2.0, 30.0], [1.0, 20.0, 10.0]).median == 2.0


def test_the_spread_holds_the_middle_of_the_rounds():
    result = timing.ratio([float(i) for i in range(11)], [1.0] * 11)
    assert result == pytest.approx((5.0, 1.0, 9.0))
    assert str(result) == "5.00 (1.00 to 9.00)"


def test_ways_take_turns_and_everybody_is_first_once(monkeypatch):
    calls = []
    monkeypatch.setattr(timing, "SAMPLE", 0.0)
    makers = {name: lambda name=name: lambda: calls.append(name) for name in "abc"}
    result = timing.side_by_side(makers, 3, SILENT, more=1)
    assert "".join(calls) == "aaabbbccc" + "abc" + "bca" + "cab"
    assert {name: len(seconds) for name, seconds in result.seconds.items()} == {"a": 3, "b": 3, "c": 3}
    assert set(result.first) == set("abc")


def test_a_timed_call_may_follow_others_of_its_way(monkeypatch):
    calls, timed = [], timing.seconds_of
    monkeypatch.setattr(timing, "SAMPLE", 0.0)
    monkeypatch.setattr(timing, "seconds_of", lambda call, repeats=1: calls.append("timed") or timed(call, repeats))
    timing.side_by_side({name: lambda name=name: lambda: calls.append(name) for name in "ab"}, 1, SILENT, before=2)
    assert calls[-8:] == ["a", "a", "timed", "a", "b", "b", "timed", "b"]


def test_a_short_call_is_repeated_and_the_time_is_that_of_one(monkeypatch):
    now = SimpleNamespace(time=0.0)

    def call():
        now.time += 0.004

    monkeypatch.setattr(timing.time, "perf_counter", lambda: now.time)
    monkeypatch.setattr(timing.time, "sleep", lambda seconds: None)
    result = timing.side_by_side({"base": lambda: call}, 2, SILENT)
    assert result.seconds["base"] == pytest.approx([0.004, 0.004])
    assert now.time == pytest.approx(0.004 * (2 + 2 * math.ceil(timing.SAMPLE / 0.004)))


def test_a_peer_that_cannot_is_left_out_and_says_why():
    def missing():
        raise ModuleNotFoundError("No module named 'peer'", name="peer")

    def refuses():
        raise NotImplementedError("no bias\nhere")

    result = timing.side_by_side({"ours": lambda: int, "missing": missing, "refuses": refuses}, 1, SILENT)
    column = report.column_of(result)
    assert list(column.cells) == ["ours"]
    assert column.notes == ["missing: left out, peer is not installed", "refuses: left out, no bias here"]
    with pytest.raises(NotImplementedError):
        timing.side_by_side({"refuses": refuses}, 1, SILENT)


def test_the_first_way_has_its_time_and_the_others_their_ratios():
    timed = timing.Timed({"ours": [0.01, 0.02, 0.03], "peer": [0.04, 0.06, 0.15]}, {"ours": 2.0, "peer": 60.0}, {})
    assert report.column_of(timed).cells == {"ours": "20.0 ms", "peer": "4.00 (3.20 to 4.80)"}
    assert report.column_of(timed, first_calls=True).cells["first call: peer"] == "60.0 s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(754.3, "754 s"), (1.0, "1.00 s"), (0.0123, "12.3 ms"), (1.44e-4, "144 µs"), (3e-8, "0.03 µs")],
)
def test_seconds_in_the_unit_that_suits(seconds, text):
    assert timing.duration(seconds) == text


def test_growth_is_the_power_of_the_length():
    assert memory.growth((1024, 4096), (3 * 1024, 3 * 4096)) == pytest.approx(1.0)
    assert memory.growth((1024, 4096), (5 * 1024**2, 5 * 4096**2)) == pytest.approx(2.0)


def test_what_does_not_fit_is_refused_before_it_is_made():
    with pytest.raises(MemoryError, match=r"^needs about \d+\.\d GiB, over nine tenths of the \d+\.\d that are free$"):
        timing.require_memory(1e18)
    timing.require_memory(1e6)


def test_free_memory_is_what_the_kernel_says_can_be_had(tmp_path):
    output = tmp_path / "meminfo"
    output.write_text("MemTotal:       24000 kB\nMemFree:          100 kB\nMemAvailable:    3000 kB\n")
    assert timing.free_memory(output) == 3000 * 1024
    assert timing.free_memory(tmp_path / "none") > 2**20


def test_a_peer_that_xla_plans_too_much_memory_for_is_left_out(monkeypatch):
    monkeypatch.setattr(timing, "free_memory", lambda: 1000)
    problem = Problem(16, 2, 8, "float32", True)
    with pytest.raises(MemoryError, match=r"^needs about "):
        peers_jax._way(problem, lambda: jnp.zeros((1, 2, 16, 16)), lambda: peers_jax.einsum_attention)


def test_time_left_follows_from_the_weights():
    now, stream = SimpleNamespace(time=0.0), io.StringIO()
    progress = timing.Progress([1.0, 1.0, 2.0], stream, lambda: now.time)
    progress.say("starts", 0.0, 1.0)
    now.time = 60.0
    progress.finish(1.0)
    progress.say("half of the next", 0.5, 1.0)
    assert stream.getvalue().splitlines() == ["[1/3] starts", "[2/3] half of the next · about 2 min left"]


CASES = [report.Case("Table", column, lambda say: report.Column({}), 1.0) for column in ("L = 1", "L = 2")]
KEPT = [
    {"cells": {"ours": "1.00 s", "peer": "2.00"}, "notes": ["flex: left out, none"]},
    {"cells": {"ours": "4.00 s"}, "notes": []},
]
KEPT = [{**kept, "date": "2026-01-02", "command": "python", "machine": "a box", "load": 0.5} for kept in KEPT]


def test_a_table_has_a_column_for_each_case_and_its_notes_below():
    assert report.table("Table", list(zip(("L = 1", "L = 2"), KEPT, strict=True)), "way").splitlines() == [
        "### Table",
        "",
        "| way | L = 1 | L = 2 |",
        "|---|---:|---:|",
        "| ours | 1.00 s | 4.00 s |",
        "| peer | 2.00 |  |",
        "",
        "- L = 1: flex: left out, none",
    ]


def test_a_section_is_written_in_place_of_its_own_and_no_other(tmp_path):
    path, part = tmp_path / "RESULTS.md", report.Part("Speed", "What it is.", lambda settings: CASES, "way")
    text = report.section(part, zip(CASES, KEPT, strict=True))
    assert text.startswith(
        "## Speed, 2026-01-02\n\n    python\n\nWhat it is.\n\na box; load of the machine 0.5 to 0.5.\n"
    )
    path.write_text(
        "# Results\n\n## Speed of light, 1905\n\nold\n\n## Speed, 2025-01-01\n\nold\n\n## Last, 2020\n\nold\n"
    )
    report.write_section(path, part, text)
    once = path.read_text()
    assert once == f"# Results\n\n## Speed of light, 1905\n\nold\n\n{text}\n## Last, 2020\n\nold\n"
    report.write_section(path, part, text)
    assert path.read_text() == once
    report.write_section(path, part._replace(title="New"), "## New, 2026\n\nnew\n")
    assert path.read_text() == f"{once}\n## New, 2026\n\nnew\n"


@pytest.mark.parametrize(
    ("part", "only", "rows"),
    [
        pytest.param("attention", "backward", ["pejax"], marks=pytest.mark.slow),
        pytest.param("rope", "half, tables made", ["pejax", "jnp, plain"], marks=pytest.mark.slow),
        pytest.param("phases", "position, exact", ["16,777,216", "every integer below 2,048"], marks=pytest.mark.slow),
        pytest.param("bias", "", ["none", "alibi"], marks=pytest.mark.slow),
        (
            "memory",
            "rope_axial",
            ["L = 16: MiB", "at most q, k, v, o and 8 MiB", "each further token: of its q, k, v, o", "grows as"],
        ),
        pytest.param("steps", "GPT", ["pejax", "first call: pejax"], marks=pytest.mark.long),
        pytest.param("long", "", ["forward and backward: seconds", "q, k, v, o, MiB"], marks=pytest.mark.slow),
        pytest.param("mesh", "", ["1 devices", "2 devices"], marks=pytest.mark.slow),
    ],
)
def test_every_part_runs_and_goes_on_where_it_was(part, only, rows, tmp_path, capsys, monkeypatch):
    """At toy sizes: the tables have their rows, and a second run measures nothing."""
    argv = [part, "--toy", f"--only={only}", f"--out={tmp_path}"]
    assert command.main(argv) == 0
    printed = capsys.readouterr().out
    assert f"## {command.PARTS[part].title} (toy), " in printed
    for row in rows:
        assert f"| {row} | " in printed
    files = sorted(tmp_path.rglob("*"))
    assert all(json.loads(path.read_text())["cells"] for path in files if path.suffix == ".json")
    monkeypatch.setattr(command, "keep", None)
    assert command.main([*argv, "--resume"]) == 0
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["speed"], "PART must be one of all, attention"),
        (["rope", "--rounds=0"], "--rounds must be at least 1, got 0"),
        (["rope", "--toy", "--write"], "--write needs real sizes"),
    ],
)
def test_the_command_line_refuses_in_one_line(argv, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        command.main(argv)
    assert message in capsys.readouterr().err.splitlines()[-1]


def as_numpy(out, heads_first):
    """Return an output of JAX or torch as (B, T, H, D) float32."""
    if hasattr(out, "detach"):
        result = out.detach().float().numpy()
        return result.swapaxes(1, 2) if heads_first else result
    return np.asarray(out)


SAME = [
    "torch SDPA", "torch eager, as BLOOM and MPT", "x-transformers, flash",
    "jnp einsum", "jax.nn.dot_product_attention", "flax.nnx.dot_product_attention", "tokamax xla_chunked",
]  # fmt: skip


@pytest.mark.parity
@pytest.mark.parametrize("name", SAME)
def test_peers_of_attention_compute_what_we_do(name):
    """Output and gradients of q, k and v: what is compared in speed is equal."""
    problem = Problem(24, 2, 16, "float32", True)
    peer("torch")
    makers = peers_torch.attention(problem) | peers_jax.attention(problem)
    assert {*SAME, "torch SDPA, no bias"} == set(makers)
    for module in ("x_transformers", "tokamax"):
        if name.startswith(module.replace("_", "-")):
            pytest.importorskip(module)
    output, gradients = makers[name]()()
    expected, target = attention.ours(problem)()
    np.testing.assert_allclose(as_numpy(output, True), expected, atol=2e-6)
    for result, want in zip(gradients[:3], target[:3], strict=True):
        np.testing.assert_allclose(as_numpy(result, True), want, atol=2e-5)


@pytest.mark.parity
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_peers_of_rotation_compute_what_we_do(pairing, given):
    """torch.compile apart, which compiles for long."""
    peer("torch")
    turning = peers_rope.Turning((2, 16, 3, 8), "float32", pairing, given, True)
    expected, target = rope.ours(turning)()
    for name, make in {"plain": lambda: rope.plain(turning), **peers_rope.peers(turning)}.items():
        module = name.split(",")[0].replace("-", "_")
        if name != "torch.compile" and (module == "plain" or peer_or_none(module)):
            output, gradients = make()()
            for result, want in zip((*output, *gradients), (*expected, *target), strict=True):
                np.testing.assert_allclose(as_numpy(result, "GPT-J" not in name), want, atol=2e-6, err_msg=name)


def peer_or_none(name):
    """Import a peer that the parity extra may lack."""
    try:
        return __import__(name)
    except ModuleNotFoundError:
        return None


@pytest.mark.parity
def test_the_models_compared_have_the_same_parameters():
    peer("torch")
    count = lambda model: sum(p.numel() for p in model.parameters())
    for pe in ("learned", "alibi"):
        theirs = peers_steps.gpt_model(steps.GPT, pe)
        assert count(theirs) == steps.parameters(steps.gpt(steps.GPT, pe, "float32"))
    theirs = peers_steps.vit_model(steps.VIT, steps.PATCH, steps.CHANNELS)
    assert count(theirs) == steps.parameters(steps.vit(steps.VIT, "learned", "float32"))


@pytest.mark.slow
def test_costs_of_an_encoding_are_those_of_its_formula():
    from benchmarks import costs

    dims = costs.Dims(heads=2, head_dim=8, extent=16, causal=True)
    assert costs.baseline(dims) == {"pairs": 2 * 2 * 2 * 8 * 16 * 16, "projections": 4 * 2 * 16 * 16 * 16}
    assert costs.counted("none", dims) == {"flops_per_layer": 0, "flops_once": 0}
    alibi = costs.counted("alibi", dims)
    assert alibi["flops_once"] == 0
    # a difference and its limits, its size, a product with the slope, a sign: for every pair
    assert 3 * 2 * 16 * 16 <= alibi["flops_per_layer"] <= 7 * 2 * 16 * 16
    assert costs.counted("sinusoidal", dims)["flops_once"] > 0
    record = costs.measured(["none", "rope"], {"text": dims})
    none, rope = (record["encodings"][name]["text"]["temporary_bytes"] for name in ("none", "rope"))
    assert rope > none
