"""Checkpoints: whole or refused, whatever happened to the files."""

import errno
import gc
import json
import os
import resource
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from train.devices.mesh import mesh_of, replicated_sharding
from train.engine.checkpoint import CheckpointError, Checkpoints, first_line
from train.engine.digest import digests
from train.engine.files import with_digest

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""Orbax leaves coroutines behind where a file is broken or a write fails."""


def draw(seed: int) -> dict:
    return {"a": jax.random.normal(jax.random.key(seed), (100_000,)), "b": {"c": jnp.int32(seed)}}


def save(checkpoints: Checkpoints, step: int) -> None:
    checkpoints.save(step, draw(step), {"lr": step})
    checkpoints.wait()


@pytest.fixture(scope="module", autouse=True)
def coroutines_collected():
    """Let the coroutines that Orbax leaves behind complain while these tests ignore it."""
    yield
    gc.collect()


@pytest.fixture
def saved(tmp_path):
    """Steps 1 and 2."""
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2):
        save(checkpoints, step)
    checkpoints.close()
    return tmp_path


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


@pytest.mark.parametrize("name", ["sweep[lr=a]", "a[b/c]*?", "100% é # ~ {x} \x1b"])
def test_a_folder_may_have_any_name(name, tmp_path):
    """Orbax takes brackets for a pattern: what it wrote in such a folder could not be read again."""
    checkpoints = Checkpoints(tmp_path / name)
    save(checkpoints, 1)
    checkpoints.close()
    assert reopened(tmp_path / name) == (1, [])


def test_arrays_that_do_not_match_the_digest_are_passed_over(saved):
    seal = saved / "checkpoints" / "2" / "seal" / "metadata"
    content = json.loads(seal.read_text())
    seal.write_text(json.dumps(with_digest({**content, "digests": digests(draw(3))})))
    step, said = reopened(saved)
    assert step == 1
    assert len(said) == 1
    assert said[0].startswith("checkpoint of step 2 is damaged, skipped: ['a'] was saved with digest float32")


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (5, "step 2 has format 5, of a newer version; this version reads 4"),
        (3, "step 2 has format 3, of an older version; this version reads 4"),
        (None, "has format 1"),
    ],
)
def test_another_format_is_refused(written, message, saved):
    seal = saved / "checkpoints" / "2" / "seal" / "metadata"
    content = json.loads(seal.read_text())
    del content["format"]
    seal.write_text(json.dumps(content if written is None else with_digest({**content, "format": written})))
    with pytest.raises(CheckpointError, match=message):
        reopened(saved)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 8
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.slow
@pytest.mark.parametrize("damage", [flip, truncate, Path.unlink], ids=["a flipped bit", "truncated", "missing"])
def test_any_file_may_be_damaged(damage, saved):
    folder, copy = saved / "checkpoints" / "2", saved / "copy"
    shutil.copytree(folder, copy)
    files = [path for path in copy.rglob("*") if path.is_file() and path.stat().st_size]
    assert len(files) >= 8
    passed_over = set()
    for path in files:
        damage(folder / path.relative_to(copy))
        step, said = reopened(saved)
        if step == 1:
            passed_over.add(path.relative_to(copy).parts[0])
            assert len(said) == 1
            assert said[0].startswith("checkpoint of step 2 is damaged, skipped: ")
            assert "\n" not in said[0]
        else:
            assert said == []
        shutil.rmtree(folder)
        shutil.copytree(copy, folder)
    assert passed_over == {"state", "seal"}


def test_a_checkpoint_with_a_pipe_or_a_link_is_refused_at_once(saved):
    folder = saved / "checkpoints" / "2"
    path = folder / "seal" / "metadata"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ValueError, match=r"2/seal/metadata must be a regular file, got a pipe$"):
        Checkpoints(saved)
    shutil.rmtree(folder)
    folder.symlink_to(saved / "checkpoints" / "1")
    with pytest.raises(ValueError, match=r"checkpoints/2 must be a regular file, got a link$"):
        Checkpoints(saved)


ODD_NOTES = [{"item_handlers": []}, {"commit_timestamp_nsecs": 10**30}, {"init_timestamp_nsecs": "x"}]


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("entries", ODD_NOTES, ids=lambda entries: next(iter(entries)))
def test_notes_of_orbax_block_no_checkpoint(entries, step, saved):
    """They are in no seal: odd ones neither end the run nor keep it from an intact checkpoint."""
    notes = saved / "checkpoints" / f"{step}" / "_CHECKPOINT_METADATA"
    notes.write_text(json.dumps({**json.loads(notes.read_text()), **entries}))
    shutil.rmtree(saved / "checkpoints" / "2" / "seal")
    assert Checkpoints(saved, reading=True).restore(draw(0), lambda config: None)[0] == 1
    checkpoints = Checkpoints(saved)
    assert checkpoints.restore(draw(0), lambda config: None)[0] == 1
    checkpoints.discard_after(1)
    for later in (3, 4):
        save(checkpoints, later)
    assert checkpoints.steps() == [4, 3]
    checkpoints.close()


@pytest.mark.parametrize("part", ["seal", "state"])
def test_half_a_checkpoint_is_passed_over(part, saved):
    shutil.rmtree(saved / "checkpoints" / "2" / part)
    step, said = reopened(saved)
    assert step == 1
    assert len(said) == 1


def test_a_configuration_that_changed_on_disk_is_passed_over(saved):
    seal = saved / "checkpoints" / "2" / "seal" / "metadata"
    assert '"lr": 2' in seal.read_text()
    seal.write_text(seal.read_text().replace('"lr": 2', '"lr": 3'))
    assert reopened(saved) == (
        1,
        ["checkpoint of step 2 is damaged, skipped: its seal has changed since it was written"],
    )


def test_an_empty_step_is_ignored(saved):
    (saved / "checkpoints" / "25").mkdir()
    assert reopened(saved) == (2, [])


def test_a_half_written_step_is_ignored_and_cleared_away(saved):
    checkpoints = saved / "checkpoints"
    half = checkpoints / "3.orbax-checkpoint-tmp"
    shutil.copytree(checkpoints / "2", half)
    shutil.rmtree(half / "seal")
    assert reopened(saved) == (2, [])
    assert sorted(path.name for path in checkpoints.iterdir()) == ["1", "2"]


def test_reading_leaves_a_step_that_is_being_written(saved):
    half = saved / "checkpoints" / "3.orbax-checkpoint-tmp"
    shutil.copytree(saved / "checkpoints" / "2", half)
    checkpoints = Checkpoints(saved, reading=True)
    assert checkpoints.restore(draw(0), lambda config: None)[0] == 2
    checkpoints.close()
    assert (half / "seal").is_dir()


def whole_state(sizes: str, devices: int, seed: int) -> dict:
    """Return a state split over a mesh: rows over the batch's axes, columns over tensor."""
    mesh = mesh_of(jax.devices()[:devices], sizes)
    split = NamedSharding(mesh, PartitionSpec(("data", "fsdp"), "tensor"))
    values = jax.random.normal(jax.random.key(seed), (16, 24))
    return {"a": jax.device_put(values, split), "b": jax.device_put(jnp.int32(seed), replicated_sharding(mesh))}


