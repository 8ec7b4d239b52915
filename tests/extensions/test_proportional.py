"""Tokens without a position keep their share of attention where `pi` reads a picture that is sampled finer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pejax import (
    ENCODINGS,
    Dims,
    Encoding,
    Hooks,
    TokenPositions,
    attend,
    attention_weights,
    dot_product_attention,
    explain_attention,
    extensions,
    grid_positions,
    init_params,
    make_encoding,
)
from pejax._attention.tpu import tpu_attention as tpu
from pejax._attention.tpu import tpu_tile as tpu_tile
from pejax._attention.xla import blockwise, cpu
from pejax._extensions.interpolation import interpolate_encoding
from tests.support.cases import close, normal, slow

TRAINED, FINER, TIMES, PREFIX = (3, 2), (6, 4), 4, 2
"""The trained grid, one with `TIMES` as many patches, and how many tokens without a position come before them."""
DIMS = Dims(heads=4, head_dim=12, kv_heads=2, axes=2, extent=TRAINED)
SPECS = (*ENCODINGS, "fire(signed=True)", "shaw(values=False)", "lookhere(fov=180)", "learned(factorized=True)")
IN_KERNELS = ("none", "fourier", "rope_axial", "rope_mixed", "sinusoidal")
"""Encodings without a bias: one at interpolated offsets on two axes is left to other implementations."""


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Let few tokens have several tiles."""
    monkeypatch.setattr(blockwise, "BLOCK", 8)
    monkeypatch.setattr(cpu, "BLOCK", 8)
    monkeypatch.setattr(tpu, "BLOCK", 16)
    monkeypatch.setattr(tpu_tile, "LANES", 8)


def prefixed(positions: jax.Array) -> TokenPositions:
    """Return tokens at these positions, with tokens without a position before them."""
    at = jnp.concatenate([jnp.full((PREFIX, 2), 3), positions])  # what stands there is read by nothing
    return TokenPositions(at, has_position=jnp.arange(len(at)) >= PREFIX)


def repeated(x: jax.Array) -> jax.Array:
    """Return `(T, ...)` with every token that has a position `TIMES` times, as a finer grid shows every patch."""
    return jnp.concatenate([x[:PREFIX], jnp.repeat(x[PREFIX:], TIMES, axis=0)])


def trained_and_finer(spec: str, implementation: str, extend: extensions.Extension | None = None) -> tuple:
    """Return the output and all gradients of attention to a grid, and to the same picture sampled finer under `pi`."""
    plain, finer = make_encoding(spec, DIMS), make_encoding(spec, DIMS, extend or extensions.pi())
    params = jax.jit(lambda key: init_params(plain, key))(jax.random.key(1))
    params = jax.tree.map(lambda leaf: leaf + 0.3 * normal(*leaf.shape), params)
    count, heads, kv_heads = PREFIX + 6, DIMS.heads, DIMS.kv_heads
    q, k, v = (normal(count, n, 12, seed=n) for n in (heads, kv_heads, kv_heads))
    weight, patches = normal(count, heads, 12, seed=9), grid_positions(*TRAINED)
    few, many = prefixed(patches), prefixed(2 * jnp.repeat(patches, TIMES, axis=0))

    def total(encoding: Encoding, extent: tuple, q_tokens: TokenPositions, keys: tuple, q, k, v, params):
        k_tokens, spread = keys
        options = {"extent": extent, "axes": 2, "embedded": True, "implementation": implementation}
        out = attend(
            encoding, q, spread(k), spread(v), params=params, positions=q_tokens, k_positions=k_tokens, **options
        )
        return jnp.sum(weight * out), out

    def both(*operands):
        one = jax.value_and_grad(total, argnums=(4, 5, 6, 7), has_aux=True)
        return (
            one(plain, TRAINED, few, (few, lambda x: x), *operands),
            one(finer, FINER, prefixed(2 * patches), (many, repeated), *operands),
        )

    return jax.jit(both)(q, k, v, params)


def ways() -> list:
    """Return every encoding with every implementation that serves it."""
    result = [(spec, way) for spec in SPECS for way in ("reference", "blockwise", "cpu")]
    result += [(spec, way) for spec in IN_KERNELS for way in ("gpu", "tpu")]
    return [pytest.param(*item, marks=() if item == ("alibi", "reference") else pytest.mark.slow) for item in result]


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "implementation"), ways())
def test_a_picture_sampled_finer_is_attended_to_as_the_trained_one(spec, implementation):
    """For placed and unplaced queries alike, in value and in every gradient."""
    (one, slopes), (other, finer_slopes) = trained_and_finer(spec, implementation)
    close(other, one, 1e-5)
    close(finer_slopes, slopes, 1e-4)


def finer_is_trained(spec: str = "alibi", implementation: str = "reference") -> None:
    """The law by itself, for mutants."""
    (one, slopes), (other, finer_slopes) = trained_and_finer(spec, implementation)
    close((other, finer_slopes), (one, slopes), 1e-4)


@pytest.mark.slow
def test_without_the_bias_the_patches_outvote_the_others():
    (_, one), _ = trained_and_finer("alibi", "reference")[0]
    (_, other), _ = trained_and_finer("alibi", "reference", extensions.pi(proportional=False))[1]
    assert jnp.max(jnp.abs(one - other)) > 0.05


