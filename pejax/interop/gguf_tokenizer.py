"""Tokenizers from the metadata of GGUF files, in the words of tokenizer.json.

Of four kinds: byte-level pairs (`gpt2`), SentencePiece's pairs (`llama`), WordPiece (`bert`) and Unigram (`t5`).
"""

import base64
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pejax.interop.gguf_splits import SPLITS, byte_level, pre_tokenizer
from pejax.interop.gguf_vocabulary import BYTE, NORMAL, SPECIAL, UNKNOWN, USER_DEFINED, Content, Vocabulary

SPACE = "\u2581"
"""The character that stands for a space."""
CAPITALS = re.compile("[A-Z][A-Za-z]")
LONGEST = 128
"""Number of characters from which on a token is not made of pairs; those of models have at most 31."""


class GgufTokenizer(NamedTuple):
    """A tokenizer of a GGUF file.

    Attributes:
        content: content of its tokenizer.json.
        bos: id of the token that begins a text. None = there is none.
        eos: ids of the tokens that end a text.
    """

    content: Content
    bos: int | None
    eos: tuple[int, ...]


def tokenizer_of(path: Path, keys: Mapping[str, Any]) -> GgufTokenizer:
    """Return the tokenizer that the metadata of a GGUF file describe.

    Raises:
        ValueError: a kind or a cutting of texts that is not known, or tokens that do not fit together.
    """
    kind = keys.get("tokenizer.ggml.model")
    if not isinstance(kind, str) or kind not in KINDS:
        rule = f"tokenizer.ggml.model must be one of {', '.join(KINDS)}; others are not read yet"
        raise ValueError(f"{path}: {rule}, got {kind!r}"[:400])
    vocabulary = Vocabulary(path, keys)
    content = {"version": "1.0", "added_tokens": vocabulary.added(SPECIAL, USER_DEFINED), **KINDS[kind](vocabulary)}
    ids = {**({"bos_token_id": 1, "eos_token_id": 2} if kind == "llama" else {}), **vocabulary.ids}
    ends = (ids[name] for name in ("eos_token_id", "eot_token_id") if name in ids)
    return GgufTokenizer(content, ids.get("bos_token_id"), tuple(dict.fromkeys(ends)))


def _bytes(vocabulary: Vocabulary) -> Content:
    """Return a tokenizer of pairs of bytes."""
    name = vocabulary.get("pre")
    if not isinstance(name, str) or name not in SPLITS:
        rule = f"tokenizer.ggml.pre must be one of {', '.join(SPLITS)}; others are not read yet"
        raise ValueError(f"{vocabulary.path}: {rule}, got {name!r}"[:1200])
    split = SPLITS[name]
    vocab = {token: number for number, token in enumerate(vocabulary.tokens)}
    return {
        "normalizer": {"type": "NFC"} if split.composed else None,
        "pre_tokenizer": pre_tokenizer(name),
        "post_processor": _around(vocabulary, begins=split.begins),
        "decoder": byte_level(words=True),
        "model": {
            "type": "BPE",
            "vocab": vocab,
            "merges": vocabulary.merges(vocab),
            "ignore_merges": split.whole_words,
        },
    }


