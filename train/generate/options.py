"""The command line of `train.generate`."""

from train.engine.command_line import Parser
from train.engine.help import About
from train.engine.options import option, options


@options
class GenerateOptions:
    """Go on with a text."""

    model: str = option(
        text="a folder with config.json, safetensors files and tokenizer.json, a GGUF file, or a run folder"
    )
    data: str = option("", "data of a run on files, as --data gave them: its tokenizer is theirs")
    pe: str = option("", "encoding of a run that has one from a module of your own, as --pe gave it")
    max_tokens: int = option(256, "most tokens to make")
    temperature: float = option(0.0, "0 = the most probable token each time")
    top_k: int = option(0, "draw from the k most probable tokens only; 0 = from all")
    top_p: float = option(1.0, "draw from the most probable tokens whose probabilities sum to p")
    seed: int = option(0, "random seed of the drawn tokens")
    stop: tuple[str, ...] = option((), 'texts at which to stop, as well as the model\'s own ends: --stop "Q:" "###"')
    window: int = option(0, "keep the last N tokens in memory, and no others but --first; 0 = keep all")
    first: int = option(0, "keep the first M tokens, too")
    cache_policy: str = option(
        "auto",
        "tokens in memory where the encoding follows the length: recompute, all of them again at each change; "
        "stepwise, never; auto, recompute where it changes at single lengths, as LongRoPE does",
        choices=("auto", "recompute", "stepwise"),
    )
    extend: str = option("", "extension to texts longer than the model's own context, such as yarn(factor=4)")
    dtype: str = option("float32", "float32 or bfloat16: type of the computation")
    params: str = option(
        "float32", "type of the parameters in memory: float32, bfloat16, or file, as the file has them"
    )
    programs: str = option(
        "auto", "folder that keeps compiled programs for the next text; auto: one in ~/.cache/pejax; none"
    )


def parser(docstring: str = "") -> Parser:
    """Return the parser of the command line; `docstring` is that of the program, for `--help`."""
    parser = Parser("python -m train.generate", About(docstring))
    parser.add_argument("prompt", metavar="PROMPT", help="the text to go on with")
    parser.add_arguments(GenerateOptions, dest="options")
    return parser
