"""A corpus of text for training: training documents and held-out documents, as token ids."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from train.data.bad import identity_suffix, note_suffix
from train.data.text.tokenizers import Tokenizer, tokenizer

HELD_OUT = 0.1


class Corpus(NamedTuple):
    """Training documents and held-out documents, as token ids."""

    train: tuple[np.ndarray, ...]  # each (n,), uint16 or int32
    held_out: tuple[np.ndarray, ...]
    names: tuple[str, ...]  # of the held-out documents
    tokenizer: Tokenizer
    note: str  # one line for tables of results
    identity: str  # different for different content; stored in checkpoints


def with_validation(corpus: Corpus, fraction: float) -> Corpus:
    """Return the corpus with the last part of its training text in place of the held-out documents.

    Settings can be chosen by the perplexity of that text without a look at the held-out documents.

    Args:
        corpus: the documents.
        fraction: fraction of the training tokens; the document in which the fraction begins is cut in two.
    """
    ends = np.cumsum([len(document) for document in corpus.train])
    cut = int(ends[-1]) - min(max(1, round(fraction * int(ends[-1]))), int(ends[-1]) - 1)
    begins = ends - [len(document) for document in corpus.train]
    train = [document[: max(0, cut - begin)] for document, begin in zip(corpus.train, begins, strict=True)]
    held = [document[max(0, cut - begin) :] for document, begin in zip(corpus.train, begins, strict=True)]
    return corpus._replace(
        train=tuple(document for document in train if len(document)),
        held_out=tuple(document for document in held if len(document)),
        names=tuple(f"training document {index}" for index, document in enumerate(held) if len(document)),
        note=f"{corpus.note}; the last {fraction:.0%} of the training text, not trained on, is evaluated on",
        identity=f"{corpus.identity}-validation-{int(ends[-1]) - cut}",
    )


def contiguous(corpus: Corpus) -> Corpus:
    """Return the corpus with all its training documents as one, and all held-out ones as another.

    A blank line is between two documents. Windows then begin and end anywhere, and attention reads across documents.
    """
    blank = corpus.tokenizer.encode("\n\n")

    def join(documents: Sequence[np.ndarray]) -> tuple[np.ndarray]:
        return (np.concatenate([ids for document in documents for ids in (document, blank)][:-1]),)

    return corpus._replace(
        train=join(corpus.train),
        held_out=join(corpus.held_out),
        names=("all held-out documents",),
        note=f"{corpus.note}; windows across documents",
        identity=f"{corpus.identity}-contiguous",
    )


class Texts(NamedTuple):
    """Training documents and held-out documents, as text."""

    train: tuple[str, ...]
    held_out: tuple[str, ...]
    names: tuple[str, ...]  # of the held-out documents
    name: str
    note: str
    skipped: int = 0  # bad parts that are left out

    def tokenize(self, spec: str) -> Corpus:
        """Return the corpus, tokenized as `spec` says; a tokenizer is trained only on the training documents.

        Raises:
            ValueError: no training or held-out document, no held-out document that is not trained on, too, or the
                tokenizer refuses the text.
        """
        train, held_out = (tuple(text for text in part if text) for part in (self.train, self.held_out))
        for side, part in (("training", train), ("held-out", held_out)):
            if not part:
                raise ValueError(f"{self.name} must hold a {side} document, got none")
        train_texts = {text.strip() for text in train}
        repeats = sum(text.strip() in train_texts for text in held_out)
        if repeats == len(held_out):
            rule = f"{self.name} must hold out text that is not trained on"
            raise ValueError(
                f"{rule}, got {repeats:,} held-out document{'s' * (repeats > 1)} with the text of training ones"
            )
        also = f"; {repeats:,} of the held-out documents are trained on, too" if repeats else ""
        kind = tokenizer(spec, train)
        return Corpus(
            train=kind.encode_all(train),
            held_out=kind.encode_all(held_out),
            names=tuple(name for name, text in zip(self.names, self.held_out, strict=True) if text),
            tokenizer=kind,
            note=f"{self.note}{note_suffix(self.skipped)}{also}; {kind.identity}, vocabulary {kind.vocab:,}",
            identity=f"{self.name}-{_digest(train, held_out)}{identity_suffix(self.skipped)}-{kind.identity}",
        )


def _digest(*parts: Sequence[str]) -> str:
    """Return a digest of the texts of each part and of their boundaries."""
    total = hashlib.sha256()
    for part in parts:
        for text in part:
            content = text.encode()
            total.update(f"{len(content)} ".encode() + content)
        total.update(b"end ")
    return total.hexdigest()[:8]


def decode_text(content: bytes, name: str) -> str:
    """Return the text in UTF-8 bytes.

    Raises:
        ValueError: the bytes are not UTF-8.
    """
    try:
        return content.decode()
    except UnicodeDecodeError as broken:
        raise ValueError(f"{name} must be UTF-8, got another byte at offset {broken.start}") from None


def hold_out(documents: Mapping[str, str], fraction: float, source: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the training documents and the held-out ones: a fraction with the smallest sha256, equal texts together.

    Raises:
        ValueError: fewer than two different texts, or a fraction that is not between 0 and 1.
    """
    digests = [hashlib.sha256(text.encode()).digest() for text in documents.values()]
    ranking = sorted(set(digests))
    if len(ranking) < 2:
        raise ValueError(f"{source} must hold two different documents to hold one out, got {len(ranking)}")
    held = set(ranking[: min(max(1, round(require_fraction(fraction) * len(ranking))), len(ranking) - 1)])
    sides: tuple[dict[str, str], dict[str, str]] = {}, {}
    for (name, text), digest in zip(documents.items(), digests, strict=True):
        sides[digest in held][name] = text
    return sides


def require_fraction(fraction: float) -> float:
    """Return the held-out fraction.

    Raises:
        ValueError: it is not between 0 and 1.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"held_out must be a fraction between 0 and 1, or name what is held out, got {fraction}")
    return fraction
