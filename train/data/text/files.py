"""Text in files: plain text, or one JSON object per line; one file, or all of a folder or a pattern; read at once."""

import glob
import json
import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from train.data.bad import require_readable
from train.data.text.source import HELD_OUT, Corpus, Texts, decode_text, hold_out, require_fraction


def file(
    *,
    path: str,
    separator: str = "",
    held_out: float | str = HELD_OUT,
    on_error: str = "stop",
    tokenizer: str = "bytes",
) -> Corpus:
    r"""Return the text of UTF-8 files; line ends become \n.

    TinyStories as one file: fetch `TinyStoriesV2-GPT4-train.txt` and `TinyStoriesV2-GPT4-valid.txt` from its page
    (huggingface.co/datasets/roneneldan/TinyStories); the separator is `<|endoftext|>`, the second file `held_out`.

    Args:
        path: path of a file; of a folder, whose files `*.txt` at any depth are read, sorted by name; or a pattern such
            as `books/*.md`, in which `**` stands for folders at any depth.
        separator: the line between two documents; if empty, each file is one document.
        held_out: fraction of the documents, chosen by the sha256 of their text, so that equal ones stay together; for a
            single file without separators the last part, from the start of a line; or what is held out as a whole, a
            second file, folder or pattern.
        on_error: action at files that cannot be read, or are empty, among others: `stop` refuses the text and names
            them; `skip` leaves them out.
        tokenizer: `bytes`, `bpe(vocab=N)` or the path of a tokenizer.json.

    Raises:
        ValueError: no such file, an empty or binary one, one of JSON objects, invalid UTF-8, no training or held-out
            document, held-out documents that are all trained on, or the tokenizer refuses the text.
    """
    if "\n" in separator:
        raise ValueError(f"separator must be one line, got {separator!r}")
    read = partial(_documents, separator=separator)
    source, files = Path(path).expanduser(), _files(path, ".txt")
    documents, skipped = _read_all(files, read, f"texts of {path}", on_error)
    if isinstance(held_out, str):
        held, held_skipped = _read_held_out(held_out, ".txt", files, read, "texts", on_error)
        return _corpus(source, documents, held, f"from {Path(held_out).name}", skipped + held_skipped, tokenizer)
    if separator or not source.is_file():
        return _corpus_of_one_source(source, documents, held_out, skipped, tokenizer)
    (text,) = documents.values()
    at = _line_begin(text, 1 - require_fraction(held_out), source)
    last = f"its last {held_out:.0%}"
    note = f"{source.name}, one document, held out: {last}"
    return Texts((text[:at],), (text[at:],), (last,), source.stem, note).tokenize(tokenizer)


def jsonl(
    *,
    path: str,
    key: str = "text",
    held_out: float | str = HELD_OUT,
    on_error: str = "stop",
    tokenizer: str = "bytes",
) -> Corpus:
    """Return the documents of files with one JSON object per line.

    Args:
        path: path of a file; of a folder, whose files `*.jsonl` are read; or a pattern, as in `file`.
        key: name of the text in an object.
        held_out: fraction of the documents, chosen by the sha256 of their text, so that equal ones stay together; or
            what is held out as a whole, a second file, folder or pattern.
        on_error: action at lines and files that cannot be read: `stop` refuses the text and names them; `skip` leaves
            them out.
        tokenizer: `bytes`, `bpe(vocab=N)` or the path of a tokenizer.json.

    Raises:
        ValueError: no such file, invalid UTF-8, a line that is not JSON or lacks the key, no training or held-out
            document, or the tokenizer refuses the text.
    """
    read = partial(_objects, key=key)
    source, files = Path(path).expanduser(), _files(path, ".jsonl")
    documents, skipped = _read_all(files, read, f"lines of {path}", on_error)
    if isinstance(held_out, str):
        held, held_skipped = _read_held_out(held_out, ".jsonl", files, read, "lines", on_error)
        return _corpus(source, documents, held, f"from {Path(held_out).name}", skipped + held_skipped, tokenizer)
    return _corpus_of_one_source(source, documents, held_out, skipped, tokenizer)


def _files(path: str, suffix: str) -> list[Path]:
    """Return the file at a path, the files of a folder, or those that match a pattern, sorted by folders and names."""
    source = Path(path).expanduser()
    if source.is_file() or not (source.is_dir() or glob.has_magic(path)):
        return [source]
    paths = source.rglob(f"*{suffix}") if source.is_dir() else map(Path, glob.iglob(f"{source}", recursive=True))
    files = sorted({file for file in paths if file.is_file()}, key=lambda file: file.parts)
    if not files:
        raise ValueError(f"a text must be in files, got no file {f'*{suffix} in ' if source.is_dir() else ''}{path!r}")
    return files


Read = Callable[[Path], tuple[dict[str, str], list[str]]]
"""Returns the documents of a file by name, and what is wrong with those that cannot be read."""


