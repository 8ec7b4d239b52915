"""The effective number of keys by layer and head: of the weights themselves, of trained runs, ranked over runs."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import entropy
from pejax import attention_weights
from pejax._tokens.positions import TokenPositions
from tests.support.cli import refused
from train.engine.attention_entropy import entropy as mean_entropy
from train.engine.attention_entropy import head_entropies
from train.engine.parser import parse
from train.vit import program as vit
from train.vit.config import Config
from train.vit.model import Classifier

TINY = ("--patch=14", "--width=16", "--layers=2", "--heads=4", "--epochs=1", "--batch=2500", "--eval_limit=64")


@pytest.mark.slow
def test_by_head_it_is_the_entropy_of_each_heads_weights():
    q, k = 2.0 * jax.random.normal(jax.random.key(0), (2, 3, 6, 4, 8))
    tokens = TokenPositions(jnp.arange(6, dtype=jnp.int32))
    result = head_entropies(q, k, 1, positions=tokens)
    weights = np.asarray(attention_weights(q, k, positions=tokens), np.float64)
    np.testing.assert_allclose(result, -(weights * np.log(weights)).sum(-1).mean((0, 2)), rtol=1e-5)
    assert float(jnp.mean(result)) == pytest.approx(float(mean_entropy(q, k, 1, positions=tokens)), rel=1e-5)


@pytest.mark.slow
def test_uniform_heads_have_all_keys_at_every_size():
    """Queries and keys of zero attend evenly; 40 images are launched as 32 and 8."""
    one = Classifier(parse(Config, [*TINY, "--pe=none", "--registers=1"]), channels=1, classes=10)
    params = jax.tree.map(jnp.zeros_like, one.init(jax.random.key(0)))
    for side, tokens in ((28, 5), (42, 10)):
        images = np.ones((40, side, side, 1), np.float32)
        np.testing.assert_allclose(entropy.effective_keys(one, params, images), np.full((2, 4), tokens), rtol=1e-5)


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.slow
def test_a_run_is_read_and_its_lines_say_what_the_results_say(tmp_path, capsys):
    run = tmp_path / "run"
    assert vit.main([*TINY, "--pe=alibi", "--eval_sizes", "14", "28", "42", f"--out={run}"]) == 0
    capsys.readouterr()
    assert entropy.main([str(run), "--images=40"]) == 0
    *sizes, last = lines(capsys)
    assert [(item["size"], item["tokens"], item["images"]) for item in sizes] == [(28, 4, 40), (42, 9, 40)]
    keys = np.asarray([item["effective_keys"] for item in sizes])
    assert keys.shape == (2, 2, 4)
    assert np.all((keys > 1) & (keys <= np.asarray([4.001, 9.001])[:, None, None]))
    assert last["shift"] == pytest.approx(np.abs(np.log(keys[1] / keys[0])).mean(), abs=1e-3)
    numbers = json.loads((run / "results.json").read_text())["numbers"]
    top1 = {number["at"]: number["value"] for number in numbers if number["measure"] == "top-1, %"}
    assert last["top1_lost"] == pytest.approx(top1[28] - top1[42], abs=0.01)
    assert "results-pi.json" in refused(capsys, lambda: entropy.main([str(run), "--extend=pi"]))
    assert "config.json" in refused(capsys, lambda: entropy.main([str(tmp_path)]))


def test_runs_are_ranked(monkeypatch, capsys):
    ends = [{"shift": 0.1, "top1_lost": 3.0}, {"shift": 0.3, "top1_lost": 9.0}, {"shift": 0.2, "top1_lost": 20.0}]
    monkeypatch.setattr(entropy, "measure", lambda folder, *rest: ends[int(str(folder))])
    assert entropy.main(["0", "1", "2"]) == 0
    assert lines(capsys)[-1]["spearman"] == 0.5
    assert entropy.main(["0", "1"]) == 0
    assert not lines(capsys)
