"""The settings of `train.extend`, checked."""

import dataclasses
from collections.abc import Sequence

from train.engine.config import require_at_least, require_choice, split_list
from train.engine.help import About
from train.engine.parser import Parser


@dataclasses.dataclass(frozen=True)
class ExtendOptions:
    """Measure a trained language model at lengths beyond its own, with extensions of its positions.

    Every length reads text that ends at the same places, so that the last tokens can be compared. A stopped measurement
    goes on where it was: run the same command again.
    """

    model: str = ""  # folder from Hugging Face, or a GGUF file
    extend: str = "none,pi,ntk,yarn,self_extend,dynamic_ntk"  # extensions, separated by commas
    lengths: tuple[int, ...] = ()  # lengths to measure, tokens; empty = half, once and twice the trained length
    data: str = "topics"  # text whose held-out part is read: topics (of Python's help()), shakespeare, file:PATH, ...
    windows: int = 2  # texts that are read at every length
    passkey: int = 4  # places in the text at which a key is hidden to be found again; 0 = none
    dtype: str = "float32"  # float32 or bfloat16: type of the computation
    out: str = ""  # folder of the results; empty = runs/extend-MODEL

    finetune: str = ""  # extensions to fine-tune with before they are measured, separated by commas
    method: str = "lora"  # lora: low-rank changes of the linear layers; full: all parameters
    steps: int = 20  # steps of fine-tuning
    length: int = 0  # tokens of a window in fine-tuning; 0 = the longest length
    lr: float = 2e-4  # peak learning rate in fine-tuning

    @property
    def extensions(self) -> tuple[str, ...]:
        """The extensions that are measured without fine-tuning."""
        return split_list(self.extend, "extend") if self.extend else ()

    @property
    def finetuned(self) -> tuple[str, ...]:
        """The extensions of fine-tuning, which are measured after it."""
        return split_list(self.finetune, "finetune") if self.finetune else ()


def read_options(argv: Sequence[str] | None = None, docstring: str = "") -> ExtendOptions:
    """Read the command line.

    Args:
        argv: the options; those of the process when None.
        docstring: of the program, for `--help`.

    Raises:
        SystemExit: status 2, after a one-line message about an option.
        ValueError: an option whose value breaks a rule.
    """
    parser = Parser("python -m train.extend", About(docstring))
    parser.add_arguments(ExtendOptions, dest="options")
    options = parser.parse_args(argv).options
    if not options.model:
        raise ValueError("model must name a folder from Hugging Face or a GGUF file: --model=PATH")
    require_at_least(options, 1, "windows", "steps")
    require_at_least(options, 0, "passkey", "length")
    if options.lengths and min(options.lengths) < 2:
        raise ValueError(f"lengths must be at least 2, got {min(options.lengths)}")
    require_choice(options, "dtype", "float32", "bfloat16")
    if not options.extensions and not options.finetuned:
        raise ValueError("extend must name at least one extension, or none, got ''")
    return options
