"""Linear attention with rotated features, against loops over pairs in float64."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pejax
from pejax import Dims, Encoding, TokenPositions, grid_positions, linear_attention, make_encoding, rope_frequencies
from pejax._attention import linear
from tests.support.cases import mostly_slow

D = 4
QUICK = {"xla_backend_optimization_level": "0"}
FREQUENCIES = rope_frequencies(D, base=30.0)
ROPE = Encoding(rotate=make_encoding("rope(base=30.0)", Dims(2, D)).rotate, shift_invariant=True)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Let short sequences have many chunks."""
    monkeypatch.setattr(linear, "CHUNK", 4)


def turned(x, position):
    """Rotate pairs of one vector."""
    turn = np.exp(1j * position * FREQUENCIES.astype(np.float64)) * (x[::2] + 1j * x[1::2])
    return np.stack([turn.real, turn.imag], axis=-1).ravel()


def oracle(case, q, k, v, q_fields, k_fields):
    """Attend by the definition, one pair at a time."""
    positive = lambda x: np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))
    (b, t, h, _), (_, s, heads, _) = q.shape, k.shape
    output = np.zeros_like(q)
    for n, i, j in itertools.product(range(b), range(t), range(h)):
        sums, total = np.zeros(D), 0.0
        query, keys = ({name: x if x.ndim == 1 else x[n] for name, x in side.items()} for side in (q_fields, k_fields))
        for x in range(s):
            same = query["segment_ids"][i] == keys["segment_ids"][x] != 0
            if not same or (case.get("causal") and query["order"][i] < keys["order"][x]):
                continue
            a, c = positive(q[n, i, j]), positive(k[n, x, j // (h // heads)])
            total += a @ c
            if case.get("rope"):
                a, c = (turned(f, f_side["positions"][y] * f_side["has_position"][y])
                        for f, f_side, y in ((a, query, i), (c, keys, x)))  # fmt: skip
            sums += (a @ c) * v[n, x, j // (h // heads)]
        output[n, i, j] = sums / total if total > 0 else 0
    return output


CASES = {
    "cross, GQA": {"t": 9, "s": 7, "rope": True, "heads": (4, 2), "slopes": True},
    "causal, rope, GQA": {"t": 13, "s": 13, "causal": True, "rope": True, "heads": (4, 2), "slopes": True},
    "one token": {"t": 1, "s": 1, "causal": True, "rope": True},
    "packed": {"t": 14, "s": 14, "causal": True, "rope": True, "segments": "packed", "unplaced": True, "slopes": True},
    "mixed, both ways, cross": {"t": 9, "s": 14, "rope": True, "segments": "mixed", "heads": (2, 1), "slopes": True},
    "any order, mixed": {"t": 13, "s": 13, "causal": True, "order": "shuffled", "segments": "mixed", "batched": True},
    "equal order": {"t": 13, "s": 13, "causal": True, "rope": True, "order": "tied"},
    "a hole": {"t": 13, "s": 13, "causal": True, "segments": "hole"},
    "causal, cross": {"t": 5, "s": 13, "causal": True, "order": "shuffled", "segments": "mixed"},
}


def fields(case, rng, length):
    """Draw the tokens of one side, and which of their fields are given; the positions are floats."""
    batch = (2,) if case.get("batched") else ()
    order = {
        None: lambda: np.broadcast_to(np.arange(length), (*batch, length)),
        "shuffled": lambda: rng.permuted(np.broadcast_to(3 * np.arange(length) - 9, (*batch, length)), axis=-1),
        "tied": lambda: np.arange(length) // 6,
    }[case.get("order")]()
    segments = {
        None: lambda: np.ones(length, int),
        "packed": lambda: np.repeat([0, 2, 5, 0, 7, 0], [1, 4, 2, 1, 5, length - 13]),
        "mixed": lambda: rng.integers(-1, 3, (*batch, length)),
        "hole": lambda: np.repeat([1, 0, 1, 2], [3, 2, 4, length - 9]),
    }[case.get("segments")]()
    placed = np.arange(length) != 2 if case.get("unplaced") else np.ones(length, bool)
    positions = rng.normal(size=length) * 5
    values = {"order": case.get("causal"), "segment_ids": case.get("segments"), "has_position": case.get("unplaced")}
    side = {"positions": positions, "order": order, "segment_ids": segments, "has_position": placed}
    return side, {name: jnp.asarray(side[name]) for name, expected in values.items() if expected}


@pytest.mark.parametrize("name", mostly_slow(CASES, ("causal, cross", "a hole")))
def test_it_is_loops_over_pairs_and_its_gradients_are_their_differences(name):
    case, rng = CASES[name], np.random.default_rng(0)
    (h, kv), t, s = case.get("heads", (2, 2)), case["t"], case["s"]
    arrays = [rng.normal(size=(2, *shape, D)) for shape in ((t, h), (s, kv), (s, kv))]
    q_side = fields(case, rng, t)
    k_side = fields(case, rng, s) if case.get("order") == "shuffled" or t != s else None
    inputs = [*arrays, q_side[0]["positions"]]
    weight, *direction = (rng.normal(size=x.shape) for x in (arrays[0], *inputs))

    @functools.partial(jax.jit, compiler_options=QUICK)
    def run(*inputs):
        def loss(q, k, v, positions):
            tokens = TokenPositions(positions, **q_side[1])
            others = k_side and TokenPositions(jnp.asarray(k_side[0]["positions"], jnp.float32), **k_side[1])
            encoding, causal = ROPE if case.get("rope") else Encoding(), case.get("causal", False)
            out = linear_attention(encoding, q, k, v, positions=tokens, k_positions=others, causal=causal)
            return jnp.sum(out * weight.astype(np.float32)), out

        slopes = case.get("slopes")
        return jax.grad(loss, (0, 1, 2, 3), has_aux=True)(*inputs) if slopes else (None, loss(*inputs)[1])

    def loops(step):
        *arrays, positions = (x + step * d for x, d in zip(inputs, direction, strict=True))
        own = {**q_side[0], "positions": positions}
        return oracle(case, *arrays, own, k_side[0] if k_side else own)

    slopes, out = run(*(jnp.asarray(x, jnp.float32) for x in inputs))
    np.testing.assert_allclose(out, loops(0), rtol=1e-5, atol=1e-5)
    if slopes:
        along = sum(np.sum(np.asarray(slope, np.float64) * d) for slope, d in zip(slopes, direction, strict=True))
        np.testing.assert_allclose(along, np.sum(weight * (loops(1e-5) - loops(-1e-5))) / 2e-5, rtol=2e-4)


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def test_a_shift_of_all_positions_changes_nothing():
    q, k, v = (normal(9, 2, D, seed=seed) for seed in range(3))
    run = jax.jit(lambda at: linear_attention(ROPE, q, k, v, positions=at, causal=False), compiler_options=QUICK)
    np.testing.assert_allclose(run(jnp.arange(9) + 100_000), run(jnp.arange(9)), atol=1e-5)
    assert np.abs(run(2 * jnp.arange(9)) - run(jnp.arange(9))).max() > 0.05


@pytest.mark.slow
def test_keys_turn_in_their_own_way_where_they_have_one():
    """One key: the features cancel, and `growth^(i - j) v` is left."""
    grow = lambda by: lambda params, x, at: x * by ** at.astype(x.dtype)[:, None, None]
    q, k, v = (normal(1, 1, D, seed=seed) for seed in range(3))
    sides = {"positions": jnp.asarray([4]), "k_positions": jnp.asarray([1]), "causal": False}
    out = linear_attention(Encoding(rotate=grow(0.5), rotate_keys=grow(2.0)), q, k, v, **sides)
    np.testing.assert_allclose(out, v / 8, rtol=1e-6)
    np.testing.assert_allclose(linear_attention(Encoding(rotate=grow(0.5)), q, k, v, **sides), v / 32, rtol=1e-6)


@pytest.mark.slow
def test_frequencies_of_each_key_head_at_an_extent():
    encoding = make_encoding("rope_mixed(extend='linear')", Dims(4, D, kv_heads=2, axes=2, extent=(2, 2)))
    params, grid = encoding.init_layer(jax.random.key(0)), grid_positions(3, 3)
    q, k, v = normal(2, 9, 4, D), normal(2, 9, 2, D, seed=1), normal(2, 9, 2, D, seed=2)

    @functools.partial(jax.jit, compiler_options=QUICK)
    def both(q, k, v):
        turn = functools.partial(encoding.rotate, pejax.adapt(encoding, params, (3, 3)))
        a, c = jax.nn.elu(q) + 1, jnp.repeat(jax.nn.elu(k) + 1, 2, axis=2)
        top = jnp.einsum("bthd,bshd->bhts", turn(a, grid), turn(c, grid))
        want = jnp.einsum("bhts,bshd->bthd", top, jnp.repeat(v, 2, axis=2))
        below = jnp.einsum("bthd,bshd->bth", a, c)[..., None]
        return linear_attention(encoding, q, k, v, params=params, positions=grid, extent=(3, 3)), want / below

    np.testing.assert_allclose(*both(q, k, v), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_memory_is_a_number_of_arrays_like_the_queries_forward_and_backward(monkeypatch):
    """Neither a number for each pair nor a state for each token, which both would be 64 arrays."""
    monkeypatch.setattr(linear, "CHUNK", 64)
    length, dim = 4096, 64
    rope = make_encoding("rope", Dims(1, dim, causal=True))

    def loss(*arrays):
        tokens = TokenPositions(jnp.arange(length), segment_ids=jnp.arange(length) // 200 + 1)
        return linear_attention(rope, *arrays, positions=tokens).sum()

    shapes = [jax.ShapeDtypeStruct((length, 1, dim), jnp.float32)] * 3
    program = jax.jit(jax.grad(loss, argnums=(0, 1, 2)), compiler_options=QUICK).lower(*shapes).compile()
    assert program.memory_analysis().temp_size_in_bytes < 40 * 4 * length * dim


@pytest.mark.slow
def test_half_precision_in_half_precision_out_with_float32_inside():
    arrays = [normal(1, 9, 2, D, seed=seed).astype(jnp.bfloat16) for seed in range(3)]
    run = jax.jit(lambda arrays: linear_attention(ROPE, *arrays, causal=False), compiler_options=QUICK)
    half, full = run(arrays), run([x.astype(jnp.float32) for x in arrays])
    assert half.dtype == jnp.bfloat16
    np.testing.assert_array_equal(half, full.astype(jnp.bfloat16))


@pytest.mark.slow
@pytest.mark.parametrize(("t", "s"), [(0, 3), (3, 0)])
def test_nothing_to_attend_gives_zeros(t, s):
    q, k = jnp.ones((2, t, 2, D)), jnp.ones((2, s, 1, D))
    sides = {"positions": jnp.arange(t), "k_positions": jnp.arange(s)}
    out = linear_attention(ROPE, q, k, k, **sides, causal=True)
    assert out.shape == q.shape
    assert (out == 0).all()


def test_what_it_cannot_do_is_refused():
    q, grid, dims = normal(9, 2, D), grid_positions(3, 3), Dims(2, D, extent=9, causal=True)
    with pytest.raises(ValueError, match="positions must have an order, or 1-D signed integer positions"):
        linear_attention(Encoding(), q, q, q, positions=grid, causal=True)
    for spec, hook in (("alibi", "bias"), ("shaw", "bias"), ("rope(extend='rerope')", "bands")):
        with pytest.raises(ValueError, match=f"an encoding that rotates all pairs alike, got one with {hook}"):
            linear_attention(make_encoding(spec, dims), q, q, q)
    with pytest.raises(ValueError, match="embedded=True"):
        linear_attention(make_encoding("sinusoidal", dims), q, q, q)
    unplaced = TokenPositions(jnp.arange(9), has_position=jnp.arange(9) > 0)
    with pytest.raises(ValueError, match="all keys must have positions, got k_positions with has_position"):
        linear_attention(Encoding(unplaced_bias=lambda params: jnp.ones(()), dims=dims), q, q, q, positions=unplaced)
