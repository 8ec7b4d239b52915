"""Tokenizers of GGUF files without peers: how each name cuts a text, and the other three kinds."""

import json
from pathlib import Path

import pytest

from pejax.interop import load_tokenizer
from pejax.interop.gguf_splits import SPLITS, pre_tokenizer
from pejax.interop.gguf_tokenizer import tokenizer_of
from pejax.interop.tokenizer_settings import settings_of_gguf
from tests.support.gguf_files import write_gguf
from tests.support.gguf_tokenizers import HOSTILE
from tests.support.hub_folders import CONFIGS

TEXT = "We'll go42 caf\u00e9s, 12345 \u6f22\u5b57!!\n\n  x"
GPT2 = ["We", "'ll", " go", "42", " caf\u00e9s", ",", " 12345", " \u6f22\u5b57", "!!", "\n\n ", " x"]
STARCODER = ["We", "'ll", " go", *"42", " caf\u00e9s", ",", " ", *"12345", " \u6f22\u5b57", "!!", "\n\n ", " x"]
ENDING = [" \u6f22\u5b57", "!!\n\n", " ", " x"]
LLAMA3 = ["We", "'ll", " go", "42", " caf\u00e9s", ",", " ", "123", "45", *ENDING]
QWEN2 = ["We", "'ll", " go", *"42", " caf\u00e9s", ",", " ", *"12345", *ENDING]
GPT4O = ["We'll", *LLAMA3[2:]]
TEKKEN = ["We", "'ll", *QWEN2[2:]]
DEEPSEEK3 = ["We", "'ll", *LLAMA3[2:7], "123", "45", " ", "\u6f22\u5b57", "!!\n\n", " ", " x"]
CODER = ["We", "'", "ll", " go", *"42", " caf\u00e9s", ",", " ", *"12345", " \u6f22\u5b57", "!!", *"\n\n", " ", " x"]
PIECES = {
    "gpt-2": GPT2, "smollm": STARCODER, "command-r": STARCODER, "llama-bpe": LLAMA3, "glm4": LLAMA3, "dbrx": LLAMA3,
    "qwen2": QWEN2, "qwen35": QWEN2, "tekken": TEKKEN, "gpt-4o": GPT4O, "deepseek-v3": DEEPSEEK3,
    "seed-coder": [*QWEN2[:-3], "!!", "\n\n", " ", " x"],
    "bloom": ["We'll", " go42", " caf\u00e9s", ",", " 12345", " \u6f22\u5b57", "!!\n\n ", " x"],
}  # fmt: skip


def pieces(name, text):
    """Return the pieces that a text is cut into, without the writing of bytes as characters."""
    tokenizers = pytest.importorskip("tokenizers")
    content = {
        "version": "1.0",
        "pre_tokenizer": pre_tokenizer(name),
        "model": {"type": "BPE", "vocab": {}, "merges": []},
    }
    library = tokenizers.Tokenizer.from_str(json.dumps(content))
    return [text[slice(*span)] for _, span in library.pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize("name", PIECES)
def test_how_a_text_is_cut(name):
    assert pieces(name, TEXT) == PIECES[name]


def test_falcon_cuts_numbers_after_words():
    assert pieces("falcon", "We'll go42, 12345!!") == ["We", "'", "ll", " go", "42", ",", " ", "123", "45", "!!"]


def test_no_letter_is_lost():
    for name in {*SPLITS} - {"falcon"}:  # whose numbers are also bytes within letters
        assert "".join(pieces(name, HOSTILE)) == HOSTILE


def loaded(tmp_path, kind, tokens, kinds, **keys):
    values = {"model": kind, "tokens": tokens, "token_type": kinds, **keys}
    keys = {f"tokenizer__ggml__{name}": value for name, value in values.items()}
    return load_tokenizer(write_gguf(tmp_path / "a.gguf", CONFIGS["llama"], values={}, **keys))


BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES_OF_LLAMA = ["<unk>", "<s>", "</s>", *BYTES, "\u2581", "t", "h", "e", "th", "\u2581th", "he", "\u2581the", "  "]
SCORES = [0.0] * 259 + [-9.0, -9.0, -9.0, -9.0, -1.0, -2.0, -3.0, -4.0, -1000.0]
KINDS = [2, 3, 3, *[6] * 256, *[1] * 8, 4]


def test_pairs_of_sentencepiece(tmp_path):
    first = PIECES_OF_LLAMA.index("\u2581")
    made = lambda **keys: loaded(tmp_path, "llama", PIECES_OF_LLAMA, KINDS, scores=SCORES, **keys)
    tokenizer = made()
    assert (tokenizer.bos, tokenizer.eos) == (1, (2,))
    assert tokenizer.encode("the") == [1, first + 7]
    assert tokenizer.encode("hethe", special=False) == [first, first + 6, first + 4, first + 3]
    assert tokenizer.encode("\n", special=False) == [first, 3 + 10]
    assert tokenizer.encode("</s>", special=False) == [2]
    assert tokenizer.decode(tokenizer.encode(" the\u6f22 the", special=False)) == " the\u6f22 the"
    bare = made(add_space_prefix=False, add_bos_token=False, add_eos_token=True)
    assert bare.encode("the") == [first + 4, first + 3, 2]
    assert bare.encode("  the", special=False) == [first, first + 7]
    others = [*SCORES[:-5], -5.0, -4.0, -3.0, -2.0, -1.0]
    gemma = tokenizer_of(Path("x"), {**keys_of(PIECES_OF_LLAMA, scores=others), "general.architecture": "gemma2"})
    assert gemma.content["model"]["merges"] == [
        ["t", "h"],
        ["\u2581", "th"],
        ["h", "e"],
        ["\u2581th", "e"],
        ["\u2581", "\u2581"],
    ]


def keys_of(tokens, **more):
    values = {"model": "llama", "tokens": tokens, "token_type": KINDS, "scores": SCORES, **more}
    return {f"tokenizer.ggml.{name}": value for name, value in values.items()}


def test_tokens_around_a_text():
    of_bytes = {"model": "gpt2", "scores": [], "merges": [], "bos_token_id": 1, "eos_token_id": 2}
    around = lambda pre, **keys: tokenizer_of(
        Path("x"), keys_of(PIECES_OF_LLAMA, **{**of_bytes, "pre": pre, **keys})
    ).content["post_processor"]
    ids = lambda part: [token.get("SpecialToken", token.get("Sequence"))["id"] for token in part]
    assert around("qwen2") is None
    assert ids(around("llama-bpe")["single"]) == ["<s>", "A"]
    assert around("llama-bpe", add_bos_token=False) is None
    roberta = around("roberta-bpe", add_bos_token=True, add_eos_token=True, add_sep_token=True)
    assert ids(roberta["single"]) == ["<s>", "A", "</s>"]
    assert ids(roberta["pair"]) == ["<s>", "A", "</s>", "</s>", "B", "</s>"]


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "\u2581the", "n", "\u2581caf", "e", "\u2581,"]


