"""LookHere: cones against the published inequalities, slopes by depth, and keys that stay hidden everywhere."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from pejax import (
    Dims,
    Sharding,
    TokenPositions,
    attend,
    attention_fn,
    attention_hooks,
    dot_product_attention,
    grid_positions,
    make_encoding,
)
from pejax.functions import lookhere_cones, lookhere_slopes
from pejax.models import ViT, vit
from pejax.models.configs import layer as records
from pejax.models.parts.attention import CrossContext, LayerContext
from pejax.models.parts.block import LayerKind
from pejax.models.stack.layer_scan import Layers
from tests.support.biases import compiled
from tests.support.cases import mostly_slow, normal, slow

lookhere_bias = compiled("lookhere_bias")
IMPLEMENTATIONS = ("reference", "blockwise", "cpu", "gpu", "tpu")

GRIDS = [(4, 4), (3, 5), (5, 3)]
TRIANGLES = {
    "right": lambda y, x: x >= abs(y),
    "left": lambda y, x: x <= -abs(y),
    "down": lambda y, x: y >= abs(x),
    "up": lambda y, x: y <= -abs(x),
}
HALVES = {
    "right": lambda y, x: x >= 0,
    "left": lambda y, x: x <= 0,
    "down": lambda y, x: y >= 0,
    "up": lambda y, x: y <= 0,
}
EITHER = lambda item, other: lambda y, x: TRIANGLES[item](y, x) | TRIANGLES[other](y, x)
BOTH = lambda *parts: lambda y, x: np.all([part(y, x) for part in parts], axis=0)
PUBLISHED = {
    "triangles": list(TRIANGLES.values()),
    "halves": list(HALVES.values()),
    "corners": [BOTH(HALVES[v], HALVES[h]) for v in ("up", "down") for h in ("left", "right")],
    "diagonals": [EITHER(v, h) for v in ("up", "down") for h in ("left", "right")],
    "eighths": [
        *(BOTH(TRIANGLES[v], HALVES[h]) for v in ("up", "down") for h in ("left", "right")),
        *(BOTH(TRIANGLES[h], HALVES[v]) for v in ("up", "down") for h in ("left", "right")),
    ],
}
"""What a head of each family sees, of a difference of rows and one of columns."""

SETS = {
    (4, 90): ["triangles"],
    (4, 180): ["halves"],
    (6, 90): ["triangles"],
    (8, 90): ["triangles", "corners"],
    (8, 180): ["halves", "diagonals"],
    (8, 45): ["eighths"],
    (12, 90): ["triangles", "corners"],
    (12, 180): ["halves", "diagonals"],
    (12, 45): ["eighths"],
    (16, 90): ["triangles", "corners", "halves"],
    (16, 180): ["halves", "diagonals", "triangles"],
    (16, 45): ["eighths", "triangles"],
}


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize(("heads", "fov"), SETS)
def test_every_head_sees_what_the_published_inequalities_say(heads, fov, grid):
    cones = lookhere_cones(heads, fov=fov)
    at = np.asarray(grid_positions(*grid))
    bias = np.asarray(lookhere_bias(at, at, jnp.full(heads, 2.0), cones))
    y, x = np.moveaxis(at[None] - at[:, None], -1, 0)
    expected = [cone(y, x) for family in SETS[heads, fov] for cone in PUBLISHED[family]]
    expected += [np.ones_like(y, bool)] * (heads - len(expected))
    seen = bias > -np.inf
    assert sorted(mask.tobytes() for mask in seen) == sorted(mask.tobytes() for mask in expected)
    np.testing.assert_allclose(bias[seen], np.broadcast_to(-2 * np.hypot(y, x), seen.shape)[seen], rtol=1e-6)
    assert seen[:, np.arange(len(at)), np.arange(len(at))].all(), "the own patch is in every cone"


@pytest.mark.parametrize(("fov", "family"), [(90, "triangles"), (180, "halves")])
def test_right_comes_first_then_left_down_and_up(fov, family):
    at = np.asarray(grid_positions(3, 5))
    seen = np.asarray(lookhere_bias(at, at, jnp.ones(4), lookhere_cones(4, fov=fov))) > -np.inf
    offset = np.moveaxis(at[None] - at[:, None], -1, 0)
    np.testing.assert_array_equal(seen, [cone(*offset) for cone in PUBLISHED[family]])


def test_slopes_by_depth_and_of_undirected_heads():
    cones = lookhere_cones(14)
    directed, undirected = [1.0] * 8, [2.0**-n for n in (1, 3, 5, 7, 1, 3)]
    for depth, first in ((0.0, 1.5), (0.5, 1.0), (1.0, 0.5)):
        np.testing.assert_allclose(lookhere_slopes(cones, depth=depth), [first * s for s in directed + undirected])


def test_cones_of_sequences_and_volumes():
    np.testing.assert_array_equal(lookhere_cones(4, 1)[..., 0], [[1], [-1], [0], [0]])
    np.testing.assert_array_equal(lookhere_cones(1, 1), 0)
    at = np.stack(np.meshgrid(*[np.arange(3)] * 3, indexing="ij"), -1).reshape(-1, 3)
    seen = np.asarray(lookhere_bias(at, at, jnp.ones(6), lookhere_cones(6, 3))) > -np.inf
    z, y, x = np.moveaxis(at[None] - at[:, None], -1, 0)
    parts = ((x, y, z), (-x, y, z), (y, x, z), (-y, x, z), (z, x, y), (-z, x, y))
    expected = [(a >= abs(b)) & (a >= abs(c)) for a, b, c in parts]
    assert sorted(mask.tobytes() for mask in seen) == sorted(mask.tobytes() for mask in expected)


IMAGE = Dims(heads=6, head_dim=4, axes=2, extent=(3, 5))
AT = grid_positions(3, 5)


def plain(encoding, q, at, soft_cap, prefix=0):
    """Return attention by the plain formula, in float64: weights, and the output where a token's value is itself."""
    heads = encoding.constants()["heads"]
    bias = np.asarray(lookhere_bias(at, at, heads["slope"], heads["normals"]), np.float64)
    bias[:, :prefix] = bias[:, :, :prefix] = 0
    logits = 0.5 * np.einsum("thd,shd->hts", *[np.asarray(q, np.float64)] * 2) + bias
    capped = logits if soft_cap is None else soft_cap * np.tanh(logits / soft_cap)
    exponents = np.where(bias == -np.inf, 0, np.exp(capped))
    weights = exponents / exponents.sum(-1, keepdims=True)
    return weights, np.einsum("hts,shd->thd", weights, q)


