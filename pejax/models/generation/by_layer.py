"""Generation on a CPU, one layer at a time: all layers of a kind run one program on their own parameters.

A scan over stacked layers copies the parameters of a layer before it multiplies by them, and the cache after every
token. Here the parameters of a layer are views of the stacked ones, and its cache is written in place. Nothing else
differs: the programs are those of `steps`, cut before the first and after the last layer.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.core import Tracer
from jaxtyping import Array, Bool, Float

from pejax._ops.backend import platform
from pejax.models.execution import Execution
from pejax.models.generation.steps import (
    Request,
    Settings,
    Text,
    Turn,
    continued,
    next_turn,
    opened,
    prompt_turn,
    whole_turn,
)
from pejax.models.networks.decoder import Decoder
from pejax.models.parts.attention import KeysValues, LayerCache, LayerContext
from pejax.models.stack.layer_scan import layer_step

SMALLEST = 2**20
"""Bytes of a layer from which on copies of its parameters take longer than starting one more program."""


def runs_by_layer(model: Decoder, request: Request, settings: Settings) -> bool:
    """Return whether a generation runs one layer at a time: known, large parameters on one CPU, and all tokens kept."""
    leaves = jax.tree.leaves((nnx.state(model), request))
    if any(isinstance(leaf, Tracer) for leaf in leaves) or settings.rolling is not None:
        return False
    if platform() != "cpu" or not jax.sharding.get_abstract_mesh().empty:
        return False
    if any(device.platform != "cpu" for leaf in leaves for device in leaf.devices()):
        return False
    layers = model.stack.layers
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(nnx.state(layers)))
    return size >= SMALLEST * len(layers.rates) and len(set[Any]().union(*(leaf.devices() for leaf in leaves))) == 1


def steps_by_layer(
    model: Decoder, request: Request, settings: Settings, keys: Sequence[Array | None], changed: Bool[np.ndarray, " N"]
) -> Iterator[tuple[Text, Float[Array, "B V"]]]:
    """Return an iterator over the texts after each new token, and the logits that the token was drawn from.

    Args:
        model: a decoder whose parameters are known.
        request: the arrays of the generation.
        settings: its settings, without a rolling cache.
        keys: the random key of each new token; None = none is drawn.
        changed: whether all tokens are computed again, with other parameters of encodings, for each new token.
    """
    static, params = nnx.split(model)
    leaves, tree = jax.tree.flatten(params)
    programs, layers = _programs(static, tree, settings), _layers(model, settings)
    (batch, length), device = request.prompts.shape, leaves[0].device
    caches = [_empty(model, number, (batch, length + settings.count - 1), device) for number in range(len(layers))]
    request, keys = jax.device_put((request, list(keys)), device)  # as parameters are: one program serves all layers

    def steps() -> Iterator[tuple[Text, Float[Array, "B V"]]]:
        text, x, context = programs.begin(leaves, request)
        for slot, (key, again) in enumerate(zip(keys, changed, strict=True), length - 1):
            if slot >= length:
                enter = programs.enter_again if again else programs.enter
                text, x, context = enter(leaves, text, np.int32(slot))
            for number, (run, operands) in enumerate(layers):
                x, caches[number] = run(operands, caches[number], x, context)
            x = x if x.shape[1] == 1 else _state(x, np.int32(slot))
            text, logits = programs.end(leaves, text, x, request.stop, key)
            yield text, logits

    return steps()


class _Programs(NamedTuple):
    """The programs around the layers; `leaves` are the parameters of the model.

    Attributes:
        begin: `(leaves, request) -> (text, x, context)`, the prompts before the first layer.
        enter: `(leaves, text, slot) -> (text, x, context)`, the newest token, which belongs into the slot.
        enter_again: the same with all tokens of the text.
        end: `(leaves, text, x, stop, key) -> (text, logits)`, the new token after x, the state after the last layer.
    """

    begin: Callable[..., tuple[Text, Array, LayerContext]]
    enter: Callable[..., tuple[Text, Array, LayerContext]]
    enter_again: Callable[..., tuple[Text, Array, LayerContext]]
    end: Callable[..., tuple[Text, Array]]


@functools.lru_cache(maxsize=32)
def _programs(static: Any, tree: Any, settings: Settings) -> _Programs:
    """Return the programs around the layers: made once, because a static argument would be hashed in every call."""
    merged = lambda leaves: nnx.merge(static, tree.unflatten(leaves))

    def entered(model: Decoder, text: Text, turn: Turn) -> tuple[Text, Array, LayerContext]:
        x, context, cache = model.stack.begin(model.embedding(turn.ids), turn.tokens, turn.extent, cache=text.cache)
        extent = None if settings.settled else turn.extent
        return text._replace(cache=cache), x, context._replace(execution=None, extent=extent, settled=None)

    @jax.jit
    def begin(leaves: list[Array], request: Request) -> tuple[Text, Array, LayerContext]:
        model = merged(leaves)
        text = opened(model, request, settings)
        text = text._replace(cache=text.cache._replace(layers=()))
        return entered(model, text, prompt_turn(text, request.prompts.shape[1], settings))

    @jax.jit
    def enter(leaves: list[Array], text: Text, slot: Array) -> tuple[Text, Array, LayerContext]:
        return entered(merged(leaves), *next_turn(text, slot, settings))

    @jax.jit
    def enter_again(leaves: list[Array], text: Text, slot: Array) -> tuple[Text, Array, LayerContext]:
        text, turn = next_turn(text, slot, settings)
        text, x, context = entered(merged(leaves), *whole_turn(text, slot, turn.extent))
        return text._replace(cache=text.cache._replace(used=slot + 1)), x, context

    @jax.jit
    def end(leaves: list[Array], text: Text, x: Array, stop: Array, key: Array | None) -> tuple[Text, Array]:
        model = merged(leaves)
        return continued(model, text, model.stack.end(x), stop, key, settings)

    return _Programs(begin, enter, enter_again, end)


@jax.jit
def _state(x: Array, place: Array) -> Array:
    """Return the state at a place."""
    return jax.lax.dynamic_slice_in_dim(x, place, 1, axis=1)


def _layers(model: Decoder, settings: Settings) -> list[tuple[Callable, list[Array]]]:
    """Return the program of each layer, `(operands, cache, x, context) -> (x, cache)`, and its operands."""
    layers, shared = model.stack.layers, model.stack.shared_params()
    by_layer: dict[int, tuple[Callable, list[Array]]] = {}
    for body in layers.bodies:
        static, params = nnx.split(layers.stacked(body))
        stacked, tree = jax.tree.flatten((params, layers.constants(body)))
        common, common_tree = jax.tree.flatten(shared[body.encoding])
        run = _layer_program(static, tree, common_tree, settings.settled)
        views = zip(*map(_rows, stacked), strict=True)
        by_layer |= {layer: (run, [*own, *common]) for layer, own in zip(body.layers, views, strict=True)}
    return [by_layer[layer] for layer in range(len(layers.rates))]


@functools.lru_cache(maxsize=32)
def _layer_program(static: Any, tree: Any, shared_tree: Any, settled: bool) -> Callable:
    """Return the program that all layers of a kind run."""

    @functools.partial(jax.jit, donate_argnums=1)
    def run(operands: list[Array], cache: LayerCache, x: Array, context: LayerContext) -> tuple[Array, LayerCache]:
        params, constants = tree.unflatten(operands[: tree.num_leaves])
        shared = shared_tree.unflatten(operands[tree.num_leaves :])
        context = context._replace(settled=settled, **({"extent": 1} if settled else {}))
        return layer_step(Execution(), context, shared, static)(x, (params, cache, None, constants))  # pyright: ignore[reportReturnType]

    return run


def _rows(stacked: Array) -> list[Array]:
    """Return the entries on the leading axis, as views of the same memory where its alignment allows that."""
    return jax.device_put(list(np.asarray(stacked)), stacked.device, may_alias=True)


def _empty(model: Decoder, layer: int, shape: tuple[int, int], device: Any) -> LayerCache:
    """Return the empty cache of a layer, for examples and slots."""
    (batch, slots), layers = shape, model.stack.layers
    dims = layers.stacked(layers.place(layer)[0]).attention.dims
    zeros = lambda: jnp.zeros((batch, dims.kv_heads, slots, dims.head_dim), model.stack.dtype, device=device)
    return LayerCache(KeysValues(zeros(), zeros()))
