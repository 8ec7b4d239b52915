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
        spilled: bytes that threads spill, in all kernels.
    """

    launches: int
    transposes: int
    moved: float
    temporary: float
    spilled: int


FIGURES = {  # of the implementation "gpu", with the gradients of what the encoding learns
    "none": Figures(27, 8, 8.32, 1.02, 0),
    "alibi": Figures(30, 8, 9.34, 1.02, 0),
    "t5": Figures(37, 10, 10.39, 1.27, 64),
    "kerple": Figures(37, 8, 10.42, 1.27, 64),
    "cpb": Figures(43, 8, 12.70, 1.28, 64),
}
KERNELS = {"pejax_forward", "pejax_query_gradients", "pejax_key_gradients"}


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
def test_kernels_use_tensor_cores_and_do_not_spill(spec):
    result, bounds = compiled(spec, "gpu"), FIGURES[spec]
    kernels = {name: kernel for name, kernel in result.kernels.items() if name.startswith("pejax_")}
    assert set(kernels) >= KERNELS
    assert {name for name, kernel in kernels.items() if kernel.instructions()["HGMMA"] == 0} == set()
    assert sum(kernel.spilled for kernel in result.kernels.values()) <= bounds.spilled
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
