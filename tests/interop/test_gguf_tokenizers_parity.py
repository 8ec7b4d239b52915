"""Tokenizers in GGUF files against those of transformers: ids of a text with everything that they differ in."""

import json
import warnings
from pathlib import Path

import pytest

from pejax.interop import load_tokenizer
from tests.support.gguf_files import write_gguf
from tests.support.gguf_tokenizers import (
    DECOMPOSED,
    HOSTILE,
    of_bytes,
    of_sentencepiece,
    of_unigram,
    of_words,
)
from tests.support.hub_folders import CONFIGS
from tests.support.peers import peer

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

CORPUS = [
    Path(__file__).read_text(),
    HOSTILE,
    HOSTILE.replace("  ", " "),
    "the thin thing, they're there 2024 and 1999",
]
ENDS = ["<|end|>", "<tool>"]
TEXTS = (HOSTILE, " leading", "  two", "a", "", "\n", "word<|end|>word", "tail   ")


def library(class_name: str, **options):
    """Return the tokenizer of the package within a class of transformers, without tokens."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(peer("transformers"), class_name)(**options)


def with_pattern(name: str):
    """Return a tokenizer that cuts a text by the pattern that transformers has for a name in a GGUF file."""
    tokenizers = peer("tokenizers")
    patterns = peer("transformers.integrations.gguf.gguf_tokenizer_mapping").GGUF_PRE_TOKENIZER_SPLITS
    made, split = tokenizers.Tokenizer(tokenizers.models.BPE()), tokenizers.pre_tokenizers
    made.pre_tokenizer = split.Sequence([
        split.Split(tokenizers.Regex(patterns[name]), behavior="isolated"),
        split.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    return made


def trained(steps):
    """Return a trained tokenizer of bytes with the steps of another one, a special and an ordinary token."""
    tokenizers = peer("tokenizers")
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer, backend.decoder = steps.pre_tokenizer, tokenizers.decoders.ByteLevel()
    if steps.normalizer is not None:
        backend.normalizer = steps.normalizer
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=alphabet, show_progress=False, special_tokens=["<|end|>"]
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_tokens([tokenizers.AddedToken("<tool>", normalized=False)])
    return backend


def loaded(tmp_path, **keys):
    return load_tokenizer(write_gguf(tmp_path / "a.gguf", CONFIGS["llama"], values={}, **keys))


CLASSES = {
    "gpt-2": "GPT2Tokenizer", "phi-2": "CodeGenTokenizer", "qwen2": "Qwen2Tokenizer", "qwen35": "Qwen3_5Tokenizer",
    "command-r": "CohereTokenizer", "mpt": "GPTNeoXTokenizer", "olmo": "GPTNeoXTokenizer",
    "modern-bert": "GPTNeoXTokenizer", "roberta-bpe": "RobertaTokenizer",
}  # fmt: skip


@pytest.mark.parametrize("pre", [*CLASSES, "llama-bpe", "dbrx", "lfm2", "tekken", "gpt-4o", "llama4"])
def test_bytes(pre, tmp_path):
    backend = library(CLASSES[pre]).backend_tokenizer if pre in CLASSES else with_pattern(pre)
    theirs = trained(backend)
    ours = loaded(tmp_path, **of_bytes(theirs, pre, add_bos_token=False))
    for text in (*TEXTS, DECOMPOSED):
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids, text
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text).ids, skip_special_tokens=False)


def test_a_mask_takes_the_spaces_before_it(tmp_path):
    tokenizers = peer("tokenizers")
    theirs = trained(library("RobertaTokenizer").backend_tokenizer)
    mask = tokenizers.AddedToken("<mask>", lstrip=True, normalized=False, special=True)
    theirs.add_special_tokens([mask])
    keys = of_bytes(theirs, "roberta-bpe", mask_token_id=theirs.token_to_id("<mask>"))
    ours = loaded(tmp_path, **keys)
    for text in (HOSTILE, "a  <mask> b", "<mask>"):
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids


def as_llama(prefixed: bool):
    """Return a trained tokenizer of SentencePiece's pairs, as in the tokenizer.json of Llama 2 or of Gemma."""
    tokenizers = peer("tokenizers")
    normalizers, made = tokenizers.normalizers, tokenizers.Tokenizer(tokenizers.models.BPE(fuse_unk=True))
    replace = normalizers.Replace(" ", "\u2581")
    made.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), replace] if prefixed else [replace])
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=900, special_tokens=special, show_progress=False)
    words = [
        word for line in CORPUS for word in line.replace(" ", " \u2581").split() if word.isascii() or len(word) < 9
    ]
    made.train_from_iterator(words, trainer)
    return made


