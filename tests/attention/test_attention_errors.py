"""Bad input to attention: one line that names the thing, the rule and the value."""

import functools
import inspect
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

from pejax import (
    ENCODINGS,
    Dims,
    Encoding,
    Hooks,
    Sharding,
    TokenPositions,
    adapt,
    attend,
    attention_fn,
    attention_hooks,
    dot_product_attention,
    encodings,
    explain,
    extend_encoding,
    extensions,
    init_params,
    interpolate_positions,
    make_encoding,
    merge_attention,
    normalized_positions,
    rope_apply,
    rope_frequencies,
)
from pejax._extensions.base import Rotary
from pejax._extensions.yarn import extend_yarn
from tests.support.biases import types_unchecked
from tests.support.cases import slow

IMPLEMENTATIONS = ("reference", "blockwise")
unchecked = inspect.unwrap(dot_product_attention)
"""With the library's own errors, not those of the type checker that tests add."""


def transposed(params, q, k, q_positions, k_positions):
    return jnp.zeros((k.shape[0], q.shape[0]))


def narrow(params, weights, q_positions, k_positions):
    return jnp.zeros((weights.shape[0], 1))


def by_axis(params, relative):
    return jnp.stack([relative, relative], axis=-1).astype(jnp.float32)


def bias_of(name, params):
    """Return the bias of an encoding for these parameters, and no other hook."""
    return Hooks(bias=attention_hooks(make_encoding(name, Dims(heads=4, head_dim=8)), params).bias)


