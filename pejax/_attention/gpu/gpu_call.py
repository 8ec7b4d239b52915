"""One call of the kernels on GPUs: what is known of its tokens, its operands as kernels read them, and gradients."""

import functools
import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pejax._attention.core.operands import Operands
from pejax._attention.gpu.gpu_bias_gradients import (
    bias_gradients_by_keys,
    bias_gradients_by_queries,
    diagonal_gradients,
)
from pejax._attention.gpu.gpu_kernels import forward, key_gradients, query_gradients
from pejax._attention.gpu.gpu_line import on_line
from pejax._attention.gpu.gpu_padding import PaddedPrimals, padded_size, summed_positions, tile_sizes
from pejax._attention.gpu.gpu_tile import Inputs, Plan
from pejax._attention.gpu.shared_memory import is_rocm, memory_limit
from pejax._attention.kernels.block_masks import (
    TokenRows,
    all_tiles,
    are_masks_known,
    bias_rows,
    mask_rows,
    near_tiles,
    spans,
    tiles,
)
from pejax._attention.kernels.constant_ends import Ends, ends_of_hook
from pejax._attention.kernels.diagonals import derived_end
from pejax._attention.kernels.kernel_call import Outputs, Primals, Rows, Static
from pejax._attention.kernels.slots import Box, slot_count, slot_distances, slots_of
from pejax._attention.kernels.tokens_first import (
    computed,
    heads_first,
    offsets_of_diagonals,
    padded_key_bias,
    padded_rows,
    tokens_first,
)
from pejax._attention.kernels.ways import Way, position_axes


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
        return heads_first(output, lse, primals.q)

    def gradients(self, primals: Primals, rows: Rows) -> Primals:
        """Return the gradients with respect to the differentiable inputs."""
        padded, pullback = jax.vjp(self._padded_primals, primals)
        return pullback(self._gradients(padded, padded_rows(rows, self.lengths[0], self._width)))[0]

    @functools.cached_property
    def plans(self) -> tuple[Plan, Plan]:
        """The plans of forward and backward, which share their padded lengths."""
        q, (q_length, k_length) = self.operands.q, self.lengths
        integers = self.way.bias is None or jnp.issubdtype(self.operands.q_tokens.positions.dtype, jnp.integer)
        plan = Plan(
            options=self.static.options,
            blocks=(q_length, k_length),
            counts=(1, 1),
            group=q.shape[2],
            bias=self.way.bias,
            far=self._ends != (0, 0),
            slots=slot_count(self._box) if self.way.name == "slots" else 0,
            float_axes=0 if integers else position_axes(self.static.layout, self.operands),
            one_dropout=self.static.layout.one_dropout,
            interpret=self.static.interpret,
            inline=not self.static.interpret and not is_rocm(),
        )
        return plan.with_blocks(self._blocks[0]), plan.with_blocks(self._blocks[1])

    @functools.cached_property
    def _blocks(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """The numbers of queries and of keys in a tile, forward and backward."""
        q = self.operands.q
        q_limit, k_limit = (padded_size(x.shape[-2]) for x in (q, self.operands.k))
        forward_blocks, backward_blocks = tile_sizes(self._width * q.dtype.itemsize, memory_limit())

        def fit(blocks: tuple[int, int]) -> tuple[int, int]:
            limit = self.static.options.block or max(blocks)
            return min(blocks[0], limit, q_limit), min(blocks[1], limit, k_limit)

        return fit(forward_blocks), fit(backward_blocks)

    @functools.cached_property
    def lengths(self) -> tuple[int, int]:
        """The padded T and S."""
        # Sizes are powers of two, so lengths that are multiples of the larger of two are multiples of both.
        q_unit, k_unit = map(max, *self._blocks)
        q_length, k_length = self.operands.q.shape[-2], self.operands.k.shape[-2]
        return math.ceil(q_length / q_unit) * q_unit, math.ceil(k_length / k_unit) * k_unit

    @property
    def _width(self) -> int:
        """The padded D."""
        return padded_size(self.operands.q.shape[-1])

    @functools.cached_property
    def tokens(self) -> tuple[TokenRows, TokenRows]:
        """The tokens of queries and keys."""
        layout, in_order = self.static.layout, self.static.layout.in_order
        rows = computed(in_order, lambda: bias_rows(layout, self.operands, self.lengths, self.way.bias))
        sides = zip(self._mask_rows, rows, strict=True)
        q, k = (masks._replace(has_position=x.has_position, positions=x.positions) for masks, x in sides)
        if self.way.name == "slots":
            q, k = q._replace(slots=self._slots(0)), k._replace(slots=self._slots(1))
        return q, k

    def _slots(self, side: int) -> Int[Array, "1 P"]:
        """Return the slots of the queries (0) or of the keys (1), padded."""
        tokens = (self.operands.q_tokens, self.operands.k_tokens)[side]
        slots = slots_of(self._box, tokens.positions)[None]
        return jnp.pad(slots, ((0, 0), (0, self.lengths[side] - slots.shape[1])))

    @property
    def _box(self) -> Box:
        """The range of the positions on each axis, where they have slots."""
        return self.static.layout.box or ()

    @functools.cached_property
    def _mask_rows(self) -> tuple[TokenRows, TokenRows]:
        """The fields of the tokens that masks read."""
        options, layout, _ = self.static
        return computed(self._masks_known, lambda: mask_rows(options, layout, self.operands, self.lengths))

    @property
    def _masks_known(self) -> bool:
        return are_masks_known(self.static.options, self.static.layout, self.operands)

    @functools.cached_property
    def _ends(self) -> Ends:
        """How many of the first, and of the last, `diagonals` are the same function of the parameters."""
        distance = self.operands.shared.distance_bias
        if distance is None or self.way.name != "diagonals" or not self.static.layout.in_order:
            return Ends(0, 0)
        offsets = offsets_of_diagonals(self.operands, self.lengths)
        ends = ends_of_hook(distance, self.operands.per_head["distance_bias"], offsets)
        shortest = min(q_size + k_size - 1 for q_size, k_size in self._blocks)  # diagonals of the smallest tile
        return Ends(*(count if count >= shortest else 0 for count in ends))

    def _padded_primals(self, primals: Primals) -> PaddedPrimals:
        """Return the differentiable inputs as the kernels read them."""
        q_length, k_length = self.lengths
        numbers, diagonals = self._bias(primals)
        return PaddedPrimals(
            q=tokens_first(primals.q, q_length, self._width),
            k=tokens_first(primals.k[:, :, None], k_length, self._width),
            v=tokens_first(primals.v[:, :, None], k_length, self._width),
            numbers=numbers,
            diagonals=diagonals,
            q_positions=self._positions(primals.q_positions, q_length),
            k_positions=self._positions(primals.k_positions, k_length),
            key_bias=padded_key_bias(primals.key_bias, k_length),
        )

    def _bias(self, primals: Primals) -> tuple[tuple[Array, ...], Array | None]:
        """Return `numbers` and `diagonals` of `PaddedPrimals`: one of them, as the way says, or neither."""
        distance, bias = self.operands.shared.distance_bias, self.way.bias
        if distance is None:
            return (), None
        if bias is not None:
            return tuple(primals.of_each_head(lambda params: [jnp.asarray(x) for x in bias.outside(params)])), None
        relative = offsets_of_diagonals(self.operands, self.lengths) + self.shift
        if self.way.name == "slots":
            relative = jnp.asarray(slot_distances(self._box))
        return (), primals.of_each_head(lambda params: distance.func(params, relative).astype(jnp.float32))

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
        dropout_words = None
        if operands.seed is not None:
            dropout_words = jnp.stack([*operands.seed, *(jnp.asarray(x, jnp.uint32) for x in operands.origin)])
        if padded.q_positions:
            q_tokens = q_tokens._replace(positions=tuple((x,) for x in padded.q_positions))
            k_tokens = k_tokens._replace(positions=tuple((x,) for x in padded.k_positions))
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
            spans=computed(self._masks_known, lambda: self._spans(plan, tiles_of)),
        )

    def _spans(self, plan: Plan, tiles_of: str) -> Int[Array, "N I 6"] | None:
        """Return the spans of a kernel's loops; the arguments are those of `_inputs`."""
        visible = tiles(self.static.options, *self._mask_rows, plan.blocks)
        if visible is None and (tiles_of == "diagonals" or plan.far):
            visible = all_tiles(plan.counts)  # diagonals differ in length, and far tiles have loops of their own
        if visible is None:
            return None
        if tiles_of == "diagonals":
            return spans(visible.diagonals())
        if plan.far:
            visible = visible._replace(near=near_tiles(self._ends, plan.blocks, plan.counts))
        return spans(visible.transposed() if tiles_of == "keys" else visible)

    def _diagonal_gradients(self, plan: Plan, padded: PaddedPrimals, rows: Rows) -> Float[Array, "H R"]:
        """Return the gradient of `diagonals`."""
        size = min(plan.blocks)  # a diagonal of tiles is one of tokens only if tiles are square
        plan = plan.with_blocks((size, size))
        if not plan.slots:
            derived = derived_end(plan.options, self.tokens[0], self._ends)
            return diagonal_gradients(plan, self._inputs(plan, padded, "diagonals"), rows, derived)
        lengths = self.operands.q.shape[3], self.operands.k.shape[2]
        line = on_line(plan, self._inputs(plan, padded), rows, lengths)
        padding = size * line.plan.counts[0] - plan.slots
        return diagonal_gradients(*line, Ends(0, 0))[:, padding : padding + 2 * plan.slots - 1]

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
            diagonals = self._diagonal_gradients(plan, padded, rows)
        return PaddedPrimals(
            q=query_gradients(plan, query_inputs, rows),
            k=d_k,
            v=d_v,
            numbers=numbers,
            diagonals=diagonals,
            q_positions=summed_positions(q_positions, padded.q_positions),
            k_positions=summed_positions(k_positions, padded.k_positions),
            key_bias=next(iter(d_key_bias), None),
        )
