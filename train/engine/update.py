"""What a step makes of its gradients: parameters, moments and average; on a CPU layer by layer.

XLA:CPU computes each of them in a pass of its own over all that it reads. Of one layer of one parameter that stays in
cache from pass to pass, where the cache is large enough, and comes from memory once.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array

from train.engine.metrics import STACKED
from train.engine.optimizers import names

LARGE = 2**20
"""Elements from which a stack of layers is updated layer by layer: a loop over less costs more than it saves."""

Update = Callable[[Any, "Held"], "Held"]


class Recipe(NamedTuple):
    """What happens in a step, the loss apart.

    Attributes:
        optimizer: of the parameters, each element or each layer by itself.
        sums: names of what the loss adds up.
        clip: the norm that a gradient of a larger one is scaled to; 0 = none is.
        seed: of what is drawn at random: it comes from `(seed, step)` alone, so that a restart draws the same.
        accumulate: parts that a batch is computed in, one after another, for memory.
        average: decay of the average of the parameters; 0 = none is kept.
        spike: times its running median that a loss may reach before it halts the run; 0 = any.
    """

    optimizer: optax.GradientTransformation
    sums: tuple[str, ...]
    clip: float = 0.0
    seed: int = 0
    accumulate: int = 1
    average: float = 0.0
    spike: float = 0.0


class Held(NamedTuple):
    """What an update changes.

    Attributes:
        params: of the model.
        opt: of the optimizer.
        average: of the parameters over the steps; None = not kept.
    """

    params: Any
    opt: Any
    average: Any


def changed(recipe: Recipe, grads: Any, norm: Array, held: Held) -> Held:
    """Return parameters, moments and average after a step.

    Args:
        recipe: of the step.
        grads: of the parameters, or of some of them.
        norm: of the whole gradient.
        held: before the step.
    """
    if recipe.clip:
        factor = recipe.clip / jnp.maximum(norm, recipe.clip)
        grads = jax.tree.map(lambda leaf: leaf * factor.astype(leaf.dtype), grads)
    with jax.numpy_dtype_promotion("standard"):  # optax multiplies floats by integer counts
        updates, opt = recipe.optimizer.update(grads, held.opt, held.params)
    params = optax.apply_updates(held.params, updates)
    if not recipe.average:
        return Held(params, opt, None)
    return Held(params, opt, optax.incremental_update(params, held.average, 1.0 - recipe.average))


def layer_by_layer(
    update: Update, optimizer: optax.GradientTransformation, grads: Any, held: Held, large: int = LARGE
) -> Held:
    """Return `update(grads, held)`, computed for one layer of one large parameter after another, the rest at once.

    Args:
        update: of every element, or of every layer of a parameter, by itself; it may be given part of the trees, with
            None in place of the other leaves.
        optimizer: that `held.opt` is the state of.
        grads: of the parameters.
        held: before the update.
        large: elements from which a stack of layers is large.
    """
    places, tree = jax.tree_util.tree_flatten_with_path(grads)
    stacks = [n for n, (path, leaf) in enumerate(places) if STACKED in names(path) and leaf.size >= large]
    numbers = tree.unflatten(range(len(places)))

    def part(chosen: Callable[[int], bool]) -> tuple[Any, Held]:
        own = lambda leaf, number: leaf if chosen(number) else None
        opt = optax.tree.map_params(optimizer, own, held.opt, numbers)
        average = None if held.average is None else jax.tree.map(own, held.average, numbers)
        return jax.tree.map(own, grads, numbers), Held(jax.tree.map(own, held.params, numbers), opt, average)

    def in_turn(grads: Any, held: Held) -> Held:
        def layer(i: Array, held: Held) -> Held:
            after = update(_layer(grads, i), _layer(held, i))
            return jax.tree.map(
                lambda x, new: lax.dynamic_update_slice_in_dim(x, new, i, 0) if x.ndim else x, held, after
            )

        return lax.fori_loop(0, len(jax.tree.leaves(grads)[0]), layer, held)

    rest = update(*part(lambda number: number not in stacks))
    found = [in_turn(*part(lambda number, n=n: number == n)) for n in stacks]
    first = lambda *leaves: next((leaf for leaf in leaves if leaf is not None), None)
    return jax.tree.map(first, rest, *found, is_leaf=lambda leaf: leaf is None)


def _layer(tree: Any, i: Array) -> Any:
    """Return layer i of all arrays, which keep their axes; numbers, such as the count of steps, as they are."""
    return jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, i, 1, 0) if jnp.ndim(x) else x, tree)
