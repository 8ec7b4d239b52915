"""What a run is watched by: figures against their definitions; a step that breaks is kept and computed again."""

import dataclasses
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pejax.models import decoder, vit
from tests.support import toy_program
from tests.support.cases import slow
from tests.support.cli import refused
from tests.support.metric_lines import timeless
from train.devices.flops import PEAKS, peak_flops, text_flops, visible_pairs, vit_flops
from train.engine import metrics, programs, session
from train.replay import program as replay

LONG = ("--steps=40", "--log_every=4", "--checkpoint_every=30", "--devices=1")


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    monkeypatch.setitem(sys.modules, "train.toy.program", toy_program)
    monkeypatch.setattr(programs, "PROGRAMS", ("vit", "toy"))


def train(out: Path, *flags: str) -> int:
    return session.main(toy_program.PROGRAM, [*LONG, f"--out={out}", *flags])


def kernel(out: Path) -> list[str]:
    return json.loads((out / "results.json").read_text())["kernel"]


@pytest.mark.slow
def test_every_line_has_the_figures(tmp_path):
    assert train(tmp_path / "run") == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        assert line["step_seconds"] > 0
        assert line["tokens_per_second"] > 0
        assert 0 < line["grad_norm"] <= line["grad_norm_max"]
        assert "peak_share" not in line  # of a CPU it is not known
    assert list((tmp_path / "run" / "tensorboard").iterdir())


@pytest.mark.slow
def test_gradient_norms_are_those_of_the_gradients():
    norms, state = [3.0, 1.0, 2.0], metrics.initial_watch()
    for step, norm in enumerate(norms):
        well, state = metrics.checked_step(state, jnp.int32(step), jnp.float32(1.0), jnp.float32(norm), 0.0)
        assert well
    assert metrics.gradient_norms(jax.device_get(state)) == {"grad_norm": 2.0, "grad_norm_max": 3.0}
    assert metrics.gradient_norms(jax.device_get(metrics.reset_watch(state)._replace(steps=jnp.float32(1)))) == {
        "grad_norm": 0.0,
        "grad_norm_max": 0.0,
    }


@pytest.mark.parametrize(("loss", "norm"), [(np.nan, 1.0), (np.inf, 1.0), (1.0, np.nan), (1.0, np.inf)])
def test_what_is_not_finite_halts_for_good(loss, norm):
    well, state = metrics.checked_step(metrics.initial_watch(), jnp.int32(0), jnp.float32(loss), jnp.float32(norm), 0.0)
    assert not well
    assert state.halted
    np.testing.assert_equal(float(state.loss), loss)
    well, after = metrics.checked_step(state, jnp.int32(0), jnp.float32(2.0), jnp.float32(1.0), 0.0)
    assert not well
    jax.tree.map(np.testing.assert_array_equal, after, state)


@pytest.mark.parametrize(("seed", "filler"), [(0, metrics.NO_LOSS), (1, metrics.NO_LOSS), (2, np.nan)])
def test_a_spike_is_a_loss_over_so_many_times_the_median_of_the_last(seed, filler):
    """Checkpoints of earlier versions have NaN where there is no loss yet."""
    losses = np.random.default_rng(seed).lognormal(0.0, 0.5, 120).astype(np.float32)
    state, halted_at = metrics.initial_watch()._replace(recent=jnp.full((metrics.WINDOW,), filler)), None
    step = jax.jit(lambda state, at, loss: metrics.checked_step(state, at, loss, jnp.float32(1.0), 2.0))
    for at, loss in enumerate(losses):
        _, state = step(state, at, loss)
        if state.halted:
            halted_at = at
            break
    spikes = [at for at in range(metrics.WINDOW, 120) if losses[at] > 2 * np.median(losses[at - metrics.WINDOW : at])]
    assert halted_at == spikes[0]


