"""One call of the kernels on Mosaic GPU: operands in their layout and padded, and gradients without padding."""

import functools
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pejax._attention.core.dropout import Dropout, key_words, query_words
from pejax._attention.core.operands import Operands
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
from pejax._attention.kernels.tokens_first import (
    LOG2_E,
    computed,
    heads_first,
    offsets_of_diagonals,
    padded_key_bias,
    padded_rows,
    tokens_first,
)
from pejax._attention.kernels.ways import Way
from pejax._attention.mosaic.mosaic_diagonals import diagonal_gradients
from pejax._attention.mosaic.mosaic_forward import forward
from pejax._attention.mosaic.mosaic_gradients import BLOCK, key_gradients, query_gradients
from pejax._attention.mosaic.mosaic_kernels import FORWARD, OWNED, Inputs, Plan
from pejax._attention.mosaic.mosaic_tile import bias_unit

HEAD_SIZES = (64, 128)
"""Channels of a head that kernels have; others are padded to them."""


class PaddedPrimals(NamedTuple):
    """The `Primals` as the kernels read them: padded, and with the parameters of the bias as one vector per head.

    Attributes:
        q: queries.
        k: keys.
        v: values.
        diagonals: bias by distance, at index `j - i + T - 1` for query i and key j; None = no bias.
        key_bias: bias of each key.
    """

    q: Float[Array, "N T H D"]
    k: Float[Array, "N S K D"]
    v: Float[Array, "N S K D"]
    diagonals: Float[Array, "H R"] | None
    key_bias: Float[Array, "N H S"] | None


