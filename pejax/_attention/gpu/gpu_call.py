"""One call of the kernels on GPUs: sizes of tiles, operands padded to them, and gradients without padding."""

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float, Int

from pejax._attention.core.operands import Operands
from pejax._attention.gpu.gpu_bias_gradients import (
    bias_gradients_by_keys,
    bias_gradients_by_queries,
    diagonal_gradients,
)
from pejax._attention.gpu.gpu_kernels import forward, key_gradients, query_gradients
from pejax._attention.gpu.gpu_tile import Inputs, Plan
from pejax._attention.gpu.shared_memory import BACKWARD, fitting_blocks, memory_limit
from pejax._attention.kernels.block_masks import Tiles, TokenRows, spans, tiles, token_rows
from pejax._attention.kernels.kernel_call import Outputs, Primals, Rows, Static, Way, position_axes


class PaddedPrimals(NamedTuple):
    """The `Primals` as the kernels read them: padded, with the parameters of the bias as `numbers` or `diagonals`.

    Attributes:
        q: queries.
        k: keys.
        v: values.
        numbers: as in `Inputs`.
        diagonals: as in `Inputs`.
        q_positions: positions of the queries, one array `(N, T)` per axis; () unless the bias reads float positions.
        k_positions: positions of the keys, one array `(N, S)` per axis; () likewise.
        key_bias: as in `Inputs`.
    """

    q: Float[Array, "N H T D"]
    k: Float[Array, "N K S D"]
    v: Float[Array, "N K S D"]
    numbers: tuple[Array, ...]
    diagonals: Float[Array, "H R"] | None
    q_positions: tuple[Array, ...]
    k_positions: tuple[Array, ...]
    key_bias: Float[Array, "N H S"] | None


