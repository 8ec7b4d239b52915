"""A linear bias in columns of q and k, and the fused kernels that get it: on CPU, with XLA's in their place."""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters.partial_eval import dce_jaxpr
from jax.tree_util import Partial

from pejax import Dims, Hooks, TokenPositions, adapt, make_encoding
from pejax._attention.backends import IMPLEMENTATIONS
from pejax._attention.core.dropout import check_dropout
from pejax._attention.core.hooks import attention_hooks
from pejax._attention.core.operands import prepare
from pejax._attention.core.options import check_options
from pejax._attention.core.order import count_from_zero
from pejax._attention.gpu.availability import missing_backend
from pejax._attention.gpu.cudnn import fused_attention
from pejax._attention.gpu.folded import COLUMNS, arrays_are_ordered, fold
from pejax._attention.kernels.elementwise import slope
from pejax._attention.kernels.programs import enter_all, evaluate
from tests.support.cases import slow

QUICK = {"xla_backend_optimization_level": "0"}
N, T, H, K, D = 2, 40, 4, 2, 16


@pytest.fixture(autouse=True)
def types_promote():
    """Let types promote, as XLA's part of `jax.nn.dot_product_attention` needs it."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.parametrize("start", [0, 2**20])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_columns_add_the_slope_times_the_position(dtype, start):
    """Exact products and a float64 sum of what the columns hold: any kernel adds its own rounding to this alone."""
    rng = np.random.default_rng(0)
    q, k = (jnp.asarray(rng.normal(size=(1, n, heads, D)), dtype) for n, heads in ((5, H), (4096, K)))
    slopes = jnp.asarray([0.5, 2.0**-8, 0.1234567, -0.7])
    positions = start + 31 * jnp.arange(4096, dtype=jnp.int32)
    folded = fold(q, k, slopes, positions[None], scale=D**-0.5)
    assert all(
        x.shape == (*y.shape[:-1], D + COLUMNS) and x.dtype == dtype for x, y in zip(folded, (q, k), strict=True)
    )
    columns = [np.asarray(x[0, ..., D:], np.float64) for x in folded]
    added = D**-0.5 * np.einsum("thd,shd->hts", columns[0], np.repeat(columns[1], H // K, axis=1))
    want = np.asarray(slopes, np.float64)[:, None] * (np.asarray(positions, np.float64) - int(positions[2048]))
    np.testing.assert_allclose(added, np.broadcast_to(want[:, None], added.shape), rtol=2**-22, atol=1e-9)
    np.testing.assert_array_equal(np.asarray(folded[0][..., :D]), np.asarray(q))


LINES = {
    "alibi": (make_encoding("alibi(slope_scale=0.7)", Dims(heads=4, head_dim=8)).distance_bias, {"slope": 0.3}),
    "half": (lambda p, r: p["slope"] * r.astype(jnp.float32) / 2, {"slope": -0.3}),
    "sum": (
        lambda p, r: jnp.abs(-3 * r).astype(jnp.float32) * p["a"]["b"] - (r - r * 4).astype(jnp.float32),
        {"a": {"b": 2.0}},
    ),
    "jitted": (jax.jit(lambda p, r: jnp.exp(p["slope"]) * jnp.abs(r.astype(jnp.float32))), {"slope": 0.1}),
}


@pytest.mark.parametrize("name", LINES)
def test_the_slope_of_a_line_is_found(name):
    hook, params = LINES[name]
    params = jax.tree.map(jnp.float32, params)
    relative = -jnp.arange(9, dtype=jnp.int32)
    np.testing.assert_allclose(hook(params, relative), slope(hook, params) * np.arange(0.0, -9, -1), rtol=1e-6)


@pytest.mark.parametrize(
    "hook",
    [
        lambda p, r: p["a"] * r.astype(jnp.float32) + 1,
        lambda p, r: p["a"] * jnp.minimum(r, -3).astype(jnp.float32),
        lambda p, r: r.astype(jnp.float32) * jnp.abs(r).astype(jnp.float32),
        lambda p, r: p["a"] * (r // 2).astype(jnp.float32),
        lambda p, r: (0.3 * r.astype(jnp.float32)).astype(int).astype(jnp.float32),
        lambda p, r: p["a"] / (r.astype(jnp.float32) - r.astype(jnp.float32)),
        lambda p, r: -jnp.log1p(jnp.abs(r).astype(jnp.float32)),
        lambda p, r: r.astype(jnp.int8).astype(jnp.float32),
        lambda p, r: r.astype(jnp.bfloat16).astype(jnp.float32),
        lambda p, r: jnp.zeros(r.shape),
    ],
)
def test_what_may_be_no_line_is_refused(hook):
    with pytest.raises(NotImplementedError, match=r"linear|read the distance"):
        slope(hook, {"a": jnp.float32(0.5)})


def inputs(spec, causal, keys=T):
    """Return q, k, v, the hook's parameters, and a function from parameters to hooks."""
    dims = Dims(H, D, kv_heads=K, causal=causal, extent=T)
    encoding = make_encoding(spec, dims)
    params = encoding.init(jax.random.key(0))
    params = adapt(encoding, params, T)
    rng = np.random.default_rng(0)
    shapes = ((N, T, H, D), (N, keys, K, D), (N, keys, K, D))
    q, k, v = (jnp.asarray(rng.normal(size=shape), jnp.bfloat16) for shape in shapes)
    return (q, k, v), params, lambda params: attention_hooks(encoding, params)


