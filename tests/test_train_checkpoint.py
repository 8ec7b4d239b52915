"""Checkpoints: whole or refused, whatever happened to the files."""

import gc
import json
import resource

import grain
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from train.checkpoint import CheckpointError, Checkpoints, digest

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""Orbax leaves coroutines behind where a file is broken or a write fails."""


def draw(seed: int) -> dict:
    return {"a": jax.random.normal(jax.random.key(seed), (100_000,)), "b": {"c": jnp.int32(seed)}}


def numbers():
    return iter(grain.MapDataset.range(9).to_iter_dataset())


def save(checkpoints: Checkpoints, step: int, data) -> None:
    checkpoints.save(step, draw(step), data, {"lr": step})
    checkpoints.wait()


@pytest.fixture
def saved(tmp_path):
    """Steps 1 and 2, each after one more number was read."""
    checkpoints, data = Checkpoints(tmp_path), numbers()
    for step in (1, 2):
        next(data)
        save(checkpoints, step, data)
    checkpoints.close()
    yield tmp_path
    gc.collect()


def reopened(folder, check=lambda config: None):
    """Return the step restored, the next number read and what was said."""
    said, data = [], numbers()
    checkpoints = Checkpoints(folder, said.append)
    step, state = checkpoints.restore(draw(0), data, check)
    jax.tree.map(np.testing.assert_array_equal, state, draw(step))
    checkpoints.close()
    return step, next(data), said


def test_the_newest_comes_back_with_its_place_in_the_data(saved):
    seen = []
    assert reopened(saved, seen.append) == (2, 2, [])
    assert seen == [{"lr": 2}]


def test_arrays_that_do_not_match_the_digest_are_passed_over(saved):
    seal = saved / "checkpoints" / "2" / "seal" / "metadata"
    content = json.loads(seal.read_text())
    seal.write_text(json.dumps({**content, "sha256": digest(draw(3))}))
    step, number, said = reopened(saved)
    assert (step, number) == (1, 1)
    assert said == [
        "checkpoint of step 2 is broken, passed over: its arrays do not have the sha256 they were saved with"
    ]


@pytest.mark.parametrize("damage", ["truncated", "no seal", "no data", "empty folder"])
def test_damage_is_passed_over(damage, saved):
    folder = saved / "checkpoints" / "2"
    if damage == "empty folder":
        (saved / "checkpoints" / "25").mkdir()
    elif damage == "truncated":
        largest = max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
        largest.write_bytes(largest.read_bytes()[:1000])
    else:
        for path in (folder / damage.removeprefix("no ")).iterdir():
            path.unlink()
    step, number, said = reopened(saved)
    assert (step, number) == ((2, 2) if damage == "empty folder" else (1, 1))
    assert all(line.startswith("checkpoint of step 2 is broken, passed over: ") and "\n" not in line for line in said)


def test_nothing_whole_is_one_error(saved):
    for path in (saved / "checkpoints").rglob("seal/metadata"):
        path.write_text("{")
    with pytest.raises(CheckpointError, match=r"no whole checkpoint in .*checkpoints, looked at steps \[2, 1\]"):
        reopened(saved)


def test_a_refused_configuration_is_not_passed_over(saved):
    def check(config):
        raise ValueError(f"lr was {config['lr']}")

    with pytest.raises(ValueError, match="lr was 2"):
        reopened(saved, check)


def test_what_is_newer_can_be_discarded(saved):
    (saved / "checkpoints" / "25").mkdir()
    checkpoints = Checkpoints(saved)
    checkpoints.discard_after(1)
    assert checkpoints.steps() == [1]
    assert [path.name for path in (saved / "checkpoints").iterdir()] == ["1"]
    save(checkpoints, 2, numbers())
    assert checkpoints.steps() == [2, 1]
    checkpoints.close()


def test_a_full_disk_leaves_the_last_checkpoint_usable(saved):
    checkpoints, data = Checkpoints(saved), numbers()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(CheckpointError, match=r"cannot write .* \(the last good one is step 2\): .*\S") as full:
            save(checkpoints, 3, data)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in str(full.value)
    checkpoints.close()
    assert reopened(saved) == (2, 2, [])


def test_the_digest_sees_values_shapes_and_names():
    tree = {"a": jnp.arange(6.0), "b": {"c": jnp.int32(1)}}
    assert digest(tree) == digest(jax.tree.map(np.asarray, tree))
    others = ({"a": tree["a"].at[3].set(9)}, {"a": tree["a"].reshape(2, 3)}, {"a": tree["a"].astype(jnp.int32)})
    for other in (*({**tree, **other} for other in others), {"a": tree["a"]}, {"d": tree["a"], "b": tree["b"]}):
        assert digest(other) != digest(tree)
