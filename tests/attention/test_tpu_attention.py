"""The TPU's kernels, in Pallas's interpreter: against the reference in value and every gradient, and piece by piece."""

import functools
import types
from collections.abc import Mapping
from typing import Any, NamedTuple

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

from pejax import (
    Dims,
    Hooks,
    TokenPositions,
    adapt,
    dot_product_attention,
    grid_positions,
    make_encoding,
    segment_positions,
)
from pejax._attention import backends
from pejax._attention.core.hooks import attention_hooks
from pejax._attention.core.masks import visible
from pejax._attention.core.options import Options
from pejax._attention.tpu import tpu_attention as tpu
from pejax._attention.tpu import tpu_tile as tpu_tile
from pejax._attention.tpu.tpu_block_masks import spans_of
from pejax._attention.tpu.tpu_tile import Plan, diagonal_gradient, tile_bias
from pejax._attention.xla import blockwise
from tests.support.cases import mostly_slow
from tests.support.small_tiles import many_tiles

__all__ = ["many_tiles"]

pytestmark = pytest.mark.usefixtures("many_tiles")

D = 4
QUICK = {"xla_backend_optimization_level": "0"}  # most of the time goes into compiling


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Let short sequences have many tiles, also where they run by XLA."""
    monkeypatch.setattr(blockwise, "BLOCK", 8)


class Case(NamedTuple):
    """A call: the tokens of both sides, the heads of queries and keys, the options, and positions to try besides."""

    spec: str
    q_tokens: Any
    k_tokens: Any
    heads: tuple[int, int] = (2, 2)
    options: Mapping[str, Any] = types.MappingProxyType({})
    also: tuple[np.ndarray, np.ndarray] | None = None


def packed() -> TokenPositions:
    """Two examples, each packed in its own way, with a token in front that has no position."""
    segments = jnp.asarray([[1] * 9 + [2] * 9 + [0] * 3, [2] * 4 + [3] * 17])
    positions = segment_positions(segments).at[:, 0].set(0)
    return TokenPositions(positions, order=jnp.arange(21), has_position=jnp.arange(21) > 0, segment_ids=segments)


def counted(start: int, end: int) -> TokenPositions:
    """Tokens whose positions are their order."""
    return TokenPositions(jnp.arange(start, end), order=jnp.arange(start, end))


def on_grid() -> TokenPositions:
    """Patches in the order of a raster."""
    return TokenPositions(grid_positions(4, 5), order=jnp.arange(20))


SHUFFLED = np.random.default_rng(0).permutation(60)
DROPOUT = (jax.random.key(3), 0.3)
CASES = {
    "none, cross, dropout": Case("none", np.arange(16), np.arange(32), options={"dropout": DROPOUT}),
    "alibi after cached keys, GQA": Case(
        "alibi", counted(11, 29), counted(0, 29), (4, 2), options={"causal": True, "soft_cap": 2.0}
    ),
    "alibi on a grid": Case("alibi", on_grid, on_grid, options={"window": 7}),
    "t5, packed, unplaced, or in any order": Case(
        "t5", packed, packed, options={"causal": True, "scale": 0.7, "dropout": DROPOUT},
        also=(SHUFFLED[:42].reshape(2, 21),) * 2,
    ),
    "kerple, a range, rows that see nothing, or in any order": Case(
        "kerple", counted(0, 21), counted(5, 45), (2, 1), options={"distance_range": (6, 9)},
        also=(SHUFFLED[:21], SHUFFLED[:40]),
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", mostly_slow(CASES, ("t5, packed, unplaced, or in any order",)))
def test_the_kernels_are_the_reference_in_value_and_every_gradient(name):
    case = CASES[name]
    sides = [side() if callable(side) else side for side in case[1:3]]
    tokens = [side if isinstance(side, TokenPositions) else TokenPositions(jnp.asarray(side)) for side in sides]
    rng = np.random.default_rng(len(name))
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    (heads, kv_heads), on_axes = case.heads, tokens[0].positions.shape == (20, 2)
    t, s = (x.positions.shape[0] if on_axes else x.positions.shape[-1] for x in tokens)
    q, k, v = (draw(2, n, h, D) for n, h in ((t, heads), (s, kv_heads), (s, kv_heads)))
    extent, causal = (4, 5) if on_axes else 40, case.options.get("causal", False)
    dims = Dims(heads, D, axes=1 + on_axes, extent=extent, causal=causal)
    encoding = make_encoding(case.spec, dims)
    params = jax.tree.map(lambda x: x + 0.3, encoding.init(jax.random.key(0)))
    params = adapt(encoding, params, extent)
    weights = draw(2, t, heads, D), draw(2, t, heads)

    def run(operands, positions, implementation):
        q, k, v, params = operands
        q_tokens, k_tokens = (x._replace(positions=p) for x, p in zip(tokens, positions, strict=True))
        output, lse = dot_product_attention(
            q, k, v, positions=q_tokens, k_positions=k_tokens, return_lse=True, implementation=implementation,
            hooks=attention_hooks(encoding, params), **case.options,
        )  # fmt: skip
        finite = jnp.where(jnp.isfinite(lse), lse, 0.0)
        return jnp.sum(weights[0] * output) + jnp.sum(weights[1] * finite), (output, lse)

    step = {
        implementation: jax.jit(
            jax.value_and_grad(functools.partial(run, implementation=implementation), has_aux=True),
            compiler_options=QUICK,
        )
        for implementation in ("reference", "tpu")
    }
    compare = functools.partial(np.testing.assert_allclose, atol=5e-6, rtol=5e-5)
    for positions in [x.positions for x in tokens], case.also:
        if positions is not None:
            want, got = (run((q, k, v, params), list(map(jnp.asarray, positions))) for run in step.values())
            jax.tree.map(compare, got, want)
            output, lse = got[0][1]
            assert (np.asarray(output)[np.isneginf(lse)] == 0).all()


@pytest.mark.slow
def test_bfloat16_is_float32_but_for_the_rounding_of_its_operands():
    rng = np.random.default_rng(1)
    q, k, v = (jnp.asarray(rng.normal(size=(1, 20, 2, D)), jnp.bfloat16) for _ in range(3))
    slopes = {"heads": {"slope": jnp.asarray([0.5, 0.1])}}
    distance = Partial(lambda p, relative: -p["slope"] * jnp.abs(relative).astype(jnp.float32), slopes)
    hooks = Hooks(distance_bias=distance)

    def loss(q, k, v, implementation):
        out = dot_product_attention(
            q, k, v, positions=jnp.arange(20), hooks=hooks, causal=True, implementation=implementation
        )
        return jnp.sum(out.astype(jnp.float32) ** 2), out

    step = lambda name: jax.jit(
        jax.grad(functools.partial(loss, implementation=name), argnums=(0, 1, 2), has_aux=True),
        compiler_options=QUICK,
    )
    want = step("reference")(*(x.astype(jnp.float32) for x in (q, k, v)))
    got = step("tpu")(q, k, v)
    assert {x.dtype for x in jax.tree.leaves(got)} == {jnp.dtype(jnp.bfloat16)}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a.astype(jnp.float32), b, atol=0.06), got, want)


@pytest.mark.parametrize(("queries", "keys"), [(8, 8), (24, 16)])
def test_a_tile_is_cut_from_its_diagonal_and_summed_back_to_it(queries, keys):
    plan = Plan(Options(1.0), (), queries, keys, 1, None, 8, interpret=True)
    line = np.random.default_rng(0).normal(size=queries + keys).astype(np.float32)
    x, y = np.indices((keys, queries))
    np.testing.assert_array_equal(jax.jit(functools.partial(tile_bias, plan))(line[None]), line[keys + y - x])
    tile = np.random.default_rng(1).normal(size=(keys, queries)).astype(np.float32)
    want = np.zeros_like(line)
    np.add.at(want, keys + y - x, tile)

    class Scratch:
        """As much of a reference as `diagonal_gradient` uses."""

        shape, dtype, array = (8, queries + keys), jnp.float32, jnp.zeros((8, queries + keys))

        def __getitem__(self, at):
            return self.array[at]

        def __setitem__(self, at, value):
            self.array = self.array.at[at].set(value)

    np.testing.assert_allclose(jax.jit(lambda tile: diagonal_gradient(plan, tile, Scratch()))(tile)[0], want, atol=1e-5)


@pytest.mark.slow
@hypothesis.given(st.data())
def test_every_pair_that_sees_is_in_a_tile_that_is_visited(data):
    numbers = lambda low, high: data.draw(st.lists(st.integers(low, high), min_size=12, max_size=12))
    q, k = (
        TokenPositions(jnp.zeros(12), jnp.asarray(numbers(-20, 20)), None, jnp.asarray(numbers(0, 2))) for _ in range(2)
    )
    low = data.draw(st.integers(0, 8))
    rules = data.draw(
        st.fixed_dictionaries(
            {"causal": st.booleans(), "window": st.sampled_from([None, 1, 6]),
             "distance_range": st.sampled_from([None, (low, low + 3), (low, 2**62)])}
        )
    )  # fmt: skip
    fields = [{"order": x.order[None], "segment": x.segment_ids[None]} for x in (q, k)]
    by_queries, by_keys = spans_of(Options(1.0, **rules), *fields, (3, 4))
    tiles = np.asarray(visible(Options(1.0, **rules), q, k)).reshape(3, 4, 4, 3).any((1, 3))
    for spans, seen in ((by_queries, tiles), (by_keys, tiles.T)):
        for i, j in np.argwhere(seen):
            assert spans.first[i] <= j <= spans.last[i]


@pytest.mark.slow
def test_causal_tiles_above_the_diagonal_and_far_below_the_window_are_not_visited():
    order = {"order": jnp.arange(32)[None]}
    by_queries, by_keys = spans_of(Options(1.0, causal=True, window=5), order, order, (4, 4))
    assert [*by_queries.first, *by_queries.last] == [0, 0, 1, 2, 0, 1, 2, 3]
    assert [*by_keys.first, *by_keys.last] == [0, 1, 2, 3, 1, 2, 3, 3]


def refusals():
    """Calls that the kernels leave to others, and what they say."""
    x, grid = jnp.ones((1, 9, 1, D)), grid_positions(3, 3)
    table = {"heads": {"table": jnp.ones((1, 2, 8))}}
    bias = Partial(lambda p, q, k, i, j: q[i] @ k.T, {})
    values = Partial(lambda p, w, i, j: w @ jnp.ones((9, D)), {})
    looked_up = Partial(lambda p, r: p["table"][0][jnp.clip(r[:, 0], 0, 7)], table)
    straight = Partial(lambda p, r: -jnp.abs(r), {})
    return {
        "bias hook .* does gather to tokens": (x, Hooks(bias=bias), jnp.arange(9)),
        "relative_values hook .* any number of tokens": (x, Hooks(relative_values=values), jnp.arange(9)),
        "positions that are floats": (x, Hooks(distance_bias=straight), jnp.arange(9.0)),
        "is not elementwise|reads an array": (
            x,
            Hooks(distance_bias=looked_up),
            grid * 2**14,
        ),  # too large for its slots
        "must all be float32 or bfloat16": (x.astype(jnp.float16), Hooks(), jnp.arange(9)),
    }


@pytest.mark.parametrize("reason", refusals())
def test_what_the_kernels_cannot_do_they_say_before_anything_runs(reason):
    x, hooks, positions = refusals()[reason]
    with pytest.raises(NotImplementedError, match=reason):
        dot_product_attention(x, x, x, positions=positions, hooks=hooks, implementation="tpu")


def test_a_table_is_refused_where_its_diagonals_do_not_fit(monkeypatch):
    x = jnp.ones((1, 9, 1, D))
    looked_up = Partial(lambda p, r: p["table"][jnp.clip(r, 0, 7)], {"heads": {"table": jnp.ones((1, 8))}})
    hooks = Hooks(distance_bias=looked_up)
    monkeypatch.setattr(tpu, "LONGEST_LINE", 17)
    with pytest.raises(NotImplementedError, match="reads an array"):
        dot_product_attention(x, x, x, positions=jnp.arange(9), hooks=hooks, implementation="tpu")


def test_an_order_that_is_not_there_is_the_error_of_the_reference():
    x = jnp.ones((1, 9, 1, D))
    with pytest.raises(ValueError, match=r"^positions must have an order"):
        dot_product_attention(x, x, x, positions=jnp.arange(9.0), causal=True, implementation="tpu")


@pytest.mark.slow
def test_vmapped_without_parameters():
    rng = np.random.default_rng(2)
    q, k, v = (jnp.asarray(rng.normal(size=(2, 1, n, 2, D)), jnp.float32) for n in (8, 16, 16))
    near = Hooks(distance_bias=Partial(lambda p, relative: -jnp.abs(relative).astype(jnp.float32), {}))

    def run(implementation):
        tokens = {"positions": jnp.arange(8), "k_positions": jnp.arange(16)}
        one = lambda q, k, v: dot_product_attention(q, k, v, **tokens, hooks=near, implementation=implementation)
        return jax.jit(jax.vmap(one), compiler_options=QUICK)(q, k, v)

    np.testing.assert_allclose(run("tpu"), run("reference"), atol=1e-6)


def test_the_kernels_are_refused_where_the_compiler_would_have_to_split_them(monkeypatch):
    x = jnp.ones((8, 9, 1, D))
    compiled_for_tpu = functools.partial(tpu.tpu_attention, interpret=False)
    monkeypatch.setitem(backends.IMPLEMENTATIONS, "tpu", compiled_for_tpu)
    with pytest.raises(NotImplementedError, match="over 8 devices: give a Sharding"):
        dot_product_attention(x, x, x, positions=jnp.arange(9), implementation="tpu")
