"""What a corpus of text is to the trainer: documents of token ids to train on, and whole documents held out."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from train.data.text.tokenizers import Tokenizer, tokenizer

HELD_OUT = 0.1


class Corpus(NamedTuple):
    """Documents of token ids; a held-out one is never trained on."""

    train: tuple[np.ndarray, ...]  # each (n,), uint16 or int32
    held_out: tuple[np.ndarray, ...]
    names: tuple[str, ...]  # of the held-out documents
    tokenizer: Tokenizer
    note: str  # one line that a table of results must carry
    identity: str  # differs where the content differs; stored in checkpoints


class Texts(NamedTuple):
    """Documents of text, before any tokenizer."""

    train: tuple[str, ...]
    held_out: tuple[str, ...]
    names: tuple[str, ...]  # of the held-out documents
    name: str
    note: str

    def encoded(self, spec: str) -> Corpus:
        """Return the corpus in the tokens of `spec`; a tokenizer that is trained sees the training documents alone.

        Raises:
            ValueError: no document on one side, or what the tokenizer refuses.
        """
        train, held_out = (tuple(text for text in part if text) for part in (self.train, self.held_out))
        for side, part in (("training", train), ("held-out", held_out)):
            if not part:
                raise ValueError(f"{self.name} must hold a {side} document, got none")
        kind = tokenizer(spec, train)
        return Corpus(
            train=kind.encode_all(train),
            held_out=kind.encode_all(held_out),
            names=tuple(name for name, text in zip(self.names, self.held_out, strict=True) if text),
            tokenizer=kind,
            note=f"{self.note}; {kind.identity}, vocabulary {kind.vocab:,}",
            identity=f"{self.name}-{_digest(train, held_out)}-{kind.identity}",
        )


def _digest(*parts: Sequence[str]) -> str:
    """Return a digest of the texts of each part and of where they end."""
    total = hashlib.sha256()
    for part in parts:
        for text in part:
            content = text.encode()
            total.update(f"{len(content)} ".encode() + content)
        total.update(b"end ")
    return total.hexdigest()[:8]


def decoded(content: bytes, name: str) -> str:
    """Return the text that UTF-8 bytes hold.

    Raises:
        ValueError: they are no UTF-8.
    """
    try:
        return content.decode()
    except UnicodeDecodeError as broken:
        at = broken.start
        raise ValueError(f"{name} must be UTF-8, got byte 0x{content[at]:02x} at offset {at}") from None


def divided(documents: Mapping[str, str], share: float, source: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the documents to train on and those held out: a share of the smallest sha256, equal texts together.

    Raises:
        ValueError: fewer than two different texts, or a share that is not between 0 and 1.
    """
    digests = [hashlib.sha256(text.encode()).digest() for text in documents.values()]
    ranked = sorted(set(digests))
    if len(ranked) < 2:
        raise ValueError(f"{source} must hold two different documents to hold one out, got {len(ranked)}")
    held = set(ranked[: min(max(1, round(proper(share) * len(ranked))), len(ranked) - 1)])
    sides: tuple[dict[str, str], dict[str, str]] = {}, {}
    for (name, text), digest in zip(documents.items(), digests, strict=True):
        sides[digest in held][name] = text
    return sides


def proper(share: float) -> float:
    """Return the share that is held out.

    Raises:
        ValueError: it is not between 0 and 1.
    """
    if not 0 < share < 1:
        raise ValueError(f"held_out must be a share between 0 and 1, or name what is held out, got {share}")
    return share
