"""The command that proves, measures and trains on a GPU: what it does with failures, time, other results and devices.

Processes of these tests do not import JAX; the rehearsal of all stages is the long test.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.hardware import device, measure, program, prove, sample, shared_memory, train
from benchmarks.hardware.ledger import Ledger
from benchmarks.hardware.outcomes import Case, verdict
from benchmarks.hardware.pool import Pool, Worker
from benchmarks.hardware.run import QUICK, Settings, Stage, deadline

ROOT = Path(__file__).parents[2]
H100 = {
    **{"platform": "gpu", "card": "NVIDIA H100 80GB HBM3", "capability": "9.0", "memory": 79.0, "problem": ""},
    **{"driver": "580.159.04", "torch": "13.0", "versions": {"jax": "0.11.2", "jax-cuda13-plugin": "0.11.2"}},
}


def task(name):
    return f"tests.support.hardware_cases:{name}"


def case(name, limit=20.0, stage="prove"):
    return Case(stage, name, task(name.split()[0]), {}, limit)


def pool(tmp_path, count=2):
    return Pool([Worker(os.environ, tmp_path / f"log-{number}.txt") for number in range(count)])


def stage(*cases):
    output = lambda lines: "\n".join(f"{name}: {line['outcome']}" for name, line in lines.items())
    return Stage(lambda run, until: run.do(cases, until), lambda settings, jobs: (1.0, "a guess"), output)


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Return the command on toy stages: `(stages, *arguments) -> status`, on what is taken for an H100."""
    monkeypatch.setattr(program, "scratch_folder", lambda: tmp_path)
    monkeypatch.setattr(program, "first_answer", lambda *_: H100)
    monkeypatch.setattr(program, "make_pool", lambda *_: pool(tmp_path))

    def run(stages, *arguments):
        return program.main([f"--out={tmp_path / 'out'}", f"--stages={','.join(stages)}", *arguments], stages)

    return run


def lines(tmp_path):
    return [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_nan_a_hang_a_lack_of_memory_and_a_crash_end_their_case_alone(command, tmp_path, capsys):
    names = ["right first", "nan", "hang", "fill", "die", "refuse", "right last"]
    assert command({"prove": stage(*(case(name, 1.0 if name == "hang" else 20.0) for name in names))}) == 1
    result = {line["case"]: line for line in lines(tmp_path)}
    assert {name: line["outcome"] for name, line in result.items()} == {
        **{"right first": "proved", "nan": "wrong", "hang": "hung", "fill": "memory", "die": "crashed"},
        **{"refuse": "refused", "right last": "proved"},
    }
    assert result["nan"]["message"] == "error above 1e-05: d_q nan"
    assert result["hang"]["message"] == "no answer in 1 s"
    assert result["die"]["message"] == "the process ended by SIGKILL"
    assert result["right last"]["card"] == "NVIDIA H100 80GB HBM3"
    assert result["right last"]["driver"] == "580.159.04"
    printed = capsys.readouterr().out
    assert "FAILED prove: fill: memory: RuntimeError: RESOURCE_EXHAUSTED: Out of memory" in printed
    assert "7 cases" in printed
    assert "4 failed, 0 not done" in printed
    files = sorted((tmp_path / "out").iterdir())
    assert [path.name for path in files] == ["log.txt", "results.jsonl", "table.md"]
    assert "illegal memory access" in (tmp_path / "out" / "log.txt").read_text()


def test_all_right_is_status_0_and_a_second_call_does_only_what_is_missing(command, tmp_path):
    assert command({"prove": stage(case("right first"))}) == 0
    before = lines(tmp_path)
    assert command({"prove": stage(case("right first"), case("right second"))}) == 0
    assert lines(tmp_path)[:1] == before
    assert [line["case"] for line in lines(tmp_path)] == ["right first", "right second"]


def test_a_failure_of_an_earlier_call_is_still_one(command, tmp_path):
    stages = {"prove": stage(case("nan"))}
    assert command(stages) == 1
    assert command(stages) == 1
    assert len(lines(tmp_path)) == 1


def test_a_line_that_was_cut_is_done_again(command, tmp_path):
    assert command({"prove": stage(case("right first"))}) == 0
    path = tmp_path / "out" / "results.jsonl"
    path.write_text(path.read_text() + '{"stage": "prove", "case": "right sec')
    assert command({"prove": stage(case("right first"), case("right second"))}) == 0
    assert json.loads(path.read_text().splitlines()[-1])["case"] == "right second"


def test_what_the_time_does_not_allow_is_listed_as_not_done(command, capsys):
    stages = {"prove": stage(case("hang", 60.0)), "train": stage(case("right", stage="train"))}
    assert command(stages, "--minutes=0.12") == 1  # about a second beyond what the end takes
    assert "not done: prove: hang, train: right" in capsys.readouterr().out


@pytest.mark.slow
def test_training_that_was_not_done_fails_nothing(command):
    assert command({"train": stage(case("hang", 60.0, stage="train"))}, "--minutes=0.12") == 0


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            {"platform": "cpu", "problem": ""},
            "a GPU is needed, and JAX sees none (its first device is a CPU): --rehearse",
        ),
        ({"platform": "", "problem": "no CUDA"}, "a GPU is needed, and JAX sees none (no CUDA): --rehearse"),
        ({"capability": "gfx942", "card": "MI300X"}, "the GPU must be one of NVIDIA, got MI300X"),
        ({"capability": "7.5", "card": "T4"}, "the GPU must have compute capability 8.0 or more, got 7.5 of T4"),
        ({"memory": 7.5}, "the GPU must have 16 GiB free, got 7.5 GiB of NVIDIA H100 80GB HBM3"),
        ({"driver": "550.54.15"}, "NVIDIA's driver must be at least 580 for jax-cuda13-plugin, got 550.54.15"),
    ],
)
def test_what_it_cannot_use_is_told_in_one_line_with_status_2(change, line, command, monkeypatch, capsys):
    monkeypatch.setattr(program, "first_answer", lambda *_: {**H100, **change})
    assert command({"prove": stage(case("right"))}) == 2
    output = capsys.readouterr().err
    assert output.startswith(f"error: {line}")
    assert output.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "value"), [("driver", "590.1"), ("card", "NVIDIA H200"), ("versions", {"jax": "0.12.0"})]
)
def test_results_of_another_version_or_card_are_refused_in_one_line(name, value, command, monkeypatch, capsys):
    assert command({"prove": stage(case("right"))}) == 0
    monkeypatch.setattr(program, "first_answer", lambda *_: {**H100, name: value})
    assert command({"prove": stage(case("right"))}) == 2
    output = capsys.readouterr().err
    assert output.startswith(f"error: out must be new, or of the same {name}: ")
    assert output.count("\n") == 1