@pytest.mark.slow
@pytest.mark.parametrize("slope", [None, 0.5])
@pytest.mark.parametrize("implementation", ["reference", slow("blockwise"), slow("cpu"), slow("gpu"), slow("tpu")])
def test_the_bias_counts_keys_past_a_soft_cap(implementation, slope):
    """A bias of ln 3 is the key three times, beside capped logits, and with another bias of the distance or without."""
    tokens = TokenPositions(jnp.arange(9), has_position=jnp.arange(9) > 1)
    q, k, v = (3.0 * normal(9, 2, 8, seed=seed) for seed in range(3))
    falls = lambda params, relative: -params["slope"] * jnp.abs(relative).astype(jnp.float32)
    distance = None if slope is None else jax.tree_util.Partial(falls, {"all": {"slope": slope}})
    number = jax.tree_util.Partial(lambda params: params["number"], {"all": {"number": np.log(3)}})
    options = {"positions": tokens, "soft_cap": 2.0, "implementation": implementation, "return_lse": True}
    result = dot_product_attention(q, k, v, hooks=Hooks(distance_bias=distance, unplaced_bias=number), **options)
    three = np.r_[0, 0, 0, 1, 1, 1, 2:9]
    thrice = jax.tree.map(lambda leaf: leaf[three], tokens)
    options |= {"k_positions": thrice, "hooks": Hooks(distance_bias=distance)}
    close(result, dot_product_attention(q, k[three], v[three], **options), 1e-5)


def the_bias_counts_keys() -> None:
    test_the_bias_counts_keys_past_a_soft_cap("reference", None)


@pytest.mark.slow
def test_the_weights_themselves_have_it_and_its_number_is_no_parameter():
    tokens = TokenPositions(jnp.arange(4), has_position=jnp.arange(4) > 0)
    q, k = normal(2, 4, 1, 8)

    def weights(number):
        hook = jax.tree_util.Partial(lambda params: params["number"], {"heads": {"number": number[None]}})
        return attention_weights(q, k, positions=tokens, hooks=Hooks(unplaced_bias=hook))

    plain = attention_weights(q, k, positions=tokens)
    raised = plain.at[..., 0].multiply(2.0)
    close(weights(jnp.log(2.0)), raised / raised.sum(-1, keepdims=True))
    assert not jnp.any(jax.jacobian(weights)(jnp.float32(0.5)))


@pytest.mark.slow
def test_without_such_keys_the_program_is_the_same():
    """On the pairs of a finer grid, and where the hook would be called: nothing of it is left."""
    patches = grid_positions(*FINER)
    x = normal(len(patches), 4, 12)

    def text(encoding: Encoding) -> str:
        run = lambda x: attend(encoding, x, x, x, positions=patches, extent=FINER, axes=2)
        return jax.jit(run).lower(x).as_text()

    for name in ("alibi", "rope_axial"):
        plain = make_encoding(name, DIMS)
        assert text(interpolate_encoding(plain, DIMS)) == text(interpolate_encoding(plain, DIMS, proportional=False))


def test_the_bias_is_the_logarithm_of_patches_per_trained_patch():
    larger = (
        (False, TRAINED, 1.0),
        (False, (6, 4), 4.0),
        (False, (6, 2), 2.0),
        (False, (2, 4), 2.0),
        (False, (3, 7), 3.5),
    )
    for stretch, extent, times in (*larger, (True, TRAINED, 1.0), (True, (1, 2), 1 / 3), (True, (6, 1), 1.0)):
        own = Encoding(unplaced_bias=lambda params: jnp.float32(0.5))
        encoding = interpolate_encoding(own, DIMS, stretch=stretch)
        params = encoding.adapt({}, extent)
        np.testing.assert_allclose(encoding.unplaced_bias(params.get("all", {})), 0.5 + np.log(times), rtol=1e-6)
    line = Dims(heads=2, head_dim=4, extent=8)
    assert make_encoding("t5", line, "pi").unplaced_bias is None
    assert make_encoding("t5", DIMS, "pi(proportional=False)").unplaced_bias is None
    twice = interpolate_encoding(make_encoding("alibi", DIMS, "pi"), DIMS)
    np.testing.assert_allclose(twice.unplaced_bias(twice.adapt({}, FINER)["all"]), np.log(4.0), rtol=1e-6)


def test_fused_kernels_leave_it_to_others():
    tokens = TokenPositions(jnp.arange(4), has_position=jnp.arange(4) > 0)
    x = jnp.ones((1, 4, 2, 64), jnp.bfloat16)
    hooks = Hooks(unplaced_bias=jax.tree_util.Partial(lambda params: jnp.float32(1.0), {}))
    text = explain_attention(x, x, x, positions=tokens, hooks=hooks, implementation="cudnn")
    assert "neither key_bias nor unplaced_bias" in text


@pytest.mark.parametrize("spec", [slow("rope"), "rope_axial", slow("rope_mixed")])
def test_on_grids_positions_of_rotations_are_scaled_axis_by_axis(spec):
    """Also where rotation goes by the raster index, which no single factor scales on both axes."""
    plain, scaled = make_encoding(spec, DIMS), make_encoding(spec, DIMS, "pi")
    params, x, at = init_params(plain, jax.random.key(0)), normal(24, 4, 12), grid_positions(6, 4)
    turned = scaled.rotate(scaled.adapt(params, (6, 4)), x, at)
    settled = params if plain.adapt is None else plain.adapt(params, TRAINED)
    close(turned, plain.rotate(settled, x, at / 2), 1e-5)
