"""The command line of `train.compare`: its options, and what is refused before JAX is imported."""

import sys

from train.engine.command_line import (
    Parser,
    asks_for_help,
    refuse,
    refuse_broken_rules,
    require_names,
)
from train.engine.command_line import (
    refuse_mistyped as refuse_trainers,
)
from train.engine.config import split_list
from train.engine.help import About
from train.engine.options import option, options
from train.engine.programs import TRAINERS, config_of

PRESETS = {"quick": {"pe": "learned,none,rope_mixed,alibi", "seeds": 1}}
"""Presets of a comparison; others are those of the trainer."""


@options
class CompareOptions:
    """Train every encoding with the same budget, data order and seeds, and print one table.

    All other options are those of the trainer, the same for every run: --epochs=2, --data=glyphs, --preset=table.
    """

    pe: str = option(
        "all", 'encodings, separated by commas: "rope,alibi(slope_scale=2),my_module:mine"; all = every one'
    )
    seeds: int = option(3, "runs per encoding, with seeds 0, 1, 2, ...", at_least=1)
    extend: str = option("none", 'extensions to evaluate with, separated by commas: "none,pi"')
    validation: float = option(
        -1.0, "fraction of the training data to choose candidates by; -1 = 0.1 with --sweep, else 0"
    )
    jobs: int = option(1, "runs at a time, each on one device; 1 = one run on all devices", at_least=1)
    out: str = option("", "folder of the comparison; empty = runs/compare-TASK")


def parser(default: CompareOptions, docstring: str = "") -> Parser:
    """Return the parser of the command line; `docstring` is that of the program, for `--help`."""
    parser = Parser("python -m train.compare", About(docstring))
    parser.add_argument("--task", default="vit", help=f"the trainer: {', '.join(TRAINERS)}", metavar="str")
    parser.add_argument("--preset", default="", help="quick: learned, none, rope_mixed, alibi, one seed", metavar="str")
    parser.add_argument(
        "--sweep", action="append", default=[], metavar="str",
        help='settings to choose from, "alibi(slope_scale=1|2|4)" or "lr=1e-3|2e-3"; may be given several times',
    )  # fmt: skip
    parser.add_arguments(CompareOptions, dest="options", default=default)
    return parser


def refuse_mistyped() -> None:
    """End with status 2 if the command line of this process breaks a rule that is known without heavy imports."""
    if asks_for_help(sys.argv[1:]):
        return
    arguments, trainer_argv = parser(CompareOptions()).parse_known_args()
    refuse_broken_rules(arguments.options)
    if arguments.task not in TRAINERS:
        refuse(f"task must be one of {', '.join(TRAINERS)}, got {arguments.task!r}")
    preset = [f"--preset={arguments.preset}"] if arguments.preset and arguments.preset not in PRESETS else []
    refuse_trainers(config_of(arguments.task), [*preset, *trainer_argv])
    try:
        for spec in () if arguments.options.pe == "all" else split_list(arguments.options.pe, "pe"):
            require_names(spec, "pe", "encoding")
        require_names(arguments.options.extend, "extend", "extension", "none")
    except ValueError as wrong:
        refuse(f"{wrong}")
