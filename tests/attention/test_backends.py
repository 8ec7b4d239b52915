"""Every implementation against the dense reference in float64, over drawn shapes, masks and encodings."""

import contextlib
import functools
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from jax.tree_util import Partial

import pejax
from pejax import (
    Dims,
    Hooks,
    TokenPositions,
    adapt,
    attention_weights,
    dot_product_attention,
    explain_attention,
    make_encoding,
    segment_positions,
)
from pejax._attention import backends
from pejax._attention.backends import IMPLEMENTATIONS, PREFERENCES
from pejax._attention.core.hooks import attention_hooks
from pejax._attention.xla import blockwise, cpu
from pejax._record.encoding import merge_params
from tests.support.cases import mostly_slow, slow

QUICK = {"xla_backend_optimization_level": "0"}  # most of the time goes into compiling
ENCODINGS = ("none", "alibi", "t5", "kerple", "fire", "shaw", "transformer_xl")
TILED = tuple(name for name in IMPLEMENTATIONS if name not in ("reference", "cudnn", "mosaic_gpu"))
D = 8


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Let short sequences have many tiles."""
    monkeypatch.setattr(blockwise, "BLOCK", 8)
    monkeypatch.setattr(cpu, "BLOCK", 16)
    monkeypatch.setattr(cpu, "BACKWARD", 8)


@st.composite
def calls(draw):
    """Draw one call of attention."""
    t = draw(st.integers(1, 40))
    causal = draw(st.booleans())
    return {
        "spec": draw(st.sampled_from(ENCODINGS)),
        "t": t,
        "s": draw(st.sampled_from([t, t, draw(st.integers(1, 40))])),
        "heads": draw(st.sampled_from([(2, 2), (4, 2), (3, 1)])),
        "causal": causal,
        "window": draw(st.sampled_from([None, None, 1, 7])),
        "soft_cap": draw(st.sampled_from([None, None, 3.0])),
        "rate": draw(st.sampled_from([0.0, 0.0, 0.3])),
        "tokens": draw(st.sampled_from(["plain", "late", "packed", "prefix", "scattered"])),
        "dtype": draw(st.sampled_from(["float32", "bfloat16"])),
        "seed": draw(st.integers(0, 99)),
    }


def tokens_of(call, length):
    """Return the tokens of one side."""
    rng, index = np.random.default_rng(length), jnp.arange(length)
    match call["tokens"]:
        case "plain":
            return TokenPositions(index)
        case "late":
            return TokenPositions(index + 5)
        case "packed":
            segments = jnp.asarray(np.sort(rng.integers(0, 3, length)))
            return TokenPositions(segment_positions(segments), index, segment_ids=segments)
        case "prefix":
            return TokenPositions(jnp.maximum(index - 1, 0), index, index > 0)
        case _:
            return TokenPositions(jnp.asarray(rng.integers(0, 60, length), jnp.int32), index)


def arrays_of(call):
    """Return q, k, v, the encoding's parameters and the output's cotangent, rounded to the call's type, in float64."""
    rng, (h, kv) = np.random.default_rng(call["seed"]), call["heads"]
    dims = Dims(h, D, kv_heads=kv, causal=call["causal"], extent=40)
    encoding = make_encoding(call["spec"], dims)
    params = merge_params(encoding.init(jax.random.key(0)), encoding.init_layer(jax.random.key(call["seed"])))
    shapes = [(2, call["t"], h, D), (2, call["s"], kv, D), (2, call["s"], kv, D), (2, call["t"], h, D)]
    rounded = [np.asarray(jnp.asarray(rng.normal(size=shape), call["dtype"]), np.float64) for shape in shapes]
    return encoding, params, rounded


def run(call, implementation, dtype):
    """Return output, log-sum-exp and the gradients of q, k, v and the parameters, as float64."""
    step, *arrays = step_of(call, implementation, dtype)
    return [np.asarray(x, np.float64) for x in jax.tree.leaves(jax.jit(step, compiler_options=QUICK)(*arrays)[1:])]


def step_of(call, implementation, dtype):
    """Return a function of (q, k, v) and parameters, to loss, (output, log-sum-exp) and gradients; and these."""
    encoding, params, (*qkv, cotangent) = arrays_of(call)

    def loss(qkv, params):
        settled = adapt(encoding, params, 40)
        output, lse = attention_of(call, implementation)(*qkv, hooks=attention_hooks(encoding, settled))
        weighed = output * jnp.asarray(cotangent, output.dtype)
        return jnp.sum(weighed.astype(jnp.float64 if dtype == "float64" else jnp.float32)), (output, lse)

    def step(qkv, params):
        (total, results), gradients = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(qkv, params)
        return total, results, gradients

    return step, [jnp.asarray(x, dtype) for x in qkv], params


