"""Tokenizers: bytes, or byte-pair encoding with the `tokenizers` library, read from a file or trained."""

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Integer

from pejax.interop.tokenizer_trial import failure_of, library_errors

Ids = Integer[np.ndarray, " T"]
SMALLEST = 256
"""Size of the smallest vocabulary that can encode any text: one token per byte."""
AT_ONCE = 1024
"""Texts per call of the library: enough for all cores, few enough for memory."""


@runtime_checkable
class Tokenizer(Protocol):
    """Converts text to token ids and back."""

    vocab: int  # size of the vocabulary
    identity: str  # different for tokenizers that differ on some text

    def encode(self, text: str) -> Ids:
        """Return the ids of a text, as uint16 if they fit, else int32.

        Raises:
            ValueError: an id outside the vocabulary, or text that the tokenizer cannot encode.
        """
        ...

    def encode_all(self, texts: Sequence[str]) -> tuple[Ids, ...]:
        """Return the ids of every text, like `encode`; on all cores if the tokenizer can.

        Raises:
            ValueError: as `encode` does.
        """
        ...

    def decode(self, ids: Ids | Sequence[int]) -> str:
        """Return the text of token ids; invalid UTF-8 becomes U+FFFD.

        Raises:
            ValueError: an id outside the vocabulary.
        """
        ...


class Bytes:
    """The bytes of UTF-8, which encode any text without loss."""

    vocab, identity = SMALLEST, "bytes"

    def encode(self, text: str) -> Ids:
        """Return the bytes of a text."""
        return np.frombuffer(text.encode(), np.uint8).astype(np.uint16)

    def encode_all(self, texts: Sequence[str]) -> tuple[Ids, ...]:
        """Return the bytes of every text."""
        return tuple(map(self.encode, texts))

    def decode(self, ids: Ids | Sequence[int]) -> str:
        """Return the text of bytes; invalid UTF-8 becomes U+FFFD.

        Raises:
            ValueError: an id outside the vocabulary.
        """
        return within(np.asarray(ids), self.vocab, self.identity).astype(np.uint8).tobytes().decode(errors="replace")


class Library:
    """A tokenizer of the `tokenizers` library, without special tokens, truncation or padding."""

    def __init__(self, tokenizer: Any, name: str) -> None:
        """Wrap a `tokenizers.Tokenizer`, which is modified; the name is for messages."""
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.tokenizer, self.name, self.vocab = tokenizer, name, tokenizer.get_vocab_size()
        self.identity = f"{name}-{hashlib.sha256(tokenizer.to_str().encode()).hexdigest()[:8]}"

    def encode(self, text: str) -> Ids:
        """Return the ids of a text, as uint16 if they fit, else int32.

        Raises:
            ValueError: an id outside the vocabulary, or text that the tokenizer cannot encode.
        """
        return self.encode_all([text])[0]

    def encode_all(self, texts: Sequence[str]) -> tuple[Ids, ...]:
        """Return the ids of every text, like `encode`; on all cores.

        Raises:
            ValueError: as `encode` does.
        """
        return tuple(ids for at in range(0, len(texts), AT_ONCE) for ids in self._encode(texts[at : at + AT_ONCE]))

    def _encode(self, texts: Sequence[str]) -> list[Ids]:
        with library_errors(f"{self.name} must encode any text:"):
            encodings = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        dtype = id_type(self.vocab)
        return [
            within(np.asarray(encoding.ids, np.int64), self.vocab, self.name).astype(dtype) for encoding in encodings
        ]

    def decode(self, ids: Ids | Sequence[int]) -> str:
        """Return the text of token ids; invalid UTF-8 becomes U+FFFD.

        Raises:
            ValueError: an id outside the vocabulary.
        """
        numbers = within(np.asarray(ids, np.int64), self.vocab, self.name).tolist()
        with library_errors(f"{self.name} must decode any ids:"):
            return self.tokenizer.decode(numbers, skip_special_tokens=False)


def byte_tokenizer() -> Any:
    """Return `Bytes` as a `tokenizers.Tokenizer`: byte-level byte-pair encoding without merges, whose ids are bytes."""
    from tokenizers import Tokenizer as Kind
    from tokenizers import decoders, models, pre_tokenizers

    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(SMALLEST) if byte not in visible]  # written as letters from U+0100 on
    letters = {chr(byte): byte for byte in visible} | {chr(SMALLEST + n): byte for n, byte in enumerate(hidden)}
    tokenizer = Kind(models.BPE(vocab=letters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def id_type(vocab: int) -> type[np.integer]:
    """Return the dtype for ids of a vocabulary."""
    return np.uint16 if vocab <= 1 << 16 else np.int32


def within(ids: np.ndarray, vocab: int, name: str) -> np.ndarray:
    """Return the ids after checking them.

    Raises:
        ValueError: an id is outside the vocabulary.
    """
    outside = ids[(ids < 0) | (ids >= vocab)]
    if outside.size:
        raise ValueError(f"token ids of {name} must be from 0 to {vocab - 1}, got {outside[0]}")
    return ids


def tokenizer(spec: str, documents: Sequence[str]) -> Tokenizer:
    """Return the tokenizer that `spec` names.

    Args:
        spec: `bytes`; `bpe(vocab=N)`, byte-level byte-pair encoding trained on `documents`, with at most N tokens; or
            the path of a `tokenizer.json`.
        documents: training documents.

    Raises:
        ValueError: an unknown spec, a vocabulary that is too small for all bytes, or a file that cannot be read.
    """
    if spec == "bytes":
        return Bytes()
    vocab = re.fullmatch(r"bpe\(\s*vocab\s*=\s*(\d+)\s*\)", spec)
    if vocab:
        return _train(int(vocab[1]), documents)
    if not spec.endswith(".json"):
        raise ValueError(f"tokenizer must be 'bytes', 'bpe(vocab=N)' or a path of a tokenizer.json, got {spec!r}")
    return _read(Path(spec).expanduser())


def _read(path: Path) -> Library:
    if not path.is_file():
        raise ValueError(f"a tokenizer.json must be a file, got {str(path)!r}")
    from tokenizers import Tokenizer as Kind

    message = f"{path} must be a tokenizer of the tokenizers library, got"
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise ValueError(f"{message} no JSON") from None
    if reason := failure_of(content):
        raise ValueError(f"{message} {reason}")
    try:
        with library_errors(message):
            return Library(Kind.from_str(json.dumps(content)), path.name)
    except ValueError:  # its messages quote the file
        raise ValueError(f"{message} other JSON") from None


def _train(vocab: int, documents: Sequence[str]) -> Library:
    if vocab < SMALLEST:
        raise ValueError(f"bpe(vocab=N) must have N of at least {SMALLEST}, one token per byte, got {vocab}")
    from tokenizers import Tokenizer as Kind
    from tokenizers import decoders, models, pre_tokenizers, trainers

    tokenizer = Kind(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab, show_progress=False, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(documents, trainer)
    return Library(tokenizer, f"bpe{tokenizer.get_vocab_size()}")
