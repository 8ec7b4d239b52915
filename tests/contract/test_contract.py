"""The contract itself: dims, parameters, tokens, the registry and its specs, and an encoding in words."""

import ast
import dataclasses
import inspect
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

import pejax
from pejax import ENCODINGS, Dims, Encoding, Hooks, TokenPositions, adapt, explain, make_encoding, testing
from pejax._attention.core.hooks import attention_hooks
from pejax._naming.explain import SENTENCES
from pejax._record.compose import PLACES
from pejax._record.encoding import from_distance, merge_params, split_params
from pejax._tokens.positions import as_token_positions
from pejax.models import attention_module
from pejax.specs import parse
from tests.support.cases import HOOKS, mostly_slow, slow

DIMS = Dims(heads=4, head_dim=8)
README = pathlib.Path(__file__).parents[2] / "README.md"


def one_line(error: pytest.ExceptionInfo, *parts: str) -> None:
    """Require that the error is one line and names these parts."""
    text = str(error.value)
    assert "\n" not in text
    for part in parts:
        assert part in text, text


# Dims


def test_dims_fill_what_follows_from_the_rest():
    dims = Dims(heads=3, head_dim=16)
    assert (dims.kv_heads, dims.width, dims.scale) == (3, 48, 0.25)
    assert Dims(heads=3, head_dim=5, width=48).width == 48
    assert Dims(heads=3, head_dim=16, scale=1.0).scale == 1.0


def test_equal_dims_hash_equal_however_they_were_written():
    short = Dims(heads=3, head_dim=16, axes=2, extent=(4, 6))
    dims = Dims(heads=3, head_dim=16, width=48, kv_heads=3, axes=2, extent=(4, 6), scale=0.25, causal=False)
    assert short == dims
    assert hash(short) == hash(dims)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"heads": 0}, ["heads", "got 0"]),
        ({"heads": -2}, ["heads", "-2"]),
        ({"width": 0, "heads": 4}, ["width", "got 0"]),
        ({"heads": 4, "kv_heads": 3}, ["heads=4", "kv_heads=3", "multiple"]),
        ({"heads": 4, "kv_heads": 0}, ["kv_heads", "got 0"]),
        ({"heads": 4, "head_dim": 0, "scale": 1.0}, ["head_dim", "got 0"]),
        ({"heads": 4, "axes": 0}, ["axes", "got 0"]),
        ({"heads": 4, "extent": (4, 4)}, ["extent", "positive int", "(4, 4)"]),
        ({"heads": 4, "extent": (4,)}, ["extent", "positive int", "(4,)"]),
        ({"heads": 4, "extent": 0}, ["extent", "got 0"]),
        ({"heads": 4, "axes": 2, "extent": 16}, ["extent", "tuple of 2", "16"]),
        ({"heads": 4, "axes": 2, "extent": (4, 4, 4)}, ["extent", "tuple of 2", "(4, 4, 4)"]),
        ({"heads": 4, "axes": 2, "extent": (4, 0)}, ["extent", "tuple of 2", "(4, 0)"]),
        ({"heads": 4, "axes": 2, "extent": ()}, ["extent", "tuple of 2", "()"]),
    ],
)
def test_dims_refuse_in_one_line(options, parts):
    with pytest.raises(ValueError, match=re.escape(parts[0])) as error:
        Dims(**{"head_dim": 8, **options})
    one_line(error, *parts)


# Parameters


def test_merge_joins_heads_and_all_inside():
    shared = {"table": 1, "heads": {"slope": 2}, "all": {"w": 3}}
    layer = {"frequencies": 4, "heads": {"u": 5}, "all": {"b": 6}}
    assert merge_params(shared, layer) == {
        "table": 1,
        "frequencies": 4,
        "heads": {"slope": 2, "u": 5},
        "all": {"w": 3, "b": 6},
    }
    assert shared["heads"] == {"slope": 2}, "the arguments are left alone"


@pytest.mark.parametrize(
    ("shared", "layer", "name"),
    [
        ({"t": 1}, {"t": 1}, "t"),
        ({"heads": {"u": 1}}, {"heads": {"u": 1}}, "u"),
        ({"all": {"w": 1}}, {"all": {"w": 1}}, "w"),
    ],
)
def test_merge_refuses_a_name_twice(shared, layer, name):
    with pytest.raises(ValueError, match="must not share a parameter name") as error:
        merge_params(shared, layer)
    one_line(error, repr(name))


def test_split_gives_what_the_hooks_read_and_nothing_else():
    assert split_params({"table": 1, "heads": {"u": 5}}) == ({}, {"u": 5})
    assert split_params({"all": {"w": 3}}) == ({"w": 3}, {})


