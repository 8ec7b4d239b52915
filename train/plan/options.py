"""The command line of `train.plan`: its options, and what is refused before JAX is imported."""

import sys

from train.engine.command_line import Parser, asks_for_help, refuse_broken_rules
from train.engine.command_line import refuse_mistyped as refuse_trainers
from train.engine.help import About
from train.engine.options import facts_of, option, options
from train.engine.programs import TRAINERS, config_of


@options
class PlanOptions:
    """Report whether a training step fits on a machine, and a lower bound on its time."""

    topology: str = option(
        text="a TPU slice, v5p:8x8x8 (v5e, v5p, v6e, tpu7x), or GPUs, h100:64 (a100, h100, h200, b200)"
    )
    vocab: int = option(32000, "vocabulary size of train.lm", at_least=1)
    channels: int = option(3, "image channels of train.vit and train.dit", at_least=1)
    classes: int = option(1000, "number of classes of train.vit and train.dit", at_least=1)
    scale: bool = option(False, "estimate weak scaling instead: the same work per chip on 64 to 4,096 chips")


def parser(docstring: str = "") -> Parser:
    """Return the parser of the command line; `docstring` is that of the program, for `--help`."""
    passed_on = {name for trainer in TRAINERS for name in facts_of(config_of(trainer))}
    parser = Parser("python -m train.plan", About(docstring), passed_on)
    parser.add_argument("program", choices=TRAINERS, help="the program whose training step is planned")
    parser.add_arguments(PlanOptions, dest="options")
    return parser


def refuse_mistyped() -> None:
    """End with status 2 if the command line of this process breaks a rule that is known without heavy imports."""
    if not asks_for_help(sys.argv[1:]):
        arguments, trainer_arguments = parser().parse_known_args()
        refuse_broken_rules(arguments.options)
        refuse_trainers(config_of(arguments.program), trainer_arguments)
