"""The argument `extend` of the factories and of `make_encoding`: what they take, and what comes of it."""

import dataclasses
import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pejax
from pejax import ENCODINGS, EXTENSIONS, Dims, adapt, extensions, make_encoding
from pejax._encodings.rope import rope_frequencies
from pejax._encodings.rope_axial import rope_axial_frequencies
from pejax._extensions.base import Rotary
from pejax._extensions.frequencies import apply_terms
from pejax._extensions.ntk import extend_ntk
from pejax._extensions.yarn import extend_yarn
from pejax._ops.rotary import rope_apply
from pejax.specs import EncodingSpec, parse_extension
from tests.support.cases import EXTEND_FREQUENCIES

BASE, TRAINED = 10000.0, 512
SEQUENCE = Dims(heads=2, head_dim=16, extent=TRAINED)
GRID = Dims(heads=2, head_dim=16, axes=2, extent=(8, 4))


def turned(spec, dims: Dims, extend, positions, extent=None):
    """Return ones, rotated by the encoding as it is for an extent."""
    encoding = make_encoding(spec, dims, extend)
    params = {"frequencies": make_encoding(spec, dims).init_layer(jax.random.key(0)).get("frequencies")}
    params = adapt(encoding, params, extent)
    return encoding.rotate(params, jnp.ones((len(positions), dims.heads, dims.head_dim)), positions)


@pytest.mark.parametrize("name", EXTEND_FREQUENCIES)
def test_rope_takes_every_extension(name):
    options = {
        "factor": 4.0,
        **({"long_factors": (1.0, 1.5, 2.0, 3.0, 4.0, 4.0, 5.0, 8.0)} if name == "longrope" else {}),
    }
    written = f"{name}({', '.join(f'{key}={value}' for key, value in options.items())})"
    positions, x = jnp.asarray([3, 700]), jnp.ones((2, 2, 16))
    for length in (100, 2048):
        rotary = Rotary(BASE, 16, length)
        frequencies, factor = EXTEND_FREQUENCIES[name](rope_frequencies(16), rotary, trained_length=TRAINED, **options)
        expected = rope_apply(x, positions, frequencies, attention_factor=factor)
        np.testing.assert_allclose(turned("rope", SEQUENCE, written, positions, length), expected, rtol=1e-5, atol=1e-6)
    follows = make_encoding("rope", SEQUENCE, written).adapt is not None
    assert follows == (name in ("dynamic_ntk", "longrope"))


def test_without_a_factor_rope_follows_the_length_traced_or_not():
    positions = jnp.asarray([3, 700])
    expected = turned("rope", SEQUENCE, "yarn(factor=4)", positions)
    np.testing.assert_allclose(turned("rope", SEQUENCE, "yarn", positions, 2048), expected, atol=1e-6)
    traced = jax.jit(lambda length: turned("rope", SEQUENCE, "yarn", positions, length))(2048)
    np.testing.assert_allclose(traced, expected, atol=1e-5)
    within = turned("rope", SEQUENCE, "yarn", positions, 90)
    np.testing.assert_array_equal(within, turned("rope", SEQUENCE, "none", positions))
    other = turned("rope", SEQUENCE, "linear(trained_length=256)", positions, 512)
    np.testing.assert_array_equal(other, turned("rope", SEQUENCE, "linear(factor=2)", positions))


def test_terms_are_applied_from_left_to_right_to_the_pairs_as_they_were():
    frequencies = rope_frequencies(16)
    rotary = Rotary(BASE, 16, base_frequencies=frequencies)
    first, _ = extend_ntk(frequencies, rotary, trained_length=TRAINED, factor=2.0)
    extended, factor = extend_yarn(first, rotary, trained_length=TRAINED, factor=4.0)
    positions = jnp.asarray([3, 700])
    expected = rope_apply(jnp.ones((2, 2, 16)), positions, extended, attention_factor=factor)
    own, further = extensions.ntk(factor=2), extensions.yarn(factor=4)  # of a model that was trained with the first
    actual = turned("rope", SEQUENCE, extensions.Extension(own.terms + further.terms), positions)
    np.testing.assert_array_equal(actual, expected)
    spec = EncodingSpec("rope", extend=own).extended(further)
    np.testing.assert_array_equal(turned(spec, SEQUENCE, None, positions), expected)


TWICE = "an extension must scale an axis once, got {} and {}, which both do"


