"""Reports: which runs stand in one table, their numbers, and that everything left out is named with its reason."""

import dataclasses
import json
import math
import os
import shutil
from pathlib import Path

import pytest

from tests.support.cli import refused
from tests.support.measured import top1
from tests.support.report_runs import add_extension, lm_run, vit_run
from train.engine.intervals import t95
from train.report import walk
from train.report.blocks import Cell, Table, plots
from train.report.collect import collect
from train.report.content import Material, document
from train.report.groups import Group, differences, group_runs, seeds_text
from train.report.leads import on_weights, seed_difference
from train.report.outcome import outcome
from train.report.program import main
from train.report.records import Left
from train.report.training import curve_of
from train.vit.results import ResolutionResults


def read(folder: Path) -> tuple[list[Group], list[Left]]:
    """Return the sections of the runs below a folder, and all that was left out."""
    collection = collect([folder])
    groups, twice = group_runs(collection.runs)
    return groups, [*collection.left, *twice]


def table(groups: list[Group], caption: str) -> Table:
    """Return the first table of a report whose caption begins so."""
    content = document(Material(("runs",), tuple(groups), (), {}, {}, "today"))
    blocks = [block for section in content.sections for block in section.blocks]
    return next(block for block in blocks if isinstance(block, Table) and block.caption.startswith(caption))


# Numbers


def test_numbers_are_means_over_seeds_with_their_interval(tmp_path):
    for seed, right in enumerate((60, 63, 69)):
        vit_run(tmp_path / f"alibi-{seed}", "alibi", seed, {28: right, 56: 50})
    (group,), omissions = read(tmp_path)
    assert not omissions
    mean = group.series[0].means["top-1, %"][28]
    spread = math.sqrt(((60 - 64) ** 2 + (63 - 64) ** 2 + (69 - 64) ** 2) / 2)
    assert mean == (pytest.approx(64.0), pytest.approx(t95(3) * spread / math.sqrt(3)), 3)
    row = table([group], "Top-1, % at each size").rows[0]
    assert [cell.text for cell in row] == ["alibi", "seeds 0-2", "64.0 ±11.4", "50.0 ±0.0"]


def test_numbers_of_another_judge_are_in_a_section_of_their_own(tmp_path):
    for seed, judge in enumerate(("ab", "ab", "cd")):
        path = vit_run(tmp_path / f"alibi-{seed}", "alibi", seed, {28: 60 + seed}) / "results.json"
        results = ResolutionResults.load(path)
        dataclasses.replace(results, made_by={"judge": judge}).store(path.parent)
    vit_run(tmp_path / "alibi-3", "alibi", 3, {28: 50})
    groups, omissions = read(tmp_path)
    assert not omissions
    assert sorted(group.series[0].seeds for group in groups) == [(0, 1), (2,), (3,)]
    assert groups[0].title.endswith("(measured with judge ab)")
    line = {"task": "vit", "trained": "alibi", "seed": 7, "status": "done", "message": "", "validation": 0}
    scores = {"none": {"top-1, %": {"28": 99.0}}}
    lines = [{**line, "scores": scores, "made_by": {"none": {"judge": judge}}} for judge in ("cd", "ef")]
    (tmp_path / "results.jsonl").write_text("".join(f"{json.dumps(entry)}\n" for entry in lines))
    for folder in tmp_path.glob("alibi-*"):
        (folder / "outcome.json").write_text("{}")
        (tmp_path / "runs").mkdir(exist_ok=True)
        folder.rename(tmp_path / "runs" / folder.name)
    groups, _ = read(tmp_path)
    assert sorted(group.series[0].seeds for group in groups) == [(0, 1), (2, 7), (3,), (7,)]


def test_the_best_and_the_trained_size_are_marked(tmp_path):
    lm_run(tmp_path / "rope-0", "rope", 0, {64: 1.0, 128: 1.0, 256: 3.0})
    lm_run(tmp_path / "learned-0", "learned", 0, {64: 1.2, 128: 0.9, 256: "a table of 128 tokens"})
    groups, _ = read(tmp_path)
    size_table = table(groups, "Perplexity at each size")
    assert [size_table.heads[i] for i in size_table.strong] == ["128"]
    best = {row[0].text: [cell.strong for cell in row[2:]] for row in size_table.rows}
    assert best == {"learned": [False, True, False], "rope": [True, False, True]}
    assert size_table.rows[0][-1] == Cell("refused", None)
    assert "a table of 128 tokens" in size_table.caption


