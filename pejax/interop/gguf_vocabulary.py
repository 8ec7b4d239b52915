"""The tokens in the metadata of a GGUF file, and the checks of what belongs to them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

NORMAL, UNKNOWN, SPECIAL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
"""Types of tokens: special ones are no part of ordinary text, user-defined ones are never split."""

NAMES = ("bos", "eos", "eot", "unknown", "padding", "cls", "seperator", "mask")  # as the keys are spelled
"""Names of special tokens, whose ids are at keys such as `tokenizer.ggml.bos_token_id`."""

NO_TOKEN = (-1, 2**32 - 1)
"""Ids that files have where there is no such token."""

Content = dict[str, Any]
"""Content of tokenizer.json, or a part of it."""


def special_ids(path: Path, keys: Mapping[str, Any]) -> dict[str, int]:
    """Return the ids of the special tokens that a file has, by keys such as `bos_token_id`.

    Args:
        path: the file, which the message names.
        keys: its metadata.

    Raises:
        ValueError: the id of no token.
    """
    count = len(keys.get("tokenizer.ggml.tokens", []))
    values = {f"{name}_token_id": keys.get(f"tokenizer.ggml.{name}_token_id") for name in NAMES}
    ids = {key: value for key, value in values.items() if value is not None and value not in NO_TOKEN}
    for key, value in ids.items():
        if type(value) is not int or not 0 <= value < count:
            rule = f"tokenizer.ggml.{key} must be an integer from 0 to {count - 1}"
            raise ValueError(f"{path}: {rule}, got {value!r}"[:400])
    return ids


class Vocabulary:
    """The tokens of a file, and its other keys, without `tokenizer.ggml.` in front.

    Attributes:
        tokens: texts of the tokens by id.
        kinds: types of the tokens by id.
        ids: ids of the special tokens, by keys such as `bos_token_id`.
    """

    def __init__(self, path: Path, keys: Mapping[str, Any]) -> None:
        self.path, self.keys = path, keys
        self.tokens, self.kinds = self.values("tokens", str), self.values("token_type", int)
        texts = {*self.tokens}
        if len(texts) != len(self.tokens) or len(self.kinds) != len(self.tokens):
            rule = "every token must have a text of its own and a type"
            numbers = f"{len(self.tokens)} tokens with {len(texts)} texts and {len(self.kinds)} types"
            raise ValueError(f"{path}: {rule}, got {numbers}")
        self.ids = special_ids(path, keys)

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a key."""
        return self.keys.get(f"tokenizer.ggml.{name}", default)

    def values(self, name: str, kind: type) -> list[Any]:
        """Return the value of a key that is a list, empty where the key is absent."""
        values = self.get(name, [])
        if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
            rule = f"tokenizer.ggml.{name} must be a list, each of type {kind.__name__}"
            raise ValueError(f"{self.path}: {rule}, got {str(values)[:80]}")
        return values

    def flag(self, name: str, default: bool) -> bool:
        """Return a value that is true or false."""
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise ValueError(f"{self.path}: tokenizer.ggml.{name} must be true or false, got {value!r}"[:400])
        return value

    def number(self, *names: str, default: int | None = None) -> int:
        """Return the id of a special token; the first of these keys that the file has counts.

        Raises:
            ValueError: no such key, or the id of no token.
        """
        value = next((self.ids[name] for name in names if name in self.ids), default)
        if value is None or not 0 <= value < len(self.tokens):
            rule = f"tokenizer.ggml.{names[0]} must be an integer from 0 to {len(self.tokens) - 1}"
            raise ValueError(f"{self.path}: {rule}, got {value!r}"[:400])
        return value

    def unknown(self, default: int | None = None) -> int:
        """Return the id of the token of unknown text."""
        first = next((number for number, kind in enumerate(self.kinds) if kind == UNKNOWN), default)
        return self.number("unknown_token_id", default=first)

    def scores(self) -> list[float]:
        """Return the score of every token."""
        scores = self.values("scores", float)
        if len(scores) != len(self.tokens):
            rule = f"tokenizer.ggml.scores must be {len(self.tokens)} numbers, one for each token"
            raise ValueError(f"{self.path}: {rule}, got {len(scores)}")
        return scores

    def merges(self, vocab: Mapping[str, int]) -> list[list[str]]:
        """Return the pairs of tokens that are joined, the first of them first; the library panics on others."""
        pairs = [merge.split(" ", 1) for merge in self.values("merges", str)]
        is_pair = lambda pair: len(pair) == 2 and all(token in vocab for token in (*pair, "".join(pair)))
        other = next((pair for pair in pairs if not is_pair(pair)), None)
        if other is not None:
            rule = "tokenizer.ggml.merges must be pairs of tokens that make a token, with a space between"
            raise ValueError(f"{self.path}: {rule}, got {' '.join(other)[:80]!r}")
        return pairs

    def added(self, *kinds: int) -> list[Content]:
        """Return the tokens of these types, which are found before a text is cut; only a mask takes spaces with it."""
        mask = self.ids.get("mask_token_id") if self.get("model") in ("gpt2", "t5") else None
        return [
            {"id": number, "content": token, "special": kind != USER_DEFINED, "normalized": False,
             "single_word": False, "lstrip": number == mask, "rstrip": False}
            for number, (token, kind) in enumerate(zip(self.tokens, self.kinds, strict=True)) if kind in kinds
        ]  # fmt: skip
