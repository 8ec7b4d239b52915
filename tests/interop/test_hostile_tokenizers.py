"""Files of tokenizers on which the library panics, crashes or never ends: one line, from both loaders."""

import json

import pytest

from pejax.interop import load_tokenizer, tokenizer_trial
from train.data.text.tokenizers import tokenizer as read_tokenizer

LETTERS = {letter: number for number, letter in enumerate("abcdefghijklmnopqrstuvwxyz .")}
PARTS = ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")
TEMPLATE = {
    "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "[X]", "type_id": 0}}], "pair": [],
    "special_tokens": {},
}  # fmt: skip
PANIC = "a panic of the library: "


def model(kind, vocab=LETTERS, **options):
    return {"type": kind, "vocab": vocab, **options}


def write(folder, **parts):
    bpe = model("BPE", merges=[])
    content = {"version": "1.0", "added_tokens": [], **dict.fromkeys(PARTS), "model": bpe, **parts}
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(content))
    return path


def split(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def sequence(count, **normalizer):
    return {"type": "Sequence", "normalizers": [normalizer] * count}


GROWS = sequence(12, type="Replace", pattern={"String": "a"}, content="a" * 8)
NEVER_ENDS = sequence(200_000, type="Prepend", prepend="aaaa")


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"pre_tokenizer": split("(a+)+$")}, f"{PANIC}Onig: Regex search error"),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}, f"{PANIC}Precompiled: "),
        ({"post_processor": TEMPLATE}, f"{PANIC}no entry found for key"),
        ({"decoder": {"type": "Strip", "content": "a", "start": 10**9, "stop": 10**9}}, f"{PANIC}index out of bounds"),
        (
            {"model": model("BPE", {"a": 0, "b": 1}, merges=[["a", "b"]], continuing_subword_prefix="###")},
            f"{PANIC}range end index",
        ),
        pytest.param({"normalizer": GROWS}, "a need of more than 1 GiB of memory", marks=pytest.mark.slow),
        pytest.param({"normalizer": NEVER_ENDS}, "no answer in 10 seconds", marks=pytest.mark.slow),
    ],
)
def test_what_happens_is_said_in_one_line(parts, reason, tmp_path, capfd):
    path = write(tmp_path, **parts)
    for load, package in (
        (load_tokenizer, "package tokenizers"),
        (lambda path: read_tokenizer(str(path), ()), "tokenizers library"),
    ):
        with pytest.raises(ValueError) as error:  # noqa: PT011
            load(path)
        assert str(error.value).startswith(f"{path} must be a tokenizer of the {package}, got {reason}")
        assert "\n" not in str(error.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "unsure",
    [
        model("Unigram", [["b", 0.0]], unk_id=None),
        model("WordPiece", {"x": 0}, unk_token="[UNK]", continuing_subword_prefix="##", max_input_chars_per_word=9),
        model("WordLevel", {"x": 0}, unk_token="[UNK]"),
    ],
)
def test_a_text_that_cannot_be_encoded_is_refused_where_it_is_encoded(unsure, tmp_path):
    path = write(tmp_path, model=unsure)
    tokens = load_tokenizer(path)
    with pytest.raises(ValueError, match=r"text must be one that the tokenizer can encode, got .*[Mm]issing"):
        tokens.encode("a")
    with pytest.raises(ValueError, match=r"tokenizer\.json must encode any text: "):
        read_tokenizer(str(path), ()).encode("a")


def test_a_panic_on_a_text_of_the_user_is_an_error(tmp_path):
    tokens = load_tokenizer(write(tmp_path, pre_tokenizer=split("(z+)+$")))
    assert tokens.encode("zz") == [25, 25]
    with pytest.raises(ValueError, match="text must be one that the tokenizer can encode, got Onig: "):
        tokens.encode("z" * 5000 + "!")


@pytest.mark.parametrize(
    "parts",
    [
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            split(r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)|\s+"),
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]}},
        {"model": model("WordPiece", {"[UNK]": 0, "the": 1, "##n": 2}, unk_token="[UNK]", max_input_chars_per_word=100,
                        continuing_subword_prefix="##"),
         "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                        "strip_accents": None, "lowercase": True},
         "pre_tokenizer": {"type": "BertPreTokenizer"},
         "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True}},
        {"model": model("Unigram", [["<unk>", 0.0], ["▁the", -1.0], ["n", -2.0], ["▁", -3.0]], unk_id=0),
         "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
         "normalizer": {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}},
        {"model": model("BPE", {"<unk>": 0, "▁": 1, "t": 2, "h": 3, "th": 4}, merges=["t h"], unk_token="<unk>",
                        fuse_unk=True, byte_fallback=True),
         "normalizer": {"type": "Sequence", "normalizers": [
             {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
         "decoder": {"type": "Sequence", "decoders": [
             {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
             {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}},
    ],
    ids=["as Llama 3", "as BERT", "as T5", "as Llama 2"],
)  # fmt: skip
def test_ordinary_tokenizers_give_the_ids_of_the_library(parts, tmp_path):
    library = pytest.importorskip("tokenizers").Tokenizer
    path = write(tmp_path, **parts)
    text = "the  thinner, THE then\n"
    ids = library.from_file(str(path)).encode(text).ids
    tokens = load_tokenizer(path)
    assert tokens.encode(text) == ids
    assert tokens.decode(ids) == library.from_file(str(path)).decode(ids, skip_special_tokens=False)


def test_a_file_is_tried_once(tmp_path, monkeypatch):
    path = write(tmp_path, pre_tokenizer={"type": "Whitespace"})
    load_tokenizer(path)
    monkeypatch.setattr(tokenizer_trial, "outcome_of", None)
    assert load_tokenizer(path).encode("a") == [0]
