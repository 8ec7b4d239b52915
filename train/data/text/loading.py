"""Text by name: from a spec such as "file(path='stories.txt', tokenizer='bpe(vocab=4096)')" to a corpus."""

from collections.abc import Callable

from train.data.bad import way_out
from train.data.spec import parse_data
from train.data.text.files import file, jsonl
from train.data.text.prepared import tfds
from train.data.text.shakespeare import shakespeare
from train.data.text.source import Corpus, Texts, contiguous, with_validation
from train.data.text.tokenizers import Tokenizer
from train.data.text.topics import topics
from train.data.text.windows import evaluation_windows, packed_batches, training_windows

__all__ = [
    "Corpus", "Texts", "Tokenizer", "contiguous", "evaluation_windows", "load_text", "packed_batches",
    "training_windows",
]  # fmt: skip

TEXTS: dict[str, Callable[..., Corpus]] = {
    "shakespeare": shakespeare, "topics": topics, "file": file, "jsonl": jsonl, "tfds": tfds,
}  # fmt: skip
"""Each function takes keyword arguments; "name:VALUE" gives the first of them."""


def load_text(spec: str, validation: float = 0.0, windows: str = "documents") -> Corpus:
    """Return the corpus that `spec` names; nothing is downloaded.

    Args:
        spec: `"shakespeare"`, `"topics"`, `"file:PATH"`, `"file:FOLDER"`, `"jsonl:PATH"`, `"tfds:NAME"`, or a name with
            arguments: `"shakespeare(tokenizer='bpe(vocab=4096)')"`, `"file(path='train.txt', separator='<|endoftext|>',
            held_out='valid.txt')"` (TinyStories as its authors publish it).
        validation: fraction of the training text that takes the place of the held-out documents; 0 = none.
        windows: "documents", or "contiguous": the documents are joined.

    Raises:
        ValueError: an unknown name, a malformed spec, an unknown argument, or one that the corpus refuses.
        TypeError: an argument of another type.
    """
    name, options = parse_data(spec, TEXTS)
    with way_out(name, options):
        corpus = TEXTS[name](**options)
    corpus = with_validation(corpus, validation) if validation else corpus
    return contiguous(corpus) if windows == "contiguous" else corpus