def test_hooks_carry_their_parameters_as_operands():
    encoding = make_encoding("alibi", DIMS)
    params = adapt(encoding, {"table": jnp.zeros(3)}, 8)
    hooks = attention_hooks(encoding, params)
    assert hooks.relative_values is None
    assert [leaf.shape for leaf in jax.tree.leaves(hooks.bias)] == [(4,)]
    assert attention_hooks(Encoding(), {}) == Hooks()


@pytest.mark.parametrize("axes", [slow(1), 2, slow(3)])
def test_bias_from_a_distance_is_that_distance_of_each_pair(axes):
    shape = () if axes == 1 else (axes,)
    q_positions = jax.random.randint(jax.random.key(0), (3, *shape), 0, 9)
    k_positions = jax.random.randint(jax.random.key(1), (5, *shape), 0, 9)
    weigh = jnp.asarray([1.0, 10.0, 100.0])[:axes]
    distance = lambda params, relative: params["a"] * (relative.reshape(-1, axes).astype(jnp.float32) @ weigh)
    bias = from_distance(distance)({"a": 2.0}, jnp.zeros((3, 4)), jnp.zeros((5, 4)), q_positions, k_positions)
    for i, j in np.ndindex(3, 5):
        relative = np.atleast_1d(np.asarray(k_positions[j] - q_positions[i]))
        np.testing.assert_allclose(bias[i, j], 2.0 * relative @ np.asarray(weigh), rtol=1e-6)


def test_tokens_are_one_pytree_and_a_plain_array_is_all_placed():
    assert as_token_positions(jnp.arange(3)).has_position is None
    tokens = TokenPositions(jnp.arange(3), segment_ids=jnp.ones(3, jnp.int32))
    assert as_token_positions(tokens) is tokens
    assert len(jax.tree.leaves(tokens)) == 2


# The registry


def test_equal_specs_and_dims_give_the_same_object():
    one = make_encoding("alibi(slope_scale=2.0, extend='none')", DIMS)
    assert one is make_encoding(" alibi(extend='none',slope_scale=2.0) ", Dims(heads=4, head_dim=8, width=32))
    assert one is not make_encoding("alibi(slope_scale=3.0)", DIMS)
    assert one is not make_encoding("alibi(slope_scale=2.0, extend='none')", Dims(heads=2, head_dim=16))
    assert make_encoding("alibi", DIMS) is make_encoding("alibi()", DIMS)


def test_an_integer_stands_for_a_float_but_a_truth_value_does_not():
    assert make_encoding("alibi(slope_scale=1)", DIMS) is make_encoding("alibi(slope_scale=1.0)", DIMS)
    with pytest.raises(TypeError, match="slope_scale must be float, got True"):
        make_encoding("alibi(slope_scale=True)", DIMS)


@pytest.mark.parametrize(
    ("spec", "near"),
    [("ropee", "rope"), ("alibo", "alibi"), ("Alibi", "alibi"), ("ROPE", "rope"), ("rope-mixed2", None), ("t_5", "t5")],
)
def test_an_unknown_name_is_answered_with_the_nearest(spec, near):
    with pytest.raises(ValueError, match=r"unknown encoding|is written") as error:
        make_encoding(spec, DIMS)
    one_line(error, spec if near is None else f"did you mean {near!r}", *([] if near is None else ENCODINGS))


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "   ",
        "alibi(",
        "alibi(2.0)",
        "alibi(**{'extend': 'slopes'})",
        "alibi(*[1])",
        "alibi.at",
        "alibi(extend='slopes').at",
        "alibi[0]",
        "'alibi'",
        "alibi, rope",
        "alibi; rope",
        "alibi\nrope",
        "__import__('os')",
        "alibi(extend=__import__('os'))",
        "alibi(extend=extend)",
        "alibi(slope_scale=1+x)",
        "alibi(slope_scale=1, slope_scale=2)",
        "alibi(slope_scale=1 / 2)",
        "alibi(unknown=2)",
        "alibi(dims=2)",
        "alibi(slope_scale=[1.0])",
        "alibi(slope_scale={})",
        "alibi(slope_scale='2')",
        "alibi(slope_scale=None)",
        "alibi(extend='yes')",
        "alibi(slope_scale=1e999)",
        "al\0ibi",
        "alibi(slope_scale=" + "-" * 5000 + "1)",
        "alibi(slope_scale={[]: 1})",
        "alibi(slope_scale=nan)",
        "alibi(slope_scale=" + "9" * 400 + ")",
        "alibi(slope_scale=" + "9" * 5000 + ")",
        "(" * 300 + "alibi" + ")" * 300,
    ],
)
def test_a_bad_spec_is_refused_in_one_line(spec):
    with pytest.raises((ValueError, TypeError)) as error:
        make_encoding(spec, DIMS)
    one_line(error)


