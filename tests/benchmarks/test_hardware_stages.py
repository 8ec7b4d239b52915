"""The stages of `benchmarks.hardware` that measure and train, on processes that answer what a test says."""

import math
import time
from pathlib import Path

import pytest

from benchmarks.hardware import measure, sample, sampling, train
from benchmarks.hardware.ledger import Ledger
from benchmarks.hardware.run import Run, Settings
from tests.support.hardware_cases import AnsweringPool
from train.dit.config import Config
from train.dit.model import Sampler
from train.engine.parser import parse

COUNT = len(train.ENCODINGS)


@pytest.fixture
def started(tmp_path):
    """Return how to start a stage: `(answer) -> run`."""
    ledgers = []

    def start(answer, count=COUNT, **settings):
        for ledger in ledgers:
            ledger.close()
        ledgers.append(Ledger(tmp_path / "out", {}, lambda line: None))
        chosen = Settings(["train"], 8.0, tmp_path / "out")._replace(**settings)
        return Run(chosen, AnsweringPool(count, answer), ledgers[-1], tmp_path, [])

    yield start
    ledgers[-1].close()


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Stop the clock of deadlines; a test moves it."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def trains(task, arguments, epoch=0.5):
    """Answer as training does."""
    if task == "probe":
        return {"outcome": "made", "epoch": epoch}
    if task == "train":
        return {
            "outcome": "trained",
            "top1": {"none": {"28": 50.0}, "pi(stretch=True)": {}},
            "epochs": arguments["epochs"],
        }
    return {"outcome": "made"}


def test_one_seed_of_all_encodings_ends_in_half_of_the_time(started):
    run = started(trains)
    train.run(run, 101.0)
    lines = run.ledger.of_stage("train")
    assert lines["glyphs | epochs"]["epochs"] == int((101.0 / 2 - train.TEST) / 0.5)
    assert lines["glyphs | rope | seed 2"]["epochs"] == lines["glyphs | epochs"]["epochs"]
    assert len([name for name in lines if name.startswith("fashion") and "seed" in name]) == COUNT * 3
    assert not run.left


def test_with_fewer_processes_than_encodings_fewer_epochs_fit(started):
    run = started(trains, count=5)
    train.run(run, 101.0)
    turns = math.ceil(COUNT / 5)
    assert run.ledger.of_stage("train")["glyphs | epochs"]["epochs"] == int((101.0 / 2 - train.TEST) / (turns * 0.5))


def test_without_a_limit_the_recipe_is_the_full_one(started):
    run = started(trains, minutes=0.0)
    train.run(run, float("inf"))
    assert run.ledger.of_stage("train")["glyphs | epochs"]["epochs"] == train.FULL


def test_a_second_call_keeps_the_epochs_and_trains_only_what_is_missing(started):
    def fails_once(task, arguments):
        if task == "train" and arguments["seed"] == 1:
            return {"outcome": "hung", "message": "no answer"} if arguments["pe"] == "rope" else trains(task, arguments)
        return trains(task, arguments)

    first = started(fails_once)
    train.run(first, 101.0)
    epochs = first.ledger.of_stage("train")["glyphs | epochs"]["epochs"]
    assert first.ledger.of_stage("train")["glyphs | rope | seed 1"]["outcome"] == "hung"
    path = first.settings.out / "results.jsonl"
    remaining_lines = [
        line for line in path.read_text().splitlines(keepends=True) if "glyphs | alibi | seed 2" not in line
    ]
    path.write_text("".join(remaining_lines))
    second = started(lambda task, arguments: trains(task, arguments, epoch=1.0))
    train.run(second, 101.0)
    assert second.pool.asked.count("train") == 1
    assert second.ledger.of_stage("train")["glyphs | alibi | seed 2"]["epochs"] == epochs


def test_seeds_that_do_not_fit_are_not_begun(started, clock, capsys):
    def slow(task, arguments):
        clock[0] += 100.0 / COUNT if task == "train" else 0.0
        return trains(task, arguments)

    run = started(slow)
    run.ledger.say = print
    train.run(run, 241.0)
    lines = run.ledger.of_stage("train")
    assert {name.rpartition(" ")[2] for name in lines if "glyphs" in name and "seed" in name} == {"0", "1"}
    assert lines["fashion | rope | seed 0"]["epochs"] < lines["glyphs | rope | seed 0"]["epochs"]
    assert {case.name for case in run.left} >= {"glyphs | rope | seed 2", "fashion | rope | seed 1"}
    assert "train: glyphs: seed 2 takes 65 s, and 41 s are left" in capsys.readouterr().out


def test_encodings_that_do_not_compile_in_time_are_named_and_the_others_trained(started, clock, capsys):
    def slow(task, arguments):
        if task == "compile_epoch" and arguments["pe"] == "cpb":
            clock[0] = 80.0
            return {"outcome": "hung", "message": "no answer in 80 s"}
        return trains(task, arguments)

    run = started(slow)
    run.ledger.say = print
    train.run(run, 120.0)
    output = capsys.readouterr().out
    trained = {name.split(" | ")[1] for name in run.ledger.of_stage("train") if "glyphs" in name and "seed 0" in name}
    assert trained == {pe for pe in train.FIRST if pe != "cpb"}
    assert f"train: glyphs: 8 of {COUNT} encodings compiled in 80 s; more --minutes are needed for cpb, " in output
    assert "glyphs | cpb | seed 0" in {case.name for case in run.left}


