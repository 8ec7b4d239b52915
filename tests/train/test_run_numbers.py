"""Numbers belong to their weights: checkpoints of a step, results of a run, settings that were trained with."""

import dataclasses
import json
from pathlib import Path

import pytest

from tests.support.cli import refused
from tests.support.measured import top1
from train.engine.files import with_digest
from train.engine.options import names_of
from train.engine.stored_config import digest_of, load_config, save_config
from train.evaluate import program as evaluate
from train.report.collect import collect
from train.vit.config import Config as VitConfig
from train.vit.results import ResolutionResults

pytestmark = pytest.mark.usefixtures("toy")


# Numbers belong to their weights


def test_a_renamed_checkpoint_is_not_another_step(run, capsys):
    (run / "checkpoints" / "8").rename(run / "checkpoints" / "120")
    assert evaluate.main([str(run)]) == 1
    said = capsys.readouterr()
    assert "checkpoint of step 120 is damaged, skipped: it was written as step 8" in said.out
    assert f"error: step 120 of {run} is damaged: these are the results of step 6" in said.err


def test_seals_of_earlier_versions_have_no_step_but_the_state_has(run, capsys):
    seal = run / "checkpoints" / "8" / "seal" / "metadata"
    content = json.loads(seal.read_text())
    del content["step"]
    seal.write_text(json.dumps(with_digest(content)))
    assert evaluate.main([str(run)]) == 0
    (run / "checkpoints" / "8").rename(run / "checkpoints" / "120")
    assert evaluate.main([str(run)]) == 1
    assert "it was written as step 8" in capsys.readouterr().out


def test_results_of_a_step_before_the_last_are_written_beside():
    """So that those of a finished run stay what they are."""
    results = ResolutionResults("rope", "fashion", 28, 90, "none", "note", top1({28: 80}), steps=120)
    assert (results.stem, results.label) == ("results-step90", "rope, step 90 of 120")
    assert dataclasses.replace(results, extend="pi").stem == "results-pi-step90"
    assert dataclasses.replace(results, step=120).stem == "results"
    assert dataclasses.replace(results, steps=0).stem == "results"


def evaluated(folder: Path, **changed: object) -> Path:
    """Write a run folder of train.vit with results, and return the path of these."""
    folder.mkdir(parents=True)
    save_config(VitConfig(out=str(folder)), folder)
    numbers = top1({28: 80, 32: 70})
    results = ResolutionResults("rope", "fashion", 28, 120, "none", "note", numbers, 120, digest_of(folder))
    dataclasses.replace(results, **changed).save(folder)
    return folder / "results.json"


@pytest.mark.slow
def test_a_report_leaves_out_results_of_a_step_before_the_last(tmp_path):
    folder = evaluated(tmp_path / "run").parent
    ResolutionResults("rope", "fashion", 28, 90, "none", "note", top1({28: 10}), 120, digest_of(folder)).save(folder)
    collection = collect([tmp_path])
    assert [[evaluation.scores["top-1, %"][28] for evaluation in run.scored] for run in collection.runs] == [[80.0]]
    (omission,) = (omission for omission in collection.left if "results" in omission.what)
    assert omission.what == f"{folder / 'results-step90.json'}"
    assert omission.why == "measured at step 90, before the end of training at step 120"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"value": 80.0', '"value": 81.0'),
        ('"value": 80.0', '"value": NaN'),
        ('"at": 28', '"at": 29'),
        ('"step": 120', '"step": 90'),
        ('"name": "rope"', '"name": "alibi"'),
        ('"extend": "none"', '"extend": "pi"'),
    ],
)
def test_results_that_were_changed_are_refused(old, new, tmp_path):
    path = evaluated(tmp_path / "run")
    assert ResolutionResults.load(path).numbers[0].value == 80
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    with pytest.raises(ValueError, match="it has changed since it was written"):
        ResolutionResults.load(path)


def test_results_of_another_run_are_refused(tmp_path):
    path = evaluated(tmp_path / "run")
    other = evaluated(tmp_path / "other", run="0123456789abcdef")
    with pytest.raises(ValueError, match="it belongs to another run"):
        ResolutionResults.load(other)
    path.replace(tmp_path / "results.json")
    assert ResolutionResults.load(tmp_path / "results.json").step == 120


def test_results_of_earlier_versions_are_read_where_they_can_be_true(tmp_path):
    path = evaluated(tmp_path / "run")
    stored = json.loads(path.read_text())
    for name in ("digest", "run", "steps", "numbers"):
        del stored[name]
    path.write_text(json.dumps({**stored, "rows": [row := {"size": 28, "tokens": 49, "correct": 80, "count": 100}]}))
    assert ResolutionResults.load(path).steps == 0
    assert ResolutionResults.load(path).scores == {"top-1, %": {28: 80.0}}
    for name, value, message in (("correct", 5000, "from 0 to count=100, got 5000"), ("count", True, "count must be")):
        changed = {**stored, "rows": [{**row, name: value}]}
        path.write_text(json.dumps(changed))
        with pytest.raises(ValueError, match=message):
            ResolutionResults.load(path)


@pytest.mark.parametrize(("name", "value"), [("lr", 1.0), ("seed", 7), ("width", 32)])
def test_a_config_with_other_settings_is_refused(name, value, tmp_path, capsys):
    folder = evaluated(tmp_path / "run").parent
    stored = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**stored, name: value}))
    for argv in ([str(folder)], ["--compare", str(folder), f"--to={tmp_path / 'both'}"]):
        error = refused(capsys, lambda argv=argv: evaluate.main(argv))
        assert f"{folder / 'config.json'}: its settings must be those that the run was trained with" in error
    (folder / "config.json").write_text(json.dumps({**stored, "eval_limit": 5}))
    assert load_config(VitConfig, folder).eval_limit == 5


def test_the_digest_of_a_run_does_not_depend_on_fields_that_earlier_versions_lack(tmp_path):
    evaluated(tmp_path / "run")
    path = tmp_path / "run" / "config.json"
    stored = json.loads(path.read_text())
    path.write_text(
        json.dumps({name: value for name, value in stored.items() if name not in names_of(VitConfig, "late")})
    )
    assert load_config(VitConfig, tmp_path / "run") == VitConfig(out=str(tmp_path / "run"))
