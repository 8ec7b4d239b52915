"""Torch on an NVIDIA GPU: causal attention with ALiBi and without a bias, rotation, and the training step of a GPT."""

import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.operands import Sizes
from benchmarks.peers_steps import gpt_model
from pejax import alibi_slopes, rope_frequencies

Tensor = Any
Queue = Callable[[int], Any]
Start = Callable[[], Queue]
Shape = tuple[int, ...]


def load() -> Any:
    """Return torch, which must see the GPU.

    Raises:
        ImportError: it is not installed, or built for another device.
    """
    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        raise ImportError(f"torch {torch.__version__} sees no GPU")
    return torch


def queued(function: Callable[[], Any]) -> Queue:
    """Return a function that queues another one several times and waits once."""
    torch = load()

    def queue(launches: int) -> Any:
        for _ in range(launches):
            result = function()
        torch.cuda.synchronize()
        return result

    return queue


def attention(shape: Shape, backward: bool) -> dict[str, Callable[[], Start]]:
    """Return the peers by name, in bfloat16, for q, k, v of `(B, T, H, D)`; FlexAttention at lengths up to 8,192."""
    way = lambda make: functools.partial(_attention, make, shape, backward)
    ways = {
        "torch SDPA, flash, no bias": way(functools.partial(_sdpa, backend="FLASH_ATTENTION")),
        "torch SDPA, cuDNN, no bias": way(functools.partial(_sdpa, backend="CUDNN_ATTENTION")),
    }
    if shape[1] == 8192:  # it compiles for a minute at each length
        ways["torch FlexAttention, ALiBi"] = way(functools.partial(_flex, alibi=True))
        ways["torch FlexAttention, no bias"] = way(functools.partial(_flex, alibi=False))
    return ways


def _attention(make: Callable, shape: Shape, backward: bool) -> Start:
    torch = load()

    def start() -> Queue:
        batch, length, heads, dim = shape
        draw = lambda: torch.randn((batch, heads, length, dim), device="cuda", dtype=torch.bfloat16)
        q, k, v = (draw().requires_grad_(backward) for _ in range(3))
        cotangent, attend = draw(), make(heads=heads, length=length)

        def both() -> Any:
            return torch.autograd.grad(attend(q, k, v), (q, k, v), cotangent)

        return queued(both if backward else lambda: attend(q, k, v))

    return start


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


def rotation(shapes: tuple[Shape, Shape]) -> dict[str, Callable[[], Start]]:
    """Return torch's compiled rotation of halves, of queries and keys in bfloat16, `(B, T, H, D)`, tables given."""

    def make() -> Start:
        torch = load()

        def start() -> Queue:
            length, dim = shapes[0][1], shapes[0][3]
            tokens = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in shapes]
            angles = np.arange(length, dtype=np.float64)[:, None] * np.asarray(rope_frequencies(dim), np.float64)
            cos, sin = (torch.from_numpy(f(angles)).to("cuda", torch.float32)[:, None] for f in (np.cos, np.sin))

            def turn(x: Tensor) -> Tensor:
                first, second = x.float().chunk(2, dim=-1)
                return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1).to(x.dtype)

            compiled = torch.compile(lambda q, k: (turn(q), turn(k)))
            return queued(lambda: compiled(*tokens))

        return start

    return {"torch.compile, halves": make}


def step(sizes: Sizes, pe: str) -> dict[str, Callable[[], Start]]:
    """Return a training step of a GPT in bfloat16, eager and compiled; "none" and "alibi" by a bias array alone."""
    if pe not in ("none", "alibi"):
        return {}
    return {
        "torch SDPA, eager": functools.partial(_step, sizes, pe, False),
        "torch SDPA, compiled": functools.partial(_step, sizes, pe, True),
    }


def _step(sizes: Sizes, pe: str, compiled: bool) -> Start:
    torch = load()

    def start() -> Queue:
        with torch.device("cuda"):
            model = gpt_model(sizes, pe)
            ids = torch.randint(sizes.vocab, (sizes.batch, sizes.length + 1))
        run = torch.compile(model, dynamic=False) if compiled else model
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)

        def once() -> Tensor:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", torch.bfloat16):
                logits = run(ids[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, -2), ids[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            return loss.detach()

        return queued(once)

    return start
