"""The folder of a run: its program and settings, what it holds, and the right to write into it.

    config.json        settings of the run, by which it is known
    environment.json   versions, devices, memory
    metrics.jsonl      one line per report
    checkpoints/       the state of training
    results*.json      one evaluation each, with a figure

`train.engine.files` has all files and reads and writes them, `train.engine.run_files` says which are the run's own.
"""

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from train.engine.config import RunConfig
from train.engine.files import lock_folder
from train.engine.programs import program
from train.engine.run_files import delete_run, require_no_run, require_own_parts, written_steps
from train.engine.stored_config import digest_of, load_config, program_of

if TYPE_CHECKING:
    from train.engine.task import Program


class RunFolder:
    """The folder of a run, which may come from somebody else.

    Args:
        path: path of the folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def name(self) -> str:
        """Name of the program that made the run.

        Raises:
            ValueError: the folder has no config.
        """
        return program_of(self.path)

    @cached_property
    def program(self) -> "Program":
        """The program that made the run.

        Raises:
            ValueError: the folder has no config, or one of an unknown program.
        """
        return program(self.name)

    @cached_property
    def config(self) -> RunConfig:
        """Settings of the run.

        Raises:
            ValueError: there are none, or those of another version, or they were changed by hand.
        """
        return load_config(self.program.config, self.path)

    @property
    def digest(self) -> str:
        """Digest of the settings; empty where there are none, and in runs of 0.2.0."""
        return digest_of(self.path)

    @property
    def checkpoints(self) -> list[int]:
        """Steps that have a checkpoint, newest first."""
        return written_steps(self.path)

    def results(self, name: str = "results*.json") -> list[Path]:
        """Return the files of evaluations whose names match a pattern: that without an extension first."""
        return sorted(self.path.glob(name), key=lambda path: path.stem)

    def claim(self, *, resume: bool, overwrite: bool) -> None:
        """Make and lock the folder, and delete the run in it unless that is resumed.

        Raises:
            ValueError: another run is writing to it, a part of it is a link, it has a run that may be neither resumed
                nor overwritten, or files of somebody else under the names of a run's.
        """
        require_own_parts(self.path)
        if not resume:
            require_no_run(self.path, overwrite)
        lock_folder(self.path)
        if not resume and require_no_run(self.path, overwrite):
            delete_run(self.path)
