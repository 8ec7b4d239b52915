"""`input_positions` of `nnx.MultiHeadAttention`: in training, packed, step by step with a cache."""

import functools
import inspect
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import pejax
from pejax import Dims, TokenPositions, attention_fn, init_params, make_encoding, packed_positions
from pejax.models import attention_module
from tests.models.test_nnx_attention import make
from tests.support.cases import slow

DIMS = Dims(heads=2, head_dim=8, causal=True, extent=16)
X = jnp.asarray(np.random.default_rng(0).normal(size=(2, 6, 16)), jnp.float32)
SLOTS = jnp.arange(6)
SEGMENTS = jnp.asarray([[1, 1, 1, 1, 2, 2], [1, 1, 2, 2, 2, 2]])
TAKEN = "input_positions" in inspect.signature(nnx.MultiHeadAttention.__call__).parameters
NEEDS_FLAX = pytest.mark.skipif(not TAKEN, reason="this Flax hands on no input_positions")


def layer_of(spec, dims=DIMS, *, module=True, extent=None):
    """Make Flax's layer around an encoding, by `attention_module` or by `attention_fn`."""
    if module:
        return make(spec, dims)
    encoding = make_encoding(spec, dims)
    attend = attention_fn(encoding, init_params(encoding, jax.random.key(1)), extent=extent)
    return nnx.MultiHeadAttention(dims.heads, dims.width, decode=False, attention_fn=attend, rngs=nnx.Rngs(0))


def by_hand(layer, positions, x=X):
    """Return the layer's output from its projections and `attend`."""
    q, k, v = (project(x) for project in (layer.query, layer.key, layer.value))
    attend = layer.attention_fn
    if isinstance(attend, nnx.Module):
        parts = nnx.as_pure(attend.position)
        params = {**parts["shared"], **parts["layer"]}
    else:
        params = attend.params
    return layer.out(pejax.attend(attend.encoding, q, k, v, params=params, positions=positions, extent=16))


def decoded(layer, positions, x=X, *, compiled=True, **options):
    """Return the layer's output token by token; `positions(i)` are those of a step."""
    layer = nnx.merge(*nnx.split(layer))
    layer.init_cache(x.shape)
    step = lambda layer, x, positions: layer(x, decode=True, input_positions=positions, **options)
    step = nnx.jit(step) if compiled else step
    return jnp.concatenate([step(layer, x[:, i : i + 1], positions(i)) for i in range(x.shape[1])], axis=1)


def raises_one_line(call, *parts, kind=ValueError):
    with pytest.raises(kind, match=re.escape(parts[0])) as error:
        call()
    assert "\n" not in str(error.value)
    for part in parts:
        assert part in str(error.value)


@NEEDS_FLAX
@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "module"),
    [*((spec, module) for spec in ("rope", "t5", "alibi") for module in (True, False)), ("rope(extend='yarn')", False)],
)
def test_a_layer_is_attention_at_its_input_positions(spec, module):
    layer = layer_of(spec, module=module, extent=16)
    for positions in (jnp.stack([SLOTS, 2 * SLOTS + 1]), jnp.asarray([0, 2, 3, 4, 8, 9]), packed_positions(SEGMENTS)):
        got = layer(X, input_positions=positions)
        np.testing.assert_allclose(got, by_hand(layer, positions), atol=2e-6)
        assert float(jnp.abs(got - layer(X)).max()) > 1e-3


@NEEDS_FLAX
@pytest.mark.slow
def test_packed_documents_are_what_each_is_alone():
    layer = layer_of("rope")
    packed = layer(X, input_positions=packed_positions(SEGMENTS))
    np.testing.assert_allclose(packed[:1, :4], layer(X[:1, :4]), atol=1e-6)
    np.testing.assert_allclose(packed[:1, 4:], layer(X[:1, 4:]), atol=1e-6)


STEPS = {
    "the step's": lambda i: (jnp.asarray([i]), SLOTS),
    "each row's": lambda i: (jnp.full((2, 1), i), SLOTS),
    "all slots'": lambda i: (SLOTS + 5, SLOTS),
    "all slots' in each row": lambda i: (jnp.stack([2 * SLOTS, 3 * SLOTS]),) * 2,
    "packed": lambda i: (packed_positions(SEGMENTS),) * 2,
}
"""By whose positions a step is given: `number of the step -> (positions of the step, of the full pass)`."""


