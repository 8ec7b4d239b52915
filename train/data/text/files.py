"""Text of the user's own: one file, or one JSON object a line; all of it is read at once."""

import json
import re
from pathlib import Path

from train.data.text.source import HELD_OUT, Corpus, Texts, decoded, divided, proper


def file(*, path: str, separator: str = "", held_out: float | str = HELD_OUT, tokenizer: str = "bytes") -> Corpus:
    r"""Return the text of a UTF-8 file; its line ends become \n.

    TinyStories as one file: fetch `TinyStoriesV2-GPT4-train.txt` and `TinyStoriesV2-GPT4-valid.txt` from its page
    (huggingface.co/datasets/roneneldan/TinyStories); the separator is `<|endoftext|>`, the second file `held_out`.

    Args:
        path: of the file.
        separator: the line that stands between two documents; without one the file is one document.
        held_out: share of the documents, drawn by the sha256 of their text so that equal ones are on one side; of one
            document the last share, from a line's begin; or the path of a second file, held out as it is.
        tokenizer: `bytes`, `bpe(vocab=N)` or the path of a tokenizer.json.

    Raises:
        ValueError: no such file, no UTF-8, no document on one side, or what the tokenizer refuses.
    """
    if "\n" in separator:
        raise ValueError(f"separator must be one line, got {separator!r}")
    source = Path(path).expanduser()
    documents = _documents(source, separator)
    if isinstance(held_out, str):
        return _beside(source, documents, held_out, _documents(Path(held_out).expanduser(), separator), tokenizer)
    if separator:
        return _shared(source, documents, held_out, tokenizer)
    (text,) = documents.values()
    at = _line_begin(text, 1 - proper(held_out), source)
    last = f"its last {held_out:.0%}"
    note = f"{source.name}, one document, held out: {last}"
    return Texts((text[:at],), (text[at:],), (last,), source.stem, note).encoded(tokenizer)


def jsonl(*, path: str, key: str = "text", held_out: float | str = HELD_OUT, tokenizer: str = "bytes") -> Corpus:
    """Return the documents of a file that holds one JSON object a line.

    Args:
        path: of the file.
        key: under which an object keeps its text.
        held_out: share of the documents, drawn by the sha256 of their text so that equal ones are on one side; or the
            path of a second file, held out as it is.
        tokenizer: `bytes`, `bpe(vocab=N)` or the path of a tokenizer.json.

    Raises:
        ValueError: no such file, no UTF-8, a line that is no JSON or lacks the key, no document on one side, or what
            the tokenizer refuses.
    """
    source = Path(path).expanduser()
    documents = _objects(source, key)
    if isinstance(held_out, str):
        return _beside(source, documents, held_out, _objects(Path(held_out).expanduser(), key), tokenizer)
    return _shared(source, documents, held_out, tokenizer)


def _shared(source: Path, documents: dict[str, str], share: float, tokenizer: str) -> Corpus:
    """Return the corpus of a file that holds a share of its documents out."""
    train, held = divided(documents, share, str(source))
    return _corpus(source, train, held, "drawn by content", tokenizer)


def _beside(source: Path, documents: dict[str, str], second: str, held: dict[str, str], tokenizer: str) -> Corpus:
    """Return the corpus of a file to train on and a second one that is held out."""
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
    """Return the documents of a file, each under its place in it."""
    parts = re.split(rf"(?m)^{re.escape(separator)}$", _read(path)) if separator else [_read(path)]
    kept = [part.strip("\n") for part in parts] if separator else parts
    return _some({f"document {place}": part for place, part in enumerate(filter(str.strip, kept), 1)}, path)


def _objects(path: Path, key: str) -> dict[str, str]:
    """Return the text of each line's object, under the number of the line."""
    found = {}
    for number, line in enumerate(_read(path).split("\n"), 1):
        if not line.strip():
            continue
        where = f"line {number} of {path}"
        try:
            content = json.loads(line)
        except (ValueError, RecursionError) as broken:
            raise ValueError(f"{where} must be JSON, got {line[:40]!r}: {broken}") from None
        if not isinstance(content, dict) or not isinstance(content.get(key), str):
            raise ValueError(f"{where} must be an object with text under {key!r}, got {line[:40]!r}")
        if any("\ud800" <= letter <= "\udfff" for letter in content[key]):
            raise ValueError(f"{where} must hold Unicode text, got half of a surrogate pair")
        if content[key]:
            found[f"line {number}"] = content[key]
    return _some(found, path)


def _some(documents: dict[str, str], path: Path) -> dict[str, str]:
    if not documents:
        raise ValueError(f"{path} must hold a document, got {path.stat().st_size} bytes without one")
    return documents


def _line_begin(text: str, share: float, path: Path) -> int:
    """Return where the line begins that holds the character at `share` of the text, or else the next one."""
    near = round(share * len(text))
    at = text.rfind("\n", 0, near) + 1 or text.find("\n", near) + 1
    if not 0 < at < len(text):
        raise ValueError(f"{path} must hold two lines to be cut between, got one")
    return at