@dataclass(frozen=True)
class Call:
    """One call with the bias obtained in one way; the `kernel_call.Call` of Mosaic GPU.

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
        output, lse = forward(self.plan, self._inputs(self._padded_primals(primals), "queries", (OWNED, FORWARD)))
        return heads_first(output, lse, primals.q)

    def gradients(self, primals: Primals, rows: Rows) -> Primals:
        """Return the gradients with respect to the differentiable inputs."""
        padded, pullback = jax.vjp(self._padded_primals, primals)
        return pullback(self._gradients(padded, padded_rows(rows, self.lengths[0], self._width)))[0]

    @functools.cached_property
    def plan(self) -> Plan:
        """The static settings of the kernels."""
        options = self.static.options
        far = tuple(end for end, count in enumerate(self._ends) if count and not (options.causal and end == 1))
        return Plan(options, self.operands.q.shape[2], far, self.static.interpret)

    @functools.cached_property
    def lengths(self) -> tuple[int, int]:
        """The padded T and S."""
        t, s = self.operands.q.shape[-2], self.operands.k.shape[-2]
        return t + -t % OWNED, s + -s % OWNED

    @functools.cached_property
    def tokens(self) -> tuple[TokenRows, TokenRows]:
        """The tokens of queries and keys, without positions: the bias is read by distance."""
        placed = bias_rows(self.static.layout, self.operands, self.lengths, None)
        q, k = (masks._replace(has_position=x.has_position) for masks, x in zip(self._masks, placed, strict=True))
        return q, k

    @functools.cached_property
    def _masks(self) -> tuple[TokenRows, TokenRows]:
        """The fields of the tokens that masks read."""
        return computed(self._masks_known, lambda: mask_rows(*self.static[:2], self.operands, self.lengths))

    @property
    def _masks_known(self) -> bool:
        return are_masks_known(*self.static[:2], self.operands)

    @property
    def _width(self) -> int:
        """The padded D."""
        return head_size(self.operands.q.shape[-1])

    def _padded_primals(self, primals: Primals) -> PaddedPrimals:
        """Return the differentiable inputs as the kernels read them."""
        q_length, k_length = self.lengths
        return PaddedPrimals(
            q=tokens_first(primals.q, q_length, self._width),
            k=tokens_first(primals.k[:, :, None], k_length, self._width),
            v=tokens_first(primals.v[:, :, None], k_length, self._width),
            diagonals=self._diagonals(primals),
            key_bias=padded_key_bias(primals.key_bias, k_length),
        )

    def _diagonals(self, primals: Primals) -> Float[Array, "H R"] | None:
        """Return the bias by distance of every head."""
        if self.way.name == "none":
            return None
        distance = self.operands.shared.distance_bias
        relative = offsets_of_diagonals(self.operands, self.lengths) + self.shift
        of_head = lambda params: distance.func(params, relative).astype(jnp.float32)
        return primals.of_each_head(of_head)

    def _inputs(self, padded: PaddedPrimals, owned: str, blocks: tuple[int, int]) -> Inputs:
        """Return the inputs of a kernel.

        Args:
            padded: the differentiable inputs.
            owned: what a program owns: a block of "queries", of "keys", or one of the "diagonals" of square tiles.
            blocks: numbers of queries and of keys in a tile.
        """
        (q_tokens, k_tokens), options = self.tokens, self.static.options
        diagonals, far = None, None
        if padded.diagonals is not None:
            turned = padded.diagonals[:, ::-1] if owned == "keys" else jnp.roll(padded.diagonals, 1, axis=1)
            diagonals = turned * bias_unit(options)
            far = padded.diagonals[:, np.asarray([0, -1])] * bias_unit(options) if self.plan.far else None
        q_words, k_words = self._dropout_words()
        return Inputs(
            q=padded.q,
            k=padded.k,
            v=padded.v,
            q_tokens=q_tokens,
            k_tokens=k_tokens,
            diagonals=diagonals,
            far=far,
            key_bias=None if padded.key_bias is None else padded.key_bias * LOG2_E,
            q_words=q_words,
            k_words=k_words,
            spans=computed(self._masks_known, lambda: self._spans(owned, blocks)),
        )

    def _spans(self, owned: str, blocks: tuple[int, int]) -> Int[Array, "N I 6"] | None:
        """Return the spans of a kernel's loops; the arguments are those of `_inputs`."""
        visible = tiles(self.static.options, *self._masks, blocks)
        counts = self.lengths[0] // blocks[0], self.lengths[1] // blocks[1]
        if visible is None and (owned == "diagonals" or self.plan.far):
            visible = all_tiles(counts)  # diagonals differ in length, and far tiles have loops of their own
        if visible is None:
            return None
        if owned == "diagonals":
            return spans(visible.diagonals())
        if self.plan.far:
            visible = visible._replace(near=near_tiles(self._ends, blocks, counts))
        return spans(visible.transposed() if owned == "keys" else visible)

    def _dropout_words(self) -> tuple[Array | None, Array | None]:
        """Return the words of queries, `(N, H, T)` or `(1, 1, T)`, and of keys that dropout hashes."""
        operands = self.operands
        if operands.seed is None:
            return None, None
        n, key_heads, group = operands.q.shape[:3]
        counts = (1, 1) if self.static.layout.one_dropout else (n, key_heads * group)
        batch, heads, queries, keys = (jnp.arange(size, dtype=jnp.uint32) for size in (*counts, *self.lengths))
        if not self.static.layout.one_dropout:
            batch, heads = batch + operands.origin.batch, heads + operands.origin.head

        padded = lambda x, length: jnp.pad(x, (0, length - len(x))) if jnp.ndim(x) else x  # of tokens that moved
        sides = zip((operands.origin.query, operands.origin.key), self.lengths, strict=True)
        first_query, first_key = (padded(x, length) for x, length in sides)

        def dropout(batch: Array, head: Array) -> Dropout:
            return Dropout(operands.seed, batch, head, first_query, first_key)  # pyright: ignore[reportArgumentType]

        of_head = lambda batch, head: query_words(dropout(batch, head), queries)
        of_batch = jax.vmap(jax.vmap(of_head, (None, 0)), (0, None))
        return of_batch(batch, heads), key_words(dropout(batch[0], heads[0]), keys)

    @functools.cached_property
    def _ends(self) -> Ends:
        """How many of the first, and of the last, diagonals are the same function of the parameters."""
        distance = self.operands.shared.distance_bias
        if distance is None or not self.static.layout.in_order:
            return Ends(0, 0)
        offsets = offsets_of_diagonals(self.operands, self.lengths)
        ends = ends_of_hook(distance, self.operands.per_head["distance_bias"], offsets)
        return Ends(*(count if count >= OWNED + BLOCK - 1 else 0 for count in ends))  # else no tile is far

    def _gradients(self, padded: PaddedPrimals, rows: Rows) -> PaddedPrimals:
        """Return the gradients of the padded inputs."""
        inputs = functools.partial(self._inputs, padded)
        d_k, d_v, *d_key_bias = key_gradients(self.plan, inputs("keys", (BLOCK, OWNED)), rows)
        diagonals = None
        if padded.diagonals is not None:
            derived = derived_end(self.plan.options, self.tokens[0], self._ends)
            diagonals = diagonal_gradients(self.plan, inputs("diagonals", (BLOCK, BLOCK)), rows, derived)
        return PaddedPrimals(
            q=query_gradients(self.plan, inputs("queries", (OWNED, BLOCK)), rows),
            k=d_k,
            v=d_v,
            diagonals=diagonals,
            key_bias=next(iter(d_key_bias), None),
        )


def head_size(size: int) -> int:
    """Return the channels of a head of `size` channels as the kernels read it."""
    return next(limit for limit in HEAD_SIZES if limit >= size)