@pytest.mark.parametrize(
    ("first", "second"),
    [("yarn", "yarn"), ("pi", "pi"), ("yarn(factor=2.0)", "linear"), ("ntk", "yarn"), ("llama3(factor=8.0)", "pi"),
     ("dynamic_ntk(factor=2.0)", "linear(factor=2.0)"), ("by_step(above='ntk(factor=2.0)')", "yarn"),
     ("ntk(factor=(2.0, 1.0))", "yarn(factor=(4.0, 2.0))"), ("pi(factor=(1.0, 2.0))", "linear")],
)  # fmt: skip
def test_an_axis_is_scaled_once(first, second):
    """In a string, as records, with others between, and on an encoding that is extended already."""
    refusal = re.escape(TWICE.format(first, second))
    for text in (f"{first}+{second}", f"{first}+log_n+resonance+{second}"):
        with pytest.raises(ValueError, match=refusal):
            parse_extension(text)
    one, other = parse_extension(first), parse_extension(second)
    with pytest.raises(ValueError, match=refusal):
        _ = one + other
    if second == "pi":
        with pytest.raises(ValueError, match=r"must scale an axis once, got .* and pi, "):
            pejax.extend_encoding(make_encoding("rope", SEQUENCE, one), SEQUENCE, other)


def test_an_encoding_of_your_own_is_interpolated_once():
    mine, pi = pejax.Encoding(distance_bias=lambda params, relative: -abs(relative) / 8), extensions.pi()
    longer = pejax.extend_encoding(mine, SEQUENCE, pi)
    with pytest.raises(ValueError, match="pi must extend an encoding once"):
        pejax.extend_encoding(longer, SEQUENCE, pi)
    alibi = pejax.extend_encoding(make_encoding("alibi", SEQUENCE), SEQUENCE, pi)
    assert alibi.spec == EncodingSpec("alibi", extend=pi)
    with pytest.raises(ValueError, match=TWICE.format("pi", "pi")):
        pejax.extend_encoding(alibi, SEQUENCE, pi)


def test_extensions_that_scale_other_axes_or_nothing_join():
    for text in ("yarn+soft_clip(pairs=2)+resonance+log_n", "self_extend+yarn", "yarn(factor=2)+linear(factor=1)",
                 "ntk(factor=(2, 1))+yarn(factor=(1, 4))", "slopes+log_n", "resize+yarn", "pi+llama4"):  # fmt: skip
        assert parse_extension(text) is not None
    rotary = Rotary(100.0, 8, base_frequencies=rope_axial_frequencies(16), trained_length=(16, 16))
    joined = parse_extension("ntk(factor=(2, 1))+yarn(factor=(1, 4))")
    extended, _ = apply_terms(joined, rope_axial_frequencies(16), rotary)
    rows, _ = extend_ntk(rope_axial_frequencies(16), rotary, factor=2.0, trained_length=16)
    columns, _ = extend_yarn(rope_axial_frequencies(16), rotary, factor=4.0, trained_length=16)
    np.testing.assert_allclose(extended, [rows[0], columns[1]], rtol=1e-6)


@pytest.mark.slow
def test_on_a_grid_each_axis_is_stretched_by_its_own_and_rope_by_the_tokens():
    positions, x = jnp.asarray([[0, 3], [15, 7]]), jnp.ones((2, 2, 16))
    stretched = rope_axial_frequencies(16) / np.float32([[2.0], [1.0]])
    np.testing.assert_allclose(
        turned("rope_axial", GRID, "linear", positions, (16, 3)), rope_apply(x, positions, stretched), atol=1e-6
    )
    raster = rope_apply(x, positions @ jnp.asarray([8, 1]), rope_frequencies(16) / np.float32(4))
    np.testing.assert_allclose(turned("rope", GRID, "linear", positions, (16, 8)), raster, atol=1e-6)
    mixed = make_encoding("rope_mixed", GRID).init_layer(jax.random.key(0))["frequencies"]
    expected = rope_apply(x, positions, mixed / jnp.asarray([[2.0], [1.0]]))
    np.testing.assert_allclose(turned("rope_mixed", GRID, "linear", positions, (16, 3)), expected, atol=1e-5)
    halved = rope_apply(x, positions, mixed / 2.0)
    np.testing.assert_allclose(turned("rope_mixed", GRID, "linear(factor=2)", positions), halved, atol=1e-5)


