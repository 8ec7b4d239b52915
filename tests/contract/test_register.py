"""Encodings of your own by name: what `register_encoding` accepts, and what it says is wrong."""

import functools
import inspect
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import pejax
from pejax import Dims, Encoding, make_encoding, register_encoding
from pejax.models import Decoder, ViT, decoder, vit
from pejax.specs import parse, parse_pattern
from tests.support.biases import types_unchecked

DIMS = Dims(heads=4, head_dim=16, extent=8)


@pytest.fixture(autouse=True)
def _own_names() -> Iterator[None]:
    """Take out of the table what a test has added."""
    before = set(pejax.ENCODINGS)
    yield
    for name in set(pejax.ENCODINGS) - before:
        del pejax.ENCODINGS[name]


def steep(dims, slope=1.0, near: int = 0):
    return Encoding(
        distance_bias=lambda params, r: -slope * jnp.maximum(jnp.abs(r) - near, 0).astype(jnp.float32),
        shift_invariant=True,
    )


def turned(dims, *, base: float = 100.0, extend=None):
    return pejax.encodings.rope(dims, base=base, extend=extend)


def attended(encoding: Encoding, extent: int = 16) -> np.ndarray:
    q, k, v = jax.random.normal(jax.random.key(0), (3, 1, extent, 4, 16))
    return np.asarray(pejax.attend(encoding, q, k, v, extent=extent))


@pytest.mark.parametrize("name", ["mine", "my_module:mine", "my_package.my_module:mine"])
def test_a_registered_factory_is_made_by_its_name(name: str) -> None:
    assert register_encoding(name, steep).__name__ == name
    made = make_encoding(f"{name}(slope=2, near=1)", DIMS)
    assert made.distance_bias is not None
    assert made.distance_bias({}, jnp.array([-3, 0, 4])).tolist() == [-4, 0, -6]
    assert (str(made.spec), made.dims) == (f"{name}(near=1, slope=2.0)", DIMS)
    assert make_encoding(parse(str(made.spec)), DIMS) is made
    pattern = parse_pattern(f"({name} + rope)*2 + {name}(near=3)*1 + none")
    assert str(pattern) == f"({name}+rope)*2+{name}(near=3)*1+none*1"
    assert [item.name for item in pattern.parts] == [name, "rope", name, "none"]
    joined = make_encoding(f"rope + {name}", DIMS)
    assert joined is pejax.compose_encodings(pejax.encodings.rope(DIMS), make_encoding(name, DIMS))


def test_a_registered_factory_takes_the_extensions_of_any_encoding() -> None:
    register_encoding("mine", steep)
    squeezed = make_encoding("mine(slope=2, extend='pi')", DIMS)
    assert squeezed is make_encoding("mine(slope=2)", DIMS, "pi")
    with pytest.raises(ValueError, match=r"mine has no extension 'yarn'; it takes pi, "):
        make_encoding("mine", DIMS, "yarn")


@pytest.mark.slow
def test_extensions_apply_to_a_registered_factory() -> None:
    register_encoding("mine", steep)
    squeezed = make_encoding("mine(slope=2)", DIMS, "pi")
    expected = pejax.extend_encoding(steep(DIMS, 2.0), DIMS, pejax.extensions.pi())
    np.testing.assert_allclose(attended(squeezed), attended(expected), atol=1e-6)
    assert np.abs(attended(squeezed) - attended(make_encoding("mine(slope=2)", DIMS))).max() > 0.01
    register_encoding("mine:rope", turned, takes=("yarn",))
    extended = make_encoding("mine:rope(base=50)", DIMS, "yarn(factor=2)")
    np.testing.assert_array_equal(
        attended(extended), attended(make_encoding("rope(base=50, extend='yarn(factor=2)')", DIMS))
    )


@pytest.mark.slow
def test_a_factory_of_pejax_with_other_defaults_is_one_of_your_own() -> None:
    register_encoding("slow", functools.partial(pejax.encodings.rope, base=5e5))
    np.testing.assert_array_equal(
        attended(make_encoding("slow", DIMS)), attended(make_encoding("rope(base=500000)", DIMS))
    )


def city_block(dims):
    bias = lambda params, r: -jnp.abs(r).reshape(len(r), -1).sum(-1).astype(jnp.float32)
    return Encoding(distance_bias=bias, shift_invariant=True)