Q, K = jnp.ones((2, 6, 4, 8)), jnp.ones((2, 5, 2, 8))
HEADS = {"heads": {"slope": jnp.ones(3)}}
BAD = {
    "rank": ({"q": jnp.ones((4, 8))}, ValueError, r"q must be \(\*B, T, H, D\), got \(4, 8\)"),
    "batch": ({"q": jnp.ones((3, 6, 4, 8))}, ValueError, r"agree in \*B and D, got \(3, 6, 4, 8\) and \(2, 5, 2, 8\)"),
    "heads": ({"q": jnp.ones((2, 6, 3, 8))}, ValueError, r"heads must be a multiple of k's.* got q \(2, 6, 3, 8\)"),
    "no heads": ({"k": jnp.ones((2, 5, 0, 8)), "v": jnp.ones((2, 5, 0, 8))}, ValueError, "at least one head"),
    "values": ({"v": jnp.ones((2, 4, 2, 8))}, ValueError, r"k and v must have the same shape"),
    "integers": ({"q": jnp.ones((2, 6, 4, 8), int)}, TypeError, "q must be floating point, got int32"),
    "length": ({"positions": jnp.arange(7)}, ValueError, r"^positions must be .* T=6, got \(7,\)"),
    "one axis": ({"positions": jnp.ones((6, 1))}, ValueError, r"A > 1 axes .* got \(6, 1\)"),
    "axes": (
        {"positions": jnp.ones((6, 2))},
        ValueError,
        r"positions and k_positions must have the same axes, got \(6, 2\) and \(5,\)",
    ),
    "keys": (
        {"k_positions": None},
        ValueError,
        r"^k_positions must be given .* T=6, S=5 of q \(\*B, T, H, D\) = \(2, 6, 4, 8\)",
    ),
    "queries of a cache": (
        {"positions": None},
        ValueError,
        "^positions must be given if q and k have different lengths",
    ),
    "both": (
        {"positions": None, "k_positions": None},
        ValueError,
        "^positions and k_positions must be given if q and k have different lengths",
    ),
    "mask": (
        {"mask": jnp.ones((6, 5))},
        TypeError,
        r"got 'mask': .* causal, .*segment_ids .*; attention_fn",
    ),
    "nothing": (
        {"hooks": bias_of("alibi(learned=True)", {})},
        ValueError,
        r"reads 'slope', which its parameters lack, .* pejax.adapt",
    ),
    "other": (
        {"hooks": bias_of("t5", {"all": {"a": jnp.ones(2)}})},
        ValueError,
        r"bias hook .* reads 'table', which its parameters lack, got \['a'\]",
    ),
    "private": (
        {"hooks": bias_of("t5", {"table": jnp.ones(2)})},
        ValueError,
        r"lack, got \[\]: .* 'heads' and 'all'",
    ),
    "distances": (
        {"hooks": Hooks(distance_bias=Partial(by_axis, {}))},
        ValueError,
        r"distance_bias hook by_axis must return \(R,\) = \(30,\) at relative \(R,\) = \(30,\), got \w+ \(30, 2\)",
    ),
    "segments": (
        {"positions": TokenPositions(jnp.arange(6), segment_ids=jnp.ones((3, 6), int))},
        ValueError,
        r"^positions.segment_ids must be \(T,\) or \(\*B, T\), \*B=\(2,\), T=6, got \(3, 6\)",
    ),
    "kind": (
        {"k_positions": TokenPositions(jnp.arange(5), has_position=jnp.ones(5))},
        TypeError,
        "k_positions.has_position must be bool, got f",
    ),
    "order": (
        {"positions": jnp.linspace(0, 1, 6), "causal": True},
        ValueError,
        r"^positions must have an order, or 1-D",
    ),
    "function": (
        {"hooks": Hooks(bias=transposed)},
        TypeError,
        r"bias must be jax.tree_util.Partial.* got transposed: attention_hooks makes",
    ),
    "array": (
        {"hooks": Hooks(bias=jnp.ones((4, 6, 5)))},
        TypeError,
        r"bias must be .* got \w+ of shape \(4, 6, 5\): attention_hooks .* attention_fn takes an array of biases",
    ),
    "mapping": ({"hooks": {"bias": None}}, TypeError, "hooks must be a result of attention_hooks, got dict"),
    "distance_bias": (
        {"hooks": Hooks(distance_bias=transposed)},
        TypeError,
        "distance_bias must be jax.tree_util.Partial",
    ),
    "params": (
        {"hooks": Hooks(bias=Partial(transposed, {"slope": 1}))},
        ValueError,
        r"only 'heads' and 'all', got \['slope'\]",
    ),
    "leads": (
        {"hooks": Hooks(bias=Partial(transposed, HEADS))},
        ValueError,
        r"\['heads'\]\['slope'\] must lead with H=4, got shape \(3,\)",
    ),
    "bias": (
        {"hooks": Hooks(bias=Partial(transposed, {}))},
        ValueError,
        r"bias hook transposed must return \(T, S\) = \(6, 5\), got float32 \(5, 6\)",
    ),
    "output": (
        {"hooks": Hooks(relative_values=Partial(narrow, {}))},
        ValueError,
        r"relative_values hook narrow must return \(T, D\) = \(6, 8\), got float32 \(6, 1\)",
    ),
    "implementation": ({"implementation": "flash"}, ValueError, r"one of \('reference', .*\), got 'flash'"),
    "window": ({"window": 0}, ValueError, "window must be at least 1 token, got 0"),
    "fraction": (
        {"window": 4.0},
        TypeError,
        r"window must be an int, or a tuple \(before, after\) of ints, .* got 4.0",
    ),
    "range": ({"distance_range": (3, 3)}, ValueError, r"0 <= lo < hi, got \(3, 3\)"),
    "cap": ({"soft_cap": 0.0}, ValueError, "soft_cap must be positive and finite, got 0.0"),
    "scale": ({"scale": float("nan")}, ValueError, "scale must be finite, got nan"),
    "dropout": ({"dropout": 0.1}, TypeError, r"dropout must be \(key, rate\) .* got float"),
    "swapped": ({"dropout": (0.1, jax.random.key(0))}, TypeError, r"\(key, rate\) with a number as rate"),
    "rate": ({"dropout": (jax.random.key(0), 1.0)}, ValueError, "0 <= rate < 1, got rate=1.0"),
}


GRIDS = {2: ((2, 4), (4, 2), [0, 2]), 3: ((2, 3, 4), (4, 3, 2), [0, 0, 2]), 1: ((7,), 6, 6)}


