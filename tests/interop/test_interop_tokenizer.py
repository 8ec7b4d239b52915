"""Tokenizers of GGUF files and of folders: ids, text, special tokens, and text that is held until it is whole."""

import json

import pytest

from pejax.interop import load_tokenizer
from tests.support.gguf_files import byte_tokens, write_gguf
from tests.support.hub_folders import write

MODELS = "tokenizer.ggml.model must be one of gpt2, llama, bert, t5; others are not read yet"
SPLITS = "bloom, poro-chat, gpt3-finnish, falcon, default; others are not read yet"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture
def made(folder, tmp_path):
    return lambda **keys: load_tokenizer(write_gguf(tmp_path / "a.gguf", folder, **byte_tokens(**keys)))


def test_text_comes_back_from_its_ids(made):
    tokenizer = made()
    assert (tokenizer.vocab, tokenizer.bos, tokenizer.eos) == (260, 1, (0,))
    text = "the\tthin\n 12 Grüße, 漢字 🤗 <|end|>"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert ids[-1] == 0
    assert ids[:2] == [259, tokenizer.encode("\t")[0]]
    assert tokenizer.encode("thin")[0] == 258
    assert tokenizer.decode(ids[:1]) == "the"


def test_a_character_is_held_until_its_bytes_are_there(made):
    tokenizer = made()
    ids = tokenizer.encode("a漢🤗!")
    assert len(ids) == 1 + 3 + 4 + 1
    assert [*tokenizer.stream(ids)] == ["a", "漢", "🤗", "!"]
    assert [*tokenizer.stream(iter(ids[:3]))] == ["a", "\ufffd"]
    assert [*tokenizer.stream([])] == []


def test_digits_are_single_where_the_file_says_smollm(made):
    with_pairs = {"tokenizer__ggml__merges": ["t h", "th e", "1 2"]}
    tokens = byte_tokens()["tokenizer__ggml__tokens"]
    more = {"tokenizer__ggml__tokens": [*tokens, "12"], "tokenizer__ggml__token_type": [3, 3] + [1] * (len(tokens) - 1)}
    assert len(made(**with_pairs, **more).encode("12")) == 2
    assert len(made(**with_pairs, **more, tokenizer__ggml__pre="gpt-2").encode("12")) == 1


def test_a_token_before_every_text(made):
    assert made(tokenizer__ggml__add_bos_token=True).encode("the") == [1, 259]
    assert made(tokenizer__ggml__add_bos_token=True).encode("the", special=False) == [259]
    assert made(tokenizer__ggml__add_bos_token=False).encode("the") == [259]
    assert made(tokenizer__ggml__eot_token_id=1).eos == (0, 1)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"tokenizer__ggml__model": "rwkv"}, f"{MODELS}, got 'rwkv'"),
        ({"tokenizer__ggml__model": None}, f"{MODELS}, got None"),
        ({"tokenizer__ggml__pre": "superbpe"}, f"{SPLITS}, got 'superbpe'"),
        ({"tokenizer__ggml__pre": None}, f"{SPLITS}, got None"),
        ({"tokenizer__ggml__tokens": "abc"}, "tokenizer.ggml.tokens must be a list, each of type str, got abc"),
        ({"tokenizer__ggml__merges": [1, 2]}, "tokenizer.ggml.merges must be a list, each of type str, got [1, 2]"),
        ({"tokenizer__ggml__eos_token_id": "<|end|>"}, "eos_token_id must be an integer from 0 to 259, got '<|end|>'"),
        ({"tokenizer__ggml__add_bos_token": 3}, "tokenizer.ggml.add_bos_token must be true or false, got 3"),
        ({"tokenizer__ggml__token_type": [1]}, "got 260 tokens with 260 texts and 1 types"),
        (
            {"tokenizer__ggml__merges": ["t z z"]},
            "must be pairs of tokens that make a token, with a space between, got 't z",
        ),
        (
            {"tokenizer__ggml__add_bos_token": True, "tokenizer__ggml__bos_token_id": 999},
            "tokenizer.ggml.bos_token_id must be an integer from 0 to 259, got 999",
        ),
    ],
)
def test_kinds_that_are_not_known(keys, message, made):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        made(**keys)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_folder_has_the_tokenizer_and_the_ids_of_its_ends(made, tmp_path):
    own = made(tokenizer__ggml__add_bos_token=True)
    content = json.loads(own.library.to_str())
    content["truncation"] = {"max_length": 2, "stride": 0, "strategy": "LongestFirst", "direction": "Right"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.bos, tokenizer.eos) == (None, ())
    assert tokenizer.encode("the thin") == [1, 259, *own.encode(" thin")[1:]]
    (tmp_path / "config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": 0}))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    assert (tokenizer.bos, tokenizer.eos) == (1, (0,))
    (tmp_path / "generation_config.json").write_text(json.dumps({"bos_token_id": 5, "eos_token_id": [7, 9]}))
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.bos, tokenizer.eos) == (5, (0, 7, 9))
    for token in ("the", {"content": "the", "__type": "AddedToken"}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": token, "bos_token": None}))
        tokenizer = load_tokenizer(tmp_path)
        assert (tokenizer.bos, tokenizer.eos) == (5, (259, 0, 7, 9))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": ["0"]}))
    with pytest.raises(ValueError, match=r"generation_config\.json: eos_token_id must be an id or a list of ids, got"):
        load_tokenizer(tmp_path)


def test_a_text_ends_before_its_stops(made):
    tokenizer = made()
    ids = tokenizer.encode("one, two\n\nthree")
    assert [*tokenizer.stream(ids, stop="two")] == [*"one, "]
    assert "".join(tokenizer.stream(ids, stop=["\n\n", "e\n"])) == "one, two"
    assert [*tokenizer.stream(ids, stop="two\t")] == [*"one, ", *("two\n", "\n", "th", *"ree")]
    assert "".join(tokenizer.stream(ids, stop="three, four")) == "one, two\n\nthree"
    assert [*tokenizer.stream(ids, stop=(ids[2], "x"))] == ["o", "n"]
    read = iter(ids)
    assert "".join(tokenizer.stream(read, stop=ids[2])) == "on"
    assert next(read) == ids[3]
    with pytest.raises(ValueError, match="texts of at least one character, got ''"):
        tokenizer.stream(ids, stop="")


def test_files_that_are_no_tokenizers(tmp_path):
    with pytest.raises(ValueError, match=r"must hold tokenizer\.json, got no file of a tokenizer"):
        load_tokenizer(tmp_path)
    with pytest.raises(ValueError, match=r"tokenizer\.json must be a file that can be read, got No such file"):
        load_tokenizer(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(ValueError, match=r"tokenizer\.json must be a tokenizer of the package tokenizers, got "):
        load_tokenizer(tmp_path)
