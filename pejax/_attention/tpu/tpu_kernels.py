"""Flash attention for TPUs in three Mosaic kernels: forward; gradients of q and the bias; gradients of k and v.

Every kernel walks tiles of keys x queries and visits only those between the first and the last in which some query
sees some key. The bias of a tile is a Toeplitz matrix cut from a vector of the distances on its diagonal; nothing of
the size of the scores is ever written to memory. With w = e^(s - lse), mean_i = Σ_d do_id o_id - dlse_i,

    ds_ij = w_ij (dw_ij - mean_i)    dq = scale·ds k    dk = scale·dsᵀ q    dv = wᵀ do    dbias[r] = Σ_(j - i = r) ds_ij

Reference:
    Dao et al. 2022, "FlashAttention" (arXiv 2205.14135), appendix B.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from pejax._attention.core.reference import one_if_zero
from pejax._attention.tpu.tpu_tile import (
    Place,
    Plan,
    Refs,
    diagonal_gradient,
    diagonal_of,
    drop,
    has_program,
    numbers_gradient,
    placed_only,
    product,
    run_pairs,
    run_values,
    sums_of_keys,
    tile_logits,
)
from pejax._ops.varying import shape_varying, varying_axes


class Spans(NamedTuple):
    """The first and the last block that each block has to visit, over batch and blocks; last < first = none."""

    first: Int[Array, " M"]
    last: Int[Array, " M"]


def forward(
    plan: Plan, operands: dict[str, Array], spans: Spans
) -> tuple[Float[Array, "N H T D"], Float[Array, "N H 1 T"]]:
    """Return the output and each row's log-sum-exp."""
    q, k = operands["q"], operands["k"]
    (n, h, t, d), blocks = q.shape, k.shape[2] // plan.keys

    def kernel(first: Any, last: Any, refs: Refs, output: Any, lse: Any, top: Any, total: Any, sums: Any) -> None:
        grid = [pl.program_id(axis) for axis in range(4)]
        place, seen = _by_queries(plan, operands, first, last, *grid)

        @pl.when(grid[3] == 0)
        def start() -> None:
            top[...] = jnp.full_like(top, -jnp.inf)
            total[...] = jnp.zeros_like(total)
            sums[...] = jnp.zeros_like(sums)

        @pl.when(seen)
        def add() -> None:
            logits, _ = tile_logits(plan, refs, place)
            new = jnp.maximum(top[...], jnp.max(logits, axis=0, keepdims=True))
            shift = jnp.where(new == -jnp.inf, 0.0, new)
            weights, shrink = jnp.exp(logits - shift), jnp.exp(top[...] - shift)
            total[...] = total[...] * shrink + jnp.sum(weights, axis=0, keepdims=True)
            dropped = drop(plan, refs, weights).astype(refs["v"].dtype)
            sums[...] = sums[...] * shrink + product(plan.options, refs["v"][0, 0], dropped, (0, 0))
            if has_program(plan, "values"):
                sums[...] += run_values(plan, refs, "values", drop(plan, refs, weights))[0]
            top[...] = new

        @pl.when(grid[3] == blocks - 1)
        def finish() -> None:
            divisor = one_if_zero(total[...])
            output[0, 0] = (sums[...] / divisor).T.astype(output.dtype)
            lse[0, 0] = jnp.where(total[...] == 0, -jnp.inf, top[...] + jnp.log(divisor))

    row = pltpu.VMEM((1, plan.queries), jnp.float32)
    return _call(
        plan, kernel, operands, spans, (n, h, t // plan.queries, blocks),
        _by_queries, 2, {"q": q.dtype, "lse": jnp.float32},
        [row, row, pltpu.VMEM((d, plan.queries), jnp.float32)],
    )  # fmt: skip


def query_gradients(plan: Plan, operands: dict[str, Array], spans: Spans) -> tuple[Array, ...]:
    """Return the gradient of q and, where there is a bias, of each example's and head's `diagonals` or `numbers`."""
    q, k = operands["q"], operands["k"]
    (n, h, t, d), blocks = q.shape, k.shape[2] // plan.keys
    names = [name for name in ("diagonals", "numbers") if name in operands] + [*_number_shapes(plan)]
    outputs = {"q": q.dtype} | {f"d_{name}": jnp.float32 for name in names}
    sums = pltpu.VMEM((d, plan.queries), jnp.float32)
    of_bias, of_values = (has_program(plan, name) for name in ("query_gradients", "number_gradients"))
    reads_q = of_bias and plan.pairs is not None and plan.pairs.pairs is not None and plan.pairs.pairs.reads_q
    more = [pltpu.VMEM((plan.lanes, plan.queries + plan.keys), jnp.float32)] if names == ["diagonals"] else []
    more += [sums] if reads_q else []

    def kernel(first: Any, last: Any, refs: Refs, d_q: Any, *more_refs: Any) -> None:
        d_made, (sums, *more) = more_refs[: len(names)], more_refs[len(names) :]
        grid = [pl.program_id(axis) for axis in range(4)]
        place, seen = _by_queries(plan, operands, first, last, *grid)

        @pl.when(grid[3] == 0)
        def start() -> None:
            sums[...] = jnp.zeros_like(sums)
            if reads_q:
                more[0][...] = jnp.zeros_like(more[0])

        if names:

            @pl.when((grid[2] == 0) & (grid[3] == 0))
            def start_bias() -> None:
                for ref in d_made:
                    ref[...] = jnp.zeros_like(ref)

        @pl.when(seen)
        def add() -> None:
            weights, d_logits, _ = _score_gradients(plan, refs, place)
            sums[...] += product(plan.options, refs["k"][0, 0], d_logits.astype(q.dtype), (0, 0))
            if names == ["diagonals"]:
                sums_of_diagonal = diagonal_gradient(plan, placed_only(plan, refs, d_logits), *more)
                d_made[0][0, 0, pl.ds(diagonal_of(plan, place.i, place.j), 1), :] += sums_of_diagonal
            elif names == ["numbers"]:
                d_made[0][0, 0] += numbers_gradient(plan, refs, place, placed_only(plan, refs, d_logits))
            gradients = []
            if of_bias:
                gradients += run_pairs(plan, refs, "query_gradients", placed_only(plan, refs, d_logits))
            if reads_q:
                more[0][...] += gradients.pop()
            if of_values:
                gradients += run_values(plan, refs, "number_gradients", drop(plan, refs, weights))
            for ref, gradient in zip(d_made, gradients, strict=False):
                ref[0, 0] += gradient

        @pl.when(grid[3] == blocks - 1)
        def finish() -> None:
            total = plan.options.scale * sums[...]
            d_q[0, 0] = (total + more[0][...] if reads_q else total).T.astype(d_q.dtype)

    grid = n, h, t // plan.queries, blocks
    return _call(plan, kernel, operands, spans, grid, _by_queries, 2, outputs, [sums, *more])


def _number_shapes(plan: Plan) -> dict[str, tuple[int, int]]:
    """Return the sizes of the gradients of the numbers that hooks of pairs read, by name."""
    return {} if plan.pairs is None else plan.pairs.gradients


def key_gradients(plan: Plan, operands: dict[str, Array], spans: Spans) -> Sequence[Array]:
    """Return the gradients of k and v, summed over the queries' heads that share them, and of a key bias."""
    q, k, v = (operands[name] for name in "qkv")
    (n, groups, s, d), heads, blocks = k.shape, q.shape[1] // k.shape[1], plan.query_blocks

    biased = "key_bias" in operands
    of_hook = has_program(plan, "key_gradients")

    def kernel(first: Any, last: Any, refs: Refs, d_k: Any, d_v: Any, *more_refs: Any) -> None:
        d_bias, (k_sums, v_sums, *hook_sums) = more_refs[:biased], more_refs[biased:]
        grid = [pl.program_id(axis) for axis in range(5)]
        place, seen = _by_keys(plan, operands, first, last, *grid)

        @pl.when((grid[3] == 0) & (grid[4] == 0))
        def start() -> None:
            k_sums[...] = jnp.zeros_like(k_sums)
            v_sums[...] = jnp.zeros_like(v_sums)
            for sums in hook_sums:
                sums[...] = jnp.zeros_like(sums)

        @pl.when(grid[4] == 0)
        def start_head() -> None:
            for ref in d_bias:
                ref[...] = jnp.zeros_like(ref)

        @pl.when(seen)
        def add() -> None:
            weights, d_logits, d_capped = _score_gradients(plan, refs, place)
            for ref in d_bias:
                ref[0, 0] += sums_of_keys(d_capped)
            q, d_output = refs["q"][0, 0], refs["d_output"][0, 0]
            v_sums[...] += product(plan.options, drop(plan, refs, weights).astype(d_output.dtype), d_output, (1, 0))
            k_sums[...] += product(plan.options, d_logits.astype(q.dtype), q, (1, 0))
            for sums in hook_sums:
                sums[...] += run_pairs(plan, refs, "key_gradients", placed_only(plan, refs, d_logits))[0]

        @pl.when((grid[3] == heads - 1) & (grid[4] == blocks - 1))
        def finish() -> None:
            total = plan.options.scale * k_sums[...]
            d_k[0, 0] = (total + hook_sums[0][...] if hook_sums else total).astype(d_k.dtype)
            d_v[0, 0] = v_sums[...].astype(d_v.dtype)

    sums = pltpu.VMEM((plan.keys, d), jnp.float32)
    grid = (n, groups, s // plan.keys, heads, blocks)
    outputs = {"k": k.dtype, "v": v.dtype} | ({"key_bias": jnp.float32} if biased else {})
    return _call(plan, kernel, operands, spans, grid, _by_keys, 3, outputs, [sums] * (2 + of_hook))


def _score_gradients(
    plan: Plan, refs: Refs, place: Place
) -> tuple[Float[Array, "S T"], Float[Array, "S T"], Float[Array, "S T"]]:
    """Return the weights before dropout, and the gradients of `scale·q·k + bias` and of the logits after the cap."""
    logits, cap_derivative = tile_logits(plan, refs, place)
    weights = jnp.exp(logits - refs["lse"][0, 0])
    d_weights = product(plan.options, refs["v"][0, 0], refs["d_output"][0, 0], (1, 1))
    if has_program(plan, "weight_gradients"):
        d_weights += placed_only(plan, refs, run_values(plan, refs, "weight_gradients", weights)[0])
    d_capped = weights * (drop(plan, refs, d_weights) - refs["mean"][0, 0])
    return weights, d_capped if cap_derivative is None else d_capped * cap_derivative, d_capped


def _by_queries(
    plan: Plan, operands: dict[str, Array], first: Any, last: Any, n: Any, h: Any, i: Any, j: Any
) -> tuple[Place, Any]:
    """Return where a step of the grid (example, query head, query block, key block) is, and whether it has work."""
    span = _tokens_of(operands, n) * plan.query_blocks + i
    key_head = h // (operands["q"].shape[1] // operands["k"].shape[1])
    within, seen = _within(j, first[span], last[span])
    return Place(n, h, key_head, i, within), seen


def _by_keys(
    plan: Plan, operands: dict[str, Array], first: Any, last: Any, n: Any, group: Any, j: Any, g: Any, i: Any
) -> tuple[Place, Any]:
    """Return the same for the grid (example, key head, key block, head of the group, query block)."""
    span = _tokens_of(operands, n) * (operands["k"].shape[2] // plan.keys) + j
    head = group * (operands["q"].shape[1] // operands["k"].shape[1]) + g
    within, seen = _within(i, first[span], last[span])
    return Place(n, head, group, within, j), seen


def _within(block: Any, first: Any, last: Any) -> tuple[Any, Any]:
    """Return the nearest block that is visited, which is here already, and whether it is this one."""
    return jnp.maximum(first, jnp.minimum(block, last)), (first <= block) & (block <= last)


def _tokens_of(operands: dict[str, Array], n: Any) -> Any:
    """Return which example's tokens example n has: the only ones there are, or its own."""
    return n if "columns" in operands and operands["columns"].shape[0] > 1 else 0


def _call(
    plan: Plan,
    kernel: Callable[..., None],
    operands: dict[str, Array],
    spans: Spans,
    grid: tuple[int, ...],
    place: Callable[..., tuple[Place, Any]],
    parallel: int,
    outputs: dict[str, Any],
    scratch: list[Any],
) -> Any:
    """Run a kernel whose first `parallel` axes of the grid are independent; its outputs are shaped as operands."""
    # The last axis of a grid runs fastest, and the kernels add to scratch and to gradients from one step to the next.
    # So the axes that are summed over come last and run in order; a chip may split the first ones over its cores.
    n, h, t, d = operands["q"].shape

    def at(pick: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
        def index(*step: Any) -> tuple[Any, ...]:
            *steps, first, last = step
            return pick(*place(plan, operands, first, last, *steps)[0])

        return index

    q_block, k_block = (1, 1, plan.queries, d), (1, 1, plan.keys, d)
    token = functools.partial(_tokens_of, operands)
    queries = pl.BlockSpec(q_block, at(lambda n, h, group, i, j: (n, h, i, 0)))
    keys = pl.BlockSpec(k_block, at(lambda n, h, group, i, j: (n, group, j, 0)))
    rows = pl.BlockSpec((1, 1, 1, plan.queries), at(lambda n, h, group, i, j: (n, h, 0, i)))
    rows_told, columns_told = len([x for x in plan.fields if x != "word"]), len(plan.fields)
    diagonals = operands["diagonals"].shape[1:] if "diagonals" in operands else ()
    specs = {
        "q": queries, "d_output": queries, "k": keys, "v": keys, "lse": rows, "mean": rows, "words": rows,
        "rows": pl.BlockSpec((1, rows_told, plan.queries), at(lambda n, h, group, i, j: (token(n), 0, i))),
        "columns": pl.BlockSpec((1, plan.keys, columns_told), at(lambda n, h, group, i, j: (token(n), j, 0))),
        "numbers": pl.BlockSpec(memory_space=pltpu.SMEM),
        "key_bias": pl.BlockSpec((1, 1, 1, plan.keys), at(lambda n, h, group, i, j: (n, h, 0, j))),
        "d_numbers": pl.BlockSpec((1, 1, 1, plan.lanes), at(lambda n, h, group, i, j: (n, h, 0, 0))),
        "diagonals": pl.BlockSpec((1, *diagonals), at(lambda n, h, group, i, j: (h, 0, 0))),
        "d_diagonals": pl.BlockSpec((1, 1, *diagonals), at(lambda n, h, group, i, j: (n, h, 0, 0))),
    }  # fmt: skip
    shapes = {"lse": (n, h, 1, t), "d_numbers": (n, h, 1, plan.lanes), "d_diagonals": (n, h, *diagonals)}
    for name, size in _number_shapes(plan).items():
        shapes[f"d_{name}"] = (n, h, *size)
        specs[f"d_{name}"] = pl.BlockSpec((1, 1, *size), at(lambda n, h, group, i, j: (n, h, 0, 0)))
    for name in operands.keys() - specs.keys():  # of hooks of pairs
        specs[name] = pl.BlockSpec((1, *operands[name].shape[1:]), at(lambda n, h, group, i, j: (h, 0, 0)))
    axes = varying_axes(operands)
    out_shapes = [shape_varying(shapes.get(x) or operands[x].shape, dtype, axes) for x, dtype in outputs.items()]
    return pl.pallas_call(
        kernel,
        out_shape=out_shapes,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=grid,
            in_specs=[{name: specs[name] for name in operands}],
            out_specs=[specs[name] for name in outputs],
            scratch_shapes=scratch,
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel",) * parallel + ("arbitrary",) * (len(grid) - parallel)
        ),
        interpret=plan.interpret,
    )(*spans, operands)
