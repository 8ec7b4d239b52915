"""L layers, applied by one scan per repeated pattern."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Key

from pejax._record.encoding import Encoding, Params, merge_params
from pejax.models.configs.pattern import patterns
from pejax.models.execution import Execution
from pejax.models.parts.attention import CrossAttention, LayerCache, LayerContext, SelfAttention, batch_axes
from pejax.models.parts.block import MAIN_BRANCHES, Block, LayerKind


def drop_factors(key: Key[Array, ""], rates: Float[Array, " L"], batch: int) -> Float[Array, "L 2 B"]:
    """Return the factors of stochastic depth, per layer, branch (`MAIN_BRANCHES`) and example.

    A factor is 0 with the probability of its layer, `rate`, else 1/(1 - rate).

    Args:
        key: random key that the factors are drawn with.
        rates: probability that a branch is dropped, per layer.
        batch: B, number of examples.

    Reference:
        Huang et al. 2016, "Deep Networks with Stochastic Depth" (arXiv 1603.09382), section 3. The paper rescales
        branches at evaluation; here 1/(1 - rate) rescales them in training instead, and evaluation needs no factor.
    """

    def layer(key: Key[Array, ""], rate: Float[Array, ""]) -> Float[Array, "2 B"]:
        draw = lambda key: jax.random.bernoulli(key, 1.0 - rate, (batch,))
        return jax.vmap(draw)(jax.random.split(key, len(MAIN_BRANCHES))).astype(jnp.float32) / (1.0 - rate)

    return jax.vmap(layer)(jax.random.split(key, len(rates)), rates)


class Holder(nnx.Module):
    """A module that only holds the given attributes, to add a level to the paths of their parameters."""

    def __init__(self, **attributes: Any) -> None:
        for name, value in attributes.items():
            setattr(self, name, value)


class Body(NamedTuple):
    """The layers at one place of a pattern, which are computed by one program.

    Attributes:
        number: index of the body in the model, in the order of the bodies' first layers.
        layers: indices of the layers in the model.
        encoding: index of their encoding in the encodings of the model.
    """

    number: int
    layers: range
    encoding: int


class Layers(nnx.Module):
    """L layers, one scan per pattern (`patterns`): parameters are stacked, so the program does not grow with depth.

    The layers at one place of a pattern are a body. Its parameters are stacked, in the order of the layers: the first
    body's in `blocks`, body n's in `body_n.blocks`. `place` returns the body of a layer and the layer's index in it.

    Attributes:
        rates: rates of stochastic depth, one per layer.
        blocks: the parameters of the first body.
        patterns: one tuple per pattern, with one `Body` per layer of it.

    Args:
        kinds: config, dims and encodings, one record per layer.
        encodings: the different encodings of the layers.
        stochastic_depth: rate of the last layer; layer l of 0 ... L-1 has `stochastic_depth · l / (L - 1)`.
        dtype: type of the computation.
        rngs: random streams; the parameters of every layer are drawn from keys of its own.
    """

    blocks: Block

    def __init__(
        self,
        kinds: Sequence[LayerKind],
        encodings: Sequence[Encoding],
        *,
        stochastic_depth: float = 0.0,
        dtype: DTypeLike,
        rngs: nnx.Rngs,
    ) -> None:
        count = len(kinds)
        self.rates = tuple(stochastic_depth * layer / max(count - 1, 1) for layer in range(count))
        bodies_by_pattern, first, number = [], 0, 0
        for pattern, repeats in patterns(tuple(kinds)):
            end, bodies = first + len(pattern) * repeats, []
            for place, kind in enumerate(pattern):
                layers = range(first + place, end, len(pattern))
                bodies.append(Body(number, layers, encodings.index(kind.encoding)))
                stacked = _stacked(kind, repeats, dtype, rngs)
                setattr(self, f"body_{number}" if number else "blocks", Holder(blocks=stacked) if number else stacked)
                number += 1
            bodies_by_pattern.append(tuple(bodies))
            first = end
        self.patterns = tuple(bodies_by_pattern)

    def stacked(self, body: Body) -> Block:
        """Return the parameters of a body, stacked."""
        return getattr(self, f"body_{body.number}").blocks if body.number else self.blocks

    def place(self, layer: int) -> tuple[Body, int]:
        """Return the body of a layer, and the layer's index on the leading axis of its parameters."""
        for body in self.bodies:
            if layer in body.layers:
                return body, body.layers.index(layer)
        raise ValueError(f"layer must be from 0 to {len(self.rates) - 1}, got {layer}")

    @property
    def bodies(self) -> tuple[Body, ...]:
        """The bodies of all patterns."""
        return tuple(body for pattern in self.patterns for body in pattern)

    def first_of(self, encoding: int) -> Params:
        """Return the parameters of an encoding that differ by layer, those of the first layer that has it."""
        body = next(body for body in self.bodies if body.encoding == encoding)
        return jax.tree.map(lambda leaf: leaf[0], nnx.as_pure(self.stacked(body).attention.position))

    def __call__(
        self,
        x: Float[Array, "B T C"],
        context: LayerContext,
        cache: tuple[LayerCache, ...] | None = None,
        *,
        shared: Sequence[Params] | None = None,
        key: Key[Array, ""] | None = None,
    ) -> tuple[Float[Array, "B T C"], tuple[LayerCache, ...] | None]:
        """Apply the layers in order.

        Args:
            x: states before the first layer.
            context: inputs that all layers share, without the parameters of encodings.
            cache: caches of the layers, stacked, one per body; None = no cache.
            shared: the parameters of every encoding that all its layers share. None = there are none.
            key: random key that the branches to drop are drawn with (stochastic depth). None = none is dropped.

        Returns:
            The states after the last layer, and the caches, one per body.
        """
        shared = ({},) * (1 + max(body.encoding for body in self.bodies)) if shared is None else shared
        factors = None if key is None else drop_factors(key, jnp.asarray(self.rates, jnp.float32), x.shape[0])
        caches = iter(cache or ())
        statics, operands = [], []
        for pattern in self.patterns:
            blocks = [nnx.split(self.stacked(body)) for body in pattern]
            statics.append([static for static, _ in blocks])
            operands.append(tuple(
                (params, next(caches, None), _rows(factors, body, len(self.rates)), self.constants(body))
                for (_, params), body in zip(blocks, pattern, strict=True)
            ))  # fmt: skip

        def apply(
            execution: Execution, shared: Sequence[Params], context: LayerContext, x: Array, operands: list[Any]
        ) -> tuple[Array, tuple[LayerCache, ...] | None]:
            new_caches = []
            for pattern, modules, layers in zip(self.patterns, statics, operands, strict=True):
                pairs = zip(pattern, modules, strict=True)
                steps = [layer_step(execution, context, shared[body.encoding], static) for body, static in pairs]
                x, caches = execution.scan(steps, x, layers, first=pattern[0].layers[0])
                new_caches += caches
            return x, None if new_caches[0] is None else tuple(new_caches)

        if cache is not None or not context.execution.local:
            return apply(context.execution, shared, context, x, operands)
        local = lambda execution, operands: apply(execution, *operands)[0]
        # Batch axes of a body's operands: none of parameters and constants, 2 of factors `(repeats, branch, B)`.
        by_layer = [((-1, None, 2, -1),) * len(pattern) for pattern in self.patterns]
        axes = -1, batch_axes(context, self.blocks.attention.dims.axes), 0, by_layer
        return context.execution.per_shard(local, (tuple(shared), context, x, operands), axes), None

    def constants(self, body: Body) -> tuple[Params, Params]:
        """Return the constants of a body's self-attention and cross-attention that differ by depth, stacked."""
        block, count = self.stacked(body), len(self.rates)

        def constants_of(attention: SelfAttention | CrossAttention | None) -> Params:
            by_depth = None if attention is None else attention.encoding.layer_constants
            return {} if by_depth is None else jax.tree.map(lambda leaf: _rows(leaf, body, count), by_depth(count))

        return constants_of(block.attention), constants_of(block.cross)


