"""Masks as an order of tokens: which tokens come first, and which are beside each other, run by run.

    visible_ij = [order_i ≥ order_j]

where attention is causal (`TokenPositions.order`). Tokens with one order see each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from pejax._calls.arguments import checked, checked_fields


@checked_fields
@dataclass(frozen=True)
class Run:
    """Tokens in a row that see what came before them, and each other in blocks; `mutual`, `causal`, `blocks` make it.

    Attributes:
        tokens: number of tokens.
        size: number of tokens in a block; the last block may be shorter.

    Raises:
        ValueError: fewer than one token, or a block of fewer.
    """

    tokens: int
    size: int

    def __post_init__(self) -> None:
        for name, value in (("tokens", self.tokens), ("size", self.size)):
            if value < 1:
                raise ValueError(f"{name} of a run must be at least 1, got {value}")


@checked
def mutual(tokens: int) -> Run:
    """Describe tokens that all see each other: a prefix, a picture, the actions of a robot.

    Args:
        tokens: number of tokens.

    Raises:
        ValueError: fewer than one token.
    """
    return Run(tokens, tokens)


@checked
def causal(tokens: int) -> Run:
    """Describe tokens of which each sees those before it.

    Args:
        tokens: number of tokens.

    Raises:
        ValueError: fewer than one token.
    """
    return Run(tokens, 1)


@checked
def blocks(tokens: int, *, size: int) -> Run:
    """Describe blocks of tokens that see themselves and the blocks before them, as in block diffusion.

    Args:
        tokens: number of tokens of all blocks.
        size: number of tokens in a block. Where it does not divide the tokens, the last block is shorter.

    Raises:
        ValueError: fewer than one token, or a block of fewer.
    """
    return Run(tokens, size)


@checked
def order_of(runs: Sequence[Run]) -> Int[Array, " T"]:
    """Return the `order` of tokens that are described by runs: tokens of a run see what comes before the run, too.

    It goes into `TokenPositions(order=)` and says which keys a query sees where attention is causal. A block has the
    number of its first token, so that windows, which count an order, count tokens: a block is in a window as a whole.
    Where a row holds several documents, give the runs of all of them, one document after the other, and `segment_ids`
    beside the order, which keep them apart; for a batch of rows, stack their orders.

    Args:
        runs: made by `mutual`, `causal` and `blocks`, in the order of the tokens; padding is any run.

    Returns:
        int32, in tokens.

    Raises:
        ValueError: no runs.

    Examples:
        >>> order_of([mutual(3), causal(2), blocks(5, size=2)]).tolist()
        [0, 0, 0, 3, 4, 5, 5, 7, 7, 9]
    """
    if not runs:
        raise ValueError("order_of: runs must have at least one, such as causal(12), got an empty list")
    within = [np.arange(run.tokens) // run.size * run.size for run in runs]
    starts = np.repeat(np.cumsum([0, *(run.tokens for run in runs[:-1])]), [run.tokens for run in runs])
    return jnp.asarray(starts + np.concatenate(within), jnp.int32)