@NEEDS_FLAX
@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("rope", "each row's"),
        *(slow("rope", name) for name in STEPS if name != "each row's"),
        *(slow(spec, name) for spec in ("t5", "alibi", "shaw", "transformer_xl") for name in ("the step's", "packed")),
    ],
)
def test_cached_decoding_is_the_full_pass(spec, name):
    layer = layer_of(spec)
    steps = decoded(layer, lambda i: STEPS[name](i)[0])
    full = nnx.jit(lambda layer, positions: layer(X, input_positions=positions))(layer, STEPS[name](0)[1])
    np.testing.assert_allclose(steps, full, rtol=1e-6, atol=3e-6)


@NEEDS_FLAX
@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_a_plain_function_decodes_as_a_module_does_and_without_jit(name):
    layer = layer_of("rope", module=False)
    steps = decoded(layer, lambda i: STEPS[name](i)[0], compiled=False)
    np.testing.assert_allclose(steps, layer(X, input_positions=STEPS[name](0)[1]), rtol=1e-6, atol=3e-6)


@NEEDS_FLAX
@pytest.mark.slow
def test_tokens_of_a_picture_decode_in_their_order():
    dims = Dims(heads=2, head_dim=8, axes=2, causal=True, extent=(2, 3))
    layer, grid = layer_of("rope_axial", dims), TokenPositions(pejax.grid_positions(2, 3), order=SLOTS)
    full = layer(X, input_positions=grid)
    np.testing.assert_allclose(decoded(layer, lambda i: grid), full, rtol=1e-6, atol=3e-6)
    alone = lambda i: TokenPositions(grid.positions[i : i + 1], order=SLOTS[i : i + 1])
    raises_one_line(lambda: decoded(layer, alone), "input_positions of a step must be one number", "shape (1, 2)")


@NEEDS_FLAX
@pytest.mark.slow
def test_rows_padded_on_the_left_decode_as_they_are_trained():
    """The mask hides the padding; positions count from the first token, or count the padding, too."""
    layer, pad = layer_of("rope"), jnp.asarray([2, 0])
    shown = (pad[:, None] <= SLOTS)[:, None, None]
    positions = jnp.maximum(SLOTS - pad[:, None], 0)
    tokens = TokenPositions(positions, order=SLOTS)
    full = layer(X, mask=jnp.broadcast_to(shown, (2, 1, 6, 6)), input_positions=tokens)
    for of_step in (lambda i: jnp.maximum(i - pad, 0)[:, None], lambda i: jnp.asarray([i])):
        steps = decoded(layer, of_step, mask=shown)
        np.testing.assert_allclose(steps[0, 2:], full[0, 2:], atol=5e-6)
        np.testing.assert_allclose(steps[1], full[1], atol=5e-6)


@NEEDS_FLAX
@pytest.mark.slow
def test_a_step_adapts_to_its_own_length_and_learns():
    dims = Dims(heads=2, head_dim=8, causal=True, extent=2)
    layer = layer_of("rope(extend='dynamic_ntk')", dims)
    steps = decoded(layer, lambda i: jnp.full((2, 1), i))
    for i in range(6):
        np.testing.assert_allclose(steps[:, i], layer(X[:, : i + 1])[:, i], rtol=1e-6, atol=3e-6)
    packed = layer(X, input_positions=packed_positions(SEGMENTS))  # the longest document of a row has 4 tokens
    np.testing.assert_allclose(packed[:1, :4], layer(X[:1, :4]), rtol=1e-6, atol=3e-6)
    assert float(jnp.abs(packed[:1, :4] - layer(X)[:1, :4]).max()) > 1e-3
    layer = layer_of("t5")
    loss = lambda layer: jnp.square(layer(X, input_positions=packed_positions(SEGMENTS))).mean()
    table = jax.tree.leaves(nnx.as_pure(nnx.grad(loss)(layer).attention_fn))
    assert table
    assert all(float(jnp.abs(leaf).max()) > 0 for leaf in table)


