"""Command lines: a parser with one-line error messages, and what is refused before JAX is imported.

Importing the library and a trainer takes seconds. The options, their types and rules, presets and the names of
encodings and extensions are known without it.
"""

import argparse
import ast
import dataclasses
import difflib
import functools
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import simple_parsing

from train.data.path_check import require_no_path
from train.engine.config import RunConfig, require_choice, specs_of
from train.engine.help import About, HelpFormatter, sections
from train.engine.options import facts_of, require_rules

LIBRARY = Path(__file__).parents[2] / "pejax"
"""Folder of the sources of the library."""

CUTOFF = 0.75
"""Similarity of `difflib` from which on a name is taken for a mistyped one: below, it is another word."""

SYNONYMS = {
    "pe": "encoding encodings positional_encoding position_encoding pos_encoding pos_enc "
    "pos_embed position_embedding rope",
    "lr": "learning_rate",
    "weight_decay": "wd",
    "clip": "grad_clip max_grad_norm gradient_clip",
    "accumulate": "gradient_accumulation_steps grad_accum accum",
    "warmup": "warmup_steps warmup_epochs warmup_ratio",
    "batch": "batch_size bs per_device_train_batch_size",
    "epochs": "epoch num_epochs n_epochs num_train_epochs steps max_steps num_steps",
    "steps": "step max_steps num_steps n_steps iterations iters max_iters epochs epoch num_epochs",
    "length": "seq_len seq_length sequence_length max_length max_len context context_length block_size",
    "size": "image_size img_size resolution input_size",
    "patch": "patch_size",
    "width": "hidden_size d_model embed_dim dim n_embd model_dim",
    "layers": "depth num_layers n_layers n_layer",
    "heads": "num_heads n_heads n_head",
    "data": "dataset data_path data_dir train_file",
    "out": "output output_dir save_dir logdir log_dir run_dir",
    "resume": "resume_from resume_from_checkpoint continue",
    "init": "checkpoint ckpt pretrained finetune",
    "extend": "extension extensions rope_scaling",
    "dtype": "precision fp16 bf16 amp mixed_precision",
    "devices": "gpus num_gpus n_gpus ngpu num_devices",
    "seeds": "num_seeds n_seeds",
    "model": "model_path model_name model_name_or_path",
    "max_tokens": "max_new_tokens max_length num_tokens",
    "log_every": "logging_steps log_interval",
    "checkpoint_every": "save_steps save_every checkpoint_interval",
    "eval_sizes": "eval_size test_sizes sizes",
    "eval_lengths": "eval_length lengths",
}
"""Words that other programs have for an option, by its name."""


class Parser(simple_parsing.ArgumentParser):
    """A parser that reports every error in one line, `error: ...`, and exits with status 2.

    Options that take several integers take them with commas, too: `--eval_sizes 16 28` and `--eval_sizes=16,28`.

    Args:
        prog: the command, `python -m train.vit`.
        about: what `--help` says beside the options.
        passed_on: names of options that are passed on to another parser.
    """

    def __init__(self, prog: str, about: About, passed_on: Collection[str] = ()) -> None:
        super().__init__(prog=prog, usage="%(prog)s [options]", allow_abbrev=False, formatter_class=HelpFormatter)
        self._about = about
        self._passed_on = [f"--{name}" for name in passed_on]
        self._words: list[str] = []

    def format_help(self) -> str:
        """Return the text of `--help`: purpose, examples, and the options in sections."""
        text = self._get_formatter()
        text.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        text.add_text(self._about.sentence)
        text.add_text("\n  ".join(["examples:", *self._about.examples]))
        for title, actions in sections(self._actions, self._about).items():
            text.start_section(title)
            text.add_arguments(actions)
            text.end_section()
        text.add_text(self._about.paragraphs)
        return text.format_help()

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        if action.option_strings and action.nargs in ("*", "+") and action.type is not str:
            words = (word.split(",") if re.fullmatch(r"\d+(,\d+)+", word) else [word] for word in arg_strings)
            arg_strings = [part for parts in words for part in parts]
        return super()._get_values(action, arg_strings)

    def refuse_mistyped(self) -> None:
        """End with status 2 if the command line of this process breaks a rule that is known without heavy imports."""
        if not asks_for_help(sys.argv[1:]):  # its text is that of the program
            values = vars(self.parse_args()).values()
            refuse_broken_rules(*(value for value in values if dataclasses.is_dataclass(value)))

    def parse_known_args(self, args: Any = None, namespace: Any = None, **options: Any) -> Any:
        """Parse as argparse does; the words are kept for `error`."""
        self._words = [*(sys.argv[1:] if args is None else args)]
        return super().parse_known_args(args, namespace, **options)

    def error(self, message: str) -> NoReturn:
        """Print the error, with the closest option for an unknown one, and exit."""
        names = [*self._passed_on, *(option for action in self._actions for option in action.option_strings)]
        unknown = re.match(r"unrecognized arguments: (--\w[\w-]*)", message)
        if unknown:
            message = unknown_option(unknown[1], names)
        elif message.startswith("the following arguments are required"):  # one of them may be mistyped
            words = [word.partition("=")[0] for word in self._words if word.startswith("--")]
            message = next((unknown_option(word, names) for word in words if word not in names), message)
        refuse(message)