def attention_of(call, implementation):
    """Return attention with the options of the call."""
    key = jax.random.wrap_key_data(np.asarray([0, call["seed"]], np.uint32))
    return functools.partial(
        dot_product_attention,
        positions=tokens_of(call, call["t"]),
        k_positions=tokens_of(call, call["s"]),
        dropout=(key, call["rate"]) if call["rate"] else None,
        return_lse=True,
        implementation=implementation,
        **{name: call[name] for name in ("causal", "window", "soft_cap")},
    )


def magnitudes(call):
    """Return the sums behind output, log-sum-exp, dq, dk and dv, of absolute values, and those of the logits."""
    encoding, params, (q, k, v, cotangent) = arrays_of(call)
    settled = adapt(encoding, params, 40)
    hooks = attention_hooks(encoding, settled)
    options = {name: call[name] for name in ("causal", "window", "soft_cap")}
    sides = {"positions": tokens_of(call, call["t"]), "k_positions": tokens_of(call, call["s"])}
    q32, k32 = (jnp.asarray(x, jnp.float32) for x in (q, k))
    w = np.asarray(attention_weights(q32, k32, **sides, hooks=hooks, **options), np.float64) / (1 - call["rate"])
    group = q.shape[2] // k.shape[2]
    k, v = (np.repeat(np.abs(x), group, axis=2) for x in (k, v))
    q, d = np.abs(q), np.abs(cotangent)
    output = np.einsum("bhts,bshd->bthd", w, v)
    logits = w * (np.einsum("bthd,bshd->bhts", d, v) + np.einsum("bthd,bthd->bht", d, output)[..., None])
    ways = ("bhts,bshd->bthd", logits, k), ("bhts,bthd->bshd", logits, q), ("bhts,bthd->bshd", w, d)
    sums = [np.max(np.einsum(*way), initial=0) * group for way in ways]
    return [np.max(output, initial=0), 10.0, *sums], np.sum(logits)


draws = functools.partial(settings, derandomize=True, deadline=None, database=None, phases=[Phase.generate])


@pytest.mark.slow
@pytest.mark.parametrize("implementations", [("cpu", "blockwise"), ("gpu",), ("tpu",)], ids=" ".join)
@draws(max_examples=4)
@given(call=calls())
def test_no_implementation_is_worse_than_twice_the_dense_one_in_the_same_type(implementations, call):
    check(implementations, call)


@pytest.mark.long
@draws(max_examples=150)
@given(call=calls())
def test_no_implementation_is_worse_over_many_draws(call):
    check(TILED, call)


PLAIN = {"t": 40, "s": 40, "heads": (4, 2), "causal": True, "window": None, "soft_cap": None, "rate": 0.0}
PLAIN |= {"tokens": "plain", "dtype": "float64", "seed": 0}
BIASED = [
    name for name in pejax.ENCODINGS if make_encoding(name, Dims(heads=4, head_dim=8, extent=40)).bias is not None
]


@pytest.mark.slow
@pytest.mark.parametrize("spec", mostly_slow(BIASED, ("shaw",)))
def test_queries_of_float64_have_gradients_in_tiles(spec):
    """Positions that count on by one, so that a bias of the distance is read from its line."""
    with jax.enable_x64(True):
        _, results, gradients = jax.eval_shape(*step_of({**PLAIN, "spec": spec}, "cpu", "float64"))
    assert {leaf.dtype for leaf in (*results, *gradients[0])} == {jnp.dtype("float64")}
    assert {leaf.dtype for leaf in jax.tree.leaves(gradients[1])} <= {jnp.dtype("float32")}


@pytest.mark.parametrize("spec", [slow("alibi"), "t5"])
def test_a_line_of_biases_is_added_to_queries_of_float64(spec):
    call = {**PLAIN, "spec": spec}
    with jax.enable_x64(True):
        dense, tiled = (run(call, name, "float64") for name in ("reference", "cpu"))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6), tiled, dense)