@pytest.mark.slow
def test_learned_frequencies_that_are_stretched_still_learn():
    encoding = make_encoding("rope_mixed", SEQUENCE, "linear")
    params = encoding.init_layer(jax.random.key(0))

    def total(params, length):
        return jnp.sum(encoding.rotate(encoding.adapt(params, length), jnp.ones((3, 2, 16)), jnp.arange(3)))

    slope = jax.jit(jax.grad(total))(params, 2048)["frequencies"]
    plain = make_encoding("rope_mixed", SEQUENCE)
    scaled = jax.tree.map(lambda leaf: leaf / 4, params)
    by_hand = jax.grad(lambda p: jnp.sum(plain.rotate(p, jnp.ones((3, 2, 16)), jnp.arange(3))))(scaled)["frequencies"]
    np.testing.assert_allclose(slope, by_hand / 4, rtol=1e-5, atol=1e-6)


def test_pi_is_linear_to_rotary_encodings():
    for name in ("rope", "rope_axial", "rope_mixed"):
        assert make_encoding(name, SEQUENCE, "pi") is make_encoding(name, SEQUENCE, "linear")


def test_equal_arguments_give_the_same_object():
    encoding = make_encoding("rope", SEQUENCE, "yarn(factor=4)+log_n")
    assert encoding is make_encoding("rope", SEQUENCE, "yarn(factor=4)+log_n")
    assert encoding is make_encoding("rope(extend='yarn(factor=4)+log_n')", SEQUENCE)
    assert make_encoding("rope", SEQUENCE, "none") is make_encoding("rope", SEQUENCE)
    assert encoding is not make_encoding("rope", SEQUENCE, "yarn(factor=4)")


@pytest.mark.parametrize("name", ENCODINGS)
def test_every_factory_takes_an_extension_of_any_encoding(name):
    dims = SEQUENCE
    encoding = ENCODINGS[name](dims, extend=extensions.log_n())
    assert encoding is make_encoding(name, dims, "log_n") is make_encoding(name, dims, extensions.log_n())
    assert encoding is not ENCODINGS[name](dims)
    assert encoding.rotate is not None
    with pytest.raises(TypeError, match=f"{name}: extend must be an extension .* got 'log_n'"):
        ENCODINGS[name](dims, extend="log_n")


@pytest.mark.parametrize("name", EXTENSIONS)
def test_a_record_is_its_text_and_the_text_is_the_record(name):
    options = {"long_factors": [1, 2, 3, 4, 5, 6, 7, 8]} if name == "longrope" else {}
    record = EXTENSIONS[name](**options)
    assert parse_extension(str(record)) == record
    assert hash(parse_extension(str(record))) == hash(record)
    assert record.terms[0].name == name
    joined = record + extensions.log_n(trained_length=9)
    assert parse_extension(str(joined)) == joined != record


@pytest.mark.parametrize("name", EXTENSIONS)
def test_a_record_is_documented_by_the_function_behind_it(name):
    make, function = EXTENSIONS[name], EXTENSIONS[name](**({"long_factors": [1.0]} if name == "longrope" else {}))
    assert make.__name__ == name
    signature, doc = inspect.signature(make), inspect.getdoc(make)
    assert "`extend" in doc
    assert all(f"{option}: " in doc for option in signature.parameters)
    assert not re.search(r"^    (frequencies|rotary|encoding|dims): ", doc, re.MULTILINE)
    if function.terms[0].target != "factory":
        parameters = list(inspect.signature(function.terms[0].function).parameters.values())[2:]
        assert [(item.name, item.default) for item in parameters] == [
            (key, item.default) for key, item in signature.parameters.items()
        ]


def test_the_options_of_a_record_are_plain_values():
    assert extensions.longrope(long_factors=np.asarray([1, 2])) == extensions.longrope(long_factors=[1.0, 2.0])
    assert extensions.linear(factor=np.float32(2)) == extensions.linear(factor=2) != extensions.linear()
    assert str(extensions.yarn(truncate=False, factor=2.0, beta_slow=1.0)) == "yarn(factor=2.0, truncate=False)"
    with pytest.raises(TypeError, match=r"longrope: missing a required .*'long_factors'"):
        extensions.longrope()
    with pytest.raises(TypeError, match=r"linear takes factor, .*got 'length'; did you mean trained_length"):
        extensions.linear(length=9)
    with pytest.raises(TypeError, match=r"factor must be float \| int \| tuple.* \| None, got 'far'"):
        parse_extension("yarn(factor='far')")


