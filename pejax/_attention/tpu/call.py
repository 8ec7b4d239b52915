"""One call brought into the shapes of the TPU kernels, and their results brought back.

Heads are one axis, H = K·G; lengths are whole blocks, P queries for T and U keys for S, padded by tokens of segment 0,
which see nothing and are not seen.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from pejax._attention.core.elementwise import Elementwise
from pejax._attention.core.operands import Layout, Operands
from pejax._attention.core.options import Options
from pejax._attention.tpu import tile as tpu_tile
from pejax._attention.tpu.block_masks import drop_words, fields_of, spans_of
from pejax._attention.tpu.tile import Plan, diagonal_of
from pejax._encoding import Params


class Learned(NamedTuple):
    """What has gradients."""

    q: Float[Array, "N K G T D"]
    k: Float[Array, "N K S D"]
    v: Float[Array, "N K S D"]
    shared: Params
    per_head: Params


class Call:
    """What the kernels get: `plan`, the `spans` of query blocks and of key blocks, and arrays by name."""

    def __init__(
        self,
        options: Options,
        layout: Layout,
        operands: Operands,
        hook: Elementwise | None,
        shift: Int32[Array, ""],
        interpret: bool,
    ) -> None:
        self._operands, self._shift, self._hook = operands, shift, hook
        self._lengths = t, s = operands.q.shape[3], operands.k.shape[2]
        queries, keys = _block(t, options.block), _block(s, options.block)
        sides = fields_of(options, layout, operands, bool(t % queries or s % keys), hook is not None)
        q, k = (
            {name: _padded(x, 1, size) for name, x in side.items()}
            for side, size in zip(sides, (queries, keys), strict=True)
        )
        blocks = math.ceil(t / queries), math.ceil(s / keys)
        self.spans = spans_of(options, q, k, blocks)
        self._tokens = {"rows": jnp.stack([*q.values()], axis=1)} if q else {}
        if operands.seed is not None:
            words, column = drop_words(layout, operands, operands.seed)
            self._tokens["words"] = _padded(words, 2, queries)[:, :, None]
            column = _padded(column.astype(jnp.int32)[None], 1, keys)
            k["word"] = jnp.broadcast_to(column, jnp.shape(next(iter(k.values()), column)))
        if k:
            self._tokens["columns"] = jnp.stack([*k.values()], axis=2)
        self.plan = Plan(options, tuple(k), queries, keys, blocks[0], hook and hook.inside, tpu_tile.LANES, interpret)

    def bias(self, learned: Learned) -> dict[str, Array]:
        """Return what the kernels make the bias from: `diagonals`, `numbers`, or nothing."""
        distance = self._operands.shared.distance_bias
        if distance is None:
            return {}
        groups, heads = learned.q.shape[1:3]

        def each(evaluate):
            if not jax.tree.leaves(learned.per_head):
                one = evaluate(learned.shared)
                return jnp.broadcast_to(one, (groups * heads, *one.shape))
            head = lambda own: evaluate({**learned.shared, **own})
            found = jax.vmap(jax.vmap(head))(learned.per_head)
            return found.reshape(groups * heads, *found.shape[2:])

        hook = self._hook
        if hook is None:
            return {"diagonals": each(lambda params: self._diagonals(distance.func(params, self._relative())))}
        numbers = lambda params: [x.astype(jnp.float32) for x in hook.outside(params)]
        own = jax.tree.map(lambda x: x[0, 0], learned.per_head)
        if not jax.eval_shape(numbers, {**learned.shared, **own}):
            return {}
        return {"numbers": each(lambda params: jnp.stack(numbers(params)))}

    def d_bias(self, bias: dict[str, Array], found: list[Array]) -> dict[str, Array]:
        """Return the gradient of `bias` from what the kernel found for each example, one array or none."""
        if "numbers" in bias:
            return {"numbers": jnp.sum(found[0], axis=0)[:, 0, : bias["numbers"].shape[1]]}
        return {name: jnp.sum(x, axis=0) for name, x in zip(bias, found, strict=True)}

    def arrays(self, learned: Learned, bias: dict[str, Array]) -> dict[str, Array]:
        """Return the operands of the forward kernel."""
        q, k, v = self._by_head(learned.q), *(_padded(x, 2, self.plan.keys) for x in (learned.k, learned.v))
        return {"q": q, "k": k, "v": v, **self._tokens, **bias}

    def rows(
        self, d_output: Float[Array, "N K G T D"], lse: Float[Array, "N K G T"], mean: Float[Array, "N K G T"]
    ) -> dict[str, Array]:
        """Return what the kernels of the gradients read besides."""
        return {"d_output": self._by_head(d_output), "lse": self._row(lse), "mean": self._row(mean)}

    def whole(
        self, output: Float[Array, "N H P D"], lse: Float[Array, "N H 1 P"]
    ) -> tuple[Float[Array, "N K G T D"], Float[Array, "N K G T"]]:
        """Return the outputs without padding, heads grouped."""
        lead = self._operands.q.shape[:3]
        output, t = output.reshape(*lead, *output.shape[2:]), self._lengths[0]
        return output[:, :, :, :t], lse.reshape(*lead, -1)[..., :t]

    def learned(
        self, d_q: Float[Array, "N H P D"], d_k: Float[Array, "N K U D"], d_v: Float[Array, "N K U D"], bias: Learned
    ) -> Learned:
        """Return the gradients, those of the bias's parameters taken from `bias`."""
        t, s = self._lengths
        d_q = d_q.reshape(*self._operands.q.shape[:3], *d_q.shape[2:])
        return bias._replace(q=d_q[:, :, :, :t], k=d_k[:, :, :s], v=d_v[:, :, :s])

    def _by_head(self, x: Array) -> Array:
        n, groups, heads = x.shape[:3]
        return _padded(x.reshape(n, groups * heads, *x.shape[3:]), 2, self.plan.queries)

    def _row(self, x: Float[Array, "N K G T"]) -> Float[Array, "N H 1 P"]:
        return self._by_head(x)[:, :, None]

    def _apart(self) -> Int32[Array, "M W"]:
        """Return `j - i` along each diagonal of tiles, `S - u` beyond the first pair of its tiles at u."""
        plan, (t, s) = self.plan, self._lengths
        count = diagonal_of(plan, 0, math.ceil(s / plan.keys) - 1) + 1
        starts = plan.step * jnp.arange(count, dtype=jnp.int32) - (plan.query_blocks - 1) * plan.queries
        apart = starts[:, None] + plan.keys - jnp.arange(plan.queries + plan.keys, dtype=jnp.int32)
        return jnp.clip(apart, 1 - t, s - 1)

    def _relative(self) -> Int32[Array, " R"]:
        return (self._apart() + self._shift).ravel()

    def _diagonals(self, bias: Array) -> Float[Array, "M W"]:
        if jnp.shape(bias) != (shape := self._relative().shape):
            raise ValueError(f"distance_bias hook must return one number per distance, {shape}, got {jnp.shape(bias)}")
        return bias.astype(jnp.float32).reshape(self._apart().shape)


def _block(length: int, most: int) -> int:
    """Return the size of the fewest equal blocks, whole registers wide."""
    count = math.ceil(length / most)
    return math.ceil(length / count / tpu_tile.LANES) * tpu_tile.LANES


def _padded(x: Array, axis: int, size: int) -> Array:
    """Pad one axis by zeros to whole blocks."""
    if x.shape[axis] % size == 0:
        return x
    return jnp.pad(x, [(0, -x.shape[axis] % size if i == axis else 0) for i in range(x.ndim)])
