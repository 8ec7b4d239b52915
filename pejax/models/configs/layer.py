"""The configs of layers: frozen dataclasses, each read by the constructor of one module.

    NormConfig, AttentionConfig, MlpConfig or MoEConfig  ->  LayerConfig  ->  TransformerConfig or ViTConfig

A config holds numbers, names and other configs, so two models are the same if their configs are equal. A model has one
`LayerConfig` per layer, and layers of several kinds have different ones. `pejax.models.decoder`, `encoder_decoder` and
`vit` return the configs of the usual models.
"""

import itertools
from dataclasses import dataclass, fields
from typing import Any

from pejax._attention.core.options import Window, as_window
from pejax._calls.arguments import checked_fields
from pejax._ops.checks import check_choice
from pejax._record.dims import Dims
from pejax._record.specs import NONE, Spec
from pejax.models.configs.pattern import patterns

ORDERS = {"pre": (True, False, False), "post": (False, False, True), "sandwich": (True, True, False),
          "after": (False, True, False)}  # fmt: skip
"""Whether a norm N stands before a branch f, after it, and after the sum: "pre" is `x + f(N(x))`, "post" `N(x + f(x))`,
"sandwich" `x + N(f(N(x)))` and "after" `x + N(f(x))`."""

PARALLEL = ("", "two", "one")
"""Values of `LayerConfig.parallel`."""


def check_counts(config: Any, *names: str, least: int = 1) -> None:
    """Raise ValueError for a field below `least`."""
    for name in names:
        if getattr(config, name) < least:
            raise ValueError(f"{name} must be at least {least}, got {getattr(config, name)}")


class Config:
    """The base of configs: a `repr` of the first field and of fields that are not at their defaults.

    A repeated pattern of layers is shown once, with its count.
    """

    def __repr__(self) -> str:
        first, *options = fields(self)  # pyright: ignore[reportArgumentType]
        changed = [first, *(field for field in options if getattr(self, field.name) != field.default)]
        arguments = ", ".join(f"{field.name}={_shown(getattr(self, field.name))}" for field in changed)
        return f"{type(self).__name__}({arguments})"


def _shown(value: Any) -> str:
    """Return the `repr` of a field; equal neighbors among layers, and repeated patterns of them, are counted."""
    if not (isinstance(value, tuple) and value and isinstance(value[0], Config)):
        return repr(value)
    runs = lambda layers: [_counted(len([*group]), repr(layer)) for layer, group in itertools.groupby(layers)]
    joined = lambda texts: texts[0] if len(texts) == 1 else f"({', '.join(texts)})"
    return " + ".join(_counted(repeats, joined(runs(layers))) for layers, repeats in patterns(value))


def _counted(count: int, text: str) -> str:
    return text if count == 1 else f"{count} x {text}"


@checked_fields
@dataclass(frozen=True, repr=False)
class NormConfig(Config):
    """A norm over channels: `(offset + weight) · x / sqrt(mean(x²) + epsilon)`; "layer" first subtracts `mean(x)`.

    Args:
        kind: "rms" (RMSNorm) or "layer" (LayerNorm).
        epsilon: number added to the mean square.
        bias: whether a bias is added; only in a LayerNorm.
        offset: number added to the weight, 1 in Gemma's checkpoints; the weight starts at `1 - offset`.
        weight: whether there is a weight; without one it counts as 1.

    Raises:
        ValueError: an unknown kind, an epsilon that is not positive, an RMSNorm with a bias, or a bias or an offset
            without a weight.
    """

    kind: str = "rms"
    epsilon: float = 1e-6
    bias: bool = False
    offset: float = 0.0
    weight: bool = True

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, ("rms", "layer"))
        if not self.weight and (self.bias or self.offset):
            raise ValueError(f"weight must be True with a bias or an offset, got weight=False in {self}")
        if not self.epsilon > 0:
            raise ValueError(f"epsilon must be positive, got {self.epsilon}")
        if self.bias and self.kind == "rms":
            raise ValueError("bias must be False with kind='rms', got True")


@checked_fields
@dataclass(frozen=True, repr=False)
class AttentionConfig(Config):
    """Attention of one layer.

    Args:
        heads: H, number of query heads.
        kv_heads: K, number of heads of keys and values.
        head_dim: D, channels per head.
        pe: spec of the encoding and its extension, such as `pejax.specs.parse("rope(base=1e4)")`.
        scale: factor of q·k. None = D**-0.5.
        window: w, in tokens: query i sees the keys j with 0 <= i - j < w if causal, else |i - j| < w; or (before,
            after): those with -after <= i - j <= before, and if causal none after it. None = all keys.
        bias: which linear maps have a bias, letters out of "qkvo" for queries, keys, values and output.
        qk_norm: the norm of queries and keys before rotation. None = no norm.
        qk_norm_over: "head": every head is normalized, all with the same D weights; "heads": each with its own; "all":
            the channels of all heads are normalized together.
        soft_cap: cap c of the logits, `c · tanh(logits / c)`. None = no cap.
        sinks: whether every head has an attention sink, a learned logit of one more key whose value is zero.

    Raises:
        ValueError: a count below 1, heads that are not a multiple of kv_heads, letters of no linear map, or an
            unknown `qk_norm_over`.
    """

    heads: int
    kv_heads: int
    head_dim: int
    pe: Spec = NONE
    scale: float | None = None
    window: Window | None = None
    bias: str = ""
    qk_norm: NormConfig | None = None
    qk_norm_over: str = "head"
    soft_cap: float | None = None
    sinks: bool = False

    def __post_init__(self) -> None:
        check_counts(self, "heads", "kv_heads", "head_dim")
        if self.window is not None:
            as_window(self.window, causal=False)  # raises for one out of range
        if not set(self.bias) <= set("qkvo"):
            raise ValueError(f"bias must be letters out of 'qkvo', got {self.bias!r}")
        check_choice("qk_norm_over", self.qk_norm_over, ("head", "heads", "all"))
        _ = self.dims(width=1)

    def dims(self, *, width: int, axes: int = 1, extent: Any = None, causal: bool = False) -> Dims:
        """Return the dims of the encoding in a model of this width, these axes and this trained extent."""
        return Dims(
            self.heads, self.head_dim, width=width, kv_heads=self.kv_heads, axes=axes, extent=extent, scale=self.scale,
            causal=causal,
        )  # fmt: skip


