"""What an evaluation writes: intervals, tables, comparisons."""

import dataclasses

import pytest

from tests.support.measured import top1
from train.engine.intervals import wilson
from train.engine.numbers import Number, from_stored
from train.vit.results import ResolutionResults

RUN = ResolutionResults("rope_mixed", "fashion", 28, 10, "none", "a note", top1({28: 80, 56: 60}))


def test_wilson_solves_its_equation():
    """The bounds are the p with |p̂ - p| = z sqrt(p(1-p)/n)."""
    for correct, count in ((80, 100), (1, 7), (8412, 10_000)):
        for bound in wilson(correct, count):
            deviation = (bound * (1 - bound) / count) ** 0.5
            assert abs(correct / count - bound) == pytest.approx(1.959963984540054 * deviation)
    assert wilson(0, 10)[0] == 0.0
    assert wilson(10, 10)[1] == pytest.approx(1.0)
    assert wilson(10, 10)[0] == pytest.approx(10 / (10 + 1.959963984540054**2))


def test_results_come_back_from_json(tmp_path):
    RUN.save(tmp_path)
    assert ResolutionResults.load(tmp_path / "results.json") == RUN
    (tmp_path / "broken.json").write_text("{}")
    with pytest.raises(ValueError, match=r"results must come from an evaluation, got .*broken\.json"):
        ResolutionResults.load(tmp_path / "broken.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"at": 28.0}, "at must be int"),
        ({"at": []}, "at must be int"),
        ({"value": "80"}, "value must be"),
        ({"count": True}, "count must be int"),
        ({"low": 81.0}, "value must be in its interval"),
        ({"high": 79.0}, "value must be in its interval"),
        ({"each": "?"}, "each must be outcomes in base64"),
    ],
)
def test_numbers_that_no_evaluation_writes_are_refused(change, message):
    good = {"measure": "top-1, %", "at": 28, "value": 80.0, "low": 71.0, "high": 87.0, "count": 100}
    assert from_stored(good) == Number(**good)
    with pytest.raises(ValueError, match=message):
        from_stored({**good, **change})


def test_a_comparison_marks_the_best_of_each_size():
    other = dataclasses.replace(RUN, name="alibi", numbers=top1({28: 70, 56: 69}))
    assert ResolutionResults.markdown([RUN, other]).splitlines() == [
        "| encoding | **28** | 56 |",
        "|---|---:|---:|",
        "| rope_mixed | **80.0** | 60.0 |",
        "| alibi | 70.0 | **69.0** |",
        "",
        "a note",
    ]


def test_a_comparison_shows_names_as_they_are():
    text = ResolutionResults.markdown([dataclasses.replace(RUN, name="![x](http://a.b)|", note="<script>")])
    assert "\n| !\\[x\\](http://a.b)\\| | " in text
    assert text.endswith("\n\n&lt;script>\n")


def test_runs_on_other_data_are_not_compared():
    with pytest.raises(ValueError, match="share data, got 'fashion' and 'glyphs'"):
        ResolutionResults.markdown([RUN, dataclasses.replace(RUN, data="glyphs")])
