"""The checkpoint name of activations worth saving under rematerialization: outputs of matmuls and attention."""

from typing import TypeVar

import jax
from jax.ad_checkpoint import checkpoint_name

REMAT_NAME = "pejax.product"
"""The name, for `jax.checkpoint_policies.save_only_these_names(REMAT_NAME)`."""

Tree = TypeVar("Tree")


def name_for_remat(outputs: Tree) -> Tree:
    """Return a pytree of arrays, each tagged with `REMAT_NAME`."""
    return jax.tree.map(lambda x: checkpoint_name(x, REMAT_NAME), outputs)
