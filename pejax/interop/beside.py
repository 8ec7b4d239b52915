"""Small files beside the weights, without which a saved folder would not do what the one that was loaded does."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from pejax.interop.generation_settings import FILE, read_settings
from pejax.interop.gguf_file import read_header
from pejax.interop.tokenizer import load_tokenizer
from pejax.interop.tokenizer_settings import settings_of_gguf

KEPT = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json"),
    *("vocab.txt", "merges.txt", "spiece.model", "sentencepiece*.model", "tekken.json"),
    *("tokenizer.model", "tokenizer.model.v[0-9]", "tokenizer.model.v[0-9]m[0-9]"),
    *("chat_template.json", "chat_template.jinja", "additional_chat_templates/*.jinja", "generation_config.json"),
    *("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"),
    # those of sentence-transformers; a module such as 2_Dense has weights of its own
    *("modules.json", "sentence_*_config.json", "config_sentence_transformers.json", "[0-9]*_*/config.json"),
    *("[0-9]*_*/*.safetensors",),
)
"""Patterns of the files that are kept: of tokenizers, of processors, and of modules after the model; no code."""

LARGEST = 256 * 2**20
"""Largest size in bytes of a file that is kept."""


def keep_files(origin: Path, target: Path) -> list[str]:
    """Copy the small files of a model into a folder that it is saved in; write the tokenizer of a GGUF file into it.

    Args:
        origin: folder or GGUF file that the model was loaded from.
        target: folder with the saved model.

    Returns:
        A line on everything that could not be kept: files that are too large or cannot be read, links out of the
        folder, a tokenizer that is not read, or all of it where the origin is gone.
    """
    if origin.is_file():
        return _write_tokenizer(origin, target)
    if not origin.is_dir():
        return [f"{origin} is gone: the saved folder has no tokenizer and no other file beside the model"]
    notes = []
    for name in _kept_names(origin):
        reason = _refusal(origin, origin / name)
        if not reason:
            try:
                (target / name).parent.mkdir(exist_ok=True)
                shutil.copyfile(origin / name, target / name)
            except OSError as error:
                reason = str(error.strerror or error)
        if reason:
            notes.append(f"{origin / name} was not copied into the saved folder: {reason}")
    return notes


def _kept_names(folder: Path) -> Iterator[Path]:
    """Yield the paths, within a folder, of the files that are kept."""
    for pattern in KEPT:
        yield from (path.relative_to(folder) for path in sorted(folder.glob(pattern)))


def _refusal(folder: Path, path: Path) -> str:
    """Return why a file is not copied, or nothing."""
    content, home = path.resolve(), folder.resolve()
    # The cache of huggingface_hub has links: from snapshots/REVISION/NAME to blobs/DIGEST.
    if not any(content.is_relative_to(place) for place in (home, home.parent.parent / "blobs")):
        return f"it is a link to {content}"
    if not content.is_file():
        return "it is no file"
    size = content.stat().st_size
    return f"it has {size / 2**20:.0f} MiB, more than {LARGEST / 2**20:.0f}" if size > LARGEST else ""


def _write_tokenizer(file: Path, target: Path) -> list[str]:
    """Write the tokenizer that a GGUF file describes, with its special tokens, ends, chat template and sampling."""
    keys = read_header(file).keys
    if "tokenizer.ggml.model" not in keys:
        return []
    try:
        tokenizer = load_tokenizer(file)
    except (ValueError, ImportError) as refused:
        return [f"the saved folder has no tokenizer: {refused}"]
    tokenizer.library.save(str(target / "tokenizer.json"))
    settings = settings_of_gguf(file, keys)
    _, generation = read_settings(file)
    ends = {"eos_token_id": [*tokenizer.eos]} if tokenizer.eos else {}
    for name, content in {"tokenizer_config.json": settings, FILE: {**ends, **generation}}.items():
        (target / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return []
