"""Checkpoints whose integrity is verified: arrays and config, with digests of the arrays.

A checkpoint is one orbax step with two items: `state` (the arrays) and `seal` (the step, the config, a digest of every
array, and a digest of the seal itself). Orbax alone restores flipped bytes silently; here every restore compares the
digests and the step, and a damaged or renamed checkpoint is reported and skipped for the one before it. The position in
the data is not stored, because batches depend only on (seed, step).
"""

import logging
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint.args import Composite, JsonRestore, JsonSave, StandardRestore, StandardSave

from train.devices.hosts import (
    all_processes_agree,
    from_main_process,
    is_main_process,
    is_process_loss,
    wait_for_all_processes,
)
from train.engine.digest import digests
from train.engine.files import require_regular, with_digest
from train.engine.literal_path import LiteralPath
from train.engine.run_files import require_own_parts, step_of, written_steps

FORMAT = 4
"""Version of the checkpoint format; checkpoints of another version are refused."""

KEPT = 2
"""Number of checkpoints that are kept: the newest, and one to fall back on."""


class CheckpointError(ValueError):
    """A checkpoint cannot be read or written."""


class Checkpoints:
    """The checkpoints of one run folder.

    Args:
        folder: run folder; checkpoints are in its subfolder `checkpoints`.
        notify: prints one line for the user.
        reading: open read-only, because a run may be writing a checkpoint.
    """

    def __init__(self, folder: Path, notify: Callable[[str], None] = print, *, reading: bool = False) -> None:
        self.folder = folder.resolve() / "checkpoints"
        self.notify = notify
        logging.getLogger("absl").setLevel(logging.CRITICAL)  # orbax also logs a traceback of every error it raises
        writing: Any = {"max_to_keep": KEPT, "cleanup_tmp_directories": True}
        self.options: Any = {"read_only": True, "create": False} if reading else writing
        require_own_parts(folder, ("checkpoints",))
        try:
            for step in written_steps(folder):
                require_regular(self.folder / f"{step}")  # orbax reads what it finds there
            self.manager = self._manager()
        except OSError as refused:
            raise CheckpointError(f"cannot keep checkpoints in {self.folder}: {first_line(refused)}") from None

    def _manager(self) -> ocp.CheckpointManager:
        """Return the manager of the checkpoints that are there now.

        It does not read what Orbax notes on a checkpoint beside its items ("lightweight"): that is in no seal, not
        needed, and raises anything where somebody has changed it.
        """
        options = ocp.CheckpointManagerOptions(lightweight_initialize=True, **self.options)
        return ocp.CheckpointManager(LiteralPath(self.folder), options=options)

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint, newest first; all processes must call this."""
        return from_main_process(written_steps(self.folder.parent), KEPT + 14)

    def save(self, step: int, state: Any, config: dict[str, Any]) -> None:
        """Write a checkpoint in the background, after the previous one is complete.

        Raises:
            CheckpointError: it, or the previous one, cannot be written; earlier ones are unchanged.
        """
        seal = with_digest({"format": FORMAT, "step": step, "digests": digests(state), "config": config})
        items = Composite(state=StandardSave(state), seal=JsonSave(seal))
        try:
            self.manager.wait_until_finished()
            self.manager.save(step, args=items, force=True)
        except (OSError, ValueError, RuntimeError) as refused:
            if is_process_loss(refused):
                raise
            raise CheckpointError(self._unwritten(refused)) from None

    def wait(self) -> None:
        """Wait until all checkpoints are on disk.

        Raises:
            CheckpointError: it cannot be written.
        """
        try:
            self.manager.wait_until_finished()
        except (OSError, ValueError, RuntimeError) as refused:
            if is_process_loss(refused):
                raise
            raise CheckpointError(self._unwritten(refused)) from None

    def _unwritten(self, refused: Exception) -> str:
        steps = written_steps(self.folder.parent)
        last = f"the last complete one is step {steps[0]}" if steps else "there is none yet"
        return f"cannot write a checkpoint in {self.folder} ({last}): {first_line(refused)}"

    def restore(self, state: Any, check: Callable[[dict[str, Any]], None]) -> tuple[int, Any]:
        """Return the newest intact checkpoint, `(step, state)`.

        Args:
            state: arrays or shapes of the state to restore, with the desired shardings.
            check: receives the stored config, and raises if it does not match.

        Raises:
            CheckpointError: no checkpoint is intact, or one is of another format.
        """
        steps = self.steps()
        for step in steps:
            seal = self._try(step, self._read_seal)
            if seal is None:
                continue
            written = seal.get("format", 1)
            if written != FORMAT:
                age = "a newer" if written > FORMAT else "an older"
                raise CheckpointError(
                    f"the checkpoint of step {step} has format {written}, of {age} version; this version reads {FORMAT}"
                )
            check(seal["config"])
            restored = self._try(step, self._read, state, seal["digests"])
            if restored is not None:
                return step, restored
        raise CheckpointError(f"no intact checkpoint in {self.folder}, tried steps {steps or 'none'}")

    def _read_seal(self, step: int) -> dict[str, Any]:
        seal = self.manager.restore(step, args=Composite(seal=JsonRestore()))["seal"]
        if seal.get("format", 1) > 2 and seal != with_digest(seal):  # earlier formats had no digest of the seal
            raise CheckpointError("its seal has changed since it was written")
        if seal.get("step", step) != step:
            raise CheckpointError(f"it was written as step {seal['step']}")
        return seal

    def _read(self, step: int, state: Any, written: dict[str, str]) -> Any:
        shapes = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
        restored = self.manager.restore(step, args=Composite(state=StandardRestore(shapes)))["state"]
        by_name = digests(restored)
        changed = [name for name in by_name if by_name[name] != written.get(name)]
        if changed:
            name = changed[0]
            raise CheckpointError(f"{name} was saved with digest {written.get(name)}, got {by_name[name]}")
        # of a training state; seals of earlier versions have no step
        restored_step = int(getattr(restored, "step", step))
        if restored_step != step:
            raise CheckpointError(f"it was written as step {restored_step}")
        return restored

    def _try(self, step: int, read: Callable[..., Any], *arguments: Any) -> Any:
        result, problem = None, "another process could not read it"
        try:
            result = read(step, *arguments)
        except Exception as broken:  # orbax raises plain Exception for a truncated file, among others
            problem = first_line(broken)
        if all_processes_agree(result is not None):
            return result
        self.notify(f"checkpoint of step {step} is damaged, skipped: {problem}")
        return None

    def discard_after(self, step: int) -> None:
        """Delete the checkpoints after `step`, which are damaged, when training resumes from `step`.

        What stands in the way of later ones without being a checkpoint, such as a file of that name, is renamed.
        """
        for child in sorted(self.folder.iterdir()) if is_main_process() else ():
            if step_of(child) is None or int(child.name) <= step:
                continue
            if child.is_dir() and not child.is_symlink():
                shutil.rmtree(child)
            else:
                child.rename(child.with_name(f"{child.name}.aside"))
        wait_for_all_processes()
        self.manager.close()
        self.manager = self._manager()  # `reload` would read the notes

    def close(self) -> None:
        """Stop the threads of the checkpoint manager."""
        self.manager.close()


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or the name of its type if the message is empty.

    A long line is shortened in the middle. What the operating system said ("No space left on device") may be anywhere
    in it, and comes first.
    """
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    code = re.search(r"os_error_code='(\d+)'", line)
    reason = f"{os.strerror(int(code[1]))}: " if code else ""
    return reason + (line if len(line) <= 200 else f"{line[:100]} ... {line[-100:]}")