def test_a_file_in_the_place_of_the_folder_is_refused_in_one_line(command, tmp_path, capsys):
    (tmp_path / "out").write_text("")
    assert command({"prove": stage(case("right"))}) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_two_commands_do_not_write_to_one_folder(tmp_path):
    held = Ledger(tmp_path, {})
    script = "import pathlib; from benchmarks.hardware.ledger import Ledger; "
    script += f"Ledger(pathlib.Path({str(tmp_path)!r}), {{}})"
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert "ValueError: out must be the folder of one command at a time" in other.stderr
    held.close()


def test_unknown_stages_and_negative_minutes_are_refused(capsys):
    for arguments in (["--stages=prove,fly"], ["--minutes=-1"]):
        with pytest.raises(SystemExit, match="2"):
            program.options(arguments)
    output = capsys.readouterr().err
    assert "--stages must be of prove, measure, train, sample, got 'fly'" in output
    assert "--minutes and --jobs must be 0 or more, got -1 and 0" in output


def test_stages_run_in_order_and_a_rehearsal_has_no_end():
    assert program.options(["--stages=train,prove"])[0].stages == ["prove", "train"]
    assert program.options([])[0].minutes == 8
    assert program.options(["--rehearse"])[0].minutes == 0
    assert program.options(["--rehearse", "--minutes=2"])[0].minutes == 2


def test_sampling_needs_minutes_of_its_own_and_is_left_out_of_a_limited_time_unless_it_is_named():
    shared = ["prove", "measure", "train"]
    assert program.options([])[0].stages == shared
    assert program.options(["--minutes=14", "--stages=sample"])[0].stages == ["sample"]
    for every in ("--minutes=0", "--rehearse", "--plan"):
        assert program.options([every])[0].stages == [*shared, "sample"]


