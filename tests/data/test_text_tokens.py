"""Tokenizers: round trips, determinism, files of the tokenizers library, every error in one line."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.data.text import tokenizers as tokens
from train.data.text.loading import Tokenizer, load_text
from train.data.text.tokenizers import Bytes, tokenizer

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@pytest.fixture(scope="module")
def pairs() -> Tokenizer:
    return tokenizer("bpe(vocab=300)", ["the cat and the hat and the rat"] * 9)


@given(ANY_TEXT)
def test_bytes_keep_any_text(text: str) -> None:
    ids = Bytes().encode(text)
    assert (ids.dtype, ids.tolist()) == (np.uint16, list(text.encode()))
    assert Bytes().decode(ids) == text


@given(text=ANY_TEXT)
def test_pairs_keep_any_text(text: str, pairs: Tokenizer) -> None:
    assert pairs.decode(pairs.encode(text)) == text


def test_pairs_are_merged_and_always_the_same(pairs: Tokenizer) -> None:
    ids = pairs.encode("the cat and the hat")
    assert (len(ids), ids.dtype) == (5, np.uint16)
    again = tokenizer("bpe(vocab=300)", ["the cat and the hat and the rat"] * 9)
    assert (again.identity, pairs.vocab) == (pairs.identity, int(pairs.identity[3:].partition("-")[0]))
    assert 256 < pairs.vocab < 300, "the text is too short for more"
    assert tokenizer("bpe(vocab=257)", ["the the"]).vocab == 257
    assert tokenizer("bpe(vocab=257)", ["an an"]).identity != tokenizer("bpe(vocab=257)", ["the the"]).identity


def test_many_texts_are_encoded_as_each_is(pairs: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "AT_ONCE", 3)
    many = ["the cat", "", "é the hat", "rat", "a", "the", "and the rat"]
    for kind in (pairs, Bytes()):
        for ids, text in zip(kind.encode_all(many), many, strict=True):
            assert ids.dtype == np.uint16
            assert ids.tolist() == kind.encode(text).tolist()
            assert kind.decode(ids) == text


def write_words(path: Path, vocab: dict[str, int], **entries: object) -> Path:
    """Write a tokenizer.json of whole words and return its path."""
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": "?"}
    keys = "truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"
    content = {"version": "1.0", "added_tokens": [], **dict.fromkeys(keys), "model": model}
    path.write_text(json.dumps({**content, "pre_tokenizer": {"type": "Whitespace"}, **entries}))
    return path


def test_a_file_of_a_tokenizer_is_read_without_its_extras(tmp_path: Path) -> None:
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    begin = {"SpecialToken": {"id": "?", "type_id": 0}}
    template = {
        "type": "TemplateProcessing", "single": [begin, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [],
        "special_tokens": {"?": {"id": "?", "ids": [0], "tokens": ["?"]}},
    }  # fmt: skip
    path = write_words(
        tmp_path / "words.json", {"?": 0, "a": 1, "b": 2}, truncation=truncation, post_processor=template
    )
    words = tokenizer(str(path), [])
    assert words.vocab == 3
    np.testing.assert_array_equal(words.encode("a b b c a"), [1, 2, 2, 0, 1])
    assert words.decode(np.array([2, 1])) == "b a"
    with pytest.raises(ValueError, match=r"token ids of words\.json must be from 0 to 2, got 3"):
        words.decode([0, 3])
    gap = tokenizer(str(write_words(tmp_path / "gap.json", {"?": 0, "a": 1, "b": 70_000})), [])
    with pytest.raises(ValueError, match=r"token ids of gap\.json must be from 0 to 2, got 70000"):
        gap.encode("a b")
    mute = tokenizer(str(write_words(tmp_path / "mute.json", {"a": 0})), [])
    with pytest.raises(ValueError, match=r"mute\.json must encode any text: .*[Mm]issing"):
        mute.encode("b")
    large = write_words(tmp_path / "large.json", {"?": 0, **{f"w{at}": at for at in range(1, 65_537)}})
    assert tokenizer(str(large), []).encode("w65536").dtype == np.int32


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("words", r"tokenizer must be 'bytes', 'bpe\(vocab=N\)' or a path of a tokenizer.json, got 'words'"),
        ("bpe(vocab=255)", r"must have N of at least 256, one token per byte, got 255"),
        ("bpe(size=300)", "tokenizer must be"),
        ("nowhere.json", "a tokenizer.json must be a file, got 'nowhere.json'"),
    ],
)
def test_a_bad_tokenizer_is_answered_in_one_line(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        load_text(f"shakespeare(tokenizer={spec!r})")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("content", [b"{", b"{}", b"\xff", b'{"model": {"type": "none"}}'])
def test_a_damaged_tokenizer_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"tokenizer\.json must be a tokenizer of the tokenizers library") as raised:
        tokenizer(str(tmp_path / "tokenizer.json"), [])
    assert "\n" not in str(raised.value)


def test_bytes_outside_the_vocabulary_are_refused() -> None:
    for wrong in (256, -1):
        with pytest.raises(ValueError, match=f"token ids of bytes must be from 0 to 255, got {wrong}"):
            Bytes().decode([65, wrong])
    assert Bytes().decode([65, 255]) == "A�"
