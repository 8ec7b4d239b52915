"""Biases of pairs in the TPU's kernels, in Pallas's interpreter: against the reference in value and every gradient."""

import functools
import types
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.tree_util import Partial

from pejax import (
    Dims,
    Encoding,
    Hooks,
    TokenPositions,
    dot_product_attention,
    grid_positions,
    init_params,
    make_encoding,
    segment_positions,
)
from pejax._attention.core.hooks import attention_hooks
from pejax._attention.kernels.pairs import prepare_pairs
from pejax._attention.kernels.programs import OPERATIONS
from pejax._attention.tpu import tpu_tile as tpu_tile
from pejax._attention.tpu.tpu_pairs import form_shape, run
from tests.support import pair_hooks
from tests.support.small_tiles import many_tiles, small_tiles

__all__ = ["many_tiles"]

pytestmark = pytest.mark.usefixtures("many_tiles")

D = 8
QUICK = {"xla_backend_optimization_level": "0"}  # most of the time goes into compiling


class Case(NamedTuple):
    """A call: the tokens of both sides, the heads of queries and keys, and the options."""

    spec: str
    q_tokens: Any
    k_tokens: Any
    heads: tuple[int, int] = (2, 2)
    options: Mapping[str, Any] = types.MappingProxyType({})


def packed() -> TokenPositions:
    """Two examples, each packed in its own way, with a token in front that has no position."""
    segments = jnp.asarray([[1] * 9 + [2] * 9 + [0] * 3, [2] * 4 + [3] * 17])
    positions = segment_positions(segments).at[:, 0].set(0)
    return TokenPositions(positions, order=jnp.arange(21), has_position=jnp.arange(21) > 0, segment_ids=segments)


def counted(start: int, end: int) -> TokenPositions:
    """Tokens whose positions are their order."""
    return TokenPositions(jnp.arange(start, end), order=jnp.arange(start, end))


def on_grid() -> TokenPositions:
    """Patches in the order of a raster, after a token without a position."""
    positions = jnp.concatenate([jnp.zeros((1, 2), jnp.int32), grid_positions(4, 5)])
    return TokenPositions(positions, order=jnp.arange(21), has_position=jnp.arange(21) > 0)


DROPOUT = (jax.random.key(3), 0.3)
CAPPED = {"causal": True, "soft_cap": 2.0}
CASES = {
    "gates, packed, unplaced, every option": Case(
        "gates", packed, packed, (4, 2), options={**CAPPED, "window": 12, "dropout": DROPOUT, "scale": 0.7}
    ),
    "gates after cached keys, GQA": Case("gates", counted(11, 29), counted(0, 29), (4, 2), CAPPED),
    "fire, causal, after cached keys": Case("fire(hidden=3)", counted(11, 29), counted(0, 29), (4, 2), CAPPED),
    "fire, packed, unplaced": Case("fire(hidden=3)", packed, packed, options={"dropout": DROPOUT}),
    "fire, signed, two axes": Case("fire(hidden=3, signed=True)", on_grid, on_grid, (2, 1), {"window": 7}),
    "fire, a range, rows that see nothing": Case(
        "fire(hidden=3)", counted(0, 21), counted(5, 45), (2, 1), {"distance_range": (6, 9)}
    ),
    "transformer_xl, packed, unplaced": Case(
        "transformer_xl", packed, packed, (4, 2), {**CAPPED, "dropout": DROPOUT}
    ),
    "transformer_xl after cached keys": Case("transformer_xl", counted(11, 29), counted(0, 29), options=CAPPED),
    "transformer_xl, two axes": Case("transformer_xl", on_grid, on_grid, (2, 1), {"window": 7}),
    "shaw, packed, unplaced": Case("shaw(clip=3)", packed, packed, (4, 2), {**CAPPED, "dropout": DROPOUT}),
    "shaw after cached keys, two sides": Case("shaw(clip=(4, 1))", counted(11, 29), counted(0, 29), options=CAPPED),
    "shaw, two axes": Case("shaw(clip=2)", on_grid, on_grid, (2, 1), {"window": 7}),
    "shaw, logits alone": Case("shaw(clip=3, values=False)", counted(11, 29), counted(0, 29), (2, 1)),
    **{f"{name}, own": Case(name, counted(3, 24), counted(0, 24), (2, 1), CAPPED) for name in pair_hooks.HOOKS},
}  # fmt: skip