@NEEDS_FLAX
@pytest.mark.slow
@pytest.mark.parametrize("module", [True, False])
def test_a_step_that_does_not_count_its_slots_is_refused_or_nan(module):
    """The keys' positions are not handed on: a stride would be read as tokens one apart."""
    layer = layer_of("rope", module=module)
    strided, restarted = lambda i: jnp.asarray([2 * i]), lambda i: jnp.asarray([[i], [i % 3]])
    for positions, got in ((strided, "got 2 in slot 1"), (restarted, "got 0 in slot 3")):
        raises_one_line(lambda p=positions: decoded(layer, p, compiled=False), "give those of all slots", got)
        steps = decoded(layer, positions)
        assert jnp.isnan(steps).any()
        assert not jnp.isnan(steps[:, 0]).any()
    assert not jnp.isnan(decoded(layer, restarted)[0]).any()
    raises_one_line(lambda: decoded(layer, lambda i: jnp.asarray([float(i)])), "must be a signed integer", "float32")


@pytest.mark.parametrize("module", [True, False])
def test_input_positions_of_another_shape_are_refused(module):
    encoding = make_encoding("rope", DIMS)
    attend = attention_module(encoding, DIMS, nnx.Rngs(0)) if module else attention_fn(encoding)
    keys = jax.ShapeDtypeStruct((2, 6, 2, 8), jnp.float32)

    def refused(positions, *parts, queries=6, mask=None, kind=ValueError):
        query = jax.ShapeDtypeStruct((2, queries, 2, 8), jnp.float32)
        call = lambda q, k: attend(q, k, k, mask=mask, input_positions=positions)
        raises_one_line(lambda: jax.eval_shape(call, query, keys), *parts, kind=kind)

    shown = jnp.ones((1, 1, 1, 6), bool)
    refused(jnp.arange(5), "input_positions must be", "T=6, got (5,)")
    refused(jnp.zeros((3, 6), int), "input_positions must be", "got (3, 6)")
    refused(jnp.arange(4), "input_positions of a step", "cache, 6, got positions of shape (4,)", queries=1, mask=shown)
    refused(jnp.asarray(3), "input_positions of a step", "shape ()", queries=1, mask=shown)
    refused(jnp.zeros((3, 6), int), "input_positions must be", "got (3, 6)", queries=1, mask=shown)
    segments = TokenPositions(jnp.asarray([5]), segment_ids=jnp.asarray([[1], [2]]))
    refused(segments, "input_positions of a step", "positions, segment_ids of shape (1,)", queries=1, mask=shown)
    both_sides = "give the positions of both sides, by at(q, k)"
    refused(jnp.arange(4), both_sides, "got 4 queries and 6 keys, no mask", queries=4)
    refused("here", "input_positions must be", kind=TypeError)
    refused(np.asarray([2**40] * 6), "must fit int32")
    refused(jnp.asarray([0, 1, 2, 0, 1, 2]), "positions must rise", "packed_positions")


def test_positions_given_twice_are_refused():
    encoding, q = make_encoding("rope", DIMS), jax.ShapeDtypeStruct((2, 6, 2, 8), jnp.float32)
    call = lambda attend: lambda: jax.eval_shape(lambda q: attend(q, q, q, input_positions=SLOTS), q)
    raises_one_line(call(attention_fn(encoding, positions=SLOTS)), "given positions, got both")
    module = attention_module(encoding, DIMS, nnx.Rngs(0))
    with pytest.raises(RuntimeError, match="got a block in which nothing has read"), module.at(SLOTS):
        raises_one_line(call(module), "in a block of at(), got both")
    longer = make_encoding("rope(extend='dynamic_ntk')", DIMS)
    raises_one_line(call(attention_fn(longer)), "extent must be given, got None")


@pytest.mark.slow
def test_cross_attention_takes_the_positions_of_the_keys_from_attention_fn():
    encoding = make_encoding("rope", Dims(heads=2, head_dim=8))
    q = jax.random.normal(jax.random.key(0), (2, 6, 2, 8))
    memory = jnp.arange(6) * 2
    got = attention_fn(encoding, k_positions=memory)(q[:, :3], q, q, input_positions=SLOTS[:3])
    want = pejax.attend(encoding, q[:, :3], q, q, positions=SLOTS[:3], k_positions=memory)
    np.testing.assert_allclose(got, want, atol=1e-6)


