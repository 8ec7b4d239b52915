"""The settings of a run of `train.seq2seq`, their presets and rules."""

import dataclasses
from typing import Any, Self

from train.engine.config import run_folder
from train.engine.options import option, options
from train.engine.sequence_config import ModelConfig

PRESETS: dict[str, dict[str, Any]] = {
    "demo": {},
    "table": {
        "data": "copy,reverse,sort,addition,passkey", "length": 40, "width": 256, "layers": 4, "encoder_layers": 4,
        "heads": 8, "batch": 256, "steps": 50_000, "warmup": 1000, "lr": 1e-3, "log_every": 100,
        "checkpoint_every": 5000, "eval_limit": 1000,
    },
}  # fmt: skip


@options
class Config(ModelConfig):
    """Train an encoder-decoder on small tasks, then count its exact answers at lengths it was not trained at.

    --preset sets all other options; explicitly given options override it.
    """

    program = "seq2seq"
    presets = PRESETS
    eval_factors = (0.5, 1, 1.5, 2, 3, 4)
    first = ("preset", "pe", "cross", "data", "steps", "length", "extend", "eval_lengths", "out", "resume")

    preset: str = option("demo", "demo: minutes on two cores, one task; table: all tasks, an accelerator")
    pe: str = option(
        "rope",
        'positional encoding: "rope(base=100)", "learned+rope", your own: "my_module:mine(option=1)"',
        shape=True,
    )
    data: str = option("reverse", "one or more of copy,reverse,sort,addition,passkey", alias="--task")
    init: str = option("", "run folder whose trained weights training starts from")
    batch: int = option(64, "examples per step, over all devices")
    weight_decay: float = option(0.01, "weight decay, of kernels only")
    clip: float = option(1.0, "clip the gradient to this global norm; 0 = no clipping")
    eval_limit: int = option(300, "test examples per task and length")
    extend: str = option(
        "none", "context extension of all encodings: slopes, yarn, ...; after commas, others to evaluate with"
    )

    decoder_pe: str = option(
        "", "positional encoding of the decoder; empty = --pe", "encoding", shape=True, series=True
    )
    cross: str = option(
        "none",
        "positions in cross-attention: none, query_only, separate or unified",
        "encoding",
        choices=("none", "query_only", "separate", "unified"),
        shape=True,
        series=True,
    )
    cross_pe: str = option(
        "", "positional encoding of cross-attention; empty = that of the decoder", "encoding", shape=True, series=True
    )
    length: int = option(16, "source length of the longest training examples, tokens", "data", copied=True)
    layers: int = option(2, "decoder layers")
    encoder_layers: int = option(2, "encoder layers", "model", at_least=1, shape=True)

    eval_lengths: tuple[int, ...] = option(
        (), "lengths to evaluate at; empty = 0.5, 1, 1.5, 2, 3, 4 times --length", "evaluation and reports"
    )

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the tasks."""
        from train.seq2seq.tasks import read_tasks

        return read_tasks(self.data)

    @property
    def name(self) -> str:
        """The encodings and how cross-attention treats positions: "rope, cross unified"."""
        decoder = f" + {self.decoder_pe}" if self.decoder_pe else ""
        return f"{self.pe}{decoder}, cross {self.cross_pe + ' ' if self.cross_pe else ''}{self.cross}"

    def validated(self) -> Self:
        """Return the config after checking it, with its run folder filled in.

        Raises:
            ValueError: naming the field, the rule and the value.
        """
        from pejax.specs import parse, parse_pattern
        from train.seq2seq.tasks import require_length

        super().validated()
        _ = self.decoder_pe and parse_pattern(self.decoder_pe), self.cross_pe and parse(self.cross_pe)
        for task in self.tasks:
            require_length(task, self.length)
        if self.eval_limit < 1:
            raise ValueError(
                f"eval_limit must be at least 1, because test examples are unlimited, got {self.eval_limit}"
            )
        folder = run_folder(dataclasses.replace(self, pe=self.name.replace(", ", "-")))
        return dataclasses.replace(self, out=str(folder))
