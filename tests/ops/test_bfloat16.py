"""bfloat16 by its bits, against numpy's own type, and what XLA makes of the bits of constants."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pejax import sinusoidal_embedding
from pejax._ops.bfloat16 import as_bits, rounded


@pytest.mark.parametrize("compiled", [False, True])
def test_float32_is_rounded_to_the_nearest_bfloat16(compiled: bool) -> None:
    bits = np.arange(2**16, dtype=np.uint32) << 16
    dropped = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)  # below, at and above the middle of two
    x = (bits[:, None] | dropped).view(np.float32)
    run = jax.jit(rounded, static_argnums=1) if compiled else rounded
    result = np.asarray(run(jnp.asarray(x), jnp.bfloat16))
    with np.errstate(invalid="ignore"):  # of NaN
        expected = x.astype(jnp.dtype(jnp.bfloat16))
    assert result.dtype == expected.dtype
    nan = np.isnan(x)
    np.testing.assert_array_equal(np.isnan(result.astype(np.float32)), nan)
    np.testing.assert_array_equal(result.view(np.uint16)[~nan], expected.view(np.uint16)[~nan])


@pytest.mark.parametrize("dtypes", [("float32", "float32"), ("float32", "float16"), ("bfloat16", "bfloat16")])
def test_other_types_are_converted_as_ever(dtypes: tuple[str, str]) -> None:
    x = jnp.asarray([1.0009765625, -3.3, 65504.0], dtypes[0])
    result = rounded(x, jnp.dtype(dtypes[1]))
    assert result.dtype == dtypes[1]
    np.testing.assert_array_equal(result, x.astype(dtypes[1]))


def test_the_bits_of_a_transposed_constant_keep_their_order() -> None:
    """XLA folds them in the order of the untransposed array (docs/known-traps.md)."""
    x = jnp.arange(6, dtype=jnp.bfloat16).reshape(2, 3)
    turn = jax.jit(lambda x: x.T)
    np.testing.assert_array_equal(jax.jit(lambda: jax.jit(as_bits)(turn(x)))(), np.asarray(x).T.view(np.uint16))


def test_constant_fractional_positions_may_be_transposed() -> None:
    positions = jnp.asarray([[0.5, 7.25], [1.5, 9.0], [2.75, 30.0]])
    embed = lambda positions: sinusoidal_embedding(positions, 4)
    folded = jax.jit(lambda: embed(jax.jit(jnp.transpose)(positions)))()
    np.testing.assert_allclose(folded, embed(jnp.asarray(np.asarray(positions).T)), atol=1e-6)
