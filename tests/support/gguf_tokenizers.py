"""Small trained tokenizers of each kind, as GGUF metadata, and a text with everything that tokenizers differ in."""

import base64
import json
from typing import Any

HOSTILE = (
    "Hello, world! I'm sure they'LL say it'S  \u00e9t\u00e9 \u2014 na\u00efve caf\u00e9s \u00df\u0130\u01c5 "
    "  three   spaces\ttab\t\ttabs\n new\r\nline\n\n\n  indented 1 12 123 1234 12345678 3.14 \u00bd\u00b2 \u0663 "
    "camelCaseWords HTTPServer_v2 don't WE'VE x=y+z; $5 #tag @me a/b//c https://x.org/?q=1&r=2 {json: [1, 2]} <b> "
    "``''`` \u6f22\u5b57\u304b\u306a\u30ab\u30ca \ud55c\uad6d\uc5b4 \u0928\u092e\u0938\u094d\u0924\u0947 "
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u0645\u0631\u062d\u0628\u0627\u060c \u03b3\u03b5\u03b9\u03ac "
    "\u043f\u0440\u0438\u0432\u0435\u0442 \U0001f917\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2705\ufe0f "
    "\ufb01 \u2126 \u00a0nbsp\u3000wide \u2026\u3002\uff0c\u3001 \x00\x7f\ufeff ~^|<>== <|end|> a<|end|>b <tool> "
    "<unk> <s>hi</s> [MASK] <mask> trailing  "
)
"""Scripts, emoji, spaces, tabs, new lines, digits, contractions, cases, and special tokens in the text."""
DECOMPOSED = " e\u0301te\u0301 A\u030a \u1100\u1161"
"""Letters with separate accents, which some tokenizers join."""

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6


def typed(content: dict[str, Any], vocab: dict[str, int]) -> tuple[list[str], list[int]]:
    """Return the tokens of a tokenizer.json by id, and their types."""
    added = {token["content"]: token for token in content["added_tokens"]}
    by_id = {number: token for token, number in vocab.items()}
    by_id |= {token["id"]: token["content"] for token in added.values()}
    tokens = [by_id[number] for number in range(len(by_id))]
    kinds = [NORMAL if t not in added else CONTROL if added[t]["special"] else USER_DEFINED for t in tokens]
    return tokens, kinds


def of_bytes(library: Any, pre: str, **keys: Any) -> dict[str, Any]:
    """Return the metadata of a byte-level tokenizer."""
    content = json.loads(library.to_str())
    tokens, kinds = typed(content, content["model"]["vocab"])
    merges = [" ".join(merge) for merge in content["model"]["merges"]]
    return metadata("gpt2", tokens, kinds, pre=pre, merges=merges, **keys)


def of_sentencepiece(library: Any, **keys: Any) -> dict[str, Any]:
    """Return the metadata of a tokenizer of SentencePiece's pairs: scores, and no merges."""
    content = json.loads(library.to_str())
    tokens, kinds = typed(content, content["model"]["vocab"])
    rank = {"".join(merge): -float(number) for number, merge in reversed([*enumerate(content["model"]["merges"])])}
    scores = [rank.get(token, -1e6) for token in tokens]
    kinds = [BYTE if token.startswith("<0x") else UNKNOWN if token == "<unk>" else kind
             for token, kind in zip(tokens, kinds, strict=True)]  # fmt: skip
    return metadata("llama", tokens, kinds, pre="default", scores=scores, **keys)


def of_words(library: Any, **keys: Any) -> dict[str, Any]:
    """Return the metadata of a WordPiece tokenizer."""
    content = json.loads(library.to_str())
    tokens, kinds = typed(content, content["model"]["vocab"])
    spelled = [token if kind == CONTROL else token[2:] if token.startswith("##") else "\u2581" + token
               for token, kind in zip(tokens, kinds, strict=True)]  # fmt: skip
    return metadata("bert", spelled, kinds, pre="default", **keys)


def of_unigram(library: Any, charsmap: str | None = None, **keys: Any) -> dict[str, Any]:
    """Return the metadata of a Unigram tokenizer; `charsmap` is in base64."""
    content = json.loads(library.to_str())
    pieces = content["model"]["vocab"]
    tokens, kinds = typed(content, {token: number for number, (token, _) in enumerate(pieces)})
    kinds[content["model"]["unk_id"]] = UNKNOWN
    scores = [*(float(score) for _, score in pieces), *[0.0] * (len(tokens) - len(pieces))]
    table = {"precompiled_charsmap": [*base64.b64decode(charsmap)]} if charsmap else {}
    return metadata("t5", tokens, kinds, pre="default", scores=scores, **table, **keys)


def metadata(kind: str, tokens: list[str], kinds: list[int], **keys: Any) -> dict[str, Any]:
    """Return the keys of a tokenizer by their full names, with `__` in place of a dot."""
    keys = {"model": kind, "tokens": tokens, "token_type": kinds, **keys}
    return {f"tokenizer__ggml__{name}": value for name, value in keys.items()}
