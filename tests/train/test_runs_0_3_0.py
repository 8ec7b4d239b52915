"""Runs that version 0.3.0 wrote: they are read, go on to the same end, are evaluated to the same numbers, and reported.

`data_files/runs_0_3_0` holds a finished run of every program, as its README says. A trainer's run has two checkpoints:
without the newer one and what was written after it, it is a run that was stopped half-way.
"""

import dataclasses
import importlib
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pejax
from tests.support.cases import mostly_slow
from tests.support.cli import programs_on_disk
from tests.support.metric_lines import timeless
from train.compare import program as comparison
from train.compare.runs import Outcome
from train.compare.table import Mean, cell_text
from train.dit import judge
from train.dit.results import REPEATS
from train.engine import environment, programs
from train.engine.files import with_digest
from train.engine.options import names_of
from train.engine.results import Evaluation
from train.engine.run_files import written_steps
from train.engine.stored_config import MARKS, is_run, load_config, program_of, save_config, settings_digest
from train.evaluate import program as evaluate
from train.extend import program as extension
from train.extend.results import LINES
from train.report import program as report
from train.report.probe_file import read_probe, write_probe

FOLDER = Path(__file__).parents[1] / "data_files" / "runs_0_3_0"
TRAINERS = ("vit", "lm", "seq2seq", "dit", "tune")
COMPARED = ("compare/runs/rope-0", "compare/runs/alibi-0")
RUNS = (*TRAINERS, *COMPARED)
FILES = {"tune": ("--data=file:notes.txt", "--model=tiny.gguf")}
"""Options that name the files which a run was trained on: who resumes or evaluates it must name them, too."""

COMPARE = (
    "--task=lm", "--pe=rope,alibi", "--seeds=1", "--extend=none,yarn(factor=2)", "--length=8", "--width=4",
    "--layers=1", "--heads=2", "--tied", "--batch=8", "--steps=4", "--warmup=1", "--lr=0.03", "--log_every=2",
    "--checkpoint_every=4", "--probe_every=0", "--eval_limit=4", "--eval_lengths", "8", "16", "--devices=1",
)  # fmt: skip
EXTEND = (
    "--model=tune/model", "--data=file:notes.txt", "--extend=none,yarn(factor=4),resize", "--lengths", "192",
    "--windows=1", "--passkey=1",
)  # fmt: skip

LATER = frozenset({"digest", "seal"})
"""Entries of metrics.jsonl, environment.json and probe.json that versions after 0.3.0 write, and it did not."""


