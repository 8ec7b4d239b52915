"""What `extent` is where it is not given: the table of docs/attention.md, door by door. Everything is traced alone."""

import inspect
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import pejax
from pejax import Dims, Encoding, models

PAGE = Path(__file__).parents[2] / "docs" / "attention.md"
Q = jnp.ones((2, 9, 2, 8))
IDS = jnp.zeros((2, 9), jnp.int32)
FUNCTIONS = {
    "attend": lambda encoding, **known: pejax.attend(encoding, Q, Q, Q, **known),
    "attention_fn": lambda encoding, **known: pejax.attention_fn(encoding, **known)(Q, Q, Q),
    "linear_attention": lambda encoding, **known: pejax.linear_attention(encoding, Q, Q, Q, **known),
}
SIZES = {"heads": 2, "width": 16, "layers": 1}
TEXT = models.decoder(vocab=8, **SIZES)
IMAGE = models.vit(image_size=8, patch=4, **SIZES)
NOISE = models.dit(image_size=8, patch=4, **SIZES)


def extents(call, axes=1, extent=None) -> list:
    """Return what `adapt` receives in a call with an encoding."""
    seen = []

    def adapt(params, extent):
        seen.append(extent)
        return params

    dims = Dims(heads=2, head_dim=8, axes=axes, extent=extent)
    encoding = Encoding(adapt=adapt, rotate=lambda params, x, positions: x, dims=dims)
    jax.eval_shape(lambda: call(encoding))
    return seen


@pytest.mark.parametrize("door", FUNCTIONS)
def test_a_function_takes_the_number_of_keys_and_asks_where_positions_are_given(door):
    call = FUNCTIONS[door]
    assert set(extents(call)) == {9}
    assert set(extents(lambda encoding: call(encoding, positions=jnp.arange(9), extent=12))) == {12}
    with pytest.raises(ValueError, match="extent must be given, got None"):
        extents(lambda encoding: call(encoding, positions=jnp.arange(9)))
    said = " ".join(inspect.getdoc(getattr(pejax, door)).split())
    assert "None = the number of keys; allowed for an encoding that adapts only if no positions are given" in said


def test_adapt_asks_for_it():
    with pytest.raises(ValueError, match="extent must be given, got None"):
        extents(lambda encoding: pejax.adapt(encoding, {}))


def test_models_take_the_length_of_a_row_or_the_grid_of_an_image():
    rngs = lambda: nnx.Rngs(0)
    module = lambda encoding: models.attention_module(encoding, encoding.dims, rngs())(Q, Q, Q)
    assert set(extents(module)) == {9}
    assert set(extents(module, 2, (3, 3))) == {(3, 3)}
    assert set(extents(lambda encoding: models.Decoder(TEXT, encoding, rngs=rngs())(IDS))) == {9}
    image = jnp.ones((1, 12, 8, 1))
    assert set(extents(lambda encoding: models.ViT(IMAGE, encoding, rngs=rngs())(image), 2, (2, 2))) == {(3, 2)}
    noisy = lambda encoding: models.DiT(NOISE, encoding, rngs=rngs())(image, jnp.ones(1))
    assert set(extents(noisy, 2, (2, 2))) == {(3, 2)}


def test_the_table_names_every_door():
    section = PAGE.read_text().split("### What `extent` means")[1].split("\n## ")[0]
    called = {name: getattr(pejax, name) for name in pejax.__all__}
    of_models = {
        name: item for name, item in vars(models).items() if inspect.isclass(item) and "__call__" in vars(item)
    }
    called |= {name: item.__call__ for name, item in of_models.items()}
    no_default = inspect.Parameter("extent", inspect.Parameter.KEYWORD_ONLY)
    optional = lambda item: inspect.signature(item).parameters.get("extent", no_default).default is None
    doors = {name for name, item in called.items() if inspect.isfunction(item) and optional(item)}
    assert doors >= {"attend", "adapt", "ViT", "Decoder"}
    assert not [name for name in doors if f"`{name}`" not in section and f"`pejax.{name}`" not in section]