def test_a_typed_call_is_the_text():
    typed = pejax.encodings.rope(SEQUENCE, base=5e5, extend=extensions.yarn(factor=8) + extensions.log_n())
    assert typed is make_encoding("rope(base=500000)", SEQUENCE, "yarn(factor=8)+log_n")
    assert typed is make_encoding("rope(base=500000, extend='yarn(factor=8.0) + log_n()')", SEQUENCE)


def test_extensions_of_frequencies_and_tables_are_for_factories():
    rope = make_encoding("rope", SEQUENCE)
    with pytest.raises(ValueError, match="yarn cannot extend a record: pass it to a factory"):
        pejax.extend_encoding(rope, SEQUENCE, extensions.yarn(factor=2))
    with pytest.raises(TypeError, match=r"rope: dims must be pejax\.Dims .* got 64"):
        pejax.encodings.rope(64)
    assert pejax.encodings.rope(SEQUENCE, base=jnp.float32(100.0)) is pejax.encodings.rope(SEQUENCE, base=100.0)


@pytest.mark.parametrize(
    ("spec", "extend", "words"),
    [
        ("t5", "yarn", "t5 has no extension 'yarn'; it takes pi, .*log_n, llama4$"),
        ("alibi", "yarn", "alibi has no extension 'yarn'; it takes slopes, pi, .*log_n, llama4$"),
        ("rope_mixed", "ntk", "rope_mixed has no extension 'ntk'; it takes linear, by_step, pi, .*log_n, llama4$"),
        ("rope", "yarm", "unknown extension 'yarm'; did you mean 'yarn'. Known: linear, ntk, "),
        ("rope", "yarn(factor=0.5)", "rope: extend='yarn.factor=0.5.': factor must be at least 1, got 0.5"),
        ("rope", "yarn(speed=2)", "yarn takes factor, trained_length, beta_fast, .* got 'speed'"),
        ("rope", "linear(length=9)", "linear takes factor, trained_length; got 'length'"),
        ("rope", "longrope", "longrope needs long_factors, got 'longrope'"),
        ("rope", "yarn(factor=2", "an extension is written name"),
        ("rope", "yarn(factor=2)-log_n", "an extension is written name"),
        ("rope", "pi(speed=2)", "pi takes factor, proportional, stretch; got"),
        ("rope(extend='linear')", "ntk", "rope: extend must be given once, got 'linear' and 'ntk'"),
        ("rope", "log_n(trained_length=1)", "rope: trained_length must be at least 2, got 1"),
        ("rope", "llama4(floor_length=0)", "rope: floor_length must be at least 1, got 0"),
    ],
)
def test_what_an_encoding_does_not_take_is_refused_in_one_line(spec, extend, words):
    with pytest.raises(ValueError, match=words) as error:
        make_encoding(spec, SEQUENCE, extend)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("spec", "dims", "extend", "words"),
    [
        (
            "rope",
            Dims(heads=2, head_dim=16),
            "ntk",
            "a factor from the length needs trained_length .*dims.extent.*None",
        ),
        ("rope", Dims(heads=2, head_dim=16), "yarn(factor=2)", "yarn needs trained_length .*dims.extent.*, got None"),
        ("rope_axial", Dims(heads=2, head_dim=16, axes=2), "linear", "needs trained_length .*dims.extent.*, got None"),
        ("t5", Dims(heads=2, head_dim=16), "log_n", "t5: log_n needs the trained length, got dims.extent=None"),
        ("rope_axial", GRID, "llama4", "rope_axial: llama4 counts tokens of a sequence, got axes=2"),
        ("rope_axial", Dims(heads=2, head_dim=16, axes=2), "log_n", "trained grid of at least 2 patches, got None"),
        ("rope_axial", GRID, "log_n(trained_length=1)", "trained grid of at least 2 patches, got 1"),
        (
            "rope_axial",
            dataclasses.replace(GRID, causal=True),
            "log_n",
            "log_n must be of a model that is not causal on",
        ),
        ("learned", GRID, "resize", "for one axis: grids are always resampled, got axes=2"),
    ],
)
def test_what_the_dims_do_not_allow_is_refused(spec, dims, extend, words):
    with pytest.raises(ValueError, match=words):
        make_encoding(spec, dims, extend)
