"""The kernels for GPUs: against the dense reference in Pallas's interpreter, and lowered for CUDA."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jax.interpreters.partial_eval import dce_jaxpr
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh
from jax.tree_util import Partial

from pejax import Dims, Hooks, TokenPositions, adapt, dot_product_attention, init_params, make_encoding
from pejax._attention import backends
from pejax._attention.backends import IMPLEMENTATIONS
from pejax._attention.core.dropout import check_dropout
from pejax._attention.core.hooks import attention_hooks
from pejax._attention.core.masks import visible
from pejax._attention.core.operands import prepare
from pejax._attention.core.options import Options, check_options
from pejax._attention.gpu import gpu_attention as gpu
from pejax._attention.gpu import gpu_bias_gradients as bias_gradients
from pejax._attention.gpu.triton_params import KernelParams, warn_of_removal
from pejax._attention.kernels import elementwise
from pejax._attention.kernels.block_masks import TokenRows, spans, tiles
from pejax._attention.kernels.elementwise import cut
from tests.support.cases import mostly_slow

QUICK = {"xla_backend_optimization_level": "0"}  # all of the time goes into compiling
N, H, K, D = 2, 4, 2, 8


def sides(case):
    """Return the tokens of a case: positions that count tokens, and whatever else it asks for."""
    if case.get("in_order"):
        return [TokenPositions(jnp.arange(case["t"]))] * 2
    if "grid" in case:  # behind two tokens without a position
        grid = np.stack(np.indices(case["grid"]), -1).reshape(case["t"] - 2, -1).astype(np.int32)
        positions = np.concatenate([np.zeros_like(grid[:2]), grid + 1])
        segments = np.repeat([1, 2, 0], [case["t"] - 9, 6, 3]) if case.get("segments") else None
        fields = positions, np.arange(case["t"]), np.arange(case["t"]) >= 2, segments
        return [TokenPositions(*(None if x is None else jnp.asarray(x) for x in fields))] * 2
    result = []
    for length in (case["t"], case["s"]):
        index = np.arange(length, dtype=np.int32) + (case["s"] - length if length == case["t"] else 0)
        positions = np.stack(np.divmod(index, 7), -1) if case.get("axes") else index
        if case.get("floats"):
            positions = (positions * 0.7).astype(np.float32)
        if case.get("batched"):
            positions = np.stack([positions, positions])
        placed = index > 1 if case.get("unplaced") else None
        segments = np.repeat([3, 1, 0], [length // 2, length - length // 2 - 2, 2]) if case.get("segments") else None
        if segments is not None and case.get("batched"):
            segments = np.stack([segments, np.ones(length, int)])
        fields = (None if x is None else jnp.asarray(x) for x in (positions, index, placed, segments))
        result.append(TokenPositions(*fields))
    return result


CASES = {
    "none, causal": {"spec": "none", "causal": True, "t": 37, "s": 37},
    "alibi, packed, unplaced, batched": {
        **{"spec": "alibi", "causal": True, "t": 35, "s": 35},
        **{"segments": True, "unplaced": True, "batched": True, "stretch": 3},
    },
    "alibi, two axes, floats, cap": {"spec": "alibi", "axes": 2, "floats": True, "t": 18, "s": 35, "soft_cap": 2.0},
    "kerple, window": {
        **{"spec": "kerple", "causal": True, "window": 19, "t": 37, "s": 37, "stretch": 2},
        "forward": True,  # the ways back are those of alibi and of t5
    },
    "t5, packed, cross, unplaced": {"spec": "t5", "t": 33, "s": 40, "unplaced": True, "stretch": 2},
    "t5, far tiles": {
        **{"spec": "t5(buckets=8, max_distance=20)", "causal": True, "t": 90, "s": 90, "in_order": True},
    },
    "t5, far tiles both ways, window": {
        **{"spec": "t5(buckets=8, max_distance=20)", "t": 77, "s": 77, "in_order": True, "window": 60},
    },
    "t5, no mask": {"spec": "t5(buckets=8, max_distance=200)", "t": 64, "s": 64, "in_order": True},
    "t5, no mask, cross": {"spec": "t5(buckets=8, max_distance=200)", "t": 32, "s": 64, "stretch": 2},
    "t5, far tiles, cap": {
        **{"spec": "t5(buckets=8, max_distance=20)", "t": 70, "s": 70, "in_order": True, "soft_cap": 2.0},
    },
    "cpb, grid, unplaced, packed": {
        **{"spec": "cpb(hidden=4)", "axes": 2, "t": 30, "s": 30, "grid": (4, 7), "segments": True},
    },
    "relative_table, grid, dropout, window": {
        **{"spec": "relative_table", "axes": 2, "t": 37, "s": 37, "grid": (5, 7), "rate": 0.3, "window": 30},
    },
    "t5, volume": {"spec": "t5(buckets=8, max_distance=20)", "axes": 3, "t": 26, "s": 26, "grid": (2, 3, 4)},
    "alibi, dropout, range, blind rows": {"spec": "alibi", "rate": 0.3, "distance_range": (6, 9), "t": 5, "s": 24},
}


def program(case, implementation, dtype=jnp.float32, block=16):
    """Return the case's outputs and all its gradients as a function of its arrays, and the arrays."""
    axes = case.get("axes", 1)
    dims = Dims(H, D, kv_heads=K, axes=axes, causal=case.get("causal", False), extent=64 if axes == 1 else (8,) * axes)
    encoding = make_encoding(case["spec"], dims)
    noisy = lambda x: jax.random.normal(jax.random.key(1), x.shape) if not np.any(x) else x
    params = jax.tree.map(noisy, init_params(encoding, jax.random.key(0)))
    params = adapt(encoding, params, dims.extent)
    names = ("causal", "window", "distance_range", "scale", "soft_cap")
    rng = np.random.default_rng(0)
    lengths = ((case["t"], H), (case["s"], K), (case["s"], K), (case["t"], H))
    q, k, v, d_output = (jnp.asarray(rng.normal(size=(N, *shape, D)), dtype) for shape in lengths)
    d_lse = jnp.asarray(rng.normal(size=(N, case["t"], H)), jnp.float32)
    options = check_options(q, **{name: case[name] for name in names if name in case})
    q_tokens, k_tokens = sides(case)
    seed, rate = check_dropout((jax.random.key(3), case["rate"]) if "rate" in case else None)
    options = options._replace(dropout_rate=rate, block=block)

    def loss(q, k, v, params, q_positions, k_positions):
        tokens = q_tokens, k_tokens
        if not (
            case.get("in_order") or "grid" in case
        ):  # not known where it is traced, so that every case has both ways
            tokens = q_tokens._replace(positions=q_positions), k_tokens._replace(positions=k_positions)
        operands, layout = prepare(q, k, v, *tokens, attention_hooks(encoding, params), seed)
        output, lse = implementation(options, layout, operands)
        output, lse = jnp.moveaxis(output, 3, 1).reshape(q.shape), jnp.moveaxis(lse, 3, 1).reshape(q.shape[:3])
        seen = ~jnp.isneginf(lse)
        total = jnp.sum(output.astype(jnp.float32) * d_output.astype(jnp.float32))
        return total + jnp.sum(jnp.where(seen, jnp.where(seen, lse, 0.0) * d_lse, 0.0)), (output, lse)

    arrays = q, k, v, params, q_tokens.positions, k_tokens.positions
    if case.get("forward"):
        return (lambda *arrays: (loss(*arrays), ())), arrays
    learned = (0, 1, 2, 3, 4, 5) if case.get("floats") else (0, 1, 2, 3)
    return jax.value_and_grad(loss, learned, has_aux=True), arrays


