"""The settings that `train.lm` and `train.seq2seq` have in common: a transformer over tokens."""

import dataclasses
from typing import Any, ClassVar, Self

from pejax.models.configs.recipes import STYLES
from train.engine.config import RunConfig, require_at_least, require_choice


@dataclasses.dataclass(frozen=True)
class SequenceConfig(RunConfig):
    """The fields of a program that trains on sequences of tokens.

    Attributes:
        eval_factors: lengths to evaluate at by default, in multiples of the trained length.
    """

    eval_factors: ClassVar[tuple[float, ...]]

    length: int = 128  # tokens of a training example
    kv_heads: int = 0  # key/value heads; 0 = as many as heads
    hidden: int = 0  # channels inside the MLP; 0 = 8/3 or 4 times the width
    style: str = "llama"  # llama (RMSNorm, SwiGLU, no biases) or gpt2 (LayerNorm, GELU, biases)
    qk_norm: bool = False  # RMSNorm of queries and keys
    soft_cap: float = 0.0  # soft cap of the attention logits; 0 = none
    tied: bool = False  # use the embedding table as the output layer

    steps: int = 1500  # training steps
    warmup: int = 100  # steps of linear warm-up
    eval_lengths: tuple[int, ...] = ()  # lengths to evaluate at, tokens; empty = fixed multiples of --length

    @property
    def trained(self) -> str:
        """The trained length, in words."""
        return f"{self.length} tokens"

    @property
    def tokens(self) -> int:
        """The tokens of a training example."""
        return self.length

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths to evaluate at, ascending."""
        default = (max(1, int(self.length * factor)) for factor in self.eval_factors)
        return tuple(sorted(set(self.eval_lengths or default)))

    def validated(self) -> Self:
        """Return the config after checking it.

        Raises:
            ValueError: naming the field, the rule and the value.
        """
        super().validated()
        require_at_least(self, 1, "length")
        require_at_least(self, 0, "warmup", "kv_heads", "hidden", "soft_cap")
        require_choice(self, "style", *STYLES)
        if min(self.lengths) < 1:
            raise ValueError(f"eval_lengths must be at least 1, got {min(self.lengths)}")
        return self


def model_options(config: SequenceConfig) -> dict[str, Any]:
    """Return the arguments that `pejax.models.decoder` and `encoder_decoder` have in common."""
    same = ("width", "heads", "extend", "style", "qk_norm", "tied", "dtype")
    zero_is_none = ("kv_heads", "hidden", "soft_cap")
    return {
        "pe": config.pattern,
        **{name: getattr(config, name) for name in same},
        **{name: getattr(config, name) or None for name in zero_is_none},
    }
