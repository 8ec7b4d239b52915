"""Tokenizers with a tokenizer_config.json beside them, which has the last word: ids against transformers."""

import json

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from pejax.interop import load_tokenizer
from pejax.interop.tokenizer_settings import folder_settings, named_tokens, with_settings
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
MASK = {**START, "content": "<|im_start|>", "lstrip": True, "rstrip": False}
OLDER = {
    "map": ({}, {"bos_token": "<s>", "eos_token": {**MASK, "content": "</s>"}, "mask_token": MASK}, {}),
    "map, null": ({"eos_token": "</s>"}, {"eos_token": None}, {}),
    "map, further": ({}, {"additional_special_tokens": ["<|end|>"]}, {}),
    "two lists": ({"additional_special_tokens": ["<|end|>"]}, {"additional_special_tokens": ["<|im_start|>"]}, {}),
    "two newer lists": ({"extra_special_tokens": ["<|end|>"]}, {"extra_special_tokens": ["<|im_start|>"]}, {}),
    "added": ({}, {}, {"<|im_start|>": 301, "<|end|>": 300}),
    "both": ({}, {"eos_token": "<|end|>", "mask_token": MASK}, {"<|end|>": 300, "<|im_start|>": 301, "fox": 302}),
    "known": ({}, {"pad_token": "</s>"}, {"<pad>": 2, "<|end|>": 300}),
    "newer": ({"added_tokens_decoder": {}}, {"eos_token": "</s>"}, {"<|end|>": 300}),
    "split": ({"split_special_tokens": True}, {"eos_token": "</s>"}, {"<|end|>": 300}),
}
"""Settings, and content of special_tokens_map.json and added_tokens.json, which older folders have."""


def write_older(folder, name):
    settings, special, added = OLDER[name]
    write(folder, "nothing more")
    contents = {"tokenizer_config": {"tokenizer_class": "PreTrainedTokenizerFast", **settings}}
    contents |= {"special_tokens_map": special, "added_tokens": added}
    for file, content in contents.items():
        (folder / f"{file}.json").write_text(json.dumps(content))
    return folder


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


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OLDER)
def test_older_files_are_read_as_in_transformers(name, tmp_path):
    folder = write_older(tmp_path / "a", name)
    theirs = peer("transformers").AutoTokenizer.from_pretrained(folder)
    own = load_tokenizer(folder)
    for text in (TEXT, "Ünïcode <s> <|im_start|> Grüße <pad> <|end|> x </s>"):
        assert own.encode(text) == theirs(text)["input_ids"]
    ends = [] if theirs.eos_token_id is None else [theirs.eos_token_id]
    assert (own.vocab, own.bos, [*own.eos]) == (len(theirs), theirs.bos_token_id, ends)


def test_older_files_count_where_no_token_is_numbered(tmp_path):
    load = lambda name: load_tokenizer(write_older(tmp_path / name, name))
    plain, mapped, both = (load(name) for name in ("newer", "map", "both"))
    assert (plain.bos, plain.eos) == (None, ())
    assert (mapped.bos, mapped.eos) == (0, (1,))
    assert both.encode("<|end|>") == [plain.vocab] == [*both.eos]
    assert named_tokens(folder_settings(tmp_path / "both"), "") == {"<|end|>", "<|im_start|>"}
    (tmp_path / "both" / "added_tokens.json").write_text('{"<x>": "300"}')
    with pytest.raises(ValueError, match=r"added_tokens\.json must map tokens to ids, got {'<x>': '300'}"):
        load_tokenizer(tmp_path / "both")


def test_special_tokens_in_a_text_are_cut_where_the_settings_say_so(tmp_path):
    tokenizer = load_tokenizer(write_older(tmp_path / "a", "split"))
    assert tokenizer.eos == (1,)
    assert len(tokenizer.encode("</s>")) > 1
    assert tokenizer.decode(tokenizer.encode("</s>")) == "</s>"


SPACE = "\u2581"
PREFIXES = [
    (normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]), None),
    (None, pre_tokenizers.Metaspace(SPACE, prepend_scheme="first")),
    (None, pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(SPACE)])),
]


@pytest.mark.parametrize("kind", ["LlamaTokenizer", "XLMRobertaTokenizerFast", "CamembertTokenizer"])
@pytest.mark.parametrize(("normalizer", "step"), PREFIXES)
def test_a_space_that_tokenizer_json_puts_before_texts_is_said(kind, normalizer, step, recwarn):
    tokenizer = Tokenizer(models.BPE())
    settings = {"tokenizer_class": kind, "add_prefix_space": False}
    with_settings(json.loads(tokenizer.to_str()), settings, "a")
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, step
    with_settings(json.loads(tokenizer.to_str()), {"tokenizer_class": kind}, "a")
    assert not recwarn
    with pytest.warns(UserWarning, match="^a: add_prefix_space false of tokenizer_config.json is not read") as said:
        with_settings(json.loads(tokenizer.to_str()), settings, "a")
    assert "\n" not in str(said[0].message)


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
