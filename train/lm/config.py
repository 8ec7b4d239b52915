"""The settings of a run of `train.lm`, their presets and rules."""

import dataclasses
from typing import Any, Self

from train.engine.options import option, options
from train.engine.sequence_config import ModelConfig, SequenceConfig

PRESETS: dict[str, dict[str, Any]] = {
    "demo": {},
    "tinystories": {
        "data": "file(path='TinyStoriesV2-GPT4-train.txt', separator='<|endoftext|>', "
        "held_out='TinyStoriesV2-GPT4-valid.txt', tokenizer='bpe(vocab=4096)')",
        "windows": "contiguous", "length": 256, "width": 384, "layers": 6, "heads": 6, "batch": 64, "steps": 0,
        "warmup": 400, "lr": 1e-3,
        "log_every": 100, "checkpoint_every": 2000, "probe_every": 1000, "eval_lengths": (128, 256, 512, 1024),
    },
    "gpt2_small": {
        "data": "file(path='openwebtext.txt', separator='<|endoftext|>', tokenizer='bpe(vocab=50257)')",
        "style": "gpt2", "length": 1024, "width": 768, "layers": 12, "heads": 12,
        "batch": 512, "steps": 100_000, "warmup": 2000, "lr": 6e-4, "tied": True, "dtype": "bfloat16",
        "log_every": 100, "checkpoint_every": 2000, "probe_every": 1000,
    },
    "llama_7b": {
        "data": "file(path='text.txt', tokenizer='bpe(vocab=32000)')",
        "length": 4096, "width": 4096, "layers": 32, "heads": 32, "hidden": 11008, "dtype": "bfloat16",
        "batch": 1024, "steps": 500_000, "warmup": 2000, "lr": 3e-4, "remat": "full",
        "log_every": 10, "checkpoint_every": 1000, "probe_every": 0,
    },
}  # fmt: skip


@options
class TextConfig(SequenceConfig):
    """The options of a program that trains a decoder on windows of text."""

    readers = ("file", "jsonl")

    windows: str = option(
        "documents",
        "documents: each window is read within one document; contiguous: across documents",
        "data",
        choices=("documents", "contiguous"),
        late=True,
    )
    extent: int = option(
        0,
        "trained length that --extend starts from; 0 = --length, or that of the run --init",
        "encoding",
        at_least=0,
        copied=True,
        free=True,
        trains=True,
    )
    eval_stride: int = option(
        8,
        "beyond the trained length, every Nth token is compared with a sliding context",
        "evaluation and reports",
        at_least=1,
        free=True,
    )
    eval_limit: int = option(16, "held-out windows of the longest length to evaluate on; 0 = all")
    steps: int = option(1500, "training steps; 0 = one pass over the training text", at_least=0)


@options
class Config(TextConfig, ModelConfig):
    """Train a language model on text, then measure its perplexity at lengths it was not trained at.

    --preset sets all other options; explicitly given options override it.
    """

    program = "lm"
    presets = PRESETS
    eval_factors = (0.5, 1, 2, 4, 8, 16)

    preset: str = option("demo", "demo: minutes on two cores; tinystories: 6 layers, width 384; gpt2_small; llama_7b")
    pe: str = option(
        "rope",
        'positional encoding: "rope(base=500000)", "learned+rope", your own: "my_module:mine(option=1)"',
        copied=True,
    )
    data: str = option(
        "shakespeare", "shakespeare, topics, file:PATH or FOLDER, jsonl:PATH, tfds:NAME, \"NAME(tokenizer='a')\""
    )
    init: str = option("", "run folder whose trained weights training starts from; a rope run with --pe=none is DroPE")
    batch: int = option(16, "windows per step, over all devices")
    lr: float = option(3e-3, "peak learning rate")
    weight_decay: float = option(0.1, "weight decay, of kernels only")
    clip: float = option(1.0, "clip the gradient to this global norm; 0 = no clipping")
    extend: str = option(
        "none", "context extension: pi, ntk, yarn, longrope, slopes, ...; after commas, others to evaluate with, too"
    )

    length: int = option(128, "tokens of a training window", "data", copied=True)
    width: int = option(96, "channels of the residual stream")

    probe_every: int = option(
        250,
        "steps between measurements of the loss on positions 0 to L and L to 2L; 0 = never",
        "evaluation and reports",
        at_least=0,
        free=True,
    )
    eval_lengths: tuple[int, ...] = option(
        (), "lengths to evaluate at, tokens; empty = 0.5, 1, 2, 4, 8, 16 times --length", "evaluation and reports"
    )

    def validated(self) -> Self:
        """Return the config after checking it, with its extent filled in."""
        super().validated()
        is_extended = self.extensions[0] != "none" or any(spec.is_extended for spec in self.pattern.specs)
        return dataclasses.replace(self, extent=self.extent if is_extended and self.extent else self.length)
