"""`python -m pejax.interop PATH`: describes a folder, config.json or GGUF file, from keys and headers alone."""

import argparse
import collections
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from pejax._process.text import printable
from pejax._record.specs import EncodingSpec, Spec
from pejax.interop.config import read_json
from pejax.interop.files import A_MODEL, has_weights
from pejax.interop.gguf_parts import part_paths
from pejax.interop.model_config import name_of, notes, read_config
from pejax.interop.other_folders import MARKS, other_weights
from pejax.interop.source import Source, carried_tensors, tables_with_skipped_rows, tokens_with_rows
from pejax.interop.source_files import open_source
from pejax.interop.stacks import ModelConfig, stacks
from pejax.models import TransformerConfig, ViTConfig
from pejax.models.configs.pattern import patterns


class Parser(argparse.ArgumentParser):
    """A parser that refuses in one line."""

    def error(self, message: str) -> NoReturn:
        """Print the message and leave with status 2."""
        print(f"error: {printable(message)}", file=sys.stderr)
        raise SystemExit(2)


def main(arguments: Sequence[str] | None = None) -> None:
    """Describe the path on the command line, or print in one line the error that `load` would raise.

    Several paths, or a folder of JSON files without config.json, get one line each.
    """
    about = "Describes a Hugging Face folder, a config.json or a GGUF file; of several, says which are accepted."
    parser = Parser(prog="python -m pejax.interop", description=about, allow_abbrev=False)
    parser.add_argument("paths", nargs="+", metavar="path", help=f"{A_MODEL}; or a config.json alone")
    parser.add_argument("--ignore", default="", metavar="NAMES", help="keys and tensors to leave unread: a,b.c,d.*")
    options = parser.parse_args(arguments)
    ignore = tuple(filter(None, options.ignore.split(",")))
    paths = [path for argument in options.paths for path in _configs(Path(argument))]
    if paths != [Path(options.paths[0])]:
        return _list(paths, ignore)
    try:
        content = _open(paths[0], ignore)
    except ValueError as refusal:
        parser.error(str(refusal))
    lines = describe(content) if isinstance(content, Source) else _describe_config(*content)
    print(printable("\n".join([*lines, *_notes(content, paths[0], ignore)])))


def _configs(path: Path) -> list[Path]:
    """Return the path itself, or the files of a folder that holds JSON files and nothing of a model."""
    is_model = any((path / name).exists() for name in ("config.json", *MARKS))
    files = sorted(path.glob("*.json")) if path.is_dir() and not is_model else []
    return files or [path]


def _open(path: Path, ignore: Sequence[str]) -> Source | tuple[str, ModelConfig]:
    """Return the source of a path; where it has no weights, the name of the architecture and the config."""
    alone = path / "config.json" if (path / "config.json").exists() and not has_weights(path) else path
    if alone.suffix != ".json" or other_weights(path) != "neither":
        return open_source(path, ignore)[0]
    keys = read_json(alone)
    return name_of(keys), read_config(keys, ignore)


def _notes(content: Source | tuple[str, ModelConfig], path: Path, ignore: Sequence[str]) -> list[str]:
    """Return lines on what config.json has that is not obeyed."""
    if isinstance(content, Source):
        return notes(content.config_json, ignore)
    return notes(read_json(path / "config.json" if path.is_dir() else path), ignore)


def _list(paths: Sequence[Path], ignore: Sequence[str]) -> None:
    """Print a line for every path, accepted or refused, and their numbers; leave with status 1 if one is refused."""
    refused = 0
    for path in paths:
        try:
            content = _open(path, ignore)
            line = "accepted: " + _summary(
                *((content.name, content.config) if isinstance(content, Source) else content)
            )
        except ValueError as refusal:
            refused, line = refused + 1, f"refused: {refusal}"
        print(printable(f"{path}: {line}"))
    print(f"{len(paths) - refused} accepted, {refused} refused")
    if refused:
        raise SystemExit(1)


def _summary(name: str, config: ModelConfig) -> str:
    """Return one line on a model."""
    texts = stacks(config).values()
    encodings = {layer.attention.pe: None for text in texts for layer in text.layers}
    named = " and ".join(dict.fromkeys(map(_short, encodings)))
    return f"{name}, {sum(len(text.layers) for text in texts)} layers of width {next(iter(texts)).width}, {named}"


