"""The figures of the results: how lines look, and what the stored numbers draw."""

from benchmarks.figures import Line, charts, styles
from pejax._visualize.style import DASHES, LINES


def test_extensions_take_dashes_by_name_whatever_the_hash_seed():
    names = ["yarn", "none", "ntk", "pi"]
    looks = styles([Line("rope", name, []) for name in names] + [Line("alibi", "none", [])])
    own = LINES["rope"].dash
    others = [dash for dash in DASHES if dash != own]
    dashes = [looks[f"rope + {name}"].dash for name in ("ntk", "pi", "yarn")]
    assert [looks["rope"].dash, *dashes] == [own, *others]


def test_every_figure_names_its_lines_and_colors_at_most_six():
    for chart in charts():
        names = [line.name for line in chart.lines]
        assert len(set(names)) == len(names)
        assert set(chart.colored) <= set(names)
        assert len(chart.colored or names) <= 6, chart.name