def check(implementations, call):
    """Require `error <= 2 · error of the reference + 8 eps · sums of absolute values`, in the maximum norm."""
    result = {}
    for name in implementations:
        with contextlib.suppress(NotImplementedError):
            result[name] = run(call, name, call["dtype"])
    if not result:
        return
    with jax.enable_x64(True):
        truth = run(call, "reference", "float64")
    dense = run(call, "reference", call["dtype"])
    sums, logits = magnitudes(call)
    sums += [logits] * (len(truth) - len(sums))
    eps = float(jnp.finfo(call["dtype"]).eps)
    for name, results in result.items():
        for i, (want, got, peer, size) in enumerate(zip(truth, results, dense, sums, strict=True)):
            seen = np.isfinite(want)
            np.testing.assert_array_equal(np.isneginf(got), ~seen)
            error, allowed = (np.max(np.abs(x[seen] - want[seen]), initial=0) for x in (got, peer))
            assert error <= 2 * allowed + 8 * eps * size, (name, i, error, allowed, size)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["cpu", slow("blockwise")])
@pytest.mark.parametrize("length", [slow(4), 16])
def test_products_of_bfloat16_outside_of_loops_compile(implementation, length):
    """A loop of one turn is inlined, and XLA:CPU has refused the product BF16 x BF16 = F32 that it then meets."""
    q, k, v = jax.random.normal(jax.random.key(0), (3, length, 1, D), jnp.bfloat16)
    run = lambda q, k, v, name: dot_product_attention(q, k, v, positions=jnp.arange(length), implementation=name)
    loss = lambda q, k, v, name: jnp.sum(run(q, k, v, name).astype(jnp.float32) ** 2)
    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)), static_argnums=3)
    tiled, dense = step(q, k, v, implementation), step(q, k, v, "reference")
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(*(np.asarray(x, np.float32) for x in (a, b)), atol=0.05), tiled, dense
    )


def test_a_gpu_goes_on_by_xla_where_jax_has_no_backend_for_its_kernels(monkeypatch):
    monkeypatch.setattr(backends, "platform", lambda: "gpu")

    def lines_for(length):
        q = jax.ShapeDtypeStruct((1, length, 2, D), jnp.float32)
        text = explain_attention(q, q, q, positions=jnp.arange(length), causal=True)
        return dict(line.split(": ", 1) for line in text.split("\n")[1:])

    assert lines_for(2048)["gpu"].startswith("runs")
    monkeypatch.setitem(sys.modules, "jax.experimental.pallas.triton", None)
    lines = lines_for(2056)  # `jit` remembers what ran at another length
    assert lines["gpu"].startswith(f"jax {jax.__version__} has no Triton backend in Pallas")
    assert lines["blockwise"] == "runs"
    with pytest.raises(NotImplementedError, match=r"gpu: jax .* has no Triton backend in Pallas.*blockwise"):
        dot_product_attention(
            jnp.ones((1, 8, 2, 8)), jnp.ones((1, 8, 2, 8)), jnp.ones((1, 8, 2, 8)), implementation="gpu"
        )


