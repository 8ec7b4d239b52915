"""What the weights of a run tell a report: kept beside the run, read again for the same step alone."""

import dataclasses
import json
import math

import numpy as np
import pytest
from rich.console import Console

from tests.support.report_runs import add_probe, vit_run
from train.report import probes as probing
from train.report.collect import collect
from train.report.measure import compare_learned, flatten, name_layers
from train.report.probe_file import Learned, Probe, read_probe
from train.report.probes import probes_of

SLOPES = Learned("heads/slope", (2,), 0.5, (1.0, 1.5, 2.0), (2.0, 2.0, 2.0), ([1.0, 2.0], [2.0, 2.0]))
PROBE = Probe(30, 1000, 2, 10**9, 2**28, 28, {"28": {"layer": [[1.0]]}}, {"64": "too large"}, (SLOPES,))


def console() -> Console:
    """Return a console that keeps what it prints."""
    return Console(record=True, width=500, quiet=False)


def test_a_probe_is_kept_for_its_step(tmp_path):
    folder = vit_run(tmp_path / "run", "alibi", 0, {28: 50, 64: 20})
    add_probe(folder, PROBE)
    assert read_probe(folder / "probe.json", 30) == PROBE
    assert read_probe(folder / "probe.json", 60) is None
    (folder / "probe.json").write_text(json.dumps({"format": 0, **dataclasses.asdict(PROBE)}))
    assert read_probe(folder / "probe.json", 30) is None
    (folder / "probe.json").write_text("{")
    assert read_probe(folder / "probe.json", 30) is None


def test_weights_are_read_once_and_again_for_a_larger_size(tmp_path, monkeypatch):
    monkeypatch.setattr(probing, "measure_apart", lambda *_: dataclasses.replace(PROBE, step=31))
    add_probe(vit_run(tmp_path / "kept", "alibi", 0, {28: 50, 64: 20}), PROBE)
    add_probe(vit_run(tmp_path / "grown", "none", 0, {28: 50, 96: 20}), PROBE)
    vit_run(tmp_path / "bare", "learned", 0, {28: 50})
    said = console()
    probes, reasons = probes_of(collect([tmp_path]).runs, [], said)
    assert {folder.name: probe.step for folder, probe in probes.items()} == {"kept": 30, "grown": 31}
    assert reasons == {f"{tmp_path}/bare": "it has no checkpoint"}
    assert said.export_text().count("reading the weights") == 1
    assert json.loads((tmp_path / "grown" / "probe.json").read_text())["step"] == 31


@pytest.mark.slow
def test_data_that_are_no_longer_there_are_a_reason(tmp_path):
    add_probe(vit_run(tmp_path / "bad", "none", 0, {28: 50}, data="folder:nowhere"), PROBE)
    (tmp_path / "bad" / "probe.json").unlink()
    probes, reasons = probes_of(collect([tmp_path]).runs, [], console())
    assert not probes
    assert reasons[f"{tmp_path}/bad"] == "needs --data=folder:nowhere"
    probes, reasons = probes_of(collect([tmp_path]).runs, ["folder:nowhere"], console())
    assert not probes
    assert "folder must be a directory, got 'nowhere'" in reasons[f"{tmp_path}/bad"]


def test_learned_parameters_are_named_and_compared():
    params = {"layers": {"blocks": {"attention": {"position": {"heads": {"slope": np.asarray([3.0, 4.0])}}}}}}
    ((name, after),) = flatten(params).items()
    change = compare_learned(name, np.asarray([0.0, 10.0]), after)
    assert (change.name, change.shape) == ("heads/slope", (2,))
    assert change.moved == pytest.approx(math.hypot(3.0, -6.0) / 10.0)
    assert (change.before, change.after) == ((0.0, 5.0, 10.0), (3.0, 3.5, 4.0))
    assert change.values == ([0.0, 10.0], [3.0, 4.0])
    unknown = compare_learned(name, None, after)
    assert math.isnan(unknown.moved)
    assert unknown.values == ()
    assert math.isnan(compare_learned(name, np.zeros(2), after).moved)
    assert compare_learned(name, np.ones(5000), np.ones(5000)).values == ()


def test_layers_of_an_encoder_and_a_decoder_are_named():
    ones, zeros = np.ones((1, 2)), np.zeros((1, 2))
    assert name_layers([[ones]]) == {"layer": [[1.0, 1.0]]}
    assert list(name_layers([[ones], [ones, zeros]])) == [
        "encoder layer",
        "decoder layer",
        "cross-attention of decoder layer",
    ]