def test_one_seed_has_no_interval_and_the_section_says_so(tmp_path):
    vit_run(tmp_path / "none-0", "none", 0, {28: 50})
    groups, _ = read(tmp_path)
    content = document(Material(("runs",), tuple(groups), (), {}, {}, "today"))
    assert "One seed per encoding" in content.sections[0].blocks[0]
    assert "±" not in table(groups, "Top-1, % at each size").rows[0][-1].text


def test_differences_are_taken_seed_by_seed_over_common_seeds(tmp_path):
    for seed, (none, alibi) in {0: (50, 52), 1: (60, 66), 2: (70, None)}.items():
        vit_run(tmp_path / f"none-{seed}", "none", seed, {28: none})
        if alibi is not None:
            vit_run(tmp_path / f"alibi-{seed}", "alibi", seed, {28: alibi})
    vit_run(tmp_path / "rope-7", "rope_axial", 7, {28: 80})
    (group,), _ = read(tmp_path)
    by_label = {series.label: series for series in group.series}
    assert group.reference.label == "none"
    mean = seed_difference(by_label["alibi"], by_label["none"], "top-1, %", 28)
    assert mean is not None
    assert (mean.mean, mean.seeds) == (pytest.approx(4.0), 2)
    assert seed_difference(by_label["rope_axial"], by_label["none"], "top-1, %", 28) is None
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in table([group], "Difference of").rows}
    assert rows == {"alibi": ["seeds 0-1", "+4.00 ±25.41"], "rope_axial": ["none in common", "no seeds in common"]}


def test_training_curves_are_means_at_common_steps(tmp_path):
    for seed in (0, 1):
        vit_run(tmp_path / f"none-{seed}", "none", seed, {28: 50})
    longer = [{"step": 20, "loss": 4.0}, {"step": 25, "loss": 9.0}, {"step": 30, "loss": math.nan}]
    (tmp_path / "none-1" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in longer))
    (group,), _ = read(tmp_path)
    assert [(p.x, p.y) for p in curve_of(group.series[0], "loss")] == [(20, pytest.approx((2.0 + 4.0) / 2))]


@pytest.mark.parametrize(
    ("at_28", "at_56", "parts"),
    [
        (
            (60, 60, 60), (50, 53, 56),
            [
                "At 56 px fire is the best, ahead of alibi by 12.0 ±2.5 (top-1, %, 3 seeds)",
                "at 28 px, the trained size, nothing can be said: alibi is ahead of fire by 1.00 ±11.38",
            ],
        ),
        (
            (60,), (50,),
            [
                "At 56 px nothing can be said: fire is ahead of alibi by 11.0 (top-1, %, 1 seed)",
                "at 28 px, the trained size, nothing can be said: alibi and fire are equal (top-1, %, 1 seed)",
            ],
        ),
    ],
)  # fmt: skip
def test_the_outcome_is_the_first_sentence(at_28, at_56, parts, tmp_path):
    for seed, (trained, large) in enumerate(zip(at_28, at_56, strict=True)):
        vit_run(tmp_path / f"alibi-{seed}", "alibi", seed, {28: trained, 56: large})
        vit_run(tmp_path / f"fire-{seed}", "fire", seed, {28: (trained, 63, 54)[seed], 56: large + 11 + seed})
    groups, _ = read(tmp_path)
    assert all(part in outcome(groups[0]) for part in parts)
    assert document(Material(("runs",), tuple(groups), (), {}, {}, "today")).outcomes == (outcome(groups[0]),)


def test_encodings_that_seeds_do_not_tell_from_the_best_are_named(tmp_path):
    for seed in range(3):
        for pe, right in (("alibi", 60 + 3 * (seed == 1)), ("fire", 60 + 3 * (seed == 2)), ("none", 20)):
            vit_run(tmp_path / f"{pe}-{seed}", pe, seed, {28: right})
    (group,), _ = read(tmp_path)
    said = "alibi is ahead of none by 41.0 ±4.3 (top-1, %, 3 seeds), but not told apart from fire."
    assert outcome(group) == f"At 28 px, the trained size, {said}"