def unknown_option(option: str, names: Collection[str]) -> str:
    """Return the message for an option that is not among the names, with the one that it stands for or is close to."""
    word = option.removeprefix("--").replace("-", "_").lower()
    synonyms = [f"--{name}" for name, words in SYNONYMS.items() if word in words.split() and f"--{name}" in names]
    guesses = synonyms or difflib.get_close_matches(f"--{word}", names, n=1, cutoff=CUTOFF)
    return f"unknown option {option}; " + (f"did you mean {guesses[0]}?" if guesses else "see --help")


Kind = TypeVar("Kind", bound=RunConfig)


def read_options(default: Kind, argv: Sequence[str] | None = None, docstring: str = "") -> Kind:
    """Return the settings that a command line gives a trainer, over those of `default`.

    Raises:
        SystemExit: status 2, after a one-line message that names the option.
    """
    groups = {name: facts.get("group", "") for name, facts in facts_of(default).items()}
    parser = Parser(f"python -m train.{default.program}", About(docstring, default.first, groups))
    parser.add_arguments(type(default), dest="config", default=default)
    return dataclasses.replace(parser.parse_args(argv).config, **recorded_settings(default))


def recorded_settings(config: RunConfig) -> dict[str, Any]:
    """Return the settings that are no options."""
    return {name: getattr(config, name) for name, facts in facts_of(config).items() if facts.get("recorded")}


def refuse_mistyped(kind: type[RunConfig], argv: Sequence[str] | None = None) -> None:
    """End with status 2 if the command line of a trainer breaks a rule that is known without its imports."""
    argv = sys.argv[1:] if argv is None else argv
    if asks_for_help(argv):  # its text is that of the program
        return
    config = read_options(kind(), argv)
    refuse_broken_rules(config)
    try:
        require_choice(config, "preset", *kind.presets)
        for name, spec in specs_of(config).items():
            require_names(spec, name, "encoding")
        require_names(config.extend, "extend", "extension", "none")
        if kind.readers and not {":", "("} & {*config.data}:
            require_no_path(config.data, kind.readers)
    except ValueError as wrong:
        refuse(f"{wrong}")


def asks_for_help(argv: Sequence[str]) -> bool:
    """Return whether a command line asks for the text of `--help`."""
    return not {"-h", "--help"}.isdisjoint(argv)


def refuse_broken_rules(*records: Any) -> None:
    """End with status 2 if an option breaks a rule that it declares."""
    try:
        for record in records:
            require_rules(record)
    except ValueError as wrong:
        refuse(f"{wrong}")


def refuse(message: str) -> NoReturn:
    """Print an error in one line and end with status 2."""
    if not message.isprintable():
        from pejax._process.text import printable  # brings in JAX

        message = printable(message)
    sys.stderr.write(f"error: {message}\n")
    raise SystemExit(2)


def require_names(spec: str, option: str, kind: str, *extras: str) -> None:
    """Check the names of encodings or extensions in a spec or a list of specs, as far as it is a Python expression.

    Args:
        spec: the spec.
        option: the option that gives it.
        kind: "encoding" or "extension".
        *extras: names beside those of the library.

    Raises:
        ValueError: naming the option, the name and those that there are.
    """
    file = re.fullmatch(r"([\w./-]+)\.py:(\w+.*)", spec)
    if file:
        module = f"{file[1].removeprefix('./').replace('/', '.')}:{file[2]}"
        raise ValueError(f"{option} names an encoding of your own by its module, --{option}={module}, got {spec!r}")
    try:
        tree = ast.parse(spec.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # left to the library, whose reader says where
        return
    names = library_names(f"{kind}s")
    for name in _names(tree):
        if name not in (*names, *extras):
            guesses = difflib.get_close_matches(name, names, n=1)
            guess = f"; did you mean {guesses[0]!r}?" if guesses else "."
            raise ValueError(f"unknown {kind} {name!r}{guess} Known: {', '.join(names)}")


def _names(tree: ast.AST) -> Iterator[str]:
    """Yield the names in an expression, without those in arguments."""
    if isinstance(tree, ast.Name):
        yield tree.id
    elif isinstance(tree, ast.Call):
        yield from _names(tree.func)
    elif isinstance(tree, ast.BinOp | ast.Tuple):
        for part in ast.iter_child_nodes(tree):
            yield from _names(part)


@functools.cache
def library_names(module: str) -> tuple[str, ...]:
    """Return the names of the encodings or extensions of the library, read from the source of its module.

    Without `extension`, which takes a function: a string cannot name it.
    """
    for node in ast.parse((LIBRARY / f"{module}.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return tuple(name for name in ast.literal_eval(node.value) if name.islower() and name != "extension")
    raise AssertionError(f"pejax.{module} has no __all__")
