"""The settings of a run of `train.seq2seq`, their presets and rules."""

import dataclasses
from typing import Any, Self

import simple_parsing

from pejax.models.stack.cross_positions import CROSS
from pejax.specs import parse, parse_pattern
from train.engine.config import RunConfig, require_at_least, require_choice, run_folder
from train.engine.sequence_config import SequenceConfig
from train.seq2seq.tasks import read_tasks, require_length

PRESETS: dict[str, dict[str, Any]] = {
    "demo": {},
    "table": {
        "data": "copy,reverse,sort,addition,passkey", "length": 40, "width": 256, "layers": 4, "encoder_layers": 4,
        "heads": 8, "batch": 256, "steps": 50_000, "warmup": 1000, "lr": 1e-3, "log_every": 100,
        "checkpoint_every": 5000, "eval_limit": 1000,
    },
}  # fmt: skip

MODEL_FIELDS = (
    "pe", "decoder_pe", "cross", "cross_pe", "width", "layers", "encoder_layers", "heads", "kv_heads", "hidden",
    "style", "qk_norm", "soft_cap", "tied",
)  # fmt: skip
"""Fields that determine the shapes of the parameters, except for the length."""


@dataclasses.dataclass(frozen=True)
class Config(SequenceConfig):
    """Train an encoder-decoder on small tasks, then count its exact answers at lengths it was not trained at.

    --preset sets all other options; explicitly given options override it.
    """

    program = "seq2seq"
    presets = PRESETS
    model_fields = MODEL_FIELDS
    inherited = ("data", "length")
    run_fields = (*RunConfig.run_fields, "eval_lengths")
    trained_with = ("extend",)
    eval_factors = (0.5, 1, 1.5, 2, 3, 4)
    first = ("preset", "pe", "cross", "data", "steps", "length", "extend", "eval_lengths", "out", "resume")

    preset: str = "demo"  # demo: minutes on two cores, one task; table: all tasks, an accelerator
    pe: str = "rope"  # positional encoding: "rope(base=100)", "learned+rope", your own: "my_module:mine(option=1)"
    data: str = simple_parsing.field("reverse", alias="--task")  # one or more of copy,reverse,sort,addition,passkey
    init: str = ""  # run folder whose trained weights training starts from
    batch: int = 64  # examples per step, over all devices
    weight_decay: float = 0.01  # weight decay, of kernels only
    clip: float = 1.0  # clip the gradient to this global norm; 0 = no clipping
    eval_limit: int = 300  # test examples per task and length
    extend: str = "none"  # context extension of all encodings: slopes, yarn, resize, log_n, ...

    decoder_pe: str = ""  # positional encoding of the decoder; empty = --pe
    cross: str = "none"  # positions in cross-attention: none, query_only, separate or unified
    cross_pe: str = ""  # positional encoding of cross-attention; empty = that of the decoder
    length: int = 16  # source length of the longest training examples, tokens
    layers: int = 2  # decoder layers
    encoder_layers: int = 2  # encoder layers

    eval_lengths: tuple[int, ...] = ()  # lengths to evaluate at; empty = 0.5, 1, 1.5, 2, 3, 4 times --length

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the tasks."""
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
        super().validated()
        _ = self.decoder_pe and parse_pattern(self.decoder_pe), self.cross_pe and parse(self.cross_pe)
        require_at_least(self, 1, "steps", "encoder_layers")
        require_choice(self, "cross", *CROSS)
        for task in self.tasks:
            require_length(task, self.length)
        if self.eval_limit < 1:
            raise ValueError(
                f"eval_limit must be at least 1, because test examples are unlimited, got {self.eval_limit}"
            )
        folder = run_folder(dataclasses.replace(self, pe=self.name.replace(", ", "-")))
        return dataclasses.replace(self, out=str(folder))