@dataclass(frozen=True)
class Call:
    """One call with the bias obtained in one way; the `kernel_call.Call` of GPUs.

    Attributes:
        static: options, layout, and whether kernels run in the interpreter.
        way: how the call obtains its bias.
        operands: the operands of the call, not padded.
        shift: that of `p_j - p_i = j - i + shift`, for positions p of query i and key j; only read where the way is
            "diagonals".
    """

    static: Static
    way: Way
    operands: Operands
    shift: Int[Array, ""]

    def forward(self, primals: Primals) -> Outputs:
        """Return the output and the log-sum-exps."""
        output, lse = forward(self.plans[0], self._inputs(self.plans[0], self._padded_primals(primals)))
        n, key_heads, group, t, d = primals.q.shape
        return output[:, :, :t, :d].reshape(primals.q.shape), lse[:, :, :t].reshape(n, key_heads, group, t)

    def gradients(self, primals: Primals, rows: Rows) -> Primals:
        """Return the gradients with respect to the differentiable inputs."""
        padded, pullback = jax.vjp(self._padded_primals, primals)
        return pullback(self._gradients(padded, self._padded_rows(rows)))[0]

    @functools.cached_property
    def plans(self) -> tuple[Plan, Plan]:
        """The plans of forward and backward, which share their padded lengths."""
        q = self.operands.q
        lengths, options = (q.shape[-2], self.operands.k.shape[-2]), self.static.options
        forward_blocks, backward_blocks = tile_sizes(_padded_size(q.shape[-1]) * q.dtype.itemsize, memory_limit())

        def fit(blocks: tuple[int, int]) -> tuple[int, int]:
            limit = options.block or max(blocks)
            q_size, k_size = map(_padded_size, lengths)
            return min(blocks[0], limit, q_size), min(blocks[1], limit, k_size)

        forward_blocks, backward_blocks = fit(forward_blocks), fit(backward_blocks)
        # Sizes are powers of two, so lengths that are multiples of the larger of two are multiples of both.
        q_unit, k_unit = map(max, forward_blocks, backward_blocks)
        plan = Plan(
            options=options,
            blocks=(q_unit, k_unit),
            counts=(math.ceil(lengths[0] / q_unit), math.ceil(lengths[1] / k_unit)),
            group=q.shape[2],
            bias=self.way.bias,
            one_dropout=self.static.layout.one_dropout,
            interpret=self.static.interpret,
        )
        return plan.with_blocks(forward_blocks), plan.with_blocks(backward_blocks)

    @functools.cached_property
    def lengths(self) -> tuple[int, int]:
        """The padded T and S."""
        plan = self.plans[0]
        return plan.blocks[0] * plan.counts[0], plan.blocks[1] * plan.counts[1]

    @functools.cached_property
    def tokens(self) -> tuple[TokenRows, TokenRows]:
        """The tokens of queries and keys."""
        static = self.static
        axes = 0 if self.way.name == "none" else position_axes(static.layout, self.operands)
        return token_rows(static.options, static.layout, self.operands, self.lengths, axes)

    def _padded_primals(self, primals: Primals) -> PaddedPrimals:
        """Return the differentiable inputs as the kernels read them."""
        n, key_heads, group, t, d = primals.q.shape
        width = _padded_size(d)
        pad = lambda x, length: jnp.pad(x, ((0, 0), (0, 0), (0, length - x.shape[2]), (0, width - d)))
        q_length, k_length = self.lengths
        numbers, diagonals = self._bias(primals)
        return PaddedPrimals(
            q=pad(primals.q.reshape(n, key_heads * group, t, d), q_length),
            k=pad(primals.k, k_length),
            v=pad(primals.v, k_length),
            numbers=numbers,
            diagonals=diagonals,
            q_positions=self._positions(primals.q_positions, q_length),
            k_positions=self._positions(primals.k_positions, k_length),
            key_bias=self._key_bias(primals.key_bias),
        )

    def _key_bias(self, bias: Array | None) -> Array | None:
        """Return the bias of the keys as `(N, H, S)`, padded."""
        if bias is None:
            return None
        n, key_heads, group, s = bias.shape
        return jnp.pad(bias.reshape(n, key_heads * group, s), ((0, 0), (0, 0), (0, self.lengths[1] - s)))

    def _bias(self, primals: Primals) -> tuple[tuple[Array, ...], Array | None]:
        """Return `numbers` and `diagonals` of `PaddedPrimals`: one of them, as the way says, or neither."""
        distance, bias = self.operands.shared.distance_bias, self.way.bias
        key_heads, group, t = self.operands.q.shape[1:4]
        if distance is None:
            return (), None
        heads = key_heads * group
        per_head = jax.tree.map(lambda x: x.reshape(heads, *x.shape[2:]), primals.per_head)
        for_each_head = lambda f: jax.vmap(lambda params: f({**primals.shared, **params}), axis_size=heads)(per_head)
        if bias is not None:
            return tuple(for_each_head(lambda params: [jnp.asarray(x) for x in bias.outside(params)])), None
        offsets = jnp.arange(sum(self.lengths), dtype=jnp.int32) - (self.lengths[0] - 1)
        # The hook is not asked for distances that only padding has: it may have none for them, as a table has none.
        offsets = offsets.clip(1 - t, self.operands.k.shape[2] - 1)
        return (), for_each_head(lambda params: distance.func(params, offsets + self.shift).astype(jnp.float32))

    def _positions(self, positions: Array | None, length: int) -> tuple[Array, ...]:
        """Return the float positions of one side, padded: one array `(N, T)` per axis."""
        if positions is None:
            return ()
        axes = position_axes(self.static.layout, self.operands)
        by_axis = [positions[..., a] for a in range(axes)] if axes > 1 else [positions]
        batched = (x if x.ndim == 2 else x[None] for x in by_axis)
        return tuple(jnp.pad(x, ((0, 0), (0, length - x.shape[1])), mode="edge") for x in batched)

    def _inputs(self, plan: Plan, padded: PaddedPrimals, tiles_of: str = "queries") -> Inputs:
        """Return the inputs of a kernel.

        Args:
            plan: plan of the kernel.
            padded: the differentiable inputs.
            tiles_of: the tiles that one program loops over: those of a block of "queries", of a block of "keys", or of
                one of the "diagonals" of square tiles.
        """
        operands, (q_tokens, k_tokens) = self.operands, self.tokens
        visible = tiles(self.static.options, q_tokens, k_tokens, plan.blocks)
        if tiles_of == "diagonals":
            # Diagonals differ in length, so their loops need spans even where every pair is visible.
            every_tile = jnp.ones((1, *plan.counts), bool)
            visible = (Tiles(every_tile, every_tile) if visible is None else visible).diagonals()
        elif tiles_of == "keys" and visible is not None:
            visible = visible.transposed()
        dropout_words = None
        if operands.seed is not None:
            dropout_words = jnp.stack([*operands.seed, *(jnp.asarray(x, jnp.uint32) for x in operands.origin)])
        if padded.q_positions:
            q_tokens = q_tokens._replace(positions=padded.q_positions)
            k_tokens = k_tokens._replace(positions=padded.k_positions)
        return Inputs(
            q=padded.q,
            k=padded.k,
            v=padded.v,
            q_tokens=q_tokens,
            k_tokens=k_tokens,
            numbers=padded.numbers,
            diagonals=padded.diagonals,
            dropout_words=dropout_words,
            key_bias=padded.key_bias,
            spans=None if visible is None else spans(visible),
        )

    def _padded_rows(self, rows: Rows) -> Rows:
        """Return the rows for the backward pass as the kernels read them, `(N, H, T, D)` and `(N, H, T)`."""
        n, key_heads, group, t, d = rows.d_output.shape
        heads = key_heads * group
        extra, width = self.lengths[0] - t, _padded_size(d)
        pad = lambda x: jnp.pad(x.reshape(n, heads, t), ((0, 0), (0, 0), (0, extra)))
        d_output = jnp.pad(rows.d_output.reshape(n, heads, t, d), ((0, 0), (0, 0), (0, extra), (0, width - d)))
        return Rows(d_output, pad(rows.lse), pad(rows.mean))

    def _gradients(self, padded: PaddedPrimals, rows: Rows) -> PaddedPrimals:
        """Return the gradients of the padded inputs."""
        _, plan = self.plans
        query_inputs = self._inputs(plan, padded)
        key_inputs = self._inputs(plan, padded, "keys")
        d_k, d_v, *d_key_bias = key_gradients(plan, key_inputs, rows)
        numbers, diagonals, q_positions, k_positions = (), None, (), ()
        if padded.numbers or padded.q_positions:
            numbers, q_positions = bias_gradients_by_queries(plan, query_inputs, rows)
        if padded.q_positions:
            k_positions = bias_gradients_by_keys(plan, key_inputs, rows)
        if padded.diagonals is not None:
            size = min(plan.blocks)  # a diagonal of tiles is one of tokens only if tiles are square
            square_plan = plan.with_blocks((size, size))
            diagonals = diagonal_gradients(square_plan, self._inputs(square_plan, padded, "diagonals"), rows)
        return PaddedPrimals(
            q=query_gradients(plan, query_inputs, rows),
            k=d_k,
            v=d_v,
            numbers=numbers,
            diagonals=diagonals,
            q_positions=_summed(q_positions, padded.q_positions),
            k_positions=_summed(k_positions, padded.k_positions),
            key_bias=next(iter(d_key_bias), None),
        )


