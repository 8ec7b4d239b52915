"""The scripts of examples/ run to their end, and what they print is what they promise."""

import re
import runpy
from pathlib import Path

import jax
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, capsys) -> str:
    """Run a script and return what it printed."""
    with jax.numpy_dtype_promotion("standard"):
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    return capsys.readouterr().out


def test_every_example_is_run_here():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {
        *("flax_layer", "longer_context", "own_encoding", "retrieval_by_length", "rope_in_your_attention")
    }


def test_rope_in_your_attention(capsys):
    printed = run("rope_in_your_attention", capsys)
    changes = [float(number) for number in re.findall(r"(?:change|difference) (\S+)", printed)]
    assert len(changes) == 2
    assert max(changes) < 1e-5
    assert "ALiBi by attend: output of shape (2, 16, 4, 32)" in printed


@pytest.mark.slow
def test_flax_layer(capsys):
    shares = re.findall(r"(\d+) tokens: accuracy (\d+) %", run("flax_layer", capsys))
    assert [length for length, _ in shares] == ["24", "96"]
    assert all(int(share) >= 90 for _, share in shares), shares


@pytest.mark.slow
def test_longer_context(capsys):
    printed = run("longer_context", capsys)
    assert "rotated keys can be cached: True" in printed
    assert float(re.findall(r"differ by at most (\S+)", printed)[0]) < 1e-5


@pytest.mark.slow
def test_own_encoding(capsys):
    printed = run("own_encoding", capsys)
    assert all(float(number) < 1e-5 for number in re.findall(r"largest deviation (\S+)", printed))
    assert "gradient of the window lengths" in printed


@pytest.mark.slow
def test_retrieval_by_length(tmp_path):
    """A few steps: it learns, and extensions change nothing within the trained length."""
    said = []
    with jax.numpy_dtype_promotion("standard"):
        script = runpy.run_path(str(EXAMPLES / "retrieval_by_length.py"))
        script["main"].__globals__.update(SETS=1, LENGTHS=(16, 32, 64))
        shares = script["main"](40, str(tmp_path / "figure.png"), said.append)
    losses = [float(loss) for line in said for loss in re.findall(r"loss (\S+),", line)]
    assert losses[-1] < losses[0] - 0.2
    extended = {name: values for name, values in shares.items() if name != "parts"}
    assert {tuple(values[:2]) for values in extended.values()} == {tuple(shares["none"][:2])}
    assert (tmp_path / "figure.png").stat().st_size > 1000
