"""The pages to play with: one file without a network, with the library's numbers; the scripts run in a Chromium."""

import functools
import html
import json
import re

import jax.numpy as jnp
import numpy as np
import pytest

import pejax
from pejax import functions, visualize
from pejax._visualize.pages import bias
from pejax._visualize.trained import IMAGES, STORED
from tests.support.cases import slow
from tests.support.chromium import in_chromium, needs_chromium

PAGES = (slow("bias_page"), "needle_page", slow("sinusoid_page"))


@functools.cache
def made(name):
    """Return the text of a page."""
    return getattr(visualize, name)()


def numbers(text):
    """Return the numbers that the script of a page reads."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)[1])


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_one_small_file_that_fetches_nothing(name):
    text = made(name)
    assert len(text.encode()) <= 200_000
    assert "default-src 'none'" in text
    assert not re.findall(r"https?:|\bsrc=|\bhref=|url\(|@import|\bfetch\(|XMLHttpRequest|\bimport\b", text)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_a_still_without_scripts_and_labels_every_control(name):
    still = re.sub(r"<script.*?</script>", "", made(name), flags=re.S)
    assert "The controls need scripts, which do not run here. The still shows " in still
    assert "<fieldset disabled>" in still
    drawn = re.findall(
        r'<figure>(<svg [^>]*role="img"[^>]*aria-labelledby="[\w-]+">(?:<(?:path|rect|circle)[^>]*/>)+</svg>)', still
    )
    assert drawn
    assert len(re.findall("<figure>", still)) == len(drawn)
    controls = re.findall(r'<(?:input|select)[^>]* id="(\w+)"', still)
    assert controls
    assert {f'for="{item}"' in still for item in controls} == {True}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "method", "factor"),
    [
        (10_000, "none", 1),
        (10_000, "linear", 4),
        (10_000, "yarn", 32),
        (500_000, "llama3", 8),
        (1_000_000, "ntk", 2),
    ],
)
def test_the_frequencies_of_the_needle_turn_as_the_encoding_does(base, method, factor):
    result = numbers(made("needle_page"))
    shown = result["frequencies"][str(base)][method]
    shown = shown if method == "none" else shown[str(factor)]
    dims = pejax.Dims(heads=1, head_dim=2 * len(shown), extent=result["trained"])
    rope = pejax.make_encoding(f"rope(base={base})", dims, None if method == "none" else f"{method}(factor={factor})")
    positions = np.array([1, 1000, 30_000])
    first = jnp.tile(jnp.float32([1, 0]), (len(positions), 1, len(shown)))
    turned = np.asarray(rope.rotate({}, first, jnp.asarray(positions)))[:, 0].reshape(len(positions), -1, 2)
    turned = turned / np.linalg.norm(turned, axis=-1, keepdims=True)  # without YaRN's factor
    angles = positions[:, None] * np.array(shown)
    np.testing.assert_allclose(turned, np.stack([np.cos(angles), np.sin(angles)], -1), atol=4e-6)


def looked_up(table, query, key):
    """Return the bias of all heads from one patch to another, as the script finds it."""
    if "offset" in table:
        row, column = (k - q + bias.SIDE - 1 for q, k in zip(query, key, strict=True))
        return [head[row][column] for head in table["offset"]]
    rows, columns = (
        [head[q][k] for head in table[axis]] for axis, q, k in zip(("rows", "columns"), query, key, strict=True)
    )
    return np.add(rows, columns)


@pytest.mark.slow
def test_the_tables_are_the_biases_of_the_encodings():
    """They are computed by the pure functions here, and by the records in the page."""
    assert "for four epochs of" in made("bias_page")
    assert "--epochs=4 " in json.loads(STORED.read_text(encoding="utf-8"))["vit"]["command"]
    tables = numbers(made("bias_page"))["tables"]
    assert list(tables) == ["alibi", "lookhere", "t5", "kerple", "fire", "cpb"]
    cones = functions.lookhere_cones(4)
    specs = {name: IMAGES.params(name) for name in IMAGES.specs}
    r1, r2 = (specs["kerple"]["heads"][name] for name in ("r1", "r2"))
    assert min(r1.min(), r2.min()) > 0.01  # else the encoding clips them
    pure = {
        "alibi": lambda q, k: functions.alibi_bias(q, k, functions.alibi_slopes(4)),
        "lookhere": lambda q, k: functions.lookhere_bias(q, k, functions.lookhere_slopes(cones), cones),
        "t5": lambda q, k: functions.t5_bias(q, k, specs["t5"]["heads"]["table"], bidirectional=True),
        "kerple": lambda q, k: functions.kerple_bias(q, k, r1, r2),
        "fire": lambda q, k: functions.fire_bias(q, k, specs["fire"], causal=False, threshold=7.0),
        "cpb": lambda q, k: functions.cpb_bias(q, k, specs["cpb"], extent=(7, 7)),
    }
    queries, keys = np.random.default_rng(0).integers(0, bias.SIDE, (2, 12, 2))
    for name, table in tables.items():
        all_pairs = np.asarray(pure[name](jnp.asarray(queries), jnp.asarray(keys)))
        for i, query in enumerate(queries):
            for j, key in enumerate(keys):
                result = [-np.inf if item is None else item for item in looked_up(table, query, key)]
                np.testing.assert_allclose(result, all_pairs[:, i, j], atol=2e-3, err_msg=name)


# In Chromium


SET = """
const put = (values) => {
  for (const [id, value] of Object.entries(values)) byId(id).value = value;
  document.querySelector("form").dispatchEvent(new Event("input", { bubbles: true }));
  return window.shown();
};
const drawn = () => [...document.querySelectorAll("figure svg")].map((svg) => svg.childElementCount > 1);
"""


@pytest.mark.slow
@needs_chromium
def test_the_sinusoid_of_the_script_is_that_of_the_library(tmp_path):
    script = """
    found.shown = [put({}), put({ position: 77, width: 6, base: 2 }), put({ position: 127, width: 128, base: 5.7 })];
    document.querySelector("button[data-of=position][data-way=down]").click();
    found.stepped = byId("position").value;
    found.drawn = drawn();
    found.said = byId("said").textContent;
    """
    result = in_chromium(made("sinusoid_page"), SET + script, tmp_path)
    settings = ((20, 32, 10_000.0), (77, 6, 100.0), (127, 128, 501_000.0))
    for (position, width, base), shown in zip(settings, result["shown"], strict=True):
        assert shown["base"] == base
        table = np.asarray(functions.sinusoidal_embedding(jnp.arange(128), width, base=base), np.float64)
        np.testing.assert_allclose(shown["vector"], table[position], atol=2e-5)  # frequencies are rounded to float32
        np.testing.assert_allclose(shown["similarity"], table @ table[position] / (width / 2), atol=2e-5)
    assert result["stepped"] == "126"
    assert result["drawn"] == [True] * 3
    assert result["said"].startswith("Wavelengths from 6.28 to ")


@pytest.mark.slow
@needs_chromium
def test_the_needle_of_the_script_turns_by_the_table(tmp_path):
    script = """
    found.plain = put({ position: 30, pair: 8 });
    found.yarn = put({ position: 90, pair: 20, base: 500000, method: "yarn", factor: 16 });
    found.said = byId("said").textContent;
    found.drawn = drawn();
    """
    result = in_chromium(made("needle_page"), SET + script, tmp_path)
    table = numbers(made("needle_page"))["frequencies"]
    assert result["plain"]["frequencies"] == table["10000"]["none"]
    assert result["plain"]["angle"] == pytest.approx(30 * 0.1)
    assert result["yarn"]["frequencies"] == table["500000"]["yarn"]["16"]
    assert result["yarn"]["position"] > 1000
    assert result["yarn"]["angle"] == result["yarn"]["position"] * table["500000"]["yarn"]["16"][20]
    slowed = table["500000"]["none"][20] / table["500000"]["yarn"]["16"][20]
    assert f"slows it down by {slowed:.3g} " in result["said"]
    assert result["drawn"] == [True] * 2


@pytest.mark.slow
@needs_chromium
def test_the_biases_of_the_script_are_those_of_the_tables(tmp_path):
    """A touch moves the query; without scripts the controls stay disabled and ALiBi is drawn."""
    script = """
    put({ encoding: "fire", grid: 14 });
    found.fire = put({ row: 3, column: 9 });
    put({ encoding: "cpb", grid: 7, row: 2, column: 4 });
    const box = byId("head1").getBoundingClientRect();
    const [x, y] = [box.left + box.width / 2 + box.height * 2 / 7, box.top + box.height / 14];
    byId("head1").dispatchEvent(new PointerEvent("pointerdown", { clientX: x, clientY: y, buttons: 1 }));
    found.query = [number("row"), number("column")];
    found.lookhere = put({ encoding: "lookhere", row: 6 });
    found.said = byId("said").textContent;
    found.drawn = drawn();
    found.over = document.documentElement.scrollWidth - window.innerWidth;
    """
    result = in_chromium(made("bias_page"), SET + script, tmp_path, "--window-size=500,900")
    tables = numbers(made("bias_page"))["tables"]
    for name, side, query in (("fire", 14, (3, 9)), ("lookhere", 7, (6, 5))):
        expected = [looked_up(tables[name], query, key) for key in np.ndindex(side, side)]
        assert np.array_equal(np.array(result[name], float), np.array(expected, float).T, equal_nan=True)
    assert result["query"] == [0, 5]
    assert "Gray patches are hidden" in result["said"]
    assert result["drawn"] == [True] * 5
    assert result["over"] <= 0


def test_a_notebook_shows_a_page_in_a_frame():
    """The frame holds the page itself: a notebook in Colab has no file to point at."""
    page = made("needle_page")
    assert html.unescape(re.search(r'srcdoc="([^"]*)"', page._repr_html_())[1]) == page
    pretty = pytest.importorskip("IPython.lib.pretty", reason="needs the extra `notebooks`")
    assert pretty.pretty(page) == "A page to play with, which is not shown here."