def interpreted(*call):
    return gpu.gpu_attention(*call, interpret=True)


def agree(got, want, tolerance):
    """Require that two trees agree, relative to the largest number of each array."""

    def same(a, b):
        a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
        size = np.abs(b[np.isfinite(b)]).max(initial=1)
        np.testing.assert_allclose(a, b, atol=tolerance * size, rtol=0)

    jax.tree.map(same, got, want)


EVERY_RUN = ("t5, no mask, cross",)


@pytest.mark.parametrize("name", mostly_slow(CASES, EVERY_RUN))
def test_kernels_are_the_reference_in_value_and_every_gradient(name, monkeypatch):
    """Twice where positions choose the way at run time: positions that count tokens, and the same stretched."""
    monkeypatch.setattr(bias_gradients, "PROGRAMS", 1)  # so that sequences share programs
    case = CASES[name]
    (ours, arrays), (reference, _) = (program(case, f) for f in (interpreted, IMPLEMENTATIONS["reference"]))
    ours, reference = (jax.jit(f, compiler_options=QUICK) for f in (ours, reference))
    for stretch in {1, case.get("stretch", 1)}:
        placed = (*arrays[:4], *(positions * stretch for positions in arrays[4:]))
        got, want = ours(*placed), reference(*placed)
        agree(got, want, 1e-5)
        output, lse = got[0][1]
        assert (np.asarray(output)[np.isneginf(np.asarray(lse))] == 0).all()
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(got[1]))