def test_each_stage_has_its_share_of_the_time_and_the_last_what_is_left():
    settings = Settings(["prove", "measure", "train"], 8.0, Path())
    assert deadline("prove", settings, 0.0, 10.0) == 200.0
    assert deadline("measure", settings, 0.0, 90.0) == 260.0
    assert deadline("train", settings, 0.0, 200.0) == 474.0
    assert deadline("measure", settings._replace(stages=["prove", "measure"]), 0.0, 90.0) == 474.0
    assert deadline("train", settings._replace(minutes=0.0), 0.0, 200.0) == float("inf")


def test_remarks_tell_of_torch_without_cuda_and_of_other_cards():
    assert device.remarks(H100) == []
    assert device.remarks({**H100, "torch": "none"}) == ["torch is built without CUDA: its rows are left out"]
    other = device.remarks({**H100, "torch": "", "capability": "8.9", "card": "L4"})
    assert other[0] == "torch is not installed: its rows are left out"
    assert "L4 has compute capability 8.9" in other[1]


def test_as_many_processes_run_as_the_card_and_the_cores_hold(monkeypatch):
    monkeypatch.setattr(device.os, "cpu_count", lambda: 16)
    assert device.side_by_side(H100, 20) == 15
    assert device.side_by_side({**H100, "memory": 24.0}, 20) == 5
    assert device.side_by_side({**H100, "memory": 0.0}, 20) == 1


def test_a_process_keeps_what_it_holds_until_it_fails(tmp_path):
    """So that training finds what was compiled, and a lost way of measuring is made again."""
    own = pool(tmp_path)
    held = lambda what: ((task("hold"), {"what": what}), 20.0)
    try:
        assert [item["held"] for item in own.together([held("a"), held("b"), held("c")])] == [["a"], ["b"], ["a", "c"]]
        assert own.worker_of(2) is own.worker_of(0)
        assert own.worker_of(0).ask(task("die"), {}, 20.0)["outcome"] == "crashed"
        assert own.worker_of(0).ask(*held("d")[0], 20.0)["held"] == ["d"]
    finally:
        own.end()


def test_a_device_that_does_not_start_is_told_of_every_case(tmp_path):
    worker = Worker(os.environ, tmp_path / "log", ((task("fill"), {}), 20.0))
    result = worker.ask(task("right"), {}, 20.0)
    assert result["outcome"] == "memory"
    assert result["message"].startswith("did not start: RuntimeError: RESOURCE_EXHAUSTED")
    assert worker.process is None


@pytest.mark.slow
def test_processes_end_with_the_command(tmp_path):
    script = "import os, pathlib; from benchmarks.hardware.pool import Worker; "
    script += f"worker = Worker(os.environ, pathlib.Path({str(tmp_path / 'log')!r})); "
    script += f"print(worker.ask({task('hold')!r}, {{'what': 'x'}}, 20.0)['process'], flush=True); os._exit(0)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    number, until = int(result.stdout), time.monotonic() + 10
    while Path(f"/proc/{number}").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not Path(f"/proc/{number}").exists()


def test_nan_and_what_is_not_within_the_tolerance_is_wrong():
    assert verdict({"output": 1e-6}, 1e-5)["outcome"] == "proved"
    assert verdict({"output": 2e-5}, 1e-5)["outcome"] == "wrong"
    assert verdict({"output": float("nan")}, 1e-5)["outcome"] == "wrong"
    assert verdict({"output": float("inf")}, 1e-5)["outcome"] == "wrong"


def test_every_kind_meets_every_implementation_in_its_types_and_names_are_unique():
    result = prove.cases(rehearse=False)
    names = [item.name for item in result]
    assert len(set(names)) == len(names)
    assert len([name for name in names if " | " in name]) == len(prove.KINDS) * 12
    json.dumps([item.arguments for item in result])
    rehearsed = [item.name for item in prove.cases(rehearse=True)]
    assert set(rehearsed) <= set(names)
    assert {name.split(" | ")[0] for name in rehearsed if " | " in name} == set(prove.KINDS)


def test_columns_name_their_ways_without_a_device_and_a_rehearsal_has_no_peers():
    result = measure.columns(rehearse=False)
    names = [column.case(way).name for column in result for way in column.ways]
    assert len(set(names)) == len(names)
    assert {column.name for column in result if "forward and" in column.table} == {
        "L = 2,048",
        "L = 8,192",
        "L = 32,768",
    }
    assert [way for column in result for way in column.ways if "Flex" in way].count("torch FlexAttention, ALiBi") == 2
    assert not [way for column in measure.columns(rehearse=True) for way in column.ways if measure.is_peer(way)]


