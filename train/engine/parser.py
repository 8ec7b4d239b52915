"""Command lines: a parser with one-line error messages, the config of a run, and lists of specs."""

import argparse
import dataclasses
import re
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NoReturn

import simple_parsing

from pejax._text import printable
from train.engine.config import RunConfig, own_specs, require_choice, run_folder
from train.engine.help import About, HelpFormatter, sections
from train.engine.option_names import unknown_option
from train.engine.outside import as_options, import_encodings, missing_files, own_encodings
from train.engine.run_files import written_steps
from train.engine.stored_config import FILE, Kind, load_config


class Parser(simple_parsing.ArgumentParser):
    """A parser that reports every error in one line, `error: ...`, and exits with status 2.

    Options that take several integers take them with commas, too: `--eval_sizes 16 28` and `--eval_sizes=16,28`.

    Args:
        prog: the command, `python -m train.vit`.
        about: what `--help` says beside the options.
    """

    def __init__(self, prog: str, about: About) -> None:
        super().__init__(prog=prog, usage="%(prog)s [options]", allow_abbrev=False, formatter_class=HelpFormatter)
        self._about = about

    def format_help(self) -> str:
        """Return the text of `--help`: purpose, examples, and the options in sections."""
        text = self._get_formatter()
        text.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        text.add_text(self._about.sentence)
        text.add_text("\n  ".join(["examples:", *self._about.examples]))
        for title, actions in sections(self._actions, self._about.first).items():
            text.start_section(title)
            text.add_arguments(actions)
            text.end_section()
        text.add_text(self._about.paragraphs)
        return text.format_help()

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        if action.option_strings and action.nargs in ("*", "+") and action.type is not str:
            joined = [one.split(",") if re.fullmatch(r"\d+(,\d+)+", one) else [one] for one in arg_strings]
            arg_strings = [part for parts in joined for part in parts]
        return super()._get_values(action, arg_strings)

    def error(self, message: str) -> NoReturn:
        """Print the error, with the closest option for an unknown one, and exit."""
        unknown = re.match(r"unrecognized arguments: (--\w+)", message)
        if unknown:
            known = [option for action in self._actions for option in action.option_strings]
            message = unknown_option(unknown[1], known)
        sys.stderr.write(f"error: {printable(message)}\n")
        raise SystemExit(2)


def parse(kind: type[Kind], argv: Sequence[str] | None = None, docstring: str = "") -> Kind:
    """Read the command line: options override the preset, the run `--init`, or the run that is resumed.

    Args:
        kind: the config of the program.
        argv: the options; those of the process when None.
        docstring: of the program, for `--help`.

    Raises:
        SystemExit: status 2, after a one-line message that names the option and the rule.
        ValueError: an option whose value breaks a rule, or a file or a module that only a run folder names.
    """
    first = _parse(argv, kind(), docstring)
    require_choice(first, "preset", *kind.presets)
    base = dataclasses.replace(kind(), preset=first.preset, **kind.presets[first.preset])
    named, folder = (first.data, base.data), Path(first.init)
    if first.init:
        before = load_config(kind, folder)
        _require_own(before, first, folder)
        base = dataclasses.replace(
            base, **{name: getattr(before, name) for name in (*kind.model_fields, *kind.inherited)}
        )
    config = _parse(argv, base)
    if config.resume:
        kept = {name: getattr(config, name) for name in ("out", "resume", "overwrite", "stop_at", "hosts")}
        if (run_folder(config) / FILE).exists():
            folder = run_folder(config)
            stored = load_config(kind, folder)
            config = _parse(argv, dataclasses.replace(stored, **kept))
            before = getattr(stored, kind.budget)
            if before != getattr(config, kind.budget):
                config = dataclasses.replace(config, restarts=(*stored.restarts, before))
            _require_own(config, first, folder)
        elif first == dataclasses.replace(kind(), **kept):  # nothing says what to train: a mistyped folder
            raise ValueError(f"resume needs a run, got none in {run_folder(config)}: leave it out to begin one")
    _require_files(config, first, named, folder)
    import_encodings(own_encodings(config))
    return config.validated()


def _require_own(config: RunConfig, first: RunConfig, folder: Path) -> None:
    """Check that the command line itself names the encodings of a run that are in modules.

    Raises:
        ValueError: naming the option to add.
    """
    missing = {*own_encodings(config)} - {*own_encodings(first)}
    if missing:
        rule = "the command must name an encoding in a module itself, since importing runs it"
        raise ValueError(
            f"{rule}: {folder} was trained with {', '.join(sorted(missing))}; add {as_options(own_specs(config))}"
        )


def _require_files(config: RunConfig, first: RunConfig, data: Collection[str], folder: Path) -> None:
    """Check that the command line itself names the files, models and runs outside of a run folder that it names.

    Args:
        config: settings, in part from the run folder.
        first: what the command line alone says.
        data: what it says of the data, by itself and by its preset.
        folder: the run that is resumed, or else the one that training starts from.

    Raises:
        ValueError: naming the options to add.
    """
    needed = missing_files(config, data, getattr(first, "model", ""))
    if config.init != first.init and not written_steps(folder):  # a run with a checkpoint goes on from that
        needed["init"] = config.init
    if needed:
        raise ValueError(
            f"{folder} was trained on {' and '.join(needed.values())}; to read it, add {as_options(needed)}"
        )


def _parse(argv: Sequence[str] | None, default: Kind, docstring: str = "") -> Kind:
    parser = Parser(f"python -m train.{default.program}", About(docstring, default.first))
    parser.add_arguments(type(default), dest="config", default=default)
    return dataclasses.replace(parser.parse_args(argv).config, restarts=default.restarts)  # no option
