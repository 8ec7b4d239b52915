"""The optimizer step: update of parameters, moments and average; on a CPU layer by layer.

A CPU computes each of them in a separate pass over its inputs. One layer of one parameter fits the cache, so it is
read from memory only once for all passes.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array

from train.engine.metrics import STACKED
from train.engine.optimizers import path_names

LARGE = 2**20
"""Smallest stack of layers, in elements, that is updated layer by layer: for smaller ones the loop does not pay."""

Update = Callable[[Any, "Weights"], "Weights"]


class Recipe(NamedTuple):
    """Everything about a training step except the loss.

    Attributes:
        optimizer: optimizer of the parameters; it treats each element, or each layer, separately.
        sums: names of the sums that the loss returns.
        clip: the gradient is clipped to this global norm; 0 = no clipping.
        seed: random numbers depend only on `(seed, step)`, so a resumed run draws the same ones.
        accumulate: number of parts of a batch that are computed one after another to save memory.
        average: decay of the moving average of the parameters; 0 = none is kept.
        spike: largest allowed ratio of the loss to its running median; 0 = no limit.
    """

    optimizer: optax.GradientTransformation
    sums: tuple[str, ...]
    clip: float = 0.0
    seed: int = 0
    accumulate: int = 1
    average: float = 0.0
    spike: float = 0.0


class Weights(NamedTuple):
    """The part of the training state that the optimizer updates.

    Attributes:
        params: parameters of the model.
        opt: state of the optimizer.
        average: moving average of the parameters; None = not kept.
    """

    params: Any
    opt: Any
    average: Any


def updated_weights(recipe: Recipe, grads: Any, norm: Array, weights: Weights) -> Weights:
    """Return the weights after a step, or a part of them, given its gradients and the norm of all gradients."""
    if recipe.clip:
        factor = recipe.clip / jnp.maximum(norm, recipe.clip)
        grads = jax.tree.map(lambda leaf: leaf * factor.astype(leaf.dtype), grads)
    with jax.numpy_dtype_promotion("standard"):  # optax multiplies floats by integer counts
        updates, opt = recipe.optimizer.update(grads, weights.opt, weights.params)
    params = optax.apply_updates(weights.params, updates)
    if not recipe.average:
        return Weights(params, opt, None)
    return Weights(params, opt, optax.incremental_update(params, weights.average, 1.0 - recipe.average))


def layer_by_layer(
    update: Update, optimizer: optax.GradientTransformation, grads: Any, weights: Weights, large: int = LARGE
) -> Weights:
    """Return `update(grads, weights)`, computed layer by layer for each large parameter, and at once for the rest.

    Args:
        update: treats every element, or every layer of a parameter, separately; it may receive partial trees with
            None for the other leaves.
        optimizer: optimizer whose state `weights.opt` is.
        grads: gradients of the parameters.
        weights: weights before the update.
        large: smallest size of a large stack of layers, in elements.
    """
    leaves, tree = jax.tree_util.tree_flatten_with_path(grads)
    stacks = [n for n, (path, leaf) in enumerate(leaves) if STACKED in path_names(path) and leaf.size >= large]
    # A part has None for the leaves of other parts, so that the state of the optimizer, of the same tree, is cut alike.
    numbers = tree.unflatten(range(len(leaves)))

    def part(is_in_part: Callable[[int], bool]) -> tuple[Any, Weights]:
        def select(leaf: Any, number: int) -> Any:
            return leaf if is_in_part(number) else None

        opt = optax.tree.map_params(optimizer, select, weights.opt, numbers)
        average = None if weights.average is None else jax.tree.map(select, weights.average, numbers)
        return jax.tree.map(select, grads, numbers), Weights(
            jax.tree.map(select, weights.params, numbers), opt, average
        )

    def by_layer(grads: Any, weights: Weights) -> Weights:
        def layer(i: Array, weights: Weights) -> Weights:
            new_weights = update(_layer(grads, i), _layer(weights, i))
            return jax.tree.map(
                lambda x, new: lax.dynamic_update_slice_in_dim(x, new, i, 0) if x.ndim else x, weights, new_weights
            )

        return lax.fori_loop(0, len(jax.tree.leaves(grads)[0]), layer, weights)

    def merge(*leaves: Any) -> Any:
        return next((leaf for leaf in leaves if leaf is not None), None)

    at_once = update(*part(lambda number: number not in stacks))
    in_layers = [by_layer(*part(lambda number, n=n: number == n)) for n in stacks]
    return jax.tree.map(merge, at_once, *in_layers, is_leaf=lambda leaf: leaf is None)


def _layer(tree: Any, i: Array) -> Any:
    """Return layer i of all arrays, with a leading axis of size 1; scalars, such as the step count, are unchanged."""
    return jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, i, 1, 0) if jnp.ndim(x) else x, tree)