def _sentencepiece(vocabulary: Vocabulary) -> Content:
    """Return a tokenizer of SentencePiece's pairs, which falls back to bytes."""
    # User-defined runs of spaces are written as spaces; in a text they are read as other pairs are.
    spelled = [SPACE * len(token) if token.isspace() and {*token} == {" "} else token for token in vocabulary.tokens]
    vocab = {token: number for number, token in enumerate(spelled)}
    prefixed = vocabulary.flag("add_space_prefix", True)
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    steps = [{"type": "Prepend", "prepend": SPACE}, replace] if prefixed else [replace]
    back = [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "}, {"type": "ByteFallback"}]
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefixed else []
    added = [token for token in vocabulary.added(UNKNOWN, SPECIAL, USER_DEFINED) if token["content"].strip(" ")]
    model = {
        "type": "BPE", "vocab": vocab, "merges": _merges(vocabulary, vocab),
        "unk_token": spelled[vocabulary.unknown(0)], "fuse_unk": True, "byte_fallback": BYTE in vocabulary.kinds,
    }  # fmt: skip
    return {
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
        "post_processor": _around(vocabulary, begins=True, bos=1, eos=2),
        "decoder": {"type": "Sequence", "decoders": [*back, {"type": "Fuse"}, *strip]},
        "model": model,
    }


def _merges(vocabulary: Vocabulary, vocab: Mapping[str, int]) -> list[list[str]]:
    """Return the pairs of a file, or those that its tokens can be cut into, the best first.

    Scores say which is best. Those of Gemma's files do not, but the order of the tokens does.
    """
    merges = vocabulary.merges(vocab)
    if merges:
        return merges
    by_order = str(vocabulary.keys.get("general.architecture", "")).startswith("gemma")
    scores = range(0, -len(vocab), -1) if by_order else vocabulary.scores()
    pairs = [
        (-scores[number], -len(left), -len(right), left, right)
        for token, number in vocab.items()
        for left, right in _halves(token, vocab)
    ]
    pairs.sort(key=lambda pair: pair[:3])
    return [[left, right] for *_, left, right in pairs]


def _halves(token: str, vocab: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Yield the pairs of tokens that a token can be cut into."""
    for place in range(1, len(token)) if len(token) < LONGEST else ():
        left = token[:place]
        if left in vocab and token[place:] in vocab:
            yield left, token[place:]


def _words(vocabulary: Vocabulary) -> Content:
    """Return a WordPiece tokenizer; tokens that begin a word have `SPACE` in front, and "##" is left out."""
    pairs = [*zip(vocabulary.tokens, vocabulary.kinds, strict=True)]
    spelled = [
        token if kind in (UNKNOWN, SPECIAL) else token[1:] if token.startswith(SPACE) else f"##{token}"
        for token, kind in pairs
    ]
    vocab = {token: number for number, token in enumerate(spelled)}
    unknown = vocabulary.number("unknown_token_id", default=vocab.get("[UNK]"))
    # A vocabulary of words with capitals is of a tokenizer that keeps them: otherwise no text has these tokens.
    cased = any(CAPITALS.search(token) for token, kind in pairs if kind == NORMAL and "[" not in token)
    lower = vocabulary.flag("normalizer.lowercase", not cased)
    accents = vocabulary.get("normalizer.strip_accents")
    normalizer = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                  "strip_accents": accents, "lowercase": lower}  # fmt: skip
    first = vocabulary.number("cls_token_id", "bos_token_id", default=vocab.get("[CLS]"))
    last = vocabulary.number("seperator_token_id", "eos_token_id", default=vocab.get("[SEP]"))
    return {
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": _template(spelled, [first], [last], [last], second=1),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": "WordPiece", "vocab": vocab, "unk_token": spelled[unknown],
                  "continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
    }  # fmt: skip


def _unigram(vocabulary: Vocabulary) -> Content:
    """Return a Unigram tokenizer, to which several spaces are one, as they are in T5 and XLM-RoBERTa."""
    scheme = "always" if vocabulary.flag("add_space_prefix", True) else "never"
    space = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": True}
    table = bytes(number % 256 for number in vocabulary.values("precompiled_charsmap", int))
    normalizer = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()} if table else None
    pieces = [list(piece) for piece in zip(vocabulary.tokens, vocabulary.scores(), strict=True)]
    return {
        "added_tokens": vocabulary.added(UNKNOWN, SPECIAL, USER_DEFINED),
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, space]},
        "post_processor": _around(vocabulary, begins=False, ends=True, eos=1),
        "decoder": space,
        "model": {"type": "Unigram", "vocab": pieces, "unk_id": vocabulary.unknown(),
                  "byte_fallback": BYTE in vocabulary.kinds},
    }  # fmt: skip


def _around(
    vocabulary: Vocabulary, *, begins: bool, ends: bool = False, bos: int | None = None, eos: int | None = None
) -> Content | None:
    """Return the part that puts tokens around every text, or nothing.

    Args:
        vocabulary: the tokens.
        begins: whether one begins a text, where the file does not say so.
        ends: whether one ends it.
        bos: default of the first.
        eos: default of the second.
    """
    before, after = [], []
    if vocabulary.flag("add_bos_token", begins):
        before = [vocabulary.number("bos_token_id", "cls_token_id", default=bos)]
    if vocabulary.flag("add_eos_token", ends):
        after = [vocabulary.number("eos_token_id", "seperator_token_id", default=eos)]
    between = after if vocabulary.flag("add_sep_token", False) else []
    return _template(vocabulary.tokens, before, after, between) if before or after else None


def _template(
    tokens: Sequence[str], before: list[int], after: list[int], between: list[int], second: int = 0
) -> Content:
    """Return the part of tokenizer.json that puts tokens around a text, or around a pair of texts.

    Args:
        tokens: texts of the tokens by id.
        before: ids before the first text.
        after: ids after each text.
        between: ids between both, in addition to those after the first; of BERT, they are the same.
        second: type of the second text and of the tokens after it.
    """
    special = lambda ids, kind: [{"SpecialToken": {"id": tokens[number], "type_id": kind}} for number in ids]
    text = lambda name, kind: [{"Sequence": {"id": name, "type_id": kind}}]
    single = [*special(before, 0), *text("A", 0), *special(after, 0)]
    doubled = special(between, 0) if between and not second else []
    pair = [*single, *doubled, *text("B", second), *special(after, second)]
    names = {
        tokens[number]: {"id": tokens[number], "ids": [number], "tokens": [tokens[number]]}
        for number in {*before, *after, *between}
    }
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": names}


KINDS: dict[str, Callable[[Vocabulary], Content]] = {
    "gpt2": _bytes, "llama": _sentencepiece, "bert": _words, "t5": _unigram,
}  # fmt: skip
"""Kinds of tokenizers by `tokenizer.ggml.model`."""
