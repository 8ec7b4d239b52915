"""Embedding models against sentence-transformers, from the same folders."""

import os

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer
from tokenizers.processors import TemplateProcessing

from pejax.interop import load_embedder
from tests.support.peers import peer
from tests.support.text_folders import TEXTS, texts_of, write_embedder

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

TANH, IDENTITY = "torch.nn.modules.activation.Tanh", "torch.nn.modules.linear.Identity"
DENSE = {"in_features": 32, "out_features": 24, "bias": True, "activation_function": TANH}
TWO = (
    {**DENSE, "out_features": 64, "bias": False, "activation_function": IDENTITY},
    {**DENSE, "in_features": 64, "bias": False, "activation_function": IDENTITY},
    "Normalize",
)
LEFT = {"decoder": True, "padding_side": "left"}
PROMPTS = {"prompts": {"query": "w30 w31 w32 ", "document": ""}, "default_prompt_name": "query"}
LAYOUTS = {
    "mean": {},
    "cls": {"pooling": {"pooling_mode_cls_token": True}},
    "max": {"pooling": {"pooling_mode_max_tokens": True}, "after": ("Normalize",)},
    "mean by the root of the length": {"pooling": {"pooling_mode": "mean_sqrt_len_tokens"}},
    "last token, left": {"name": "llama", "pooling": {"pooling_mode_lasttoken": True}, "tokenizer": LEFT},
    "weighted mean": {"name": "llama", "pooling": {"pooling_mode_weightedmean_tokens": True},
                      "tokenizer": {"decoder": True}},
    "weighted mean, left": {"name": "llama", "pooling": {"pooling_mode_weightedmean_tokens": True}, "tokenizer": LEFT},
    "three modes": {"pooling": {"pooling_mode_max_tokens": True, "pooling_mode_cls_token": True,
                                "pooling_mode_mean_tokens": True}},
    "three modes, new": {"pooling": {"embedding_dimension": 32, "pooling_mode": ["mean", "cls", "lasttoken"]}},
    "LaBSE": {"pooling": {"pooling_mode_cls_token": True}, "after": (DENSE, "Normalize")},
    "EmbeddingGemma": {"name": "gemma3_text", "after": TWO, "tokenizer": {"decoder": True}},
    "prompts": {"settings": PROMPTS},
    "prompts that are left out": {"settings": PROMPTS, "pooling": {"pooling_mode": "mean", "include_prompt": False}},
    "prompts that are left out of the first": {
        "settings": PROMPTS, "pooling": {"pooling_mode": ["cls", "weightedmean", "max"], "include_prompt": False}},
    "prompts that are left out, left": {
        "name": "llama", "settings": PROMPTS, "pooling": {"pooling_mode": "mean", "include_prompt": False},
        "tokenizer": LEFT},
    "qwen3": {"name": "qwen3", "pooling": {"pooling_mode_lasttoken": True}, "after": ("Normalize",),
              "tokenizer": LEFT},
    "truncated": {"settings": {"truncate_dim": 20}, "after": ("Normalize",)},
    "lowered": {"transformer": {"max_seq_length": 12, "do_lower_case": True}},
    "cut on the left": {"transformer": {"max_seq_length": 9}, "tokenizer": {"truncation_side": "left"}},
    "cut on the left, by tokenizer.json": {"transformer": {"max_seq_length": 9}, "direction": "Left"},
    "no longest length": {"transformer": {"max_seq_length": 9}, "tokenizer": {"model_max_length": None}},
    "prompts that end in a token without a name": {
        "name": "llama", "settings": {"prompts": {"query": "w30 <new>"}, "default_prompt_name": "query"},
        "pooling": {"pooling_mode": "mean", "include_prompt": False}, "special": "<new>"},
    "roberta": {"name": "roberta", "pooling": {"pooling_mode_cls_token": True}, "pad_token_id": 0},
    "modernbert": {"name": "modernbert", "after": ("Normalize",)},
}  # fmt: skip


def vectors(folder, texts, **options):
    """Return the vectors of sentence-transformers."""
    model = peer("sentence_transformers").SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    return model, model.encode(texts, batch_size=3, **options)


def cosines(ours, theirs):
    """Return the cosine of each pair of vectors."""
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    return np.sum(ours.astype(float) * theirs, axis=1) / lengths


@pytest.mark.parametrize("layout", LAYOUTS)
def test_vectors_are_those_of_sentence_transformers(layout, tmp_path):
    os.environ["HF_HUB_OFFLINE"] = "1"
    options = {**LAYOUTS[layout]}
    direction, special = (options.pop(name, None) for name in ("direction", "special"))
    folder = write_embedder(tmp_path / "a", **options)
    library = Tokenizer.from_file(str(folder / "tokenizer.json"))
    if direction:
        library.enable_truncation(30, direction=direction.lower())
    if special:
        library.post_processor = TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
        library.add_tokens([AddedToken("w90", special=False), AddedToken(special, special=True)])
    library.save(str(folder / "tokenizer.json"))
    texts = [*TEXTS, "W7 W8 w9", *texts_of(9)]
    theirs, expected = vectors(folder, texts)
    embedder = load_embedder(folder)
    result = embedder.encode(texts, batch=4)
    assert result.shape == expected.shape
    assert result.dtype == np.float32
    assert embedder.max_length == theirs.max_seq_length
    difference = np.max(1 - cosines(result, expected))
    print(f"largest 1 - cosine: {layout}: {difference:.1e}")
    assert difference < 1e-6
    np.testing.assert_allclose(result, expected, atol=2e-4)
    np.testing.assert_allclose(embedder.similarity(result, result), theirs.similarity(expected, expected), atol=1e-4)