def made(case: Case, axes: int) -> Encoding:
    """Return the encoding of a case."""
    extent = 40 if axes == 1 else (4, 5)
    causal = case.options.get("causal", False)
    dims = Dims(case.heads[0], D, kv_heads=case.heads[1], axes=axes, extent=extent, causal=causal)
    return pair_hooks.encoding(case.spec, dims) if case.spec in pair_hooks.HOOKS else make_encoding(case.spec, dims)


def check(name: str) -> None:
    """Require the reference's output, log-sum-exp and gradients of a case."""
    case = CASES[name]
    tokens = [side() if callable(side) else side for side in case[1:3]]
    rng = np.random.default_rng(len(name))
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    (heads, kv_heads), axes = case.heads, 1 + (tokens[0].positions.shape == (21, 2))
    t, s = (x.positions.shape[0 if axes == 2 else -1] for x in tokens)
    q, k, v = (draw(2, n, h, D) for n, h in ((t, heads), (s, kv_heads), (s, kv_heads)))
    encoding = made(case, axes)
    params = jax.tree.map(lambda x: x + 0.2 * draw(*x.shape), init_params(encoding, jax.random.key(0)))
    weights, key_bias = (draw(2, t, heads, D), draw(2, t, heads)), draw(2, s, heads)

    def run(operands, implementation):
        q, k, v, params, key_bias = operands
        output, lse = dot_product_attention(
            q, k, v, positions=tokens[0], k_positions=tokens[1], return_lse=True, implementation=implementation,
            hooks=attention_hooks(encoding, params), key_bias=key_bias, **case.options,
        )  # fmt: skip
        finite = jnp.where(jnp.isfinite(lse), lse, 0.0)
        return jnp.sum(weights[0] * output) + jnp.sum(weights[1] * finite), (output, lse)

    def results(implementation):
        step = jax.value_and_grad(functools.partial(run, implementation=implementation), has_aux=True)
        return jax.jit(step, compiler_options=QUICK)((q, k, v, params, key_bias))

    def compare(got, want):
        largest = np.max(np.abs(want), initial=1.0, where=np.isfinite(want))
        np.testing.assert_allclose(got, want, atol=1e-5 * largest, rtol=5e-5)

    with small_tiles():
        jax.tree.map(compare, results("tpu"), results("reference"))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_kernels_are_the_reference_in_value_and_every_gradient(name):
    check(name)


def test_the_kernels_are_the_reference_in_value():
    encoding, tokens = pair_hooks.encoding("gates", Dims(2, D, causal=True)), packed()
    q, k, v = np.random.default_rng(0).normal(size=(3, 2, 21, 2, D)).astype(np.float32)
    hooks = attention_hooks(encoding, init_params(encoding, jax.random.key(0)))
    run = functools.partial(dot_product_attention, positions=tokens, hooks=hooks, causal=True)
    step = lambda name: jax.jit(functools.partial(run, implementation=name), compiler_options=QUICK)
    got, want = (step(name)(*map(jnp.asarray, (q, k, v))) for name in ("tpu", "reference"))
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_a_program_is_the_hook_and_its_gradients():
    """Without kernels around it, as they run it for a tile of 8 keys and 16 queries."""
    encoding = pair_hooks.encoding("gates", Dims(1, D))
    drawn = init_params(encoding, jax.random.key(0))
    params = drawn["all"] | jax.tree.map(lambda x: x[0], drawn["heads"])
    q, k, d = (jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate([(16, D), (8, D), (16, 8)]))
    i, j = jnp.arange(16) + 3, jnp.arange(8)
    pairs = prepare_pairs(encoding.bias, params, D, 1)
    numbers = pairs.outside(params)

    def run_program(name, *more):
        operands = getattr(pairs, name).outside(numbers)
        load = lambda place, form: operands[place].reshape(form_shape(operands[place].shape, form))
        return run(getattr(pairs, name), load, [q.T, k, i[None], j[:, None], *more], (8, 16), sums=name != "bias")

    (bias,), (*d_numbers, d_q), (d_k,) = (
        run_program("bias"), run_program("query_gradients", d.T), run_program("key_gradients", d.T)
    )  # fmt: skip
    of = lambda params, q, k: encoding.bias(params, q, k, i, j)
    want, pull = jax.vjp(of, params, q, k)
    (d_params,) = jax.vjp(pairs.outside, params)[1](
        [x.reshape(y.shape) for x, y in zip(d_numbers, numbers, strict=True)]
    )
    same = functools.partial(np.testing.assert_allclose, atol=1e-5)
    jax.tree.map(same, (bias.T, d_params, d_q.T, d_k), (want, *pull(d)))