def places(sides):
    """Return the positions of all cells of a grid, whole numbers."""
    cells = np.stack(np.meshgrid(*map(np.arange, sides), indexing="ij"), axis=-1).reshape(-1, len(sides))
    return jnp.asarray(cells[:, 0] if len(sides) == 1 else cells, jnp.int32)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("axes", "spec", "extend"),
    [(1, "rope", "pi"), slow(1, "rope", "dynamic_ntk"), (2, "relative_table", None), slow(3, "rope_mixed", "pi")],
)
def test_a_position_outside_the_extent_is_refused(axes, spec, extend):
    sides, extent, first = GRIDS[axes]
    encoding = make_encoding(spec, Dims(heads=2, head_dim=12, axes=axes, extent=extent), extend)
    where, q, params = places(sides), jnp.ones((math.prod(sides), 2, 12)), init_params(encoding, jax.random.key(0))
    run = lambda where, extent: attend(encoding, q, q, q, params=params, positions=where, extent=extent)
    for refused in (run, lambda where, extent: attention_fn(encoding, params, positions=where, extent=extent)):
        with pytest.raises(ValueError, match=re.escape(f"from 0 to below {extent}, got {first}")):
            refused(where, extent)
    run(where, sides[0] if axes == 1 else sides)
    inside = jnp.all(where.reshape(len(where), -1) < jnp.asarray(extent), axis=-1)
    run(TokenPositions(where, has_position=inside), extent)
    run(where.astype(jnp.float32) + 0.5, extent)
    jax.eval_shape(lambda where: run(where, extent), where)
    packed = TokenPositions(where, segment_ids=inside.astype(jnp.int32))
    jax.eval_shape(lambda q: attend(encoding, q, q, q, params=params, positions=packed, extent=extent), q)


@pytest.mark.parametrize(
    ("extent", "message"),
    [
        (
            [[2, 3]],
            "extent must be a grid of 2 sides, or (B, 2), one grid per example of a batch (2,), got shape (1, 2)",
        ),
        ([[2, 3, 1]] * 2, "got shape (2, 3)"),
        ([4, 4, 4], "got shape (3,)"),
        (4, "relative_table: extent must be a tuple of 2 positive ints, got 4"),
        ((), "relative_table: extent must be a tuple of 2 positive ints, got ()"),
        ([[2, 3], [0, 4]], "extent must have sides of at least 1, got [[2, 3], [0, 4]]"),
        ([[2, 3], [3, 2]], "from 0 to below (3, 2), got [0, 2]"),
    ],
)
def test_an_extent_of_each_image_fits_the_batch(extent, message):
    encoding, q = (
        make_encoding("relative_table", Dims(heads=2, head_dim=8, axes=2, extent=(2, 3))),
        jnp.ones((2, 6, 2, 8)),
    )
    params, extent = (
        init_params(encoding, jax.random.key(0)),
        jnp.asarray(extent) if isinstance(extent, list) else extent,
    )
    where = TokenPositions(jnp.stack([places((2, 3))] * 2), segment_ids=jnp.ones((2, 6), jnp.int32))
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        attend(encoding, q, q, q, params=params, positions=where, extent=extent)
    assert "\n" not in str(error.value)


def test_what_takes_one_grid_refuses_one_per_image():
    encoding = make_encoding("relative_table", Dims(heads=2, head_dim=8, axes=2, extent=(2, 3)))
    params, extent, q = init_params(encoding, jax.random.key(0)), jnp.asarray([[2, 3]] * 2), jnp.ones((2, 6, 2, 8))
    layer = attention_fn(encoding, params, positions=places((2, 3)), extent=extent)
    for call in (lambda: layer(q, q, q), lambda: adapt(encoding, params, extent)):
        with pytest.raises(ValueError, match=re.escape("one length or one grid (A,): call attend, or jax.vmap")):
            call()
    split = {"positions": places((2, 3)), "extent": extent, "sharding": Sharding()}
    with pytest.raises(ValueError, match=re.escape("one grid for all examples with a sharding, got shape (2, 2)")):
        attend(encoding, q, q, q, params=params, **split)


@pytest.mark.parametrize("axes", GRIDS)
def test_coordinates_of_positions_outside_the_extent_are_refused(axes):
    sides, extent, first = GRIDS[axes]
    where, within = places(sides), functools.partial(interpolate_positions, trained_length=extent, length=extent)
    for refused in (functools.partial(normalized_positions, extent=extent), within):
        for outside, result in ((where, first), (-1 - where, -1 if axes == 1 else [-1] * axes)):
            with pytest.raises(ValueError, match=re.escape(f"from 0 to below {extent}, got {result}")):
                refused(outside)


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_bad_input_is_named_in_one_line(name, implementation):
    change, kind, message = BAD[name]
    arguments = {"positions": jnp.arange(6), "k_positions": jnp.arange(5), "implementation": implementation, **change}
    q, k, v = (arguments.pop(letter, default) for letter, default in (("q", Q), ("k", K), ("v", K)))
    with types_unchecked(), pytest.raises(kind, match=message) as caught:
        unchecked(q, k, v, **arguments)
    assert "\n" not in str(caught.value)


