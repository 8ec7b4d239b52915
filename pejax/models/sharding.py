"""Logical names for the axes of parameters, and the way from names to `PartitionSpec`s.

A parameter carries its names as plain metadata, which nothing reads until `partition_specs` is asked, so a model is
built, traced and trained with no mesh in sight. A trainer that has a mesh says which of its axes each name is split
over, and gives the specs to `jax.jit`:

    specs = partition_specs(nnx.state(model, nnx.Param), {"mlp": "tensor", "heads": "tensor", "embed": "fsdp"})

Names used: layers (L, where layers are stacked), embed (C), heads (H, or columns grouped by key head), mlp, pixels,
tokens, classes.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import jax
from flax import nnx
from jax.sharding import PartitionSpec

from pejax._encoding import Params

Rules: TypeAlias = Mapping[str, str | tuple[str, ...] | None]
"""Logical name -> mesh axis or axes; a name that is absent is not split."""

LOGICAL_AXES = "logical_axes"
"""The metadata of a parameter that holds one name, or None, per axis."""


def named(*axes: str | None) -> dict[str, Any]:
    """Return the metadata that names the axes of a parameter."""
    return {LOGICAL_AXES: axes}


def position_variables(params: Params) -> Any:
    """Wrap what `init` or `init_layer` drew: each array an `nnx.Param`, the leading axis of `heads` named so."""

    def wrap(path: tuple, leaf: jax.Array) -> nnx.Param:
        per_head = path[0] == jax.tree_util.DictKey("heads")
        axes = ("heads",) * per_head + (None,) * (leaf.ndim - per_head)
        return nnx.Param(leaf, **named(*axes))

    return jax.tree_util.tree_map_with_path(wrap, dict(params))


def logical_axes(variable: nnx.Variable) -> tuple[str | None, ...]:
    """Return one name per axis of a parameter: "layers" in front where layers were stacked, None where unnamed."""
    names = variable.get_metadata().get(LOGICAL_AXES, (None,) * variable.ndim)
    return ("layers",) * (variable.ndim - len(names)) + tuple(names)


def partition_specs(variables: Any, rules: Rules) -> Any:
    """Return the pytree of `PartitionSpec`s of a model's parameters: `spec[axis] = rules[name of the axis]`.

    A mesh axis splits one axis of a parameter at most: the first that asks for it.

    Args:
        variables: a module's state, arrays or shapes: `nnx.state(model, nnx.Param)`, a part of `nnx.split`.
        rules: which mesh axis each name is split over.

    Returns:
        The same tree with a spec in each variable, a prefix for `in_shardings` once turned into `NamedSharding`s.
    """

    def spec(variable: nnx.Variable) -> nnx.Variable:
        taken: set[str] = set()
        entries = []
        for name in logical_axes(variable):
            mesh_axes = rules.get(name) if name is not None else None
            wanted = (mesh_axes,) if isinstance(mesh_axes, str) else tuple(mesh_axes or ())
            free = tuple(axis for axis in wanted if axis not in taken)
            taken.update(free)
            entries.append(free[0] if len(free) == 1 else free or None)
        return variable.replace(PartitionSpec(*entries))

    return jax.tree.map(spec, variables, is_leaf=lambda node: isinstance(node, nnx.Variable))
