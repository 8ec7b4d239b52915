"""A pre-norm transformer layer (`Block`), and L of them applied by one scan (`Layers`).

x <- x + scale_1 · attention(norm(x))
x <- x + cross_attention(norm(x))         only in the decoder of an encoder-decoder
x <- x + scale_2 · mlp(norm(x))
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Key

from pejax._dims import Dims
from pejax._encoding import Encoding, Params, merge_params
from pejax.models.attention import CrossAttention, LayerCache, LayerContext, SelfAttention, batch_axes
from pejax.models.execution import Execution
from pejax.models.layers import Mlp, Style, make_norm
from pejax.models.sharding import named

BRANCHES = 2
"""Number of branches of a layer that stochastic depth drops: attention and the MLP."""


def drop_factors(key: Key[Array, ""], rates: Float[Array, " L"], batch: int) -> Float[Array, "L 2 B"]:
    """Return the factors of stochastic depth, per layer, branch and example.

    A factor is 0 with probability `rate`, else 1/(1 - rate).

    Args:
        key: draws them.
        rates: the probability of each layer.
        batch: B, number of examples.

    Reference:
        Huang et al. 2016, "Deep Networks with Stochastic Depth" (arXiv 1603.09382), section 3; the factor is applied
        while training, so that nothing changes at evaluation.
    """

    def layer(key: Key[Array, ""], rate: Float[Array, ""]) -> Float[Array, "2 B"]:
        draw = lambda key: jax.random.bernoulli(key, 1.0 - rate, (batch,))
        return jax.vmap(draw)(jax.random.split(key, BRANCHES)).astype(jnp.float32) / (1.0 - rate)

    return jax.vmap(layer)(jax.random.split(key, len(rates)), rates)


class Block(nnx.Module):
    """A pre-norm transformer layer whose branches may be scaled per channel and dropped per example.

    Args:
        dims: C, H, K, D and the scale of the logits.
        encoding: made for these dims.
        hidden: channels inside the MLP.
        style: norm, MLP and biases.
        cross: dims and encoding of cross-attention; None = no cross-attention.
        layer_scale: initial factor of every channel of a branch (LayerScale); None = no factor.
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
        style: Style = Style(),
        cross: tuple[Dims, Encoding] | None = None,
        layer_scale: float | None = None,
        dtype: DTypeLike,
        rngs: nnx.Rngs,
    ) -> None:
        self.norm_attention = make_norm(style, dims.width)
        self.attention = SelfAttention(dims, encoding, style=style, dtype=dtype, rngs=rngs)
        self.norm_cross = None if cross is None else make_norm(style, dims.width)
        self.cross = None if cross is None else CrossAttention(*cross, style=style, dtype=dtype, rngs=rngs)
        self.norm_mlp = make_norm(style, dims.width)
        self.mlp = Mlp(dims.width, hidden, style=style, dtype=dtype, rngs=rngs)
        factor = lambda start: nnx.Param(jnp.full((dims.width,), start, jnp.float32), **named("embed"))
        self.scale_attention = None if layer_scale is None else factor(layer_scale)
        self.scale_mlp = None if layer_scale is None else factor(layer_scale)

    def __call__(
        self,
        x: Float[Array, "B T C"],
        context: LayerContext,
        cache: LayerCache | None = None,
        factors: Float[Array, "2 B"] | None = None,
    ) -> tuple[Float[Array, "B T C"], LayerCache | None]:
        """Return the states after this layer, and its cache with these tokens written to it.

        Args:
            x: states before this layer.
            context: what all layers share: positions, the encoding's parameters, execution.
            cache: of this layer; None = no cache.
            factors: of both branches, from `drop_factors`; None = 1.
        """

        def add(x: Array, branch: Array, scale: nnx.Param | None, number: int) -> Array:
            branch = branch if scale is None else branch * scale[...].astype(branch.dtype)
            return x + (branch if factors is None else branch * factors[number, :, None, None].astype(branch.dtype))

        attended, own = self.attention(self.norm_attention(x), context, None if cache is None else cache.own)
        x = add(x, attended, self.scale_attention, 0)
        cross_keys = None
        if self.cross is not None and self.norm_cross is not None:
            if context.cross_context is None:
                raise ValueError("a layer with cross-attention needs the states of an encoder, got cross_context=None")
            states = context.cross_context.states
            cross_keys = self.cross.keys_values(states) if states is not None else cache.cross  # pyright: ignore[reportOptionalMemberAccess]
            x = x + self.cross(self.norm_cross(x), context.cross_context, cross_keys, context.execution)  # pyright: ignore[reportArgumentType]
        x = add(x, self.mlp(self.norm_mlp(x)), self.scale_mlp, 1)
        return x, None if own is None else LayerCache(own, cross_keys)


class Layers(nnx.Module):
    """L blocks applied by one `scan`: parameters are stacked on L, so the program does not grow with depth.

    Args:
        layers: L.
        stochastic_depth: rate of the last layer; layer l of 0 ... L-1 has `stochastic_depth · l / (L - 1)`.
        rngs: draws the parameters, each layer's from its own keys.
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
        self,
        x: Float[Array, "B T C"],
        context: LayerContext,
        cache: LayerCache | None = None,
        *,
        key: Key[Array, ""] | None = None,
    ) -> tuple[Float[Array, "B T C"], LayerCache | None]:
        """Apply the blocks in order.

        Args:
            x: states before the first block.
            context: what all layers share.
            cache: of all layers, stacked on L; None = no cache.
            key: draws the branches that stochastic depth drops; None drops nothing.

        Returns:
            The states after the last block, and the caches, stacked on L.
        """
        static, params = nnx.split(self.blocks)
        constants = tuple(map(self._layer_constants, (self.blocks.attention, self.blocks.cross)))
        factors = None if key is None else drop_factors(key, jnp.asarray(self.rates, jnp.float32), x.shape[0])

        def apply(
            execution: Execution, context: LayerContext, x: Array, layers: Any
        ) -> tuple[Array, LayerCache | None]:
            def step(x: Array, layer: Any) -> tuple[Array, LayerCache | None]:
                params, cache, factors, (of_self, of_cross) = layer
                shared, cross = merge_params(context.shared, of_self), context.cross_context
                if cross is not None:
                    cross = cross._replace(shared=merge_params(cross.shared, of_cross))
                own = context._replace(execution=execution, shared=shared, cross_context=cross)
                x, cache = nnx.merge(static, params)(x, own, cache, factors)
                return execution.shard_states(x), cache

            return execution.scan(step, x, layers)

        if cache is not None or not context.execution.local:
            return apply(context.execution, context, x, (params, cache, factors, constants))
        local = lambda execution, operands: apply(execution, *operands)[0]
        by_layer = (-1, None, None if factors is None else 2, -1)
        axes = batch_axes(context, self.blocks.attention.dims.axes), 0, by_layer
        return context.execution.per_shard(local, (context, x, (params, None, factors, constants)), axes), None

    def _layer_constants(self, attention: SelfAttention | CrossAttention | None) -> Params:
        """Return the constants of an encoding that differ by depth, stacked on L; empty where there are none."""
        by_depth = None if attention is None else attention.encoding.layer_constants
        return {} if by_depth is None else by_depth(len(self.rates))
