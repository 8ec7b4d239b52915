"""One call brought into the shapes of the TPU kernels, and their results brought back.

Heads are one axis, H = K·G; lengths are whole blocks, P queries for T and U keys for S, padded by tokens of segment 0,
which see nothing and are not seen.
"""

import functools
import math
from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from pejax._attention.core.operands import Operands
from pejax._attention.kernels.kernel_call import Outputs, Primals, Rows, Static
from pejax._attention.kernels.pairs import Pairs
from pejax._attention.kernels.ways import Way
from pejax._attention.tpu import tpu_tile as tpu_tile
from pejax._attention.tpu.tpu_block_masks import dropout_words, fields_of, spans_of
from pejax._attention.tpu.tpu_kernels import forward, key_gradients, query_gradients
from pejax._attention.tpu.tpu_tile import Plan, diagonal_of
from pejax._calls.hook_calls import check_returned


class Call:
    """One call, by one way, as `kernel_call.Call`: the plan, the spans of query and of key blocks, arrays by name."""

    def __init__(self, static: Static, way: Way, operands: Operands, shift: Int32[Array, ""]) -> None:
        (options, layout, interpret), hook, pairs = static, way.bias, way.pairs
        self._operands, self._shift, self._hook, self._pairs = operands, shift, hook, pairs
        t, s = operands.q.shape[3], operands.k.shape[2]
        self._lengths = t, s
        most = options.block if pairs is None else min(options.block, pairs.largest_block(tpu_tile.LANES))
        queries, keys = _block(t, most), _block(s, most)
        with_positions = hook is not None or pairs is not None
        sides = fields_of(options, layout, operands, bool(t % queries or s % keys), with_positions)
        q, k = (
            {name: _padded(x, 1, size) for name, x in side.items()}
            for side, size in zip(sides, (queries, keys), strict=True)
        )
        blocks = math.ceil(t / queries), math.ceil(s / keys)
        self._spans = spans_of(options, q, k, blocks)
        self._tokens = {"rows": jnp.stack([*q.values()], axis=1)} if q else {}
        if operands.seed is not None:
            words, column = dropout_words(layout, operands, operands.seed)
            self._tokens["words"] = _padded(words, 2, queries)[:, :, None]
            column = _padded(column.astype(jnp.int32)[None], 1, keys)
            k["word"] = jnp.broadcast_to(column, jnp.shape(next(iter(k.values()), column)))
        if k:
            self._tokens["columns"] = jnp.stack([*k.values()], axis=2)
        inside = hook and hook.inside
        self._plan = Plan(options, tuple(k), queries, keys, blocks[0], inside, tpu_tile.LANES, interpret, pairs)

    def forward(self, primals: Primals) -> Outputs:
        """Return the output and the log-sum-exps."""
        arrays = self._arrays(primals, self._bias(primals)) | self._of_pairs(primals, "bias", "values")
        output, lse = forward(self._plan, arrays, self._spans[0])
        lead, t = primals.q.shape[:3], self._lengths[0]
        return output.reshape(*lead, *output.shape[2:])[:, :, :, :t], lse.reshape(*lead, -1)[..., :t]

    def gradients(self, primals: Primals, rows: Rows) -> Primals:
        """Return the gradients with respect to the differentiable inputs."""
        bias, pull = jax.vjp(self._bias, primals)
        arrays = {
            **self._arrays(primals, bias),
            "d_output": self._by_head(rows.d_output),
            "lse": self._by_head(rows.lse)[:, :, None],
            "mean": self._by_head(rows.mean)[:, :, None],
            **self._of_pairs(primals, "bias", "weight_gradients"),
        }
        of_pairs = functools.partial(self._of_pairs, primals)
        of_numbers = of_pairs("query_gradients", "number_gradients")
        d_q, *d_bias = query_gradients(self._plan, arrays | of_numbers, self._spans[0])
        d_k, d_v, *d_key_bias = key_gradients(self._plan, arrays | of_pairs("key_gradients"), self._spans[1])
        t, s = self._lengths
        d_q = d_q.reshape(*primals.q.shape[:3], *d_q.shape[2:])[:, :, :, :t]
        gradients = {"q": d_q, "k": d_k[:, :, :s], "v": d_v[:, :, :s]}
        if primals.key_bias is not None:
            gradients["key_bias"] = d_key_bias[0][:, :, 0, :s].reshape(primals.key_bias.shape)
        return pull(self._d_bias(bias, d_bias))[0]._replace(**gradients)

    def _bias(self, primals: Primals) -> dict[str, Array]:
        """Return the arrays that kernels make the bias from: `diagonals`, `numbers`, those of `Pairs`, or none."""
        if self._pairs is not None:
            by_name = {}
            for prefix, (numbers, learned) in self._numbers_of_pairs(primals).items():
                by_name |= {f"{prefix} {i}": numbers[i] for i in learned}
            return by_name
        distance = self._operands.shared.distance_bias
        if distance is None:
            return {}
        each, hook = primals.of_each_head, self._hook
        if hook is None:
            return {"diagonals": each(lambda params: self._diagonals(distance.func(params, self._relative())))}
        numbers = lambda params: [x.astype(jnp.float32) for x in hook.outside(params)]
        head_params = jax.tree.map(lambda x: x[0, 0], primals.per_head)
        if not jax.eval_shape(numbers, {**primals.shared, **head_params}):
            return {}
        return {"numbers": each(lambda params: jnp.stack(numbers(params)))}

    def _numbers_of_pairs(self, primals: Primals) -> dict[str, tuple[list[Array], Collection[int]]]:
        """Return the numbers of the hooks, of all heads, and which are learned, by the prefix of their names."""
        pairs: Any = self._pairs
        numbers = {}
        for prefix, name, hook in (
            ("number", "bias", pairs.pairs), ("value number", "relative_values", pairs.values)
        ):  # fmt: skip
            if hook is not None:
                own = primals._replace(shared=primals.shared[name], per_head=primals.per_head[name])
                arrays = own.of_each_head(lambda params, hook=hook: [jnp.asarray(x) for x in hook.outside(params)])
                numbers[prefix] = arrays, hook.learned
        return numbers

    def _of_pairs(self, primals: Primals, *programs: str) -> dict[str, Array]:
        """Return the operands of programs of the hooks of pairs."""
        if self._pairs is None:
            return {}
        numbers, heads = self._numbers_of_pairs(primals), math.prod(primals.q.shape[1:3])
        operands = {}
        for name in programs:
            prefix = "number" if hasattr(Pairs, name) else "value number"
            if prefix in numbers:
                operands |= self._pairs.operands(name, numbers[prefix][0], heads)
        return operands

    def _d_bias(self, bias: dict[str, Array], gradients: list[Array]) -> dict[str, Array]:
        """Return the gradient of `bias` from what the kernel found for each example, one array or none."""
        if "numbers" in bias:
            return {"numbers": jnp.sum(gradients[0], axis=0)[:, 0, : bias["numbers"].shape[1]]}
        names = bias if self._pairs is None else self._pairs.gradients
        return {name: jnp.sum(x, axis=0).reshape(bias[name].shape) for name, x in zip(names, gradients, strict=True)}

    def _arrays(self, primals: Primals, bias: dict[str, Array]) -> dict[str, Array]:
        """Return the operands of the forward kernel."""
        q, k, v = (
            self._by_head(primals.q),
            *(_padded(x, 2, self._plan.keys) for x in (primals.k, primals.v)),
        )
        arrays = {"q": q, "k": k, "v": v, **self._tokens} | ({} if self._pairs else bias)
        if primals.key_bias is not None:
            n, groups, heads, s = primals.key_bias.shape
            arrays["key_bias"] = _padded(primals.key_bias.reshape(n, groups * heads, 1, s), 3, self._plan.keys)
        return arrays

    def _by_head(self, x: Array) -> Array:
        n, groups, heads = x.shape[:3]
        return _padded(x.reshape(n, groups * heads, *x.shape[3:]), 2, self._plan.queries)

    def _apart(self) -> Int32[Array, "M W"]:
        """Return `j - i` along each diagonal of tiles, `S - u` beyond the first pair of its tiles at u."""
        plan, (t, s) = self._plan, self._lengths
        count = diagonal_of(plan, 0, math.ceil(s / plan.keys) - 1) + 1
        starts = plan.step * jnp.arange(count, dtype=jnp.int32) - (plan.query_blocks - 1) * plan.queries
        distances = starts[:, None] + plan.keys - jnp.arange(plan.queries + plan.keys, dtype=jnp.int32)
        return jnp.clip(distances, 1 - t, s - 1)

    def _relative(self) -> Int32[Array, " R"]:
        return (self._apart() + self._shift).ravel()

    def _diagonals(self, bias: Array) -> Float[Array, "M W"]:
        relative = self._relative()
        check_returned("distance_bias", self._operands.shared.distance_bias, "(R,)", relative.shape, bias, relative)
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