@pytest.mark.parametrize("prefixed", [True, False])
def test_pairs_of_sentencepiece(prefixed, tmp_path):
    tokenizers = peer("tokenizers")
    content = json.loads(as_llama(prefixed).to_str())
    content["added_tokens"] = content["added_tokens"][:3]
    content["model"] |= {"unk_token": "<unk>", "byte_fallback": True}
    theirs = tokenizers.Tokenizer.from_str(json.dumps(content))
    keys = of_sentencepiece(theirs, bos_token_id=1, eos_token_id=2, unknown_token_id=0, add_space_prefix=prefixed)
    ours = loaded(tmp_path, **keys)
    for text in (*TEXTS, DECOMPOSED, "<s>a</s> <unk>"):
        assert ours.encode(text, special=False) == theirs.encode(text).ids, text
        assert ours.encode(text) == [1, *theirs.encode(text).ids]


@pytest.mark.parametrize("lower", [True, False])
def test_words(lower, tmp_path):
    tokenizers, theirs = peer("tokenizers"), library("BertTokenizer", do_lower_case=lower)
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = tokenizers.trainers.WordPieceTrainer(vocab_size=500, special_tokens=names, show_progress=False)
    theirs.backend_tokenizer.train_from_iterator(CORPUS, trainer)
    ids = {"cls_token_id": 2, "seperator_token_id": 3, "unknown_token_id": 1, "mask_token_id": 4}
    ours = loaded(tmp_path, **of_words(theirs.backend_tokenizer, **ids))
    for text in (*TEXTS, DECOMPOSED):
        assert ours.encode(text) == theirs.encode(text), text
        assert ours.encode(text, special=False) == theirs.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("class_name", ["T5Tokenizer", "XLMRobertaTokenizer"])
def test_unigram(class_name, tmp_path):
    tokenizers, steps = peer("tokenizers"), library(class_name).backend_tokenizer
    is_t5 = class_name == "T5Tokenizer"
    names = ["<pad>", "</s>", "<unk>"] if is_t5 else ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    numbers = {name: number for number, name in enumerate(names)}
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=300, special_tokens=names, unk_token="<unk>", show_progress=False
    )
    theirs = tokenizers.Tokenizer(tokenizers.models.Unigram())
    theirs.pre_tokenizer, theirs.decoder = steps.pre_tokenizer, steps.decoder
    theirs.train_from_iterator([line.replace("\x00", "").replace("<", "") for line in CORPUS], trainer)
    theirs.post_processor = steps.post_processor
    ids = {"eos_token_id": numbers["</s>"], "unknown_token_id": numbers["<unk>"], "add_eos_token": True}
    if not is_t5:
        ids |= {"bos_token_id": numbers["<s>"], "add_bos_token": True}
    keys = of_unigram(theirs, **ids, add_space_prefix=True, remove_extra_whitespaces=True)
    ours = loaded(tmp_path, **keys)
    for text in (*TEXTS, DECOMPOSED):
        assert ours.encode(text) == theirs.encode(text).ids, text
        assert ours.encode(text, special=False) == theirs.encode(text, add_special_tokens=False).ids
