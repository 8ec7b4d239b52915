"""The settings of `train.extend`, checked."""

from collections.abc import Sequence

from train.engine.command_line import Parser
from train.engine.config import split_list
from train.engine.help import About
from train.engine.options import option, options, require_rules


@options
class ExtendOptions:
    """Measure a trained language model at lengths beyond its own, with extensions of its positions.

    Every length reads text that ends at the same places, so that the last tokens can be compared. A stopped measurement
    goes on where it was: run the same command again.
    """

    model: str = option("", "folder from Hugging Face, or a GGUF file")
    extend: str = option("none,pi,ntk,yarn,self_extend,dynamic_ntk", "extensions, separated by commas")
    lengths: tuple[int, ...] = option(
        (), "lengths to measure, tokens; empty = half, once and twice the trained length", at_least=2
    )
    data: str = option(
        "topics", "text whose held-out part is read: topics (of Python's help()), shakespeare, file:PATH, ..."
    )
    windows: int = option(2, "texts that are read at every length", at_least=1)
    passkey: int = option(4, "places in the text at which a key is hidden to be found again; 0 = none", at_least=0)
    dtype: str = option("float32", "float32 or bfloat16: type of the computation", choices=("float32", "bfloat16"))
    out: str = option("", "folder of the results; empty = runs/extend-MODEL")

    finetune: str = option("", "extensions to fine-tune with before they are measured, separated by commas")
    method: str = option(
        "lora", "lora: low-rank changes of the linear layers; full: all parameters", choices=("lora", "full")
    )
    steps: int = option(20, "steps of fine-tuning", at_least=1)
    length: int = option(0, "tokens of a window in fine-tuning; 0 = the longest length", at_least=0)
    lr: float = option(2e-4, "peak learning rate in fine-tuning", above=0)

    @property
    def extensions(self) -> tuple[str, ...]:
        """The extensions that are measured without fine-tuning."""
        return split_list(self.extend, "extend") if self.extend else ()

    @property
    def finetuned(self) -> tuple[str, ...]:
        """The extensions of fine-tuning, which are measured after it."""
        return split_list(self.finetune, "finetune") if self.finetune else ()


def parser(docstring: str = "") -> Parser:
    """Return the parser of the command line; `docstring` is that of the program, for `--help`."""
    parser = Parser("python -m train.extend", About(docstring))
    parser.add_arguments(ExtendOptions, dest="options")
    return parser


def read_options(argv: Sequence[str] | None = None, docstring: str = "") -> ExtendOptions:
    """Read the command line.

    Args:
        argv: the options; those of the process when None.
        docstring: of the program, for `--help`.

    Raises:
        SystemExit: status 2, after a one-line message about an option.
        ValueError: an option whose value breaks a rule.
    """
    options = parser(docstring).parse_args(argv).options
    if not options.model:
        raise ValueError("model must name a folder from Hugging Face or a GGUF file: --model=PATH")
    require_rules(options)
    if not options.extensions and not options.finetuned:
        raise ValueError("extend must name at least one extension, or none, got ''")
    return options
