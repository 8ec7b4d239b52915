"""The settings that `train.lm` and `train.seq2seq` have in common: a transformer over tokens."""

from typing import Any, ClassVar, Self

from train.engine.config import RunConfig
from train.engine.options import option, options


@options
class SequenceConfig(RunConfig):
    """The fields of a program that trains on sequences of tokens.

    Attributes:
        eval_factors: lengths to evaluate at by default, in multiples of the trained length.
    """

    eval_factors: ClassVar[tuple[float, ...]]

    length: int = option(128, "tokens of a training example", "data", at_least=1)

    steps: int = option(1500, "training steps", "training")
    warmup: int = option(100, "steps of linear warm-up", "training", at_least=0, tuned=True)
    extend: str = option(
        "none", "context extension in training and evaluation; after commas, others to evaluate with, too", trains=True
    )
    eval_lengths: tuple[int, ...] = option(
        (),
        "lengths to evaluate at, tokens; empty = fixed multiples of --length",
        "evaluation and reports",
        at_least=1,
        free=True,
    )

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
        if not self.extensions:
            raise ValueError("extend must be none or an extension, got ''")
        return self


@options
class ModelConfig(SequenceConfig):
    """The options of a program that makes its transformer itself."""

    kv_heads: int = option(0, "key/value heads; 0 = as many as heads", "model", at_least=0, shape=True)
    hidden: int = option(0, "channels inside the MLP; 0 = 8/3 or 4 times the width", "model", at_least=0, shape=True)
    style: str = option(
        "llama",
        "llama (RMSNorm, SwiGLU, no biases) or gpt2 (LayerNorm, GELU, biases)",
        "model",
        choices=("llama", "gpt2"),
        shape=True,
    )
    qk_norm: bool = option(False, "RMSNorm of queries and keys", "model", shape=True)
    soft_cap: float = option(0.0, "soft cap of the attention logits; 0 = none", "model", at_least=0, shape=True)
    tied: bool = option(False, "use the embedding table as the output layer", "model", shape=True)


def model_options(config: ModelConfig) -> dict[str, Any]:
    """Return the arguments that `pejax.models.decoder` and `encoder_decoder` have in common."""
    same = ("width", "heads", "style", "qk_norm", "tied", "dtype")
    zero_is_none = ("kv_heads", "hidden", "soft_cap")
    return {
        "pe": config.pattern,
        "extend": config.extensions[0],
        **{name: getattr(config, name) for name in same},
        **{name: getattr(config, name) or None for name in zero_is_none},
    }