@pytest.mark.slow
def test_narrow_types_keep_their_type_and_lose_no_more_than_it_does():
    case = {"spec": "none", "t": 32, "s": 48}  # and no mask, nor padding
    implementations = interpreted, IMPLEMENTATIONS["reference"]
    (ours, arrays), (reference, _) = (program(case, f, jnp.bfloat16) for f in implementations)
    got, want = (jax.jit(f, compiler_options=QUICK)(*arrays) for f in (ours, reference))
    assert got[0][1][0].dtype == got[1][0].dtype == jnp.bfloat16
    agree(got, want, 0.03)


@pytest.mark.slow
def test_they_are_reached_by_name():
    """And cuDNN's by its own, but not from here."""
    q, k = jnp.ones((1, 20, 4, 8), jnp.bfloat16), jnp.ones((1, 20, 2, 8), jnp.bfloat16)
    attend = functools.partial(dot_product_attention, q, k, k, positions=jnp.arange(20), causal=True)
    np.testing.assert_array_equal(attend(implementation="gpu"), 1)
    with pytest.raises(NotImplementedError, match="cudnn"):
        attend(implementation="cudnn")


H100 = AbstractMesh((), (), abstract_device=AbstractDevice("NVIDIA H100 80GB HBM3", None, "gpu"))
"""What kernels are lowered for where there is no GPU."""


def lowered(function, *arrays):
    """Return the text of a function's program for an H100."""
    with use_abstract_mesh(H100):
        return jax.jit(function).trace(*arrays).lower(lowering_platforms=("cuda",)).as_text()


def test_a_gpu_tries_them_and_a_mesh_of_several_does_not(monkeypatch):
    monkeypatch.setattr(backends, "platform", lambda: "gpu")
    q = jnp.ones((1, 520, 4, 8))
    step = jax.jit(lambda q: dot_product_attention(q, q, q, positions=jnp.arange(520), causal=True))
    assert "pejax_forward" in lowered(step, q)
    with jax.set_mesh(jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))):
        assert "pejax_forward" not in step.trace(q).lower(lowering_platforms=("cuda",)).as_text()


def kernel_of(params):
    copy = lambda x_ref, y_ref: y_ref.__setitem__(..., x_ref[...])
    return pl.pallas_call(copy, jax.ShapeDtypeStruct((16,), jnp.float32), compiler_params=params)


@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="JAX 0.11 is the first that warns")
def test_that_jax_will_drop_its_triton_backend_is_told_once_in_our_words(recwarn):
    """And for a kernel of somebody else's, which differs by its parameters alone, in JAX's."""
    warn_of_removal.cache_clear()
    with pytest.warns(
        FutureWarning, match="pejax need Pallas's Triton backend, which JAX is going to remove"
    ) as warned:
        assert "triton" in lowered(kernel_of(KernelParams()), jnp.ones(16))
    assert len(warned) == 1
    assert "triton" in lowered(kernel_of(KernelParams()), jnp.ones(16))
    assert not recwarn
    with pytest.warns(DeprecationWarning, match="Pallas Triton backend is deprecated"):
        lowered(kernel_of(triton.CompilerParams()), jnp.ones(16))


