"""LoRA: the changes of the linear layers are products of two narrow matrices, which alone are trained.

    kernel + scale · A @ B,    A (in, rank) drawn at random, B (rank, out) zero at first

The sum is computed before the layer is applied, so a step takes as long as fine-tuning all parameters. The moments of
the optimizer and the checkpoints hold the narrow matrices alone.

Reference:
    Hu et al. 2021, "LoRA: low-rank adaptation of large language models", equation 3.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

SCALE = 2.0
"""Factor of the product, which the paper calls alpha / rank."""

Tree = dict[str, Any]


class LowRank(nnx.Module):
    """The two narrow matrices of every linear layer in the layers of a model, as a module without a call.

    Args:
        shapes: shapes of the parameters of the model.
        rank: rank of the products.
        rngs: draws A from its `params` stream.
    """

    def __init__(self, shapes: Tree, rank: int, *, rngs: nnx.Rngs) -> None:
        pairs = {}
        for path, shape in kernels(shapes):
            *lead, inputs, outputs = shape
            draw = jax.random.normal(rngs.params(), (*lead, inputs, rank)) * inputs**-0.5
            pairs["/".join(path)] = {"a": nnx.Param(draw), "b": nnx.Param(jnp.zeros((*lead, rank, outputs)))}
        self.pairs = nnx.data(pairs)


def kernels(shapes: Tree) -> list[tuple[tuple[str, ...], tuple[int, ...]]]:
    """Return the paths and shapes of the kernels in the layers, the stacked ones with their layers first."""
    entries = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(shapes):
        names = tuple(str(part.key) for part in path)
        if names[:2] == ("stack", "layers") and names[-1] == "kernel":
            entries.append((names, leaf.shape))
    return entries


def merged_params(frozen: Tree, changes: Tree) -> Tree:
    """Return the parameters of the model with the products added."""
    pairs: dict[str, Any] = changes["pairs"]

    def change(path: Any, leaf: jax.Array) -> jax.Array:
        pair = pairs.get("/".join(str(part.key) for part in path))
        return leaf if pair is None else leaf + SCALE * (pair["a"] @ pair["b"]).astype(leaf.dtype)

    return jax.tree_util.tree_map_with_path(change, frozen)
