"""The config of a run: options of the command line over those of a preset, of the run `--init`, or of a resumed run."""

import dataclasses
from collections.abc import Collection, Sequence
from pathlib import Path

from train.engine.command_line import read_options
from train.engine.config import RunConfig, require_choice, run_folder
from train.engine.options import names_of
from train.engine.outside import as_options, import_encodings, missing_files, own_encodings, own_specs
from train.engine.run_files import written_steps
from train.engine.stored_config import FILE, Kind, load_config


def parse(kind: type[Kind], argv: Sequence[str] | None = None, docstring: str = "") -> Kind:
    """Read the command line: options override the preset, the run `--init`, or the run that is resumed.

    Args:
        kind: the config of the program.
        argv: the options; those of the process when None.
        docstring: docstring of the program, for `--help`.

    Raises:
        SystemExit: status 2, after a one-line message that names the option and the rule.
        ValueError: an option whose value breaks a rule, or a file or a module that only a run folder names.
    """
    first = read_options(kind(), argv, docstring)
    require_choice(first, "preset", *kind.presets)
    base = dataclasses.replace(kind(), preset=first.preset, **kind.presets[first.preset])
    data, folder = (first.data, base.data), Path(first.init)
    if first.init:
        before = load_config(kind, folder)
        _require_own(before, first, folder)
        base = dataclasses.replace(base, **{name: getattr(before, name) for name in names_of(kind, "shape", "copied")})
    config = read_options(base, argv)
    if config.resume:
        own = ("out", "resume", "overwrite", "stop_at", "hosts", "programs")
        settings = {name: getattr(config, name) for name in own}
        if (run_folder(config) / FILE).exists():
            folder = run_folder(config)
            stored = load_config(kind, folder)
            config = read_options(dataclasses.replace(stored, **settings), argv)
            before = getattr(stored, kind.budget)
            if before != getattr(config, kind.budget):
                require_more(stored, config)
                config = dataclasses.replace(config, restarts=(*stored.restarts, before))
            _require_own(config, first, folder)
        elif first == dataclasses.replace(kind(), **settings):  # nothing says what to train: a mistyped folder
            raise ValueError(f"resume needs a run, got none in {run_folder(config)}: leave it out to begin one")
    _require_files(config, first, data, folder)
    import_encodings(own_encodings(config))
    return config.validated()


def require_more(stored: RunConfig, config: RunConfig) -> None:
    """Check that a run that has trained is given more than it was trained with, as far as its settings say.

    Raises:
        ValueError: it is given less.
    """
    name = config.budget
    former_budget, budget = getattr(stored, name), getattr(config, name)
    if 0 < budget < former_budget and written_steps(run_folder(config)):
        raise ValueError(
            f"{name} must be more than the run was trained with, {former_budget:,} {name}, got {name}={budget}"
        )


def _require_own(config: RunConfig, first: RunConfig, folder: Path) -> None:
    """Check that the command line itself names the encodings of a run that are in modules."""
    modules = {*own_encodings(config)} - {*own_encodings(first)}
    if modules:
        rule = "the command must name an encoding in a module itself, since importing runs it"
        raise ValueError(
            f"{rule}: {folder} was trained with {', '.join(sorted(modules))}; add {as_options(own_specs(config))}"
        )


def _require_files(config: RunConfig, first: RunConfig, data: Collection[str], folder: Path) -> None:
    """Check that the command line itself names the files, models and runs outside of a run folder that it names.

    Args:
        config: settings, in part from the run folder.
        first: what the command line alone says.
        data: what it says of the data, by itself and by its preset.
        folder: the run that is resumed, or else the one that training starts from.
    """
    references = missing_files(config, data, getattr(first, "model", ""))
    if config.init != first.init and not written_steps(folder):  # a run with a checkpoint goes on from that
        references["init"] = config.init
    if references:
        raise ValueError(
            f"{folder} was trained on {' and '.join(references.values())}; to read it, add {as_options(references)}"
        )
