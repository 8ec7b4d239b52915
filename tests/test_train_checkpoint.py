"""Checkpoints: whole or refused, whatever happened to the files."""

import gc
import json
import resource
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from train.checkpoint import CheckpointError, Checkpoints
from train.digest import digests

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""Orbax leaves coroutines behind where a file is broken or a write fails."""


def draw(seed: int) -> dict:
    return {"a": jax.random.normal(jax.random.key(seed), (100_000,)), "b": {"c": jnp.int32(seed)}}


def save(checkpoints: Checkpoints, step: int) -> None:
    checkpoints.save(step, draw(step), {"lr": step})
    checkpoints.wait()


@pytest.fixture
def saved(tmp_path):
    """Steps 1 and 2."""
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2):
        save(checkpoints, step)
    checkpoints.close()
    yield tmp_path
    gc.collect()


def reopened(folder, check=lambda config: None):
    """Return the step restored and what was said."""
    said = []
    checkpoints = Checkpoints(folder, said.append)
    step, state = checkpoints.restore(draw(0), check)
    jax.tree.map(np.testing.assert_array_equal, state, draw(step))
    checkpoints.close()
    return step, said


def test_the_newest_comes_back(saved):
    seen = []
    assert reopened(saved, seen.append) == (2, [])
    assert seen == [{"lr": 2}]


def test_arrays_that_do_not_match_the_digest_are_passed_over(saved):
    seal = saved / "checkpoints" / "2" / "seal" / "metadata"
    content = json.loads(seal.read_text())
    seal.write_text(json.dumps({**content, "digests": digests(draw(3))}))
    step, said = reopened(saved)
    assert step == 1
    assert len(said) == 1
    assert said[0].startswith("checkpoint of step 2 is broken, passed over: ['a'] was saved with the digest float32")


@pytest.mark.parametrize(
    ("written", "message"), [(3, "has format 3, of a newer version; this one reads 2"), (None, "has format 1")]
)
def test_another_format_is_refused(written, message, saved):
    seal = saved / "checkpoints" / "2" / "seal" / "metadata"
    content = json.loads(seal.read_text())
    del content["format"]
    seal.write_text(json.dumps(content if written is None else {**content, "format": written}))
    with pytest.raises(CheckpointError, match=message):
        reopened(saved)


@pytest.mark.parametrize("damage", ["truncated", "no seal", "no state", "empty folder"])
def test_damage_is_passed_over(damage, saved):
    folder = saved / "checkpoints" / "2"
    if damage == "empty folder":
        (saved / "checkpoints" / "25").mkdir()
    elif damage == "truncated":
        largest = max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
        largest.write_bytes(largest.read_bytes()[:1000])
    else:
        shutil.rmtree(folder / damage.removeprefix("no "))
    step, said = reopened(saved)
    assert step == (2 if damage == "empty folder" else 1)
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
    save(checkpoints, 2)
    assert checkpoints.steps() == [2, 1]
    checkpoints.close()


def test_a_full_disk_leaves_the_last_checkpoint_usable(saved):
    checkpoints = Checkpoints(saved)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(CheckpointError, match=r"cannot write .* \(the last good one is step 2\): .*\S") as full:
            save(checkpoints, 3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in str(full.value)
    checkpoints.close()
    assert reopened(saved) == (2, [])
