"""The same GPT and vision transformer in torch: pre-norm blocks, SDPA, exact GELU, the same positions, AdamW."""

import functools
from typing import Any

import numpy as np

from benchmarks.operands import Sizes
from benchmarks.peers_torch import load
from benchmarks.timing import Call, Maker
from pejax import alibi_slopes

Tensor = Any


def gpt(sizes: Sizes, batch: tuple[np.ndarray, np.ndarray], pe: str, dtype: str) -> dict[str, Maker]:
    """Return training steps of the decoder by name."""
    return _ways(lambda: gpt_model(sizes, pe), batch, dtype)


def vit(sizes: Sizes, batch: tuple[np.ndarray, np.ndarray], patch: int, dtype: str) -> dict[str, Maker]:
    """Return training steps of the vision transformer by name."""
    return _ways(lambda: vit_model(sizes, patch, batch[0].shape[-1]), batch, dtype)


def _ways(make: Any, batch: tuple[np.ndarray, np.ndarray], dtype: str) -> dict[str, Maker]:
    return {
        "torch, eager": functools.partial(_step, make, batch, dtype, False),
        "torch.compile": functools.partial(_step, make, batch, dtype, True),
    }


def _step(make: Any, batch: tuple[np.ndarray, np.ndarray], dtype: str, compiled: bool) -> Call:
    torch = load()
    torch.manual_seed(0)
    model, (inputs, labels) = make(), (torch.from_numpy(array) for array in batch)
    labels = labels.long().reshape(-1)
    run = torch.compile(model, dynamic=False) if compiled else model
    kernels = [p for name, p in model.named_parameters() if p.ndim == 2 and "position" not in name]
    others = [p for p in model.parameters() if all(p is not kernel for kernel in kernels)]
    groups = [{"params": kernels, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=2e-3, fused=True)

    def call() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            logits = run(inputs)
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, -2), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return call


def _block(width: int, heads: int, causal: bool, bias: Tensor | None) -> Any:
    torch = load()
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Tensor) -> Tensor:
            batch, length, _ = x.shape
            qkv = self.qkv(self.norm_attention(x)).view(batch, length, 3, heads, width // heads)
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            mask = None if bias is None else bias.to(q.dtype)
            mixed = functional.scaled_dot_product_attention(q, k, v, mask, is_causal=causal and bias is None)
            x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
            return x + self.down(functional.gelu(self.up(self.norm_mlp(x))))

    return Block()


def gpt_model(sizes: Sizes, pe: str) -> Any:
    """Return the decoder: GPT-2's layers, learned or ALiBi positions."""
    torch = load()
    nn = torch.nn
    positions = torch.arange(sizes.length)
    relative = positions[None, :] - positions[:, None]
    slopes = torch.from_numpy(np.array(alibi_slopes(sizes.heads))).to(positions.device)[:, None, None]
    bias = (slopes * relative).masked_fill(relative > 0, -torch.inf)[None] if pe == "alibi" else None

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(sizes.vocab, sizes.width)
            self.position = nn.Embedding(sizes.length, sizes.width) if pe == "learned" else None
            self.blocks = nn.Sequential(*(_block(sizes.width, sizes.heads, True, bias) for _ in range(sizes.layers)))
            self.norm = nn.LayerNorm(sizes.width)
            self.head = nn.Linear(sizes.width, sizes.vocab, bias=False)

        def forward(self, ids: Tensor) -> Tensor:
            x = self.table(ids)
            x = x if self.position is None else x + self.position(positions)
            return self.head(self.norm(self.blocks(x)))

    return Gpt()


def vit_model(sizes: Sizes, patch: int, channels: int) -> Any:
    """Return the vision transformer: CLS, a learned table of positions."""
    torch = load()
    nn = torch.nn
    count = (sizes.length // patch) ** 2

    class Vit(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch = nn.Linear(patch * patch * channels, sizes.width)
            self.position_table = nn.Parameter(0.02 * torch.randn(1, count, sizes.width))
            self.cls = nn.Parameter(0.02 * torch.randn(1, 1, sizes.width))
            self.blocks = nn.Sequential(*(_block(sizes.width, sizes.heads, False, None) for _ in range(sizes.layers)))
            self.norm = nn.LayerNorm(sizes.width)
            self.head = nn.Linear(sizes.width, sizes.vocab)

        def forward(self, images: Tensor) -> Tensor:
            batch, side = images.shape[0], images.shape[1] // patch
            cut = images.view(batch, side, patch, side, patch, channels).permute(0, 1, 3, 2, 4, 5)
            x = self.patch(cut.reshape(batch, count, -1)) + self.position_table
            x = self.blocks(torch.cat([self.cls.expand(batch, 1, -1), x], dim=1))
            return self.head(self.norm(x[:, 0]))

    return Vit()
