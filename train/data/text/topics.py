"""The documentation of the Python language that comes with every Python: about half a megabyte of English."""

from train.data.text.source import Corpus, Texts


def topics(*, tokenizer: str = "bytes") -> Corpus:
    """Return the topics of `help()` in alphabetical order, as two documents; the second half is held out.

    Args:
        tokenizer: `bytes`, `bpe(vocab=N)` or the path of a tokenizer.json.

    Raises:
        ValueError: the tokenizer refuses the text.
    """
    from pydoc_data.topics import topics as texts

    text = "\n".join(texts[name] for name in sorted(texts))
    cut = text.index("\n", len(text) // 2) + 1
    note = "the topics of Python's help(), held out: the second half"
    return Texts((text[:cut],), (text[cut:],), ("second half",), "topics", note).tokenize(tokenizer)
