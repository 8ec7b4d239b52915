"""Comparisons: what is compared, that any stop leads to the same table, and what is left out is named."""

import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from pejax import ENCODINGS
from tests.support import measured
from tests.support.cases import slow
from tests.support.quick import QUICK
from train.compare.display import Display
from train.compare.options import Candidate, read
from train.compare.program import main
from train.compare.runs import Outcome, execute, is_done, outcome, require_distinct, require_own, run_of
from train.compare.table import Row, best_candidate, markdown, mean_of, rows_of, tables
from train.engine.config import split_list
from train.engine.files import write_atomic
from train.engine.progress import Progressed, last_progress
from train.engine.stored_config import save_config
from train.vit.results import ResolutionResults

ROOT = Path(__file__).parents[2]
SMALL = (
    "--layers=1", "--width=16", "--heads=2", "--batch=500", "--epochs=1", "--eval_limit=40", "--eval_sizes", "28", "32",
    "--probe_every=0", "--checkpoint_every=4", "--data=fashion(full=False)",
)  # fmt: skip


def store(run, extend, *top1: int, **made_by: str) -> None:
    """Write results of 100 images per size as the trainer would, and that the run is done."""
    numbers = measured.top1({28 + 4 * place: correct for place, correct in enumerate(top1)})
    run.folder.mkdir(parents=True, exist_ok=True)
    results = ResolutionResults(run.candidate.spec, "fashion", 28, 20, extend, "the data", numbers, made_by=made_by)
    results.save(run.folder)
    write_atomic(run.folder / "outcome.json", json.dumps(Outcome("done").__dict__))


# What is compared


def test_every_encoding_has_the_same_budget_and_seeds(tmp_path):
    comparison = read(["--seeds=2", "--epochs=3", f"--out={tmp_path}"])
    assert tuple(comparison.candidates) == tuple(ENCODINGS)
    configs = [
        comparison.config(candidate, seed, tmp_path / "runs")
        for (candidate,) in comparison.candidates.values()
        for seed in comparison.seeds
    ]
    assert [(config.pe, config.seed) for config in configs] == [(pe, seed) for pe in ENCODINGS for seed in (0, 1)]
    assert len({json.dumps(vars(config) | {"pe": "", "seed": 0}) for config in configs}) == 1
    assert configs[0].epochs == 3


def test_presets():
    quick = read(["--preset=quick"])
    assert (tuple(quick.candidates), quick.seeds) == (("learned", "none", "rope_mixed", "alibi"), (0,))
    assert read(["--preset=quick", "--seeds=2", "--pe=rope"]).candidates.keys() == {"rope"}
    table = read(["--preset=table", "--pe=rope"])
    assert table.config(Candidate("rope", "rope"), 0, Path("runs")).width == 128


def test_a_list_is_split_outside_of_parentheses():
    assert split_list("rope, alibi(slope_scale=2), fire", "pe") == ("rope", "alibi(slope_scale=2)", "fire")
    assert split_list("none,yarn(factor=4)+log_n(),longrope(factors=[1, 2])", "extend")[2] == "longrope(factors=[1, 2])"


def test_sums_and_periods_are_compared_as_they_are_written(tmp_path):
    sums = ["learned+rope_axial", "rope_axial*2 + none*1"]
    comparison = read(
        [f"--pe={','.join(sums)},rope_axial(base=50)", f"--out={tmp_path}", "--sweep=rope_axial(base=9|99)"]
    )
    assert [len(candidates) for candidates in comparison.candidates.values()] == [1, 1, 2]
    assert [comparison.config(comparison.candidates[pe][0], 0, tmp_path).pe for pe in sums] == sums


