"""How byte-level tokenizers cut a text before they join bytes, by `tokenizer.ggml.pre` of a GGUF file.

A GGUF file has a name in place of the pattern; patterns, normalization and flags are those of the tokenizer.json files
that were published for the models of each name.
"""

from typing import Any, NamedTuple

Step = dict[str, Any]
"""A step in the words of tokenizer.json."""


class Split(NamedTuple):
    """The cutting of a text.

    Attributes:
        steps: steps before the last one, which writes bytes as characters.
        words: whether that last step also cuts a text into words, as GPT-2 does.
        composed: whether letters and accents are joined before (NFC).
        whole_words: whether a word that is a token is left whole, whatever the merges (`ignore_merges`).
        begins: whether a token begins every text, where the file does not say so.
    """

    steps: tuple[Step, ...] = ()
    words: bool = True
    composed: bool = False
    whole_words: bool = False
    begins: bool = False


def cut(pattern: str) -> Step:
    """Return the step that makes every match of a pattern a piece of its own."""
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def digits(*, single: bool) -> Step:
    """Return the step that cuts off numbers; `single` = every digit is a piece of its own."""
    return {"type": "Digits", "individual_digits": single}


def _cased(ranges: str) -> str:
    """Return a class of characters, from ranges of code points."""
    pairs = [(item.split("-")[0], item.split("-")[-1]) for item in ranges.split()]
    return "".join(f"{chr(int(first, 16))}-{chr(int(last, 16))}" for first, last in pairs)


SHORT = "'s|'t|'re|'ve|'m|'ll|'d"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LETTERS, SIGNS = r"[^\r\n\p{L}\p{N}]?\p{L}+", r" ?[^\s\p{L}\p{N}]+[\r\n]*"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"

GPT2 = rf"{SHORT}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+"
LLAMA3 = rf"(?i:{SHORT})|{LETTERS}|\p{{N}}{{1,3}}|{SIGNS}|{SPACES}"
QWEN2 = rf"(?i:{SHORT})|{LETTERS}|\p{{N}}|{SIGNS}|{SPACES}"
QWEN35 = rf"(?i:{SHORT})|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{SPACES}"
SEED = rf"(?i:{SHORT})|{LETTERS}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{SPACES}"


def _by_case(short: str, numbers: str) -> str:
    """Return the pattern that cuts a word before a capital letter; `short` may follow a word."""
    first = r"[^\r\n\p{L}\p{N}]?"
    words = f"{first}{UPPER}*{LOWER}+{short}|{first}{UPPER}+{LOWER}*{short}"
    return rf"{words}|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}"


TEKKEN, GPT4O = _by_case("", r"\p{N}"), _by_case(f"(?i:{SHORT})?", r"\p{N}{1,3}")
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"
DEEPSEEK_V3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{SPACES}"
)
HAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
CASED = _cased(
    "41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A 38C 38E-3A1 "
    "3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A "
    "1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 "
    "1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 "
    "212A-212D 212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D "
    "A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F "
    "104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943"
)
"""The letters with case of DeepSeek's first tokenizer."""
MARKS = "[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"

OF_LLAMA3 = Split((cut(LLAMA3),), words=False, whole_words=True, begins=True)
OF_GPT4O = Split((cut(GPT4O),), words=False)
OF_STARCODER = Split((digits(single=True),))
OF_BLOOM = Split((cut(BLOOM),), words=False)

SPLITS = {
    **dict.fromkeys(("gpt-2", "phi-2", "exaone4", "jina-v2-es", "jina-v2-de", "jina-v2-code"), Split()),
    **dict.fromkeys(("roberta-bpe", "jina-v1-en", "granite-docling", "trillion"), Split()),
    **dict.fromkeys(("mpt", "olmo", "modern-bert"), Split(composed=True)),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b"), OF_STARCODER),
    "command-r": OF_STARCODER._replace(composed=True),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "lfm2"), OF_LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), OF_LLAMA3._replace(whole_words=False, begins=False)),
    "glm4": OF_LLAMA3._replace(begins=False),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2"), Split((cut(QWEN2),), words=False, composed=True)),
    "qwen35": Split((cut(QWEN35),), words=False, composed=True),
    "hunyuan": Split((cut(QWEN2),), words=False),
    "seed-coder": Split((cut(SEED),), words=False),
    "tekken": Split((cut(TEKKEN),), words=False, whole_words=True, begins=True),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2"), OF_GPT4O),
    "minimax-m2": OF_GPT4O._replace(composed=True),
    "deepseek-llm": Split(
        (cut(r"[\r\n]"), cut(rf"\s?[{CASED}]+"), cut(rf"\s?{MARKS}"), cut(r"\s+$"), cut(HAN), digits(single=True)),
        words=False,
    ),
    "deepseek-coder": Split(
        (cut(r"[\r\n]"), cut(r"\s?\p{L}+"), cut(r"\s?\p{P}+"), cut(HAN), digits(single=True)), words=False
    ),
    "deepseek-v3": Split(
        (cut(r"\p{N}{1,3}"), cut("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"), cut(DEEPSEEK_V3)), words=False
    ),
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), OF_BLOOM),
    "falcon": Split(),
    "default": Split(
        (cut(r"[\p{P}\$\+<=>\^~\|]+"), cut(GPT2), cut(r"\p{N}+"), cut("[0-9][0-9][0-9]")), words=False
    ),
}  # fmt: skip
"""By `tokenizer.ggml.pre`. Falcon cuts numbers after its bytes are characters: `pre_tokenizer`."""


def pre_tokenizer(name: str) -> Step:
    """Return the steps of a name, in the words of tokenizer.json."""
    if name == "falcon":
        steps = [{"type": "Punctuation", "behavior": "Contiguous"}, byte_level(words=True), digits(single=False)]
        return {"type": "Sequence", "pretokenizers": [*steps, cut("[0-9][0-9][0-9]")]}
    split = SPLITS[name]
    return {"type": "Sequence", "pretokenizers": [*split.steps, byte_level(words=split.words)]}


def byte_level(*, words: bool) -> Step:
    """Return the step that writes bytes as characters; `words` = it also cuts a text into words, as GPT-2 does."""
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": words}
