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
from pejax._attention.gpu.bias_gradients import diagonal_gradients, numbers_by_queries, positions_by_keys
from pejax._attention.gpu.block_masks import Tiles, TokenRows, spans, tiles, token_rows
from pejax._attention.gpu.kernels import forward, key_gradients, query_gradients
from pejax._attention.gpu.shared_memory import BACKWARD, fitting_blocks, memory_limit
from pejax._attention.gpu.tile import Inputs, Plan
from pejax._attention.kernels.kernel_call import Outputs, Primals, Rows, Static, Way, position_axes


class Floats(NamedTuple):
    """The differentiable inputs of the kernels, padded; numbers, diagonals and key_bias as in `Inputs`.

    Positions are included only if the bias reads float positions: one array `(N, T)` or `(N, S)` per axis.
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
        way: the way to the bias.
        operands: the operands of the call, not padded.
        shift: c in `k_j - q_i = j - i + c`, read where the way is "diagonals".
    """

    static: Static
    way: Way
    operands: Operands
    shift: Int[Array, ""]

    def forward(self, primals: Primals) -> Outputs:
        """Return the output and the log-sum-exps."""
        output, lse = forward(self.plans[0], self._inputs(self.plans[0], self._floats(primals)))
        n, k, g, t, d = primals.q.shape
        return output[:, :, :t, :d].reshape(n, k, g, t, d), lse[:, :, :t].reshape(n, k, g, t)

    def gradients(self, primals: Primals, rows: Rows) -> Primals:
        """Return the gradients with respect to the differentiable inputs."""
        floats, pull = jax.vjp(self._floats, primals)
        return pull(self._gradients(floats, self._padded(rows)))[0]

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

    def _floats(self, primals: Primals) -> Floats:
        """Return the differentiable inputs as the kernels read them."""
        n, k, g, t, d = primals.q.shape
        width = _padded_size(d)
        pad = lambda x, length: jnp.pad(x, ((0, 0), (0, 0), (0, length - x.shape[2]), (0, width - d)))
        q_length, k_length = self.lengths
        numbers, diagonals = self._bias(primals)
        return Floats(
            q=pad(primals.q.reshape(n, k * g, t, d), q_length),
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
        n, k, g, s = bias.shape
        return jnp.pad(bias.reshape(n, k * g, s), ((0, 0), (0, 0), (0, self.lengths[1] - s)))

    def _bias(self, primals: Primals) -> tuple[tuple[Array, ...], Array | None]:
        """Return `Floats.numbers` and `Floats.diagonals`: one of them, as the way says, or neither."""
        distance, bias = self.operands.shared.distance_bias, self.way.bias
        k, g, t = self.operands.q.shape[1:4]
        if distance is None:
            return (), None
        per_head = jax.tree.map(lambda x: x.reshape(k * g, *x.shape[2:]), primals.per_head)
        for_heads = lambda f: jax.vmap(lambda own: f({**primals.shared, **own}), axis_size=k * g)(per_head)
        if bias is not None:
            return tuple(for_heads(lambda params: [jnp.asarray(x) for x in bias.outside(params)])), None
        offsets = jnp.arange(sum(self.lengths), dtype=jnp.int32) - (self.lengths[0] - 1)
        # The hook is not asked for distances that only padding has: it may have none for them, as a table.
        offsets = offsets.clip(1 - t, self.operands.k.shape[2] - 1)
        return (), for_heads(lambda params: distance.func(params, offsets + self.shift).astype(jnp.float32))

    def _positions(self, positions: Array | None, length: int) -> tuple[Array, ...]:
        """Return the float positions of one side, padded: one array `(N, T)` per axis."""
        if positions is None:
            return ()
        axes = position_axes(self.static.layout, self.operands)
        by_axis = [positions[..., a] for a in range(axes)] if axes > 1 else [positions]
        rows = (x if x.ndim == 2 else x[None] for x in by_axis)
        return tuple(jnp.pad(x, ((0, 0), (0, length - x.shape[1])), mode="edge") for x in rows)

    def _inputs(self, plan: Plan, floats: Floats, tiles_of: str = "queries") -> Inputs:
        """Return the inputs of a kernel, in which each program loops over the tiles of one block or diagonal.

        `tiles_of` says of what: "queries", "keys", or "diagonals" of square tiles.
        """
        operands, (q_tokens, k_tokens) = self.operands, self.tokens
        visible = tiles(self.static.options, q_tokens, k_tokens, plan.blocks)
        if tiles_of == "diagonals":
            # Diagonals differ in length, so their loops need spans even where every pair is visible.
            every_tile = jnp.ones((1, *plan.counts), bool)
            visible = (Tiles(every_tile, every_tile) if visible is None else visible).diagonals()
        elif tiles_of == "keys" and visible is not None:
            visible = visible.transposed()
        words = None
        if operands.seed is not None:
            words = jnp.stack([*operands.seed, *(jnp.asarray(x, jnp.uint32) for x in operands.origin)])
        if floats.q_positions:
            q_tokens = q_tokens._replace(positions=floats.q_positions)
            k_tokens = k_tokens._replace(positions=floats.k_positions)
        return Inputs(
            q=floats.q,
            k=floats.k,
            v=floats.v,
            q_tokens=q_tokens,
            k_tokens=k_tokens,
            numbers=floats.numbers,
            diagonals=floats.diagonals,
            words=words,
            key_bias=floats.key_bias,
            spans=None if visible is None else spans(visible),
        )

    def _padded(self, rows: Rows) -> Rows:
        """Return the rows for the backward pass, padded."""
        n, k, g, t, d = rows.d_output.shape
        extra, width = self.lengths[0] - t, _padded_size(d)
        pad = lambda x: jnp.pad(x.reshape(n, k * g, t), ((0, 0), (0, 0), (0, extra)))
        d_output = jnp.pad(rows.d_output.reshape(n, k * g, t, d), ((0, 0), (0, 0), (0, extra), (0, width - d)))
        return Rows(d_output, pad(rows.lse), pad(rows.mean))

    def _gradients(self, floats: Floats, rows: Rows) -> Floats:
        """Return the gradients of the padded inputs."""
        _, plan = self.plans
        by_query = self._inputs(plan, floats)
        by_key = self._inputs(plan, floats, "keys")
        d_k, d_v, *d_key_bias = key_gradients(plan, by_key, rows)
        numbers, diagonals, q_positions, k_positions = (), None, (), ()
        if floats.numbers or floats.q_positions:
            numbers, q_positions = numbers_by_queries(plan, by_query, rows)
        if floats.q_positions:
            k_positions = positions_by_keys(plan, by_key, rows)
        if floats.diagonals is not None:
            side = min(plan.blocks)  # a diagonal of tiles is one of tokens only if tiles are square
            square = plan.with_blocks((side, side))
            diagonals = diagonal_gradients(square, self._inputs(square, floats, "diagonals"), rows)
        return Floats(
            q=query_gradients(plan, by_query, rows),
            k=d_k,
            v=d_v,
            numbers=numbers,
            diagonals=diagonals,
            q_positions=_summed(q_positions, floats.q_positions),
            k_positions=_summed(k_positions, floats.k_positions),
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
    large, medium, small = ((128, 64), (64, 64)), ((64, 32), (32, 32)), ((32, 16), (32, 16))
    forward_blocks, backward_blocks = large if row_bytes <= 256 else medium if row_bytes <= 512 else small
    forward_blocks = fitting_blocks(("forward",), forward_blocks, row_bytes, available)
    return forward_blocks, fitting_blocks(BACKWARD, backward_blocks, row_bytes, available)


def _summed(found: tuple[Array, ...], given: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return gradients `(N, T)`, summed over the batch where it shares the positions `given`."""
    pairs = zip(found, given, strict=True)
    return tuple(d_x if d_x.shape == x.shape else jnp.sum(d_x, axis=0, keepdims=True) for d_x, x in pairs)


def _padded_size(size: int) -> int:
    """Return the smallest power of two that is at least `size` and 16, the smallest side of a product on GPUs."""
    return max(16, pl.next_power_of_2(size))
