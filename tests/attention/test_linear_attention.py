"""Linear attention with rotated features, against loops over pairs in float64."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from biases import types_unchecked
from cases import mostly_slow
from jax.tree_util import Partial

from pejax import Dims, TokenPositions, grid_positions, linear_attention, make_encoding, rope_frequencies
from pejax._attention import linear

D = 4
QUICK = {"xla_backend_optimization_level": "0"}
FREQUENCIES = rope_frequencies(D, base=30.0)
ROPE = Partial(make_encoding("rope(base=30.0)", Dims(2, D)).rotate, {})


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Let short sequences have many chunks."""
    monkeypatch.setattr(linear, "CHUNK", 4)


def turned(x, position):
    """Rotate pairs of one vector."""
    out = np.empty_like(x)
    for pair, frequency in enumerate(FREQUENCIES.astype(np.float64)):
        c, s = np.cos(position * frequency), np.sin(position * frequency)
        a, b = x[2 * pair : 2 * pair + 2]
        out[2 * pair : 2 * pair + 2] = c * a - s * b, s * a + c * b
    return out


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
                a, c = turned(a, query["positions"][i]), turned(c, keys["positions"][x])
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
    """Draw the tokens of one side; the array of positions is float where there is no order to be read from it."""
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
    return {
        "positions": np.where(placed, rng.normal(size=length) * 5, 0),
        "order": order,
        "segment_ids": segments,
        "has_position": placed,
    }


def draw(case, seed=0):
    rng = np.random.default_rng(seed)
    (h, kv), t, s = case.get("heads", (2, 2)), case["t"], case["s"]
    arrays = [rng.normal(size=(2, *shape, D)) for shape in ((t, h), (s, kv), (s, kv))]
    q_fields = fields(case, rng, t)
    return arrays, q_fields, fields(case, rng, s) if case.get("order") == "shuffled" or t != s else q_fields


def as_jax(case, side):
    """Make the tokens; what says nothing is left out."""
    optional = {
        "order": case.get("causal"),
        "segment_ids": case.get("segments"),
        "has_position": case.get("unplaced"),
    }
    kinds = {"order": jnp.int32, "segment_ids": jnp.int32, "has_position": bool}
    given = {name: jnp.asarray(side[name], kinds[name]) for name, wanted in optional.items() if wanted}
    return TokenPositions(jnp.asarray(side["positions"], jnp.float32), **given)


def call(case, arrays, q_tokens, k_tokens):
    rotate = ROPE if case.get("rope") else None
    return linear_attention(
        *arrays, positions=q_tokens, k_positions=k_tokens, rotate=rotate, causal=case.get("causal", False)
    )


@pytest.mark.parametrize("name", [name for name in CASES if not CASES[name].get("slopes")])
def test_it_is_loops_over_pairs(name):
    case = CASES[name]
    arrays, q_fields, k_fields = draw(case)
    cross = k_fields is not q_fields

    @functools.partial(jax.jit, compiler_options=QUICK)
    def run(arrays):
        return call(case, arrays, as_jax(case, q_fields), as_jax(case, k_fields) if cross else None)

    out = run([jnp.asarray(x, jnp.float32) for x in arrays])
    np.testing.assert_allclose(out, oracle(case, *arrays, q_fields, k_fields), rtol=1e-5, atol=1e-5)


SLOPES = [name for name in CASES if CASES[name].get("slopes")]


@pytest.mark.parametrize("name", mostly_slow(SLOPES, SLOPES[:1]))
def test_it_is_loops_over_pairs_and_its_gradients_are_their_differences(name):
    case = CASES[name]
    arrays, q_fields, k_fields = draw(case)
    cross, rng = k_fields is not q_fields, np.random.default_rng(1)
    inputs = [*arrays, q_fields["positions"]]
    weight, *direction = (rng.normal(size=x.shape) for x in (arrays[0], *inputs))

    @functools.partial(jax.jit, compiler_options=QUICK)
    def run(*inputs):
        def loss(q, k, v, positions):
            q_tokens = as_jax(case, q_fields)._replace(positions=positions)
            out = call(case, (q, k, v), q_tokens, as_jax(case, k_fields) if cross else None)
            return jnp.sum(out * weight.astype(np.float32)), out

        return jax.grad(loss, (0, 1, 2, 3), has_aux=True)(*inputs)

    def loops(step):
        *arrays, positions = (x + step * d for x, d in zip(inputs, direction, strict=True))
        q_side = {**q_fields, "positions": positions}
        return oracle(case, *arrays, q_side, k_fields if cross else q_side)

    slopes, out = run(*(jnp.asarray(x, jnp.float32) for x in inputs))
    np.testing.assert_allclose(out, loops(0), rtol=1e-5, atol=1e-5)
    along = sum(np.sum(np.asarray(slope, np.float64) * d) for slope, d in zip(slopes, direction, strict=True))
    np.testing.assert_allclose(along, np.sum(weight * (loops(1e-5) - loops(-1e-5))) / 2e-5, rtol=2e-4)


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def test_a_shift_of_all_positions_changes_nothing():
    q, k, v = (normal(9, 2, D, seed=seed) for seed in range(3))
    run = jax.jit(lambda at: linear_attention(q, k, v, positions=at, rotate=ROPE), compiler_options=QUICK)
    np.testing.assert_allclose(run(jnp.arange(9) + 100_000), run(jnp.arange(9)), atol=1e-5)
    assert np.abs(run(2 * jnp.arange(9)) - run(jnp.arange(9))).max() > 0.05


