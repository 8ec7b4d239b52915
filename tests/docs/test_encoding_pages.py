"""The pages of the encodings are those that their generator writes, and its tables are read strictly."""

import importlib
import json
import re
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

import pejax
from benchmarks import costs
from pejax.encodings import ENCODINGS
from tests.support.cases import mostly_slow

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture
def generator(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module("make_encoding_pages")


def test_pages_are_those_that_the_generator_writes(generator):
    """Parameters are counted anew; figures come from the committed results."""
    written = generator.pages()
    assert {path.stem for path in written if path.parent.name == "encodings"} == set(ENCODINGS)
    assert {path.name for path in (DOCS / "encodings").iterdir()} == {f"{name}.md" for name in ENCODINGS}
    for path, text in written.items():
        assert path.read_text() == text, f"{path.relative_to(ROOT)} is old: run python docs/make_encoding_pages.py"


@pytest.mark.parametrize("name", mostly_slow(ENCODINGS, ("sinusoidal", "alibi")))
def test_the_example_of_a_page_runs(name):
    example = re.search(r"```python\n(.*?)```", (DOCS / "encodings" / f"{name}.md").read_text(), re.DOTALL)[1]
    tokens = 196 if "axes=2" in example else 16
    q, x = jnp.ones((1, tokens, 8, 64)), jnp.ones((1, tokens, 512))
    space = {"pejax": pejax, "jax": jax, "jnp": jnp, "q": q, "k": q, "v": q, "x": x}
    exec(compile(example, name, "exec"), space)
    assert space.get("out", q).shape == q.shape
    assert space["x"].shape == x.shape
    assert "out" in space or not jnp.array_equal(space["x"], x)


def test_links_and_pictures_of_the_pages_exist():
    headings = {
        page: re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE) for page in (DOCS / "reference").iterdir()
    }
    for page in (DOCS / "encodings").iterdir():
        targets = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
        assert any(target.endswith((".svg", ".gif")) for target in targets), page.name
        for target in targets:
            path, _, anchor = target.partition("#")
            if not path.startswith("https://"):
                linked = (page.parent / path).resolve()
                assert linked.exists(), target
                assert not anchor or anchor in headings[linked], target


def test_the_pages_of_all_encodings_are_in_the_navigation(monkeypatch):
    pytest.importorskip("mkdocs", reason="the docs extra")
    monkeypatch.syspath_prepend(str(DOCS))
    hooks = importlib.import_module("site_hooks")
    config = SimpleNamespace(nav=[{"Encodings one by one": []}], mdx_configs={})
    assert set(hooks.on_config(config).nav[0]["Encodings one by one"]) == {f"encodings/{name}.md" for name in ENCODINGS}


def test_formulas_become_mathml(monkeypatch):
    pytest.importorskip("latex2mathml", reason="the docs extra")
    pytest.importorskip("mkdocs", reason="the docs extra")
    monkeypatch.syspath_prepend(str(DOCS))
    hooks = importlib.import_module("site_hooks")
    for page in (DOCS / "encodings").iterdir():
        for source in re.findall(r"```math\n(.*?)```", page.read_text(), re.DOTALL):
            assert hooks.formula(source).startswith('<div class="formula"><math')
    with pytest.raises(ValueError, match="unknown"):
        hooks.formula(r"\nothing{x}")


def test_every_drawing_of_the_pages_has_a_twin_for_dark_pages(monkeypatch):
    pytest.importorskip("mkdocs", reason="the docs extra")
    monkeypatch.syspath_prepend(str(DOCS))
    hooks = importlib.import_module("site_hooks")
    for page in (*DOCS.glob("*.md"), *DOCS.glob("encodings/*.md")):
        for result in hooks.PAIRED.finditer(page.read_text()):
            twins = re.findall(r"\((\S+)#only-", hooks.paired(result, page.parent))
            assert len(twins) == 2 * (result[3] == "svg")
            assert all((page.parent / name).is_file() for name in twins), twins


def test_a_table_of_another_shape_is_refused(generator, tmp_path):
    measured = importlib.import_module("measured")
    page = tmp_path / "results.md"
    rows = ["| encoding | 1 | **2** |", "|---|---:|---:|", "| a | **3** | 4 |", "| a + b | 5 | 6 |"]
    page.write_text("\n".join(["# R", "", "## T", "", "text", "", *rows, ""]))
    table = measured.read_table(page, "## T", ["1", "2"])
    assert table.rows == {"a": ("3", "4"), "a + b": ("5", "6")}
    assert table.of("a") == table.rows
    assert table.of("b") == {}
    for heading, columns in (("## T", ["1"]), ("## T", ["1", "3"]), ("## U", ["1", "2"])):
        with pytest.raises(ValueError, match="must have"):
            measured.read_table(page, heading, columns)
    page.write_text(page.read_text() + "| c | 7 |\n")
    with pytest.raises(ValueError, match="another length"):
        measured.read_table(page, "## T", ["1", "2"])
    with pytest.raises(ValueError, match="table: costs"):
        generator.filled("no marks", {"costs": ""})


def test_costs_are_kept_for_every_encoding_in_every_setting():
    stored = json.loads(costs.RESULTS.read_text())
    assert set(stored["encodings"]) == set(ENCODINGS)
    for name, settings in stored["encodings"].items():
        assert set(settings) == set(costs.SETTINGS), name
    assert stored["attention_flops"] == {setting: costs.baseline(dims) for setting, dims in costs.SETTINGS.items()}


def test_numbers_in_texts_are_counted_anew(generator):
    lists = importlib.import_module("encoding_lists")
    places = {r"\w+(?= ways)": "ways", r"\d+(?= rules)": "rules"}
    assert lists.counted("page", "Seven ways, 3 rules", places, {"ways": 8, "rules": 21}) == "Eight ways, 21 rules"
    with pytest.raises(ValueError, match="page must say once how many ways there are, got 0 places"):
        lists.counted("page", "3 rules", places, {"ways": 8, "rules": 3})
    with pytest.raises(ValueError, match="the number of ways, 21, in digits, got 'Seven'"):
        lists.counted("page", "Seven ways, 3 rules", places, {"ways": 21, "rules": 3})
