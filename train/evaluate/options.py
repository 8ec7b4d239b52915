"""The command line of `train.evaluate`."""

from pathlib import Path

from train.engine.command_line import Parser
from train.engine.help import About
from train.engine.options import option, options


@options
class EvaluateOptions:
    """Evaluate a run again, or compare runs."""

    extend: str = option(
        "", "context extension beyond the trained length or size, such as none or pi; empty = that of the run"
    )
    eval_sizes: tuple[int, ...] = option((), "image sides in pixels (vit); empty = those of the run")
    eval_shapes: str = option(
        "", 'sizes to sample at, "28,42,28x56" in pixels, videos "16x28x28" (dit); empty = those of the run'
    )
    eval_lengths: tuple[int, ...] = option((), "lengths in tokens (lm, seq2seq); empty = those of the run")
    eval_limit: int = option(
        -1, "number of test examples (lm: windows); 0 = all, -1 = as in the run's own evaluation", at_least=-1
    )
    data: str = option("", "data of the run, needed where it is in files: a run folder alone makes no file be opened")
    model: str = option("", "model of a run of train.tune, needed for the same reason")
    pe: str = option("", "encoding of the run, needed where it is in a module of your own, for the same reason")
    to: str = option("", "with --compare: the files to write, without .md and .png; empty = comparison")


def parser(docstring: str = "") -> Parser:
    """Return the parser of the command line; `docstring` is that of the program, for `--help`."""
    parser = Parser("python -m train.evaluate", About(docstring))
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_DIR", help="run folders")
    parser.add_argument(
        "--compare", action="store_true", help="write one table and one figure of the existing results of the runs"
    )
    parser.add_arguments(EvaluateOptions, dest="options")
    return parser