def test_sweeps_expand_alike_for_every_encoding():
    comparison = read(
        [
            "--pe=alibi,rope",
            "--sweep=alibi(slope_scale=0.5|2, learned=True)",
            "--sweep=lr=1e-3|2e-3",
            "--sweep=heads=2|4",
        ]
    )
    alibi, rope = comparison.candidates["alibi"], comparison.candidates["rope"]
    assert (len(alibi), len(rope)) == (8, 4)
    assert alibi[0] == Candidate("alibi", "alibi(slope_scale=0.5, learned=True)", ("--lr=1e-3", "--heads=2"))
    assert {candidate.spec for candidate in rope} == {"rope"}
    assert comparison.validation == 0.1
    config = comparison.config(alibi[-1], 0, Path("x"), comparison.validation)
    assert (config.lr, config.heads, config.validation) == (2e-3, 4, 0.1)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--task=speech"], "one of vit, lm, seq2seq, dit, got 'speech'"),
        (["--pe=ropee"], "unknown encoding 'ropee'; did you mean 'rope'"),
        (["--pe=rope,"], "pe must be a list separated by commas, got 'rope,'"),
        (["--pe=rope,rope"], "pe must name each once, got 'rope,rope'"),
        (["--pe=rope(base=2"], "pe must be a list separated by commas"),
        (["--seeds=0"], "seeds must be at least 1, got 0"),
        (["--jobs=0"], "jobs must be at least 1, got 0"),
        (["--seed=3"], "seed is set by the comparison for every run .* got '--seed=3'"),
        (["--resume"], "resume is set by the comparison"),
        (["--batch=0"], "batch must be at least 1, got 0"),
        (["--pe=rope", "--sweep=alibi(slope_scale=1|2)"], r"sweep must name one encoding of pe \(rope\)"),
        (["--pe=rope", "--sweep=lr"], r"sweep must be written name\(key=A\|B\) or option=A\|B, got 'lr'"),
        (["--pe=rope", "--sweep=rope(1|2)"], "sweep must be written"),
        (["--pe=rope", "--sweep=lr=1e-3|x"], ""),
        (["--pe=rope", "--sweep=lr=1e-3|2e-3", "--validation=0"], "with --sweep, since test data must not choose"),
        (["--pe=rope", "--validation=0.1"], "validation must be 0 without --sweep"),
        (["--pe=rope", "--epoch=3"], ""),
    ],
)
def test_what_cannot_be_compared_is_named(argv, message, tmp_path, capsys):
    with pytest.raises((ValueError, SystemExit), match=message or None) as raised:
        read([*argv, f"--out={tmp_path}"])
    if raised.type is SystemExit:
        assert raised.value.code == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_settings_whose_folders_would_be_one_are_refused(tmp_path):
    comparison = read(["--pe=rope(base=50),rope( base = 50)", f"--out={tmp_path}"])
    runs = [run_of(comparison, Candidate(name, name), 0) for name in ("rope(base=50)", "rope[base=50]")]
    with pytest.raises(ValueError, match="folders of their own"):
        require_distinct(runs)


# The table


def test_means_and_intervals():
    assert mean_of([3.0])[0] == 3.0
    assert np.isnan(mean_of([3.0]).half)
    estimate = mean_of([80.0, 82.0, 84.0])
    assert (estimate.mean, estimate.seeds) == (82.0, 3)
    assert estimate.half == pytest.approx(4.968, abs=1e-3)  # 4.303 * 2 / sqrt(3)


def test_a_table_shows_names_as_they_are(tmp_path):
    comparison = read(["--pe=rope", f"--out={tmp_path}"])
    row = Row("<b>|", {"top-1, %": {28: mean_of([3.0])}}, ("[x](y) failed",))
    assert markdown(comparison, [row], 28, ["`note"]).splitlines()[2:] == [
        "| &lt;b>· | **3.00** |", "", "- \\[x\\](y) failed", "", "\\`note",
    ]  # fmt: skip


@pytest.mark.slow
def test_the_table_holds_every_seed_and_extension(tmp_path):
    comparison = read(["--pe=rope,alibi", "--seeds=2", "--extend=none,pi", f"--out={tmp_path}"])
    runs = {
        candidate: [run_of(comparison, candidate, seed) for seed in (0, 1)]
        for (candidate,) in comparison.candidates.values()
    }
    rope, alibi = runs.values()
    for run, correct in zip((*rope, *alibi), ((80, 50), (82, 54), (70, 60), (72, 64)), strict=True):
        store(run, "none", *correct)
    store(rope[0], "pi", 80, 90)
    text = markdown(comparison, rows_of(comparison, runs), 28, ["A note."])
    assert "| top-1, % | **28** | 32 |" in text
    assert "| rope | **81.0 ±12.7** | 52.0 ±25.4 |" in text
    assert "| rope + pi (1 of 2 seeds) | 80.0 | **90.0** |" in text
    assert "| alibi | 71.0 ±12.7 | 62.0 ±25.4 |" in text
    assert text.endswith("A note.\n")


