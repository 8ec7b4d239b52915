"""The parts of transformer layers: linear layers, norms and MLPs. Parameters are float32, with logical axis names."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from pejax._ops.matmul import product, recompute
from pejax._ops.remat import name_for_remat
from pejax._ops.sums import without_leading_ones
from pejax.models.sharding import named

Initializer = Callable[..., Array]

EPSILON = 1e-6
"""Added to the variance, or mean square, in every norm."""


@dataclass(frozen=True)
class Style:
    """The kind of layers of a transformer. The default is that of ViT and GPT-2; `LLAMA` is that of Llama.

    Args:
        norm: "layer" (LayerNorm) or "rms" (RMSNorm).
        gated: whether the MLP is SwiGLU instead of GELU.
        bias: whether linear layers have a bias.
        qk_norm: whether each query and key head is normalized over its channels (RMSNorm), before rotation.
        soft_cap: cap c of the attention logits, `c · tanh(logits / c)`; None = no cap.

    Raises:
        ValueError: an unknown norm.
    """

    norm: str = "layer"
    gated: bool = False
    bias: bool = True
    qk_norm: bool = False
    soft_cap: float | None = None

    def __post_init__(self) -> None:
        if self.norm not in ("layer", "rms"):
            raise ValueError(f"norm must be 'layer' or 'rms', got {self.norm!r}")


LLAMA = Style(norm="rms", gated=True, bias=False)


def check_spec(pe: object) -> None:
    """Raise TypeError if the encoding of a model's settings is not a string, for example if it is a record."""
    if not isinstance(pe, str):
        raise TypeError(f"pe must be a string such as 'rope' or 'alibi(learned=True)', got {type(pe).__name__}")


def channels_per_head(width: int, heads: int) -> int:
    """Return D = C / H of a model whose width is split evenly among its heads.

    Args:
        width: C, channels.
        heads: H.

    Raises:
        ValueError: a count below 1, or a width that is not a multiple of heads.
    """
    if heads < 1 or width < 1 or width % heads:
        raise ValueError(f"width must be a multiple of heads, got width={width}, heads={heads}")
    return width // heads


def uniform_by_fan_in(fan_in: int) -> Initializer:
    """Return the initializer U(-fan_in^-½, fan_in^-½), for a kernel and for its bias.

    PyTorch's default for linear layers: Kaiming uniform with a = √5, that is √(6 / ((1 + a²) · fan_in)) = fan_in^-½.
    """
    bound = float(fan_in) ** -0.5

    def init(key: Array, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32, **kwargs: Any) -> Array:
        del kwargs
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


def linear(
    inputs: int,
    outputs: int,
    axes: tuple[str | None, str | None],
    *,
    dtype: DTypeLike,
    rngs: nnx.Rngs,
    bias: bool = True,
    kernel_init: Initializer | None = None,
    bias_init: Initializer | None = None,
) -> "Linear":
    """Make a linear layer with float32 parameters, logical axis names, and PyTorch's initialization by default.

    Args:
        inputs: input channels.
        outputs: output channels.
        axes: logical names of the kernel's axes; None = no name.
        dtype: of the computation.
        rngs: draws the parameters.
        bias: whether the layer has a bias.
        kernel_init: initializer of the kernel; None = `uniform_by_fan_in`.
        bias_init: initializer of the bias; None = `uniform_by_fan_in`.
    """
    default = uniform_by_fan_in(inputs)
    return Linear(
        inputs,
        outputs,
        use_bias=bias,
        dtype=dtype,
        param_dtype=jnp.float32,
        kernel_init=kernel_init or default,
        bias_init=bias_init or default,
        kernel_metadata=named(*axes),
        bias_metadata=named(axes[1]),
        rngs=rngs,
    )


class Linear(nnx.Linear):
    """A linear layer, `x @ kernel + bias`, whose matmul is `product`; the output has the type of the computation."""

    def __call__(self, inputs: Float[Array, "*B C"]) -> Float[Array, "*B N"]:
        x = inputs.astype(self.dtype)
        return name_for_remat(product(x, self.kernel[...], self._own_bias()).astype(x.dtype))

    def of(self, function: Callable[..., Array], *inputs: Float[Array, "*B C"]) -> Float[Array, "*B N"]:
        """Return `function(*inputs) @ kernel + bias`; the backward pass recomputes `function(*inputs)`."""

        def run(kernel: Array, bias: Array | None, *inputs: Array) -> Array:
            return product(function(*inputs), kernel, bias)

        inputs = tuple(x.astype(self.dtype) for x in inputs)
        return name_for_remat(recompute(run)(self.kernel[...], self._own_bias(), *inputs).astype(inputs[0].dtype))

    def _own_bias(self) -> Array | None:
        """Return the bias as an array; None without a bias."""
        return None if self.bias is None else self.bias[...]