def _short(pe: Spec) -> str:
    """Return the names of an encoding and its extension."""
    names = [pe.name] if isinstance(pe, EncodingSpec) else [str(pe)]
    terms = pe.extend.terms if isinstance(pe, EncodingSpec) and pe.extend is not None else ()
    return " with ".join([*names, *(term.name for term in terms)])


def _describe_config(name: str, config: ModelConfig) -> list[str]:
    """Return lines that describe the model of a config.json."""
    lines = [f"{side}{line}" for side, text in stacks(config).items() for line in _stack_lines(text)]
    return [f"{name}: accepted by its config.json; no weights here", *lines]


def describe(source: Source) -> list[str]:
    """Return lines that describe a model, its encodings and the carried tensors."""
    config, tensors = source.config, source.tensors
    count = sum(math.prod(tensor.shape) for name, tensor in tensors.items())
    file = source.origin if source.origin and source.origin.is_file() else None  # of GGUF
    files = part_paths(file) if file else {tensor.file for tensor in tensors.values()}
    types = sorted({tensor.kind or tensor.dtype for tensor in tensors.values()})
    lines = [
        f"{source.name}: {count:,} numbers in {len(tensors)} tensors, {len(files)} file(s), {' and '.join(types)}",
    ]
    lines += [f"{side}{line}" for side, text in stacks(config).items() for line in _stack_lines(text)]
    if source.head_copy is not None:
        lines.append(f"tied: yes, unless {source.head_copy} differs from the table of token vectors")
    lines += _carried(source)
    lines += [f"copy of {original}: {name}" for name, original in source.copies.items()]
    tables, tokens = tables_with_skipped_rows(source), tokens_with_rows(source)
    lines += [f"carried: the first {table.start} rows of {table.tensor}" for table in tables]
    return lines + [f"added: its row of the table of positions, to {token.tensor}" for token in tokens]


def _carried(source: Source) -> list[str]:
    """Return a line for every carried tensor, or one for all of a part with many."""
    names = carried_tensors(source)
    part_of = lambda name: name.removeprefix("model.").split(".")[0]
    parts = collections.Counter(map(part_of, names))
    many = [part for part, count in parts.items() if count > 20]
    rare = [name for name in names if part_of(name) not in many]
    lines = [f"carried: {parts[part]} tensors of {part}" for part in many]
    return lines + [f"carried: {name} {source.tensors[name].dtype} {source.tensors[name].shape}" for name in rare]


def _text(config: TransformerConfig) -> list[str]:
    """Return lines on the ends of a text model."""
    return [
        f"vocab={config.vocab} width={config.width} length={config.length} layers={len(config.layers)} "
        f"causal={config.causal} embed_scale={config.embed_scale} padding={config.padding}",
        f"embed_norm: {config.embed_norm}", f"norm: {config.norm}", f"head: {config.head}",
    ]  # fmt: skip


def _picture(config: ViTConfig) -> list[str]:
    """Return lines on the ends of a vision transformer."""
    head = f"{config.classes} classes, pool {config.pool!r}, distilled={config.distilled}"
    return [
        f"image={config.image_size} patch={config.patch} grid={config.grid} channels={config.channels} "
        f"width={config.width} layers={len(config.layers)}",
        f"tokens: cls={config.cls} registers={config.registers}, coordinates {config.coordinates!r}",
        f"embed_norm: {config.embed_norm}", f"norm: {config.norm}", f"head: {head if config.classes else None}",
    ]  # fmt: skip


def _stack_lines(text: TransformerConfig | ViTConfig) -> list[str]:
    """Return lines on one stack of layers."""
    kinds = list(dict.fromkeys(text.layers))
    letters = dict(zip(kinds, range(len(kinds)), strict=True))
    pattern = " + ".join(
        f"{repeats} x ({' '.join(f'kind {letters[layer]}' for layer in pattern)})"
        for pattern, repeats in patterns(text.layers)
    )
    lines = [*(_picture(text) if isinstance(text, ViTConfig) else _text(text)), f"layers: {pattern}"]
    lines += [f"kind {number}: {layer}" for layer, number in letters.items()]
    for pe in dict.fromkeys(layer.attention.pe for layer in text.layers):
        numbers = [number for number, layer in enumerate(text.layers) if layer.attention.pe == pe]
        lines.append(f"encoding: {pe}: {len(numbers)} layer(s), from layer {numbers[0]}")
    return lines