def test_a_call_that_trains_nothing_says_why(started, clock, capsys):
    def slow(task, arguments):
        clock[0] += 10.0 if task == "compile_epoch" else 0.0
        return {"outcome": "hung", "message": "no answer"} if task == "compile_epoch" else trains(task, arguments)

    run = started(slow)
    run.ledger.say = print
    train.run(run, 10.0)
    output = capsys.readouterr().out
    assert output.startswith(
        f"train: glyphs: 0 of {COUNT} encodings compiled in 10 s; more --minutes are needed for rope_mixed"
    )
    assert "train: fashion: no time was left" in output
    assert len(run.left) == len(train.DATA) * len(train.ENCODINGS) * train.SEEDS


def test_a_run_without_time_to_test_is_not_counted_as_trained(started):
    late = {"outcome": "late", "message": "trained in 5 s, and no time was left to test"}
    run = started(lambda task, arguments: late if task == "train" else trains(task, arguments))
    train.run(run, 101.0)
    assert not [name for name in run.ledger.of_stage("train") if "seed" in name]
    assert len(run.left) == len(train.DATA) * len(train.ENCODINGS) * train.SEEDS


def test_data_that_cannot_be_made_end_their_training_alone(started):
    full = {"outcome": "error", "message": "OSError: No space left on device"}
    run = started(
        lambda task, arguments: (
            full if task == "make_tests" and arguments["data"] == "glyphs" else trains(task, arguments)
        )
    )
    train.run(run, 101.0)
    lines = run.ledger.of_stage("train")
    assert lines["glyphs | epochs"]["message"] == "OSError: No space left on device"
    assert lines["fashion | rope | seed 0"]["outcome"] == "trained"
    assert "glyphs | rope | seed 0" in {case.name for case in run.left}


def test_a_way_that_fails_is_told_and_the_others_are_timed(started):
    def answer(task, arguments):
        way = arguments.get("way", "")
        if "Flex" in way:
            return {"outcome": "memory", "message": "out of memory"}
        if task == "sample":
            hung = way == "pejax kernels, T5"
            return {"outcome": "hung", "message": "no answer"} if hung else {"outcome": "measured", "seconds": 0.25}
        return {"outcome": "measured", "share": 1.0} if task == "memory" else {"outcome": "made"}

    run = started(answer, stages=["measure"])
    measure.run(run, 1000.0)
    lines = run.ledger.of_stage("measure")
    column = measure.columns(rehearse=False)[0]
    of = lambda way: lines[column.case(way).name]
    assert of("pejax kernels, no bias")["seconds"] == [0.25] * measure.ROUNDS
    assert (of("pejax kernels, T5")["outcome"], of("pejax kernels, T5")["peer"]) == ("hung", False)
    assert (of("torch FlexAttention, ALiBi")["outcome"], of("torch FlexAttention, ALiBi")["peer"]) == ("memory", True)
    assert len(lines) == sum(len(item.ways) for item in measure.columns(False)) + len(measure.memory_cases(False))
    again = started(lambda *_: pytest.fail("asked again"), stages=["measure"])
    measure.run(again, 1000.0)


def test_columns_that_the_time_does_not_allow_are_left(started):
    run = started(lambda *_: {"outcome": "made"}, stages=["measure"])
    column = measure.columns(rehearse=False)[0]
    measure.time_column(run, column, 0.0)
    assert [case.name for case in run.left] == [column.case(way).name for way in column.ways]
    assert Path(run.settings.out, "results.jsonl").read_text() == ""


SAMPLED = [(preset, pe, limited) for preset in sample.PRESETS for pe in sum(sample.ROUNDS, ()) for limited in (0, 1)]


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "pe", "limited"), SAMPLED)
def test_the_options_of_samples_are_those_of_a_run_that_refuses_nothing(preset, pe, limited):
    options = [*sampling.chosen(preset, pe, bool(limited), toy=False), *sampling.shorter(700)]
    config = parse(Config, [f"--preset={preset}", f"--pe={pe}", *options]).validated()
    assert (config.steps, config.warmup) == (700, 70)
    assert config.ema == pytest.approx(1 - 1 / 70, abs=1e-6)
    model = Sampler(config, 1, 10)
    assert [*model.extended][:2] == ["none", "pi"]
    assert not [why for extend in model.extended for shape in config.shapes if (why := model.refusal(extend, shape))]


def test_a_run_trains_for_the_time_that_sampling_leaves(monkeypatch, tmp_path):
    """170 s of the time are for the samples, and 85 % of the rest for steps of 5 ms, at most the preset's."""
    asked = []
    monkeypatch.setattr(sampling.time, "monotonic", lambda: 0.3)
    monkeypatch.setattr(sampling, "timed_step", lambda options, out, count: 0.005)

    def command(options):
        asked.extend(options)
        raise InterruptedError

    monkeypatch.setattr(sampling, "command", command)
    options = {"preset": "gpu", "pe": "alibi", "folder": str(tmp_path), "to": str(tmp_path), "limited": True}
    for seconds, steps in ((400.0, 20_000), (220.0, 8_500)):
        with pytest.raises(InterruptedError):
            sampling.sample(until=seconds, toy=False, **options)
        chosen = [option for option in asked if option.startswith("--steps=")][-1]
        assert int(chosen.partition("=")[2]) == pytest.approx(steps, abs=2)
    result = sampling.sample(until=172.0, toy=False, **options)
    late = "a step takes 5.0 ms, and 2 s are left to train: more --minutes are needed"
    assert result == {"outcome": "late", "message": late}