def tile_sizes(row_bytes: int, available: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the numbers of queries and keys in a tile, for the forward pass and for the backward pass.

    Args:
        row_bytes: bytes of one token's channels in a head, padded.
        available: bytes of shared memory available to a program.

    Raises:
        NotImplementedError: no tile fits.
    """
    # (queries, keys) forward and backward. Tokens of more bytes leave room for fewer of them.
    large, medium, small = ((128, 64), (64, 64)), ((64, 32), (32, 32)), ((32, 16), (32, 16))
    forward_blocks, backward_blocks = large if row_bytes <= 256 else medium if row_bytes <= 512 else small
    forward_blocks = fitting_blocks(("forward",), forward_blocks, row_bytes, available)
    return forward_blocks, fitting_blocks(BACKWARD, backward_blocks, row_bytes, available)


def _summed(gradients: tuple[Array, ...], positions: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return gradients of positions `(N, T)` on each axis, summed over the batch where positions are `(1, T)`."""
    axes = zip(gradients, positions, strict=True)
    return tuple(d_x if d_x.shape == x.shape else jnp.sum(d_x, axis=0, keepdims=True) for d_x, x in axes)


def _padded_size(size: int) -> int:
    """Return the smallest power of two that is at least `size` and 16, the smallest side of a product on GPUs."""
    return max(16, pl.next_power_of_2(size))