@pytest.mark.slow
def test_no_import_needs_the_backend_of_the_gpu_kernels():
    """As jax may be one day, from the first import on."""
    program = (
        "import sys; sys.modules['jax.experimental.pallas.triton'] = None\n"
        "import jax, jax.numpy as jnp, pejax\n"
        "from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh\n"
        "q = jax.ShapeDtypeStruct((1, 2048, 2, 64), jnp.bfloat16)\n"
        "with use_abstract_mesh(AbstractMesh((), (), abstract_device=AbstractDevice('NVIDIA H100', None, 'gpu'))):\n"
        "    print(pejax.explain_attention(q, q, q, causal=True))\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "has no Triton backend in Pallas" in run.stdout
    assert "blockwise: runs" in run.stdout or "cudnn: runs" in run.stdout


def test_an_explanation_says_what_runs_and_why_others_do_not():
    q = jax.ShapeDtypeStruct((1, 2048, 2, D), jnp.float32)
    said = explain_attention(q, q, q, positions=jnp.arange(2048), causal=True).split("\n")
    assert said[0] == "cpu: 2,048 queries, 2,048 keys, 2 heads, float32"
    lines = dict(line.split(": ", 1) for line in said[1:])
    assert set(lines) == set(IMPLEMENTATIONS)
    assert lines["cpu"] == "runs"
    assert lines["dense"] == "not needed, cpu comes first at this size"
    assert lines["tpu"] == "not among those tried on cpu"
    short = jax.ShapeDtypeStruct((1, 8, 2, D), jnp.float32)
    assert "dense: runs" in explain_attention(short, short, short, positions=jnp.arange(8))
    named = explain_attention(short, short, short, positions=jnp.arange(8), implementation="blockwise")
    assert "blockwise: runs" in named
    assert "cpu: not asked for" in named


def test_every_platform_ends_with_one_that_can_do_everything():
    assert all(set(kernels) <= set(IMPLEMENTATIONS) for *_, kernels in PREFERENCES.values())


ANY = ("reference", "blockwise", "cpu")


def holed(params, q, k, q_positions, k_positions):
    """Not a number where the key is 3 tokens ahead, or 2 behind."""
    distances = k_positions[None, :] - q_positions[:, None]
    return jnp.where((distances == 3) | (distances == -2), jnp.nan, 0.0) * params["one"]


@pytest.mark.slow
@pytest.mark.parametrize("implementation", mostly_slow(ANY, ["cpu"]))
def test_what_is_not_a_number_stays_in_the_rows_that_see_it(implementation):
    """A bias of NaN where nothing is seen changes nothing; where something is seen it is not hidden."""
    q, k, v = jax.random.normal(jax.random.key(0), (3, 12, 1, D))
    hooks = Hooks(bias=Partial(holed, {"all": {"one": jnp.ones(())}}))
    output = dot_product_attention(
        q, k, v, positions=jnp.arange(12), causal=True, hooks=hooks, implementation=implementation
    )
    np.testing.assert_array_equal(np.isnan(output).all((1, 2)), np.arange(12) >= 2)
    plain = dot_product_attention(
        q, k, v, positions=jnp.arange(12), causal=True, window=2, implementation=implementation
    )
    dropped = dot_product_attention(
        q, k, v, positions=jnp.arange(12), causal=True, window=2, hooks=hooks, implementation=implementation
    )
    np.testing.assert_allclose(dropped, plain, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", mostly_slow(ANY, ["cpu"]))
def test_logits_beyond_the_range_of_float16_are_right(implementation):
    q, k, v = jax.random.normal(jax.random.key(1), (3, 20, 2, D), jnp.float16) * jnp.float16([200, 200, 1]).reshape(
        3, 1, 1, 1
    )
    largest = np.max(np.einsum("thd,shd->hts", *(np.asarray(x, np.float64) for x in (q, k))))
    assert largest > float(jnp.finfo(jnp.float16).max)

    def run(dtype):
        arrays = (x.astype(dtype) for x in (q, k, v))
        return dot_product_attention(*arrays, positions=jnp.arange(20), scale=1.0, implementation=implementation)

    half = run(jnp.float16)
    assert half.dtype == jnp.float16
    np.testing.assert_allclose(np.asarray(half, np.float32), run(jnp.float32), atol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", mostly_slow(ANY, ["cpu"]))
def test_rows_that_see_nothing_are_zero_and_so_are_their_gradients(implementation):
    q, k, v = jax.random.normal(jax.random.key(2), (3, 20, 2, D))
    segments = jnp.asarray([0] * 3 + [1] * 10 + [0] * 7)
    tokens = TokenPositions(jnp.arange(20), segment_ids=segments)
    run = lambda q, k, v: dot_product_attention(q, k, v, positions=tokens, causal=True, implementation=implementation)
    output, pull = jax.vjp(run, q, k, v)
    for array in (output, *pull(jnp.ones_like(output))):
        np.testing.assert_array_equal(np.asarray(array)[np.asarray(segments) == 0], 0.0)
        assert np.isfinite(array).all()
        assert np.any(np.asarray(array) != 0)


def level(params, q, k, q_positions, k_positions):
    """The same for all pairs of a head: it changes no weight, and its gradient is 0."""
    return jnp.full((len(q), len(k)), params["level"])


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["cpu", slow("blockwise")])
def test_rounding_the_output_to_bfloat16_adds_nothing_to_the_gradient_of_a_bias(implementation):
    """By the rounded output it would be 0.032; what is left comes of rounding the weights."""
    q, k, v, d_output = jax.random.normal(jax.random.key(0), (4, 64, 32, 16)).astype(jnp.bfloat16)

    def total(params):
        hooks = Hooks(bias=Partial(level, {"heads": params}))
        options = {"window": 4, "hooks": hooks, "implementation": implementation}
        output = dot_product_attention(q, k, v, positions=jnp.arange(64), **options)
        return jnp.sum((output * d_output).astype(jnp.float32))

    gradient = jax.jit(jax.grad(total), compiler_options=QUICK)({"level": jnp.zeros(32)})["level"]
    assert jnp.sqrt(jnp.mean(gradient**2)) < 0.02
