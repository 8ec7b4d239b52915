"""Encodings composed of parts that act in different places."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pejax
from pejax import Dims, Encoding, adapt, attend, compose_encodings, explain, init_params, make_encoding
from pejax.encodings import alibi, learned, rope, rope_mixed, t5
from pejax.specs import LayerPattern, parse, parse_extension, parse_pattern
from tests.support.biases import types_unchecked
from tests.support.cases import close, normal

DIMS = Dims(heads=4, head_dim=12, kv_heads=2, extent=24, causal=True)
GRID = Dims(heads=4, head_dim=12, axes=2, extent=(6, 4))


def qkv(dims, length=11):
    return normal(2, length, dims.heads, 12), *(normal(2, length, dims.kv_heads, 12, seed=n) for n in (1, 2))


@pytest.mark.slow
def test_every_part_acts_as_it_does_alone():
    joined = make_encoding("learned+rope+alibi", DIMS)
    params = init_params(joined, jax.random.key(0))
    x, at = normal(2, 11, 48), jnp.arange(11)
    close(joined.embed(adapt(joined, params, 11), x, at), learned(DIMS).embed(params, x, at))
    q, k, v = qkv(DIMS)
    rotated = (rope(DIMS).rotate({}, item, at) for item in (q, k))
    want = attend(alibi(DIMS), *rotated, v)
    close(attend(joined, q, k, v, params=params, embedded=True, positions=at, extent=11), want)


@pytest.mark.slow
def test_parameters_of_the_parts_are_kept_apart_and_have_gradients():
    joined = make_encoding("rope_mixed+t5", DIMS)
    params = init_params(joined, jax.random.key(0))
    assert jax.tree.map(jnp.shape, params) == {"frequencies": (2, 1, 6), "heads": {"table": (4, 32)}}
    q, k, v = qkv(DIMS)
    slopes = jax.grad(lambda params: jnp.sum(jnp.sin(attend(joined, q, k, v, params=params))))(params)
    assert all(jnp.any(leaf != 0) for leaf in jax.tree.leaves(slopes))


@pytest.mark.parametrize(
    "spec", ["learned+rope", "learned(factorized=True)+rope_mixed(base=20.0)", "rope(extend='yarn(factor=2.0)')+alibi"]
)
def test_equal_sums_are_one_object_and_their_spec_makes_it_again(spec):
    dims = GRID if "mixed" in spec else DIMS
    joined = make_encoding(spec, dims)
    assert joined is make_encoding(f" {spec.replace('+', ' + ')}", dims)
    assert joined is make_encoding(joined.spec, dims)
    assert str(joined.spec) == spec
    assert joined.dims == dims
    assert explain(joined).startswith(f"encoding: {spec}\n")


def test_a_typed_call_is_the_string():
    assert compose_encodings(learned(GRID), rope_mixed(GRID)) is make_encoding("learned+rope_mixed", GRID)
    assert compose_encodings(rope(DIMS, base=50.0), t5(DIMS)) is make_encoding("rope(base=50)+t5", DIMS)


@pytest.mark.parametrize(
    ("spec", "extend", "want"),
    [
        ("learned+rope", "yarn(factor=2)", "learned+rope(extend='yarn(factor=2)')"),
        ("learned+rope", "resize+yarn(factor=2)", "learned(extend='resize')+rope(extend='yarn(factor=2)')"),
        ("learned+alibi", "slopes", "learned+alibi(extend='slopes')"),
        ("learned+rope", "pi", "learned(extend='pi')+rope(extend='linear')"),
        ("learned+rope", "log_n", "learned+rope(extend='log_n')"),
        ("learned+alibi", "log_n", "learned+alibi(extend='log_n')"),
        ("rope+alibi", "log_n", "rope(extend='log_n')+alibi"),
    ],
)
def test_an_extension_goes_to_the_parts_that_take_it(spec, extend, want):
    assert make_encoding(spec, DIMS, extend) is make_encoding(want, DIMS)


@pytest.mark.parametrize("extend", ["pi", "yarn(factor=2.0)+log_n"])
def test_a_sum_with_an_extension_of_the_whole_reads_back(extend):
    spec = parse("learned+rope").extended(parse_extension(extend))
    assert str(spec) == f"(learned+rope)(extend={extend!r})"
    assert parse(str(spec)) == spec
    for pattern in (LayerPattern((spec,)), LayerPattern((spec, spec, parse("none")))):
        assert parse_pattern(str(pattern)) == pattern
    assert make_encoding(str(spec), DIMS) is make_encoding("learned+rope", DIMS, extend)


@pytest.mark.parametrize("text", ["(learned+rope)()", "(learned+rope)(base=2)", "(learned+rope)(extend=2)"])
def test_a_sum_takes_an_extension_alone(text):
    with pytest.raises(ValueError, match=r"a sum takes one argument, extend='\.\.\.', as in .*, got '\(learned"):
        parse(text)


def test_both_parts_are_interpolated_alike():
    joined = make_encoding("learned+rope", DIMS, "pi")
    params = adapt(joined, init_params(joined, jax.random.key(0)), 48)
    x, at = normal(48, 48), jnp.arange(48)
    plain = init_params(learned(DIMS), jax.random.key(1))
    assert set(plain) <= set(params)
    halves = learned(DIMS).embed(adapt(learned(DIMS), {"table_0": params["table_0"]}, 24), x, at / 2)
    close(joined.embed(params, x, at), halves, 1e-5)


BAD = {
    "learned+sinusoidal": "at most one part embeds, got learned and sinusoidal",
    "rope+rope_mixed": "at most one part rotates, got rope and rope_mixed",
    "alibi+t5": "at most one part adds to the logits or values, got alibi and t5",
    "rope+none": "a part must embed, rotate or add to the logits, to be seen beside the others, got none",
    "learned+rop": "unknown encoding 'rop'; did you mean 'rope'?",
    "learned+": "an encoding is written name or name(key=value, ...), got 'learned+'",
}


@pytest.mark.parametrize("spec", BAD)
def test_what_is_no_sum_is_refused(spec):
    with pytest.raises(ValueError, match=f"^{re.escape(BAD[spec])}"):
        make_encoding(spec, DIMS)


def test_bad_parts_are_refused():
    def refused(message, *parts):
        with pytest.raises(ValueError, match=re.escape(message)):
            compose_encodings(*parts)

    refused("takes two or more encodings, got 1", rope(DIMS))
    refused("the parts must be made for the same dims, got Dims", rope(DIMS), learned(Dims(4, 12, extent=7)))
    mine = Encoding(init=lambda key: {"table_0": jnp.ones(3)}, distance_bias=lambda params, r: 1.0 * r)
    refused("parameters of different names, got [['table_0'], ['table_0']]", learned(DIMS), mine)
    with pytest.raises(ValueError, match=r"^learned\+rope has no part with the extension"):
        make_encoding("learned+rope", DIMS, "slopes")
    with types_unchecked(), pytest.raises(TypeError, match=r"compose_encodings: parts\[0\] must be a pejax\.Encoding"):
        compose_encodings("rope", "alibi")


def test_a_part_of_ones_own():
    steep = Encoding(distance_bias=lambda params, relative: -2.0 * jnp.abs(relative.astype(jnp.float32)))
    joined = compose_encodings(rope(DIMS), dataclasses.replace(steep, shift_invariant=True))
    assert joined.spec is None
    assert joined.shift_invariant
    assert joined.dims == DIMS
    assert attend(joined, *qkv(DIMS)).shape == (2, 11, 4, 12)
    assert pejax.caches_rotated_keys(joined)
    np.testing.assert_array_equal(compose_encodings(steep, rope(DIMS)).shift_invariant, False)


@pytest.mark.slow
def test_keys_without_a_position_have_the_bias_of_pi_once():
    """All parts of a sum are extended by `pi`, and CLS and registers must still be seen as in training."""
    dims = Dims(heads=2, head_dim=8, axes=2, extent=(3, 2))
    joined, alone = (make_encoding(spec, dims, "pi") for spec in ("learned+rope_mixed", "rope_mixed"))
    bias = lambda item: item.unplaced_bias(adapt(item, init_params(item, jax.random.key(0)), (6, 4))["all"])
    np.testing.assert_allclose(bias(joined), np.log(4.0), rtol=1e-6)
    assert bias(joined) == bias(alone)
    own = dataclasses.replace(alone, unplaced_bias=lambda params: jnp.float32(1.0))
    with pytest.raises(ValueError, match=r"at most one part has an unplaced_bias, got learned.* and rope_mixed"):
        compose_encodings(make_encoding("learned", dims, "pi"), own)
