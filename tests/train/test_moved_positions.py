"""Positions moved at random in training (`--position_shift` ...): per step, in training alone, and to the bit."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pejax import ENCODINGS, augment_positions, grid_positions
from tests.support.cases import mostly_slow
from tests.support.cli import assert_bad_options, assert_resumes, programs_on_disk
from train.engine.parser import parse
from train.vit import program as vit
from train.vit.config import Config
from train.vit.model import Classifier, require_trainable_positions

TINY = ("--patch=7", "--width=16", "--layers=2", "--heads=4", "--epochs=1", "--batch=2000", "--log_every=2")
MOVED = ("--position_shift=0.5", "--position_jitter=1.2", "--position_rescale=2", "--position_noise=0.25")
INSIDE = ("--position_shift=0.5", "--position_noise=0.25")
"""Positions less than one patch beyond the grid, which tables hold."""


def train(out, *flags: str) -> int:
    return vit.main([*TINY, "--checkpoint_every=2", "--eval_limit=16", "--eval_sizes=28", f"--out={out}", *flags])


def classifier(*flags: str) -> Classifier:
    return Classifier(parse(Config, [*TINY, *flags]), channels=1, classes=10)


def batch() -> dict:
    """Return three images with labels."""
    return {"image": jax.random.normal(jax.random.key(0), (3, 28, 28, 1)), "label": jnp.arange(3)}


def with_head(params):
    """Return the parameters with a head that tells images apart; a new one is zero."""
    head = jax.random.normal(jax.random.key(3), params["head"]["kernel"].shape)
    return {**params, "head": {**params["head"], "kernel": head}}


@pytest.mark.slow
def test_positions_are_those_of_augment_positions_drawn_anew_for_every_key():
    model = classifier("--pe=alibi", *MOVED)
    of_step = functools.partial(jax.random.fold_in, jax.random.key(0))
    positions = [model.positions(of_step(step)) for step in (0, 1, 0)]
    np.testing.assert_array_equal(positions[0], positions[2])
    assert jnp.max(jnp.abs(positions[0] - positions[1])) > 0.1
    moves = {"shift": 0.5, "jitter": 1.2, "rescale": 2.0, "noise": 0.25}
    assert model.config.position_options == moves
    reference = augment_positions(jax.random.fold_in(of_step(0), 2), grid_positions(4, 4), **moves)
    np.testing.assert_array_equal(positions[0], reference)
    for used in jax.random.split(of_step(0)):  # the keys of mixing and of the model
        assert jnp.any(jax.random.key_data(used) != jax.random.key_data(jax.random.fold_in(of_step(0), 2)))


@pytest.mark.slow
def test_they_move_the_loss_in_training_and_nothing_in_evaluation():
    plain, moved = classifier("--pe=alibi(slope_scale=8)"), classifier("--pe=alibi(slope_scale=8)", *MOVED)
    params, key = with_head(plain.init(jax.random.key(0))), jax.random.key(1)
    assert plain.positions(key) is None
    losses = [float(model.loss(params, batch(), key)[0]) for model in (plain, moved)]
    assert abs(losses[0] - losses[1]) > 1e-4
    logits = [model.logits(params, batch()["image"]) for model in (plain, moved)]
    np.testing.assert_array_equal(*logits)


@pytest.mark.slow
@pytest.mark.parametrize("pe", mostly_slow([*ENCODINGS, "fire(signed=True)", "learned(factorized=True)"], ["alibi"]))
def test_every_encoding_learns_at_such_positions(pe):
    """Tables of positions hold less than a patch beyond their ends; everything else takes any."""
    flags = INSIDE if pe.startswith(("learned", "fourier")) else MOVED
    model = classifier(f"--pe={pe}", *flags)
    require_trainable_positions(model)
    step = jax.jit(jax.value_and_grad(lambda params, key: model.loss(params, batch(), key)[0]))
    off = lambda leaf: (
        leaf + 0.1 * jnp.cos(jnp.arange(leaf.size, dtype=leaf.dtype)).reshape(leaf.shape)
    )  # tables of zeros
    params = jax.tree.map(off, with_head(model.init(jax.random.key(0))))
    (loss, slopes), (other, _) = (step(params, jax.random.key(seed)) for seed in (1, 2))
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(slopes))
    assert (float(loss) == float(other)) == (pe == "none")


BAD = {
    "--pe=learned --position_rescale=2": "pe=learned must take the positions that position_shift, _jitter, _rescale "
    "and _noise allow: positions must lie inside a table of size (4, 4), got [6.0, 6.0]",
    "--pe=learned --position_shift=1.5": "inside a table of size (4, 4), got [-1.5, -1.5]",
    "--position_jitter=0.5": "position_jitter must be at least 1, got 0.5",
    "--position_noise=-1": "position_noise must not be negative, got -1.0",
}


@pytest.mark.parametrize("flags", BAD)
def test_what_cannot_be_is_refused_in_one_line(flags, tmp_path, capsys):
    assert_bad_options(capsys, train, tmp_path / "run", flags, BAD[flags])


@pytest.mark.slow
def test_a_stopped_run_goes_on_to_the_bit(tmp_path):
    with programs_on_disk(tmp_path / "compiled"):
        assert train(tmp_path / "whole", "--pe=rope_mixed", *MOVED) == 0
        assert json.loads((tmp_path / "whole" / "config.json").read_text())["position_rescale"] == 2.0
        assert_resumes(train, tmp_path / "whole", tmp_path / "run", "--pe=rope_mixed", *MOVED, "--stop_at=2")
