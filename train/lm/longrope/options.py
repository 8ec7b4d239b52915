"""The command line of `train.lm.longrope`."""

from pathlib import Path

from train.engine.command_line import Parser
from train.engine.help import About
from train.engine.options import option, options


@options
class SearchOptions:
    """Search the factors of LongRoPE for a trained run."""

    length: int = option(0, "length to extend to, tokens; 0 = eight times the trained length", at_least=0)
    windows: int = option(4, "number of held-out windows of that length for the loss", at_least=1)
    generations: int = option(15, "generations of the evolutionary search, after the first")
    population: int = option(32, "candidates that a generation keeps")
    children: int = option(16, "new candidates per generation: half mutations, half crossovers")
    chunk: int = option(4, "candidates that are evaluated at once")
    seed: int = option(0, "random seed of the search")
    data: str = option("", "data of the run, needed where it is in files")


def parser(docstring: str = "") -> Parser:
    """Return the parser of the command line; `docstring` is that of the program, for `--help`."""
    parser = Parser("python -m train.lm.longrope", About(docstring))
    parser.add_argument("run", type=Path, metavar="RUN_DIR", help="run folder of train.lm with --pe=rope")
    parser.add_arguments(SearchOptions, dest="options")
    return parser