@pytest.mark.slow
def test_bfloat16_is_float32_but_for_the_rounding_of_its_operands():
    encoding = pair_hooks.encoding("gates", Dims(2, D))
    q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 20, 2, D), jnp.bfloat16)
    hooks = attention_hooks(encoding, init_params(encoding, jax.random.key(1)))

    def loss(q, k, v, implementation):
        out = dot_product_attention(q, k, v, positions=jnp.arange(20), hooks=hooks, implementation=implementation)
        return jnp.sum(out.astype(jnp.float32) ** 2)

    step = lambda name: jax.jit(
        jax.grad(functools.partial(loss, implementation=name), argnums=(0, 1, 2)), compiler_options=QUICK
    )
    want, got = step("reference")(*(x.astype(jnp.float32) for x in (q, k, v))), step("tpu")(q, k, v)
    assert {x.dtype for x in got} == {jnp.dtype(jnp.bfloat16)}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a.astype(jnp.float32), b, atol=0.06), got, want)


@pytest.mark.slow
def test_values_alone_without_a_bias_and_without_parameters():
    def values(params, weights, i, j):
        near = jnp.tanh((j[None] - i[:, None]).astype(jnp.float32) / 8)
        return jnp.sum(weights * near, axis=1)[:, None] * jnp.ones(D)

    q, k, v, d = jax.random.normal(jax.random.key(0), (4, 1, 20, 2, D))

    def loss(q, k, v, implementation):
        hooks = Hooks(relative_values=Partial(values, {}))
        return jnp.vdot(d, dot_product_attention(q, k, v, causal=True, hooks=hooks, implementation=implementation))

    step = lambda name: jax.jit(jax.grad(functools.partial(loss, implementation=name), argnums=(0, 1, 2)))
    want, got = (step(name)(q, k, v) for name in ("reference", "tpu"))
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), got, want)


@pytest.mark.slow
def test_a_rule_of_derivatives_is_kept():
    """The hook's own rule gives three times the derivative."""

    @jax.custom_jvp
    def steep(x):
        return jnp.sin(x)

    steep.defjvp(lambda primals, tangents: (steep(*primals), 3.0 * jnp.cos(primals[0]) * tangents[0]))
    bias = lambda params, q, k, i, j: steep(params["w"] * q[:, :1]) + jnp.zeros((1, len(k))) + steep(k[:, 0])
    q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 20, 2, D))

    def loss(q, k, w, implementation):
        hooks = Hooks(bias=Partial(bias, {"heads": {"w": w}}))
        tokens = {"positions": jnp.arange(20), "hooks": hooks}
        return jnp.sum(dot_product_attention(q, k, v, **tokens, implementation=implementation) ** 2)

    step = lambda name: jax.jit(jax.grad(functools.partial(loss, implementation=name), argnums=(0, 1, 2)))
    want, got = (step(name)(q, k, jnp.asarray([0.5, 2.0])) for name in ("reference", "tpu"))
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), got, want)


