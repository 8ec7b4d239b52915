"""Attention by cuDNN's fused kernels, which come with JAX: without a bias, or with a causal bias that is linear.

Whether tokens at traced positions are in the order of the arrays is known only at run time; for other orders, pejax's
own kernels take over. They also compute two results for which the fused kernels are too inaccurate: log-sum-exps in
float32, and the gradient of the bias, which the folded columns would give only as a difference of large numbers. Where
JAX has no backend for these kernels, XLA computes both in tiles.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from pejax._attention.core.derivatives import tiled_rules
from pejax._attention.core.operands import Layout, Operands
from pejax._attention.core.options import Options
from pejax._attention.gpu.availability import kernels_for_fused
from pejax._attention.gpu.folded import arrays_are_ordered, check_fused, folded_attention, order_is_known
from pejax._attention.kernels.elementwise import slope
from pejax._attention.kernels.fallback import blockwise_call
from pejax._attention.kernels.kernel_call import (
    Primals,
    Static,
    attend,
    gradients,
    primals_of,
    refuse,
    refuse_splitting,
)
from pejax._attention.kernels.ways import position_axes
from pejax._ops.derivatives import differentiable, either
from pejax._ops.pytrees import Floats, zeros_of


def fused_attention(
    options: Options, layout: Layout, operands: Operands, *, backend: str = "cudnn", interpret: bool = False
) -> tuple[Array, Array]:
    """Return attention by the fused kernels of cuDNN, as an `Implementation` of `backends`.

    Args:
        options: settings of the attention.
        layout: layout of the operands.
        operands: queries, keys, values, tokens and hooks; a bias must be linear in the distance.
        backend: implementation of `jax.nn.dot_product_attention`: "cudnn", or "xla" where there is no GPU.
        interpret: whether our own kernels run in Pallas's interpreter.

    Returns:
        The output in q's type and the log-sum-exps. If these are used, pejax's kernels run the forward pass as well.

    Raises:
        NotImplementedError: the fused kernels or our own do not support these operands.
    """
    check_fused(options, operands, position_axes(layout, operands))
    static = Static(options, layout._replace(by_place=order_is_known(options, layout, operands)), interpret)
    refuse(static, operands, ("bfloat16", "float16"))
    if not interpret:
        refuse_splitting("cuDNN", devices=1)
    primals = primals_of(operands)
    try:
        jax.eval_shape(functools.partial(_product, static, backend, operands), primals)
    except RuntimeError as error:  # jax raises this if there is no cuDNN
        raise NotImplementedError(str(error)) from error
    return _attend(static, backend, primals, operands)


def _product(static: Static, backend: str, operands: Operands, primals: Primals) -> Array:
    """Return the output of the fused kernels."""
    distance, slopes, positions = operands.shared.distance_bias, None, None
    if distance is not None:
        heads = operands.q.shape[1] * operands.q.shape[2]
        per_head = jax.tree.map(lambda x: x.reshape(heads, *x.shape[2:]), primals.per_head)
        of_head = lambda params: slope(distance.func, {**primals.shared, **params})
        slopes = jax.vmap(of_head, axis_size=heads)(per_head)
        positions = operands.k_tokens.positions
        positions = positions if static.layout.k_axes.positions is not None else positions[None]
    return folded_attention(static.options, primals.q, primals.k, primals.v, slopes, positions, backend=backend)


def _choose(static: Static, operands: Operands, fused: Any, kernels: Any) -> Any:
    """Return `fused()` where the order of the arrays allows it, which is known at run time, else `kernels()`."""
    order = arrays_are_ordered(static.options, static.layout, operands)
    return fused() if order is None else lax.cond(order, fused, kernels)


def _attend(static: Static, backend: str, primals: Primals, operands: Operands) -> tuple[Array, Array]:
    """Return the output and the log-sum-exps."""
    return either(_run_alone, _run_to_differentiate, (static, backend), (primals, lax.stop_gradient(operands)))


def _run_alone(settings: tuple[Static, str], arrays: tuple[Primals, Operands]) -> tuple[Array, Array]:
    """Return output and log-sum-exps, without a derivative."""
    (static, backend), (primals, operands) = settings, arrays
    run_kernels = functools.partial(attend, kernels_for_fused(), static, primals, operands)
    run_fused = functools.partial(_product, static, backend, operands, primals)
    # The second call is for the log-sum-exps alone: XLA removes it if they are not used.
    return _choose(static, operands, run_fused, lambda: run_kernels()[0]), run_kernels()[1]


def _run_to_differentiate(settings: tuple[Static, str], arrays: tuple[Primals, Operands]) -> tuple[Array, Array]:
    """Return output and log-sum-exps, with their derivatives."""
    outputs = differentiable(RULES, settings, arrays)
    return outputs.output, outputs.lse


class _Outputs(NamedTuple):
    """What the backward pass reads.

    Attributes:
        output: the output.
        lse: log-sum-exps by our kernels, for cotangents of them and for the gradient of a bias.
        lse_of_kernels: the same if our kernels computed the output, else 0.
        pull: the gradient of the fused kernels.
    """

    output: Array
    lse: Array
    lse_of_kernels: Array
    pull: Any


def _run(settings: tuple[Static, str], arrays: tuple[Primals, Operands]) -> _Outputs:
    """Return the outputs, and what the backward pass reads besides."""
    (static, backend), (primals, operands) = settings, arrays
    trees = []  # `lax.cond` returns arrays alone: the structure of `pull` leaves its branch by this list

    def fused() -> tuple[Array, Array, list[Array]]:
        of_tokens = lambda q, k, v: _product(static, backend, operands, primals._replace(q=q, k=k, v=v))
        output, pull = jax.vjp(of_tokens, primals.q, primals.k, primals.v)
        leaves, tree = jax.tree.flatten(pull)
        trees.append(tree)
        return output, jnp.zeros(output.shape[:-1], jnp.float32), leaves  # `pull` needs no log-sum-exps

    shapes = jax.eval_shape(fused)[2]

    def kernels() -> tuple[Array, Array, list[Array]]:
        return *attend(kernels_for_fused(), static, primals, operands), [jnp.zeros(x.shape, x.dtype) for x in shapes]

    output, lse_of_kernels, leaves = _choose(static, operands, fused, kernels)
    # Computed outside of `_choose`, so that XLA removes it if it is not used.
    lse = attend(kernels_for_fused(), static, primals, operands)[1]
    return _Outputs(output, lse, lse_of_kernels, jax.tree.unflatten(trees[-1], leaves))


def _pull(
    settings: tuple[Static, str], arrays: tuple[Primals, Operands], saved: _Outputs, cotangents: _Outputs
) -> tuple[Primals, Floats]:
    """Return the gradients of the primals; the other operands have none."""
    (static, _), (primals, operands) = settings, arrays
    d_output, d_lse = (
        jnp.zeros_like(like) if x is None else x for x, like in zip(cotangents[:2], saved[:2], strict=True)
    )
    none = zeros_of(operands)
    by_kernels = lambda lse: gradients(
        kernels_for_fused(), static, primals, operands, (saved.output, lse), (d_output, d_lse)
    )
    of_primals = by_kernels(saved.lse)
    if cotangents.lse is not None:
        return of_primals, none

    def kernels() -> tuple[Array, Array, Array]:
        # Not those of `of_primals`, so that XLA removes `lse` where it has no other use: without a bias to learn.
        of_tokens = by_kernels(saved.lse_of_kernels)
        return of_tokens.q, of_tokens.k, of_tokens.v

    q, k, v = _choose(static, operands, lambda: saved.pull(d_output), kernels)
    return of_primals._replace(q=q, k=k, v=v), none


def _in_tiles(settings: tuple[Static, str], arrays: tuple[Primals, Operands]) -> tuple[Array, Array]:
    """Return output and log-sum-exps by operations that have forward mode."""
    return blockwise_call(settings[0], arrays[1], arrays[0])


RULES = tiled_rules(run=_run, plain=_in_tiles, save=lambda settings, arrays, outputs: outputs, pull=_pull)._replace(
    named=False, filled=False
)