def _read_all(files: Sequence[Path], read: Read, what: str, on_error: str) -> tuple[dict[str, str], int]:
    """Return the documents of files by name, of several files with the name of the file, and how many are left out."""
    documents: dict[str, str] = {}
    bad: list[str] = []
    for file in files:
        try:
            texts, faults = read(file)
        except ValueError as unreadable:
            texts, faults = {}, [str(unreadable)]
        documents |= texts if len(files) == 1 else {f"{file}, {name}": text for name, text in texts.items()}
        bad += faults
    require_readable(bad, len(documents) + len(bad), what, on_error)
    return documents, len(bad)


def _read_held_out(
    path: str, suffix: str, train: Sequence[Path], read: Read, what: str, on_error: str
) -> tuple[dict[str, str], int]:
    """Return the documents of the files that are held out, none of which is trained on, and how many are left out."""
    files = _files(path, suffix)
    identities = {(status.st_dev, status.st_ino) for status in map(os.stat, train)}
    shared = [file for file in files if file.is_file() and (file.stat().st_dev, file.stat().st_ino) in identities]
    if shared:
        raise ValueError(f"held_out must be another file than the one trained on, got {str(shared[0])!r}")
    return _read_all(files, read, f"held-out {what} of {path}", on_error)


def _corpus_of_one_source(
    source: Path, documents: dict[str, str], fraction: float, skipped: int, tokenizer: str
) -> Corpus:
    """Return the corpus of a file, a fraction of whose documents is held out."""
    train, held = hold_out(documents, fraction, str(source))
    return _corpus(source, train, held, "drawn by content", skipped, tokenizer)


def _corpus(
    source: Path, train: dict[str, str], held: dict[str, str], how: str, skipped: int, tokenizer: str
) -> Corpus:
    note = f"{source.name}, {len(train) + len(held):,} documents, of which {len(held):,} held out, {how}"
    name = source.stem if source.exists() else "texts"
    return Texts(tuple(train.values()), tuple(held.values()), tuple(held), name, note, skipped).tokenize(tokenizer)


def _read(path: Path) -> str:
    if not path.is_file():
        raise ValueError(f"a text must be a file, got {'the folder' if path.is_dir() else 'no file'} {str(path)!r}")
    try:
        content = path.read_bytes()
    except OSError as refused:
        raise ValueError(f"{path} must be a file that can be read, got {refused.strerror}") from None
    if b"\0" in content:
        raise ValueError(
            f"{path} must be text, got a zero byte at offset {content.index(0)}, as binary files and UTF-16 have"
        )
    return decode_text(content, str(path)).removeprefix("\ufeff").replace("\r\n", "\n")


def _documents(path: Path, separator: str) -> tuple[dict[str, str], list[str]]:
    """Return the documents of a file by name, "document 1"; none of them is wrong."""
    text = _read(path)
    if _is_object(text):
        raise ValueError(f"a text must be plain, got JSON objects in {path}: jsonl:{path} reads the text in them")
    parts = re.split(rf"(?m)^{re.escape(separator)}$", text) if separator else [text]
    texts = [part.strip("\n") for part in parts] if separator else parts
    return _nonempty({f"document {number}": part for number, part in enumerate(filter(str.strip, texts), 1)}, path), []


def _is_object(text: str) -> bool:
    """Return whether the first line that is not blank is a JSON object."""
    first = re.search(r"\S[^\n]*", text)
    try:
        return first is not None and first[0][0] == "{" and isinstance(json.loads(first[0]), dict)
    except (ValueError, RecursionError):
        return False


def _objects(path: Path, key: str) -> tuple[dict[str, str], list[str]]:
    """Return the texts of the objects by name, "line 1", and what is wrong with the lines without one."""
    texts, bad = {}, []
    for number, line in enumerate(_read(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            text = _text(line, key)
        except ValueError as wrong:
            bad.append(f"line {number} of {path} {wrong}")
            continue
        if text:
            texts[f"line {number}"] = text
    return texts if bad else _nonempty(texts, path), bad


def _text(line: str, key: str) -> str:
    """Return the text in a JSON object; errors quote nothing of the line, since a config may name any file."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("must be JSON, got something else") from None
    if not isinstance(content, dict) or not isinstance(content.get(key), str):
        kind = "another one" if isinstance(content, dict) else f"a {type(content).__name__}"
        raise ValueError(f"must be an object with text under {key!r}, got {kind}")
    if any("\ud800" <= letter <= "\udfff" for letter in content[key]):
        raise ValueError("must hold Unicode text, got half of a surrogate pair")
    return content[key]


def _nonempty(documents: dict[str, str], path: Path) -> dict[str, str]:
    if not documents:
        raise ValueError(f"{path} must hold a document, got {path.stat().st_size} bytes without one")
    return documents


def _line_begin(text: str, fraction: float, path: Path) -> int:
    """Return the start of the line at this fraction of the text, or else of the next line."""
    middle = round(fraction * len(text))
    at = text.rfind("\n", 0, middle) + 1 or text.find("\n", middle) + 1
    if not 0 < at < len(text):
        raise ValueError(f"{path} must hold two lines to be cut between, got one")
    return at
