"""Blocks of queries and keys: what is summed over them."""

import jax.numpy as jnp
import numpy as np
import pytest

from pejax._attention.xla.blocks import add_to_block


@pytest.mark.parametrize("count", [1, 3])
def test_a_part_is_added_to_its_block_alone(count):
    rng = np.random.default_rng(0)
    total, part = (rng.integers(-9, 9, shape) for shape in ((count, 4, 2), (4, 2)))
    for i in range(count):
        expected = total.copy()
        expected[i] += part
        added = add_to_block(jnp.int32(i), *(jnp.asarray(x, jnp.float32) for x in (total, part)))
        np.testing.assert_array_equal(added, expected)
