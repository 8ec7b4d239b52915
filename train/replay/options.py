"""The command line of `train.replay`."""

from pathlib import Path

from train.engine.command_line import Parser
from train.engine.help import About


def parser(docstring: str = "") -> Parser:
    """Return the parser of the command line; `docstring` is that of the program, for `--help`."""
    parser = Parser("python -m train.replay", About(docstring))
    parser.add_argument(
        "folder", type=Path, metavar="RUN_DIR/offending-STEP", help="folder of the step that halted a run"
    )
    parser.add_argument("--data", default="", metavar="str", help="data of the run, needed where it is in files")
    parser.add_argument("--model", default="", metavar="str", help="model of a run of train.tune")
    parser.add_argument("--pe", default="", metavar="str", help="encoding of the run, needed where it is in a module")
    return parser
