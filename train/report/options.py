"""The command line of `train.report`."""

from pathlib import Path

from train.engine.command_line import Parser
from train.engine.help import About


def parser(docstring: str = "") -> Parser:
    """Return the parser of the command line; `docstring` is that of the program, for `--help`."""
    parser = Parser("python -m train.report", About(docstring))
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="folders with runs, at any depth")
    parser.add_argument(
        "-o", "--out", default="report.html", metavar="str",
        help="the page, which ends in .html; report.md and report-NAME.png are written beside it",
    )  # fmt: skip
    parser.add_argument(
        "--no-probes", action="store_true",
        help="do not read checkpoints: no entropy per head, and no learned parameters before and after",
    )  # fmt: skip
    parser.add_argument(
        "--data", action="append", default=[], metavar="str",
        help="data of runs, needed where it is in files, to read what their weights tell; may be given several times",
    )  # fmt: skip
    return parser
