"""Checkpoints that are whole or refused: arrays, place in the data and configuration together, sealed by a digest.

A checkpoint is one orbax step with three items: `state` (arrays), `data` (the grain iterator) and `seal` (the
configuration and the sha256 of the arrays). Orbax by itself restores flipped bytes without a word; the seal is compared
at every restore, and a broken step is passed over, by name, for the one before it.
"""

import hashlib
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grain
import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.args import Composite, JsonRestore, JsonSave, StandardRestore, StandardSave

KEPT = 2
"""How many checkpoints stay: the newest, and one to fall back upon."""


class CheckpointError(ValueError):
    """A checkpoint cannot be read, or cannot be written."""


def digest(tree: Any) -> str:
    """Return the sha256 of every leaf's path, type, shape and bytes."""
    total = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        array = np.ascontiguousarray(jax.device_get(leaf))
        total.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape} ".encode())
        total.update(array.tobytes())
    return total.hexdigest()


class Checkpoints:
    """The checkpoints of one run folder.

    Args:
        folder: of the run; the steps lie in its sub-folder `checkpoints`.
        say: prints one line for the user.
    """

    def __init__(self, folder: Path, say: Callable[[str], None] = print) -> None:
        self.folder = folder.resolve() / "checkpoints"
        self.say = say
        logging.getLogger("absl").setLevel(logging.CRITICAL)  # orbax logs a traceback for every error it also raises
        options = ocp.CheckpointManagerOptions(max_to_keep=KEPT, cleanup_tmp_directories=True)
        try:
            self.manager = ocp.CheckpointManager(self.folder, options=options)
        except OSError as refused:
            raise CheckpointError(f"cannot keep checkpoints in {self.folder}: {first_line(refused)}") from None

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint, newest first, empty folders left out."""
        filled = lambda step: any((self.folder / str(step)).iterdir())  # noqa: E731
        return sorted(filter(filled, self.manager.all_steps(read=True)), reverse=True)

    def save(self, step: int, state: Any, data: grain.DatasetIterator, config: dict[str, Any]) -> None:
        """Write a checkpoint in the background, after the one before is whole.

        Raises:
            CheckpointError: it, or the one before, cannot be written; earlier ones stay as they are.
        """
        seal = {"sha256": digest(state), "config": config}
        items = Composite(
            state=StandardSave(state), data=grain.checkpoint.CheckpointSave(data), seal=JsonSave(seal)
        )  # fmt: skip
        try:
            self.manager.wait_until_finished()
            self.manager.save(step, args=items, force=True)
        except (OSError, ValueError, RuntimeError) as refused:
            raise CheckpointError(self._unwritten(refused)) from None

    def wait(self) -> None:
        """Return once everything saved is on disk.

        Raises:
            CheckpointError: it cannot be written.
        """
        try:
            self.manager.wait_until_finished()
        except (OSError, ValueError, RuntimeError) as refused:
            raise CheckpointError(self._unwritten(refused)) from None

    def _unwritten(self, refused: Exception) -> str:
        steps = self.steps()
        last = f"the last good one is step {steps[0]}" if steps else "there is none yet"
        return f"cannot write a checkpoint in {self.folder} ({last}): {first_line(refused)}"

    def restore(
        self, state: Any, data: grain.DatasetIterator | None, check: Callable[[dict[str, Any]], None]
    ) -> tuple[int, Any]:
        """Return the newest whole checkpoint, `(step, state)`, and move `data` to its place.

        Args:
            state: arrays, or their shapes, of the state to restore, with the shardings wanted.
            data: the iterator to move; None leaves the data out.
            check: receives the stored configuration and raises where it is not the one wanted.

        Raises:
            CheckpointError: no checkpoint is whole.
        """
        steps = self.steps()
        for step in steps:
            seal = self._try(step, self._read_seal)
            if seal is None:
                continue
            check(seal["config"])
            restored = self._try(step, self._read, state, data, seal["sha256"])
            if restored is not None:
                return step, restored
        raise CheckpointError(f"no whole checkpoint in {self.folder}, looked at steps {steps or 'none'}")

    def _read_seal(self, step: int) -> dict[str, Any]:
        return self.manager.restore(step, args=Composite(seal=JsonRestore()))["seal"]

    def _read(self, step: int, state: Any, data: grain.DatasetIterator | None, sha256: str) -> Any:
        shapes = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
        items: dict[str, Any] = {"state": StandardRestore(shapes)}
        if data is not None:
            items["data"] = grain.checkpoint.CheckpointRestore(data)
        restored = self.manager.restore(step, args=Composite(**items))["state"]
        if digest(restored) != sha256:
            raise CheckpointError("its arrays do not have the sha256 they were saved with")
        return restored

    def _try(self, step: int, read: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return read(step, *arguments)
        except Exception as broken:  # orbax raises plain Exception, among others, for a truncated file
            self.say(f"checkpoint of step {step} is broken, passed over: {first_line(broken)}")
            return None

    def discard_after(self, step: int) -> None:
        """Delete what is newer than `step`: broken checkpoints, once training continues from before them."""
        for child in self.folder.iterdir():
            if child.name.isdigit() and int(child.name) > step:
                shutil.rmtree(child)
        self.manager.reload()

    def close(self) -> None:
        """Release the threads of the manager."""
        self.manager.close()


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type where it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
