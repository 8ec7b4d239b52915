"""The kernels on Mosaic GPU: in JAX's interpreter, and by parts, which need no interpreter.

The interpreter runs the copies, barriers and masks of the kernels, but two parts only by their meaning: products of
registers, and the lookup by distance, whose index is tested against the layout of the registers here. What the compiler
makes of them is in tests/gpu_aot.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh
from jax.tree_util import Partial

from pejax import Dims, Hooks, TokenPositions, adapt, dot_product_attention, explain_attention, make_encoding
from pejax._attention import backends
from pejax._attention.core.dropout import Dropout, keep_pairs, key_words, query_words
from pejax._attention.core.hooks import attention_hooks
from pejax._attention.core.options import Options
from tests.support.cases import mostly_slow, slow

AVAILABLE = jax.__version_info__ >= backends.MOSAIC_GPU
pytestmark = pytest.mark.filterwarnings("ignore:.*jax.experimental.mosaic.*:DeprecationWarning")
needs_jax = pytest.mark.skipif(not AVAILABLE, reason="Mosaic GPU of JAX 0.12")

N, H, K, D = 1, 2, 1, 8


def test_an_older_jax_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(backends, "MOSAIC_GPU", (99, 1))
    with pytest.raises(NotImplementedError, match=rf"need jax 99\.1, got {jax.__version__}"):
        attend(normal(0, jnp.float16))


def normal(seed, dtype, t=16, s=16, d=D):
    """Return q, k, v."""
    rng = np.random.default_rng(seed)
    shapes = (N, t, H, d), (N, s, K, d), (N, s, K, d)
    return [jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes]


def attend(qkv, **options):
    return dot_product_attention(
        *qkv, **{"positions": jnp.arange(len(qkv[0][0])), "implementation": "mosaic_gpu"} | options
    )


CASES = {
    "none, causal": {"causal": True, "t": 150, "s": 150},
    "none, every pair, whole tiles": {"t": 128, "s": 256, "d": 64},
    "t5, forward": {"spec": "t5", "t": 33, "s": 33, "forward": True},
    "t5, in order, with a last bucket": {"spec": "t5", "causal": True, "t": 400, "s": 400},
    "t5, both ways, in order": {"spec": "t5", "t": 400, "s": 400},
    "t5, cross": {"spec": "t5", "t": 33, "s": 140},
    "alibi, packed, unplaced": {"spec": "alibi(learned=True)", "causal": True, "t": 140, "s": 140, "packed": True},
    "kerple, window, cap": {"spec": "kerple", "causal": True, "window": 90, "soft_cap": 2.0, "t": 200, "s": 200},
    "t5, dropout, range, blind rows": {"spec": "t5", "rate": 0.3, "distance_range": (6, 9), "t": 5, "s": 140},
    "none, key bias, negative scale": {"key_bias": True, "scale": -0.3, "t": 70, "s": 400, "d": 80},
}


def step_of(case, implementation):
    """Return a function of q, k, v, the parameters, a key bias and the cotangents to the outputs and gradients."""
    t, s = case["t"], case["s"]
    dims = Dims(H, case.get("d", D), kv_heads=K, causal=case.get("causal", False), extent=max(t, s))
    encoding = make_encoding(case.get("spec", "none"), dims)
    params = adapt(encoding, encoding.init(jax.random.key(0)), max(t, s))
    options = {name: case[name] for name in ("causal", "window", "distance_range", "scale", "soft_cap") if name in case}
    if "rate" in case:
        options["dropout"] = (jax.random.key(3), case["rate"])

    def tokens(length):
        if t == s and "packed" not in case:
            return None
        index = np.arange(length) + max(0, s - length)
        if "packed" not in case:
            return TokenPositions(index)
        segments = jnp.asarray(np.repeat([3, 1, 0], [length // 2, length - length // 2 - 2, 2]))
        return TokenPositions(index, index, index > 1, segments)

    def run(q, k, v, params, key_bias):
        output, lse = attend(
            (q, k, v), **options, positions=tokens(t), k_positions=tokens(s), hooks=attention_hooks(encoding, params),
            key_bias=key_bias, return_lse=True, implementation=implementation,
        )  # fmt: skip
        return output, jnp.where(jnp.isneginf(lse), -1e9, lse)

    def step(operands, cotangents):
        if "forward" in case:
            return run(*operands), ()
        outputs, pull = jax.vjp(run, *operands)
        return outputs, pull(tuple(x.astype(y.dtype) for x, y in zip(cotangents, outputs, strict=True)))

    return step, params


def arrays_of(case, params):
    """Return the operands, in float16, and the cotangents."""
    t, s, d = case["t"], case["s"], case.get("d", D)
    rng = np.random.default_rng(1)
    key_bias = jnp.asarray(rng.normal(size=(N, s, H)), jnp.float32) if "key_bias" in case else None
    cotangents = (
        jnp.asarray(rng.normal(size=(N, t, H, d)), jnp.float16),
        jnp.asarray(rng.normal(size=(N, t, H)), jnp.float32),
    )
    return [*normal(0, jnp.float16, t, s, d), params, key_bias], cotangents


def widened(operands):
    """Return the same numbers in float32."""
    return jax.tree.map(lambda x: x.astype(jnp.float32), operands)


@needs_jax
@pytest.mark.parametrize("name", mostly_slow(CASES, ("t5, forward",)))
def test_kernels_are_the_reference_in_value_and_every_gradient(name):
    case = CASES[name]
    (ours, params), (reference, _) = (step_of(case, name) for name in ("mosaic_gpu", "reference"))
    operands, cotangents = arrays_of(case, params)
    got = jax.jit(ours)(operands, cotangents)
    want = jax.jit(reference)(widened(operands), widened(cotangents))
    assert {x.dtype for x in (got[0][0], *jax.tree.leaves(got[1])[:3])} == {jnp.dtype(jnp.float16)}

    def same(a, b):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert np.isfinite(a).all()
        np.testing.assert_allclose(a, b, atol=3e-3 * np.abs(b[b > -1e8]).max(initial=1e-3), rtol=0)

    jax.tree.map(same, got, want)


@needs_jax
@pytest.mark.slow
def test_no_copy_races_with_what_reads_it():
    """In the interpreter, which knows what a barrier orders: with the buffers of a ring filled more than once."""
    from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks
    from jax.experimental.pallas import mosaic_gpu as plgpu

    case = {"spec": "t5", "causal": True, "t": 300, "s": 300, "d": 128}
    step, params = step_of(case, "mosaic_gpu")
    with plgpu.force_gpu_interpret_mode(plgpu.InterpretGPUParams(detect_races=True)):
        jax.block_until_ready(jax.jit(step)(*arrays_of(case, params)))
    assert not gpu_callbacks.get_races().races_found


def dense(operands, options, visible, keep):
    """Return output and log-sum-exp of one head, as plain formulas."""
    q, k, v, bias, key_bias = operands
    logits = options.scale * q @ k.T + bias
    if options.soft_cap is not None:
        logits = options.soft_cap * jnp.tanh(logits / options.soft_cap)
    logits = jnp.where(visible, logits + key_bias, -jnp.inf)
    return jax.nn.softmax(logits) * keep @ v, jax.nn.logsumexp(logits, axis=1)


@needs_jax
@pytest.mark.parametrize(("cap", "scale"), [(None, 0.4), slow(1.5, -0.4)])
def test_tiles_together_are_attention_with_its_gradients(cap, scale):
    """The same functions that the kernels run, tile by tile; the second tile hides rows, and some lack a position."""
    from pejax._attention.mosaic import mosaic_tile as tile

    rng, (t, size, count, d) = np.random.default_rng(0), (8, 16, 3, 4)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    options = Options(scale, causal=True, soft_cap=cap, dropout_rate=0.3)
    operands = draw(t, d), draw(size * count, d), draw(size * count, d), draw(t, size * count), draw(size * count)
    orders = jnp.arange(t)[:, None] * 4 + 9, jnp.arange(size * count)[None]
    placed = jnp.asarray(rng.random((t, size * count)) > 0.2)
    dropout = Dropout(jnp.asarray([1, 2], jnp.uint32), jnp.uint32(0), jnp.uint32(1))
    places = jnp.arange(t, dtype=jnp.uint32), jnp.arange(size * count, dtype=jnp.uint32)
    words = query_words(dropout, places[0])[:, None], key_words(dropout, places[1])[None]
    keep = jnp.where(keep_pairs(dropout, *places, 0.3), 1 / 0.7, 0.0)
    q, k, v, bias, key_bias = operands
    placed_bias = lambda operands: (*operands[:3], jnp.where(placed, operands[3], 0.0), operands[4])
    reference = lambda *operands: dense(placed_bias(operands), options, orders[0] >= orders[1], keep)

    def scores(j):
        part = slice(j * size, (j + 1) * size)
        wide = lambda x: jnp.broadcast_to(x, (t, size))
        sides = lambda pair: (wide(pair[0]), wide(pair[1][:, part]))
        fields = tile.Fields(
            bias=bias[:, part] * tile.bias_unit(options), placed=placed[:, part],
            key_bias=wide(key_bias[part]) * tile.LOG2_E,
            orders=sides(orders), dropout_words=sides(words),
        )  # fmt: skip
        return tile.scores(options, q @ k[part].T, fields)

    def forward():
        row_max, total, sums = jnp.full(t, -jnp.inf), jnp.zeros(t), jnp.zeros((t, d))
        for j in range(count):
            row_max, total, weights, shrink = tile.softmax_step(scores(j), row_max, total)
            sums = sums * shrink[:, None] + weights @ v[j * size : (j + 1) * size]
        divisor, lse = tile.ends_of_rows(row_max, total)
        return sums / divisor[:, None], lse

    def backward(d_output, d_lse):
        output, lse = forward()
        mean = jnp.sum(d_output * output, axis=1) - d_lse
        column = lambda x: jnp.broadcast_to(x[:, None], (t, size))
        parts = []
        for j in range(count):
            weights = tile.weights_of(scores(j), column(lse * tile.LOG2_E))
            d_weights = d_output @ v[j * size : (j + 1) * size].T
            parts.append(tile.tile_gradients(scores(j), weights, d_weights, column(mean)))
        weights, d_scores, d_bias, d_logits = (jnp.concatenate(x, axis=1) for x in zip(*parts, strict=True))
        d_k, d_v = d_scores.T @ q * scale, weights.T @ d_output
        return d_scores @ k * scale, d_k, d_v, d_bias, jnp.sum(d_logits, axis=0)

    cotangents = draw(t, d), draw(t)
    gradients = jax.jit(lambda *x: jax.vjp(reference, *operands)[1](x))(*cotangents)
    for got, want in ((jax.jit(forward)(), jax.jit(reference)(*operands)), (jax.jit(backward)(*cotangents), gradients)):
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)


@needs_jax
def test_a_row_that_sees_nothing_has_no_output_and_no_log_sum_exp():
    from pejax._attention.mosaic import mosaic_tile as tile

    hidden = tile.Scores(jnp.full((2, 4), -jnp.inf), 1.0, None, None, None, None)
    row_max, total, weights, shrink = tile.softmax_step(hidden, jnp.full(2, -jnp.inf), jnp.zeros(2))
    divisor, lse = tile.ends_of_rows(row_max, total)
    assert (np.asarray(weights) == 0).all()
    assert np.isfinite(shrink).all()
    assert (np.asarray(divisor) == 1).all()
    assert np.isneginf(lse).all()


@needs_jax
@pytest.mark.parametrize("columns", [64, 128])
def test_every_register_reads_the_number_of_its_distance(columns):
    """Against the layout of wgmma's results, written out: the row and column of each number of each thread."""
    from jax.experimental.mosaic.gpu.fragmented_array import WGMMA_LAYOUT

    from pejax._attention.mosaic.mosaic_distance import first_index, register_offset

    rows, seen, numbers = 64, np.zeros((64, columns), int), set()
    places = list(np.ndindex(WGMMA_LAYOUT.registers_shape((rows, columns))))
    for thread in range(128):
        warp, lane = thread // 32, thread % 32
        for place in places:
            offset = register_offset(place)
            numbers.add(offset)
            row = 16 * warp + lane // 4 + 8 * place[4]
            for e in range(2):
                column = 8 * place[1] + 2 * (lane % 4) + e
                assert first_index(thread, rows) + offset + e == column - row + rows
                seen[row, column] += 1
    assert (seen == 1).all()
    assert 2 * len(numbers) == 2 * (columns // 8 + 1)  # loads of a thread


@needs_jax
@pytest.mark.parametrize(
    ("first", "full_start", "full_end", "end"),
    [slow(0, 0, 0, 0), (2, 4, 7, 9), slow(1, 1, 5, 6), slow(3, 3, 3, 6), slow(0, 2, 4, 4)],
)
@pytest.mark.parametrize(("begun", "consumers"), [(0, 1), slow(0, 2), (5, 2)])
def test_every_block_is_visited_once_and_masked_where_it_must_be(first, full_start, full_end, end, begun, consumers):
    """By producer and consumers in the same order; consumers that take turns share the steps."""
    from pejax._attention.mosaic.mosaic_visits import visits

    descending = begun == 5
    near = full_start + (full_end - full_start) // 3, full_end - (full_end - full_start) // 3
    rows = jnp.asarray([[[first, full_start, *near, full_end, end]]], jnp.int32)
    seen = visits(rows, jnp.int32(0), jnp.int32(0), 9, (0, 1), descending=descending)
    produced = [int(seen.block(jnp.int32(x))) for x in range(int(seen.total))]
    assert sorted(produced) == list(range(first, end))

    def step(x, j, carry, kind):
        return carry.at[:, x - begun].set(
            jnp.asarray([j, kind.masked, -1 if kind.end is None else kind.end], jnp.int32)
        )

    consumed = []
    for consumer in range(consumers):
        turn = (jnp.int32(consumer), consumers)
        consumed.append(seen.loop(step, jnp.full((3, 9), -2, jnp.int32), jnp.int32(begun), turn))
    blocks, masked, ends = np.max(consumed, axis=0)
    assert (np.sum(np.asarray(consumed)[:, 0] >= 0, axis=0)[: len(produced)] == 1).all()
    assert blocks[: len(produced)].tolist() == produced
    assert [not full_start <= j < full_end for j in produced] == (masked[: len(produced)] == 1).tolist()
    sides = (1, 0) if descending else (0, 1)
    far = [-1 if not full_start <= j < full_end else sides[0] if j < near[0] else sides[1] if j >= near[1] else -1
           for j in produced]  # fmt: skip
    assert ends[: len(produced)].tolist() == far
    for consumer in range(consumers):  # a buffer of a ring is always that of the same consumer
        steps = begun + np.flatnonzero(np.asarray(consumed)[consumer, 0] >= 0)
        assert (steps % consumers == consumer).all()


def on(card):
    """Return the mesh of an absent GPU."""
    return AbstractMesh((), (), abstract_device=AbstractDevice(card, None, "gpu"))


@needs_jax
def test_a_card_that_is_not_hopper_is_refused_by_name():
    run = lambda: jax.eval_shape(attend, normal(0, jnp.float16))
    with (
        use_abstract_mesh(on("NVIDIA A100-SXM4-80GB")),
        pytest.raises(NotImplementedError, match=r"9\.0 .*got NVIDIA A100"),
    ):
        run()
    with use_abstract_mesh(on("NVIDIA H200")):
        run()


@needs_jax
def test_a_cpu_of_few_threads_is_refused_by_name(monkeypatch):
    """The interpreter would wait for ever."""
    monkeypatch.setenv("PJRT_NPROC", "2")
    monkeypatch.setattr(jax, "local_devices", lambda: [])
    with pytest.raises(NotImplementedError, match="must have 4 threads, got 2: set PJRT_NPROC=4"):
        jax.eval_shape(attend, normal(0, jnp.float16))


def zero(params, relative):
    return jnp.zeros(relative.shape[:1]) * params["one"]


BIASED = Hooks(distance_bias=Partial(zero, {"all": {"one": jnp.ones(())}}))


@needs_jax
@pytest.mark.parametrize(
    ("dtype", "d", "options", "reason"),
    [
        (jnp.float32, 8, {}, "must all be bfloat16 or float16, got float32"),
        (jnp.float16, 136, {}, 'at most 128 channels, got 136; implementation=None and "blockwise"'),
        (
            jnp.float16,
            8,
            {"hooks": BIASED, "positions": jnp.arange(16.0)},
            "integer positions, on a grid known ones, got float32",
        ),
        (jnp.float16, 8, {"hooks": BIASED, "positions": jnp.zeros((16, 2), int)}, "got int32 on 2 axes"),
        (jnp.float16, 8, {"hooks": Hooks(bias=Partial(lambda p, q, k, *_: q @ k.T, {}))}, "only from distance_bias"),
    ],
)
def test_what_the_kernels_cannot_do_they_say_by_name(dtype, d, options, reason):
    with pytest.raises(NotImplementedError, match=reason) as error:
        jax.eval_shape(lambda qkv: attend(qkv, **options), normal(0, dtype, d=d))
    assert "\n" not in str(error.value)


@needs_jax
def test_they_are_chosen_by_name_alone():
    assert all("mosaic_gpu" not in kernels for _, kernels in backends.PREFERENCES.values())
    q, k, v = normal(0, jnp.float16)
    text = explain_attention(q, k, v, positions=jnp.arange(16), implementation="mosaic_gpu")
    assert "mosaic_gpu: runs interpreted" in text


@needs_jax
def test_forward_mode_is_that_of_the_loops_of_xla():
    qkv = normal(0, jnp.float16)
    text = jax.jit(lambda qkv: jax.jvp(attend, (qkv,), (qkv,))).lower(qkv).as_text()
    assert "while" in text
