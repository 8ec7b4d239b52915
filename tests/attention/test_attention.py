"""Both implementations of attention against float64 loops, in value and in every gradient."""

import dataclasses
import functools
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

from pejax import ENCODINGS, Dims, Hooks, TokenPositions, attend, dot_product_attention, init_params, make_encoding
from pejax._attention.core.dropout import Dropout, keep_pairs
from pejax._attention.xla import blockwise, cpu
from tests.support.cases import mostly_slow, normal, slow
from tests.support.quick import AS_USERS

D = 4
QUICK = {"xla_backend_optimization_level": "0"}  # most of the time goes into compiling
IMPLEMENTATIONS = ("reference", "blockwise", "cpu")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Let short sequences have many tiles."""
    monkeypatch.setattr(blockwise, "BLOCK", 8)
    monkeypatch.setattr(cpu, "BLOCK", 8)


# Toy encodings, written for jax and numpy alike.


def lorentz(p, q, k, q_positions, k_positions):
    """A function of the distance alone; a sum over the axes."""
    square = (k_positions[None] - q_positions[:, None]) ** 2
    return p["height"] / (1 + p["width"] * (square if square.ndim == 2 else square.sum(-1)))


def content(p, q, k, q_positions, k_positions):
    """Reads q, k, the query's position and parameters of both kinds."""
    return p["height"] * (q @ p["matrix"]) @ k.T / (1 + p["width"] * q_positions[:, None] ** 2)


def ramp(p, weights, q_positions, k_positions):
    """Linear in the weights."""
    distance = k_positions[None] - q_positions[:, None]
    return ((weights * distance).sum(1)[:, None]) * p["vector"][None]


def floating(hook):
    """Give a hook float positions: numpy needs no such thing, jax promotes nothing by itself."""

    def inner(p, *operands):
        cast = lambda x: x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.float32)
        return hook(p, *(cast(x) for x in operands))

    return inner


HOOKS = {hook: floating(hook) for hook in (lorentz, content, ramp)}


def toy_params(rng, hook, heads):
    """Draw parameters, of which some are shared by the heads."""
    if hook is ramp:
        return {"all": {"vector": rng.normal(size=D)}}
    params = {"heads": {"height": rng.normal(size=heads)}, "all": {"width": np.asarray(0.3)}}
    if hook is content:
        params["heads"]["matrix"] = rng.normal(size=(heads, D, D))
    return params


# The oracle.


def sees(case, qi, ki, q_segment, k_segment):
    """Say whether one query sees one key, by the definition."""
    distances = abs(int(qi) - int(ki))
    low, high = case.get("distance_range") or (0, np.inf)
    window = case.get("window") or np.inf
    ordered = not case.get("causal") or qi >= ki
    return ordered and distances < window and low <= distances < high and q_segment == k_segment != 0