def test_with_one_encoding_nothing_can_be_said(tmp_path):
    vit_run(tmp_path / "alibi-0", "alibi", 0, {28: 60})
    (group,), _ = read(tmp_path)
    assert outcome(group) == "Only alibi was measured: nothing can be said on which encoding is better."


PI = "pi(stretch=True)"


def test_one_model_with_and_without_an_extension_is_compared_by_its_images(tmp_path):
    """The run that the README's command leaves, of a version that stored no outcomes: 1.96 sqrt(Σ p (1 - p) / n)."""
    folder = vit_run(tmp_path / "rope_mixed-0", "rope_mixed", 0, {28: 8500, 56: 2080}, count=10_000)
    add_extension(folder, PI, {28: 8500, 56: 7720}, count=10_000)
    (group,), _ = read(tmp_path)
    mean = on_weights(group.series[1], group.series[0], "top-1, %", 56)
    assert mean == (pytest.approx(56.4), pytest.approx(196 * math.sqrt(0.208 * 0.792 + 0.772 * 0.228) / 100, 0.02), 1)
    assert outcome(group) == (
        f"At 56 px rope_mixed + {PI} is ahead of rope_mixed by 56.4 ±1.2 (top-1, %, 1 seed) on the same weights "
        f"and images, other seeds not tried; at 28 px, the trained size, rope_mixed and rope_mixed + {PI} are equal on "
        "the same weights and images (top-1, %, 1 seed)."
    )
    comparison = table([group], "Difference of top-1, % to rope_mixed")
    assert [cell.text for cell in comparison.rows[0]] == [f"rope_mixed + {PI}", "seed 0", "+0.00 ±0.99", "+56.4 ±1.2"]
    assert comparison.caption.endswith("One seed with and without an extension has that of its images.")


def test_a_difference_within_the_interval_of_the_images_tells_nothing(tmp_path):
    add_extension(vit_run(tmp_path / "alibi-0", "alibi", 0, {28: 60, 56: 50}), "slopes", {28: 60, 56: 55})
    (group,), _ = read(tmp_path)
    said = outcome(group).split(";")[0]
    assert said.startswith("At 56 px nothing can be said: alibi + slopes is ahead of alibi by 5.00 ±13")
    assert said.endswith("on the same weights and images")


def test_other_weights_and_other_images_are_not_compared_by_images(tmp_path):
    folder = vit_run(tmp_path / "rope_mixed-0", "rope_mixed", 0, {28: 60, 56: 10})
    add_extension(folder, PI, {28: 60, 56: 90})
    vit_run(tmp_path / "alibi-0", "alibi", 0, {28: 60, 56: 80})
    (group,), _ = read(tmp_path)
    assert (
        "ahead of rope_mixed by 80.0 ±10.5 (top-1, %, 1 seed) on the same weights and images, other seeds not tried, "
        "but not told apart from alibi;"
    ) in outcome(group)
    by_label = {series.label: series for series in group.series}
    assert on_weights(by_label["alibi"], by_label["rope_mixed"], "top-1, %", 56) is None
    names = [row[0].text for row in table([group], "Difference of top-1, % to alibi").rows]
    assert names == ["rope_mixed", f"rope_mixed + {PI}", f"rope_mixed + {PI}, to rope_mixed"]
    numbers = (*top1({28: 60}), *top1({56: 45}, 50))  # of half of the images
    results = ResolutionResults.load(folder / "results.json")
    dataclasses.replace(results, extend=PI, numbers=numbers).store(folder)
    (group,), _ = read(tmp_path)
    assert f"nothing can be said: rope_mixed + {PI} is ahead of alibi by 10.0 (top-1, %, 1 seed)" in outcome(group)


@pytest.mark.parametrize(
    ("larger", "statement"),
    [
        ((50, 54, 58), "is the best, ahead of rope_mixed by 44.0 ±9.9 (top-1, %, 3 seeds)"),
        (
            (20, 60, 95),
            "is ahead of rope_mixed by 48.3 ±10.7 (top-1, %, 3 seeds) on the same weights and images, "
            "other seeds may differ",
        ),
        ((8, 12, 13), None),
    ],
)  # fmt: skip
def test_several_seeds_are_compared_over_seeds_and_else_by_images(larger, statement, tmp_path):
    for seed, right in enumerate(larger):
        folder = vit_run(tmp_path / f"rope_mixed-{seed}", "rope_mixed", seed, {28: 60, 56: 10})
        add_extension(folder, PI, {28: 60, 56: right})
    (group,), _ = read(tmp_path)
    name = f"rope_mixed + {PI}"
    at_56 = f"{name} {statement}" if statement else f"nothing can be said: {name} is ahead of rope_mixed by 1.00 ±6.57"
    at_28 = f"rope_mixed and {name} are equal on the same weights and images (top-1, %, 3 seeds)."
    first, last = outcome(group).split("; ")
    assert first.startswith(f"At 56 px {at_56}")
    assert first.endswith(statement or "(top-1, %, 3 seeds)")
    assert last == f"at 28 px, the trained size, {at_28}"