@pytest.mark.parametrize(
    ("width", "parts"),
    [slow(200, 1), (80, 2), slow(30, 7)],
)
def test_sizes_that_do_not_fit_a_terminal_are_in_a_table_below(width, parts, tmp_path):
    comparison = read(["--pe=rope,rope_mixed", "--seeds=1", f"--out={tmp_path}"])
    runs = {candidate: [run_of(comparison, candidate, 0)] for (candidate,) in comparison.candidates.values()}
    for place, ((run,), offset) in enumerate(zip(runs.values(), (0, 7), strict=True)):
        store(run, "none", *(21 + 5 * size + (offset - 2 * size) * place for size in range(14)))
    console = Console(width=width, file=io.StringIO())
    table_parts = tables(comparison, rows_of(comparison, runs), 28, width)
    for part in table_parts:
        console.print(part)
    assert len(table_parts) == parts
    text = console.file.getvalue()
    assert "…" not in text
    numbers = re.findall(r"\d+\.\d", text)
    assert sorted(map(float, numbers)) == sorted([21.0 + 5 * n for n in range(14)] + [28.0 + 3 * n for n in range(14)])


def test_runs_that_diverged_are_in_the_table(tmp_path):
    comparison = read(["--pe=rope", "--seeds=2", f"--out={tmp_path}"])
    (candidate,) = comparison.candidates["rope"]
    runs = [run_of(comparison, candidate, seed) for seed in (0, 1)]
    store(runs[0], "none", 80)
    runs[1].folder.mkdir(parents=True)
    write_atomic(runs[1].folder / "outcome.json", json.dumps(Outcome("diverged", "the loss is nan at step 3").__dict__))
    text = markdown(comparison, rows_of(comparison, {candidate: runs}), 28, [])
    assert "| rope (1 of 2 seeds) |" in text
    assert "- rope seed 1 diverged: the loss is nan at step 3" in text


def test_numbers_of_another_judge_are_not_averaged(tmp_path):
    comparison = read(["--pe=rope", "--seeds=3", f"--out={tmp_path}"])
    (candidate,) = comparison.candidates["rope"]
    runs = [run_of(comparison, candidate, seed) for seed in comparison.seeds]
    for run, judge in zip(runs, ("cd", "ab", "ab"), strict=True):
        store(run, "none", 60 if judge == "ab" else 90, judge=judge)
    text = markdown(comparison, rows_of(comparison, {candidate: runs}), 28, [])
    assert "| rope (2 of 3 seeds) | **60.0 ±0.0** |" in text
    assert (
        "- rope seed 0 with none is left out: numbers of one table must be made by the same judge, got ab and cd"
        in text
    )


def test_results_of_another_sampling_are_not_what_was_asked_for(tmp_path):
    options = ["--task=dit", "--pe=rope", "--seeds=1", f"--out={tmp_path}"]
    comparison = read(options)
    run = run_of(comparison, Candidate("rope", "rope"), 0)
    run.folder.mkdir(parents=True)
    save_config(comparison.config(run.candidate, run.seed, run.folder), run.folder)
    (run.folder / "metrics.jsonl").write_text('{"step": 1}\n')
    require_own(comparison, run)
    for option in ("guidance=3.0", "sampling_steps=9", "eval_shapes='28,56'"):
        flag = f"--{option}".replace("'", "")
        with pytest.raises(ValueError, match=f"this run has {option}; give another --out"):
            require_own(read([*options, flag]), run)


@pytest.mark.slow
def test_the_best_setting_on_validation_data_is_chosen(tmp_path):
    comparison = read(["--pe=alibi", "--sweep=alibi(slope_scale=1|2|4)", f"--out={tmp_path}"])
    candidates = comparison.candidates["alibi"]
    runs = [run_of(comparison, candidate, 0, 0.1) for candidate in candidates]
    assert best_candidate(comparison, candidates, runs) is None
    store(runs[0], "none", 90, 50)
    store(runs[1], "none", 80, 70)
    assert best_candidate(comparison, candidates, runs).spec == "alibi(slope_scale=2)"


# The progress