def step(implementation, hooks, causal=True):
    """Return the output of an implementation and its gradients for q, k, v and parameters; index None = 0 ... T-1."""

    def loss(q, k, v, params, index):
        operands, layout = prepare(q, k, v, index, index, hooks(params), None)
        output, _ = implementation(check_options(q, causal=causal), layout, operands)
        output = jnp.moveaxis(output, 3, 1).reshape(q.shape)
        return jnp.sum(jnp.sin(output.astype(jnp.float32))), output

    return jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True)


def by_xla(*call):
    return fused_attention(*call, backend="xla", interpret=True)


def same(a, b, tolerance=0.02):
    """Require that two arrays agree as bfloat16 lets them."""
    a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
    np.testing.assert_allclose(a, b, atol=tolerance * max(1, np.abs(b).max()), rtol=0)


ORDER = jnp.arange(T, dtype=jnp.int32)
ORDERS = ORDER + 100, ORDER[::-1], jnp.where(ORDER < 20, ORDER, ORDER - 20)


@pytest.mark.parametrize("spec", ["none", slow("alibi(learned=True)")])
def test_without_a_backend_for_our_kernels_tiles_by_xla_stand_in_for_them(spec, monkeypatch):
    """For orders that fused kernels do not take, for log-sum-exps, and for the gradient of a bias."""
    monkeypatch.setitem(sys.modules, "jax.experimental.pallas.triton", None)
    assert "no Triton backend" in missing_backend()
    arrays, params, hooks = inputs(spec, True)
    ours, reference = (jax.jit(step(f, hooks), compiler_options=QUICK) for f in (by_xla, IMPLEMENTATIONS["reference"]))
    for index in (ORDER, ORDER[::-1]):
        results, right = ours(*arrays, params, index), reference(*arrays, params, index)
        jax.tree.map(functools.partial(same, tolerance=0.03), results, right)
    jaxpr = jax.make_jaxpr(step(by_xla, hooks))(*arrays, params, ORDER)
    assert "pallas_call" not in str(jaxpr)


@pytest.mark.slow
def test_folded_is_the_reference_in_value_and_gradient_in_any_order_of_the_tokens():
    arrays, params, hooks = inputs("alibi", True)
    implementations = by_xla, IMPLEMENTATIONS["reference"]
    ours, reference = (jax.jit(step(f, hooks), compiler_options=QUICK) for f in implementations)
    for index in ORDERS:
        jax.tree.map(same, ours(*arrays, params, index), reference(*arrays, params, index))


@pytest.mark.slow
def test_a_causal_window_is_the_reference_in_any_order_of_the_tokens():
    (q, k, v), params, hooks = inputs("none", True)

    def output(implementation, index):
        operands, layout = prepare(q, k, v, index, index, hooks(params), None)
        return implementation(check_options(q, causal=True, window=9), layout, operands)[0]

    implementations = by_xla, IMPLEMENTATIONS["reference"]
    ours, reference = (jax.jit(functools.partial(output, f), compiler_options=QUICK) for f in implementations)
    for index in (*ORDERS, 2 * ORDER):
        same(ours(index), reference(index))


def test_a_window_needs_tokens_that_follow_each_other_without_gaps():
    (q, k, v), params, hooks = inputs("none", True)
    for index, window, ordered in ((ORDER + 3, 9, True), (2 * ORDER, 9, False), (2 * ORDER, None, True)):
        operands, layout = prepare(q, k, v, index, index, hooks(params), None)
        assert arrays_are_ordered(check_options(q, causal=True, window=window), layout, operands) == ordered


def test_in_order_nothing_but_the_fused_kernel_runs():
    """Log-sum-exps and gradients of the slopes that nobody reads are not computed: no kernel outside the fallback."""
    arrays, params, hooks = inputs("alibi", True)
    run = lambda q, k, v: step(by_xla, hooks)(q, k, v, params, jnp.arange(T))
    closed = jax.make_jaxpr(lambda q, k, v: run(q, k, v)[1][:3])(*arrays)
    flat = jax.make_jaxpr(lambda *arrays: evaluate(closed, enter_all, list(arrays)))(*arrays).jaxpr
    live = dce_jaxpr(flat, [True] * 3)[0]
    outside = [str(equation) for equation in live.eqns if equation.primitive.name != "cond"]
    assert any(equation.primitive.name == "cond" and "pallas_call" in str(equation) for equation in live.eqns)
    assert not [text for text in outside if "pallas_call" in text]


