"""One call of the kernels on Mosaic GPU: operands in their layout and padded, and gradients without padding."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

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
from pejax._attention.kernels.kernel_call import Outputs, Primals, Rows, Static, Way
from pejax._attention.mosaic.mosaic_gradients import BLOCK, diagonal_gradients, key_gradients, query_gradients
from pejax._attention.mosaic.mosaic_kernels import FORWARD, OWNED, Inputs, Plan, forward
from pejax._attention.mosaic.mosaic_tile import LOG2E, bias_unit
from pejax._ops.compile_time import computed_now

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
        n, key_heads, group, t, d = primals.q.shape
        output = output[:, :t, :, :d].reshape(n, t, key_heads, group, d)
        return jnp.moveaxis(output, 1, 3), lse[:, :, :t].reshape(n, key_heads, group, t)

    def gradients(self, primals: Primals, rows: Rows) -> Primals:
        """Return the gradients with respect to the differentiable inputs."""
        padded, pullback = jax.vjp(self._padded_primals, primals)
        return pullback(self._gradients(padded, self._padded_rows(rows)))[0]

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
        """What masks read of the tokens."""
        return self._known(lambda: mask_rows(*self.static[:2], self.operands, self.lengths))

    def _known(self, function: Callable[[], Any]) -> Any:
        """Return what a function makes of masks alone, as constants of the program where masks are known."""
        return computed_now(function) if are_masks_known(*self.static[:2], self.operands) else function()

    def _padded_primals(self, primals: Primals) -> PaddedPrimals:
        """Return the differentiable inputs as the kernels read them: tokens before heads, as attention was called."""
        n, key_heads, group, t, d = primals.q.shape
        (q_length, k_length), width = self.lengths, head_size(d)
        pad = lambda x, length: jnp.pad(x, ((0, 0), (0, length - x.shape[1]), (0, 0), (0, width - d)))
        key_bias = primals.key_bias
        if key_bias is not None:
            key_bias = key_bias.reshape(n, key_heads * group, -1)
            key_bias = jnp.pad(key_bias, ((0, 0), (0, 0), (0, k_length - key_bias.shape[-1])))
        return PaddedPrimals(
            q=pad(jnp.moveaxis(primals.q, 3, 1).reshape(n, t, key_heads * group, d), q_length),
            k=pad(jnp.moveaxis(primals.k, 2, 1), k_length),
            v=pad(jnp.moveaxis(primals.v, 2, 1), k_length),
            diagonals=self._diagonals(primals),
            key_bias=key_bias,
        )

    def _diagonals(self, primals: Primals) -> Float[Array, "H R"] | None:
        """Return the bias by distance of every head."""
        if self.way.name == "none":
            return None
        distance, (key_heads, group) = self.operands.shared.distance_bias, self.operands.q.shape[1:3]
        heads = key_heads * group
        per_head = jax.tree.map(lambda x: x.reshape(heads, *x.shape[2:]), primals.per_head)
        relative = self._offsets() + self.shift
        of_head = lambda params: distance.func({**primals.shared, **params}, relative).astype(jnp.float32)
        return jax.vmap(of_head, axis_size=heads)(per_head)

    def _offsets(self) -> Int[np.ndarray, " R"]:
        """Return j - i of every diagonal, limited to those that padding alone does not have."""
        offsets = np.arange(sum(self.lengths), dtype=np.int32) - (self.lengths[0] - 1)
        # The hook is not asked for distances that only padding has: it may have none for them, as a table has none.
        return offsets.clip(1 - self.operands.q.shape[3], self.operands.k.shape[2] - 1)

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
            key_bias=None if padded.key_bias is None else padded.key_bias * LOG2E,
            q_words=q_words,
            k_words=k_words,
            spans=self._known(functools.partial(self._spans, owned, blocks)),
        )

    def _spans(self, owned: str, blocks: tuple[int, int]) -> Int[Array, "N I 6"] | None:
        """Return the spans of a kernel's loops; the arguments are those of `_inputs`."""
        q_tokens, k_tokens = jax.tree.map(jnp.asarray, self._masks)
        visible = tiles(self.static.options, q_tokens, k_tokens, blocks)
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
        ends = ends_of_hook(distance, self.operands.per_head.get("distance_bias", {}), self._offsets())
        return Ends(*(count if count >= OWNED + BLOCK - 1 else 0 for count in ends))  # else no tile is far

    def _padded_rows(self, rows: Rows) -> Rows:
        """Return the rows for the backward pass as the kernels read them, with lse in base 2."""
        n, key_heads, group, t, d = rows.d_output.shape
        heads, extra = key_heads * group, self.lengths[0] - t
        pad = lambda x: jnp.pad(x.reshape(n, heads, t), ((0, 0), (0, 0), (0, extra)))
        d_output = jnp.moveaxis(rows.d_output, 3, 1).reshape(n, t, heads, d)
        width = ((0, 0), (0, extra), (0, 0), (0, head_size(d) - d))
        return Rows(jnp.pad(d_output, width), pad(rows.lse) * LOG2E, pad(rows.mean), pad(rows.d_lse))

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