@pytest.fixture
def under_way(tmp_path):
    """Runs of a comparison, of which the first has printed a line of an earlier attempt."""
    comparison = read(["--pe=rope,alibi", "--seeds=2", f"--out={tmp_path}"])
    runs = [run_of(comparison, candidate, seed) for (candidate,) in comparison.candidates.values() for seed in (0, 1)]
    runs[0].log.parent.mkdir()
    runs[0].log.write_text("step 800/900 · loss 0.1 · 9 img/s · 3 s left\n")
    return comparison, runs


def test_a_line_of_progress_is_read_back():
    line = Progressed("step 50/900", ("loss 1.234", "accuracy 0.5", "120 img/s"), 30.0)
    assert last_progress(f"train.vit · rope\nstep 1/900 · loss 2 · 99 s left\n{line}\nwarning: 3 s left\n") == line
    assert line.short == "step 50/900 · loss 1.234 · 30 s left"
    assert last_progress("compiling") is None
    first = Progressed("step 20/900", ("loss 5.516",), math.nan)
    assert str(first) == "step 20/900 · loss 5.516"
    assert last_progress(str(first)).details == first.details
    assert math.isnan(last_progress(str(first)).seconds)


def test_without_a_terminal_lines_say_what_is_under_way(under_way, monkeypatch):
    monkeypatch.setattr("train.compare.display.EVERY_SECONDS", -1.0)
    _, runs = under_way
    console = Console(width=60, file=io.StringIO(), soft_wrap=True)
    with Display(console, runs, "runs", 0, 1) as display:
        display.begin(runs[0])
        display.refresh()
        with runs[0].log.open("a") as log:
            log.write("step 50/900 · loss 1.234 · 9 img/s · 30 s left\n")
        display.refresh()
    assert console.file.getvalue().splitlines() == [
        "rope seed 0 · starting, 0 s so far · 0 of 4 runs",
        "rope seed 0 · step 50/900 · loss 1.234 · 30 s left · 0 of 4 runs · 2 min left",
    ]


def test_a_terminal_of_60_columns_shows_the_table_so_far_and_the_run_under_way(under_way):
    comparison, runs = under_way
    store(runs[0], "none", 80)
    candidates = {candidate: runs[2 * n : 2 * n + 2] for n, (candidate,) in enumerate(comparison.candidates.values())}
    console = Console(width=60, file=io.StringIO(), force_terminal=True, color_system=None)
    with Display(console, runs, "runs", 0, 1) as display:
        display.tables = tables(comparison, [row for row in rows_of(comparison, candidates) if row.scores], 28, 60)
        display.begin(runs[1])
        runs[1].log.write_text("evaluating · 44 px · 30% · 12 s left\n")
        display.refresh()
    text = console.file.getvalue()
    assert "rope seed 1 · evaluating · 44 px · 12 s left" in text
    assert "1 of 4 runs · 36 s left" in text  # the runs that wait take as long
    assert "rope (1 of 2 seeds)" in text
    assert max(map(len, re.sub(r"\x1b\[[0-9?]*[a-zA-Z]", "", text).splitlines())) <= 60


# The command


def command(*argv: object) -> list[str]:
    return [sys.executable, "-m", "train.compare", *map(str, argv)]


def environment() -> dict[str, str]:
    return {**os.environ, "XLA_FLAGS": QUICK}


def compared(*argv: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*argv), env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=900)


def lines_of(folder: Path) -> list[dict]:
    """Return the results without the seconds that they took."""
    results = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    return [{name: value for name, value in result.items() if name != "seconds"} for result in results]


@pytest.mark.slow
def test_the_command_writes_the_table_and_does_nothing_twice(tmp_path, capsys):
    argv = ("--pe=none", "--seeds=1", *SMALL, f"--out={tmp_path}")
    run = compared(*argv)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
    assert "none seed 0: done" in run.stdout
    assert main(argv) == 0
    again = capsys.readouterr().out
    assert "none seed 0: done" not in again
    for out in (run.stdout, again):
        assert out.rstrip().endswith("table.md and results.jsonl")
    assert (tmp_path / "table.md").read_text().startswith("| top-1, % | **28** | 32 |")
    assert [line["status"] for line in lines_of(tmp_path)] == ["done"]