@given(st.text(max_size=40))
def test_any_text_is_a_name_or_refused_in_one_line(text):
    for spec in (text, f"alibi({text})", f"alibi(slope_scale={text})"):
        outcome = read(spec)
        assert "\n" not in outcome
        assert outcome in ENCODINGS or " " in outcome


def read(spec: str) -> str:
    """Return the name that a spec is read as, or the error."""
    try:
        return parse(spec).parts[0].name
    except (ValueError, TypeError) as error:
        return str(error)


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_value_of_the_wrong_type_is_refused_in_one_line(name):
    for option in inspect.signature(ENCODINGS[name]).parameters:
        for value in ("'x y'", "b'x'", "1j", "...", "{'a': 1}", "[[1]]") * (option != "dims"):
            with pytest.raises((ValueError, TypeError)) as error:
                make_encoding(f"{name}({option}={value})", Dims(heads=4, head_dim=8, extent=16))
            one_line(error, name, option)


# In words


def test_explain_names_the_hooks_the_parameters_the_cost_and_the_law():
    text = explain(make_encoding("alibi", DIMS))
    assert [line.split(":")[0] for line in text.splitlines()] == [
        *("encoding", "bias", "distance_bias", "parameters", "cost", "shift")
    ]
    assert "changes no logit" in text
    nothing = explain(Encoding(shift_invariant=True), DIMS)
    assert nothing.splitlines()[0].startswith("no hooks")


def test_explain_and_sums_know_every_hook():
    """A hook that one of them does not know is silent there."""
    assert HOOKS - {*SENTENCES} == {"distance_bias", "relative_keys"}, "explained with the bias that they are forms of"
    assert HOOKS - {name for names in PLACES.values() for name in names} == {"unplaced_bias"}, "the parts share it"


NOT_NAMED = {
    # bound_hooks binds those of pairs, check_embedded refuses embed
    "_attention/encoded.py": "embed bias distance_bias relative_keys relative_values unplaced_bias",
    "_attention/core/hooks.py": "embed",
    # rotate_queries calls rotate; relative_keys come with a bias, which is refused
    "_attention/linear.py": "embed rotate relative_keys",
    "_extensions/interpolation.py": "",
    # pair_bias calls both biases; all tokens of a probe and of a picture have positions
    "_record/probe.py": "bias distance_bias relative_keys unplaced_bias",
    "_visualize/layer.py": "rotate rotate_keys bias distance_bias relative_keys relative_values unplaced_bias",
    "_naming/register.py": "bands relative_keys",  # attention refuses results of another shape
    "models/stack/cross_positions.py": "relative_keys unplaced_bias",  # what is not named is kept beside a rotation
}
"""Hooks that a module neither calls nor refuses by name: another function does, or it has no use for them."""


@pytest.mark.parametrize("place", NOT_NAMED)
def test_every_place_that_calls_hooks_knows_a_new_one(place):
    """It is named in the module, or in `NOT_NAMED` if it needs nothing there."""
    names = set()
    for node in ast.walk(ast.parse((pathlib.Path(pejax.__file__).parent / place).read_text(encoding="utf-8"))):
        match node:
            case ast.Attribute(attr=name) | ast.keyword(arg=name) | ast.Constant(value=str(name)):
                names.add(name)
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
    assert HOOKS - names == {*NOT_NAMED[place].split()}


@pytest.mark.parametrize("name", [*ENCODINGS, "rope(base=50, rotary_dim=4)", "alibi(slope_scale=2.0, learned=True)"])
@pytest.mark.parametrize("extend", ["none", "pi", "log_n+pi"])
def test_the_spec_of_a_record_makes_it_again(name, extend):
    dims = Dims(heads=4, head_dim=8, extent=16, causal=True)
    encoding = make_encoding(name, dims, extend)
    assert make_encoding(encoding.spec, dims) is encoding
    assert make_encoding(str(encoding.spec), dims) is encoding
    assert encoding.spec.name == parse(name).name
    assert encoding.spec.is_extended == (extend != "none")


@pytest.mark.parametrize("name", mostly_slow(ENCODINGS))
def test_explain_counts_what_init_draws(name):
    dims = Dims(heads=4, head_dim=8, extent=16)
    encoding = make_encoding(name, dims)
    sizes = [
        sum(leaf.size for leaf in jax.tree.leaves(init(jax.random.key(0))))
        for init in (encoding.init, encoding.init_layer)
    ]
    text = explain(encoding, dims)
    assert f"parameters: {sizes[0]:,} per model, {sizes[1]:,} per layer" in text
    computing = [
        encoding.embed,
        encoding.rotate,
        encoding.rotate_keys or encoding.rotate,
        encoding.bias,
        encoding.relative_values,
    ]
    assert text.count("cost: ") == max(1, sum(hook is not None for hook in computing))


