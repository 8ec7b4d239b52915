"""Causal ALiBi attention in torch, and the fastest that torch has without a bias."""

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.operands import Problem
from benchmarks.timing import Call, Maker, require_memory
from pejax import alibi_slopes
from train.devices.cpu import cores

Tensor = Any
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def load() -> Any:
    """Return torch, on all cores of this process."""
    torch = importlib.import_module("torch")
    torch.set_num_threads(cores())
    return torch


def forget() -> None:
    """Drop torch's compiled programs: after eight recompilations of a function it would stop compiling, silently."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.reset()


def attention(problem: Problem) -> dict[str, Maker]:
    """Return the peers by name."""
    bias = functools.cache(lambda: causal_alibi(problem))
    way = lambda make: functools.partial(_way, problem, make)
    ways = {
        "torch SDPA": way(lambda: _sdpa(attn_mask=bias())),
        "torch SDPA, no bias": way(lambda: _sdpa(is_causal=True)),
        "torch eager, as BLOOM and MPT": way(lambda: _eager(problem, bias())),
        "x-transformers, flash": way(lambda: _x_transformers(bias())),
    }
    flex = {"torch FlexAttention, compiled": way(lambda: _flex(problem))}
    return ways if problem.backward else ways | flex  # on CPU it has no backward


def causal_alibi(problem: Problem) -> Tensor:
    """Return ALiBi's bias `(1, H, T, S)`, -inf behind the mask, in the type of q."""
    require_memory(2 * problem.square)
    torch = load()
    positions = torch.arange(problem.length, dtype=torch.float32)
    relative = positions[None, :] - positions[:, None]
    bias = torch.from_numpy(np.array(alibi_slopes(problem.heads)))[:, None, None] * relative
    return bias.masked_fill_(relative > 0, -torch.inf).to(getattr(torch, problem.dtype))[None]


def _sdpa(**options: Any) -> Attend:
    return functools.partial(load().nn.functional.scaled_dot_product_attention, **options)


def _eager(problem: Problem, bias: Tensor) -> Attend:
    require_memory((10 if problem.backward else 4) * problem.square)
    torch = load()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        logits = torch.matmul(q, k.transpose(-1, -2)) * q.shape[-1] ** -0.5 + bias
        return torch.matmul(torch.softmax(logits.float(), dim=-1).to(v.dtype), v)

    return attend


def _x_transformers(bias: Tensor) -> Attend:
    attend = importlib.import_module("x_transformers.attend").Attend(flash=True, causal=True)
    return lambda q, k, v: attend(q, k, v, attn_bias=bias)[0]


def _flex(problem: Problem) -> Attend:
    torch = load()
    flex = importlib.import_module("torch.nn.attention.flex_attention")
    slopes = torch.from_numpy(np.array(alibi_slopes(problem.heads)))

    def alibi(score: Tensor, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score + slopes[head] * (j - i)

    visible = lambda batch, head, i, j: i >= j
    mask = flex.create_block_mask(visible, None, None, problem.length, problem.length, device="cpu")
    compiled = torch.compile(flex.flex_attention, dynamic=False)
    return lambda q, k, v: compiled(q, k, v, score_mod=alibi, block_mask=mask)


def _way(problem: Problem, make: Callable[[], Attend]) -> Call:
    torch = load()
    attend = make()
    kind = getattr(torch, problem.dtype)
    operands = [torch.from_numpy(x.swapaxes(1, 2).copy()).to(kind) for x in problem.drawn()]
    return both_ways(torch, attend, operands[:3], operands[3] if problem.backward else None)


def both_ways(torch: Any, function: Callable[..., Tensor], operands: list[Tensor], cotangent: Tensor | None) -> Call:
    """Return the way that calls a function without recording, or with gradients of all operands for a cotangent."""
    if cotangent is None:

        def forward() -> Tensor:
            with torch.no_grad():
                return function(*operands)

        return forward
    leaves = [x.requires_grad_() for x in operands]

    def both() -> tuple[Tensor, tuple[Tensor, ...]]:
        output = function(*leaves)
        return output, torch.autograd.grad(output, leaves, cotangent)

    return both