@NEEDS_FLAX
@pytest.mark.slow
def test_weights_are_sown_and_dropout_is_drawn_at_input_positions():
    layer, positions = layer_of("rope"), 2 * SLOTS
    output, captured = nnx.capture(layer, nnx.Intermediate)(X, input_positions=positions, sow_weights=True)
    np.testing.assert_allclose(output, layer(X, input_positions=positions), atol=1e-6)
    (weights,) = jax.tree.leaves(captured)
    q, k = (project(X) for project in (layer.query, layer.key))
    q, k = (pejax.rope_apply(x, positions) for x in (q, k))
    np.testing.assert_allclose(weights, pejax.attention_weights(q, k, causal=True), atol=1e-6)
    attend = attention_module(make_encoding("rope", DIMS), DIMS, nnx.Rngs(1))
    dropping = nnx.MultiHeadAttention(
        2, 16, decode=False, attention_fn=attend, rngs=nnx.Rngs(0), dropout_rate=0.5, deterministic=False
    )
    first, again, second = (dropping(X, input_positions=positions, rngs=nnx.Rngs(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert float(jnp.abs(first - second).max()) > 1e-2


@NEEDS_FLAX
@pytest.mark.slow
def test_an_embedding_is_refused_until_it_is_applied():
    encoding = make_encoding("sinusoidal", DIMS)
    raises_one_line(lambda: attention_fn(encoding), "embedded=True")
    attend = attention_fn(encoding, embedded=True)
    layer = nnx.MultiHeadAttention(2, 16, decode=False, attention_fn=attend, rngs=nnx.Rngs(0))
    np.testing.assert_allclose(layer(X, input_positions=SLOTS + 3), layer(X), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["dense", "blockwise", "cpu", "gpu", "tpu"])
@pytest.mark.parametrize("spec", ["rope", "t5"])
def test_every_implementation_reads_them(spec, implementation):
    encoding = make_encoding(spec, DIMS)
    params = init_params(encoding, jax.random.key(0))
    q, k, v = jax.random.normal(jax.random.key(1), (3, 2, 6, 2, 8))
    tokens = packed_positions(SEGMENTS)
    want = pejax.attend(encoding, q, k, v, params=params, positions=tokens, implementation="reference")
    attend = attention_fn(encoding, params, implementation=implementation)
    np.testing.assert_allclose(attend(q, k, v, input_positions=tokens), want, atol=1e-6)


@pytest.mark.slow
def test_linen_hands_none_on_but_takes_them_bound():
    """Linen leaves out what it does not know; in decoding, its mask says which slot is the query's."""
    encoding = make_encoding("rope", DIMS)
    attending = lambda **bound: functools.partial(attention_fn(encoding), **bound)
    layer = lambda attend, **fields: nn.MultiHeadDotProductAttention(num_heads=2, attention_fn=attend, **fields)
    variables = layer(attending()).init(jax.random.key(0), X)
    full = layer(attending()).apply(variables, X)
    cache = layer(attending(input_positions=SLOTS), decode=True).init(jax.random.key(0), X)["cache"]
    for i in range(6):
        step = layer(attending(input_positions=jnp.asarray([i])), decode=True)
        out, state = step.apply({**variables, "cache": cache}, X[:, i : i + 1], mutable=["cache"])
        cache = state["cache"]
        np.testing.assert_allclose(out[:, 0], full[:, i], atol=5e-6)
    packed = packed_positions(SEGMENTS)
    got = layer(attending(input_positions=packed)).apply(variables, X)
    want = layer(attention_fn(encoding, positions=packed)).apply(variables, X)
    np.testing.assert_array_equal(got, want)


@pytest.mark.slow
def test_linen_hands_its_mask_to_a_module_of_nnx():
    """It filters arguments by the signature; `*args, **options` would lose the mask in silence."""
    dims = Dims(heads=2, head_dim=8)
    mask = nn.make_causal_mask(jnp.ones((2, 6)))
    outputs = []
    for attend in (
        attention_module(make_encoding("rope", dims), dims, nnx.Rngs(0)),
        attention_fn(make_encoding("rope", dims)),
    ):
        layer = nn.MultiHeadDotProductAttention(num_heads=2, attention_fn=attend)
        outputs.append(layer.apply(layer.init(jax.random.key(0), X), X, mask=mask))
    np.testing.assert_allclose(*outputs, atol=1e-6)