def test_words(tmp_path):
    made = lambda tokens=WORDS, **keys: loaded(
        tmp_path, "bert", tokens, [3] * 5 + [1] * (len(tokens) - 5), cls_token_id=2, seperator_token_id=3, **keys
    )
    tokenizer = made()
    assert tokenizer.encode("The then,\tCaf\u00e9 zz[MASK]") == [2, 5, 5, 6, 9, 7, 8, 1, 4, 3]
    assert tokenizer.encode("the", special=False) == [5]
    assert tokenizer.decode([5, 6]) == "then"
    assert made(normalizer__lowercase=False).encode("The the", special=False) == [1, 5]
    assert made([*WORDS, "\u2581The"]).encode("The THE the", special=False) == [10, 1, 5]


PARTS = ["<pad>", "</s>", "<unk>", "\u2581", "\u2581the", "n", "t", "\u2581then"]


def test_unigram(tmp_path):
    scores = [0.0, 0.0, 0.0, -3.0, -1.0, -2.0, -4.0, -2.5]
    made = lambda **keys: loaded(tmp_path, "t5", PARTS, [3, 3, 2, 1, 1, 1, 1, 1], scores=scores, eos_token_id=1, **keys)
    tokenizer = made()
    assert tokenizer.encode(" the   then ") == [4, 7, 1]
    assert tokenizer.encode("the nt", special=False) == [4, 3, 5, 6]
    assert made(add_eos_token=False, add_space_prefix=False).encode("the") == [6, 2]
    with pytest.raises(ValueError, match="a panic of the library: Precompiled"):
        made(precompiled_charsmap=[1, 2, 3])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"scores": [0.0]}, "tokenizer.ggml.scores must be 268 numbers, one for each token, got 1"),
        ({"bos_token_id": 999}, "tokenizer.ggml.bos_token_id must be an integer from 0 to 267, got 999"),
        ({"unknown_token_id": -2}, "tokenizer.ggml.unknown_token_id must be an integer from 0 to 267, got -2"),
        ({"padding_token_id": "x"}, "tokenizer.ggml.padding_token_id must be an integer from 0 to 267, got 'x'"),
        ({"eos_token_id": True}, "tokenizer.ggml.eos_token_id must be an integer from 0 to 267, got True"),
        ({"eot_token_id": 268}, "tokenizer.ggml.eot_token_id must be an integer from 0 to 267, got 268"),
        ({"mask_token_id": [1, 2]}, "tokenizer.ggml.mask_token_id must be an integer from 0 to 267, got [1, 2]"),
        ({"token_type": [1]}, "got 268 tokens with 268 texts and 1 types"),
    ],
)
def test_what_does_not_fit_together(keys, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        tokenizer_of(Path("x"), keys_of(PIECES_OF_LLAMA, **keys))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("none", [-1, 2**32 - 1])
def test_ids_that_stand_for_no_token(none):
    keys = keys_of(PIECES_OF_LLAMA, padding_token_id=none, unknown_token_id=none, eot_token_id=none, cls_token_id=1)
    assert settings_of_gguf(Path("x"), keys) == {"tokenizer_class": "PreTrainedTokenizerFast", "cls_token": "<s>"}
    tokenizer = tokenizer_of(Path("x"), keys)
    assert (tokenizer.bos, tokenizer.eos) == (1, (2,))
    assert tokenizer.content["model"]["unk_token"] == "<unk>"