LOWERED = {
    "none": {"forward", "query_gradients", "key_gradients"},
    "t5": {"forward", "query_gradients", "key_gradients", "diagonal_gradients"},
    "kerple(variant='power')": {
        "forward",
        "query_gradients",
        "key_gradients",
        "bias_gradients_by_queries",
        "bias_gradients_by_keys",
    },
}


@pytest.mark.parametrize("dtype", [pytest.param(jnp.float32, marks=pytest.mark.slow), jnp.bfloat16])
@pytest.mark.parametrize("spec", mostly_slow(LOWERED, ["none"]))
def test_every_kernel_lowers_to_triton(spec, dtype):
    """With all that a tile can ask for, in the sizes that a GPU gets."""
    case = {"spec": spec, "causal": True, "window": 100, "t": 200, "s": 200, "segments": True, "unplaced": True}
    case |= {"axes": 2, "floats": True, "soft_cap": 3.0, "rate": 0.1} if "power" in spec else {}
    step, arrays = program(case, gpu.gpu_attention, dtype, block=0)
    text = lowered(step, *arrays)
    assert all(f"pejax_{kernel}" in text for kernel in LOWERED[spec])


def test_a_gradient_that_nobody_asks_for_costs_no_kernel():
    step, (q, k, v, *fixed) = program({"spec": "alibi", "causal": True, "t": 200, "s": 200}, gpu.gpu_attention, block=0)
    jaxpr = jax.make_jaxpr(lambda q, k, v: step(q, k, v, *fixed)[1][:3])(q, k, v).jaxpr
    text = str(dce_jaxpr(jaxpr, [True, False, False])[0])
    assert "pejax_query_gradients" in text
    assert "pejax_bias_gradients_by_queries" not in text
    assert "pejax_key_gradients" not in text


@pytest.mark.parametrize("seed", mostly_slow(range(6), [0, 4]))
def test_spans_miss_no_pair_and_whole_tiles_hide_none(seed):
    rng = np.random.default_rng(seed)
    order = lambda n: jnp.asarray(np.sort(rng.integers(-20, 20, n)) if seed % 2 else rng.integers(-9, 9, n), jnp.int32)
    segments = lambda n: jnp.asarray(np.sort(rng.integers(0, 3, n)), jnp.int32) if seed % 3 else None
    sides = [TokenPositions(jnp.zeros(n), order(n), None, segments(n)) for n in (24, 40)]
    options = Options(1.0, bool(seed & 1), [None, 7][seed >> 1 & 1], [None, (3, 12)][seed >> 2 & 1])
    mask = visible(options, *sides)
    if mask is None:
        mask = jnp.ones((24, 40), bool)
    pairs = np.asarray(mask).reshape(3, 8, 5, 8).transpose(0, 2, 1, 3).reshape(3, 5, 64)
    result = tiles(options, *(_token_rows(side, options) for side in sides), (8, 8))
    if result is None:
        assert pairs.all()
        return
    for some_visible, all_visible, span, seen in zip(result.visible, result.full, spans(result), [pairs], strict=True):
        assert (np.asarray(some_visible) >= seen.any(-1)).all()
        assert (np.asarray(all_visible) <= seen.all(-1)).all()
        for (first, begin, near, far, after, last), row in zip(np.asarray(span), seen, strict=True):
            assert (near, far) == (begin, after)
            assert first <= begin <= after <= last
            assert not row[:first].any()
            assert not row[last:].any()
            assert row[begin:after].all()


def _token_rows(side, options):
    ordered = options.causal or options.window or options.distance_range
    order = side.order[None] if ordered else None
    return TokenRows(order, None if side.segment_ids is None else side.segment_ids[None])


@pytest.mark.slow
def test_causal_blocks_visit_half_of_the_tiles():
    order = TokenRows(jnp.arange(64, dtype=jnp.int32)[None])
    (span,) = np.asarray(spans(tiles(Options(1.0, causal=True), order, order, (8, 8))))
    assert span.tolist() == [[0, 0, 0, i, i, i + 1] for i in range(8)]


