"""`python -m pejax.interop PATH`: what a folder or a GGUF file holds, from config.json and headers alone."""

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from pejax.interop.records import stacks
from pejax.interop.source import Source, carried_tensors, open_source, skipped_rows
from pejax.models import Text
from pejax.models.runs import runs


class Parser(argparse.ArgumentParser):
    """A parser that refuses in one line."""

    def error(self, message: str) -> NoReturn:
        """Print the message and leave with status 2."""
        print(f"error: {message}", file=sys.stderr)
        raise SystemExit(2)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print what the path on the command line holds; refuse, in one line, what `load` would refuse."""
    about = "What a Hugging Face folder or a GGUF file holds."
    parser = Parser(prog="python -m pejax.interop", description=about, allow_abbrev=False)
    parser.add_argument("path", help="a folder with config.json and safetensors files, or a GGUF file")
    parser.add_argument("--ignore", default="", metavar="KEYS", help="keys that may be left unread: a,b")
    options = parser.parse_args(arguments)
    try:
        source, _ = open_source(Path(options.path), tuple(filter(None, options.ignore.split(","))))
    except ValueError as refusal:
        parser.error(str(refusal))
    print("\n".join(describe(source)))


def describe(source: Source) -> list[str]:
    """Return the lines that say what a model is, what its encodings are and what is carried."""
    record, tensors = source.record, source.tensors
    count = sum(math.prod(tensor.shape) for name, tensor in tensors.items())
    files = {tensor.file for tensor in tensors.values()}
    types = sorted({tensor.kind or tensor.dtype for tensor in tensors.values()})
    lines = [
        f"{source.config['model_type']}: {count:,} numbers in {len(tensors)} tensors, {len(files)} file(s), "
        f"{' and '.join(types)}",
    ]
    lines += [f"{side}{line}" for side, text in stacks(record).items() for line in _stack_lines(text)]
    if source.head_copy is not None:
        lines.append(f"tied: yes, unless {source.head_copy} differs from the table of token vectors")
    lines += [f"carried: {name} {tensors[name].dtype} {tensors[name].shape}" for name in carried_tensors(source)]
    lines += [f"copy of the table: {name}" for name in source.copies]
    return lines + [f"carried: the first {one.start} rows of {one.tensor}" for one in skipped_rows(source)]


def _stack_lines(text: Text) -> list[str]:
    """Return the lines that say what one stack of layers is."""
    kinds = list(dict.fromkeys(text.blocks))
    letters = dict(zip(kinds, range(len(kinds)), strict=True))
    pattern = " + ".join(
        f"{repeats} x ({' '.join(f'kind {letters[block]}' for block in pattern)})"
        for pattern, repeats in runs(text.blocks)
    )
    lines = [
        f"vocab={text.vocab} width={text.width} length={text.length} layers={len(text.blocks)} "
        f"causal={text.causal} embed_scale={text.embed_scale}",
        f"embed_norm: {text.embed_norm}", f"norm: {text.norm}", f"head: {text.head}",
        f"layers: {pattern}",
    ]  # fmt: skip
    lines += [f"kind {number}: {block}" for block, number in letters.items()]
    for pe, extend in dict.fromkeys((block.attention.pe, block.attention.extend) for block in text.blocks):
        own = [n for n, b in enumerate(text.blocks) if (b.attention.pe, b.attention.extend) == (pe, extend)]
        lines.append(f"encoding: {pe}, extend {extend}: {len(own)} layer(s), from layer {own[0]}")
    return lines