@pytest.fixture(scope="module", autouse=True)
def compiled_once_and_in_a_hurry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with programs_on_disk(tmp_path_factory.mktemp("compiled"), seconds=0.05, jax_disable_most_optimizations=True):
        yield


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of all runs, which is the working directory, as it was when they were made."""
    copy = shutil.copytree(FOLDER, tmp_path / "made")
    monkeypatch.chdir(copy)
    return copy


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def seals(run: str) -> list[dict[str, Any]]:
    """Return the seals of the checkpoints of a run, oldest first."""
    steps = sorted(written_steps(FOLDER / run))
    return [read(FOLDER / run / "checkpoints" / f"{step}" / "seal" / "metadata") for step in steps]


def results_of(folder: Path) -> dict[str, Evaluation]:
    """Return the evaluations in a run folder by the name of their file."""
    kind = programs.program(program_of(folder)).results
    return {path.name: kind.load(path) for path in sorted(folder.glob("results*.json"))}


def environment_entries(folder: Path) -> tuple[set[str], set[str]]:
    """Return the names of the entries and of the versions in environment.json."""
    stored = read(folder / environment.FILE)
    return {*stored} - LATER, {*stored["versions"]} - LATER


def require_close(value: Any, stored: Any, name: str = "", tolerance: float = 1e-3) -> None:
    """Require that numbers are those of 0.3.0, as far as another version of jax or of the compiler has the same.

    Shares of a few examples, their intervals, and correlations of a few pixels may differ by 4 in 100.
    """
    if isinstance(stored, dict):
        measure = f"{stored.get('measure')}"
        tolerance = 4.0 if measure.endswith("%") else 0.04 if measure == REPEATS else tolerance
        for field, other in stored.items():
            require_close(value[field], other, field, tolerance)
    elif isinstance(stored, tuple | list):
        assert len(value) == len(stored)
        for item, other in zip(value, stored, strict=True):
            require_close(item, other, name, tolerance)
    elif name == "refused" and stored is not None:  # the list of extensions has grown
        assert value.split(";")[0] == stored.split(";")[0]
    elif name == "outcomes":
        assert stored is None or value is not None  # 0.3.0 did not store them
    elif isinstance(stored, float):
        fraction = 5e-3 if name in ("value", "low", "high") else 1e-3  # of a perplexity
        assert value == pytest.approx(stored, rel=fraction, abs=tolerance, nan_ok=True), name
    else:
        assert value == stored, name


def numbers_in(row: dict[str, Any]) -> Iterator[float]:
    """Yield the numbers in a row of 0.3.0: shares in percent, and perplexities in place of losses."""
    if not row.get("refused"):
        yield from (100 * row[name] for name in ("top1", "exact", "loops") if name in row)
        yield from (row[name] for name in ("distance", "repeats") if name in row)
        yield from (math.exp(row[name]["mean"]) for name in ("everything", "beyond", "sliding") if row.get(name))
        yield from (row["gain"]["mean"] for _ in range(1) if row.get("gain"))
        yield from (row["tokens"] * (100 if "task" in row else 1) for _ in range(1) if "tokens" in row)


def keep_judge(patch: pytest.MonkeyPatch) -> None:
    """Let the cache of the user have the judge that 0.3.0 kept beside its run, without a seal."""
    with np.load(FOLDER / "judge-e59e643934a5e80d.npz") as stored:
        params = {name: stored[name] for name in stored}
    patch.setattr(judge, "read", lambda dataset, shapes: judge.seal(params, judge.name_of(dataset, shapes)))


def require_same_results(folder: Path, stored: Path) -> None:
    results, all_expected = results_of(folder), results_of(stored)
    assert results.keys() == all_expected.keys()
    for name, expected_results in all_expected.items():
        assert dataclasses.replace(results[name], numbers=expected_results.numbers, made_by={}) == expected_results
        require_close([*map(vars, results[name].numbers)], [*map(vars, expected_results.numbers)])


# What is stored


@pytest.mark.parametrize("run", RUNS)
def test_settings_are_read_and_written_alike(run: str, tmp_path: Path) -> None:
    """Those in the checkpoint say which fields 0.3.0 had; what came later is at its default."""
    stored, (*_, seal) = read(FOLDER / run / "config.json"), seals(run)
    assert stored.keys() == {*MARKS, *seal["config"]["run"]}
    assert {name: stored[name] for name in seal["config"]["run"]} == seal["config"]["run"]
    assert is_run(FOLDER / run)
    kind = programs.program(program_of(FOLDER / run)).config
    config, default = load_config(kind, FOLDER / run), vars(kind())
    save_config(config, tmp_path)
    written = read(tmp_path / "config.json")
    later = {*written} - {*stored}
    assert later <= {*names_of(kind, "late")}
    assert {name: vars(config)[name] for name in later} == {name: default[name] for name in later}
    fields = {name: value for name, value in stored.items() if name not in kind.former}
    assert {**written, "pejax": "0.3.0"} == {**{name: written[name] for name in later}, **fields}


def test_a_run_that_recorded_options_which_did_nothing_is_read(tmp_path: Path) -> None:
    """`train.tune --soft_cap=3` changed nothing, and its digest has it."""
    stored, kind = read(FOLDER / "tune" / "config.json"), programs.program("tune").config
    config = load_config(kind, FOLDER / "tune")
    changed = {**stored, "soft_cap": 3.0, "probe_every": 7}
    for digest in (settings_digest(config, changed), stored["run"]):
        (tmp_path / "config.json").write_text(json.dumps({**changed, "run": digest}))
        if digest == stored["run"]:
            with pytest.raises(ValueError, match="its settings must be those that the run was trained with"):
                load_config(kind, tmp_path)
        else:
            assert load_config(kind, tmp_path) == config


@pytest.mark.parametrize("run", RUNS)
def test_results_are_read_and_written_anew(run: str, tmp_path: Path) -> None:
    paths = sorted((FOLDER / run).glob("results*.json"))
    assert paths
    for path, results in zip(paths, results_of(FOLDER / run).values(), strict=True):
        stored = read(path)
        assert stored == with_digest(stored)
        assert stored["run"] == read(FOLDER / run / "config.json")["run"]
        numbers = [number for row in stored["rows"] for number in numbers_in(row)]
        assert sorted(numbers) == pytest.approx(sorted(number.value for number in results.numbers if number.known))
        results.store(tmp_path)
        assert type(results).load(tmp_path / path.name) == results
        written = read(tmp_path / path.name)
        marks = ("rows", "digest")
        assert {name: written[name] for name in stored if name not in marks} == {
            name: value for name, value in stored.items() if name not in marks
        }


@pytest.mark.parametrize("run", RUNS)
def test_no_line_and_no_environment_lacks_an_entry(run: str) -> None:
    """The second half of a run wrote what the first did, and `train.compare` what its trainer does."""
    metrics = [{*line} for line in lines(FOLDER / run / "metrics.jsonl")]
    half = len(metrics) // 2
    assert metrics[:half] == metrics[half:]
    assert environment_entries(FOLDER / run) == environment_entries(FOLDER / "lm")
    if run in COMPARED:
        of_trainer = {*lines(FOLDER / "lm" / "metrics.jsonl")[0]}
        assert metrics[0] == {name for name in of_trainer if not name.startswith("position/")}


@pytest.mark.parametrize("run", RUNS)
def test_no_checkpoint_lacks_an_entry(run: str) -> None:
    """Its seal is intact, and what Orbax wrote beside the arrays knows each of them."""
    for step, seal in zip(sorted(written_steps(FOLDER / run)), seals(run), strict=True):
        folder, leaves = FOLDER / run / "checkpoints" / f"{step}", len(seal["digests"])
        assert seal == with_digest(seal)
        metadata, first = read(folder / "state" / "_METADATA"), FOLDER / "lm" / "checkpoints" / "20"
        assert metadata.keys() == read(first / "state" / "_METADATA").keys()
        kinds = [entry["value_metadata"]["value_type"] for entry in metadata["tree_metadata"].values()]
        assert kinds.count("jax.Array") == leaves
        assert len(read(folder / "state" / "_sharding")) == leaves
        assert len(read(folder / "state" / "array_metadatas" / "process_0")["array_metadatas"]) == leaves
        about = [read(checkpoint / "_CHECKPOINT_METADATA").keys() for checkpoint in (folder, first)]
        assert about[0] == about[1]


@pytest.mark.parametrize("run", [run for run in RUNS if run != "tune"])
def test_what_the_weights_told_is_read_and_written_alike(run: str, tmp_path: Path) -> None:
    path = FOLDER / run / "probe.json"
    probe = read_probe(path, max(written_steps(FOLDER / run)))
    assert probe is not None
    trained, largest = ({*by_layer} for by_layer in probe.entropies.values())
    assert trained == largest
    write_probe(probe, tmp_path / "probe.json")
    written = read(tmp_path / "probe.json")
    assert {name: written[name] for name in written.keys() - LATER} == read(path)


# What goes on


@pytest.mark.parametrize("program", mostly_slow(TRAINERS, ("lm",)))
def test_a_run_that_was_stopped_half_way_goes_on_to_the_same_end(
    program: str, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_judge(monkeypatch)
    out, stored = runs / program, FOLDER / program
    newest, half = written_steps(out)
    shutil.rmtree(out / "checkpoints" / f"{newest}")
    shutil.rmtree(out / "model", ignore_errors=True)
    for path in out.glob("results*.json"):
        path.unlink()
    assert (
        importlib.import_module(f"train.{program}.program").main(
            ["--resume", f"--out={program}", *FILES.get(program, ())]
        )
        == 0
    )
    assert written_steps(out) == [newest, half]
    entries = [[{*line} - LATER for line in lines(folder / "metrics.jsonl")] for folder in (out, stored)]
    assert entries[0] == entries[1]
    for line, other in zip(timeless(out), timeless(stored), strict=True):
        require_close(line, other)
    assert environment_entries(out) == environment_entries(stored)
    settings, written = read(stored / "config.json"), read(out / "config.json")
    former = programs.config_of(program).former
    settings = {name: value for name, value in settings.items() if name not in former}
    assert {name: written[name] for name in settings} == {**settings, "resume": True, "pejax": pejax.__version__}
    require_same_results(out, stored)
    for path in (stored / "model").glob("*.json"):
        entries = read(path)
        assert {name: value for name, value in read(out / "model" / path.name).items() if name in entries} == entries


@pytest.mark.parametrize("program", mostly_slow(TRAINERS, ("lm",)))
def test_a_run_is_evaluated_to_the_same_numbers(program: str, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_judge(monkeypatch)
    for path in (runs / program).glob("results*.json"):
        path.unlink()
    assert evaluate.main([program, *FILES.get(program, ())]) == 0
    require_same_results(runs / program, FOLDER / program)


def test_a_comparison_has_nothing_left_to_do(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for run in COMPARED:
        stored = read(FOLDER / run / "outcome.json")
        assert vars(Outcome(**stored)) == stored
        assert {*stored["refused"]} == ({"yarn(factor=2)"} if "alibi" in run else set())
    assert comparison.main([*COMPARE, "--out=compare"]) == 0
    assert ": done after" not in capsys.readouterr().out
    for name in ("results.jsonl", "table.md"):
        assert (runs / "compare" / name).read_text() == (FOLDER / "compare" / name).read_text()


def test_extensions_are_measured_anew_to_the_same_numbers(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lines of 0.3.0 do not say which weights they belong to: they are left out, with a line."""
    stored = lines(FOLDER / "extend" / LINES)
    assert extension.main([*EXTEND, "--out=extend"]) == 0
    said = capsys.readouterr().out
    assert f"lines.jsonl: {len(stored)} lines of pejax 0.3.0, which do not name their weights" in said
    assert "measured already: 0" in said
    written = lines(runs / "extend" / LINES)
    old_lines, new_lines = written[: len(stored)], written[len(stored) :]
    assert old_lines == stored
    for line, other in zip(new_lines, stored, strict=True):
        require_close({**line, "seconds": 0.0}, {**other, "seconds": 0.0})


def test_a_report_has_every_number(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "draw", lambda plot, file: None)  # drawing takes long
    assert report.main([".", "-o", "report.html"]) == 0
    said = capsys.readouterr().out
    assert f"runs read: {len(RUNS)}" in said
    assert "reading the weights" not in said  # what they told is stored
    text = (runs / "report.md").read_text().replace("*", "")
    assert "tune/model" not in text  # the fine-tuned model is no run that is left out
    for run in RUNS:
        for results in results_of(FOLDER / run).values():
            for by_size in results.scores.values():
                cells = [cell_text(Mean(number, math.nan, 1)) for number in by_size.values()]
                assert f"| {results.label} | seed 0 | {' | '.join(cells)} |" in text
    for run in sorted({*RUNS} - {"tune"}):
        assert f"{read(FOLDER / run / 'probe.json')['parameters']:,} | " in text