def test_keys_turn_in_their_own_way_where_they_have_one():
    """One key: the features cancel, and `growth^(i - j) v` is left."""
    grow = lambda p, x, at: x * p["by"] ** at.astype(x.dtype)[:, None, None]
    rotate, rotate_keys = (Partial(grow, {"by": by}) for by in (0.5, 2.0))
    q, k, v = (normal(1, 1, D, seed=seed) for seed in range(3))
    sides = {"positions": jnp.asarray([4]), "k_positions": jnp.asarray([1])}
    out = linear_attention(q, k, v, **sides, rotate=rotate, rotate_keys=rotate_keys)
    np.testing.assert_allclose(out, v / 8, rtol=1e-6)
    np.testing.assert_allclose(linear_attention(q, k, v, **sides, rotate=rotate), v / 32, rtol=1e-6)


def test_frequencies_of_each_key_head():
    dims = Dims(4, D, kv_heads=2, axes=2)
    encoding = make_encoding("rope_mixed", dims)
    params, grid = encoding.init_layer(jax.random.key(0)), grid_positions(3, 3)
    q, k, v = normal(2, 9, 4, D), normal(2, 9, 2, D, seed=1), normal(2, 9, 2, D, seed=2)

    @functools.partial(jax.jit, compiler_options=QUICK)
    def both(q, k, v):
        a, c = jax.nn.elu(q) + 1, jnp.repeat(jax.nn.elu(k) + 1, 2, axis=2)
        top = jnp.einsum("bthd,bshd->bhts", encoding.rotate(params, a, grid), encoding.rotate(params, c, grid))
        below = jnp.einsum("bthd,bshd->bth", a, c)
        want = jnp.einsum("bhts,bshd->bthd", top, jnp.repeat(v, 2, axis=2)) / below[..., None]
        return linear_attention(q, k, v, positions=grid, rotate=Partial(encoding.rotate, params)), want

    np.testing.assert_allclose(*both(q, k, v), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_memory_is_a_number_of_arrays_like_the_queries_forward_and_backward(monkeypatch):
    """Neither a number for each pair nor a state for each token, which both would be 64 arrays."""
    monkeypatch.setattr(linear, "CHUNK", 64)
    length, dim = 4096, 64
    rotate = Partial(make_encoding("rope", Dims(1, dim)).rotate, {})

    def loss(*arrays):
        tokens = TokenPositions(jnp.arange(length), segment_ids=jnp.arange(length) // 200 + 1)
        return linear_attention(*arrays, positions=tokens, rotate=rotate, causal=True).sum()

    shapes = [jax.ShapeDtypeStruct((length, 1, dim), jnp.float32)] * 3
    program = jax.jit(jax.grad(loss, argnums=(0, 1, 2)), compiler_options=QUICK).lower(*shapes).compile()
    assert program.memory_analysis().temp_size_in_bytes < 40 * 4 * length * dim


def test_half_precision_in_half_precision_out_with_float32_inside():
    arrays = [normal(1, 9, 2, D, seed=seed).astype(jnp.bfloat16) for seed in range(3)]

    @functools.partial(jax.jit, compiler_options=QUICK)
    def run(arrays):
        return linear_attention(*arrays, positions=jnp.arange(9), rotate=ROPE)

    half, full = run(arrays), run([x.astype(jnp.float32) for x in arrays])
    assert half.dtype == jnp.bfloat16
    np.testing.assert_array_equal(half, full.astype(jnp.bfloat16))


@pytest.mark.parametrize(("t", "s"), [(0, 3), (3, 0)])
def test_nothing_to_attend_gives_zeros(t, s):
    q, k = jnp.ones((2, t, 2, D)), jnp.ones((2, s, 1, D))
    out = linear_attention(q, k, k, positions=jnp.arange(t), k_positions=jnp.arange(s), rotate=ROPE, causal=True)
    assert out.shape == q.shape
    assert (out == 0).all()


def test_what_it_cannot_do_is_refused():
    q, grid = normal(9, 2, D), grid_positions(3, 3)
    with pytest.raises(ValueError, match="positions must have an order, or 1-D signed integer positions"):
        linear_attention(q, q, q, positions=grid, causal=True)
    with types_unchecked(), pytest.raises(TypeError, match=r"rotate must be jax.tree_util.Partial"):
        linear_attention(q, q, q, positions=grid, rotate=make_encoding("rope", Dims(heads=2, head_dim=4)).rotate)
