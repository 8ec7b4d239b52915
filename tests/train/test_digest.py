"""Digests: the same however an array is split, different for a change of any bit, place, shape, type or name."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from train.devices.mesh import make_mesh
from train.engine.digest import digests

TYPES = ("float32", "bfloat16", "int32", "uint8", "bool", "uint16")


def draw(dtype: str, shape: tuple[int, ...] = (6, 8, 5)) -> np.ndarray:
    values = np.random.default_rng(0).integers(0, 200, shape)
    return np.asarray(jnp.asarray(values % 2 if dtype == "bool" else values, dtype))


@pytest.mark.parametrize("dtype", TYPES)
def test_every_bit_counts(dtype):
    array = draw(dtype)
    seen = {digests({"a": array})["['a']"]}
    raw = array.view(np.uint8).reshape(-1)
    bits = range(1) if dtype == "bool" else range(8)
    for place in (0, 1, raw.size // 2, raw.size - 1):
        for bit in bits:
            changed = raw.copy()
            changed[place] ^= 1 << bit
            seen.add(digests({"a": changed.view(array.dtype).reshape(array.shape)})["['a']"])
    assert len(seen) == 1 + 4 * len(bits)


def test_places_shapes_types_and_names_count():
    array = draw("int32")
    swapped = array.copy()
    swapped[0, 0, 0], swapped[3, 2, 1] = array[3, 2, 1], array[0, 0, 0]
    assert array[0, 0, 0] != array[3, 2, 1]
    variants = [swapped, array.reshape(8, 6, 5), array.view(np.float32), array.swapaxes(0, 1)]
    values = {digests({"a": variant})["['a']"] for variant in (array, *variants)}
    assert len(values) == 5
    assert list(digests({"a": array, "b": {"c": array}})) == ["['a']", "['b']['c']"]


def test_zeros_of_different_lengths_differ():
    assert len({digests([np.zeros(size, np.float32)])["[0]"][-16:] for size in range(5)}) == 5


@pytest.mark.parametrize("spec", [(), ("data",), (None, ("fsdp", "tensor")), ("data", "tensor", None)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_splitting_changes_nothing(spec, dtype):
    mesh = make_mesh(8, "data=2,fsdp=2,tensor=2")
    array = draw(dtype, (6, 8, 5) if dtype == "float32" else (2, 4, 6))
    split = jax.device_put(array, jax.sharding.NamedSharding(mesh, PartitionSpec(*spec)))
    assert digests({"a": split}) == digests({"a": array})


def test_the_sums_are_those_of_the_formula():
    def mix(x: int) -> int:
        x = (x ^ (x >> 16)) * 0x85EBCA6B % 2**32
        x = (x ^ (x >> 13)) * 0xC2B2AE35 % 2**32
        return x ^ (x >> 16)

    array = np.arange(1, 7, dtype=np.uint32).reshape(2, 3) * 1234567
    once = [mix(int(bits) ^ mix(i + 1)) for i, bits in enumerate(array.reshape(-1))]
    text = f"uint32 (2, 3) {sum(once) % 2**32:08x}{sum(map(mix, once)) % 2**32:08x}"
    assert digests([array]) == {"[0]": text}
