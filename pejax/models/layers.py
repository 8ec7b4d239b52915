"""The layers of a pre-norm transformer that receives position as an `Encoding` record.

    x <- x + scale_1 · attention(norm(x))
    x <- x + scale_2 · mlp(norm(x))

Nothing here asks which encoding it is: queries and keys are rotated if the record says so, and its bias and values
are handed to attention.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Key

from pejax.attention import attention
from pejax.encoding import Dims, Encoding, Extent, Params, Tokens, attention_hooks, merge_params
from pejax.models.sharding import named, position_variables

Initializer = Callable[..., Array]

EPSILON = 1e-6
"""Of every layer norm."""


class Where(NamedTuple):
    """What all layers know of the positions: the model's own parameters, the tokens, and the length or grid."""

    shared: Params
    tokens: Tokens
    extent: Extent


class Drop(NamedTuple):
    """Stochastic depth of one layer: the share of examples whose branches are dropped, and the key that draws them."""

    key: Key[Array, ""]
    rate: Float[Array, ""]


def uniform_by_fan_in(fan_in: int) -> Initializer:
    """Return the initialiser U(-fan_in^-½, fan_in^-½), for a kernel and for its bias.

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
    kernel_init: Initializer | None = None,
    bias_init: Initializer | None = None,
) -> nnx.Linear:
    """Make `x @ kernel + bias` with float32 parameters, logical axis names, and PyTorch's initialisation by default."""
    default = uniform_by_fan_in(inputs)
    return nnx.Linear(
        inputs,
        outputs,
        dtype=dtype,
        param_dtype=jnp.float32,
        kernel_init=kernel_init or default,
        bias_init=bias_init or default,
        kernel_metadata=named(*axes),
        bias_metadata=named(axes[1]),
        rngs=rngs,
    )


class LayerNorm(nnx.Module):
    """`scale · (x - mean) / sqrt(variance + 1e-6) + bias` over channels, in float32; the output has the type of x."""

    def __init__(self, width: int) -> None:
        self.scale = nnx.Param(jnp.ones((width,), jnp.float32), **named("embed"))
        self.bias = nnx.Param(jnp.zeros((width,), jnp.float32), **named("embed"))

    def __call__(self, x: Float[Array, "*B C"]) -> Float[Array, "*B C"]:
        wide = x.astype(jnp.float32)
        centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
        factor = jax.lax.rsqrt(jnp.mean(jnp.square(centred), axis=-1, keepdims=True) + EPSILON)
        return (centred * factor * self.scale[...] + self.bias[...]).astype(x.dtype)


