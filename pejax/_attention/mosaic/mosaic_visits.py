"""The blocks that a program of a kernel on Mosaic GPU visits, in the order of its loops."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array


class Kind(NamedTuple):
    """What is known of the tiles of one loop.

    Attributes:
        masked: whether they may have masked pairs.
        end: 0 where all keys are far before the queries, 1 where they are far after them, and all pairs share one bias.
            None = the bias differs from pair to pair, or there is none.
    """

    masked: bool
    end: int | None = None


class Visits(NamedTuple):
    """The blocks that a program visits: first those whose pairs are all visible, then the others.

    Attributes:
        full: number of the blocks whose pairs are all visible.
        total: number of all blocks.
        full_start: index of the first of the full ones.
        before: number of the other blocks that are before the full ones; the rest follow them.
        near: numbers of the steps before the first near block, and before the first after the near ones, of the full
            ones; where a block is not near, all its pairs share one bias.
        far: the ends at which some may be far, as `Kind.end` has them.
        descending: whether the full blocks are visited from the last to the first.
        some_masked: whether there may be other blocks than the full ones.
    """

    full: Array
    total: Array
    full_start: Array
    before: Array
    near: tuple[Array, Array]
    far: tuple[int, ...]
    descending: bool
    some_masked: bool

    def block(self, x: Array) -> Array:
        """Return the index of the block of step x."""
        return jnp.where(x < self.full, self.full_block(x), self.masked_block(x))

    def full_block(self, x: Array) -> Array:
        """Return the index of the block of one of the first steps."""
        return self.full_start + (self.full - 1 - x if self.descending else x)

    def masked_block(self, x: Array) -> Array:
        """Return the index of the block of a step after the full ones."""
        beyond = x - self.full
        return self.full_start + jnp.where(beyond < self.before, beyond - self.before, x - self.before)

    def loop(self, step: Callable, carry: Any, begun: Array | int = 0, turn: tuple[Any, int] = (0, 1)) -> Any:
        """Return the carry after all blocks, or after those of one consumer of several that take turns.

        Args:
            step: `(number of the step, index of the block, carry, kind of its tiles) -> carry`.
            carry: carry before the first block.
            begun: number of the first step.
            turn: (i, n): only the steps whose number is i modulo n.
        """
        consumer, count = turn

        def run(low: Any, high: Any, kind: Kind, carry: Any) -> Any:
            # The first step from `low` on whose number, `begun` more, is that of the consumer modulo count.
            first = low + (lax.rem(consumer + (count - 1) * (begun + low), jnp.int32(count)) if count > 1 else 0)

            def own_step(y: Array, carry: Any) -> Any:
                x = first + y * count
                return step(begun + x, self.masked_block(x) if kind.masked else self.full_block(x), carry, kind)

            return lax.fori_loop(0, lax.div(high - first + count - 1, jnp.int32(count)), own_step, carry)

        zero = jnp.int32(0)
        start, end = (self.near[0] if 0 in self.far else zero), (self.near[1] if 1 in self.far else self.full)
        if 0 in self.far:
            carry = run(zero, start, Kind(masked=False, end=0), carry)
        carry = run(start, end, Kind(masked=False), carry)
        if 1 in self.far:
            carry = run(end, self.full, Kind(masked=False, end=1), carry)
        return run(self.full, self.total, Kind(masked=True), carry) if self.some_masked else carry


def visits(
    spans: Any, n: Array, owner: Array, count: int, far: tuple[int, ...] = (), *, descending: bool = False
) -> Visits:
    """Return the visits of a program. Nothing else reads `Inputs.spans`.

    Args:
        spans: reference to the spans, or None.
        n: index of the example.
        owner: index of the block that the program owns.
        count: number of blocks to visit if there are no spans.
        far: as in `Visits`.
        descending: as in `Visits`; where blocks of queries are visited, the keys before them then come first.
    """
    if spans is None:
        zero, all_blocks = jnp.int32(0), jnp.int32(count)
        return Visits(all_blocks, all_blocks, zero, zero, (zero, all_blocks), (), descending, False)
    example = n if spans.shape[0] > 1 else 0
    first, full_start, near_start, near_end, full_end, end = (spans[example, owner, i] for i in range(6))
    near = (
        (full_end - near_end, full_end - near_start) if descending else (near_start - full_start, near_end - full_start)
    )
    return Visits(full_end - full_start, end - first, full_start, full_start - first, near, far, descending, True)
