"""A transformer layer: attention, cross-attention if there is any, and an MLP, each added to its input.

x <- x + scale_1 · attention(norm(x))     scale: LayerScale's factor of each channel, times `branch_scale`
x <- x + cross_attention(norm(x))         only in the decoder of an encoder-decoder
x <- x + scale_2 · mlp(norm(x))           for order "pre"; other orders of `ORDERS` have norms elsewhere

With adaptive norms, a vector c per example gives shift, scale and gate of both branches, `silu(c) @ modulation`:

x <- x + gate · f((1 + scale) · norm(x) + shift)
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from pejax._record.dims import Dims
from pejax._record.encoding import Encoding
from pejax.models.configs.layer import ORDERS, LayerConfig, MoEConfig
from pejax.models.parts.attention import CrossAttention, KeysValues, LayerCache, LayerContext, SelfAttention
from pejax.models.parts.experts import Experts
from pejax.models.parts.layers import ACTIVATIONS, Mlp, linear, make_norm, modulated, normed
from pejax.models.sharding import named

MAIN_BRANCHES = ("attention", "mlp")
"""The branches that stochastic depth drops, scales multiply and adaptive norms modulate: all but cross-attention."""


class LayerKind(NamedTuple):
    """The config, dims and encodings of a layer; layers of the same kind share a program.

    Attributes:
        config: config of the layer.
        dims: dims of its self-attention.
        encoding: encoding made for these dims.
        cross: dims and encoding of its cross-attention; None = no cross-attention.
    """

    config: LayerConfig
    dims: Dims
    encoding: Encoding
    cross: tuple[Dims, Encoding] | None = None


class Modulation(NamedTuple):
    """Shift and scale of the normed input of a branch, and the factor of its output, per example and channel."""

    shift: Float[Array, "B 1 C"]
    scale: Float[Array, "B 1 C"]
    gate: Float[Array, "B 1 C"]


class Block(nnx.Module):
    """A transformer layer whose branches may be scaled per channel and dropped per example.

    Its norms are `norm_X` before the branch X, `norm_X_after` after it and `norm_X_sum` after the sum; X is attention,
    cross or mlp.

    Args:
        kind: config, dims and encodings of the layer.
        dtype: type of the computation; parameters are float32.
        rngs: random streams that parameters are drawn from.

    Reference:
        Touvron et al. 2021, "Going deeper with Image Transformers" (arXiv 2103.17239), equation 4: LayerScale.
        Peebles & Xie 2023, "Scalable Diffusion Models with Transformers" (arXiv 2212.09748), section 3.2: adaLN-Zero.
    """

    norm_attention: Any
    norm_cross: Any
    norm_mlp: Any

    def __init__(self, kind: LayerKind, *, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        config, dims = kind.config, kind.dims
        self.config = config
        for branch in ("attention", *(("cross",) if config.cross else ()), "mlp"):
            self._make_norms(branch, dims.width)
        self.attention = SelfAttention(config.attention, dims, kind.encoding, dtype=dtype, rngs=rngs)
        cross = None if config.cross is None or kind.cross is None else (config.cross, *kind.cross)
        self.cross = None if cross is None else CrossAttention(*cross, dtype=dtype, rngs=rngs)
        mlp_class = Experts if isinstance(config.mlp, MoEConfig) else Mlp
        self.mlp = mlp_class(config.mlp, dims.width, dtype=dtype, rngs=rngs)  # pyright: ignore[reportArgumentType]
        channel_factors = lambda start: nnx.Param(jnp.full((dims.width,), start, jnp.float32), **named("embed"))
        self.scale_attention = None if config.layer_scale is None else channel_factors(config.layer_scale)
        self.scale_mlp = None if config.layer_scale is None else channel_factors(config.layer_scale)
        zeros, size = nnx.initializers.zeros_init(), len(MAIN_BRANCHES) * len(Modulation._fields) * dims.width
        self.modulation = (
            linear(dims.width, size, ("embed", None), dtype=dtype, rngs=rngs, kernel_init=zeros, bias_init=zeros)
            if config.adaptive
            else None
        )

    def _make_norms(self, branch: str, width: int) -> None:
        """Make the norms of a branch; None where its order has none."""
        before_branch, after_branch, after_sum = ORDERS[self.config.order]
        reads_norm_of_attention = branch == "mlp" and self.config.parallel == "one"
        reads_x = branch == "attention" and self.config.bare
        before_branch = before_branch and not reads_norm_of_attention and not reads_x
        for suffix, has_norm in (("", before_branch), ("_after", after_branch), ("_sum", after_sum)):
            setattr(self, f"norm_{branch}{suffix}", make_norm(self.config.norm, width) if has_norm else None)

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
            context: inputs that all layers share: positions, the encoding's parameters, execution.
            cache: keys and values of this layer; None = no cache.
            factors: factors of both branches, from `drop_factors`; None = 1.
        """
        modulations = self._modulations(context.condition)
        branch_input = self._branch_input("attention", x, modulations)
        attended, keys_values = self.attention(branch_input, context, None if cache is None else cache.self_attention)
        if self.config.parallel:
            branch_input = branch_input if self.config.parallel == "one" else normed(self._norm("mlp"), x)
            x = self._add_branch("attention", x, attended, factors)
            return self._add_branch("mlp", x, self.mlp(branch_input), factors), _layer_cache(keys_values, None)
        x = self._add_branch("attention", x, attended, factors, modulations)
        source_keys_values = None
        if self.cross is not None:
            if context.cross_context is None:
                raise ValueError("a layer with cross-attention needs the states of an encoder, got cross_context=None")
            states = context.cross_context.states
            source_keys_values = self.cross.keys_values(states) if states is not None else cache.cross  # pyright: ignore[reportOptionalMemberAccess]
            branch_input = normed(self._norm("cross"), x)
            attended = self.cross(branch_input, context.cross_context, source_keys_values, context.execution)  # pyright: ignore[reportArgumentType]
            x = self._add_branch("cross", x, attended, None)
        branch = self.mlp(self._branch_input("mlp", x, modulations))
        return self._add_branch("mlp", x, branch, factors, modulations), _layer_cache(keys_values, source_keys_values)

    def _norm(self, name: str) -> Callable[[Array], Array] | None:
        """Return the norm `norm_{name}`; None = there is none."""
        return getattr(self, f"norm_{name}")

    def _modulations(self, condition: Float[Array, "B C"] | None) -> dict[str, Modulation]:
        """Return the modulation of each branch; none without adaptive norms."""
        if self.modulation is None:
            return {}
        if condition is None:
            raise ValueError("a layer with adaptive norms needs a vector per example, got condition=None")
        fields = len(Modulation._fields)
        columns = self.modulation.of(ACTIVATIONS["silu"], condition)[:, None]
        parts = jnp.split(columns, len(MAIN_BRANCHES) * fields, axis=-1)
        return {name: Modulation(*parts[n * fields : (n + 1) * fields]) for n, name in enumerate(MAIN_BRANCHES)}

    def _branch_input(self, name: str, x: Array, modulations: dict[str, Modulation]) -> Array:
        """Return the input of a branch: x after its norm, modulated."""
        normed_x = normed(self._norm(name), x)
        return modulated(normed_x, modulations[name].shift, modulations[name].scale) if modulations else normed_x

    def _add_branch(
        self,
        name: str,
        x: Array,
        branch: Array,
        factors: Array | None,
        modulations: dict[str, Modulation] | None = None,
    ) -> Array:
        """Return x after a branch is added to it.

        Args:
            name: name of the branch: "attention", "cross" or "mlp".
            x: states before the branch.
            branch: its output, before gate, norm and scales.
            factors: factors of stochastic depth, `(2, B)`; None = 1.
            modulations: modulation of each branch; {} or None = no adaptive norms.
        """
        if modulations:
            branch = branch * modulations[name].gate
        branch = normed(self._norm(f"{name}_after"), branch)
        scale = getattr(self, f"scale_{name}", None)
        branch = branch if scale is None else branch * scale[...].astype(branch.dtype)
        if self.config.branch_scale != 1.0 and name in MAIN_BRANCHES:
            branch = branch * jnp.asarray(self.config.branch_scale, branch.dtype)
        if factors is not None and name in MAIN_BRANCHES:
            branch = branch * factors[MAIN_BRANCHES.index(name), :, None, None].astype(branch.dtype)
        return normed(self._norm(f"{name}_sum"), x + branch)


def _layer_cache(keys_values: KeysValues | None, source_keys_values: KeysValues | None) -> LayerCache | None:
    """Return the cache of a layer from the keys and values of both kinds of attention; None = no cache."""
    return None if keys_values is None else LayerCache(keys_values, source_keys_values)
