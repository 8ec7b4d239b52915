"""The trainers by name; a package is imported only when it is needed."""

import importlib
from typing import TYPE_CHECKING

from train.engine.config import RunConfig

if TYPE_CHECKING:
    from train.engine.task import Program

TRAINERS = ("vit", "lm", "seq2seq", "dit")
"""Programs that train models of any encoding."""

PROGRAMS = (*TRAINERS, "tune")
"""All of them: packages whose module `program` has a `PROGRAM`, and `config` its class of options."""


def program(name: str) -> "Program":
    """Return the program with this name.

    Raises:
        ValueError: there is no such program.
    """
    if name not in PROGRAMS:
        raise ValueError(f"the program of a run must be one of {', '.join(PROGRAMS)}, got {name!r}")
    return importlib.import_module(f"train.{name}.program").PROGRAM


def config_of(name: str) -> type[RunConfig]:
    """Return the class of the options of a program, without what the program itself imports."""
    return importlib.import_module(f"train.{name}.config").Config
