"""The command line of `train.compare`, read into variants of encodings and a budget for all."""

import ast
import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pejax import ENCODINGS
from pejax._naming.parse import expression, outside_names
from pejax.specs import parse_pattern
from train.compare.command_line import PRESETS, CompareOptions, parser
from train.engine.config import RunConfig, split_list
from train.engine.options import require_rules
from train.engine.outside import import_encodings
from train.engine.parser import parse
from train.engine.programs import TRAINERS, program
from train.engine.task import Program

FIXED = ("seed", "out", "resume", "overwrite", "stop_at", "hosts", "extend", "validation", "pe", "preset")
"""Options of a trainer that the comparison sets itself, for every run."""

VALIDATION = 0.1
"""Default fraction of the training data by which candidates of a sweep are chosen."""


class Candidate(NamedTuple):
    """One setting of an encoding.

    Attributes:
        encoding: its name in the table, as `--pe` gives it.
        spec: what is trained, `alibi(slope_scale=2)`.
        options: further options of the trainer, `("--lr=0.001",)`.
    """

    encoding: str
    spec: str
    options: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The setting in words."""
        return " ".join((self.spec, *self.options))


class Comparison(NamedTuple):
    """Everything that is compared.

    Attributes:
        task: name of the trainer: vit, lm, seq2seq or dit.
        program: the trainer.
        argv: options of the trainer that all runs share.
        candidates: per encoding, its settings; one of them unless there is a sweep.
        seeds: seeds of the runs.
        extensions: extensions of the evaluations.
        validation: fraction of the training data by which the settings are chosen.
        jobs: runs at a time.
        folder: folder of the comparison.
    """

    task: str
    program: Program
    argv: tuple[str, ...]
    candidates: dict[str, tuple[Candidate, ...]]
    seeds: tuple[int, ...]
    extensions: tuple[str, ...]
    validation: float
    jobs: int
    folder: Path

    @property
    def sweeps(self) -> bool:
        """Whether an encoding has several settings to choose from."""
        return any(len(settings) > 1 for settings in self.candidates.values())

    def config(self, candidate: Candidate, seed: int, folder: Path, validation: float = 0.0) -> RunConfig:
        """Return the config of a run.

        Raises:
            SystemExit: status 2, after a message that names an unknown option.
            ValueError: an option whose value breaks a rule of the trainer.
        """
        return parse(self.program.config, self.command(candidate, seed, folder, validation))

    def command(self, candidate: Candidate, seed: int, folder: Path, validation: float = 0.0) -> list[str]:
        """Return the options of the trainer for a run, without `--resume`."""
        words = [f"--pe={candidate.spec}", f"--seed={seed}", f"--out={folder}", "--extend=none"]
        words += [f"--validation={validation}"] if validation else []
        words += ["--devices=1"] if self.jobs > 1 else []
        return [*self.argv, *candidate.options, *words]


def read(argv: Sequence[str] | None = None, docstring: str = "") -> Comparison:
    """Read the command line; `docstring` is that of the program, for `--help`.

    Raises:
        SystemExit: status 2, after a one-line message that names the option and the rule.
        ValueError: an option whose value breaks a rule.
    """
    first, trainer_argv = parser(CompareOptions(), docstring).parse_known_args(argv)
    defaults = PRESETS.get(first.preset)
    if defaults:
        first, trainer_argv = parser(dataclasses.replace(CompareOptions(), **defaults)).parse_known_args(argv)
    elif first.preset:
        trainer_argv = [f"--preset={first.preset}", *trainer_argv]
    return make_comparison(first.task, first.options, first.sweep, trainer_argv)


def make_comparison(task: str, options: CompareOptions, sweeps: Sequence[str], argv: Sequence[str]) -> Comparison:
    """Return the comparison that the options describe.

    Raises:
        ValueError: an option whose value breaks a rule, or files that the run `--init` names alone; it is named.
    """
    if task not in TRAINERS:
        raise ValueError(f"task must be one of {', '.join(TRAINERS)}, got {task!r}")
    require_rules(options)
    for word in argv:
        name = word.partition("=")[0].lstrip("-")
        if name in FIXED and name != "preset":
            raise ValueError(f"{name} is set by the comparison for every run (seeds and pe are its own), got {word!r}")
    encodings = tuple(ENCODINGS) if options.pe == "all" else split_list(options.pe, "pe")
    import_encodings(outside_names(", ".join(encodings)))
    for spec in encodings:
        parse_pattern(spec)
    candidates = {spec: expand_sweeps(spec, sweeps) for spec in encodings}
    require_encodings(sweeps, encodings)
    sweeping = any(len(settings) > 1 for settings in candidates.values())
    validation = (VALIDATION if sweeping else 0.0) if options.validation < 0 else options.validation
    if sweeping and not 0 < validation < 1:
        rule = "validation must be above 0 and below 1 with --sweep, since test data must not choose"
        raise ValueError(f"{rule}, got {validation}")
    if not sweeping and validation:
        raise ValueError(f"validation must be 0 without --sweep: there is nothing to choose, got {validation}")
    folder = Path(options.out or f"runs/compare-{task}")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"out must be a folder, got the file {folder}")
    comparison = Comparison(
        task, program(task), tuple(argv), candidates, tuple(range(options.seeds)), split_list(options.extend, "extend"),
        validation, options.jobs, folder,
    )  # fmt: skip
    for candidate in itertools.chain(*candidates.values()):
        comparison.config(candidate, 0, folder / "runs", validation)
    return comparison


def expand_sweeps(spec: str, sweeps: Sequence[str]) -> tuple[Candidate, ...]:
    """Return the settings of an encoding: every combination of the values in the sweeps that concern it."""
    specs, options = [spec], []
    for sweep in sweeps:
        name, _, values = sweep.partition("=")
        if _of_option(sweep):
            options.append([f"--{name.strip()}={value.strip()}" for value in values.split("|")])
        elif _parse_sweep(sweep)[0] == _name(spec):
            specs = _specs(sweep)
    return tuple(Candidate(spec, variant, choice) for variant in specs for choice in itertools.product(*options))


def require_encodings(sweeps: Sequence[str], encodings: Sequence[str]) -> None:
    """Check that every sweep concerns an encoding of the comparison.

    Raises:
        ValueError: naming the sweep.
    """
    names = [_name(spec) for spec in encodings]
    for sweep in sweeps:
        if not _of_option(sweep) and names.count(_parse_sweep(sweep)[0]) != 1:
            raise ValueError(f"sweep must name one encoding of pe ({', '.join(names)}), got {sweep!r}")


def _name(spec: str) -> str:
    """Return the name of an encoding without its arguments; a sum or a pattern is its own name."""
    names = [part.name for part in parse_pattern(spec).parts]
    return spec if len(names) > 1 else names[0]


def _of_option(sweep: str) -> bool:
    """Return whether a sweep is over an option of the trainer, `lr=1e-3|2e-3`."""
    name, equals, values = sweep.partition("=")
    return bool(name.strip().isidentifier() and equals and values)


def _parse_sweep(sweep: str) -> tuple[str, list[ast.keyword]]:
    """Return the name and the arguments of a sweep over arguments of an encoding."""
    try:
        call = expression(sweep, "a sweep")
    except ValueError:
        call = None
    if (
        not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name | ast.Attribute) and call.keywords)
        or call.args
    ):
        raise ValueError(f"sweep must be written name(key=A|B) or option=A|B, got {sweep!r}")
    return str(ast.get_source_segment(sweep.strip(), call.func)), call.keywords


def _specs(sweep: str) -> list[str]:
    """Return the specs that a sweep stands for: every combination of its alternatives."""
    name, keywords = _parse_sweep(sweep)
    choices = [[f"{word.arg}={alternative}" for alternative in _alternatives(word.value)] for word in keywords]
    return [f"{name}({', '.join(words)})" for words in itertools.product(*choices)]


def _alternatives(value: ast.expr) -> list[str]:
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr):
        return [*_alternatives(value.left), *_alternatives(value.right)]
    return [ast.unparse(value)]
