"""Parameters from the tensors of files, read range by range: their types and the devices that hold them."""

import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pejax.interop.files import FLOATS, Reader, Tensor
from pejax.interop.layouts import SAME, TRANSPOSED
from pejax.interop.slots import Slot
from pejax.interop.vision_slots import with_row
from pejax.models.sharding import AXES, RULES, logical_axes, partition_specs

PARAMS = ("float32", "bfloat16", "file")
"""Types that parameters can be kept in."""

Index = tuple[slice, ...]


def kept_type(params: str, slots: Sequence[Slot], tensors: Mapping[str, Tensor]) -> np.dtype:
    """Return the type of a parameter: with "file", the type of its tensors, or float32 where they differ.

    Parameters of encodings stay in float32.
    """
    if "position" in slots[0].path:
        return np.dtype("float32")
    if params != "file":
        return jnp.dtype(params)
    dtypes = {FLOATS[tensors[piece.tensor].dtype] for slot in slots for piece in slot.pieces}
    return dtypes.pop() if len(dtypes) == 1 else np.dtype("float32")


def values_in(slots: Sequence[Slot], shape: tuple[int, ...], dtype: np.dtype, read: Reader, index: Index) -> np.ndarray:
    """Return a range of a parameter, a slice per axis; only this range is read from the files."""
    index = tuple(slice(*part.indices(size)) for part, size in zip(index, shape, strict=True))
    if slots[0].row is None:
        return _part(slots[0], index, read).astype(dtype, copy=False)
    rows = index[0]
    value = np.empty([part.stop - part.start for part in index], dtype)
    for slot in slots:
        if slot.row is not None and rows.start <= slot.row < rows.stop:
            value[slot.row - rows.start] = _part(slot, index[1:], read)
    return value


def _part(slot: Slot, index: Index, read: Reader) -> np.ndarray:
    """Return a range of a slot."""
    if slot.layout not in (SAME, TRANSPOSED):
        joined = slot.layout.join([read(piece.tensor, piece.index) for piece in slot.pieces])
        return (joined if slot.added is None else with_row(joined, read(slot.added.tensor, slot.added.index)))[index]
    (piece,) = slot.pieces
    slices = [*(index if slot.layout is SAME else index[::-1])]
    along = slices[piece.axis]
    slices[piece.axis] = slice(along.start + piece.start, along.stop + piece.start)
    return slot.layout.join([read(piece.tensor, tuple(slices))])


def on_devices(shape: tuple[int, ...], sharding: NamedSharding, values: Callable[[Index], np.ndarray]) -> jax.Array:
    """Return the array of these values on the devices of a mesh; the host holds one shard at a time."""
    places = sharding.addressable_devices_indices_map(shape)
    by_range: dict[Any, list[Any]] = {}
    for device, index in places.items():
        index = () if index is None else index
        by_range.setdefault(tuple((part.start, part.stop) for part in index), []).append(device)
    shards = {}
    for bounds, devices in by_range.items():
        value = values(tuple(slice(*ends) for ends in bounds))
        shards |= {device: jax.device_put(value, device) for device in devices}
    return jax.make_array_from_single_device_arrays(shape, sharding, [shards[device] for device in places])


def shardings(variables: Any, layers: Sequence[Any], mesh: Mesh) -> dict[tuple[Any, ...], NamedSharding]:
    """Return the sharding of every parameter, by its path, as the trainers split them (`pejax.models.sharding.RULES`).

    An axis is split only if its size is a multiple of the number of devices along the mesh axis; an axis of heads, only
    if the number of key heads is also a multiple. Other axes are whole on every device; one warning names them all.

    Args:
        variables: state of the model.
        layers: configs of the layers.
        mesh: the devices.

    Raises:
        ValueError: a mesh of other axes.
    """
    if not {*mesh.shape} <= {*AXES}:
        raise ValueError(f"mesh must have axes out of {', '.join(AXES)}, got {', '.join(map(str, mesh.shape))}")
    key_heads = functools.reduce(math.gcd, [layer.attention.kv_heads for layer in layers])
    specs = partition_specs(variables, {name: axis for name, axis in RULES.items() if axis in mesh.shape})
    shardings, rules = {}, dict[str, None]()
    for (path, variable), (_, spec) in zip(nnx.to_flat_state(variables), nnx.to_flat_state(specs), strict=True):
        entries = []
        for name, axis, size in zip(logical_axes(variable), spec.get_value(), variable.shape, strict=True):
            count = math.gcd(size, key_heads) if name == "heads" else size
            fits = axis is None or count % mesh.shape[axis] == 0
            entries.append(axis if fits else None)
            if not fits:
                rule = f"{key_heads} key heads" if name == "heads" else f"{name} {size}"
                rules[f"{rule} over {axis}={mesh.shape[axis]}"] = None
        shardings[path] = NamedSharding(mesh, PartitionSpec(*entries))
    if rules:
        warnings.warn(f"whole on every device, because devices do not divide them: {', '.join(rules)}", stacklevel=3)
    return shardings
