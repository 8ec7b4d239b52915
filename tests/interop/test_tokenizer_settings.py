"""Tokenizers with a tokenizer_config.json beside them, which has the last word: ids against transformers."""

import json

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from pejax.interop import load_tokenizer
from tests.support.peers import peer

TEXT = "The Quick brown fox jumps over the lazy dog, Again and again. <|end|><|im_start|>"


def pairs(*, prefix=False):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=prefix), decoders.ByteLevel()
    special, letters = ["<s>", "</s>", "<pad>"], pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=letters, show_progress=False)
    tokenizer.train_from_iterator([TEXT * 20], trainer)
    return tokenizer


def two_steps():
    """Return a tokenizer that splits like Qwen2's, and then turns to bytes."""
    tokenizer = pairs()
    split = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    )
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(split), "isolated"), to_bytes])
    return tokenizer


def pieces():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator([TEXT * 20], trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


START = {
    "content": "<|im_start|>",
    "special": True,
    "lstrip": False,
    "rstrip": True,
    "normalized": False,
    "single_word": False,
}
LLAMA, BERT = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>"}, {"tokenizer_class": "BertTokenizer"}
KNOWN = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<s>", "pad_token": "<pad>"}
QWEN, GPT2 = ({"tokenizer_class": kind, **KNOWN} for kind in ("Qwen2Tokenizer", "GPT2TokenizerFast"))
CASES = {
    "a space before, two steps": (two_steps, {**QWEN, "add_prefix_space": True}),
    "a space before": (pairs, {**GPT2, "add_prefix_space": True}),
    "no space before": (lambda: pairs(prefix=True), GPT2),
    "a space before, plain class": (lambda: pairs(prefix=True), {**LLAMA, "add_prefix_space": False}),
    "nothing more": (pairs, LLAMA),
    "numbered": (pairs, {**LLAMA, "added_tokens_decoder": {"500": START, "3": {**START, "content": "<|end|>"}}}),
    "further": (pairs, {**LLAMA, "additional_special_tokens": ["<|end|>", "<|im_start|>"]}),
    "named": (pairs, {**LLAMA, "eos_token": "<|end|>", "pad_token": {**START, "__type": "AddedToken"}}),
    "known": (pairs, {**LLAMA, "added_tokens_decoder": {"0": {**START, "content": "<s>"}}}),
    "case": (pieces, {**BERT, "do_lower_case": False}),
    "lower case": (pieces, {**BERT, "do_lower_case": True, "strip_accents": True}),
    "case, plain class": (pieces, {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": False}),
}


def write(folder, name):
    make, settings = CASES[name]
    folder.mkdir(exist_ok=True)
    make().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"model_type": "bert" if make is pieces else "llama"}))
    return folder


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_ids_are_those_of_transformers(name, tmp_path):
    folder = write(tmp_path / "a", name)
    theirs = peer("transformers").AutoTokenizer.from_pretrained(folder)
    own = load_tokenizer(folder)
    for text in (TEXT, "Ünïcode <s> Grüße <|end|> x", ""):
        assert own.encode(text) == theirs(text)["input_ids"]
    assert own.vocab == len(theirs)


def test_tokens_of_the_settings_are_tokens(tmp_path):
    plain = load_tokenizer(write(tmp_path / "a", "nothing more"))
    numbered = load_tokenizer(write(tmp_path / "b", "numbered"))
    assert numbered.vocab == plain.vocab + 2
    assert numbered.encode("<|end|><|im_start|>") == [plain.vocab, plain.vocab + 1]  # in the order of their numbers
    assert numbered.decode([plain.vocab]) == "<|end|>"
    assert load_tokenizer(write(tmp_path / "c", "named")).eos == (plain.vocab,)


def test_many_tokens_are_added_at_once(tmp_path):
    folder = write(tmp_path / "a", "nothing more")
    many = {"additional_special_tokens": [f"<t{n}>" for n in range(20_000)]}  # one by one they take two minutes
    (folder / "tokenizer_config.json").write_text(json.dumps(many))
    assert load_tokenizer(folder).vocab > 20_000


def test_case_is_that_of_the_settings(tmp_path):
    keeps, lowers = (load_tokenizer(write(tmp_path / name, name)) for name in ("case", "lower case"))
    assert keeps.encode("the Fox") != keeps.encode("the fox")
    assert lowers.encode("the Fox") == lowers.encode("the fox")


def test_a_space_before_the_text_is_that_of_the_settings(tmp_path):
    before = load_tokenizer(write(tmp_path / "a", "a space before"))
    assert before.encode("the") == before.encode(" the")
    for name in ("a space before, two steps", "a space before, plain class"):
        tokenizer = load_tokenizer(write(tmp_path / name, name))
        assert tokenizer.encode("the") == tokenizer.encode(" the")
    without = load_tokenizer(write(tmp_path / "b", "no space before"))
    assert without.encode("the") != without.encode(" the")


def test_dropout_is_left_out_and_said(tmp_path):
    folder = write(tmp_path / "a", "nothing more")
    before = load_tokenizer(folder).encode(TEXT)
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["dropout"] = 0.5
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.warns(UserWarning, match=r"tokenizer\.json: dropout 0\.5 of merges is left out, with it the same text"):
        tokenizer = load_tokenizer(folder)
    assert [tokenizer.encode(TEXT) for _ in range(5)] == [before] * 5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"added_tokens_decoder": [1]}, r"added_tokens_decoder must map ids to tokens, got \[1\]"),
        ({"added_tokens_decoder": {"a": "b"}}, "added_tokens_decoder must map ids to tokens, got {'a': 'b'}"),
        ({"added_tokens_decoder": {"9" * 5000: "b"}}, "added_tokens_decoder must map ids to tokens, got {'999"),
        ({"bos_token": 3}, "a token must be a text or an object with `content`, got '3'"),
        ({"bos_token": "\ud800"}, "a token must be a text or an object with `content`, got "),
        (
            {"extra_special_tokens": [{"content": None}]},
            "a token must be a text or an object with `content`, got \"{'con",
        ),
    ],
)
def test_settings_that_are_no_tokens(settings, message, tmp_path):
    folder = write(tmp_path / "a", "nothing more")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=r"tokenizer_config\.json: " + message):
        load_tokenizer(folder)
