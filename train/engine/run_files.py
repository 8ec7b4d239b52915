"""The files of a run folder: which are a run's own, and may be deleted with it, and which are somebody else's."""

import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from train.engine.files import kind_of, read_object, require_regular
from train.engine.stored_config import FILE, is_run

MODEL = "model"
"""Folder of the model that `train.tune` writes, in its run folder."""

PARTS = {
    "checkpoints": r"\d+(\.orbax-checkpoint-tmp.*)?",
    "tensorboard": r"events\.out\.tfevents\..*",
    "profile": r"plugins",
    MODEL: r"(config|generation_config|tokenizer|model\.safetensors\.index)\.json|model[-\w]*\.safetensors",
}
"""Folders of a run in its folder, and patterns of what it writes into them."""

FAILED_STEP = re.compile(r"offending-\d+")
"""Folders of steps that halted the run (`train.engine.failed_step`)."""

UNFINISHED = re.compile(r"\.(.+)\.\d+")
"""Files that `write_atomic` was writing when its process was killed."""


def own_files(folder: Path) -> Iterator[Path]:
    """Yield the files and folders that a run has written into its folder, and the contents of its subfolders.

    Links in place of a run's files are yielded, but never followed: what they lead to is not the run's.
    """
    for path in sorted(folder.iterdir()):
        if path.name in PARTS and not path.is_symlink() and path.is_dir():
            yield from _own_in(path)
        elif _is_own(path):
            yield path


def _own_in(part: Path) -> list[Path]:
    return [child for child in sorted(part.iterdir()) if re.fullmatch(PARTS[part.name], child.name)]


def _is_own(path: Path) -> bool:
    if path.is_symlink() and path.name in PARTS:
        return True
    if path.is_dir() and not path.is_symlink():
        return bool(FAILED_STEP.fullmatch(path.name))
    unfinished = UNFINISHED.fullmatch(path.name)
    kind = kind_of(unfinished[1] if unfinished else path.name)
    return kind is not None and (kind.group != "results" or _is_evaluation(path))


def _is_evaluation(path: Path) -> bool:
    """Return whether a file `results-NAME.json`, or the figure beside one, was written by an evaluation."""
    if path.stem == "results" or UNFINISHED.fullmatch(path.name):
        return True
    try:
        stored = read_object(path.with_suffix(".json")).keys()
        return {"name", "data", "extend"} <= stored and not stored.isdisjoint(("numbers", "rows"))  # rows: 0.3.0
    except (OSError, ValueError):
        return False


def delete_run(folder: Path) -> None:
    """Delete the files of a run, and nothing else that is in its folder; config.json last.

    Stopped half-way, the folder is still known as that of a run.
    """
    for path in sorted(own_files(folder), key=lambda path: path.name == FILE):
        _delete(path)
    for name in PARTS:
        part = folder / name
        if part.is_dir() and not any(part.iterdir()):
            part.rmdir()


def require_own_parts(folder: Path, names: Iterable[str] = PARTS) -> None:
    """Check that the folders of a run in its folder are no links: what is written and deleted there is elsewhere.

    Args:
        folder: run folder.
        names: names of its folders.

    Raises:
        ValueError: naming one that is a link, or a link in the place of a profile.
    """
    paths = [folder / name for name in names]
    if folder.is_dir():
        paths += [path for path in folder.iterdir() if FAILED_STEP.fullmatch(path.name)]
    for path in paths:
        if path.is_symlink():
            raise ValueError(f"{path} must be a folder of the run, got a link")
    if (folder / "profile").is_dir():  # whose folders JAX makes, or takes as they are
        require_regular(folder / "profile")


def delete_part(part: Path) -> None:
    """Delete the files of a run in one of its folders, if that is there; a link in its place is removed."""
    for path in _own_in(part) if part.is_dir() and not part.is_symlink() else [part]:
        _delete(path)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def has_trained(folder: Path) -> bool:
    """Return whether a folder has a run with more than its settings: a checkpoint, a report, results or a failed step.

    A run that ended before, as by an error while it compiled, has nothing that another one could overwrite.
    """
    return is_run(folder) and any(_is_of_training(path, folder) for path in own_files(folder))


def _is_of_training(path: Path, folder: Path) -> bool:
    if path.parent != folder:
        return path.parent.name != "tensorboard"  # whose file is made before the first step
    if path.is_dir() or path.is_symlink():
        return True
    kind = kind_of(path.name)
    return kind is not None and kind.group != "settings" and path.stat().st_size > 0


def require_no_run(folder: Path, overwrite: bool) -> bool:
    """Check that a run may begin in a folder; return whether an earlier run in it is to be deleted first.

    Raises:
        ValueError: it has a run that has trained and may not be overwritten, or files of somebody else under the names
            of a run's.
    """
    if is_run(folder):
        if has_trained(folder) and not overwrite:
            raise ValueError(f"{folder} already has a run: give --resume, --overwrite or another --out")
        return True
    if not folder.is_dir():
        return False
    names = [path.name for path in folder.iterdir() if path.name != "outcome.json" and _would_be_written(path)]
    if names:
        raise ValueError(
            f"out must be a folder without {sorted(names)[0]}, which a run writes, unless it has a run already, "
            f"got {folder}: give another --out"
        )
    return False


def _would_be_written(path: Path) -> bool:
    if path.name in PARTS and path.is_dir():
        return any(path.iterdir())
    return path.name in PARTS or kind_of(path.name) is not None


def written_steps(folder: Path) -> list[int]:
    """Return the steps that have a checkpoint in a run folder, newest first.

    Orbax renames a folder to the number of its step once it is complete.
    """
    try:
        written = [child for child in (folder / "checkpoints").iterdir() if step_of(child) is not None]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted((int(child.name) for child in written if child.is_dir() and any(child.iterdir())), reverse=True)


def step_of(path: Path) -> int | None:
    """Return the step that a name in the folder of checkpoints stands for, as Orbax writes it."""
    return int(path.name) if re.fullmatch(r"0|[1-9][0-9]{0,17}", path.name) else None
