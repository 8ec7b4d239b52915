"""What `extent` is where it is not given: the table of docs/attention.md, door by door."""

import inspect
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import pejax
from pejax import Dims, attend, attention_fn, linear_attention, models
from pejax.models import attention_module

PAGE = Path(__file__).parents[2] / "docs" / "attention.md"
ROPE = pejax.encodings.rope(Dims(heads=2, head_dim=8, extent=4, causal=True), extend=pejax.extensions.dynamic_ntk())
Q = jax.random.normal(jax.random.key(0), (2, 9, 2, 8))
DOORS = {
    "attend": lambda **options: attend(ROPE, Q, Q, Q, **options),
    "attention_fn": lambda **options: attention_fn(ROPE, **options)(Q, Q, Q),
    "linear_attention": lambda **options: linear_attention(ROPE, Q, Q, Q, **options),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_function_takes_the_number_of_keys_and_asks_where_positions_are_given(door):
    call, slots = DOORS[door], jnp.arange(9)
    assert jnp.array_equal(call(), call(extent=9))
    assert not jnp.allclose(call(), call(extent=18))
    with pytest.raises(ValueError, match="extent must be given, got None"):
        call(positions=slots)
    said = " ".join(inspect.getdoc(getattr(pejax, door)).split())
    assert "None = the number of keys; allowed for an encoding that adapts only if no positions are given" in said


def test_adapt_asks_for_it():
    with pytest.raises(ValueError, match="extent must be given, got None"):
        pejax.adapt(ROPE, {})


def test_the_module_takes_the_length_or_the_trained_grid():
    module = attention_module(ROPE, ROPE.dims, nnx.Rngs(0))
    assert jnp.allclose(module(Q, Q, Q), DOORS["attend"](extent=9), atol=1e-6)
    grid = Dims(heads=2, head_dim=8, axes=2, extent=(3, 3))
    axial = pejax.encodings.rope_axial(grid, extend=pejax.extensions.pi())
    known = {"positions": pejax.grid_positions(3, 3), "extent": (3, 3)}
    assert jnp.allclose(attention_module(axial, grid, nnx.Rngs(0))(Q, Q, Q), attend(axial, Q, Q, Q, **known), atol=1e-6)


def test_the_table_names_every_door():
    section = PAGE.read_text().split("### What `extent` means")[1].split("\n## ")[0]
    called = {name: getattr(pejax, name) for name in pejax.__all__}
    called |= {
        name: one.__call__ for name, one in vars(models).items() if inspect.isclass(one) and "__call__" in vars(one)
    }
    optional = lambda one: (
        inspect.signature(one).parameters.get("extent", inspect.Parameter("extent", 1)).default is None
    )
    doors = {name for name, one in called.items() if inspect.isfunction(one) and optional(one)}
    assert doors >= {"attend", "adapt", "ViT", "Decoder"}
    assert not [name for name in doors if f"`{name}`" not in section and f"`pejax.{name}`" not in section]