def test_positions_that_could_be_batched_or_on_axes_are_refused():
    q = jnp.ones((2, 2, 1, 4))
    with pytest.raises(ValueError, match=r"\(2, 2\) is both \(\*B, T\) and \(T, A\)"):
        dot_product_attention(q, q, q, positions=jnp.zeros((2, 2)))


@pytest.mark.parametrize(
    "parts", [[], [(jnp.ones((3, 1, 2)), jnp.ones((3, 1))), (jnp.ones((4, 1, 2)), jnp.ones((4, 1)))]]
)
def test_parts_that_do_not_fit_are_refused(parts):
    with pytest.raises(ValueError, match="parts must"):
        inspect.unwrap(merge_attention)(parts)


def test_a_scale_that_is_traced_is_refused():
    with types_unchecked(), pytest.raises(TypeError, match=r"scale must not be traced, .*: multiply q"):
        jax.jit(lambda scale: unchecked(Q, Q, Q, positions=jnp.arange(6), scale=scale))(1.0)


def test_parameters_of_another_encoding_are_named():
    mixed = make_encoding("rope_mixed", Dims(heads=4, head_dim=8, extent=6))
    with pytest.raises(ValueError, match=r"rotate reads 'frequencies', which its parameters lack, got \['heads'\]"):
        attend(mixed, Q, Q, Q, params={"heads": {"table": jnp.ones((4, 2))}}, positions=jnp.arange(6), extent=6)


ROPE = {
    "swapped axes": (
        jnp.ones((2, 4, 16, 8)),
        jnp.arange(16),
        ValueError,
        r"x is \(\*B, T, H, D\) = \(2, 4, 16, 8\), frequencies \(4,\): pos",
    ),
    "one position": (jnp.ones((2, 4, 2, 8)), 1000, ValueError, r"must be \(4,\) or \(2, 4\), got \(\)"),
}


@pytest.mark.parametrize("name", ROPE)
def test_rope_names_what_does_not_fit(name):
    x, positions, kind, message = ROPE[name]
    with pytest.raises(kind, match=message):
        rope_apply(x, positions, rope_frequencies(8))


def test_rope_takes_a_list_of_positions():
    assert jnp.array_equal(rope_apply(Q, [0, 1, 2, 3, 4, 1000], rope_frequencies(8))[:, 0], Q[:, 0])


def test_rope_says_that_an_extension_returns_two_things():
    yarn = extend_yarn(rope_frequencies(8), Rotary(10000.0, 8), trained_length=4, factor=2.0)
    with (
        types_unchecked(),
        pytest.raises(TypeError, match=r"extensions return \(frequencies, attention_factor\).* got a tuple of 2"),
    ):
        inspect.unwrap(rope_apply)(Q, jnp.arange(6), yarn)


def test_a_spec_comes_before_the_dims():
    with pytest.raises(TypeError, match=r"^make_encoding: spec must be a string .* got Dims: the spec comes first"):
        make_encoding(Dims(heads=4, head_dim=8), "rope")


@pytest.mark.slow
def test_as_many_positions_as_keys_are_asked_for():
    rope = make_encoding("rope", Dims(heads=4, head_dim=8, causal=True))
    at = jnp.arange(6)
    for positions, k_positions, missing in ((None, None, "positions and k_positions"), (None, at, "positions")):
        with pytest.raises(ValueError, match=f"^{missing} must be given if .* different lengths, got T=1, S=6"):
            attend(rope, Q[:, -1:], Q, Q, positions=positions, k_positions=k_positions)
        with pytest.raises(ValueError, match=f"^{missing} must be given"):
            attention_fn(rope, positions=positions, k_positions=k_positions)(Q[:, -1:], Q, Q)
    with pytest.raises(ValueError, match=r"^k_positions must be given"):
        attend(rope, Q[:, -1:], Q, Q, positions=jnp.asarray([5]))
    output = attend(rope, Q, Q, Q)
    step = attend(rope, Q[:, -1:], Q, Q, positions=jnp.asarray([5]), k_positions=at)
    np.testing.assert_allclose(step, output[:, -1:], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["alibi", "t5", slow("kerple"), slow("transformer_xl"), slow("fire"), slow("shaw")])