def _stacked(kind: LayerKind, repeats: int, dtype: DTypeLike, rngs: nnx.Rngs) -> Block:
    """Make the parameters of layers of one kind, stacked."""

    @nnx.split_rngs(splits=repeats)
    @nnx.vmap
    def stack(rngs: nnx.Rngs) -> Block:
        return Block(kind, dtype=dtype, rngs=rngs)

    return stack(rngs)


def _rows(stacked: Array | None, body: Body, count: int) -> Array | None:
    """Return the rows of a body in an array with one row per layer of the model."""
    if stacked is None or len(body.layers) == count:
        return stacked
    return stacked[body.layers.start : body.layers.stop : body.layers.step]


def layer_step(
    execution: Execution, context: LayerContext, shared: Params, static: Any
) -> Callable[[Array, Any], tuple[Array, LayerCache | None]]:
    """Return a layer's function `(x, (params, cache, factors, constants)) -> (x, cache)`; `static` is its module."""

    def step(x: Array, layer: Any) -> tuple[Array, LayerCache | None]:
        params, cache, factors, (constants, cross_constants) = layer
        cross = context.cross_context
        if cross is not None:
            cross = cross._replace(shared=merge_params(cross.shared, cross_constants))
        context_of_layer = context._replace(
            execution=execution, shared=merge_params(shared, constants), cross_context=cross
        )
        x, cache = nnx.merge(static, params)(x, context_of_layer, cache, factors)
        return execution.shard_states(x), cache

    return step