@pytest.mark.long
def test_the_command_fills_a_table_and_names_what_diverged(tmp_path, capsys):
    argv = ("--pe=alibi", "--seeds=1", "--extend=none,pi", "--sweep=lr=1e-3|1e30", *SMALL, f"--out={tmp_path}")
    run = compared(*argv)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
    assert "alibi: 2 candidates tried, alibi --lr=1e-3 is the best on the validation data" in run.stdout
    assert "a candidate, alibi --lr=1e30 seed 0: diverged" in run.stdout
    assert run.stdout.rstrip().endswith("table.md and results.jsonl")
    text = (tmp_path / "table.md").read_text()
    assert "| alibi --lr=1e-3 + pi |" in text
    assert "alibi: the best of 2 candidates on held-out training data." in text
    assert [line["status"] for line in lines_of(tmp_path)] == ["done", "diverged", "done"]
    with pytest.raises(SystemExit, match="2"):
        main([*argv[:-1], "--width=32", argv[-1]])
    assert "must hold a run of this comparison" in capsys.readouterr().err


@pytest.mark.long
def test_a_killed_comparison_ends_with_the_same_table(tmp_path):
    argv = ("--pe=rope_axial,fire", "--seeds=1", "--jobs=2", *SMALL)
    reference, killed = tmp_path / "whole", tmp_path / "killed"
    assert compared(*argv, f"--out={reference}").returncode == 0
    draw = np.random.default_rng(0)
    for _ in range(3):
        process = subprocess.Popen(command(*argv, f"--out={killed}"), env=environment(), cwd=ROOT, stdout=-3, stderr=-3)
        time.sleep(draw.uniform(5, 25))
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert compared(*argv, f"--out={killed}").returncode == 0
    assert (killed / "table.md").read_text() == (reference / "table.md").read_text()
    assert lines_of(killed) == lines_of(reference)


@pytest.mark.long
def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path):
    argv = ("--pe=rope", "--seeds=1", *SMALL, "--epochs=50", f"--out={tmp_path}")
    process = subprocess.Popen(
        command(*argv), env=environment(), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    log = tmp_path / "log" / "runs-rope-0.txt"
    until = time.monotonic() + 300
    while "laws:" not in (log.read_text() if log.exists() else ""):
        assert time.monotonic() < until
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "stopped, all runs are saved; the same command goes on" in out
    comparison = read(argv)
    assert outcome(run_of(comparison, Candidate("rope", "rope"), 0)).status == "stopped"


def test_a_run_that_was_refused_begins_anew_with_other_settings(tmp_path):
    """As after a corrupt image, which the corrected command leaves out, or which was mended."""
    data = "folder(path='photos', on_error='skip')"
    for flags in (["--data=folder:photos"], [f"--data={data}"]):
        comparison = read(["--pe=none", "--seeds=1", *SMALL, *flags, f"--out={tmp_path}"])
        run = run_of(comparison, Candidate("none", "none"), 0)
        require_own(comparison, run)
        assert not is_done(run)
        run.folder.mkdir(parents=True, exist_ok=True)
        save_config(comparison.config(run.candidate, run.seed, run.folder), run.folder)
        assert execute(comparison, run, lambda arguments, log: (2, "no")).status == "refused"


def test_a_run_that_was_stopped_before_its_config_was_written_goes_on(tmp_path):
    """Ctrl-C in the first seconds leaves what the comparison wrote, and of the trainer nothing, or settings alone."""
    comparison = read(["--pe=none", "--seeds=1", *SMALL, f"--out={tmp_path}"])
    run = run_of(comparison, Candidate("none", "none"), 0)
    seen = []

    def launch(arguments: list[str], log: Path) -> tuple[int, str]:
        seen.append(arguments)
        return -signal.SIGTERM, "stopped"

    assert execute(comparison, run, launch).status == "stopped"
    require_own(comparison, run)
    assert execute(comparison, run, launch).status == "stopped"
    save_config(comparison.config(run.candidate, run.seed, run.folder), run.folder)
    execute(comparison, run, launch)
    (run.folder / "metrics.jsonl").write_text('{"step": 1}\n')
    execute(comparison, run, launch)
    assert ["--resume" in arguments for arguments in seen] == [False, False, False, True]
    (run.folder / "config.json").write_text('{"name": "my web app"}')
    with pytest.raises(ValueError, match=r"out must be a folder without config\.json"):
        require_own(comparison, run)