def test_losses_that_are_missing_are_no_nan_for_long():
    old = metrics.initial_watch()._replace(recent=jnp.full((metrics.WINDOW,), np.nan))
    _, state = metrics.checked_step(old, jnp.int32(3), jnp.float32(2.0), jnp.float32(1.0), 0.0)
    _, expected = metrics.checked_step(metrics.initial_watch(), jnp.int32(3), jnp.float32(2.0), jnp.float32(1.0), 0.0)
    jax.tree.map(np.testing.assert_array_equal, state, expected)
    assert sorted(np.unique(state.recent)) == [2.0, np.float32(metrics.NO_LOSS)]


@pytest.mark.slow
def test_runs_may_look_for_what_is_not_a_number(tmp_path):
    with jax.debug_nans(True), jax.debug_infs(True):
        assert train(tmp_path / "run", "--spike=5", "--ema=0.9") == 0
    assert train(tmp_path / "same", "--spike=5", "--ema=0.9") == 0
    assert kernel(tmp_path / "run") == kernel(tmp_path / "same")


@pytest.mark.parametrize("spoilt", ["nan", slow("1e30")])
def test_a_step_that_is_not_finite_is_kept_and_computed_again(spoilt, tmp_path, capsys):
    out = tmp_path / "run"
    error = refused(capsys, lambda: train(out, f"--spoilt={spoilt}"))
    folder = out / "offending-37"
    assert f"the loss is {'nan' if spoilt == 'nan' else 'inf'} at step 37, which was saved" in error
    assert f"python -m train.replay {folder}" in error
    assert f"--init={folder}" in error
    assert [line["step"] for line in timeless(out)] == list(range(4, 37, 4))
    assert replay.main([str(folder)]) == 0
    said = capsys.readouterr().out
    assert "step 37 · the loss is" in said
    assert "the same as" in said
    assert "gradient of ['kernel']: 4 of 4 values are not finite" in said


@pytest.mark.slow
def test_a_spike_stops_and_the_run_goes_on_past_it(tmp_path, capsys):
    out = tmp_path / "run"
    error = refused(capsys, lambda: train(out, "--spoilt=30", "--spike=5"))
    assert "more than 5 times its running median" in error
    assert "at step 37" in error
    command = error.split("go on with: python -m train.toy ")[1].split()
    assert replay.main([str(out / "offending-37")]) == 0
    assert "the same as" in capsys.readouterr().out
    assert session.main(toy_program.PROGRAM, command) == 0
    assert train(tmp_path / "whole", "--spoilt=30") == 0
    assert kernel(out) == kernel(tmp_path / "whole")
    assert timeless(out) == timeless(tmp_path / "whole")


@pytest.mark.slow
def test_a_changed_state_or_batch_is_not_taken_for_the_same(tmp_path, capsys):
    out = tmp_path / "run"
    refused(capsys, lambda: train(out, "--spoilt=30", "--spike=5"))
    folder = out / "offending-37"
    with np.load(folder / "batch.npz") as batch:
        np.savez(folder / "batch.npz", x=batch["x"] + np.float32(1e-3))
    assert replay.main([str(folder)]) == 1
    assert "different from" in capsys.readouterr().out
    assert "a folder offending-STEP of a run, got" in refused(capsys, lambda: replay.main([str(out)]))


@pytest.mark.slow
def test_a_trace_of_some_steps(tmp_path):
    out = tmp_path / "run"
    assert train(out, "--profile=3:2", "--steps=6") == 0
    assert list((out / "profile").rglob("*.xplane.pb"))
    assert train(tmp_path / "last", "--profile=6:5", "--steps=6") == 0  # cut short by the end of the run
    assert list((tmp_path / "last" / "profile").rglob("*.xplane.pb"))


@pytest.mark.parametrize("text", ["3", "0:1", "1:0", "a:b", "1:2:3"])
def test_a_profile_that_is_none(text, tmp_path, capsys):
    error = refused(capsys, lambda: train(tmp_path / "run", f"--profile={text}"))
    assert f"profile must be STEP:COUNT, two positive numbers, got '{text}'" in error


