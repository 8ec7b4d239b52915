"""`python -m pejax.interop PATH`: describes a folder or a GGUF file, from config.json and headers alone."""

import argparse
import collections
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from pejax._text import printable
from pejax.interop.source import Source, carried_tensors, open_source, skipped_rows, tokens_with_rows
from pejax.interop.stacks import stacks
from pejax.models import TransformerConfig, ViTConfig
from pejax.models.configs.pattern import patterns


class Parser(argparse.ArgumentParser):
    """A parser that refuses in one line."""

    def error(self, message: str) -> NoReturn:
        """Print the message and leave with status 2."""
        print(f"error: {printable(message)}", file=sys.stderr)
        raise SystemExit(2)


def main(arguments: Sequence[str] | None = None) -> None:
    """Describe the path on the command line, or print in one line the error that `load` would raise."""
    about = "Describes a Hugging Face folder or a GGUF file."
    parser = Parser(prog="python -m pejax.interop", description=about, allow_abbrev=False)
    parser.add_argument("path", help="a folder with config.json and safetensors files, or a GGUF file")
    parser.add_argument("--ignore", default="", metavar="KEYS", help="keys that may be left unread: a,b")
    options = parser.parse_args(arguments)
    try:
        source, _ = open_source(Path(options.path), tuple(filter(None, options.ignore.split(","))))
    except ValueError as refusal:
        parser.error(str(refusal))
    print(printable("\n".join(describe(source))))


def describe(source: Source) -> list[str]:
    """Return lines that describe a model, its encodings and the carried tensors."""
    config, tensors = source.config, source.tensors
    count = sum(math.prod(tensor.shape) for name, tensor in tensors.items())
    files = {tensor.file for tensor in tensors.values()}
    types = sorted({tensor.kind or tensor.dtype for tensor in tensors.values()})
    lines = [
        f"{source.name}: {count:,} numbers in {len(tensors)} tensors, {len(files)} file(s), {' and '.join(types)}",
    ]
    lines += [f"{side}{line}" for side, text in stacks(config).items() for line in _stack_lines(text)]
    if source.head_copy is not None:
        lines.append(f"tied: yes, unless {source.head_copy} differs from the table of token vectors")
    lines += _carried(source)
    lines += [f"copy of {original}: {name}" for name, original in source.copies.items()]
    lines += [f"carried: the first {one.start} rows of {one.tensor}" for one in skipped_rows(source)]
    return lines + [f"added: its row of the table of positions, to {one.tensor}" for one in tokens_with_rows(source)]


def _carried(source: Source) -> list[str]:
    """Return a line for every carried tensor, or one for all of a part with many."""
    names = carried_tensors(source)
    part_of = lambda name: name.removeprefix("model.").split(".")[0]
    parts = collections.Counter(map(part_of, names))
    many = [part for part, count in parts.items() if count > 20]
    few = [name for name in names if part_of(name) not in many]
    lines = [f"carried: {parts[part]} tensors of {part}" for part in many]
    return lines + [f"carried: {name} {source.tensors[name].dtype} {source.tensors[name].shape}" for name in few]


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
        own = [number for number, layer in enumerate(text.layers) if layer.attention.pe == pe]
        lines.append(f"encoding: {pe}: {len(own)} layer(s), from layer {own[0]}")
    return lines
