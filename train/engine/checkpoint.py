"""Checkpoints that are whole or refused: arrays and configuration together, sealed by digests of the arrays.

A checkpoint is one orbax step with two items: `state` (arrays) and `seal` (the configuration, the digest of every
array, and one of itself). Orbax by itself restores flipped bytes without a word; the seal is compared at every restore,
and a broken step is passed over, by name, for the one before it. The place in the data is not stored: batches follow
(seed, step) alone.
"""

import hashlib
import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint.args import Composite, JsonRestore, JsonSave, StandardRestore, StandardSave

from train.devices.hosts import agreed, first, lost, of_first
from train.engine.digest import digests

FORMAT = 4
"""Of what is written here; a checkpoint of another format is refused."""

KEPT = 2
"""How many checkpoints stay: the newest, and one to fall back upon."""


class CheckpointError(ValueError):
    """A checkpoint cannot be read, or cannot be written."""


class Checkpoints:
    """The checkpoints of one run folder.

    Args:
        folder: of the run; the steps lie in its sub-folder `checkpoints`.
        say: prints one line for the user.
        reading: nothing is saved here, nor cleared away: a run may be writing a step.
    """

    def __init__(self, folder: Path, say: Callable[[str], None] = print, *, reading: bool = False) -> None:
        self.folder = folder.resolve() / "checkpoints"
        self.say = say
        logging.getLogger("absl").setLevel(logging.CRITICAL)  # orbax logs a traceback for every error it also raises
        writing = ocp.CheckpointManagerOptions(max_to_keep=KEPT, cleanup_tmp_directories=True)
        options = ocp.CheckpointManagerOptions(read_only=True, create=False) if reading else writing
        try:
            self.manager = ocp.CheckpointManager(self.folder, options=options)
        except OSError as refused:
            raise CheckpointError(f"cannot keep checkpoints in {self.folder}: {first_line(refused)}") from None

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint, newest first, empty folders left out; every process must ask."""
        return of_first(written_steps(self.folder.parent), KEPT + 14)

    def save(self, step: int, state: Any, config: dict[str, Any]) -> None:
        """Write a checkpoint in the background, after the one before is whole.

        Raises:
            CheckpointError: it, or the one before, cannot be written; earlier ones stay as they are.
        """
        seal = sealed({"format": FORMAT, "digests": digests(state), "config": config})
        items = Composite(state=StandardSave(state), seal=JsonSave(seal))
        try:
            self.manager.wait_until_finished()
            self.manager.save(step, args=items, force=True)
        except (OSError, ValueError, RuntimeError) as refused:
            if lost(refused):
                raise
            raise CheckpointError(self._unwritten(refused)) from None

    def wait(self) -> None:
        """Return once everything saved is on disk.

        Raises:
            CheckpointError: it cannot be written.
        """
        try:
            self.manager.wait_until_finished()
        except (OSError, ValueError, RuntimeError) as refused:
            if lost(refused):
                raise
            raise CheckpointError(self._unwritten(refused)) from None

    def _unwritten(self, refused: Exception) -> str:
        steps = written_steps(self.folder.parent)
        last = f"the last good one is step {steps[0]}" if steps else "there is none yet"
        return f"cannot write a checkpoint in {self.folder} ({last}): {first_line(refused)}"

    def restore(self, state: Any, check: Callable[[dict[str, Any]], None]) -> tuple[int, Any]:
        """Return the newest whole checkpoint, `(step, state)`.

        Args:
            state: arrays, or their shapes, of the state to restore, with the shardings wanted.
            check: receives the stored configuration and raises where it is not the one wanted.

        Raises:
            CheckpointError: no checkpoint is whole, or one is of another format.
        """
        steps = self.steps()
        for step in steps:
            seal = self._try(step, self._read_seal)
            if seal is None:
                continue
            written = seal.get("format", 1)
            if written != FORMAT:
                age = "a newer" if written > FORMAT else "an older"
                raise CheckpointError(f"step {step} has format {written}, of {age} version; this one reads {FORMAT}")
            check(seal["config"])
            restored = self._try(step, self._read, state, seal["digests"])
            if restored is not None:
                return step, restored
        raise CheckpointError(f"no whole checkpoint in {self.folder}, looked at steps {steps or 'none'}")

    def _read_seal(self, step: int) -> dict[str, Any]:
        seal = self.manager.restore(step, args=Composite(seal=JsonRestore()))["seal"]
        if seal.get("format", 1) > 2 and seal != sealed(seal):  # those before had no digest of their own
            raise CheckpointError("its seal is not as it was written")
        return seal

    def _read(self, step: int, state: Any, written: dict[str, str]) -> Any:
        shapes = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
        restored = self.manager.restore(step, args=Composite(state=StandardRestore(shapes)))["state"]
        found = digests(restored)
        changed = [name for name in found if found[name] != written.get(name)]
        if changed:
            name = changed[0]
            raise CheckpointError(f"{name} was saved with the digest {written.get(name)}, has {found[name]}")
        return restored

    def _try(self, step: int, read: Callable[..., Any], *arguments: Any) -> Any:
        found, problem = None, "another process cannot read it"
        try:
            found = read(step, *arguments)
        except Exception as broken:  # orbax raises plain Exception, among others, for a truncated file
            problem = first_line(broken)
        if agreed(found is not None):
            return found
        self.say(f"checkpoint of step {step} is broken, passed over: {problem}")
        return None

    def discard_after(self, step: int) -> None:
        """Delete what is newer than `step`: broken checkpoints, once training continues from before them."""
        for child in self.folder.iterdir() if first() else ():
            if child.name.isdigit() and int(child.name) > step:
                shutil.rmtree(child)
        agreed(True)
        self.manager.reload()

    def close(self) -> None:
        """Release the threads of the manager."""
        self.manager.close()


def sealed(seal: dict[str, Any]) -> dict[str, Any]:
    """Return a seal with the digest of all else in it, as every format from 3 on has it."""
    rest = {name: value for name, value in seal.items() if name != "digest"}
    return {**rest, "digest": hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()}


def written_steps(folder: Path) -> list[int]:
    """Return the steps that have a checkpoint in a run folder, newest first, empty folders left out.

    Orbax gives a step its number for a name once all of it is written.
    """
    written = [child for child in (folder / "checkpoints").glob("[0-9]*") if child.name.isdigit()]
    return sorted((int(child.name) for child in written if any(child.iterdir())), reverse=True)


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type where it has none; of a long one begin and end.

    What a writer says ends with the cause: "No space left on device".
    """
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return line if len(line) <= 200 else f"{line[:100]} ... {line[-100:]}"