def test_weights_of_another_run_or_step_are_others(tmp_path):
    first = vit_run(tmp_path / "alibi-0", "alibi", 0, {28: 60})
    add_extension(first, "slopes", {28: 90})
    vit_run(tmp_path / "alibi-1", "alibi", 1, {28: 60})
    other = vit_run(tmp_path / "other-1", "alibi", 1, {28: 90}, extend="slopes")
    groups, _ = read(tmp_path)
    plain, extended = groups[0].series
    assert extended.seeds == plain.seeds == (0, 1)
    assert on_weights(extended, plain, "top-1, %", 28) is None
    shutil.rmtree(other)
    (group,), _ = read(tmp_path)
    assert on_weights(*reversed(group.series), "top-1, %", 28) is not None
    results = ResolutionResults.load(first / "results-slopes.json")
    dataclasses.replace(results, step=results.step - 1).store(first)
    (group,), _ = read(tmp_path)
    assert on_weights(*reversed(group.series), "top-1, %", 28) is None


@pytest.mark.parametrize(("seeds", "points", "bands"), [(2, 4, False), (5, 10, False), (6, 0, True)])
def test_few_seeds_are_points_and_many_are_bands(seeds, points, bands, tmp_path):
    for seed in range(seeds):
        vit_run(tmp_path / f"alibi-{seed}", "alibi", seed, {28: 60 + seed, 56: 50})
    groups, _ = read(tmp_path)
    content = document(Material(("runs",), tuple(groups), (), {}, {}, "today"))
    (curve,) = plots(content.sections[0])[0].curves
    assert len(curve.seeds) == points
    assert any(point.high > point.low for point in curve.points) == bands


def test_runs_are_named_by_their_place_in_the_folder(tmp_path):
    vit_run(tmp_path / "deep" / "alibi-0", "alibi", 0, {28: 60})
    collection = collect([tmp_path])
    groups, _ = group_runs(collection.runs)
    omissions = (Left(f"{tmp_path}/x", f"as {tmp_path}/deep/alibi-0"),)
    *_, lost, runs = document(Material((str(tmp_path),), tuple(groups), omissions, {}, {}, "today")).sections
    assert runs.blocks[0].rows[0][0].text == "deep/alibi-0"
    assert [cell.text for cell in lost.blocks[0].rows[0]] == ["x", "as deep/alibi-0"]


def test_seeds_in_words():
    assert [seeds_text(seeds) for seeds in ((3,), (0, 1, 2), (0, 2))] == ["seed 3", "seeds 0-2", "seeds 0, 2"]


# Sections


@pytest.mark.parametrize(
    ("other", "setting"),
    [({"data": "glyphs"}, "data"), ({"epochs": 3}, "epochs"), ({"width": 128}, "width"), ({"size": 32}, "trained")],
)
def test_runs_of_different_data_size_or_budget_are_in_sections_of_their_own(other, setting, tmp_path):
    vit_run(tmp_path / "one", "none", 0, {28: 50})
    vit_run(tmp_path / "other", "alibi", 0, {28: 60}, **other)
    groups, omissions = read(tmp_path)
    assert not omissions
    assert [len(group.series) for group in groups] == [1, 1]
    assert groups[0].title != groups[1].title
    assert setting in differences(*groups)


def test_runs_measured_on_other_test_images_are_apart(tmp_path):
    vit_run(tmp_path / "one", "none", 0, {28: 50})
    vit_run(tmp_path / "other", "alibi", 0, {28: 50}, count=500)
    assert [group.title for group in read(tmp_path)[0]] == [
        "Images: fashion, trained at 28 px (test examples 100)",
        "Images: fashion, trained at 28 px (test examples 500)",
    ]


