"""The parts of transformer layers: linear layers, norms and MLPs. Parameters are float32, with logical axis names."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from pejax._ops.checks import check_choice
from pejax._ops.matmul import product_in_type, recompute
from pejax._ops.remat import name_for_remat
from pejax._ops.sums import without_leading_ones
from pejax.models.configs.layer import MlpConfig, NormConfig
from pejax.models.sharding import named

Initializer = Callable[..., Array]


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
    biased: tuple[tuple[int, bool], ...] = (),
    kernel_init: Initializer | None = None,
    bias_init: Initializer | None = None,
) -> "Linear":
    """Make a linear layer with float32 parameters, logical axis names, and PyTorch's initialization by default.

    Args:
        inputs: input channels.
        outputs: output channels.
        axes: logical names of the kernel's axes; None = no name.
        dtype: type of the computation.
        rngs: random streams that parameters are drawn from.
        bias: whether the layer has a bias.
        biased: which output channels have one, as in `Linear`. () = all of them.
        kernel_init: initializer of the kernel; None = `uniform_by_fan_in`.
        bias_init: initializer of the bias; None = `uniform_by_fan_in`.
    """
    default = uniform_by_fan_in(inputs)
    linear = Linear(
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
    linear.biased = biased
    return linear


class Linear(nnx.Linear):
    """A linear layer, `x @ kernel + bias`, whose matmul is `product`; the output has the type of the computation.

    Attributes:
        biased: `(number of channels, whether they have a bias)` of consecutive output channels, repeated to the last
            channel. The other channels' biases count as 0 and get no gradient. () = all channels have a bias.
    """

    biased: tuple[tuple[int, bool], ...] = ()

    def __call__(self, inputs: Float[Array, "*B C"]) -> Float[Array, "*B N"]:
        x = inputs.astype(self.dtype)
        return name_for_remat(product_in_type(x, self.kernel[...], self._own_bias()))

    def of(self, function: Callable[..., Array], *inputs: Float[Array, "*B _"]) -> Float[Array, "*B N"]:
        """Return `function(*inputs) @ kernel + bias`; the backward pass recomputes `function(*inputs)`."""

        def run(kernel: Array, bias: Array | None, *inputs: Array) -> Array:
            return product_in_type(function(*inputs), kernel, bias)

        inputs = tuple(x.astype(self.dtype) for x in inputs)
        return name_for_remat(recompute(run)(self.kernel[...], self._own_bias(), *inputs))

    def _own_bias(self) -> Array | None:
        """Return the bias as an array, 0 where a channel has none; None without a bias."""
        if self.bias is None or not self.biased:
            return None if self.bias is None else self.bias[...]
        group = np.concatenate([np.full(channels, is_kept) for channels, is_kept in self.biased])
        return jnp.where(np.tile(group, self.bias.shape[-1] // len(group)), self.bias[...], 0.0)


class LayerNorm(nnx.Module):
    """`(offset + scale) · (x - mean) / sqrt(variance + epsilon) + bias` over channels, in float32; result in x's type.

    Args:
        norm: config of the norm, which calls the scale its weight.
        shape: shape of scale and bias: channels, or heads and channels if every head has its own.
        axes: logical names of the axes of scale and bias; None = no name.
    """

    def __init__(self, norm: NormConfig, *shape: int, axes: tuple[str | None, ...] = ("embed",)) -> None:
        self.norm = norm
        self.scale = _norm_scale(norm, shape, axes)
        self.bias = nnx.Param(jnp.zeros(shape, jnp.float32), **named(*axes)) if norm.bias else None

    def __call__(self, x: Float[Array, "*B C"]) -> Float[Array, "*B C"]:
        bias = () if self.bias is None else (self.bias[...].astype(jnp.float32),)
        return without_leading_ones(_layer_norm(self.norm.epsilon), x, _factor(self.norm, self.scale), *bias)


@functools.cache
def _layer_norm(epsilon: float) -> Callable[..., Array]:
    """Return the function `(x, scale, bias) -> LayerNorm(x)`, over channels."""

    @recompute
    def layer_norm(
        x: Float[Array, "*B C"], scale: Float[Array, "*H C"] | None, bias: Float[Array, "*H C"] | None = None
    ) -> Float[Array, "*B C"]:
        wide = x.astype(jnp.float32)
        centered = wide - jnp.mean(wide, axis=-1, keepdims=True)
        factor = jax.lax.rsqrt(jnp.mean(jnp.square(centered), axis=-1, keepdims=True) + epsilon)
        scaled = _times(centered * factor, scale)
        return (scaled if bias is None else scaled + bias).astype(x.dtype)

    return layer_norm


class RMSNorm(nnx.Module):
    """`(offset + scale) · x / sqrt(mean(x²) + epsilon)` over channels, in float32; result in x's type.

    Args:
        norm: config of the norm, which calls the scale its weight.
        shape: shape of the scale: channels, or heads and channels if every head has its own.
        axes: logical names of the scale's axes; None = no name.

    Reference:
        Zhang & Sennrich 2019, "Root Mean Square Layer Normalization" (arXiv 1910.07467), equation 4.
    """

    def __init__(self, norm: NormConfig, *shape: int, axes: tuple[str | None, ...] = ("embed",)) -> None:
        self.norm = norm
        self.scale = _norm_scale(norm, shape, axes)

    def __call__(self, x: Float[Array, "*B C"]) -> Float[Array, "*B C"]:
        return without_leading_ones(_rms_norm(self.norm.epsilon), x, _factor(self.norm, self.scale))


@functools.cache
def _rms_norm(epsilon: float) -> Callable[..., Array]:
    """Return the function `(x, scale) -> RMSNorm(x)`, over channels."""

    @recompute
    def rms_norm(x: Float[Array, "*B C"], scale: Float[Array, "*H C"] | None) -> Float[Array, "*B C"]:
        wide = x.astype(jnp.float32)
        factor = jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + epsilon)
        return _times(wide * factor, scale).astype(x.dtype)

    return rms_norm


def _norm_scale(norm: NormConfig, shape: tuple[int, ...], axes: tuple[str | None, ...]) -> nnx.Param | None:
    """Make the scale of a norm; None = it has none."""
    return nnx.Param(jnp.full(shape, 1.0 - norm.offset, jnp.float32), **named(*axes)) if norm.weight else None


def _times(x: Array, factor: Array | None) -> Array:
    return x if factor is None else x * factor


def _factor(norm: NormConfig, scale: nnx.Param | None) -> Array | None:
    """Return the factor `offset + scale` of a norm, in float32; None = 1."""
    if scale is None:
        return None
    weight = scale[...].astype(jnp.float32)
    return norm.offset + weight if norm.offset else weight


def make_norm(norm: NormConfig | None, width: int) -> LayerNorm | RMSNorm | None:
    """Make the norm of a config; None = no norm."""
    if norm is None:
        return None
    return LayerNorm(norm, width) if norm.kind == "layer" else RMSNorm(norm, width)


def normed(norm: Callable[[Array], Array] | None, x: Array) -> Array:
    """Return x after a norm, or x where there is none."""
    return x if norm is None else norm(x)


@recompute
def modulated(
    x: Float[Array, "B T C"], shift: Float[Array, "B 1 C"], scale: Float[Array, "B 1 C"]
) -> Float[Array, "B T C"]:
    """Return `(1 + scale) · x + shift`, with a shift and a scale per example and channel."""
    return (1 + scale) * x + shift


@recompute
def gelu(x: Float[Array, "*B C"]) -> Float[Array, "*B C"]:
    """Return `x · (1 + erf(x / √2)) / 2`, computed in float32 by `erf`: by `erfc` it would take twice as long."""
    wide = x.astype(jnp.float32)
    return (0.5 * wide * (1.0 + jax.lax.erf(wide * 0.5**0.5))).astype(x.dtype)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": gelu,
    "gelu_tanh": recompute(lambda x: jax.nn.gelu(x.astype(jnp.float32), approximate=True).astype(x.dtype)),
    "quick_gelu": recompute(
        lambda x: (x.astype(jnp.float32) * jax.nn.sigmoid(1.702 * x.astype(jnp.float32))).astype(x.dtype)
    ),
    "relu": recompute(jax.nn.relu),
    "relu2": recompute(lambda x: jnp.square(jax.nn.relu(x))),
    "silu": recompute(nnx.silu),
}
"""Activations by name. They save nothing for the backward pass but their argument."""


@recompute
def clamped_swiglu(gate: Float[Array, "*B C"], x: Float[Array, "*B C"]) -> Float[Array, "*B C"]:
    """Return `g · sigmoid(1.702 g) · (u + 1)`, the gate of gpt-oss, with g = min(gate, 7) and u = x clipped to ±7."""
    gate = jnp.minimum(gate, 7.0)
    return gate * jax.nn.sigmoid(1.702 * gate) * (jnp.clip(x, -7.0, 7.0) + 1.0)


GATES: dict[str, Callable[[Array, Array], Array]] = {"clamped_swiglu": clamped_swiglu}
"""Gated activations that are not the product of an activation and x, by name."""


def check_activation(mlp: MlpConfig) -> None:
    """Raise ValueError for an activation that is not known."""
    check_choice("activation", mlp.activation, (*ACTIVATIONS, *(GATES if mlp.gated else ())))


@functools.cache
def gate_by(activation: str) -> Callable[[Array, Array], Array]:
    """Return the function `(gate, x) -> activation(gate) · x`, or that of `GATES`; gradients need only gate and x."""
    if activation in GATES:
        return GATES[activation]
    # The entry of silu would be recomputed by itself, inside of what is recomputed anyway.
    plain = nnx.silu if activation == "silu" else ACTIVATIONS[activation]

    @recompute
    def gated(gate: Float[Array, "*B C"], x: Float[Array, "*B C"]) -> Float[Array, "*B C"]:
        return plain(gate) * x

    return gated


class Mlp(nnx.Module):
    """`activation(x @ up + b) @ down + b`; gated: `(activation(x @ gate + b) · (x @ up + b)) @ down + b`.

    Args:
        mlp: config of the MLP.
        width: C, channels of input and output.
        dtype: type of the computation; parameters are float32.
        rngs: random streams that parameters are drawn from.

    Raises:
        ValueError: an unknown activation.

    Reference:
        Shazeer 2020, "GLU Variants Improve Transformer" (arXiv 2002.05202), section 2.
    """

    def __init__(self, mlp: MlpConfig, width: int, *, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        check_activation(mlp)
        self.activation, hidden = mlp.activation, mlp.hidden
        to_hidden = lambda: linear(width, hidden, ("embed", "mlp"), dtype=dtype, rngs=rngs, bias=mlp.bias is True)
        self.up = to_hidden()
        self.gate = to_hidden() if mlp.gated else None
        self.down = linear(hidden, width, ("mlp", "embed"), dtype=dtype, rngs=rngs, bias=bool(mlp.bias))

    def __call__(self, x: Float[Array, "B T C"]) -> Float[Array, "B T C"]:
        if self.gate is None:
            function, hidden = ACTIVATIONS[self.activation], (self.up(x),)
        else:
            function, hidden = gate_by(self.activation), (self.gate(x), self.up(x))
        if isinstance(self.down, Linear):
            return self.down.of(function, *hidden)
        return self.down(function(*hidden))  # another layer put in its place, such as `nnx.LoRA`
