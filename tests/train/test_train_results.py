"""What an evaluation writes: intervals, tables, comparisons."""

import dataclasses

import pytest

from train.engine.intervals import wilson
from train.vit.results import ResolutionResults, ResolutionRow

RUN = ResolutionResults(
    "rope_mixed", "fashion", 28, 10, "none", "a note", (ResolutionRow(28, 49, 80, 100), ResolutionRow(56, 196, 60, 100))
)


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


def test_a_comparison_marks_the_best_of_each_size():
    other = dataclasses.replace(
        RUN, name="alibi", rows=(ResolutionRow(28, 49, 70, 100), ResolutionRow(56, 196, 69, 100))
    )
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