@checked_fields
@dataclass(frozen=True, repr=False)
class MlpConfig(Config):
    """An MLP: `activation(x @ up) @ down`; gated: `(activation(x @ gate) · (x @ up)) @ down`.

    Args:
        hidden: number of inner channels.
        activation: a name of `pejax.models.parts.layers.ACTIVATIONS`, or of `GATES` if gated.
        gated: whether the activated gate multiplies the inner channels.
        bias: whether its linear maps have biases; "down" = the last one alone.

    Raises:
        ValueError: a count below 1, or a bias of another map. An unknown activation raises when the model is made.
    """

    hidden: int
    activation: str
    gated: bool = False
    bias: bool | str = False

    def __post_init__(self) -> None:
        check_counts(self, "hidden")
        if isinstance(self.bias, str) and self.bias != "down":
            raise ValueError(f"bias must be True, False or 'down', got {self.bias!r}")


@checked_fields
@dataclass(frozen=True, repr=False)
class MoEConfig(Config):
    """E MLPs in place of one. Each token uses the k with the largest logits of a router, `x @ router`.

    Args:
        count: number of experts, E.
        chosen: number of experts that each token uses, k.
        mlp: the config of every expert.
        router_bias: whether the router has a bias.
        over_chosen: whether the weights are the softmax over the chosen logits, not over all of them.

    Raises:
        ValueError: a count below 1, or more chosen experts than there are.
    """

    count: int
    chosen: int
    mlp: MlpConfig
    router_bias: bool = False
    over_chosen: bool = True

    def __post_init__(self) -> None:
        check_counts(self, "count", "chosen")
        if self.chosen > self.count:
            raise ValueError(f"chosen must be at most count={self.count}, got {self.chosen}")

    @property
    def hidden(self) -> int:
        """Number of inner channels of all experts together: each token runs through all of them."""
        return self.count * self.mlp.hidden

    @property
    def gated(self) -> bool:
        """Whether the experts are gated."""
        return self.mlp.gated


@checked_fields
@dataclass(frozen=True, repr=False)
class LayerConfig(Config):
    """A layer: attention, then cross-attention if there is any, then an MLP, each added to its input.

    Args:
        attention: self-attention.
        mlp: the MLP, or experts in its place.
        norm: the config of all its norms.
        order: places of the norms, a name of `ORDERS`.
        parallel: "" = one branch after the other; "two" = attention and MLP read the same input through a norm each
            (GPT-NeoX); "one" = through the same norm (GPT-J). Only with order "pre" and without cross-attention.
        layer_scale: initial factor of every channel of a branch (LayerScale). None = no factor.
        bare: whether attention reads its input without a norm before it (ModernBERT's first layer).
        cross: cross-attention to the states of an encoder. None = there is none.
        branch_scale: fixed factor of attention and MLP before they are added (Granite).
        adaptive: whether a vector per example shifts and scales the normed input of attention and MLP, and multiplies
            their outputs (adaLN-Zero). Only with order "pre", without parallel branches, `bare` and cross-attention.

    Raises:
        ValueError: an unknown order, parallel branches with another order, `bare` or cross-attention, or adaptive norms
            with one of these.
    """

    attention: AttentionConfig
    mlp: MlpConfig | MoEConfig
    norm: NormConfig
    order: str = "pre"
    parallel: str = ""
    layer_scale: float | None = None
    bare: bool = False
    cross: AttentionConfig | None = None
    branch_scale: float = 1.0
    adaptive: bool = False

    def __post_init__(self) -> None:
        check_choice("order", self.order, tuple(ORDERS))
        check_choice("parallel", self.parallel, PARALLEL)
        if self.parallel and (self.order != "pre" or self.cross is not None or self.bare):
            rule = "parallel must be '' unless order='pre', bare=False and cross=None"
            raise ValueError(f"{rule}, got {self.parallel!r}")
        if self.adaptive and (self.order != "pre" or self.parallel or self.cross is not None or self.bare):
            raise ValueError(
                "adaptive must be False unless order='pre', parallel='', bare=False and cross=None, got True"
            )


@checked_fields
@dataclass(frozen=True, repr=False)
class HeadConfig(Config):
    """The map from states to logits: `cap · tanh((scale · T(x) @ kernel + bias) / cap)`.

    Args:
        tied: whether the kernel is the embedding table, transposed.
        bias: whether there is a bias.
        transform: activation and norm of a dense layer T before the kernel, as in BERT. None = no such layer.
        scale: factor of the states.
        cap: cap of the logits. None = no cap.
        transform_bias: whether the dense layer T has a bias.
    """

    tied: bool = False
    bias: bool = False
    transform: tuple[str, NormConfig] | None = None
    scale: float = 1.0
    cap: float | None = None
    transform_bias: bool = True