def test_the_table_of_proofs_tells_the_worst_of_each_implementation():
    kind = next(iter(prove.KINDS))
    of = lambda name, item: {"stage": "prove", "case": f"{kind} | {name}", **item}
    result = {
        f"{kind} | gpu | highest": of("gpu", verdict({"output": 2e-6}, 1e-5)),
        f"{kind} | gpu | bfloat16": of("gpu", verdict({"output": 1e-2}, 2e-2)),
        f"{kind} | cudnn | bfloat16": {"outcome": "refused"},
        f"{kind} | blockwise | highest": verdict({"output": 1.0}, 1e-5),
    }
    assert f"| {kind} | 0.50 | refused | - | - | **wrong** | - | - |" in prove.table(result)


def test_the_table_of_times_has_ratios_of_the_same_rounds_and_tells_what_failed():
    column = measure.columns(rehearse=False)[0]
    name = lambda way: column.case(way).name
    result = {
        name("torch SDPA, flash, no bias"): {"outcome": "measured", "seconds": [0.001, 0.002]},
        name("pejax kernels, no bias"): {"outcome": "measured", "seconds": [0.002, 0.004]},
        name("pejax kernels, T5"): {"outcome": "hung", "message": "no answer in 30 s"},
    }
    text = measure.table(result)
    assert "| pejax kernels, no bias | 3.00 ms |" in text
    assert "| torch SDPA, flash, no bias | 0.50 (0.50 to 0.50) |" in text
    assert "- L = 8,192: pejax kernels, T5: failed, no answer in 30 s" in text


def test_the_table_of_training_is_the_mean_over_the_seeds_that_were_reached():
    line = lambda value: {
        "outcome": "trained", "epochs": 3, "top1": {"none": {"28": value, "12": 5.0}, "pi(stretch=True)": {}},
    }  # fmt: skip
    result = {
        "glyphs | rope | seed 0": line(50.0),
        "glyphs | rope | seed 1": line(60.0),
        "glyphs | alibi | seed 0": line(1.0),
    }
    text = train.table(result)
    assert "| rope | 2 | 5.0 | 55.0 |" in text
    assert "| alibi | 1 | 5.0 | 1.0 |" in text
    assert "3 epochs" in text


def run_of(own, tmp_path, seconds=60.0):
    """Run a stage without its processes; return the cases that it leaves."""
    left, ledger = [], Ledger(tmp_path, {})
    settings = Settings(["train"], 8.0, tmp_path)
    own.run(program.Run(settings, pool(tmp_path), ledger, tmp_path, left), time.monotonic() + seconds)
    ledger.close()
    return left


