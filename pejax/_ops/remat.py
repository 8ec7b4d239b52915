"""Checkpoint name of activations worth saving under rematerialization: matmul outputs and attention."""

from typing import TypeVar

import jax
from jax.ad_checkpoint import checkpoint_name

KEPT = "pejax.product"
"""The name: `jax.checkpoint_policies.save_only_these_names(KEPT)`."""

Tree = TypeVar("Tree")


def kept(outputs: Tree) -> Tree:
    """Return arrays, named."""
    return jax.tree.map(lambda x: checkpoint_name(x, KEPT), outputs)
