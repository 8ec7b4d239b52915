"""Attention split over eight devices is attention on one: every encoding, in value and in every gradient."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import Case, close, normal, serves
from jax.sharding import AxisType

from pejax import ENCODINGS, Tokens, attention, sharded_attention
from pejax.encoding import attention_hooks, rotate_keys, rotate_queries
from pejax.testing import settle

QUICK = {"xla_backend_optimization_level": 0}
BATCH, TOKENS = 2, 16
AXES = {"data": "batch_axes", "tensor": "head_axis", "sequence": "sequence_axis"}
SPLITS = {
    "sequence": {"sequence": 4},
    "data x sequence": {"data": 2, "sequence": 4},
    "tensor x sequence": {"tensor": 2, "sequence": 4},
}
METHODS = ("ring", "gather")
ORDERS = ("contiguous", "striped")
WAYS = [*itertools.product(SPLITS, METHODS, ORDERS)]


def on(split, method="ring", **options):
    """Return `sharded_attention` on a mesh of these sizes."""
    mesh = jax.make_mesh(tuple(split.values()), tuple(split), axis_types=(AxisType.Auto,) * len(split))
    axes = {AXES[axis]: axis for axis in split}
    return functools.partial(sharded_attention, mesh=mesh, **axes, method=method, **options)


def where(case, order):
    """Return the tokens of a sequence or of a grid; striped: each device has every fourth."""
    place = np.arange(TOKENS) if order == "contiguous" else np.arange(TOKENS).reshape(-1, 4).T.reshape(-1)
    placed, segments = place != 7, np.where(place == 4, 0, np.where(place < 13, 1, 2))
    positions = np.where(placed, place, 0)
    if case.dims.axes == 2:
        positions = np.stack([positions // 4, positions % 4], axis=-1)
    positions, index, segments = (jnp.asarray(x, jnp.int32) for x in (positions, place, segments))
    return Tokens(positions, index, jnp.asarray(placed), segments)


def layer(attend, case, order):
    """Return what a layer gives and the gradients of everything that has one, as a compiled function."""
    dims, encoding, tokens = case.dims, case.encoding, where(case, order)
    shapes = [(BATCH, TOKENS, heads, dims.head_dim) for heads in (dims.heads, dims.kv_heads, dims.kv_heads)]

    def run(q, k, v, params):
        settled = settle(encoding, params, dims)
        q = rotate_queries(encoding, settled, q, tokens.positions)
        k = rotate_keys(encoding, settled, k, tokens.positions)
        hooks = attention_hooks(encoding, settled)
        options = {"causal": dims.causal, "scale": dims.scale, "return_lse": True}
        out, lse = attend(q, k, v, q_tokens=tokens, **hooks, **options)
        seen = jnp.where(jnp.isneginf(lse), 0.0, lse)
        return jnp.sum(normal(*out.shape, seed=9) * out) + jnp.sum(normal(*lse.shape, seed=8) * seen), (out, lse)

    arrays = [normal(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    both = jax.jit(jax.grad(run, argnums=(0, 1, 2, 3), has_aux=True), compiler_options=QUICK)
    return both(*arrays, case.params)


def cases():
    """Split each encoding in one way, in the setting whose turn it is; in all ways and settings under `-m long`."""
    settings = ("causal", "image", "sequence")
    for number, (spec, setting) in enumerate(itertools.product(ENCODINGS, settings)):
        own = [one for one in settings if serves(spec, one)]
        for place, way in enumerate(WAYS if setting in own else ()):
            turn = number // len(settings)
            chosen = setting == own[turn % len(own)] and place == 5 * turn % len(WAYS)
            mark = () if chosen else pytest.mark.long
            yield pytest.param(Case(spec, setting), way, marks=mark, id=f"{spec}-{setting}-{'-'.join(way)}")


@pytest.mark.parametrize(("case", "way"), [*cases()])
def test_every_encoding_on_many_devices_is_that_of_one(case, way):
    split, method, order = way
    want = layer(attention, case, order)
    close(layer(on(SPLITS[split], method), case, order), want, 1e-5)