@pytest.mark.parametrize("soft_cap", [slow(None), 3.0])
@pytest.mark.parametrize("implementation", mostly_slow(IMPLEMENTATIONS, ["cpu"]))
def test_hidden_keys_stay_hidden_in_every_implementation(implementation, soft_cap):
    """Past a soft cap, too; with a prefix that all see; with finite gradients."""
    encoding = make_encoding("lookhere", IMAGE)
    at = jnp.concatenate([jnp.zeros((1, 2), jnp.int32), AT])
    tokens = TokenPositions(at, has_position=jnp.arange(16) > 0)
    q = normal(16, 6, 4)

    @jax.jit
    def run(q, slope):
        params = {"heads": {"slope": slope}}
        options = {"positions": tokens, "extent": (3, 5), "implementation": implementation, "soft_cap": soft_cap}
        out = attend(encoding, q, q, q, params=params, **options)
        return jnp.sum(jnp.sin(out)), out

    slope = encoding.constants()["heads"]["slope"]
    (_, out), gradients = jax.jit(jax.value_and_grad(run, (0, 1), has_aux=True))(q, slope)
    np.testing.assert_allclose(out, plain(encoding, q, at, soft_cap, prefix=1)[1], atol=2e-5)
    assert all(np.isfinite(leaf).all() for leaf in gradients)
    assert np.abs(gradients[1]).min() > 0


@pytest.mark.parametrize("implementation", mostly_slow(IMPLEMENTATIONS, ["cpu"]))
def test_a_query_that_sees_no_key_gives_zeros_and_one_that_sees_one_gives_its_value(implementation):
    encoding = make_encoding("lookhere", IMAGE)
    hooks = attention_hooks(encoding, {})
    q, k = normal(15, 6, 4), normal(5, 6, 4, seed=1)

    def total(q, k):
        out, lse = dot_product_attention(
            q, k, k, positions=AT + jnp.asarray([0, 10]), k_positions=AT[:5], hooks=hooks, soft_cap=2.0,
            return_lse=True, implementation=implementation,
        )  # fmt: skip
        return jnp.sum(out**2), (out, lse)

    (_, (out, lse)), gradients = jax.jit(jax.value_and_grad(total, (0, 1), has_aux=True))(q, k)
    np.testing.assert_array_equal(out[:, 0], 0.0)  # it looks to the right, where there is no key
    np.testing.assert_array_equal(lse[:, 0], -np.inf)
    assert np.abs(out[:, 1]).min() > 0
    assert all(np.isfinite(leaf).all() for leaf in gradients)


@pytest.mark.slow
def test_corner_heads_see_their_own_patch_alone():
    encoding = make_encoding("lookhere", IMAGE)
    q = normal(15, 6, 4)
    out = attend(encoding, q, q, q, positions=AT, soft_cap=1.0)
    np.testing.assert_allclose(out[4::5, 0], q[4::5, 0], rtol=1e-5)  # the last column, looking to the right


