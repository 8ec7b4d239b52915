"""A wrong hook of one's own: every door names it, with the shapes, on sequences and grids, eagerly and traced."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import pejax
from pejax.models import Decoder, ViT, attention_module, decoder, vit

SEQUENCE = pejax.Dims(heads=2, head_dim=8, extent=4)
GRID = pejax.Dims(heads=2, head_dim=8, axes=2, extent=(2, 2))
Q = jnp.ones((1, 4, 2, 8))

HOOKS = {
    "half of the channels": ("rotate", lambda params, x, at: x[..., :4], "must return floats"),
    "nothing": ("rotate", lambda params, x, at: None, "must return floats .* got None"),
    "two arrays": ("rotate_keys", lambda params, x, at: (x, x), "must return floats .* got tuple of float32"),
    "broadcasting": ("rotate", lambda params, x, at: x * jnp.ones((3, 1)), r"failed at float32 \(1, 4, 2, 8\), int32"),
    "a refusal": ("rotate", lambda params, x, at: pejax.rope_apply(x, 1), "failed at float32"),
    "a truth value": (
        "distance_bias",
        lambda params, r: r < 0,
        r"must return \(R,\) = \(16,\) .* got bool",
    ),
    "rows": ("distance_bias", lambda params, r: jnp.ones(3), r"must return \(R,\) = \(16,\) at relative"),
    "a branch": ("distance_bias", lambda params, r: r if r.max() > 1 else -r, "failed at int32 .*TracerBool"),
    "a name": ("distance_bias", lambda params, r: params["slope"] * r, "reads 'slope', which its parameters lack"),
    "a row": ("bias", lambda params, q, k, i, j: jnp.ones(4), r"must return \(T, S\) = \(4, 4\), got float32 \(4,\)"),
    "a column": ("relative_values", lambda params, w, i, j: w[:, :1], r"must return \(T, D\) = \(4, 8\)"),
    "no dict": ("adapt", lambda params, extent: None, "must return a dict of parameters, got None"),
    "no constants": ("constants", lambda: 3, "must return a dict of parameters, got 3"),
}


def doors(dims, hook, function):
    encoding = pejax.Encoding(**{hook: function}, dims=dims)
    at = None if dims.axes == 1 else pejax.grid_positions(2, 2)
    where = {"positions": at, "extent": dims.extent}
    attend = lambda q: pejax.attend(encoding, q, q, q, **where)
    yield "attend", lambda: attend(Q)
    yield "jit", lambda: jax.jit(attend)(Q)
    yield "grad", lambda: jax.grad(lambda q: attend(q).sum())(Q)
    yield "reference", lambda: pejax.attend(encoding, Q, Q, Q, **where, implementation="reference")
    yield "attention_fn", lambda: pejax.attention_fn(encoding, **where)(Q, Q, Q)
    yield "module", lambda: attention_module(encoding, dims, nnx.Rngs(0))(Q, Q, Q)


@pytest.mark.parametrize("dims", [SEQUENCE, GRID], ids=["sequence", "grid"])
@pytest.mark.parametrize("name", HOOKS)
def test_a_wrong_hook_is_named_by_every_door(name, dims):
    hook, function, words = HOOKS[name]
    for door, call in doors(dims, hook, function):
        with pytest.raises((TypeError, ValueError), match=f"^your own {hook} hook .*lambda.* {words}") as refusal:
            call()
        assert "\n" not in str(refusal.value), door


@pytest.mark.parametrize("name", ["half of the channels", "broadcasting", "rows"])
def test_a_wrong_hook_is_named_by_models_and_explain(name):
    hook, function, _ = HOOKS[name]
    text = decoder(vocab=8, length=4, width=16, heads=2, layers=1, causal=False)
    image = vit(image_size=8, patch=4, width=16, heads=2, layers=1)
    own = [pejax.Encoding(**{hook: function}, dims=dims) for dims in (SEQUENCE, GRID)]
    for call in (
        lambda: Decoder(text, own[0], rngs=nnx.Rngs(0))(jnp.ones((1, 4), int)),
        lambda: ViT(image, own[1], rngs=nnx.Rngs(0))(jnp.ones((1, 8, 8, 1))),
        lambda: pejax.explain(own[0], SEQUENCE),
        lambda: pejax.explain(own[1], GRID),
    ):
        with pytest.raises((TypeError, ValueError), match=f"your own {hook} hook"):
            call()


def test_the_relative_positions_of_a_grid_are_said():
    own = pejax.Encoding(distance_bias=lambda params, relative: -jnp.abs(relative), dims=GRID)
    with pytest.raises(ValueError, match=r"\(R,\) = \(16,\) at relative \(R, A\) = \(16, 2\), got int32 \(16, 2\)"):
        pejax.attend(own, Q, Q, Q, positions=pejax.grid_positions(2, 2))


def test_an_extension_keeps_the_name_of_the_hook_below_it():
    own = pejax.Encoding(rotate=lambda params, x, at: x * jnp.ones((3, 1)), dims=SEQUENCE)
    extended = pejax.extend_encoding(own, SEQUENCE, pejax.extensions.pi())
    with pytest.raises((TypeError, ValueError), match=r"rotate hook .* failed at"):
        pejax.attend(extended, Q, Q, Q)


def test_what_a_kernel_cannot_is_not_the_fault_of_a_hook():
    def refusing(params, x, at):
        raise NotImplementedError("later")

    with pytest.raises(NotImplementedError, match=r"^later$"):
        pejax.attend(pejax.Encoding(rotate=refusing, dims=SEQUENCE), Q, Q, Q)