@pytest.mark.slow
def test_positions_are_summarized_by_name_and_group_of_layers():
    rng = np.random.default_rng(0)
    table, slopes = rng.standard_normal((5, 3)), rng.standard_normal((6, 4))
    params = {
        "position": {"all": {"table": jnp.asarray(table, jnp.float32), "c": jnp.float32(2.0)}},  # fire has numbers
        "layers": {"blocks": {"attention": {"position": {"heads": {"slopes": jnp.asarray(slopes, jnp.float32)}}}}},
        "head": {"kernel": jnp.ones((2, 2))},
    }
    figures = metrics.figures_by_name(metrics.position_figures(params))
    spans = {"0_1": slopes[:2], "2_3": slopes[2:4], "4_4": slopes[4:5], "5_5": slopes[5:]}
    arrays = {f"position/heads/slopes/layers_{name}": part for name, part in spans.items()}
    arrays |= {"position/all/table": table, "position/all/c": np.float64(2.0)}
    assert figures == {
        f"{name}/{kind}": pytest.approx(float(getattr(part, kind)()), rel=1e-5)
        for name, part in arrays.items()
        for kind in ("min", "mean", "max")
    }


def products(*shapes: tuple[int, int, int]) -> int:
    """Return the FLOPs of products of (m, k) and (k, n)."""
    return sum(2 * m * k * n for m, k, n in shapes)


def test_flops_of_a_decoder_are_those_of_its_products_counted_one_by_one():
    config = decoder(vocab=50, width=32, layers=3, heads=4, kv_heads=2, hidden=40)
    tokens, head = 7, 8
    seen = sum(1 for query in range(tokens) for key in range(tokens) if key <= query)
    layer = products((tokens, 32, 32), (tokens, 32, 16), (tokens, 32, 16), (tokens, 32, 32))
    layer += products((tokens, 32, 40), (tokens, 32, 40), (tokens, 40, 32))
    layer += seen * 4 * products((1, head, 1), (1, 1, head))
    assert text_flops(config, batch=5, length=tokens) == 3 * 5 * (3 * layer + products((tokens, 32, 50)))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 1, 3, 7, 20, (2, 1), (0, 9)], ids=str)
def test_a_window_admits_the_pairs_counted_one_by_one(causal, window):
    before, after = window if isinstance(window, tuple) else ((window or 99) - 1,) * 2
    seen = lambda distance: (0 if causal else -after) <= distance <= before
    assert visible_pairs(7, causal, window) == sum(seen(i - j) for i in range(7) for j in range(7))


def test_flops_of_layers_of_several_kinds_are_added_up():
    config = decoder(vocab=50, width=32, layers=3, heads=4)
    local_layer = dataclasses.replace(
        config.layers[1], attention=dataclasses.replace(config.layers[1].attention, window=2)
    )
    mixed = dataclasses.replace(config, layers=(config.layers[0], local_layer, config.layers[2]))
    less = (7 * 8 // 2 - (2 * 7 - 1)) * 4 * 32
    assert text_flops(config, 5, 7) - text_flops(mixed, 5, 7) == 3 * 5 * less


def test_flops_of_a_vision_transformer_are_the_published_ones():
    """ViT-S/16 at 224 pixels is 4.6 billion products and sums: Touvron et al. 2021 (arXiv 2012.12877), table 5."""
    config = vit(image_size=224, patch=16, channels=3, classes=1000, width=384, layers=12, heads=6)
    assert vit_flops(config, batch=1) / 3 / 2 == pytest.approx(4.6e9, rel=0.01)


def test_peaks_are_found_by_the_longest_name():
    assert peak_flops("NVIDIA H100 80GB HBM3") == PEAKS["NVIDIA H100"]
    assert peak_flops("NVIDIA H100 PCIe") == PEAKS["NVIDIA H100 PCIe"]
    assert peak_flops("NVIDIA A100-SXM4-80GB") == PEAKS["NVIDIA A100"]
    assert peak_flops("NVIDIA L40S") == PEAKS["NVIDIA L40S"]
    assert peak_flops("TPU v5 lite") == PEAKS["TPU v5 lite"]
    assert peak_flops("TPU v5") == PEAKS["TPU v5"]
    assert peak_flops("TPU v50") is None
    assert peak_flops("cpu") is None
