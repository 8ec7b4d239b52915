"""Linear attention with rotated features, against loops over pairs in float64."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

from pejax import Dims, Tokens, linear_attention, make_encoding, rope_frequencies
from pejax.attention import linear

D = 4
QUICK = {"xla_backend_optimization_level": "0"}
FREQUENCIES = rope_frequencies(D, base=30.0)
ROPE = Partial(make_encoding("rope(base=30.0)", Dims(width=2 * D, heads=2)).rotate, {})
SHRINK = Partial(
    lambda params, x, positions: x * params["by"] ** positions.astype(x.dtype)[..., None, None], {"by": 0.9}
)


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
    positive = lambda x: np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))  # noqa: E731
    (b, t, h, _), (_, s, heads, _) = q.shape, k.shape
    output = np.zeros_like(q)
    for n, i, j in itertools.product(range(b), range(t), range(h)):
        sums, total = np.zeros(D), 0.0
        at = lambda side, name, i: (side[name] if side[name].ndim == 1 else side[name][n])[i]  # noqa: E731
        for x in range(s):
            same = at(q_fields, "segments", i) == at(k_fields, "segments", x) != 0
            if not same or (case.get("causal") and at(q_fields, "index", i) < at(k_fields, "index", x)):
                continue
            a, c = positive(q[n, i, j]), positive(k[n, x, j // (h // heads)])
            total += a @ c
            if case.get("rope"):
                a, c = turned(a, at(q_fields, "positions", i)), turned(c, at(k_fields, "positions", x))
            sums += (a @ c) * v[n, x, j // (h // heads)]
        output[n, i, j] = sums / total if total > 0 else 0
    return output


CASES = {
    "plain": {"t": 11, "s": 11},
    "rope": {"t": 11, "s": 7, "rope": True, "heads": (4, 2)},
    "causal": {"t": 11, "s": 11, "causal": True},
    "causal, rope, GQA": {"t": 13, "s": 13, "causal": True, "rope": True, "heads": (4, 2)},
    "one chunk": {"t": 3, "s": 3, "causal": True, "rope": True},
    "one token": {"t": 1, "s": 1, "causal": True, "rope": True},
    "packed": {"t": 14, "s": 14, "causal": True, "rope": True, "segments": "packed", "unplaced": True},
    "packed, both ways": {"t": 14, "s": 14, "rope": True, "segments": "packed"},
    "mixed segments": {"t": 14, "s": 14, "causal": True, "rope": True, "segments": "mixed", "batched": True},
    "mixed segments, both ways, cross": {"t": 9, "s": 14, "rope": True, "segments": "mixed", "heads": (2, 1)},
    "any order": {"t": 13, "s": 13, "causal": True, "rope": True, "order": "shuffled", "batched": True},
    "equal order": {"t": 13, "s": 13, "causal": True, "rope": True, "order": "tied"},
    "a hole": {"t": 13, "s": 13, "causal": True, "segments": "hole"},
    "causal, cross": {"t": 5, "s": 13, "causal": True, "rope": True, "order": "shuffled", "segments": "mixed"},
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
        "index": order,
        "segments": segments,
        "placed": placed,
    }


def draw(case, seed=0):
    rng = np.random.default_rng(seed)
    (h, kv), t, s = case.get("heads", (2, 2)), case["t"], case["s"]
    arrays = [rng.normal(size=(2, *shape, D)) for shape in ((t, h), (s, kv), (s, kv))]
    q_fields = fields(case, rng, t)
    return arrays, q_fields, fields(case, rng, s) if case.get("order") == "shuffled" or t != s else q_fields


def as_jax(case, side):
    """Make the tokens; what says nothing is left out."""
    optional = {"index": case.get("causal"), "segments": case.get("segments"), "placed": case.get("unplaced")}
    kinds = {"index": jnp.int32, "segments": jnp.int32, "placed": bool}
    given = {name: jnp.asarray(side[name], kinds[name]) for name, wanted in optional.items() if wanted}
    return Tokens(jnp.asarray(side["positions"], jnp.float32), **given)


def call(case, arrays, q_tokens, k_tokens):
    rotate = ROPE if case.get("rope") else None
    return linear_attention(
        *arrays, q_tokens=q_tokens, k_tokens=k_tokens, rotate=rotate, causal=case.get("causal", False)
    )


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradients_are_those_of_loops_over_pairs(name):
    case = CASES[name]
    arrays, q_fields, k_fields = draw(case)
    cross = k_fields is not q_fields
    weight = np.random.default_rng(1).normal(size=arrays[0].shape)

    @functools.partial(jax.jit, compiler_options=QUICK)
    def run(arrays, q_positions):
        def loss(arrays, q_positions):
            q_tokens = as_jax(case, q_fields)._replace(positions=q_positions)
            out = call(case, arrays, q_tokens, as_jax(case, k_fields) if cross else None)
            return jnp.sum(out * weight.astype(np.float32)), out

        return jax.value_and_grad(loss, (0, 1), has_aux=True)(arrays, q_positions)

    (_, out), (slopes, position_slope) = run(
        [jnp.asarray(x, jnp.float32) for x in arrays], jnp.asarray(q_fields["positions"], jnp.float32)
    )
    want = lambda arrays, positions: oracle(  # noqa: E731
        case, *arrays, {**q_fields, "positions": positions}, k_fields if cross else {**q_fields, "positions": positions}
    )
    np.testing.assert_allclose(out, want(arrays, q_fields["positions"]), rtol=1e-5, atol=1e-5)
    rng, step = np.random.default_rng(2), 1e-5
    direction = [rng.normal(size=x.shape) for x in (*arrays, q_fields["positions"])]
    *moves, shift = direction
    ends = [
        np.sum(weight * want([x + sign * step * d for x, d in zip(arrays, moves, strict=True)],
                             q_fields["positions"] + sign * step * shift))
        for sign in (1, -1)
    ]  # fmt: skip
    got = sum(np.sum(np.asarray(s, np.float64) * d) for s, d in zip((*slopes, position_slope), direction, strict=True))
    np.testing.assert_allclose(got, (ends[0] - ends[1]) / (2 * step), rtol=2e-4, atol=2e-4)
