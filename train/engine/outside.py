"""Files and modules outside of a run folder that it names: they are read only if the command line names them, too.

A run folder may come from somebody else: its config.json may name any file of the user's, and an encoding in any
module, `--pe="my_module:mine(option=1)"`, whose import runs it.
"""

import ast
import hashlib
import importlib
import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from pejax import ENCODINGS, Encoding, register_encoding
from pejax._naming.parse import expression, outside_names
from pejax._naming.register import try_encoding
from train.engine.config import RunConfig, run_folder, specs_of
from train.engine.run_files import written_steps

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
    texts = [
        node.value for node in ast.walk(word.value) if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return [text for text in texts if word.arg != "tokenizer" or not re.fullmatch(TOKENIZERS, text)]


def own_specs(config: RunConfig) -> dict[str, str]:
    """Return, by field, the encodings of a config that are in modules of the user's."""
    return {name: spec for name, spec in specs_of(config).items() if outside_names(spec)}


def own_encodings(config: RunConfig) -> tuple[str, ...]:
    """Return the places of the encodings of a run that are in modules of the user's, `my_module:mine`."""
    return outside_names(", ".join(own_specs(config).values()))


def import_encodings(names: Iterable[str]) -> None:
    """Import the factories of encodings from the working directory or the environment, and register them.

    Their records are tried later, by `require_working`: JAX may not be used before processes have joined.

    Raises:
        ValueError: there is no such module or function, its import fails, or the function is no such factory.
        TypeError: it is no function.
    """
    for name in names:
        register_encoding(name, _imported(*name.split(":")), dims=(), replace=True)


def _imported(module: str, function: str) -> Callable[..., Encoding]:
    folder = os.getcwd()
    if sys.path[:1] not in ([""], [folder]):
        sys.path.insert(0, folder)
    try:
        contents = importlib.import_module(module)
    except (Exception, SystemExit) as broken:  # whatever a module does
        if isinstance(broken, ModuleNotFoundError) and f"{module}.".startswith(f"{broken.name}."):
            hint = f"; did you mean {module[:-3]}:{function}?" if module.endswith(".py") else ""
            raise ValueError(f"pe: there is no module {module!r} in {folder} or in the environment{hint}") from None
        at = traceback.extract_tb(broken.__traceback__)[-1]
        where = "" if isinstance(broken, SyntaxError) else f" ({at.filename}, line {at.lineno})"
        raise ValueError(f"pe: the module {module!r} fails: {type(broken).__name__}: {broken}{where}") from broken
    if not hasattr(contents, function):
        raise ValueError(f"pe: the module {module!r} has no {function!r}")
    return getattr(contents, function)


def require_working(config: RunConfig) -> None:
    """Check the records of imported encodings on small dims, as far as they accept such.

    Raises:
        ValueError, TypeError: raised by `pejax.register_encoding`.
    """
    for name in own_encodings(config):
        try_encoding(ENCODINGS[name])


def encodings_digests(config: RunConfig) -> dict[str, str]:
    """Return the sha256 of the file of each imported module of encodings, empty for one without a file."""
    modules = dict.fromkeys(name.partition(":")[0] for name in own_encodings(config))
    files = {name: getattr(sys.modules[name], "__file__", None) for name in modules}
    return {name: hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else "" for name, file in files.items()}


def missing_files(config: RunConfig, data: Collection[str], model: str = "") -> dict[str, str]:
    """Return, by option, the data and the model of a run that are in files, where the command line does not name them.

    Args:
        config: settings of the run.
        data: the data that the command line names.
        model: the model that it names.
    """
    needed = {"data": config.data} if named_paths(config.data) and config.data not in data else {}
    of_run = getattr(config, "model", "")
    return {**needed, "model": of_run} if of_run and of_run != model else needed


def missing_options(config: RunConfig, data: Collection[str], model: str = "", pe: str = "") -> str:
    """Return the options that the command line lacks so that a run may be read; empty if it lacks none.

    Args:
        config: settings of the run.
        data: the data that the command line names.
        model: the model that it names.
        pe: the encodings that it names.
    """
    needed = missing_files(config, data, model)
    encodings = own_encodings(config)
    if not {*encodings} <= {*outside_names(pe)}:
        needed["pe"] = config.pe if outside_names(config.pe) == encodings else ",".join(encodings)
    return as_options(needed)


def as_options(values: Mapping[str, str]) -> str:
    """Return options as they are written in a shell."""
    return " ".join(f"--{name}={shlex.quote(value)}" for name, value in values.items())


def command(config: RunConfig) -> str:
    """Return the command that resumes this run, with the files and modules that it must name itself."""
    named = {"out": f"{run_folder(config)}", **missing_files(config, ()), **own_specs(config)}
    unsaved = {"init": config.init} if config.init and not written_steps(run_folder(config)) else {}
    hosts = {"hosts": config.hosts} if config.hosts else {}
    return f"python -m train.{config.program} --resume {as_options({**named, **unsaved, **hosts})}"


def require_named(config: RunConfig, folder: Path, data: str = "", model: str = "", pe: str = "") -> None:
    """Check that the command line names the files and modules outside of a run folder that reading the run opens.

    Encodings in modules are imported.

    Args:
        config: settings of the run.
        folder: run folder.
        data: what `--data` gives; empty = nothing.
        model: what `--model` gives; empty = nothing.
        pe: what `--pe` gives; empty = nothing.

    Raises:
        ValueError: naming the option to add; or a given one differs from the run; or raised by `import_encodings`.
    """
    encodings = own_encodings(config)
    if pe and pe not in (*specs_of(config).values(), ",".join(encodings)):
        raise ValueError(f"pe must be that of the run {folder}, {config.pe!r}, got {pe!r}")
    for name, value in (("data", data), ("model", model)):
        if value and value != getattr(config, name, ""):
            raise ValueError(f"{name} must be that of the run {folder}, {getattr(config, name, '')!r}, got {value!r}")
    options = missing_options(config, (data,), model, pe)
    if options:
        files = [getattr(config, "model", ""), config.data if named_paths(config.data) else ""]
        named = " and ".join(filter(None, (*files, *encodings)))
        raise ValueError(f"{folder} was trained {'on' if any(files) else 'with'} {named}; to read it, add {options}")
    import_encodings(encodings)