@pytest.mark.slow
def test_a_decoder_takes_registered_encodings_by_layer() -> None:
    register_encoding("mine", steep)
    text = decoder(vocab=7, width=32, heads=4, layers=2, pe="mine(slope=0.5)*1 + rope*1")
    assert [str(item.spec) for item in Decoder(text, rngs=nnx.Rngs(0)).stack.encodings] == ["mine(slope=0.5)", "rope"]


@pytest.mark.slow
def test_a_vision_transformer_takes_a_registered_encoding_and_a_record() -> None:
    register_encoding("mine", city_block)
    small = {"image_size": 8, "patch": 4, "channels": 3, "classes": 3, "width": 32, "heads": 4, "layers": 1}
    pixels = jax.random.normal(jax.random.key(1), (2, 8, 8, 3))
    by_name, plain = vit(pe="mine", **small), vit(pe="none", **small)
    own = ViT(plain, city_block(plain.dims), rngs=nnx.Rngs(0))
    np.testing.assert_array_equal(ViT(by_name, rngs=nnx.Rngs(0)).states(pixels), own.states(pixels))
    assert np.abs(own.states(pixels) - ViT(plain, rngs=nnx.Rngs(0)).states(pixels)).max() > 1e-3
    assert own.encoding.spec is None


def bad_heads(dims):
    return Encoding(init=lambda key: {"heads": {"slope": jnp.ones(3)}}, bias=lambda params, *_: params["slope"])


def missing(dims):
    return Encoding(distance_bias=lambda params, r: params["slope"] * r)


def flat(dims):
    return Encoding(bias=lambda params, q, k, p, s: jnp.zeros(len(k)))


def narrow(dims):
    return Encoding(rotate=lambda params, x, positions: x[..., :4])


def listed(dims):
    return Encoding(init=lambda key: [jnp.ones(2)])


def for_cubes(dims):
    if dims.axes != 3:
        raise ValueError(f"cubes alone, got axes={dims.axes}")
    return Encoding(shift_invariant=True)


REFUSED = {
    "no identifier": ("my encoding", steep, "name must be an identifier, 'mine', or a place, .* got 'my encoding'"),
    "a keyword": ("for", steep, "name must be an identifier, .* got 'for'"),
    "a spec": ("mine(a=1)", steep, "name must be an identifier"),
    "a built-in name": ("rope", steep, "name must not be taken, got 'rope': choose another one"),
    "no function": ("mine", 3, "mine: the factory must be a function of dims, got int"),
    "a record": ("mine", steep(DIMS), "mine: the factory must be a function .* that returns an Encoding, got an E"),
    "no arguments": ("mine", lambda: None, "mine: the factory must take dims first"),
    "another first argument": ("mine", lambda heads: None, "mine: the first argument .* must be dims, got heads"),
    "a required option": ("mine", lambda dims, a: None, "must have a default, got a without one"),
    "options without names": ("mine", lambda dims, **kwargs: None, r"must have a name of its own, got \*\*kwargs"),
    "a default that is no plain value": ("mine", lambda dims, a=[1]: None, "must be a plain value .*, got a of list"),
    "a name in place of a record": ("mine", lambda dims: "rope", "mine must return a pejax.Encoding, got str"),
    "nothing returned": ("mine", lambda dims: None, "mine must return a pejax.Encoding, got NoneType"),
    "a mistake": ("mine", lambda dims: dims.length, "mine failed for Dims.*: AttributeError: 'Dims' object has no"),
    "other dims": ("mine", for_cubes, "mine must accept some of the dims .*, got: cubes alone, got axes=1"),
    "heads": ("mine", bad_heads, r"mine: params\['heads'\]\['slope'\] must have H = 2 rows, got shape \(3,\)"),
    "parameters": ("mine", missing, "mine: distance_bias failed: KeyError: 'slope'"),
    "the shape of a bias": ("mine", flat, r"mine: bias must return an array of shape \(12, 12\), got shape \(12,\)"),
    "a rotation": ("mine", narrow, r"mine: rotate must return an array of shape \(12, 2, 8\), got shape \(12, 2, 4\)"),
    "a list": ("mine", listed, "mine: init failed: "),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_wrong_with_a_factory_is_said(what: str) -> None:
    name, factory, message = REFUSED[what]
    with types_unchecked(), pytest.raises((ValueError, TypeError), match=message) as raised:
        inspect.unwrap(register_encoding)(name, factory)
    assert "\n" not in f"{raised.value}"
    assert name == "rope" or name not in pejax.ENCODINGS


def test_extensions_of_a_factory_are_known_ones_that_it_can_receive() -> None:
    with pytest.raises(ValueError, match=r"mine: takes must name extensions .*, got 'longer'"):
        register_encoding("mine", turned, takes=("longer",))
    with pytest.raises(ValueError, match="mine: takes needs an argument extend of the factory, got yarn without one"):
        register_encoding("mine", steep, takes=("yarn",))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"takes": "yarn"}, "mine: takes must be a tuple of names of extensions, got 'yarn'"),
        ({"takes": None}, "mine: takes must be a tuple of names of extensions, got None"),
        ({"dims": DIMS}, "mine: dims must be a sequence of pejax.Dims to try the factory with, got Dims"),
        ({"dims": None}, "mine: dims must be a sequence of pejax.Dims to try the factory with, got None"),
    ],
)
def test_other_arguments_are_checked(given: dict, message: str) -> None:
    with types_unchecked(), pytest.raises(TypeError, match=message):
        inspect.unwrap(register_encoding)("mine", turned, **given)


