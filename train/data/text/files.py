"""Text in files: one plain file, or one JSON object per line; a file is read at once."""

import json
import re
from pathlib import Path

from train.data.text.source import HELD_OUT, Corpus, Texts, checked_fraction, decoded, divided


def file(*, path: str, separator: str = "", held_out: float | str = HELD_OUT, tokenizer: str = "bytes") -> Corpus:
    r"""Return the text of a UTF-8 file; line ends become \n.

    TinyStories as one file: fetch `TinyStoriesV2-GPT4-train.txt` and `TinyStoriesV2-GPT4-valid.txt` from its page
    (huggingface.co/datasets/roneneldan/TinyStories); the separator is `<|endoftext|>`, the second file `held_out`.

    Args:
        path: path of the file.
        separator: the line between two documents; if empty, the file is one document.
        held_out: fraction of the documents, chosen by the sha256 of their text, so that equal ones stay together; for a
            single document the last part, from the start of a line; or the path of a second file, all of which is
            held out.
        tokenizer: `bytes`, `bpe(vocab=N)` or the path of a tokenizer.json.

    Raises:
        ValueError: no such file, invalid UTF-8, no training or held-out document, or the tokenizer refuses the text.
    """
    if "\n" in separator:
        raise ValueError(f"separator must be one line, got {separator!r}")
    source = Path(path).expanduser()
    documents = _documents(source, separator)
    if isinstance(held_out, str):
        return _two_files(source, documents, held_out, _documents(Path(held_out).expanduser(), separator), tokenizer)
    if separator:
        return _divided_file(source, documents, held_out, tokenizer)
    (text,) = documents.values()
    at = _line_begin(text, 1 - checked_fraction(held_out), source)
    last = f"its last {held_out:.0%}"
    note = f"{source.name}, one document, held out: {last}"
    return Texts((text[:at],), (text[at:],), (last,), source.stem, note).encoded(tokenizer)


def jsonl(*, path: str, key: str = "text", held_out: float | str = HELD_OUT, tokenizer: str = "bytes") -> Corpus:
    """Return the documents of a file with one JSON object per line.

    Args:
        path: path of the file.
        key: name of the text in an object.
        held_out: fraction of the documents, chosen by the sha256 of their text, so that equal ones stay together; or
            the path of a second file, all of which is held out.
        tokenizer: `bytes`, `bpe(vocab=N)` or the path of a tokenizer.json.

    Raises:
        ValueError: no such file, invalid UTF-8, a line that is not JSON or lacks the key, no training or held-out
            document, or the tokenizer refuses the text.
    """
    source = Path(path).expanduser()
    documents = _objects(source, key)
    if isinstance(held_out, str):
        return _two_files(source, documents, held_out, _objects(Path(held_out).expanduser(), key), tokenizer)
    return _divided_file(source, documents, held_out, tokenizer)


def _divided_file(source: Path, documents: dict[str, str], fraction: float, tokenizer: str) -> Corpus:
    """Return the corpus of a file, a fraction of whose documents is held out."""
    train, held = divided(documents, fraction, str(source))
    return _corpus(source, train, held, "drawn by content", tokenizer)


def _two_files(source: Path, documents: dict[str, str], second: str, held: dict[str, str], tokenizer: str) -> Corpus:
    """Return the corpus of a training file and a second file, which is held out."""
    if source.samefile(Path(second).expanduser()):
        raise ValueError(f"held_out must be another file than the one trained on, got {second!r}")
    return _corpus(source, documents, held, f"from {Path(second).name}", tokenizer)


def _corpus(source: Path, train: dict[str, str], held: dict[str, str], how: str, tokenizer: str) -> Corpus:
    note = f"{source.name}, {len(train) + len(held):,} documents, of which {len(held):,} held out, {how}"
    return Texts(tuple(train.values()), tuple(held.values()), tuple(held), source.stem, note).encoded(tokenizer)


def _read(path: Path) -> str:
    if not path.is_file():
        raise ValueError(f"a text must be a file, got {'the folder' if path.is_dir() else 'no file'} {str(path)!r}")
    return decoded(path.read_bytes(), str(path)).removeprefix("\ufeff").replace("\r\n", "\n")


def _documents(path: Path, separator: str) -> dict[str, str]:
    """Return the documents of a file by name, "document 1"."""
    parts = re.split(rf"(?m)^{re.escape(separator)}$", _read(path)) if separator else [_read(path)]
    kept = [part.strip("\n") for part in parts] if separator else parts
    return _nonempty({f"document {number}": part for number, part in enumerate(filter(str.strip, kept), 1)}, path)


def _objects(path: Path, key: str) -> dict[str, str]:
    """Return the texts of the objects by name, "line 1"."""
    found = {}
    for number, line in enumerate(_read(path).split("\n"), 1):
        if not line.strip():
            continue
        where = f"line {number} of {path}"
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):  # whose text may quote the line, and a config may name any file
            raise ValueError(f"{where} must be JSON, got something else") from None
        if not isinstance(content, dict) or not isinstance(content.get(key), str):
            kind = "another one" if isinstance(content, dict) else f"a {type(content).__name__}"
            raise ValueError(f"{where} must be an object with text under {key!r}, got {kind}")
        if any("\ud800" <= letter <= "\udfff" for letter in content[key]):
            raise ValueError(f"{where} must hold Unicode text, got half of a surrogate pair")
        if content[key]:
            found[f"line {number}"] = content[key]
    return _nonempty(found, path)


def _nonempty(documents: dict[str, str], path: Path) -> dict[str, str]:
    if not documents:
        raise ValueError(f"{path} must hold a document, got {path.stat().st_size} bytes without one")
    return documents


def _line_begin(text: str, fraction: float, path: Path) -> int:
    """Return the start of the line at this fraction of the text, or else of the next line."""
    near = round(fraction * len(text))
    at = text.rfind("\n", 0, near) + 1 or text.find("\n", near) + 1
    if not 0 < at < len(text):
        raise ValueError(f"{path} must hold two lines to be cut between, got one")
    return at
