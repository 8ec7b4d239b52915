"""The settings of `train.embed`, checked."""

from collections.abc import Sequence

from train.engine.command_line import Parser
from train.engine.help import About
from train.engine.options import option, options, require_rules


@options
class EmbedOptions:
    """Write the vectors of the lines of a file.

    A stopped command goes on where it was: run the same command again. The result is written at the end.
    """

    model: str = option("", "folder of an embedding model: of sentence-transformers, or of a plain model")
    texts: str = option("", "file with one text per line, UTF-8")
    out: str = option("", "file of the vectors, .npy: one row per line, float32")
    prompt: str = option("", "name of the folder's prompt that is put before every text; empty = its default")
    prompt_text: str = option("", 'text that is put before every text, in place of a prompt of the folder: "query: "')
    max_length: int = option(0, "most tokens of a text that are read; 0 = as the folder says", at_least=0)
    truncate_dim: int = option(0, "channels of a vector that are written; 0 = as the folder says", at_least=0)
    extend: str = option("", "extension to texts longer than the model's own length, such as yarn(factor=4)")
    batch: int = option(64, "most texts that the model reads at once", at_least=1)
    dtype: str = option("float32", "float32 or bfloat16: type of the computation", choices=("float32", "bfloat16"))
    params: str = option(
        "float32", "type of the parameters in memory: float32, bfloat16, or file, as the file has them",
        choices=("float32", "bfloat16", "file"),
    )  # fmt: skip
    devices: int = option(0, "number of devices; 0 = all (on a CPU: as many cores as divide the batch)", at_least=0)
    mesh: str = option("", 'device mesh: "data=4,fsdp=2,tensor=1"; empty = all devices on data')


def parser(docstring: str = "") -> Parser:
    """Return the parser of the command line; `docstring` is that of the program, for `--help`."""
    parser = Parser("python -m train.embed", About(docstring))
    parser.add_arguments(EmbedOptions, dest="options")
    return parser


def read_options(argv: Sequence[str] | None = None, docstring: str = "") -> EmbedOptions:
    """Read the command line.

    Args:
        argv: the options; those of the process when None.
        docstring: of the program, for `--help`.

    Raises:
        SystemExit: status 2, after a one-line message about an option.
        ValueError: an option whose value breaks a rule.
    """
    options = parser(docstring).parse_args(argv).options
    for name, what in {"model": "a folder", "texts": "a file of lines", "out": "a file to write"}.items():
        if not getattr(options, name):
            raise ValueError(f"{name} must name {what}: --{name}=PATH")
    if not options.out.endswith(".npy"):
        raise ValueError(f"out must end in .npy, got {options.out!r}")
    if options.prompt and options.prompt_text:
        raise ValueError(f"prompt and prompt_text must not both be given, got {options.prompt!r}")
    require_rules(options)
    return options