def test_explain_counts_the_operations_of_a_hook():
    dims = Dims(heads=2, head_dim=3)
    double = Encoding(embed=lambda params, x, positions: x + x)
    assert "cost: embed 6 flops per token" in explain(double, dims)


# Names


def test_laws_are_measured_in_exact_float32_products_whatever_the_device_does():
    encoding = make_encoding("shaw", DIMS)
    params = pejax.init_params(encoding, jax.random.key(0))
    text = testing.dense_terms.lower(encoding, params, DIMS, testing.draw_probe(0, DIMS)).as_text()
    products = [line for line in text.splitlines() if "dot_general" in line]
    assert len(products) >= 4  # queries, keys, their products, relative values
    assert all("HIGHEST" in line for line in products)


def test_public_names_are_all_there_and_documented():
    """`test_readme.py` checks that each has an entry in the reference."""
    assert len(pejax.__all__) == len(set(pejax.__all__))
    for name in pejax.__all__:
        documented = inspect.getdoc(getattr(pejax, name))
        assert documented, name
    assert not [name for name in ENCODINGS if f"`{name}`" not in README.read_text()]


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_factory_called_by_itself_makes_what_its_name_makes(name):
    """Causal where the dims are, and with an `embed` that leaves tokens without a position alone."""
    dims = Dims(heads=4, head_dim=8, extent=16, causal=True)
    direct, named = getattr(pejax.encodings, name)(dims), make_encoding(name, dims)
    assert direct.causal
    values = lambda encoding: [
        item.name for item in dataclasses.fields(encoding) if getattr(encoding, item.name) is not None
    ]
    assert values(direct) == values(named)
    if direct.embed is not None:
        params = adapt(direct, pejax.init_params(direct, jax.random.key(0)), 16)
        x, tokens = jnp.ones((3, 32)), pejax.TokenPositions(jnp.arange(3), has_position=jnp.arange(3) > 0)
        np.testing.assert_array_equal(direct.embed(params, x, tokens)[0], x[0])


WHOLE_TILE = {
    "the largest query position": lambda q, k, q_at, k_at: jnp.maximum(q_at.max(), 1),
    "the smallest position": lambda q, k, q_at, k_at: q_at.min() + 1,
    "the first position": lambda q, k, q_at, k_at: k_at[0] + 1,
}


@pytest.mark.parametrize("divisor", WHOLE_TILE.values(), ids=WHOLE_TILE)
def test_a_bias_that_reads_its_whole_tile_is_no_slice(divisor):
    """Its users would get another bias with every size of the tiles, at whatever seed they look."""

    def bias(params, q, k, q_positions, k_positions):
        distances = (q_positions[:, None] - k_positions).astype(jnp.float32)
        return -distances / jnp.float32(divisor(q, k, q_positions, k_positions))

    encoding = Encoding(bias=bias)
    for seed in range(20):
        with pytest.raises(AssertionError, match="a tile of a hook differs from the slice"):
            testing.assert_tile_consistent(encoding, {}, Dims(heads=2, head_dim=4), seed=seed)


def test_values_that_read_their_whole_tile_do_not_add_up():
    def values(params, weights, q_positions, k_positions):
        return weights.sum(-1, keepdims=True) * jnp.ones(4) / jnp.float32(k_positions.max() + 1)

    for seed in range(4):
        with pytest.raises(AssertionError, match="a tile of a hook differs from the slice"):
            testing.assert_tile_consistent(Encoding(relative_values=values), {}, Dims(heads=2, head_dim=4), seed=seed)


def test_without_dims_an_encodings_own_are_meant():
    encoding, other = pejax.encodings.alibi(DIMS), Dims(heads=4, head_dim=8, causal=True)
    checks = (testing.shift_deviation, testing.assert_shift_invariant, testing.assert_tile_consistent)
    for check in checks:
        assert check(encoding, {}) == check(encoding, {}, DIMS)
    rngs = nnx.Rngs(0)
    assert attention_module(encoding, None, rngs).dims == DIMS
    assert attention_module(encoding, other, rngs).dims == other
    assert pejax.extend_encoding(encoding, None, pejax.extensions.llama4()).dims == DIMS
    unmade = Encoding(distance_bias=lambda params, relative: -1.0 * relative)
    for call in (lambda: testing.assert_tile_consistent(unmade, {}), lambda: attention_module(unmade, None, rngs)):
        with pytest.raises(ValueError, match=r"dims must be given with an encoding made without dims .*, got None"):
            call()
