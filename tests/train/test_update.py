"""The update of a step, layer by layer, is that of all at once, and in place."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from train.devices.cpu import TRAINING_COMPILER
from train.devices.mesh import make_mesh
from train.engine import metrics
from train.engine.optimizers import make_optimizer
from train.engine.parser import parse
from train.engine.update import Recipe, Weights, layer_by_layer, updated_weights
from train.lm.program import Config

LAYERS, WIDTH = 3, 8
SHAPES = {
    "embed": {"kernel": (10, WIDTH)},
    "blocks": {"mlp": {"kernel": (LAYERS, WIDTH, 2 * WIDTH), "bias": (LAYERS, 2 * WIDTH)}, "position": (LAYERS, 2)},
}


def drawn(seed: int, shapes=SHAPES):
    rng = np.random.default_rng(seed)
    is_shape = lambda x: isinstance(x, tuple)
    return jax.tree.map(lambda shape: jnp.asarray(rng.standard_normal(shape), jnp.float32), shapes, is_leaf=is_shape)


def begun(*flags: str, average: float = 0.9, shapes=SHAPES):
    """Return the recipe of a run, and what it holds before its first step."""
    config = parse(Config, ["--lr=0.1", "--weight_decay=0.1", *flags])
    recipe = Recipe(make_optimizer(config, 8, 0)[0], (), config.clip, average=average)
    params = drawn(0, shapes)
    return recipe, Weights(params, recipe.optimizer.init(params), drawn(1, shapes) if average else None)


def by_norm(recipe: Recipe, norm, grads, weights: Weights) -> Weights:
    return updated_weights(recipe, grads, norm, weights)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "average"),
    [
        pytest.param("adamw", 0.9, marks=pytest.mark.slow),
        pytest.param("adamw", 0.0, marks=pytest.mark.slow),
        pytest.param("lamb", 0.9, marks=pytest.mark.slow),
        ("lamb", 0.0),
    ],
)
def test_layer_by_layer_is_all_at_once(name, average):
    recipe, weights = begun(f"--optimizer={name}", "--clip=1.0", average=average)
    expected = other = weights
    for step in range(3):
        grads = drawn(2 + step)
        update = partial(by_norm, recipe, optax.tree.norm(grads))
        expected = update(grads, expected)
        other = jax.jit(partial(layer_by_layer, update, recipe.optimizer, large=LAYERS * WIDTH * 2))(grads, other)
    assert jax.tree.structure(expected) == jax.tree.structure(other)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7), expected, other)
    assert not np.allclose(expected.params["blocks"]["mlp"]["kernel"], weights.params["blocks"]["mlp"]["kernel"])


@pytest.mark.slow
def test_stacks_of_layers_that_are_large_enough_are_updated_in_turn():
    recipe, weights = begun()
    seen = []

    def update(grads, weights):
        seen.append(
            {jax.tree_util.keystr(path): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(grads)}
        )
        return updated_weights(recipe, grads, jnp.float32(1.0), weights)

    layer_by_layer(update, recipe.optimizer, drawn(2), weights, large=LAYERS * WIDTH * 2)
    remainder, *in_turn = seen
    assert remainder.keys() == {"['embed']['kernel']", "['blocks']['position']"}
    assert {name: shape for part in in_turn for name, shape in part.items()} == {
        "['blocks']['mlp']['kernel']": (1, WIDTH, 2 * WIDTH),
        "['blocks']['mlp']['bias']": (1, 2 * WIDTH),
    }


def test_a_step_that_is_not_applied_changes_no_bit_of_any_layer():
    recipe, weights = begun("--clip=1.0")

    def update(grads, weights):
        return metrics.select(
            jnp.asarray(False), updated_weights(recipe, grads, jnp.float32(jnp.nan), weights), weights
        )

    result = jax.jit(partial(layer_by_layer, update, recipe.optimizer, large=1))(drawn(2), weights)
    jax.tree.map(np.testing.assert_array_equal, result, weights)


@pytest.mark.slow
@pytest.mark.parametrize("factor", [0.01, 10.0])
def test_gradients_are_clipped_as_by_optax(factor):
    recipe, weights = begun("--clip=2.0", "--weight_decay=0")
    grads = jax.tree.map(lambda leaf: factor * leaf, drawn(2))
    theirs = optax.chain(optax.clip_by_global_norm(2.0), recipe.optimizer)
    with jax.numpy_dtype_promotion("standard"):
        updates, _ = theirs.update(grads, theirs.init(weights.params), weights.params)
    result = updated_weights(recipe, grads, optax.tree.norm(grads), weights)
    expected = optax.apply_updates(weights.params, updates)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), result.params, expected)
    moments = optax.tree.get(result.opt, "mu")
    scale = 0.1 * min(1.0, 2.0 / float(optax.tree.norm(grads)))
    jax.tree.map(lambda m, g: np.testing.assert_allclose(m, scale * g, rtol=1e-5), moments, grads)


def compiled_update(split: PartitionSpec):
    """Compile the update of a stack of layers that is split over two devices."""
    recipe, weights = begun(average=0.0, shapes={"blocks": {"kernel": (8, 64, 64)}})
    mesh = make_mesh(2, "fsdp=2")
    sharding_of = lambda x: NamedSharding(mesh, split if x.ndim else PartitionSpec())
    weights, grads = (
        jax.tree.map(lambda x: jax.device_put(x, sharding_of(x)), tree) for tree in (weights, weights.params)
    )
    update = partial(by_norm, recipe, jnp.float32(1.0))
    run = lambda weights, grads: layer_by_layer(update, recipe.optimizer, grads, weights, large=1)
    jitted = jax.jit(
        run, donate_argnums=0, out_shardings=jax.tree.map(sharding_of, weights), compiler_options=TRAINING_COMPILER
    )
    return jitted.lower(weights, grads).compile()


def test_stacks_are_updated_in_place():
    """What is donated is written over: beside it, one layer is weights."""
    assert compiled_update(PartitionSpec()).memory_analysis().temp_size_in_bytes < 2 * 64 * 64 * 4


@pytest.mark.parametrize("axis", [1, 2])
def test_each_device_updates_what_it_has(axis):
    text = compiled_update(PartitionSpec(*axis * [None], "fsdp")).as_text()
    assert " while(" in text
    assert not [name for name in ("all-gather", "all-reduce", "all-to-all", "collective-permute") if name in text]
