"""Torch on an NVIDIA GPU: causal attention with ALiBi and without a bias, and rotation of queries and keys."""

import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.timing import Call, Maker
from pejax import alibi_slopes, rope_frequencies

Tensor = Any


def load() -> Any:
    """Return torch, which must see the GPU.

    Raises:
        RuntimeError: it does not.
    """
    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        raise RuntimeError("torch is not built for this GPU")
    return torch


def queued(function: Callable[[], Any], launches: int) -> Call:
    """Return the way that queues a function several times and waits once."""
    torch = load()

    def call() -> Any:
        for _ in range(launches):
            result = function()
        torch.cuda.synchronize()
        return result

    return call


def attention(drawn: tuple[np.ndarray, ...], backward: bool, launches: int) -> dict[str, Maker]:
    """Return the peers by name, in bfloat16, given q, k, v and cotangent `(B, T, H, D)`."""
    way = lambda make: functools.partial(_attention, make, drawn, backward, launches)
    return {
        "torch FlexAttention, ALiBi": way(functools.partial(_flex, alibi=True)),
        "torch FlexAttention, no bias": way(functools.partial(_flex, alibi=False)),
        "torch SDPA, flash, no bias": way(functools.partial(_sdpa, backend="FLASH_ATTENTION")),
        "torch SDPA, cuDNN, no bias": way(functools.partial(_sdpa, backend="CUDNN_ATTENTION")),
    }


def _attention(make: Callable, drawn: tuple[np.ndarray, ...], backward: bool, launches: int) -> Call:
    torch = load()
    q, k, v, cotangent = (
        torch.from_numpy(x).to("cuda", torch.bfloat16).transpose(1, 2).contiguous().requires_grad_(backward and i < 3)
        for i, x in enumerate(drawn)
    )
    attend = make(heads=q.shape[1], length=q.shape[2])

    def both() -> Any:
        return torch.autograd.grad(attend(q, k, v), (q, k, v), cotangent)

    return queued(both if backward else lambda: attend(q, k, v), launches)


def _flex(*, heads: int, length: int, alibi: bool) -> Callable:
    torch = load()
    flex = importlib.import_module("torch.nn.attention.flex_attention")
    slopes = torch.from_numpy(np.array(alibi_slopes(heads))).to("cuda")
    mask = flex.create_block_mask(lambda b, h, i, j: i >= j, None, None, length, length, device="cuda")
    bias = (lambda score, b, h, i, j: score + slopes[h] * (j - i)) if alibi else None
    return functools.partial(torch.compile(flex.flex_attention), score_mod=bias, block_mask=mask)


def _sdpa(*, heads: int, length: int, backend: str) -> Callable:
    del heads, length
    torch = load()
    choice = importlib.import_module("torch.nn.attention")

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with choice.sdpa_kernel(getattr(choice.SDPBackend, backend)):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    return attend


def rotation(q: np.ndarray, k: np.ndarray, launches: int) -> dict[str, Maker]:
    """Return torch's compiled rotation of halves, in bfloat16, tables given."""

    def make() -> Call:
        torch = load()
        tokens = [torch.from_numpy(x).to("cuda", torch.bfloat16) for x in (q, k)]
        angles = np.arange(q.shape[1], dtype=np.float64)[:, None] * np.asarray(
            rope_frequencies(q.shape[-1]), np.float64
        )
        cos, sin = (torch.from_numpy(f(angles)).to("cuda", torch.float32)[:, None] for f in (np.cos, np.sin))

        def turn(x: Tensor) -> Tensor:
            first, second = x.float().chunk(2, dim=-1)
            return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1).to(x.dtype)

        compiled = torch.compile(lambda q, k: (turn(q), turn(k)))
        return queued(lambda: compiled(*tokens), launches)

    return {"torch.compile, halves": make}