def test_hooks_of_these_tests_use_every_operation_that_kernels_run():
    used = set()
    for name in pair_hooks.HOOKS:
        encoding = pair_hooks.encoding(name, Dims(1, D))
        params = init_params(encoding, jax.random.key(0))
        head = {**params.get("all", {}), **{key: x[0] for key, x in params.get("heads", {}).items()}}
        pairs = prepare_pairs(encoding.bias, head, D, 1)
        programs = [x for x in (pairs.bias, pairs.query_gradients, pairs.key_gradients) if x is not None]
        used |= {equation.primitive.name for program in programs for equation in program.tile.eqns}
    # Others of the same kind come from a version of jax, or from the rules of derivatives of others.
    assert OPERATIONS - used <= {"copy", "expand_dims", "one_minus_square", "select_n"}


def refused(params, q, k, i, j, *, by):
    """Return biases that kernels do not run."""
    apart = j[None] - i[:, None]
    table = params["table"]
    return {
        "gather": lambda: table[jnp.clip(apart, 0, 7)],
        "sort": lambda: jnp.sort(q, axis=1) @ k.T,
        "cumsum": lambda: jnp.cumsum(q, axis=1) @ k.T,
        "while": lambda: (
            q @ k.T + lax.fori_loop(0, jnp.max(table).astype(jnp.int32), lambda _, x: x * 0.5, jnp.float32(i[0]))
        ),
        "scan": lambda: lax.fori_loop(0, 3, lambda _, x: x * 0.5, q @ k.T),
        "expm1": lambda: jnp.expm1(-jnp.abs(apart.astype(jnp.float32))),
        "iota": lambda: q @ k.T + lax.broadcasted_iota(jnp.float32, (len(q), 1), 0),
        "reduce_max": lambda: q @ k.T - jnp.max(q),
        "argmax": lambda: (q @ k.T) * jnp.argmax(q, axis=1)[:, None].astype(jnp.float32),
        "rev": lambda: q[::-1] @ k.T,
        "custom_linear_solve": lambda: lax.custom_linear_solve(lambda x: 2.0 * x, q @ k.T, lambda _, b: b / 2.0),
    }[by]()


REFUSED = ["gather", "sort", "cumsum", "while", "scan", "expm1", "iota", "reduce_max", "argmax", "rev"]


@pytest.mark.parametrize("operation", [*REFUSED, "custom_linear_solve"])
def test_an_operation_that_kernels_do_not_run_is_named_with_the_hook_and_the_way_out(operation):
    x, bias = jnp.ones((1, 9, 1, D)), functools.partial(refused, by=operation)
    hooks = Hooks(bias=Partial(bias, {"heads": {"table": jnp.ones((1, 8))}}))
    with pytest.raises(NotImplementedError, match=rf"bias hook .* {operation}\b.*; implementation=\"blockwise\""):
        jax.eval_shape(lambda x: dot_product_attention(x, x, x, hooks=hooks, implementation="tpu"), x)


@pytest.mark.parametrize(
    ("hidden", "reason"), [(60, "makes [0-9,]+ numbers for each pair"), (300, "keeps 300 numbers")]
)
def test_hooks_that_need_too_much_memory_are_refused(hidden, reason):
    def bias(params, q, k, i, j):
        x = jnp.abs(j[None] - i[:, None]).astype(jnp.float32)[..., None] * params["table"][0]
        for _ in range(20):
            x = jnp.sin(x)
        return x @ params["table"][0]

    x, hooks = jnp.ones((1, 9, 1, D)), Hooks(bias=Partial(bias, {"heads": {"table": jnp.ones((1, 1, hidden))}}))
    with pytest.raises(NotImplementedError, match=f"bias hook .* {reason}.*blockwise"):
        jax.eval_shape(lambda x: dot_product_attention(x, x, x, hooks=hooks, implementation="tpu"), x)


@pytest.mark.parametrize(("kind", "reason"), [(jnp.float32, "positions that are floats"), (jnp.uint32, "in uint32")])
def test_positions_that_kernels_do_not_read_are_refused(kind, reason):
    x, params = jnp.ones((1, 9, 1, D)), {"heads": {"table": jnp.ones((1, 8))}}
    hooks = Hooks(bias=Partial(lambda p, q, k, i, j: q @ k.T, params))
    with pytest.raises(NotImplementedError, match=reason):
        dot_product_attention(x, x, x, positions=jnp.arange(9, dtype=kind), hooks=hooks, implementation="tpu")
