"""Rotary encodings: the laws of rotation, the frequencies, wrong input, and phases inside a whole model."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pejax import (
    Dims,
    Encoding,
    adapt,
    dot_product_attention,
    make_encoding,
    pairing_permutation,
    rope_apply,
    rope_axial_frequencies,
    rope_frequencies,
    rope_mixed_frequencies,
)
from pejax._ops.linear_rotation import rotate_linear
from pejax._ops.rotary import _halves_selected, rotate_pairs
from pejax.testing import assert_shift_invariant
from tests.support.biases import types_unchecked
from tests.support.cases import slow
from tests.support.peers import peer

draw = np.random.default_rng(0)
X = draw.normal(size=(2, 6, 4, 12)).astype(np.float32)
GRID = np.stack(np.divmod(np.arange(6, dtype=np.int32), 3), axis=-1)  # 2 rows of 3


def rotation(x: np.ndarray, angles: np.ndarray, pairing: str = "interleaved") -> np.ndarray:
    """Rotate the pairs of x by angles that broadcast to `(*B, T, H, F)`, in float64 complex numbers."""
    half = x.shape[-1] // 2
    first, second = (x[..., :half], x[..., half:]) if pairing == "half" else (x[..., 0::2], x[..., 1::2])
    turned = (first.astype(np.float64) + 1j * second) * np.exp(1j * angles)
    axis = -2 if pairing == "half" else -1
    return np.stack([turned.real, turned.imag], axis).reshape(x.shape)


def apply(x: np.ndarray, positions: np.ndarray, frequencies: np.ndarray, **options: object) -> jax.Array:
    return rope_apply(jnp.asarray(x), positions, frequencies, **options)


def rotate(encoding: Encoding, params: dict, x: np.ndarray, positions: np.ndarray) -> jax.Array:
    return encoding.rotate(params, jnp.asarray(x), jnp.asarray(positions))


# Laws


def test_the_needle_walks_around():
    needle = np.array([1.0, 0.0], np.float32).reshape(1, 1, 2)
    quarter = np.array([np.pi / 2], np.float32)
    walk = [apply(needle, np.array([m], np.int32), quarter)[0, 0] for m in range(5)]
    np.testing.assert_allclose(walk, [[1, 0], [0, 1], [-1, 0], [0, -1], [1, 0]], atol=3e-7)


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_matrices_compose_and_equal_complex_numbers(pairing):
    """R_m is what rotates the unit vectors: R_m^T R_n = R_{n-m}, and R_m x = exp(i m f) x over the pairs."""
    frequencies = rope_frequencies(12)

    def matrix(m: int) -> np.ndarray:
        basis = np.eye(12, dtype=np.float32)[None]  # the unit vectors as 12 heads of one token
        return np.asarray(apply(basis, np.array([m], np.int32), frequencies, pairing=pairing))[0].T

    for m, n in [(0, 5), (7, 3), (1000, 31)]:
        np.testing.assert_allclose(matrix(m).T @ matrix(n), matrix(n - m), atol=1e-6)
    positions = np.array([0, 1, 2, -3, 500, 70000], np.int32)
    expected = rotation(X, positions[:, None, None] * frequencies.astype(np.float64), pairing)
    np.testing.assert_allclose(apply(X, positions, frequencies, pairing=pairing), expected, atol=2e-6)


@pytest.mark.parametrize("rotary_dim", [None, 8])
def test_pairings_are_one_permutation_apart(rotary_dim):
    """On channels to the bit, and on weights: permuted W_q and W_k give the same logits."""
    options = "" if rotary_dim is None else f", rotary_dim={rotary_dim}"
    half, interleaved = (
        make_encoding(f"rope(pairing={pairing!r}{options})", Dims(heads=4, head_dim=12))
        for pairing in ("half", "interleaved")
    )
    order = pairing_permutation(12, source="interleaved", target="half", rotary_dim=rotary_dim)
    back = pairing_permutation(12, source="half", target="interleaved", rotary_dim=rotary_dim)
    np.testing.assert_array_equal(order[back], np.arange(12))
    positions = np.arange(6, dtype=np.int32)
    turned = rotate(interleaved, {}, X, positions)
    np.testing.assert_array_equal(rotate(half, {}, X[..., order], positions), turned[..., order])
    frequencies = rope_frequencies(12, rotary_dim=rotary_dim)
    np.testing.assert_array_equal(apply(X, positions, frequencies), turned)
    np.testing.assert_array_equal(apply(X[..., order], positions, frequencies, pairing="half"), turned[..., order])
    weights = draw.normal(size=(2, 5, 4, 12)).astype(np.float32)
    tokens = draw.normal(size=(6, 5)).astype(np.float32)
    logits = [
        np.einsum("thd,shd->hts", *(rotate(encoding, {}, np.einsum("tc,chd->thd", tokens, w), positions) for w in pair))
        for encoding, pair in ((interleaved, weights), (half, weights[..., order]))
    ]
    np.testing.assert_allclose(*logits, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_partial_rotation_turns_the_first_channels_only(pairing):
    encoding = make_encoding(f"rope(rotary_dim=4, pairing={pairing!r}, base=100)", Dims(heads=4, head_dim=12))
    positions = np.arange(6, dtype=np.int32)
    out = np.asarray(rotate(encoding, {}, X, positions))
    np.testing.assert_array_equal(out[..., 4:], X[..., 4:])
    expected = rotation(X[..., :4], positions[:, None, None] * np.array([1, 0.1]), pairing)
    np.testing.assert_allclose(out[..., :4], expected, atol=1e-6)
    frequencies = rope_frequencies(12, rotary_dim=4, base=100.0)
    np.testing.assert_allclose(frequencies, [1, 0.1], rtol=1e-7)
    np.testing.assert_array_equal(apply(X, positions, frequencies, pairing=pairing), out)


@pytest.mark.parametrize("rotary_dim", [slow(12), 8])
@pytest.mark.parametrize("dtype", [slow("float64"), "float32", slow("float16"), "bfloat16"])
def test_halves_are_turned_in_one_pass(dtype, rotary_dim):
    """Not by a concatenation, which XLA:CPU computes in a loop for each part; what passes stays, NaN or not."""
    positions, frequencies = np.arange(6, dtype=np.int32), rope_frequencies(rotary_dim)
    turn = lambda x: rope_apply(x, positions, frequencies, pairing="half")
    with jax.enable_x64(dtype == "float64"):
        x = jnp.asarray(X / 3, dtype).at[0, 0, 0, rotary_dim:].set(np.nan)
        out, pull = jax.vjp(turn, x)
        [gradient] = pull(out)
        compiled = jax.jit(lambda x, g: jax.vjp(turn, x)[1](g)).lower(x, x).compile().as_text()
    assert not re.search(r"\[2,6,.* concatenate\(", compiled)
    assert out.dtype == gradient.dtype == x.dtype
    x, out, gradient = (np.asarray(array, np.float64) for array in (x, out, gradient))
    for result, turns in ((out, 1), (gradient, 0)):
        np.testing.assert_array_equal(result[..., rotary_dim:], x[..., rotary_dim:])
        angles = turns * np.multiply.outer(positions, frequencies.astype(np.float64))[:, None]
        expected = rotation(x[..., :rotary_dim], angles, "half")
        eps = max(float(jnp.finfo(dtype).eps), 2e-7)
        np.testing.assert_allclose(result[..., :rotary_dim], expected, atol=4 * eps)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rotary_dim", [12, 8])
def test_halves_are_concatenated_on_a_gpu_to_the_same_numbers(dtype, rotary_dim):
    x, angles = (
        jnp.asarray(X, dtype)[:, :, :, None],
        0.3 * jnp.arange(6.0)[:, None, None, None] + jnp.arange(rotary_dim / 2),
    )
    tables = jnp.cos(angles), jnp.sin(angles)
    np.testing.assert_array_equal(rotate_linear(x, *tables, pairing="half"), _halves_selected(x, *tables))
    lower = (
        jax.jit(functools.partial(rotate_pairs, pairing="half"))
        .trace(x[:, :, :, 0], *(t[..., 0, :] for t in tables))
        .lower
    )
    on_gpu, on_cpu = (lower(lowering_platforms=(name,)).as_text() for name in ("cuda", "cpu"))
    assert "concatenate" in on_gpu
    assert "select" not in on_gpu
    assert "select" in on_cpu


@pytest.mark.slow
def test_on_a_grid_rope_counts_in_raster_order():
    """Row 1, column 2 of a grid three wide is token 5, whatever integer type holds it; a new grid has new strides."""
    flat, grid = (make_encoding("rope", Dims(heads=4, head_dim=12, axes=axes)) for axes in (1, 2))
    expected = rotate(flat, {}, X, np.arange(6, dtype=np.int32))
    for kind in (np.int8, np.int32, np.float32):
        out = rotate(grid, grid.adapt({}, (2, 3)), X, GRID.astype(kind))
        np.testing.assert_allclose(out, expected, atol=1e-6)
    wide = rotate(grid, grid.adapt({}, (2, 1000)), X, GRID.astype(np.int8))
    np.testing.assert_allclose(wide, rotate(flat, {}, X, GRID @ np.array([1000, 1], np.int32)), atol=1e-6)


def test_the_attention_factor_multiplies_cos_and_sin():
    positions, frequencies = np.arange(6, dtype=np.int32), rope_frequencies(12)
    plain = np.asarray(apply(X, positions, frequencies))
    np.testing.assert_allclose(
        apply(X, positions, frequencies, attention_factor=1.5), 1.5 * plain, rtol=1e-5, atol=1e-6
    )
    factors = np.linspace(1, 2, 6, dtype=np.float32)
    scaled = apply(X, positions, frequencies, attention_factor=factors)
    np.testing.assert_allclose(scaled, plain * np.repeat(factors, 2), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_key_heads_serve_consecutive_query_heads():
    """Query head h turns by the frequencies of key head h // (H/K)."""
    frequencies = draw.normal(size=(2, 1, 6)).astype(np.float32)
    positions = np.arange(6, dtype=np.int32)
    out = apply(X, positions, frequencies)
    for head in range(4):
        alone = apply(X[:, :, head : head + 1], positions, frequencies[head // 2, 0])
        np.testing.assert_allclose(out[:, :, head : head + 1], alone, atol=1e-6)


# Frequencies


def test_frequencies_of_one_axis():
    np.testing.assert_array_equal(rope_frequencies(8, base=16.0), np.array([1, 0.5, 0.25, 0.125], np.float32))
    exact = [10000 ** (-2 * i / 128) for i in range(64)]
    np.testing.assert_array_equal(rope_frequencies(128), np.array(exact, np.float32))


def test_frequencies_of_axes_in_either_order():
    concat = [[1, 0.5, 0, 0], [0, 0, 1, 0.5]]
    alternate = [[1, 0, 0.5, 0], [0, 1, 0, 0.5]]
    np.testing.assert_array_equal(rope_axial_frequencies(8, base=4.0), np.array(concat, np.float32))
    np.testing.assert_array_equal(
        rope_axial_frequencies(8, base=4.0, layout="alternate"), np.array(alternate, np.float32)
    )
    np.testing.assert_array_equal(rope_axial_frequencies(8, axes=1, base=16.0)[0], rope_frequencies(8, base=16.0))
    volume = rope_axial_frequencies(12, axes=3, base=4.0)
    np.testing.assert_array_equal(volume, np.kron(np.eye(3), [1, 0.5]).astype(np.float32))


@pytest.mark.slow
@pytest.mark.parametrize("axes", [slow(1), 2, slow(3)])
def test_mixed_frequencies_start_along_the_columns_of_rotations(axes):
    heads, n = 64, 4
    drawn = rope_mixed_frequencies(jax.random.key(0), heads, 2 * axes * n, axes=axes, base=16.0)
    columns = np.asarray(drawn, np.float64).reshape(heads, axes, axes, n)
    for j in range(n):
        rotations = columns[..., j] * 2.0**j
        np.testing.assert_allclose(
            np.einsum("hac,had->hcd", rotations, rotations), np.tile(np.eye(axes), (heads, 1, 1)), atol=1e-5
        )
        np.testing.assert_allclose(np.linalg.det(rotations), 1, atol=1e-5)
    assert np.abs(rotations.mean(0)).max() < 0.4 or axes == 1, "directions must cover the sphere"
    other = rope_mixed_frequencies(jax.random.key(1), heads, 2 * axes * n, axes=axes, base=16.0)
    assert np.array_equal(drawn, other) == (axes == 1)


@pytest.mark.slow
def test_mixed_frequencies_of_any_head_spread_the_pairs_that_axes_do_not_divide():
    """As Mochi's heads of 128 on three axes: 64 pairs, of which the first column has 22 and the others 21."""
    for head_dim, counts in ((128, (22, 21, 21)), (64, (11, 11, 10)), (4, (1, 1, 0))):
        drawn = np.asarray(rope_mixed_frequencies(jax.random.key(0), 3, head_dim, axes=3, base=16.0), np.float64)
        magnitudes = np.concatenate([16.0 ** (-np.arange(count) / max(count, 1)) for count in counts])
        np.testing.assert_allclose(np.linalg.norm(drawn, axis=1), np.tile(magnitudes, (3, 1)), rtol=1e-5)
        directions, columns = drawn / magnitudes, np.repeat(np.arange(3), counts)
        cosines = np.einsum("hai,haj->hij", directions, directions)
        same_column = np.broadcast_to(columns[:, None] == columns, cosines.shape)
        np.testing.assert_allclose(cosines, same_column, atol=1e-5)


@pytest.mark.slow
def test_mixed_frequencies_on_a_video_are_trained_and_extended():
    dims = Dims(heads=4, head_dim=128, kv_heads=2, axes=3, extent=(3, 4, 4))
    encoding = make_encoding("rope_mixed", dims, "linear")
    params = encoding.init_layer(jax.random.key(0))
    assert params["frequencies"].shape == (2, 3, 64)
    assert_shift_invariant(make_encoding("rope_mixed", dims), params, dims)
    adapted = adapt(encoding, params, (6, 4, 4))["extended"]
    np.testing.assert_allclose(adapted[:, 0] * 2, params["frequencies"][:, 0], rtol=1e-6)
    np.testing.assert_array_equal(adapted[:, 1:], params["frequencies"][:, 1:])


@pytest.mark.slow
def test_mixed_frequencies_are_drawn_per_key_head_and_layer():
    encoding = make_encoding("rope_mixed", Dims(heads=4, head_dim=12, kv_heads=2, axes=2))
    assert encoding.init(jax.random.key(0)) == {}
    frequencies = encoding.init_layer(jax.random.key(0))["frequencies"]
    assert frequencies.shape == (2, 2, 6)
    assert not np.allclose(frequencies[0], frequencies[1])


# Phases inside a model


def model(params: dict, x: jax.Array, positions: jax.Array, frequencies: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Run two layers of rotary attention over one sequence; return a loss and the rotated probes of both layers."""

    def layer(x: jax.Array, kernels: jax.Array) -> tuple[jax.Array, jax.Array]:
        q, k, v = jnp.einsum("tc,nchd->nthd", x, kernels.astype(x.dtype))
        probe = jnp.zeros_like(q).at[..., 0::2].set(1)
        turned = apply(probe, positions, frequencies)
        q, k = (apply(heads, positions, frequencies) for heads in (q, k))
        out = dot_product_attention(q, k, v, positions=positions, causal=True)
        return x + out.reshape(x.shape), turned

    x, turned = jax.lax.scan(layer, x, params["kernels"])
    return jnp.sum(jnp.square(x.astype(jnp.float32))), turned


@pytest.mark.slow
@pytest.mark.parametrize("kind", [jnp.float32, slow(jnp.bfloat16)])
def test_phases_survive_a_jitted_vmapped_differentiated_model(kind):
    """Up to 2^31, x64 off: rotated unit vectors are cos and sin of the float64 product, rounded once to x.dtype."""
    positions = np.stack([np.arange(first, first + 8, dtype=np.int32) for first in (0, 10**6, 2**24 - 7, 2**31 - 8)])
    frequencies = rope_frequencies(8)
    params = {"kernels": jnp.asarray(draw.normal(size=(2, 3, 8, 1, 8)), jnp.float32)}
    x = jnp.asarray(draw.normal(size=(4, 8, 8)), kind)
    batched = jax.vmap(jax.value_and_grad(model, argnums=(0, 3), has_aux=True), (None, 0, 0, None))
    (_, turned), gradients = jax.jit(batched)(params, x, positions, jnp.asarray(frequencies))
    assert turned.dtype == kind
    angles = positions[..., None].astype(np.float64) * frequencies.astype(np.float64)
    exact = np.stack([np.cos(angles), np.sin(angles)], -1).reshape(4, 1, 8, 1, 8)
    error = np.abs(np.asarray(turned.astype(jnp.float32), np.float64) - exact)
    assert np.all(error <= (2e-6 if kind == jnp.float32 else 2e-6 + 2.0**-8 * np.abs(exact)))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradients))


@pytest.mark.parametrize("kind", [jnp.bfloat16, jnp.float16])
def test_low_precision_is_rounded_once(kind):
    low = jnp.asarray(X, kind)
    exact = rope_apply(low.astype(jnp.float32), np.arange(6, dtype=np.int32), rope_frequencies(12))
    np.testing.assert_array_equal(
        rope_apply(low, np.arange(6, dtype=np.int32), rope_frequencies(12)), exact.astype(kind)
    )


@pytest.mark.slow
def test_gradients_are_those_of_the_exact_rotation():
    """With respect to x, mixed frequencies and fractional positions, against float64 at positions near 10^5."""
    frequencies = draw.normal(size=(2, 2, 6)).astype(np.float32)
    positions = (100000 + draw.normal(size=(2, 6, 2)) * 50).astype(np.float32)
    weight = draw.normal(size=X.shape).astype(np.float32)
    loss = lambda x, p, f: jnp.sum(weight * apply(x, p, f))
    of_x, of_p, of_f = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(X, positions, frequencies)
    p, f = positions.astype(np.float64), np.repeat(frequencies.astype(np.float64), 2, axis=0)
    angles = np.einsum("bta,haf->bthf", p, f)
    np.testing.assert_allclose(of_x, rotation(weight, -angles), atol=3e-6)
    slope = (weight * rotation(X, angles + np.pi / 2)).reshape(2, 6, 4, 6, 2).sum(-1)
    np.testing.assert_allclose(of_p, np.einsum("bthf,haf->bta", slope, f), rtol=1e-4, atol=1e-4)
    by_key_head = np.einsum("bthf,bta->haf", slope, p).reshape(2, 2, 2, 6).sum(1)
    np.testing.assert_allclose(of_f, by_key_head, rtol=1e-4, atol=10)


# Wrong input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rope_frequencies(7), "head_dim must be even and at least 2, got 7"),
        (lambda: rope_frequencies(8, rotary_dim=3), "rotary_dim must be even and from 2 to head_dim=8, got 3"),
        (lambda: rope_frequencies(8, rotary_dim=10), "rotary_dim must be even and from 2 to head_dim=8, got 10"),
        (lambda: rope_frequencies(8, base=-1.0), "base must be a finite number above 0, got -1.0"),
        (lambda: rope_axial_frequencies(6), "head_dim must be a multiple of 2·axes = 4, got 6"),
        (lambda: rope_axial_frequencies(6, axes=0), "axes must be at least 1, got 0"),
        (lambda: rope_axial_frequencies(8, layout="zigzag"), "layout must be one of concat, alternate, got 'zigzag'"),
        (lambda: rope_mixed_frequencies(jax.random.key(0), 2, 7), "head_dim must be even and at least 2, got 7"),
        (lambda: rope_mixed_frequencies(jax.random.key(0), 0, 8), "heads and axes must be at least 1, got heads=0"),
        (
            lambda: pairing_permutation(8, source="llama", target="half"),
            "source must be one of interleaved, half, got 'llama'",
        ),
    ],
)
def test_bad_frequencies_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("spec", "axes", "message"),
    [
        ("rope", 1, "head_dim must be even and at least 2, got 7"),
        ("rope_axial", 2, "head_dim must be a multiple of 2·axes = 4, got 7"),
        ("rope_mixed", 2, "head_dim must be even and at least 2, got 7"),
        ("rope(pairing='neox')", 1, "pairing must be one of interleaved, half, got 'neox'"),
        ("rope_axial(indexing='yx')", 2, "indexing must be one of ij, xy, got 'yx'"),
        ("rope_mixed(base=0)", 2, "base must be a finite number above 0, got 0"),
    ],
)
def test_bad_factories_are_named(spec, axes, message):
    head_dim = 7 if message.endswith("7") else 8
    with pytest.raises(ValueError, match=message):
        make_encoding(spec, Dims(heads=4, head_dim=head_dim, width=32, axes=axes))


@pytest.mark.parametrize(
    ("positions", "frequencies", "options", "message"),
    [
        ((5,), (6,), {}, r"must be \(6,\) or \(2, 6\), got \(5,\)"),
        ((6, 2), (6,), {}, r"on 1 axes must be \(6,\) or \(2, 6\), got \(6, 2\)"),
        ((3, 6), (6,), {}, r"got \(3, 6\)"),
        ((6,), (2, 6), {}, r"on 2 axes must be \(6, 2\) or \(2, 6, 2\), got \(6,\)"),
        ((6, 3), (2, 6), {}, r"got \(6, 3\)"),
        ((6,), (7,), {}, "frequencies must be from 1 to head_dim/2 = 6 of x .*, got 7"),
        ((6,), (3, 1, 6), {}, "heads of x must be a multiple of the frequencies' heads, got 4 and 3"),
        ((6,), (6,), {"pairing": "full"}, "pairing must be one of interleaved, half, got 'full'"),
        ((6,), (6,), {"attention_factor": np.ones(4, np.float32)}, r"must be a number or \(6,\), got shape \(4,\)"),
    ],
)
def test_bad_rotations_are_named(positions, frequencies, options, message):
    with pytest.raises(ValueError, match=message):
        apply(X, np.zeros(positions, np.int32), np.ones(frequencies, np.float32), **options)


def test_an_odd_head_and_a_missing_grid_are_named():
    with types_unchecked(), pytest.raises(TypeError, match=r"x must be an array of floats .*, got int32"):
        rope_apply(jnp.ones((6, 4, 8), jnp.int32), jnp.arange(6))
    with pytest.raises(ValueError, match=r"even head_dim D, got shape \(2, 6, 4, 11\)"):
        apply(X[..., :11], np.arange(6, dtype=np.int32), rope_frequencies(8))
    grid = make_encoding("rope", Dims(heads=4, head_dim=12, axes=2))
    with pytest.raises(ValueError, match="rope on 2 axes needs a grid of 2 sizes as extent, got 9"):
        grid.adapt({}, 9)
    with pytest.raises(ValueError, match=r"positions must end in 2 axes, got shape \(6,\)"):
        rotate(grid, grid.adapt({}, (2, 3)), X, np.arange(6, dtype=np.int32))


# Peers

LENGTHS = [(0, 128), (2000, 2128), (130944, 131072)]


@pytest.mark.parity
@pytest.mark.parametrize(
    ("family", "spec", "options"),
    [
        (
            "llama",
            "rope(pairing='half', base=500000)",
            {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
        ),
        ("cohere", "rope", {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}),
        (
            "phi",
            "rope(pairing='half', rotary_dim=8)",
            {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}},
        ),
    ],
)
@pytest.mark.parametrize(("first", "end"), LENGTHS)
def test_transformers_rotary(family, spec, options, first, end):
    """Their rotation up to 128 tokens; beyond, where theirs drifts, float64 cos and sin of the frequencies they use."""
    torch, module = peer("torch"), peer(f"transformers.models.{family}.modeling_{family}")
    name = family.capitalize()
    config = getattr(module, f"{name}Config")(
        hidden_size=64, num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=131072, **options
    )
    rotary = getattr(module, f"{name}RotaryEmbedding")(config)
    positions = np.arange(first, end, dtype=np.int32)
    x = draw.normal(size=(2, 128, 4, 16)).astype(np.float32)
    inv_freq = rotary.inv_freq.numpy()
    turning = 2 * len(inv_freq)
    encoding = make_encoding(spec, Dims(heads=4, head_dim=16))
    if end <= 128:
        cos, sin = rotary(torch.zeros(1), torch.from_numpy(positions)[None].long())
        part = torch.from_numpy(x[..., :turning])
        theirs, _ = module.apply_rotary_pos_emb(part, part, cos, sin, unsqueeze_dim=2)
        np.testing.assert_allclose(rotate(encoding, {}, x, positions)[..., :turning], theirs.numpy(), atol=1e-5)
    else:
        pairing = "half" if "half" in spec else "interleaved"
        expected = rotation(x[..., :turning], positions[:, None, None] * inv_freq.astype(np.float64), pairing)
        ours = apply(x, positions, inv_freq, pairing=pairing)
        np.testing.assert_allclose(ours[..., :turning], expected, atol=2e-6)
    np.testing.assert_array_equal(rotate(encoding, {}, x, positions)[..., turning:], x[..., turning:])


@pytest.mark.parity
def test_transformers_gptj_partial_interleaved():
    torch, module = peer("torch"), peer("transformers.models.gptj.modeling_gptj")
    x = draw.normal(size=(1, 128, 4, 16)).astype(np.float32)
    sin, cos = module.create_sinusoidal_positions(128, 8).chunk(2, dim=-1)
    theirs = module.apply_rotary_pos_emb(torch.from_numpy(x[..., :8]), sin[None], cos[None]).numpy()
    ours = rotate(
        make_encoding("rope(rotary_dim=8)", Dims(heads=4, head_dim=16)), {}, x, np.arange(128, dtype=np.int32)
    )
    np.testing.assert_allclose(ours, np.concatenate([theirs, x[..., 8:]], -1), atol=1e-5)


def published_axial(x: np.ndarray, rows: int, columns: int, base: float) -> np.ndarray:
    """RoPE-Axial as the paper's code has it, in float64: the first half of the pairs by column, the other by row."""
    quarter = x.shape[-1] // 4
    theta = np.array([base ** (-4 * i / x.shape[-1]) for i in range(quarter)])
    token = np.arange(rows * columns)
    angles = np.concatenate([np.outer(token % columns, theta), np.outer(token // columns, theta)], axis=1)
    return rotation(x, angles[:, None])


def test_axial_is_the_published_one():
    """`indexing="xy", layout="concat"`, base 100; the equations' order is the same with the pairs dealt out in turn."""
    x = draw.normal(size=(2, 15, 2, 16)).astype(np.float32)
    grid = np.stack(np.divmod(np.arange(15, dtype=np.int32), 5), axis=-1)
    dims = Dims(heads=2, head_dim=16, axes=2)
    expected = published_axial(x, 3, 5, 100.0)
    np.testing.assert_allclose(
        rotate(make_encoding("rope_axial(indexing='xy')", dims), {}, x, grid), expected, atol=2e-6
    )
    swapped = rotate(make_encoding("rope_axial", dims), {}, x, grid[:, ::-1])
    np.testing.assert_allclose(swapped, expected, atol=2e-6)
    pairs = np.arange(8).reshape(2, 4).T.reshape(-1)  # of "concat", in the order of "alternate"
    deal = lambda array: array.reshape(2, 15, 2, 8, 2)[..., pairs, :].reshape(array.shape)
    alternate = rotate(make_encoding("rope_axial(indexing='xy', layout='alternate')", dims), {}, deal(x), grid)
    np.testing.assert_allclose(alternate, deal(expected), atol=2e-6)


@functools.cache
def published_mixed(angles: tuple[float, ...], head_dim: int, base: float) -> np.ndarray:
    """Return the published initial frequencies `(H, 2, F)`: magnitudes along an angle a head, then a right angle on."""
    magnitude = base ** (-4 * np.arange(head_dim // 4) / head_dim)
    heads = []
    for angle in angles:
        fx = np.concatenate([magnitude * np.cos(angle), magnitude * np.cos(angle + np.pi / 2)])
        fy = np.concatenate([magnitude * np.sin(angle), magnitude * np.sin(angle + np.pi / 2)])
        heads.append(np.stack([fx, fy]))
    return np.stack(heads)


def test_mixed_is_the_published_one():
    """The initial frequencies are theirs for some angle per head, and pairs turn by `x·fx + y·fy`."""
    encoding = make_encoding("rope_mixed", Dims(heads=2, head_dim=16, axes=2))
    params = encoding.init_layer(jax.random.key(5))
    frequencies = np.asarray(params["frequencies"], np.float64)
    angles = tuple(np.arctan2(frequencies[:, 1, 0], frequencies[:, 0, 0]))
    np.testing.assert_allclose(frequencies, published_mixed(angles, 16, 10.0), atol=1e-6)
    x = draw.normal(size=(15, 2, 16)).astype(np.float32)
    grid = np.stack(np.divmod(np.arange(15, dtype=np.int32), 5), axis=-1)
    fx, fy = frequencies[:, 0], frequencies[:, 1]
    expected = rotation(x, grid[:, :1, None] * fx + grid[:, 1:, None] * fy)
    np.testing.assert_allclose(rotate(encoding, params, x, grid), expected, atol=2e-6)
