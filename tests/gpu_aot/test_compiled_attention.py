"""Attention with its gradients, compiled for an H200: launches, memory, and what the kernels are made of."""

import functools
from collections import Counter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

from pejax import Dims, adapt, attention_hooks, dot_product_attention, init_params, make_encoding
from tests.support.absent_gpu import Program, compiler, program, require_cudnn
from tests.support.cases import slow
from tests.support.gpu_ledger import Ledger, ledger
from tests.support.sass_loops import innermost_loops

__all__ = ["compiler"]

pytestmark = pytest.mark.gpu_aot

BATCH, LENGTH, HEADS, D = 2, 2048, 16, 64
OPERAND = BATCH * LENGTH * HEADS * D * 2
"""Bytes of q, as many as of k, of v and of the output."""


class Figures(NamedTuple):
    """What the program of an encoding needs at bounds.

    Attributes:
        launches: number of launches.
        transposes: number of those that transpose.
        moved: bytes read and written, in bytes of q, k, v and the output together.
        temporary: bytes of temporary memory, likewise.
        loops: by kernel, what an iteration of each of its loops issues: over tiles that are far, where there are such,
            then over visible tiles, then over others. A tile of the forward pass has 128 x 64 scores, one of the
            backward pass 64 x 64.
        spilled: by kernel, bytes that threads spill; 0 where none is named.
    """

    launches: int
    transposes: int
    moved: float
    temporary: float
    loops: dict[str, tuple[int, ...]]
    spilled: dict[str, int] = {}  # noqa: RUF012


FAR = {"forward": (611, 851, 1076), "query_gradients": (302, 415, 505), "key_gradients": (371, 481, 619)}
NEAR = {"forward": (849, 1076), "query_gradients": (415, 505), "key_gradients": (482, 581)}
FIGURES = {  # of the implementation "gpu", with the gradients of what the encoding learns
    "none": Figures(
        5, 0, 4.34, 0.024, {"forward": (531, 680), "query_gradients": (262, 355), "key_gradients": (331, 421)}
    ),
    "alibi": Figures(
        8, 0, 5.37, 0.024,
        {
            "forward": (739, 895),
            "query_gradients": (377, 459),
            "key_gradients": (444, 525),
            "bias_gradients_by_queries": (433, 524),
        },
    ),
    "t5": Figures(
        11, 2, 5.96, 0.30, {**FAR, "diagonal_gradients": (471, 577)}, {"forward": 24, "key_gradients": 32}
    ),
    "kerple": Figures(
        13, 0, 6.47, 0.53, {**NEAR, "diagonal_gradients": (461, 577)}, {"forward": 40, "key_gradients": 32}
    ),
    "cpb": Figures(
        16, 0, 8.72, 0.53, {**NEAR, "diagonal_gradients": (461, 577)}, {"forward": 40, "key_gradients": 32}
    ),
}  # fmt: skip


def compiled(spec: str, implementation: str) -> Program:
    """Compile causal attention and all its gradients."""
    encoding = make_encoding(spec, Dims(HEADS, D, extent=LENGTH, causal=True))

    def attend(q, k, v, params):
        hooks = attention_hooks(encoding, params)
        return dot_product_attention(q, k, v, causal=True, implementation=implementation, hooks=hooks)

    params = jax.eval_shape(lambda key: adapt(encoding, init_params(encoding, key), LENGTH), jax.random.key(0))
    return program(with_gradients(attend), *[operand()] * 4, params)


def operand() -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((BATCH, LENGTH, HEADS, D), jnp.bfloat16)


def with_gradients(attend: Any) -> Any:
    """Return a function to the output of attention and its gradients."""

    def both(q, k, v, cotangent, *params):
        output, pull = jax.vjp(attend, q, k, v, *params)
        return output, pull(cotangent)

    return both


@functools.cache
def cudnn_program() -> tuple[Program, Ledger]:
    require_cudnn()
    result = compiled("none", "cudnn")
    return result, ledger(result.text)


@pytest.mark.parametrize("spec", ["none", "alibi", "t5", slow("kerple"), slow("cpb")])
def test_kernels_use_tensor_cores_and_loops_are_short(spec):
    result, bounds = compiled(spec, "gpu"), FIGURES[spec]
    names = {name.removeprefix("pejax_") for name in result.kernels if name.startswith("pejax_")}
    assert names == set(bounds.loops)
    for name, most in bounds.loops.items():
        kernel = result.kernels[f"pejax_{name}"]
        issued = [loop.total() for loop in innermost_loops(kernel) if loop["HGMMA"]]
        assert len(issued) == len(most), name
        assert all(count <= bound for count, bound in zip(issued, most, strict=True)), (name, issued)
        assert kernel.spilled <= bounds.spilled.get(name, 0), name
    counts = ledger(result.text)
    assert counts.conditionals == 0
    assert counts.launches.total() <= bounds.launches
    assert counts.transposes <= bounds.transposes
    assert counts.moved <= bounds.moved * 4 * OPERAND
    assert result.temporary <= bounds.temporary * 4 * OPERAND


def test_attention_without_a_bias_is_two_calls_of_cudnn():
    _, counts = cudnn_program()
    assert counts.launches == Counter(["__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"])
    assert (counts.transposes, counts.conditionals) == (0, 0)


def test_cudnn_needs_no_more_memory_than_from_jax():
    result, counts = cudnn_program()
    attend = functools.partial(jax.nn.dot_product_attention, is_causal=True, implementation="cudnn")
    other = program(with_gradients(attend), *[operand()] * 4)
    assert result.temporary <= 1.05 * other.temporary
    assert counts.moved <= 1.05 * ledger(other.text).moved