def test_other_settings_of_the_optimizer_are_in_the_label(tmp_path):
    vit_run(tmp_path / "slow", "none", 0, {28: 50}, lr=1e-3)
    vit_run(tmp_path / "fast", "none", 0, {28: 60}, lr=2e-3)
    (group,), omissions = read(tmp_path)
    assert not omissions
    assert [series.label for series in group.series] == ["none, lr=0.001", "none, lr=0.002"]


def test_runs_from_trained_weights_are_apart_and_one_series(tmp_path):
    vit_run(tmp_path / "rope-0", "rope_axial", 0, {28: 50})
    for seed in (0, 1):
        vit_run(tmp_path / f"tuned-{seed}", "rope_axial", seed, {28: 60}, init=f"runs/rope-{seed}")
    groups, omissions = read(tmp_path)
    assert not omissions
    assert [[(series.label, series.seeds) for series in group.series] for group in groups] == [
        [("rope_axial, from rope", (0, 1))],
        [("rope_axial", (0,))],
    ]


def test_settings_of_a_process_do_not_divide(tmp_path):
    vit_run(tmp_path / "one", "none", 0, {28: 50}, log_every=10)
    vit_run(tmp_path / "other", "alibi", 0, {28: 50}, devices=1, checkpoint_every=7, probe_every=0)
    assert len(read(tmp_path)[0]) == 1


def test_lines_of_a_comparison_stand_in_for_run_folders_that_are_gone(tmp_path):
    place = vit_run(tmp_path / "runs" / "none-0", "none", 0, {28: 50})
    (place / "outcome.json").write_text('{"status": "done"}')
    line = {"task": "vit", "pe": "alibi", "trained": "alibi", "seed": 0, "validation": 0.0, "status": "done",
            "message": "", "scores": {"none": {"top-1, %": {"28": 61.0}}}}  # fmt: skip
    there = {**line, "trained": "none", "scores": {"none": {"top-1, %": {"28": 1.0}}}}
    failed = {**line, "trained": "rope", "status": "diverged", "message": "at step 3", "scores": {}}
    text = "".join(json.dumps(entry) + "\n" for entry in (line, there, failed)) + '{"task": "vit", "pe": "al'
    (tmp_path / "results.jsonl").write_text(text)
    (group,), omissions = read(tmp_path)
    assert {series.label: series.means["top-1, %"][28].mean for series in group.series} == {"alibi": 61.0, "none": 50.0}
    assert [omission.why.partition(":")[0] for omission in omissions] == [
        "rope seed 0 diverged",
        "not a line of train.compare",
    ]
    for path in [*place.iterdir(), place]:
        path.rmdir() if path.is_dir() else path.unlink()
    (group,), _ = read(tmp_path)
    assert group.title == "Images: unknown data"
    assert "neither data nor trained size nor budget" in group.key.note


# Bad input: what is left out, and why


def left_of(tmp_path: Path) -> str:
    """Return the only reason for which something was left out beside a good run."""
    vit_run(tmp_path / "good", "none", 0, {28: 50})
    groups, omissions = read(tmp_path)
    assert [series.label for group in groups for series in group.series] == ["none"]
    assert len(omissions) == 1, omissions
    return f"{omissions[0].what}: {omissions[0].why}"


def test_a_run_that_is_not_finished(tmp_path):
    (vit_run(tmp_path / "half", "alibi", 0, {28: 50}) / "results.json").unlink()
    assert left_of(tmp_path).endswith("half: not finished: no results yet; the last report is of step 30")


def test_a_run_that_diverged(tmp_path):
    folder = vit_run(tmp_path / "bad", "alibi", 0, {28: 50})
    (folder / "results.json").unlink()
    (folder / "offending-12").mkdir()
    assert "diverged at step 12" in left_of(tmp_path)


def test_a_run_that_was_stopped_before_it_began(tmp_path):
    (tmp_path / "rope-0").mkdir()
    (tmp_path / "rope-0" / "outcome.json").write_text('{"status": "stopped", "message": ""}')
    assert left_of(tmp_path).endswith("rope-0: stopped")


def test_an_extension_that_the_trainer_refused(tmp_path):
    folder = vit_run(tmp_path / "runs" / "none-1", "none", 1, {28: 50})
    (folder / "outcome.json").write_text('{"status": "done", "refused": {"yarn": "none has no extension"}}')
    assert left_of(tmp_path).endswith("none-1/extend=yarn: none has no extension")