class SelfAttention(nnx.Module):
    """Multi-head self-attention, keys and values shared by H/K query heads, position from an `Encoding`.

    The columns of `qkv` are grouped by key head: for each, its H/K queries, its key and its value, D columns each. One
    product makes all three, and splitting the columns over devices keeps whole groups together.

    Args:
        dims: C, H, K, D and the scale of the logits.
        encoding: made for these dims.
        dtype: of the computation; parameters are float32.
        rngs: draws the parameters, positions included.
    """

    def __init__(self, dims: Dims, encoding: Encoding, *, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        self.dims, self.encoding = dims, encoding
        inner = dims.heads * dims.head_dim
        columns = inner + 2 * dims.kv_heads * dims.head_dim
        self.qkv = linear(dims.width, columns, ("embed", "heads"), dtype=dtype, rngs=rngs)
        self.out = linear(inner, dims.width, ("heads", "embed"), dtype=dtype, rngs=rngs)
        self.position = nnx.data(position_variables(encoding.init_layer(rngs.params())))

    def __call__(self, x: Float[Array, "B T C"], where: Where) -> Float[Array, "B T C"]:
        dims, encoding = self.dims, self.encoding
        params = merge_params(where.shared, nnx.as_pure(self.position))
        if encoding.at is not None:
            params = encoding.at(params, where.extent)
        q, k, v = self._heads(x)
        rotate, rotate_keys = encoding.rotate, encoding.rotate_keys or encoding.rotate
        if rotate is not None:
            q = rotate(params, q, where.tokens.positions)
        if rotate_keys is not None:
            k = rotate_keys(params, k, where.tokens.positions)
        mixed = attention(
            q,
            k,
            v,
            q_tokens=where.tokens,
            k_tokens=where.tokens,
            causal=dims.causal,
            scale=dims.scale,
            **attention_hooks(encoding, params),
        )
        return self.out(mixed.reshape(*x.shape[:2], -1))  # pyright: ignore[reportAttributeAccessIssue]

    def _heads(self, x: Array) -> tuple[Array, Array, Array]:
        """Return q `(B, T, H, D)` and k, v `(B, T, K, D)`."""
        dims, (batch, tokens, _) = self.dims, x.shape
        grouped = self.qkv(x).reshape(batch, tokens, dims.kv_heads, dims.heads // dims.kv_heads + 2, dims.head_dim)
        q = grouped[..., :-2, :].reshape(batch, tokens, dims.heads, dims.head_dim)
        k, v = grouped[..., -2, :], grouped[..., -1, :]
        chex.assert_shape([k, v], (batch, tokens, dims.kv_heads, dims.head_dim))
        return q, k, v


class Mlp(nnx.Module):
    """`gelu(x @ up + b) @ down + b`, the Gaussian error function exact."""

    def __init__(self, width: int, hidden: int, *, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        self.up = linear(width, hidden, ("embed", "mlp"), dtype=dtype, rngs=rngs)
        self.down = linear(hidden, width, ("mlp", "embed"), dtype=dtype, rngs=rngs)

    def __call__(self, x: Float[Array, "B T C"]) -> Float[Array, "B T C"]:
        return self.down(nnx.gelu(self.up(x), approximate=False))


def drop_examples(branch: Float[Array, "B T C"], key: Key[Array, ""], rate: Float[Array, ""]) -> Float[Array, "B T C"]:
    """Zero the branch of a share `rate` of the examples and divide the others by 1 - rate (stochastic depth).

    Reference:
        Huang et al. 2016, "Deep Networks with Stochastic Depth" (arXiv 1603.09382), section 3; the factor is applied
        while training, so that nothing changes at evaluation.
    """
    keep = jax.random.bernoulli(key, 1.0 - rate, (branch.shape[0], 1, 1))
    return branch * (keep.astype(jnp.float32) / (1.0 - rate)).astype(branch.dtype)


class Block(nnx.Module):
    """A pre-norm transformer layer; each branch may be scaled per channel and dropped per example.

    Args:
        dims: C, H, K, D and the scale of the logits.
        encoding: made for these dims.
        hidden: channels inside the MLP.
        layer_scale: initial factor of every channel of a branch; None = no factor.
        dtype: of the computation; parameters are float32.
        rngs: draws the parameters.

    Reference:
        Touvron et al. 2021, "Going deeper with Image Transformers" (arXiv 2103.17239), equation 4: LayerScale.
    """

    def __init__(
        self,
        dims: Dims,
        encoding: Encoding,
        *,
        hidden: int,
        layer_scale: float | None,
        dtype: DTypeLike,
        rngs: nnx.Rngs,
    ) -> None:
        self.norm_attention = LayerNorm(dims.width)
        self.attention = SelfAttention(dims, encoding, dtype=dtype, rngs=rngs)
        self.norm_mlp = LayerNorm(dims.width)
        self.mlp = Mlp(dims.width, hidden, dtype=dtype, rngs=rngs)
        factor = lambda start: nnx.Param(jnp.full((dims.width,), start, jnp.float32), **named("embed"))  # noqa: E731
        self.scale_attention = None if layer_scale is None else factor(layer_scale)
        self.scale_mlp = None if layer_scale is None else factor(layer_scale)

    def __call__(self, x: Float[Array, "B T C"], where: Where, drop: Drop | None = None) -> Float[Array, "B T C"]:
        keys = (None, None) if drop is None else jax.random.split(drop.key)

        def add(x: Array, branch: Array, scale: nnx.Param | None, key: Array | None) -> Array:
            branch = branch if scale is None else branch * scale[...].astype(branch.dtype)
            return x + (branch if drop is None or key is None else drop_examples(branch, key, drop.rate))

        x = add(x, self.attention(self.norm_attention(x), where), self.scale_attention, keys[0])
        return add(x, self.mlp(self.norm_mlp(x)), self.scale_mlp, keys[1])


class Layers(nnx.Module):
    """L blocks applied in turn by one `scan`: parameters are stacked on L, the program does not grow with depth.

    Args:
        layers: L.
        stochastic_depth: rate of the last layer; layer l of 0 ... L-1 has `stochastic_depth · l / (L - 1)`.
        rngs: draws the parameters, each layer from keys of its own.
        **block: the arguments of `Block`.
    """

    def __init__(self, layers: int, *, stochastic_depth: float = 0.0, rngs: nnx.Rngs, **block: Any) -> None:
        self.rates = tuple(stochastic_depth * layer / max(layers - 1, 1) for layer in range(layers))

        @nnx.split_rngs(splits=layers)
        @nnx.vmap
        def stack(rngs: nnx.Rngs) -> Block:
            return Block(**block, rngs=rngs)

        self.blocks = stack(rngs)

    def __call__(
        self, x: Float[Array, "B T C"], where: Where, key: Key[Array, ""] | None = None
    ) -> Float[Array, "B T C"]:
        """Apply the blocks; `key` draws what stochastic depth drops, None drops nothing."""
        static, params = nnx.split(self.blocks)
        layers = len(self.rates)
        drops = None if key is None else Drop(jax.random.split(key, layers), jnp.asarray(self.rates, jnp.float32))

        def step(x: Array, layer: tuple[Any, Drop | None]) -> tuple[Array, None]:
            params, drop = layer
            return nnx.merge(static, params)(x, where, drop), None

        return jax.lax.scan(step, x, (params, drops))[0]