def oracle(case, arrays, params, tokens, keep=None):
    """Attend by loops over batch, heads and pairs in float64; returns output and log-sum-exp."""
    q, k, v, q_positions, k_positions = arrays
    b, t, h, _ = q.shape
    s, group = k.shape[1], h // k.shape[2]
    output, lse = np.zeros_like(q), np.full((b, t, h), -np.inf)
    at = lambda x, i, batched: x[i] if batched else x
    for i, j in itertools.product(range(b), range(h)):
        own = {
            hook: {**p.get("all", {}), **{n: x[j] for n, x in p.get("heads", {}).items()}} for hook, p in params.items()
        }
        qp, kp = (at(x, i, case.get("batched")) for x in (q_positions, k_positions))
        qt, kt = ({n: at(x, i, x.ndim == 2) for n, x in side.items()} for side in tokens)
        placed = qt["has_position"][:, None] & kt["has_position"][None]
        q1, k1, v1 = q[i, :, j], k[i, :, j // group], v[i, :, j // group]
        logits = case.get("scale", D**-0.5) * q1 @ k1.T
        if case.get("bias"):
            logits = logits + np.where(placed, case["bias"](own["bias"], q1, k1, qp, kp), 0)
        if cap := case.get("soft_cap"):
            logits = cap * np.tanh(logits / cap)
        for x, y in itertools.product(range(t), range(s)):
            if not sees(case, qt["order"][x], kt["order"][y], qt["segment_ids"][x], kt["segment_ids"][y]):
                logits[x, y] = -np.inf
        with np.errstate(invalid="ignore", divide="ignore"):
            total = np.exp(logits).sum(1, keepdims=True)
            weights = np.where(total > 0, np.exp(logits) / total, 0)
            lse[i, :, j] = np.log(total[:, 0])
        if keep is not None:
            weights = np.where(keep[i, j], weights, 0) / (1 - case["rate"])
        output[i, :, j] = weights @ v1
        if case.get("relative_values"):
            output[i, :, j] += case["relative_values"](own["relative_values"], weights * placed, qp, kp)
    return output, lse


CASES = {
    "distance": {"t": 19, "s": 19, "bias": lorentz, "derived": True},
    "content, causal, GQA, cap": {"t": 17, "s": 17, "bias": content, "causal": True, "heads": (4, 2), "soft_cap": 2.0},
    "cross, values, batched positions": {"t": 9, "s": 20, "bias": lorentz, "relative_values": ramp, "batched": True},
    "window, two axes, MQA": {"t": 18, "s": 18, "bias": lorentz, "axes": 2, "window": 5, "heads": (2, 1)},
    "packed, unplaced, causal window": {
        **{"t": 20, "s": 20, "segments": True, "unplaced": True, "causal": True, "window": 4},
        **{"bias": content, "relative_values": ramp},
    },
    "range, blind rows": {
        **{"t": 17, "s": 8, "distance_range": (4, 7), "unplaced": True},
        **{"bias": lorentz, "relative_values": ramp},
    },
    "dropout, values, GQA": {"t": 17, "s": 9, "rate": 0.4, "bias": content, "relative_values": ramp, "heads": (4, 2)},
    "batched segments, dropout, scale": {"t": 9, "s": 9, "batched": True, "rate": 0.2, "segments": True, "scale": 0.7},
    "one query": {"t": 1, "s": 18, "causal": True, "unplaced": True, "bias": lorentz},
}  # fmt: skip


def draw(case, seed):
    """Return arrays, hooks' parameters and the tokens' fields, all numpy and float64."""
    rng = np.random.default_rng(seed)
    (h, kv), t, s = case.get("heads", (2, 2)), case["t"], case["s"]
    axes = (case["axes"],) if "axes" in case else ()
    q, k, v = (rng.normal(size=(2, n, heads, D)) for n, heads in ((t, h), (s, kv), (s, kv)))
    tokens = []
    for n in (t, s):
        order = np.arange(n) + (s - 1 if t == 1 == n else 0)
        placed = np.arange(n) > 1 if case.get("unplaced") and n > 1 else np.ones(n, bool)
        segments = np.repeat([1, 2, 0], [n // 2, n - n // 2 - 2, 2]) if case.get("segments") else np.ones(n, int)
        if case.get("batched"):
            segments = np.stack([segments, segments[::-1]])
        tokens.append({"order": order, "has_position": placed, "segment_ids": segments})
    lead = (2,) if case.get("batched") else ()
    positions = [rng.uniform(-2, 2, size=(*lead, n, *axes)) for n in (t, s)]
    params = {name: toy_params(rng, case[name], h) for name in ("bias", "relative_values") if case.get(name)}
    return [q, k, v, *positions], params, tokens


def as_field(case, name, field):
    """Return the field where the case speaks of it: None is what most callers pass."""
    packed = case.get("segments") or case.get("batched")
    spoken = {"order": True, "has_position": case.get("unplaced"), "segment_ids": packed}
    return jnp.asarray(field) if spoken[name] else None


def call(case, arrays, params, tokens, implementation):
    """Call `dot_product_attention` as the case says."""
    q, k, v, *positions = arrays
    q_tokens, k_tokens = (
        TokenPositions(p, **{name: as_field(case, name, x) for name, x in side.items()})
        for p, side in zip(positions, tokens, strict=True)
    )
    hooks = Hooks(**{name: Partial(HOOKS[case[name]], params[name]) for name in params})
    if case.get("derived"):
        hooks = dataclasses.replace(hooks, bias=None, distance_bias=Partial(distance, params["bias"]))
    names = ("causal", "window", "distance_range", "soft_cap", "scale")
    options = {name: case[name] for name in names if name in case}
    dropout = (jax.random.key(7), case["rate"]) if "rate" in case else None
    return dot_product_attention(
        q, k, v, positions=q_tokens, k_positions=k_tokens, hooks=hooks, **options, dropout=dropout, return_lse=True,
        implementation=implementation,
    )  # fmt: skip


def distance(p, relative):
    return p["height"] / (1 + p["width"] * relative**2)


def kept(case, shape):
    """Return which pairs the counter keeps."""
    if "rate" not in case:
        return None
    b, h, t, s = shape
    seed = jax.random.bits(jax.random.key(7), (2,), jnp.uint32)
    rows, columns = (jnp.arange(n, dtype=jnp.uint32) for n in (t, s))
    one = lambda i, j: keep_pairs(Dropout(seed, i, j), rows, columns, case["rate"])
    return np.asarray(jax.vmap(lambda i: jax.vmap(lambda j: one(i, j))(jnp.arange(h, dtype=jnp.uint32)))(
        jnp.arange(b, dtype=jnp.uint32)
    ))  # fmt: skip


def operand_at(path):
    """Return the name of an operand by its place in the arguments of `call`: "k", or "bias['height']"."""
    (argument, name), rest = [item.idx if hasattr(item, "idx") else item.key for item in path[:2]], path[2:]
    names = ("q", "k", "v", "positions", "k_positions")
    return f"{names[name] if argument == 0 else name}{jax.tree_util.keystr(rest)}"


EVERY_RUN = ("packed, unplaced, causal window",)


@pytest.mark.parametrize("name", mostly_slow(CASES, EVERY_RUN))
def test_both_implementations_are_the_float64_loops_in_value_and_every_gradient(name):
    check_loops(name, QUICK)


def check_loops(name, compiler_options):
    """Compare each implementation with the loops."""
    case = CASES[name]
    arrays, params, tokens = draw(case, seed=len(name))
    rng = np.random.default_rng(0)
    keep = kept(case, (2, arrays[0].shape[2], case["t"], case["s"]))
    want, want_lse = oracle(case, arrays, params, tokens, keep)
    seen = np.isfinite(want_lse)
    d_output, d_lse = rng.normal(size=want.shape), rng.normal(size=seen.shape) * seen

    def loss(xp, result):
        output, lse = result
        return (output * xp.asarray(d_output, output.dtype)).sum() + (
            xp.where(seen, lse, 0) * xp.asarray(d_lse, lse.dtype)
        ).sum()

    single = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), (arrays, params))
    gradients = {}
    for implementation in IMPLEMENTATIONS:

        def run(arrays, params, implementation=implementation):
            result = call(case, arrays, params, tokens, implementation)
            return loss(jnp, result), result

        step = jax.jit(jax.value_and_grad(run, argnums=(0, 1), has_aux=True), compiler_options=compiler_options)
        (_, (output, lse)), gradients[implementation] = step(*single)
        np.testing.assert_allclose(output, want, atol=3e-6)
        np.testing.assert_allclose(lse, want_lse, atol=3e-6)
        assert (np.asarray(output)[~seen] == 0).all()
    for other in IMPLEMENTATIONS[1:]:
        result = jax.tree.leaves_with_path(gradients[other])
        for (path, gradient), expected in zip(result, jax.tree.leaves(gradients["reference"]), strict=True):
            where = f"{other}, gradient of {operand_at(path)}"
            np.testing.assert_allclose(gradient, expected, atol=3e-5, rtol=1e-4, err_msg=where)

    leaves, tree = jax.tree.flatten((arrays, params))
    for i, (leaf, gradient) in enumerate(zip(leaves, jax.tree.leaves(gradients["blockwise"]), strict=True)):
        direction = rng.normal(size=leaf.shape)
        values = []
        for step in (1e-5, -1e-5):
            moved = jax.tree.unflatten(tree, [x + step * direction if j == i else x for j, x in enumerate(leaves)])
            values.append(loss(np, oracle(case, *moved, tokens, keep)))
        slope = (values[0] - values[1]) / 2e-5
        np.testing.assert_allclose((np.asarray(gradient, np.float64) * direction).sum(), slope, atol=2e-4, rtol=2e-4)


@pytest.mark.slow
def test_compiled_as_users_have_them_they_are_the_float64_loops_too():
    check_loops(*EVERY_RUN, AS_USERS)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", mostly_slow(IMPLEMENTATIONS, ["cpu"]))
@pytest.mark.parametrize("name", mostly_slow(ENCODINGS, ("rope",)))
def test_positions_that_are_not_given_are_those_of_a_sequence(name, implementation):
    dims = Dims(heads=4, head_dim=8, kv_heads=2, extent=40, causal=True)
    encoding = make_encoding(name, dims)
    params = init_params(encoding, jax.random.key(0))
    q, k, v = (normal(2, 40, heads, 8, seed=seed) for seed, heads in enumerate((4, 2, 2)))

    def loss(positions, params, q, k, v):
        options = {} if positions is None else {"positions": positions}
        out = attend(
            encoding, q, k, v, params=params, extent=40, embedded=True, implementation=implementation, **options
        )
        return jnp.sum(jnp.sin(3.0 * out))

    grad = jax.value_and_grad(loss, argnums=(1, 2, 3, 4))
    default = jax.jit(functools.partial(grad, None))(params, q, k, v)
    slopes = jax.jit(grad)(jnp.arange(40), params, q, k, v)
    chex.assert_trees_all_close(default, slopes, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [slow(()), slow((2,)), (2, 6)])
def test_positions_are_not_needed_with_an_extent_for_each_example_or_query(shape):
    yarn = make_encoding("rope", Dims(heads=4, head_dim=8, extent=4, causal=True), "yarn")
    q, k, v = (normal(2, 6, 4, 8, seed=seed) for seed in range(3))
    extent = jnp.broadcast_to(jnp.arange(7, 13), (2, 6)) if shape == (2, 6) else jnp.full(shape, 9)
    default = attend(yarn, q, k, v, extent=extent)
    output = attend(yarn, q, k, v, extent=extent, positions=jnp.arange(6))
    np.testing.assert_allclose(default, output, atol=1e-5)
