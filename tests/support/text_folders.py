"""Small folders of embedding models and classifiers: random weights, a tokenizer of words, files of modules."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel, WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer, WhitespaceSplit
from tokenizers.processors import TemplateProcessing

from tests.support.hub_folders import write

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = tuple(f"w{number}" for number in range(90))
MODULES = "sentence_transformers.models."
POOLING = "pooling_mode_{}"
"""Keys of pooling in older files."""

TEXTS = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9 w10 w11 w12 w13 w14 w15 w16 w17 w18 w19 w20", "w21 w22 w89", "w1 w2 strange"]
PAIRS = [("w1 w2", "w3 w4 w5"), ("w6", "w7"), ("w8 w9 w10 w11", "w12 w13 w14 w15 w16 w17")]


def texts_of(count: int, seed: int = 0, longest: int = 40) -> list[str]:
    """Return texts of random words."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(1, longest))) for _ in range(count)]


def add_tokenizer(folder: Path, *, decoder: bool = False, bert: bool = False, **settings: Any) -> Path:
    """Write a tokenizer of `WORDS`: texts between [CLS] and [SEP], or for a decoder before [SEP]; or one of BERT."""
    vocab = {token: number for number, token in enumerate((*SPECIAL, *WORDS))}
    library = Tokenizer((WordPiece if bert else WordLevel)(vocab, unk_token="[UNK]"))
    library.normalizer = BertNormalizer() if bert else None
    library.pre_tokenizer = BertPreTokenizer() if bert else WhitespaceSplit()
    library.add_special_tokens([*SPECIAL])
    single, pair = ("$A [SEP]", "$A $B [SEP]") if decoder else ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1")
    library.post_processor = TemplateProcessing(single=single, pair=pair, special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    library.save(str(folder / "tokenizer.json"))
    names = {f"{token[1:-1].lower()}_token": token for token in SPECIAL} | {"eos_token": "[SEP]"}
    kind = "BertTokenizer" if bert else "PreTrainedTokenizerFast"
    content = {"tokenizer_class": kind, "model_max_length": 48, **names, **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(content))
    return folder


def write_json(path: Path, content: Any) -> Path:
    """Write a JSON file, and the folder that it is in."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def write_embedder(
    folder: Path,
    name: str = "bert",
    *,
    pooling: Mapping[str, Any] = {"pooling_mode_mean_tokens": True},
    after: Sequence[str | Mapping[str, Any]] = (),
    settings: Mapping[str, Any] = {},
    transformer: Mapping[str, Any] = {},
    tokenizer: Mapping[str, Any] = {},
    types: str = MODULES,
    **config: Any,
) -> Path:
    """Write a folder of sentence-transformers.

    Args:
        folder: its path.
        name: the model, of `CONFIGS` in `hub_folders.py`.
        pooling: keys of the pooling's config.
        after: what follows: "Normalize", or the keys of a linear layer's config.
        settings: keys of config_sentence_transformers.json.
        transformer: keys of sentence_bert_config.json.
        tokenizer: keys of tokenizer_config.json, and `decoder`.
        types: what comes before the names of modules.
        config: other values of keys of config.json.
    """
    add_tokenizer(write(folder, name, **config), **tokenizer)
    modules = [("Transformer", ""), ("Pooling", "1_Pooling")]
    write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 32, **pooling})
    rng = np.random.default_rng(0)
    for number, module in enumerate(after, 2):
        kind = module if isinstance(module, str) else "Dense"
        modules.append((kind, f"{number}_{kind}"))
        if not isinstance(module, str):
            place = write_json(folder / f"{number}_Dense" / "config.json", module).parent
            shapes = {"weight": (module["out_features"], module["in_features"])}
            shapes |= {"bias": shapes["weight"][:1]} if module["bias"] else {}
            values = {f"linear.{key}": 0.3 * rng.normal(size=shape) for key, shape in shapes.items()}
            save_file({key: value.astype(np.float32) for key, value in values.items()}, place / "model.safetensors")
    entries = [
        {"idx": number, "name": f"{number}", "path": path, "type": f"{types}{kind}"}
        for number, (kind, path) in enumerate(modules)
    ]
    write_json(folder / "modules.json", entries)
    if settings:
        write_json(folder / "config_sentence_transformers.json", settings)
    if transformer:
        write_json(folder / "sentence_bert_config.json", transformer)
    return folder
