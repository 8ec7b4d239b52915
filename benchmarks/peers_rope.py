"""Rotation of queries and keys in torch: transformers, rotary-embedding-torch, torch.compile of the plain formula."""

import functools
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from benchmarks.peers_torch import both_ways, load
from benchmarks.timing import Call, Maker
from pejax import rope_frequencies

Tensor = Any
Turn = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class Turning(NamedTuple):
    """The rotated arrays.

    Attributes:
        shape: (B, T, H, D) of q and of k.
        dtype: "float32" or "bfloat16".
        pairing: "interleaved" or "half".
        tables_given: cos and sin are made before the clock starts.
        backward: whether gradients of q and k are wanted too.
    """

    shape: tuple[int, int, int, int]
    dtype: str
    pairing: str
    tables_given: bool
    backward: bool

    def drawn(self) -> Float[np.ndarray, "N B T H D"]:
        """Return q and k, and the cotangents of both where gradients are wanted."""
        return np.random.default_rng(0).standard_normal((2 + 2 * self.backward, *self.shape), np.float32)


def peers(turning: Turning) -> dict[str, Maker]:
    """Return the peers by name, each in the layout it has."""
    way = lambda make, heads_first: functools.partial(_way, turning, make, heads_first)
    if turning.pairing == "half":
        return {
            "transformers, Llama, eager": way(_llama, True),
            "torch.compile": way(_compiled, True),
        }
    return {
        "transformers, GPT-J, eager": way(_gptj, False),
        "rotary-embedding-torch": way(_rotary_embedding, True),
        "torch.compile": way(_compiled, True),
    }


def _angles(turning: Turning) -> Callable[[], Tensor]:
    torch = load()
    positions = torch.arange(turning.shape[1], dtype=torch.float32)
    frequencies = torch.from_numpy(np.array(rope_frequencies(turning.shape[-1])))
    return lambda: positions[:, None] * frequencies


def _llama(turning: Turning) -> Turn:
    torch, llama = load(), importlib.import_module("transformers.models.llama.modeling_llama")
    _, length, heads, dim = turning.shape
    config = importlib.import_module("transformers").LlamaConfig(
        hidden_size=heads * dim, num_attention_heads=heads, head_dim=dim, max_position_embeddings=length
    )
    make, positions = llama.LlamaRotaryEmbedding(config), torch.arange(length)[None]
    like = torch.zeros((), dtype=getattr(torch, turning.dtype))
    tables = make(like, positions)

    def turn(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = tables if turning.tables_given else make(q, positions)
        return llama.apply_rotary_pos_emb(q, k, cos, sin)

    return turn


def _gptj(turning: Turning) -> Turn:
    torch, gptj = load(), importlib.import_module("transformers.models.gptj.modeling_gptj")
    angles, kind = _angles(turning), getattr(torch, turning.dtype)
    make = lambda: (angles().sin().to(kind)[None], angles().cos().to(kind)[None])
    tables = make()

    def turn(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        sin, cos = tables if turning.tables_given else make()
        return gptj.apply_rotary_pos_emb(q, sin, cos), gptj.apply_rotary_pos_emb(k, sin, cos)

    return turn


def _rotary_embedding(turning: Turning) -> Turn:
    module = importlib.import_module("rotary_embedding_torch")
    rotary = module.RotaryEmbedding(dim=turning.shape[-1], cache_if_possible=turning.tables_given)
    return lambda q, k: (rotary.rotate_queries_or_keys(q), rotary.rotate_queries_or_keys(k))


def _compiled(turning: Turning) -> Turn:
    torch = load()
    angles, half = _angles(turning), turning.shape[-1] // 2

    def one(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        wide = x.float()
        if turning.pairing == "half":
            first, second = wide[..., :half], wide[..., half:]
            return torch.cat([first * cos - second * sin, first * sin + second * cos], -1).to(x.dtype)
        first, second = wide[..., ::2], wide[..., 1::2]
        return torch.stack([first * cos - second * sin, first * sin + second * cos], -1).flatten(-2).to(x.dtype)

    tables = angles().cos(), angles().sin()

    def turn(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = tables if turning.tables_given else (angles().cos(), angles().sin())
        return one(q, cos, sin), one(k, cos, sin)

    return torch.compile(turn, dynamic=False, fullgraph=True)


def _way(turning: Turning, make: Callable[[Turning], Turn], heads_first: bool) -> Call:
    torch = load()
    kind, layout = getattr(torch, turning.dtype), (0, 2, 1, 3) if heads_first else (0, 1, 2, 3)
    drawn = [torch.from_numpy(x.transpose(layout).copy()).to(kind) for x in turning.drawn()]
    return both_ways(torch, make(turning), drawn[:2], tuple(drawn[2:]) or None)
