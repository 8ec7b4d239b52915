"""A transformer layer: attention, cross-attention if there is any, and an MLP, each added to its input.

x <- x + scale_1 · attention(norm(x))     a factor per channel and a fixed one; the norms are where `ORDERS` says
x <- x + cross_attention(norm(x))         only in the decoder of an encoder-decoder
x <- x + scale_2 · mlp(norm(x))

With adaptive norms, a vector c per example gives shift, scale and gate of both branches, `silu(c) @ modulation`:

x <- x + gate · f((1 + scale) · norm(x) + shift)
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from pejax._dims import Dims
from pejax._encoding import Encoding
from pejax.models.configs.layer import ORDERS, LayerConfig, MoEConfig
from pejax.models.parts.attention import CrossAttention, LayerCache, LayerContext, SelfAttention
from pejax.models.parts.experts import Experts
from pejax.models.parts.layers import ACTIVATIONS, Mlp, linear, make_norm, modulated, normed
from pejax.models.sharding import named

DROPPED = ("attention", "mlp")
"""The branches of a layer that stochastic depth drops."""


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
        made = Experts if isinstance(config.mlp, MoEConfig) else Mlp
        self.mlp = made(config.mlp, dims.width, dtype=dtype, rngs=rngs)  # pyright: ignore[reportArgumentType]
        factor = lambda start: nnx.Param(jnp.full((dims.width,), start, jnp.float32), **named("embed"))
        self.scale_attention = None if config.layer_scale is None else factor(config.layer_scale)
        self.scale_mlp = None if config.layer_scale is None else factor(config.layer_scale)
        zeros, size = nnx.initializers.zeros_init(), len(DROPPED) * len(Modulation._fields) * dims.width
        self.modulation = (
            linear(dims.width, size, ("embed", None), dtype=dtype, rngs=rngs, kernel_init=zeros, bias_init=zeros)
            if config.adaptive
            else None
        )

    def _make_norms(self, branch: str, width: int) -> None:
        """Make the norms of a branch; None where its order has none."""
        before, after, total = ORDERS[self.config.order]
        shared = branch == "mlp" and self.config.parallel == "one"
        bare = branch == "attention" and self.config.bare
        for name, present in (("", before and not shared and not bare), ("_after", after), ("_sum", total)):
            setattr(self, f"norm_{branch}{name}", make_norm(self.config.norm, width) if present else None)

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
        read = self._read("attention", x, modulations)
        attended, own = self.attention(read, context, None if cache is None else cache.own)
        if self.config.parallel:
            read = read if self.config.parallel == "one" else normed(self._norm("mlp"), x)
            x = self._added("attention", x, attended, factors)
            return self._added("mlp", x, self.mlp(read), factors), _cache(own, None)
        x = self._added("attention", x, attended, factors, modulations)
        keys_values = None
        if self.cross is not None:
            if context.cross_context is None:
                raise ValueError("a layer with cross-attention needs the states of an encoder, got cross_context=None")
            states = context.cross_context.states
            keys_values = self.cross.keys_values(states) if states is not None else cache.cross  # pyright: ignore[reportOptionalMemberAccess]
            read = normed(self._norm("cross"), x)
            crossed = self.cross(read, context.cross_context, keys_values, context.execution)  # pyright: ignore[reportArgumentType]
            x = self._added("cross", x, crossed, None)
        branch = self.mlp(self._read("mlp", x, modulations))
        return self._added("mlp", x, branch, factors, modulations), _cache(own, keys_values)

    def _norm(self, name: str) -> Callable[[Array], Array] | None:
        return getattr(self, f"norm_{name}")

    def _modulations(self, condition: Float[Array, "B C"] | None) -> dict[str, Modulation]:
        """Return the modulation of each branch; none without adaptive norms."""
        if self.modulation is None:
            return {}
        if condition is None:
            raise ValueError("a layer with adaptive norms needs a vector per example, got condition=None")
        parts = jnp.split(self.modulation.of(ACTIVATIONS["silu"], condition)[:, None], len(DROPPED) * 3, axis=-1)
        return {name: Modulation(*parts[3 * n : 3 * n + 3]) for n, name in enumerate(DROPPED)}

    def _read(self, name: str, x: Array, modulations: dict[str, Modulation]) -> Array:
        """Return the input of a branch: x after its norm, modulated."""
        read = normed(self._norm(name), x)
        return modulated(read, *modulations[name][:2]) if modulations else read

    def _added(
        self,
        name: str,
        x: Array,
        branch: Array,
        factors: Array | None,
        modulations: dict[str, Modulation] | None = None,
    ) -> Array:
        """Return x after the branch is added to it, with the norms after branch and sum, its scale and its factors."""
        if modulations:
            branch = branch * modulations[name].gate
        branch = normed(self._norm(f"{name}_after"), branch)
        scale = getattr(self, f"scale_{name}", None)
        branch = branch if scale is None else branch * scale[...].astype(branch.dtype)
        if self.config.branch_scale != 1.0 and name in DROPPED:
            branch = branch * jnp.asarray(self.config.branch_scale, branch.dtype)
        if factors is not None and name in DROPPED:
            branch = branch * factors[DROPPED.index(name), :, None, None].astype(branch.dtype)
        return normed(self._norm(f"{name}_sum"), x + branch)


def _cache(own: Any, cross: Any) -> LayerCache | None:
    return None if own is None else LayerCache(own, cross)