@pytest.mark.slow
@pytest.mark.parametrize("soft_cap", [None, 2.0])
@pytest.mark.parametrize("way", ["ring", "gather"])
def test_hidden_keys_stay_hidden_on_a_sharded_sequence(way, soft_cap):
    encoding = make_encoding("lookhere", Dims(heads=4, head_dim=4, axes=2, extent=(4, 4)))
    at, q = grid_positions(4, 4), normal(16, 4, 4)
    mesh = jax.make_mesh((4,), ("tokens",), devices=jax.devices()[:4])
    options = {"positions": at, "hooks": attention_hooks(encoding, {}), "soft_cap": soft_cap}

    def many(q):
        sharding = Sharding(mesh, sequence="tokens", method=way)
        result = dot_product_attention(q[None], q[None], q[None], sharding=sharding, **options)
        return jnp.sum(jnp.cos(result[0])), result[0]

    (_, out), slopes = jax.jit(jax.value_and_grad(many, has_aux=True))(q)
    one = lambda q: jnp.sum(jnp.cos(dot_product_attention(q, q, q, **options, implementation="reference")))
    np.testing.assert_allclose(out, plain(encoding, q, at, soft_cap)[1], atol=2e-5)
    np.testing.assert_allclose(slopes, jax.grad(one)(q), atol=2e-5)


def test_other_peoples_layers_hide_keys_past_a_soft_cap_too():
    encoding = make_encoding("lookhere", IMAGE)
    q = normal(15, 6, 4)
    out = attention_fn(encoding, {}, positions=AT, soft_cap=1.0)(q, q, q)
    np.testing.assert_allclose(out, plain(encoding, q, AT, 1.0)[1], atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("layers", [slow(1), 3])
def test_a_model_gives_every_layer_the_slopes_of_its_depth(layers):
    config = vit(width=24, heads=6, layers=layers, pe="lookhere", image_size=12, patch=4)
    model = ViT(config, rngs=nnx.Rngs(0))
    tokens, x = TokenPositions(grid_positions(3, 3)), normal(2, 9, 24)
    context = LayerContext({}, tokens, (3, 3))
    static, params = nnx.split(model.layers.blocks)
    output = jax.jit(lambda x: nnx.merge(*nnx.split(model.layers))(x, context)[0])(x)
    for layer in range(layers):
        encoding = make_encoding(f"lookhere(depth={layer / max(layers - 1, 1)})", config.dims)
        block = nnx.merge(static, jax.tree.map(lambda leaf: leaf[layer], params))  # noqa: B023
        x, _ = block(x, context._replace(shared=encoding.constants()))
    np.testing.assert_allclose(output, x, atol=2e-5)


@pytest.mark.slow
def test_cross_attention_has_the_slopes_of_its_depth():
    """Two decoder layers of a model are its layers one by one, each given the slopes of its depth by hand."""
    dims = Dims(heads=2, head_dim=4, extent=6)
    plain, slopes = make_encoding("none", dims), make_encoding("lookhere", dims)
    attention = records.AttentionConfig(heads=2, kv_heads=2, head_dim=4)
    block = records.LayerConfig(attention, records.MlpConfig(8, "gelu"), records.NormConfig(), cross=attention)
    kinds = [LayerKind(block, dims, plain, (dims, slopes))] * 2
    layers = Layers(kinds, (plain,), dtype="float32", rngs=nnx.Rngs(0))
    tokens, x, states = TokenPositions(jnp.arange(6)), normal(1, 6, 8), normal(1, 6, 8)
    context = LayerContext({}, tokens, 6, cross_context=CrossContext(states, {}, tokens, tokens, 6))
    static, params = nnx.split(layers.blocks)
    output, flat = layers(x, context)[0], x
    for layer in range(2):
        constants = make_encoding(f"lookhere(depth={float(layer)})", dims).constants()
        block = nnx.merge(static, jax.tree.map(lambda leaf: leaf[layer], params))  # noqa: B023
        x, _ = block(x, context._replace(cross_context=context.cross_context._replace(shared=constants)))
        flat, _ = block(flat, context)
    np.testing.assert_allclose(output, x, atol=2e-5)
    assert jnp.max(jnp.abs(output - flat)) > 1e-3


@pytest.mark.parametrize(
    ("spec", "heads", "words"),
    [
        ("lookhere", 3, "heads must be at least 4 on 2 axes with fov=90, got 3"),
        ("lookhere(fov=45)", 6, "heads must be at least 8 on 2 axes with fov=45, got 6"),
        ("lookhere(slope_scale=0)", 4, "slope_scale must be positive, got 0"),
        ("lookhere(depth=2)", 4, "depth must be from 0 to 1, got 2"),
    ],
)
def test_bad_options_are_refused(spec, heads, words):
    with pytest.raises(ValueError, match=words):
        make_encoding(spec, Dims(heads=heads, head_dim=4, axes=2))


@pytest.mark.slow
def test_eighths_are_for_two_axes():
    with pytest.raises(ValueError, match="fov must be 90 or 180 on 3 axes, got 45"):
        lookhere_cones(12, 3, fov=45)
    with pytest.raises(ValueError, match="cones must have normals of 2 axes"):
        lookhere_bias(AT, AT, jnp.ones(2), lookhere_cones(2, 1))
