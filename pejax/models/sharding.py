"""Logical names of parameter axes, and their translation to `PartitionSpec`s.

The names are metadata of the parameter that only `partition_specs` reads, so a model is built, traced and trained
without a mesh. A trainer with a mesh maps each name to the mesh axis that it is split over, and passes the specs to
`jax.jit`:

    specs = partition_specs(nnx.state(model, nnx.Param), {"mlp": "tensor", "heads": "tensor", "embed": "fsdp"})

The names are: layers (L, if layers are stacked), embed (C), heads (H, or columns grouped by key head), mlp, vocab,
pixels, tokens, classes.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import jax
from flax import nnx
from jax.sharding import PartitionSpec

from pejax._calls.arguments import checked
from pejax._record.encoding import Params

Rules: TypeAlias = Mapping[str, str | tuple[str, ...] | None]
"""Logical name -> mesh axis or axes; an axis whose name is absent is not split."""

AXES = ("data", "fsdp", "tensor", "sequence")
"""Axes of the mesh of the trainers, and of `pejax.interop.load`."""

RULES = {"embed": "fsdp", "heads": "tensor", "mlp": "tensor", "vocab": "tensor", "classes": "tensor"}
"""Axis name of a parameter -> axis of this mesh; other axes are not sharded."""

LOGICAL_AXES = "logical_axes"
"""Key of the metadata of a parameter that holds one name, or None, per axis."""


def named(*axes: str | None) -> dict[str, Any]:
    """Return the metadata that names the axes of a parameter."""
    return {LOGICAL_AXES: axes}


def position_variables(params: Params) -> Any:
    """Return an encoding's parameters with every array wrapped in `nnx.Param`; the head axis is named "heads"."""

    def wrap(path: tuple, leaf: jax.Array) -> nnx.Param:
        per_head = path[0] == jax.tree_util.DictKey("heads")
        axes = ("heads",) * per_head + (None,) * (leaf.ndim - per_head)
        return nnx.Param(leaf, **named(*axes))

    return jax.tree_util.tree_map_with_path(wrap, dict(params))


@checked
def logical_axes(variable: nnx.Variable) -> tuple[str | None, ...]:
    """Return one name per axis of a parameter: "layers" first if layers are stacked, None for an unnamed axis.

    Args:
        variable: a parameter of a model of `pejax.models`.
    """
    names = variable.get_metadata().get(LOGICAL_AXES, (None,) * variable.ndim)
    return ("layers",) * (variable.ndim - len(names)) + tuple(names)


@checked
def partition_specs(variables: Any, rules: Rules) -> Any:
    """Return the pytree of `PartitionSpec`s of a model's parameters: `spec[axis] = rules[name of the axis]`.

    A mesh axis splits at most one axis of a parameter: the first whose name maps to it.

    Args:
        variables: a module's state, of arrays or shapes: `nnx.state(model, nnx.Param)`, or what `nnx.split` returned.
        rules: the mesh axis or axes that each name is split over.

    Returns:
        The same tree with a spec in each variable; converted to `NamedSharding`s, it is a prefix for `in_shardings`.
    """

    def spec(variable: nnx.Variable) -> nnx.Variable:
        used: set[str] = set()
        entries = []
        for name in logical_axes(variable):
            mesh_axes = rules.get(name) if name is not None else None
            requested = (mesh_axes,) if isinstance(mesh_axes, str) else tuple(mesh_axes or ())
            free = tuple(axis for axis in requested if axis not in used)
            used.update(free)
            entries.append(free[0] if len(free) == 1 else free or None)
        return variable.replace(PartitionSpec(*entries))

    return jax.tree.map(spec, variables, is_leaf=lambda node: isinstance(node, nnx.Variable))