def test_a_run_with_nan(tmp_path):
    lm_run(tmp_path / "nan", "rope", 0, {64: 1.0, 128: math.nan})
    assert left_of(tmp_path).endswith("every number must be finite and at least 0, got perplexity of nan at 128")


def test_two_runs_with_the_same_name(tmp_path):
    vit_run(tmp_path / "zweite" / "none-0", "none", 0, {28: 10})
    message = left_of(tmp_path)
    assert f"same encoding, extension, seed and settings as {tmp_path}/good, with other numbers" in message


def test_a_foreign_folder(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("")
    assert left_of(tmp_path).endswith("photos: no run folder of a trainer: no config.json")


def test_a_run_of_another_program(tmp_path):
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "config.json").write_text('{"program": "toy"}')
    assert "must be one of vit, lm, seq2seq, dit, tune, got 'toy'" in left_of(tmp_path)


def test_settings_chosen_on_validation_data(tmp_path):
    vit_run(tmp_path / "swept", "alibi", 0, {28: 99}, validation=0.1)
    assert "held-out training data" in left_of(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", '{"rows": []}', '{"rows": [{"size": 1}]}'])
def test_damaged_results(text, tmp_path):
    (vit_run(tmp_path / "bad", "alibi", 0, {28: 50}) / "results.json").write_text(text)
    assert "results must come from an evaluation" in left_of(tmp_path)


def test_damaged_metrics_leave_out_the_curves_alone(tmp_path):
    vit_run(tmp_path / "good", "none", 0, {28: 50})
    (tmp_path / "good" / "metrics.jsonl").write_text('{"loss": 1}\n')
    ((group,), omissions) = read(tmp_path)
    assert group.series[0].means["top-1, %"][28].mean == 50
    assert [Path(omission.what).name for omission in omissions] == ["metrics.jsonl"]


def test_a_folder_that_cannot_be_read(tmp_path, monkeypatch):
    locked = vit_run(tmp_path / "locked", "alibi", 0, {28: 50})
    scan = os.scandir

    def guarded(path):
        if Path(path) == locked:
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(walk.os, "scandir", guarded)
    assert left_of(tmp_path).endswith("locked: cannot be read: Permission denied")


# The command


def test_nothing_to_report_is_one_line(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    report = lambda *words: lambda: main([*map(str, words)])
    assert "at least one finished run, got none" in refused(capsys, report(tmp_path / "empty"))
    assert "got a file" in refused(capsys, report(tmp_path / "file"))
    assert "got nothing" in refused(capsys, report(tmp_path / "missing"))
    assert "ends in .html" in refused(capsys, report(tmp_path / "empty", "-o", tmp_path / "report.pdf"))
    assert "unknown option --quick" in refused(capsys, report(tmp_path, "--quick"))


def test_a_place_that_cannot_be_written_is_one_line(tmp_path, capsys):
    vit_run(tmp_path / "runs" / "none-0", "none", 0, {28: 50})
    (tmp_path / "file").write_text("")
    line = refused(capsys, lambda: main([f"{tmp_path}/runs", "-o", f"{tmp_path}/file/report.html"]))
    assert "out must be where files can be written" in line


def test_the_command_writes_page_markdown_and_figures(tmp_path, capsys):
    for seed, pe in enumerate(("none", "alibi")):
        vit_run(tmp_path / "runs" / pe, pe, seed, {12: 20, 28: 50, 64: 30})
    (vit_run(tmp_path / "runs" / "half", "rope_axial", 0, {28: 50}) / "results.json").unlink()
    assert main([f"{tmp_path}/runs", "-o", f"{tmp_path}/new folder/page.html"]) == 0
    assert f"left out: {tmp_path}/runs/half: not finished" in capsys.readouterr().out
    files = sorted(path.name for path in (tmp_path / "new folder").iterdir())
    assert files == ["page-s1-1.png", "page-s1-loss.png", "page-s1-top1.png", "page.html", "page.md"]
    text = (tmp_path / "new folder" / "page.md").read_text()
    assert "| alibi | seed 1 | 20.0 | 50.0 | 30.0 |" in text.replace("**", "")
    assert "no seeds in common" in text
    assert "it has no checkpoint" in text
    assert (tmp_path / "new folder" / "page-s1-1.png").read_bytes().startswith(b"\x89PNG")