def test_a_name_is_taken_once() -> None:
    first = register_encoding("mine", steep)
    assert register_encoding("mine", steep) is first
    with pytest.raises(ValueError, match=r"name must not be taken, got 'mine': .* or give replace=True"):
        register_encoding("mine", turned)
    assert register_encoding("mine", turned, replace=True) is pejax.ENCODINGS["mine"]
    with pytest.raises(ValueError, match="name must not be taken, got 'rope'"):
        register_encoding("rope", turned, replace=True)
    for add in ("__setitem__", "setdefault"):
        with pytest.raises(TypeError, match=r"call pejax.register_encoding\(name, factory\)"):
            getattr(pejax.ENCODINGS, add)("other", steep)
    with pytest.raises(TypeError, match=r"call pejax.register_encoding\(name, factory\)"):
        pejax.ENCODINGS.update(other=steep)


def test_dims_of_your_own_are_tried() -> None:
    register_encoding("cubes", for_cubes, dims=[Dims(heads=2, head_dim=6, axes=3, extent=(2, 2, 2))])
    assert make_encoding("cubes", Dims(heads=2, head_dim=6, axes=3)).shift_invariant
    register_encoding("mine", lambda dims: None, dims=())
    with pytest.raises(TypeError, match=r"mine must return a pejax.Encoding, got NoneType"):
        make_encoding("mine", DIMS)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("mine(slope='steep')", "mine: slope must be float, got 'steep'"),
        ("mine(near=0.5)", "mine: near must be int, got 0.5"),
        ("mine(far=1)", "mine takes slope, near, extend; got 'far'"),
        ("mine.steep", "an encoding is written name or name"),
        ("mine:steep:far", "an encoding is written name or name"),
        ("mine:steep", r"unknown encoding 'mine:steep': call pejax.register_encoding\('mine:steep', factory\)"),
        ("mine:", "an encoding is written name or name"),
        (":mine", "an encoding is written name or name"),
    ],
)
def test_specs_of_registered_names_are_checked(spec: str, message: str) -> None:
    register_encoding("mine", steep)
    with pytest.raises((ValueError, TypeError), match=message):
        parse(spec)


def test_options_without_annotations_are_plain_values() -> None:
    seen = []

    def mine(dims, *, sizes=(1, 2), text="a:b", flag=False, any=None):
        seen.append((sizes, text, flag, any))
        return Encoding(shift_invariant=True)

    register_encoding("mine", mine, dims=())
    make_encoding("""mine(sizes=[3, [4]], text='x:y', flag=True, any="it's (a:b")""", DIMS)
    assert seen == [((3, (4,)), "x:y", True, "it's (a:b")]
    for spec in ("mine(any={'a': 1})", "mine(sizes={1, 2})"):
        with pytest.raises(TypeError, match="must be a plain value, got"):
            parse(spec)
