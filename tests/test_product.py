"""The product of a linear layer and its gradients, and GELU, against float64 and against torch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from pejax.models.layers import gelu
from pejax.models.product import dot_general, product

LEAD = [(1,), (1, 1), (3,), (2, 5), (2, 3, 4), (2, 200)]


def draw(*shape: int, seed: int = 0, dtype: str = "float32") -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def exact(x: jax.Array) -> np.ndarray:
    return np.asarray(x.astype(jnp.float32), np.float64)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("lead", LEAD)
def test_product_and_gradients_are_those_of_float64(lead, dtype):
    x, kernel = draw(*lead, 6, dtype=dtype), draw(6, 9, seed=1, dtype=dtype)
    cotangent = draw(*lead, 9, seed=2, dtype=dtype).astype(jnp.float32)
    output, back = jax.jit(lambda *operands: jax.vjp(product, *operands))(x, kernel)
    d_x, d_kernel = back(cotangent)
    assert (output.dtype, d_x.dtype, d_kernel.dtype) == (jnp.float32, x.dtype, x.dtype)
    wide, matrix, slope = (exact(array) for array in (x, kernel, cotangent))
    np.testing.assert_allclose(output, wide @ matrix, rtol=1e-5, atol=1e-5)
    rounding = {"float32": 1e-5, "bfloat16": 2.0**-8}[dtype]
    np.testing.assert_allclose(exact(d_x), slope @ matrix.T, rtol=rounding, atol=1e-5)
    sums = wide.reshape(-1, 6).T @ slope.reshape(-1, 9)
    np.testing.assert_allclose(exact(d_kernel), sums, rtol=rounding, atol=1e-5)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("lead", [(1, 1), (2, 5)])
def test_bfloat16_products_run_in_a_scan_of_any_length(lead, layers):
    def last(kernels, x):
        return jax.lax.scan(lambda x, kernel: (product(x, kernel).astype(x.dtype), None), x, kernels)[0]

    x, kernels = draw(*lead, 6, dtype="bfloat16"), draw(layers, 6, 6, seed=1, dtype="bfloat16")
    gradients = jax.jit(jax.grad(lambda *both: jnp.sum(last(*both).astype(jnp.float32)), (0, 1)))(kernels, x)
    slope = np.ones((*lead, 6))
    for layer in reversed(range(layers)):
        slope = slope @ exact(kernels[layer]).T
    np.testing.assert_allclose(exact(gradients[1]), slope, rtol=0.05, atol=0.1)


@pytest.mark.parametrize("mapped", [(0, None), (None, 0), (0, 0)])
def test_gradients_map_over_examples(mapped):
    operands = [
        draw(*(2,) * (axis == 0), *shape, dtype="bfloat16")
        for axis, shape in zip(mapped, ((4, 6), (6, 9)), strict=True)
    ]
    gradients = jax.grad(lambda *both: jnp.sum(jnp.square(product(*both))), (0, 1))
    together = jax.jit(jax.vmap(gradients, mapped))(*operands)
    for i in range(2):
        own = gradients(*(x[i] if axis == 0 else x for x, axis in zip(operands, mapped, strict=True)))
        for whole, part in zip(together, own, strict=True):
            np.testing.assert_allclose(exact(whole[i]), exact(part), rtol=0.02, atol=0.1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_operands_split_over_devices_are_not_gathered(dtype):
    mesh = jax.make_mesh((4, 2), ("data", "tensor"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    specs = PartitionSpec("data"), PartitionSpec(None, "tensor")
    split = tuple(NamedSharding(mesh, spec) for spec in specs)
    loss = lambda *both: jnp.sum(jnp.square(product(*both)))  # noqa: E731
    x, kernel = draw(8, 3, 6, dtype=dtype), draw(6, 10, seed=1, dtype=dtype)
    run = jax.jit(jax.grad(loss, (0, 1)), in_shardings=split, out_shardings=split)
    assert "all-gather" not in run.lower(x, kernel).compile().as_text()
    for found, expected in zip(run(x, kernel), jax.grad(loss, (0, 1))(x, kernel), strict=True):
        rounding = {"float32": 1e-6, "bfloat16": 2.0**-7}[dtype] * np.abs(exact(expected)).max()
        np.testing.assert_allclose(exact(found), exact(expected), rtol=0, atol=rounding)


def test_a_linear_layer_gives_the_type_of_its_input():
    layer = nnx.Linear(6, 9, dtype=jnp.bfloat16, dot_general=dot_general, rngs=nnx.Rngs(0))
    assert layer(draw(2, 5, 6)).dtype == jnp.bfloat16


@pytest.mark.parity
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gelu_and_its_slope_are_torchs(dtype):
    torch = pytest.importorskip("torch")
    x = jnp.linspace(-6, 6, 997).astype(dtype)
    leaf = torch.from_numpy(exact(x)).requires_grad_()
    value = torch.nn.functional.gelu(leaf)
    (slope,) = torch.autograd.grad(value.sum(), leaf)
    rounding = {"float32": 1e-6, "bfloat16": 2.0**-8}[dtype]
    np.testing.assert_allclose(exact(gelu(x)), value.detach().numpy(), rtol=rounding, atol=5e-7)
    found = jax.grad(lambda x: jnp.sum(gelu(x).astype(jnp.float32)))(x)
    np.testing.assert_allclose(exact(found), slope.numpy(), rtol=rounding, atol=1e-6)
