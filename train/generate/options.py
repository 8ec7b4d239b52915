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
    prompt_file: str = option(
        "", "file with the text, in place of PROMPT, without its last line feed; - = standard input"
    )
    chat: str = option(
        "auto",
        "auto = ask as a chat if the model has a chat template; on; off = go on with the text as it is",
        choices=("auto", "on", "off"),
    )
    system: str = option("", "system message of the chat")
    messages: str = option(
        "", 'file with earlier turns of the chat, before PROMPT: [{"role": "user", "content": "Hello"}, ...]'
    )
    chat_variables: str = option(
        "", "what the chat template reads beside, as JSON: --chat_variables='{\"enable_thinking\": false}'"
    )
    temperature: float | None = option(
        None,
        "0 = the most probable token each time; for this and the next four, the model's own settings are the defaults",
    )
    top_k: int | None = option(None, "draw from the k most probable tokens only; 0 = from all")
    top_p: float | None = option(None, "draw from the most probable tokens whose probabilities sum to p")
    min_p: float | None = option(None, "draw from tokens at least p times as probable as the most probable one")
    repetition_penalty: float | None = option(
        None, "divides the logits of tokens in the prompt and the text so far; 1 = none"
    )
    presence_penalty: float = option(0.0, "subtracted from the logits of tokens in the text so far, from -2 to 2")
    frequency_penalty: float = option(0.0, "the same, times how often the token is there")
    seed: int = option(0, "random seed of the drawn tokens")
    samples: int = option(1, "number of texts, which are written when all are there", at_least=1)
    logprobs: bool = option(
        False,
        "write a line per token: the logarithm of its probability in the model, before penalties and cuts; its id; it",
    )
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
    parser.add_argument("prompt", metavar="PROMPT", nargs="?", help="the text to go on with, or the question of a chat")
    parser.add_arguments(GenerateOptions, dest="options")
    return parser