@pytest.mark.parametrize(("own", "count"), [(train, 96), (sample, 6)])
def test_missing_packages_are_one_line(own, count, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(own.NEEDED, "no_such_package", "no-such-package")
    left = run_of(own, tmp_path)
    name = own.__name__.rpartition(".")[2]
    assert capsys.readouterr().out == f"{name} needs packages that are missing: pip install no-such-package\n"
    assert len(left) == count


IMPORTS = """
import importlib.abc, sys

class Bare(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in {absent}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Bare())
import {module}
"""


@pytest.mark.slow
@pytest.mark.parametrize(("own", "module"), [(train, "training"), (sample, "sampling")])
def test_a_stage_names_the_packages_that_it_imports(own, module):
    """Without any of those that others of its kind need; with one of its own missing it fails."""
    others = {"grain", "matplotlib", "simple_parsing", "tensorboardX", "tensorflow_datasets", "gguf", "jinja2"}
    bare = IMPORTS.format(absent=sorted(others - {*own.NEEDED}), module=f"benchmarks.hardware.{module}")
    subprocess.run([sys.executable, "-c", bare], check=True, cwd=ROOT)


def test_rounds_of_samples_begin_with_the_most_wanted_and_need_their_time(tmp_path, capsys):
    names = [[case.name for case in cases] for cases in sample.rounds(rehearse=False)]
    assert names[0] == ["gpu | rope_axial", "video | rope_axial"]
    assert sorted(names[1]) == ["gpu | alibi", "gpu | learned", "video | alibi", "video | learned"]
    assert len(run_of(sample, tmp_path)) == 6
    assert "sample: 60 s are left, a run needs 300: more --minutes are needed" in capsys.readouterr().out


def test_a_round_has_all_of_a_short_time_and_its_share_of_a_long_one(monkeypatch, tmp_path):
    calls = []

    def side_by_side(run, cases, end):
        calls.append((len(cases), round(end - time.monotonic(), -1)))

    monkeypatch.setattr(sample, "side_by_side", side_by_side)
    run_of(sample, tmp_path, 600.0)
    assert calls == [(2, 600), (4, 600)], "which is used up by then"
    calls.clear()
    run_of(sample, tmp_path, 1000.0)
    assert calls[0] == (2, 500)


def test_what_had_no_time_to_train_is_not_done_and_fails_nothing(command, tmp_path, monkeypatch, capsys):
    late = Case("sample", "gpu | rope_axial", task("late"), {}, 20.0)
    monkeypatch.setattr(sample, "rounds", lambda rehearse: [[late]])
    monkeypatch.setattr(sample, "LEAST", 1.0)
    assert command({"sample": sample.STAGE}) == 0
    printed = capsys.readouterr().out
    assert "sample: gpu | rope_axial: rope_axial: a step takes 9 ms" in printed
    assert "not done: sample: gpu | rope_axial" in printed


def test_the_table_of_samples_has_true_numbers_in_brackets():
    row = {
        "extend": "pi", "shape": "16 frames of 28 x 28", "refused": "", "right": 81.25, "true_right": 93.0,
        "distance": 2.5, "true_distance": 0.25, "loops": 12.5, "true_loops": 0.0,
    }  # fmt: skip
    lines = {
        "video | rope_axial": {"outcome": "sampled", "steps": 4000, "rows": [row]},
        "gpu | learned": {"outcome": "sampled", "steps": 5000, "rows": [{**row, "refused": "too large"}]},
        "gpu | alibi": {"outcome": "hung", "message": "no answer in 9 s"},
    }
    text = sample.table(lines)
    numbers = "81.2 (93.0) | 2.50 (0.25) | - | 12.5 (0.0)"
    assert f"| rope_axial | 4,000 | pi | 16 frames of 28 x 28 | {numbers} |" in text
    assert "| learned | 5,000 | pi | 16 frames of 28 x 28 | refused |" in text
    assert text.index("--preset=gpu") < text.index("--preset=video")


def test_the_plan_says_what_each_stage_takes_and_how_that_is_known(capsys):
    assert program.main(["--plan"]) == 0
    text = capsys.readouterr().out
    assert "as measured on an H200" in text
    lines = text.splitlines()[1:]
    assert [line.split(":")[0].strip() for line in lines] == ["prove", "measure", "train", "sample"]
    assert sum(float(line.split(":")[1].split(" s;")[0]) for line in lines[:3]) < 8 * 60
    assert "by estimate" in lines[3]


@pytest.mark.parametrize("name", program.STAGES)
def test_the_docs_tell_the_same_plan(name):
    took, _ = program.STAGES[name].expected(Settings([name], 8.0, Path()), program.MOST)
    assert f"| {name} | {took:.0f} |" in (ROOT / "docs" / "hardware.md").read_text()


def test_the_shared_memory_of_every_kernel_is_told_and_within_the_limit():
    output = shared_memory.table()
    assert "of 227 (compute capability 9.0)" in output
    sizes = [int(word.split()[-1]) for line in output.splitlines()[1:] for word in line.split(": ")[1].split(", ")]
    assert len(sizes) == len(shared_memory.WIDTHS) * len(shared_memory.CONTENTS)
    assert max(sizes) <= 227


@pytest.mark.long  # `.ci/run` has it with every commit
def test_the_rehearsal_runs_every_stage_to_its_end(tmp_path):
    command = [sys.executable, "-m", "benchmarks.hardware", "--rehearse", f"--out={tmp_path / 'out'}"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "XLA_FLAGS": QUICK})
    assert result.returncode == 0, result.stdout[-4000:]
    assert "0 failed, 0 not done" in result.stdout
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"samples-gpu-rope_axial.png", "samples-video-rope_axial.png"} <= names
    assert len(names) <= 6
    table = (tmp_path / "out" / "table.md").read_text()
    assert "| rope_axial | 4 | as trained | 4 frames of 8 x 8 |" in table
    assert "| rope_axial | 4 | as trained | 16 x 16 |" in table