def hooked(hook, params, axes=1):
    shape = (16,) if axes == 1 else (16, axes)
    relative = jnp.asarray(np.random.default_rng(0).integers(-9, 9, shape), jnp.float32)
    halves = cut(hook, params, axes, jnp.float32)
    split = [relative] if axes == 1 else [relative[:, a] for a in range(axes)]
    return halves.inside(halves.outside(params), tuple(x.reshape(4, 4) for x in split)).reshape(-1), hook(
        params, relative
    )


@pytest.mark.parametrize(
    ("hook", "axes"),
    [
        (lambda p, r: jnp.exp(p["a"][0]) * jnp.where(r > p["b"], jnp.tanh(r), jnp.clip(r, -2, 2)), 1),
        (lambda p, r: p["b"] * jnp.max(jnp.abs(r), axis=-1) + jnp.sum(p["a"]) * r[:, 1], 2),
        (lambda p, r: jax.nn.softplus(p["b"]) * jax.jit(lambda x: x**2 / (1 + x**2))(r), 1),
        (lambda p, r: jnp.sum(jnp.square(r) * jax.lax.stop_gradient(p["b"]), -1) ** 0.5, 3),
    ],
)
def test_a_hook_cut_in_two_is_the_hook(hook, axes):
    params = {"a": jnp.asarray([0.3, -1.2]), "b": jnp.asarray(0.7)}
    got, want = hooked(hook, params, axes)
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize(
    ("hook", "reason"),
    [
        (lambda p, r: jnp.cumsum(r), "cumsum"),
        (lambda p, r: p["a"][jnp.abs(r).astype(int)], "reads an array"),
        (lambda p, r: p["b"] * jnp.sort(r), "sort"),
        (lambda p, r: p["b"] + jnp.zeros(len(r)), "does not read the distance"),
    ],
)
def test_a_hook_that_cannot_be_cut_says_why(hook, reason):
    with pytest.raises(NotImplementedError, match=reason):
        cut(hook, {"a": jnp.ones(9), "b": jnp.asarray(0.7)}, 1, jnp.float32)


def prepared(q=None, hooks=None, mask=None, positions=None):
    x = jnp.ones((1, 16, 2, 8))
    positions = jnp.arange(16) if positions is None else positions
    return prepare(x if q is None else q, x, x, positions, positions, hooks or Hooks(), None, mask)


def pairwise(p, q, k, q_positions, k_positions):
    return q @ k.T


def look_up(p, relative):
    return p["table"][jnp.abs(relative).astype(int)]


def weighed(p, relative):
    return jnp.sum(p["weights"]) * relative.astype(jnp.float32)


TABLE = Hooks(distance_bias=Partial(look_up, {"all": {"table": jnp.ones(32)}}))


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ({"mask": jnp.ones((16, 16), bool)}, "mask or bias array"),
        ({"hooks": Hooks(relative_values=Partial(lambda *x: x, {}))}, "relative_values"),
        ({"hooks": Hooks(bias=Partial(pairwise, {}))}, "take a bias only from distance_bias"),
        ({"q": jnp.ones((1, 16, 2, 8), jnp.bfloat16)}, "must all be float32, bfloat16 or float16"),
        ({"hooks": TABLE, "positions": jnp.arange(16, dtype=jnp.float32)}, "reads an array"),
    ],
)
def test_what_the_kernels_cannot_do_they_say_before_they_run(call, reason):
    operands, layout = prepared(**call)
    with pytest.raises(NotImplementedError, match=reason):
        jax.eval_shape(lambda: gpu.gpu_attention(Options(1.0), layout, operands))


def test_a_parameter_as_long_as_the_trace_is_not_taken_for_distances():
    cut(weighed, {"weights": jnp.ones(elementwise.COUNT - 1)}, 1, jnp.int32)
    with pytest.raises(NotImplementedError, match="no parameter of the distance_bias hook may have an axis of 8,191"):
        cut(weighed, {"weights": jnp.ones(elementwise.COUNT)}, 1, jnp.int32)