@pytest.mark.parametrize("kind", [jnp.int8, slow(jnp.int16), slow(jnp.uint8)])
def test_positions_of_few_bits_do_not_overflow(name, kind):
    info = jnp.iinfo(kind)
    positions = jnp.arange(info.max - 99, info.max + 1) if kind != jnp.int8 else jnp.arange(-100, 100)
    dims = Dims(heads=1, head_dim=8)
    encoding = make_encoding(name, dims)
    params = init_params(encoding, jax.random.key(0))
    q = jax.random.normal(jax.random.key(1), (1, len(positions), 1, 8))
    attended = [attend(encoding, q, q, q, params=params, positions=p) for p in (positions.astype(kind), positions)]
    np.testing.assert_allclose(*attended, atol=1e-5)


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("shape", [(2, 4, 6, 8), (2, 6, 2, 8), (2, 6, 4, 16)], ids=["heads first", "heads", "head dim"])
def test_queries_of_other_dims_than_the_encodings_are_refused(name, shape):
    encoding, q = make_encoding(name, Dims(heads=4, head_dim=8, extent=6)), jnp.ones(shape)
    params, embedded = init_params(encoding, jax.random.key(0)), encoding.embed is not None
    refused = pytest.raises(ValueError, match=rf"heads=4 and head_dim=8.*, got shape {re.escape(str(shape))}$")
    with refused:
        attend(encoding, q, q, q, params=params, embedded=embedded)
    with refused:
        attention_fn(encoding, params, embedded=embedded)(q, q, q)


def test_a_record_of_ones_own_takes_the_mask_and_the_scale_of_its_dims():
    dims, q = Dims(heads=4, head_dim=8, scale=1.0, causal=True), jax.random.normal(jax.random.key(0), (2, 6, 4, 8))
    attended = attend(Encoding(dims=dims), q, q, q)
    np.testing.assert_array_equal(attended, dot_product_attention(q, q, q, causal=True, scale=1.0))
    with pytest.raises(ValueError, match=r"Dims\(causal=True\), got False"):
        attend(Encoding(dims=dims), q, q, q, causal=False)


@pytest.mark.parametrize("implementation", ["reference", slow(None)])
@pytest.mark.parametrize("through_flax", [slow(False), True])
def test_the_scale_of_the_dims_is_that_of_attention(implementation, through_flax):
    q = jax.random.normal(jax.random.key(0), (2, 6, 4, 8))

    def attended(of_dims, **options):
        rope = make_encoding("rope", Dims(heads=4, head_dim=8, scale=of_dims))
        if through_flax:
            return attention_fn(rope, implementation=implementation, **options)(q, q, q)
        return attend(rope, q, q, q, implementation=implementation, **options)

    np.testing.assert_allclose(attended(1.0), attended(None, scale=1.0), atol=1e-6)
    np.testing.assert_allclose(attended(1.0, scale=0.5), attended(None, scale=0.5), atol=1e-6)
    assert not np.allclose(attended(1.0), attended(None), atol=1e-3)


@pytest.mark.parametrize(
    "call",
    [
        lambda thing: attend(thing, Q, Q, Q),
        lambda thing: attention_fn(thing),
        lambda thing: init_params(thing, jax.random.key(0)),
        lambda thing: adapt(thing, {}),
        lambda thing: explain(thing),
        lambda thing: extend_encoding(thing, Dims(heads=4, head_dim=8), extensions.log_n(trained_length=4)),
    ],
)
@pytest.mark.parametrize("thing", ["rope", encodings.rope])
def test_a_name_or_a_factory_is_no_record(call, thing):
    with (
        types_unchecked(),
        pytest.raises(TypeError, match=r"encoding must be a pejax\.Encoding .* got ('rope'|.*Factory)"),
    ):
        call(thing)
