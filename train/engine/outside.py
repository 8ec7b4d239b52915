"""Files outside of a run folder that it names: they are opened only if the command line names them, too.

A run folder may come from somebody else, and its config.json may name any file of the user's.
"""

import ast
import re
import shlex
from collections.abc import Collection
from pathlib import Path

from pejax._parse import expression
from train.engine.config import RunConfig

NO_PATHS = ("key", "on_error", "separator", "test")
"""Arguments of data whose texts name no file."""

TOKENIZERS = r"bytes|bpe\(.*\)"
"""Tokenizers that are no file."""


def named_paths(data: str) -> tuple[str, ...]:
    """Return the files, folders and prepared data that the spec of data names; none if they are embedded.

    A text that is not known to be something else counts as a path: nothing is opened by mistake.

    Examples:
        >>> named_paths("fashion(full=True)"), named_paths("copy,reverse")
        ((), ())
        >>> named_paths("jsonl:notes.jsonl"), named_paths("shakespeare(tokenizer='a.json')")
        (('notes.jsonl',), ('a.json',))
    """
    if re.fullmatch(r"\s*\w+(\s*,\s*\w+)*\s*", data):  # names without arguments; of tasks, several
        return ()
    name, colon, value = data.partition(":")
    if colon and name.isidentifier():
        return (value,)
    try:
        call = expression(data, "data")
    except ValueError:
        return (data,)
    if not isinstance(call, ast.Call) or call.args:
        return (data,)
    return tuple(path for word in call.keywords for path in _paths(word))


def _paths(word: ast.keyword) -> list[str]:
    """Return the paths that one argument of a spec names."""
    if word.arg in NO_PATHS:
        return []
    texts = [one.value for one in ast.walk(word.value) if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    return [text for text in texts if word.arg != "tokenizer" or not re.fullmatch(TOKENIZERS, text)]


def missing_options(config: RunConfig, data: Collection[str], model: str = "") -> str:
    """Return the options that the command line lacks so that a run may be read; empty if it lacks none.

    Args:
        config: settings of the run.
        data: the data that the command line names.
        model: the model that it names.
    """
    needed = {"data": config.data} if named_paths(config.data) and config.data not in data else {}
    of_run = getattr(config, "model", "")
    if of_run and of_run != model:
        needed["model"] = of_run
    return " ".join(f"--{name}={shlex.quote(value)}" for name, value in needed.items())


def require_named(config: RunConfig, folder: Path, data: str = "", model: str = "") -> None:
    """Check that the command line names the files outside of a run folder that reading the run opens.

    Args:
        config: settings of the run.
        folder: run folder.
        data: what `--data` gives; empty = nothing.
        model: what `--model` gives; empty = nothing.

    Raises:
        ValueError: naming the option to add; or a given one differs from the run.
    """
    for name, given in (("data", data), ("model", model)):
        if given and given != getattr(config, name, ""):
            raise ValueError(f"{name} must be that of the run {folder}, {getattr(config, name, '')!r}, got {given!r}")
    missing = missing_options(config, (data,), model)
    if missing:
        named = " and ".join(filter(None, (getattr(config, "model", ""), config.data)))
        raise ValueError(f"{folder} was trained on {named}; to read it, add {missing}")