@pytest.mark.slow
def test_other_devices_and_meshes_restore_exactly(tmp_path):
    meshes = [("fsdp=8", 8), ("data=2,fsdp=2,tensor=2", 8), ("tensor=4", 4), ("data=1", 1)]
    for step, (sizes, devices) in enumerate(meshes, 1):
        checkpoints = Checkpoints(tmp_path)
        if step > 1:
            restored_step, state = checkpoints.restore(whole_state(sizes, devices, 0), lambda config: None)
            assert restored_step == step - 1
            jax.tree.map(np.testing.assert_array_equal, state, whole_state(sizes, devices, 7))
            agree = lambda a, b: a.sharding == b.sharding
            assert jax.tree.all(jax.tree.map(agree, state, whole_state(sizes, devices, 0)))
        checkpoints.save(step, whole_state(sizes, devices, 7), {})
        checkpoints.wait()
        checkpoints.close()


def test_a_folder_that_cannot_be_written(saved):
    checkpoints = Checkpoints(saved)
    (saved / "checkpoints").rename(saved / "away")
    (saved / "checkpoints").write_text("")
    with pytest.raises(
        CheckpointError, match=r"cannot write a checkpoint in .* \(there is none yet\): .*\S"
    ) as refused:
        save(checkpoints, 3)
    assert "\n" not in str(refused.value)
    checkpoints.close()
    with pytest.raises(CheckpointError, match=r"cannot keep checkpoints in .*: .*\S"):
        Checkpoints(saved / "checkpoints")
    (saved / "checkpoints").unlink()
    (saved / "away").rename(saved / "checkpoints")
    assert reopened(saved) == (2, [])


def test_nothing_whole_is_one_error(saved):
    for path in (saved / "checkpoints").rglob("seal/metadata"):
        path.write_text("{")
    with pytest.raises(CheckpointError, match=r"no intact checkpoint in .*checkpoints, tried steps \[2, 1\]"):
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


def test_a_shortened_error_says_what_the_system_said():
    words = f"Error writing \"a/0\": {'x' * 300} No space left on device {'y' * 300} [os_error_code='{errno.ENOSPC}']"
    said = first_line(ValueError(words))
    assert said.startswith(f"{os.strerror(errno.ENOSPC)}: Error writing")
    assert len(said) < 300
    assert first_line(ValueError("seal\nis broken")) == "seal"


@pytest.mark.slow
def test_a_full_disk_leaves_the_last_checkpoint_usable(saved):
    checkpoints = Checkpoints(saved)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(CheckpointError, match=r"cannot write .* \(the last complete one is step 2\): .*\S") as full:
            save(checkpoints, 3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in str(full.value)
    assert "File too large" in str(full.value)
    checkpoints.close()
    assert reopened(saved) == (2, [])
