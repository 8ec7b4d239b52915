"""What a path holds that is no model of ours, in words, and the way to one."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ADAPTER, PIPELINE, MODULES, MAKERS = "adapter_config.json", "model_index.json", "modules.json", "params.json"
MARKS = (ADAPTER, PIPELINE, MODULES, MAKERS)
"""Files by which such folders are known."""


def other_content(path: Path) -> str:
    """Return what is at a path where no folder of a model is, and the way to one; nothing where there may be one."""
    if path.is_file():
        return "a file: load the folder that it is in, which has config.json and the weights"
    if (path / ADAPTER).exists():
        base = _read(path / ADAPTER).get("base_model_name_or_path")
        of_base = f" of {base}" if isinstance(base, str) else ""
        alone = "; without that file the model beside it is loaded" if (path / "config.json").exists() else ""
        way = f"peft's merge_and_unload() makes a whole model of both, to be saved{alone}"
        return f"an adapter{of_base} ({ADAPTER}): {way}"
    if os.path.lexists(path / "config.json"):
        kind = _read(path / "config.json").get("_class_name")
        return f"a part of a diffusers pipeline, {kind}: pejax has its encoding, not its model" if kind else ""
    parts = sorted(part.parent.name for part in path.glob("*/config.json"))
    within = (
        f"; {'folders' if parts[1:] else 'a folder'} in it with config.json: {', '.join(parts)[:200]}" if parts else ""
    )
    if (path / PIPELINE).exists():
        return f"a diffusers pipeline: load a text encoder from its own folder{within}"
    if (path / MODULES).exists():
        return f"a folder of sentence-transformers without a config.json: load the model in it{within}"
    if own := sorted(file.name for pattern in ("consolidated*", MAKERS) for file in path.glob(pattern)):
        return (
            f"weights in a format of the makers' own, {own[0]}: get the files that transformers reads, with config.json"
        )
    return f"a folder without config.json{within}"


def other_weights(directory: Path) -> str:
    """Return the weights in a folder with a config.json and no `model.safetensors`, and the way to those."""
    shards = sorted(path.name for path in directory.glob("model-*-of-*.safetensors"))
    if shards:
        return f"{shards[0]} without the index, which says where each tensor is: get it from where the files come from"
    own = sorted(path.name for path in directory.glob("consolidated*"))
    if own:
        return f"{own[0]}, in a format of the makers' own: get the safetensors files that transformers reads"
    pickles = sorted(path.name for kind in ("*.bin", "*.pt", "*.pth", "*.ckpt") for path in directory.glob(kind))
    if not pickles:
        return "neither"
    convert = "AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(OTHER), or that of another class"
    return f"{pickles[0]}, a pickle, which can run code; where you trust it, convert it by transformers' {convert}"


def other_tokenizer(directory: Path) -> str:
    """Return the files of a tokenizer in a folder without tokenizer.json, and the way to that."""
    names = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "vocab.json", "vocab.txt", "tekken.json")
    files = [name for name in names if (directory / name).exists()]
    way = "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER), of transformers, writes tokenizer.json"
    return f"{files[0]}: {way}" if files else "no file of a tokenizer"


def _read(path: Path) -> Mapping[str, Any]:
    """Return the object of a JSON file, empty where it is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
