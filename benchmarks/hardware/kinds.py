"""The kinds of attention that are proved: every feature of a kernel once, with odd lengths; cuDNN's with even ones."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from pejax import Dims, TokenPositions
from pejax._ops.compile_time import computed_now

BATCH = 2


class Kind(NamedTuple):
    """A kind of call of attention.

    Attributes:
        spec: spec of the encoding.
        queries: T; in a grid, `side`² tokens follow `queries - side²` without a position.
        keys: S.
        kv_heads: K, of 4 query heads.
        head_dim: D.
        side: patches along an axis of a grid; 0 = a sequence.
        causal: whether keys after the query are masked.
        options: `window`, `distance_range` and `soft_cap`.
        rate: rate of dropout.
        sink: whether every head has a learned sink.
        segments: whether two sequences and padding are packed.
        unplaced: whether the first two tokens have no position.
        floats: whether positions are fractional, and have gradients.
        batched: whether each sequence has its own positions.
        stretch: what positions are multiplied by; above 1 they do not count tokens.
        known: whether tokens are at 0 ... T-1 and nothing else, which is known where the call is traced.
    """

    spec: str
    queries: int = 197
    keys: int = 197
    kv_heads: int = 2
    head_dim: int = 64
    side: int = 0
    causal: bool = True
    options: dict[str, Any] = {}  # noqa: RUF012
    rate: float = 0.0
    sink: bool = False
    segments: bool = False
    unplaced: bool = False
    floats: bool = False
    batched: bool = False
    stretch: int = 1
    known: bool = False

    @property
    def dims(self) -> Dims:
        """The dims that the encoding is made for."""
        axes, extent = (2, (self.side, self.side)) if self.side else (1, self.keys)
        return Dims(4, self.head_dim, kv_heads=self.kv_heads, axes=axes, causal=self.causal, extent=extent)


GRID = {"side": 14, "causal": False}
KINDS: dict[str, Kind] = {
    "none, grouped queries": Kind("none"),
    "none, not causal, D=128": Kind("none", causal=False, head_dim=128),
    "none, D=80": Kind("none", head_dim=80, queries=129, keys=129),
    "none, D=256": Kind("none", head_dim=256, queries=67, keys=67),
    "none, sink, soft cap": Kind("none", sink=True, options={"soft_cap": 3.0}),
    "none, window": Kind("none", options={"window": 50}),
    "none, window, even length": Kind("none", queries=198, keys=198, options={"window": 50}),
    "none, whole tiles": Kind("none", queries=256, keys=256, kv_heads=4),
    "alibi, fixed": Kind("alibi", known=True),
    "alibi, even length": Kind("alibi", queries=198, keys=198),
    "alibi, learned": Kind("alibi(learned=True)"),
    "alibi, dropout": Kind("alibi(learned=True)", rate=0.2),
    "alibi, packed, unplaced, batched": Kind("alibi(learned=True)", segments=True, unplaced=True, batched=True),
    "alibi, fractional grid, soft cap": Kind("alibi(learned=True)", **GRID, floats=True, options={"soft_cap": 5.0}),
    "alibi, blind rows": Kind("alibi", queries=131, options={"distance_range": (60, 90)}),
    "t5": Kind("t5(buckets=8, max_distance=20)", queries=397, keys=397, known=True),
    "t5, both ways, cross": Kind("t5", queries=131, causal=False, segments=True),
    "t5, stretched positions": Kind("t5", stretch=3),
    "kerple, window": Kind("kerple", options={"window": 60}),
    "cpb": Kind("cpb(hidden=64)", queries=256, keys=256, causal=False),
    "cpb, grid": Kind("cpb(hidden=64)", **GRID),
    "lookhere, grid": Kind("lookhere", **GRID),
    "relative_table, grid": Kind("relative_table", **GRID),
    "fire": Kind("fire"),
    "transformer_xl": Kind("transformer_xl"),
    "rope": Kind("rope"),
    "rope_mixed, grid": Kind("rope_mixed", **GRID),
}  # fmt: skip
"""All kinds by name."""


def kind_of(name: str, toy: bool) -> Kind:
    """Return a kind; a toy has a few tokens and channels."""
    kind = KINDS[name]
    if not toy:
        return kind
    small: dict[str, Any] = {"head_dim": 16 if "rope" in kind.spec else 8, "side": 4 if kind.side else 0}
    small |= {"queries": 21 if kind.queries == kind.keys else 18, "keys": 21}
    if kind.queries % 128 == 0:
        small |= {"queries": 128, "keys": 128}  # whole tiles, too
    if kind.known:
        small |= {"queries": 150, "keys": 150}  # some tiles are far from the diagonal
    if "window" in kind.options:
        small["options"] = {"window": 9}
    if "distance_range" in kind.options:
        small["options"] = {"distance_range": (6, 9)}
    return kind._replace(**small)


def tokens_of(kind: Kind) -> tuple[TokenPositions, TokenPositions]:
    """Return where queries and keys are; queries are the last of the keys, where there are fewer."""
    make = lambda: (_tokens(kind, kind.queries), _tokens(kind, kind.keys))
    # Biases on a grid are looked up where it is known; the lookup of a sequence is tried where it is not.
    return computed_now(make) if kind.side or kind.known else make()


def _tokens(kind: Kind, length: int) -> TokenPositions:
    index = np.arange(length, dtype=np.int32) + (kind.keys - length if kind.causal else 0)
    if kind.known:
        return TokenPositions(jnp.asarray(index))
    before = length - kind.side**2 if kind.side else 2
    positions = np.stack(np.divmod(np.maximum(index - before, 0), kind.side), -1) if kind.side else index
    positions = positions * (np.float32(0.7) if kind.floats else np.int32(kind.stretch))
    if kind.batched:
        positions = np.stack([positions, positions + 5])
    placed = index >= before if kind.unplaced or kind.side else None
    segments = np.repeat([3, 1, 0], [length // 2, length - length // 2 - 2, 2]) if kind.segments else None
    fields = (None if x is None else jnp.asarray(x) for x in (index, placed, segments))
    return TokenPositions(jnp.asarray(positions), *fields)
