"""The command line of `train.export`."""

from train.engine.command_line import Parser
from train.engine.help import About
from train.engine.options import option, options


@options
class ExportOptions:
    """Write the model of a run as a folder that transformers loads."""

    model: str = option(text="run folder of train.lm or train.vit")
    out: str = option(text="folder to write, which must not exist yet or be empty")
    data: str = option("", "data of a run on files, as --data gave them: its tokenizer or its classes are theirs")
    dtype: str = option("float32", "type of the weights in the file", choices=("float32", "bfloat16", "float16"))


def parser(docstring: str = "") -> Parser:
    """Return the parser of the command line; `docstring` is that of the program, for `--help`."""
    parser = Parser("python -m train.export", About(docstring))
    parser.add_arguments(ExportOptions, dest="options")
    return parser