@pytest.mark.parametrize("spec", ["none", "alibi"])
@pytest.mark.parametrize(
    ("order", "is_known"),
    [(None, True), ("0 ... T-1", True), ("with gaps", True), ("backward", False), ("traced", False)],
)
def test_known_positions_leave_no_question_of_order(spec, order, is_known):
    arrays, params, hooks = inputs(spec, True)
    count = jnp.arange(T)
    known = {None: None, "0 ... T-1": count, "with gaps": 3 * count + 1, "backward": count[::-1], "traced": None}[order]

    def run(*arrays):
        positions = jnp.arange(T) if order == "traced" else known
        return step(by_xla, hooks)(*arrays, params, positions)[1][:3]

    jaxpr = jax.make_jaxpr(run)(*arrays).jaxpr
    live = str(dce_jaxpr(jaxpr, [True] * 3)[0])
    assert ("cond[" not in live) == is_known
    assert ("pallas_call" not in live) == is_known


def test_a_sequence_as_it_stands_is_known_by_all_of_its_fields():
    count = jnp.arange(T)
    assert count_from_zero(TokenPositions(count))
    others = (
        TokenPositions(count + 1), TokenPositions(count[::-1]), TokenPositions(count.astype(jnp.float32)),
        TokenPositions(jnp.stack([count, count])), TokenPositions(count, segment_ids=count // 4),
        TokenPositions(count, order=count), TokenPositions(count, has_position=count > 3),
    )  # fmt: skip
    assert not [tokens for tokens in others if count_from_zero(tokens)]
    (q, k, v), params, hooks = inputs("none", True)
    layout = prepare(q[:, : T - 2], k, v, count[: T - 2], count, hooks(params), None)[1]
    assert not layout.in_order


def test_without_a_mask_there_is_no_question_of_order():
    arrays, params, hooks = inputs("none", False, keys=T)
    jaxpr = jax.make_jaxpr(lambda q: step(by_xla, hooks, causal=False)(q, *arrays[1:], params, jnp.arange(T))[0][0])
    assert "cond" not in {equation.primitive.name for equation in jaxpr(arrays[0]).jaxpr.eqns}


def hooked(p, r):
    return jnp.sqrt(jnp.abs(r.astype(jnp.float32)))


CURVE = Hooks(distance_bias=Partial(hooked, {}))
LINE = Hooks(distance_bias=Partial(lambda p, r: -jnp.abs(r.astype(jnp.float32)), {}))


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ({"dtype": jnp.float32}, "bfloat16"),
        ({"rate": 0.1}, "dropout"),
        ({"soft_cap": 2.0}, "soft cap"),
        ({"distance_range": (2, 4)}, "distance range"),
        ({"window": 3, "causal": False}, "a window only where causal"),
        ({"segment_ids": jnp.ones(T, jnp.int32)}, "no segment_ids"),
        ({"keys": T + 1}, "as many keys"),
        ({"keys": T + 1, "causal": False}, f"even number of queries and of keys, got {T} and {T + 1}"),
        ({"hooks": LINE, "causal": False}, "a bias only where causal"),
        ({"hooks": LINE, "positions": jnp.arange(T, dtype=jnp.float32)}, "integer positions on one axis"),
        ({"hooks": LINE, "has_position": jnp.ones(T, bool)}, "all tokens have a position"),
        ({"hooks": CURVE}, "not known to be linear"),
        ({"hooks": Hooks(relative_values=Partial(lambda *x: x, {}))}, "relative_values"),
        ({"backend": "cudnn"}, "cuDNN"),
    ],
)
def test_what_a_fused_kernel_cannot_do_it_says(call, reason):
    rest = {**call}
    q = jnp.ones((N, T, H, D), rest.pop("dtype", jnp.bfloat16))
    k = jnp.ones((N, rest.pop("keys", T), K, D), q.dtype)
    seed, rate = check_dropout((jax.random.key(0), rest.pop("rate", 0.0)))
    hooks, backend = rest.pop("hooks", Hooks()), rest.pop("backend", "xla")
    fields = {"positions": jnp.arange(T), "order": jnp.arange(T)}
    fields |= {name: rest.pop(name) for name in ("positions", "segment_ids", "has_position") if name in rest}
    names = ("causal", "window", "distance_range", "scale", "soft_cap")
    given = {name: item for name, item in {"causal": True, **rest}.items() if name in names}
    options = check_options(q, **given)._replace(dropout_rate=rate)
    k_tokens = TokenPositions(jnp.arange(k.shape[1])) if k.shape[1] != T else TokenPositions(**fields)
    operands, layout = prepare(q, k, k, TokenPositions(**fields), k_tokens, hooks, seed)
    with pytest.raises(NotImplementedError, match=reason):
        jax.eval_shape(lambda: fused_attention(options, layout, operands, backend=backend, interpret=True))