class LayerNorm(nnx.Module):
    """`scale · (x - mean) / sqrt(variance + 1e-6) + bias` over channels, in float32; the output has the type of x."""

    def __init__(self, width: int) -> None:
        self.scale = nnx.Param(jnp.ones((width,), jnp.float32), **named("embed"))
        self.bias = nnx.Param(jnp.zeros((width,), jnp.float32), **named("embed"))

    def __call__(self, x: Float[Array, "*B C"]) -> Float[Array, "*B C"]:
        return without_leading_ones(_layer_norm, x, self.scale[...], self.bias[...])


@recompute
def _layer_norm(x: Float[Array, "*B C"], scale: Float[Array, " C"], bias: Float[Array, " C"]) -> Float[Array, "*B C"]:
    """Return LayerNorm of x over channels."""
    wide = x.astype(jnp.float32)
    centered = wide - jnp.mean(wide, axis=-1, keepdims=True)
    factor = jax.lax.rsqrt(jnp.mean(jnp.square(centered), axis=-1, keepdims=True) + EPSILON)
    return (centered * factor * scale + bias).astype(x.dtype)


class RMSNorm(nnx.Module):
    """`scale · x / sqrt(mean(x²) + 1e-6)` over channels, in float32; the output has the type of x.

    Args:
        width: channels.
        axis: their logical name; None = no name.

    Reference:
        Zhang & Sennrich 2019, "Root Mean Square Layer Normalization" (arXiv 1910.07467), equation 4.
    """

    def __init__(self, width: int, axis: str | None = "embed") -> None:
        self.scale = nnx.Param(jnp.ones((width,), jnp.float32), **named(axis))

    def __call__(self, x: Float[Array, "*B C"]) -> Float[Array, "*B C"]:
        return without_leading_ones(_rms_norm, x, self.scale[...])


@recompute
def _rms_norm(x: Float[Array, "*B C"], scale: Float[Array, " C"]) -> Float[Array, "*B C"]:
    """Return RMSNorm of x over channels."""
    wide = x.astype(jnp.float32)
    factor = jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + EPSILON)
    return (wide * factor * scale).astype(x.dtype)


def make_norm(style: Style, width: int) -> LayerNorm | RMSNorm:
    """Make the norm layer of a style."""
    return LayerNorm(width) if style.norm == "layer" else RMSNorm(width)


@recompute
def gelu(x: Float[Array, "*B C"]) -> Float[Array, "*B C"]:
    """Return `x · (1 + erf(x / √2)) / 2`, computed in float32 by `erf`: by `erfc` it would take twice as long."""
    wide = x.astype(jnp.float32)
    return (0.5 * wide * (1.0 + jax.lax.erf(wide * 0.5**0.5))).astype(x.dtype)


@recompute
def _gated(gate: Float[Array, "*B C"], x: Float[Array, "*B C"]) -> Float[Array, "*B C"]:
    """Return `silu(gate) · x`."""
    return nnx.silu(gate) * x


class Mlp(nnx.Module):
    """`gelu(x @ up + b) @ down + b`, with the exact GELU; gated: `(silu(x @ gate) · (x @ up)) @ down`.

    Args:
        width: C, channels of input and output.
        hidden: channels inside.
        style: whether it is gated and has biases.
        dtype: of the computation; parameters are float32.
        rngs: draws the parameters.

    Reference:
        Shazeer 2020, "GLU Variants Improve Transformer" (arXiv 2002.05202), equation 6: SwiGLU.
    """

    def __init__(self, width: int, hidden: int, *, style: Style = Style(), dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        to_hidden = lambda: linear(width, hidden, ("embed", "mlp"), dtype=dtype, rngs=rngs, bias=style.bias)
        self.up = to_hidden()
        self.gate = to_hidden() if style.gated else None
        self.down = linear(hidden, width, ("mlp", "embed"), dtype=dtype, rngs=rngs, bias=style.bias)

    def __call__(self, x: Float[Array, "B T C"]) -> Float[Array, "B T C"]:
        function, *hidden = (gelu, self.up(x)) if self.gate is None else (_gated, self.gate(x), self.up(x))
        if isinstance(self.down, Linear):
            return self.down.of(function, *hidden)
        return self.down(function(*hidden))  # another layer put in its place, such as `nnx.LoRA`
