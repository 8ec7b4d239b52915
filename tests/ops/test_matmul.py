"""The product of a linear layer, its gradients and GELU, against float64 and torch; norms of one example."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from pejax._attention.api import dot_product_attention
from pejax._ops import matmul
from pejax._ops.bfloat16 import as_bits, as_stored, from_bits
from pejax._ops.matmul import product, product_in_type, recompute
from pejax.models import MlpConfig, NormConfig
from pejax.models.parts.layers import Mlp, gelu, linear, make_norm
from tests.support.cases import slow

LEAD = [*map(slow, [(1,), (1, 1), (3,), (2, 5)]), (2, 3, 4), slow((2, 200))]


def draw(*shape: int, seed: int = 0, dtype: str = "float32") -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def exact(x: jax.Array) -> np.ndarray:
    return np.asarray(x.astype(jnp.float32), np.float64)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("lead", LEAD)
@pytest.mark.parametrize(("inputs", "outputs"), [(6, 9), slow(9, 6)])
def test_product_and_gradients_are_those_of_float64(inputs, outputs, lead, dtype):
    x, kernel = draw(*lead, inputs, dtype=dtype), draw(inputs, outputs, seed=1, dtype=dtype)
    bias, cotangent = draw(outputs, seed=3), draw(*lead, outputs, seed=2, dtype=dtype).astype(jnp.float32)
    output, back = jax.jit(lambda *operands: jax.vjp(product, *operands))(x, kernel, bias)
    d_x, d_kernel, d_bias = back(cotangent)
    kinds = (jnp.float32, x.dtype, x.dtype, jnp.float32)
    assert (output.dtype, d_x.dtype, d_kernel.dtype, d_bias.dtype) == kinds
    wide, matrix, slope = (exact(array) for array in (x, kernel, cotangent))
    np.testing.assert_allclose(output, wide @ matrix + exact(bias), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(d_bias, slope.reshape(-1, outputs).sum(0), rtol=1e-5, atol=1e-5)
    rounding = {"float32": 1e-5, "bfloat16": 2.0**-8}[dtype]
    np.testing.assert_allclose(exact(d_x), slope @ matrix.T, rtol=rounding, atol=1e-5)
    sums = wide.reshape(-1, inputs).T @ slope.reshape(-1, outputs)
    np.testing.assert_allclose(exact(d_kernel), sums, rtol=rounding, atol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
def test_a_gpu_writes_a_linear_layer_in_16_bits_and_sums_its_gradients_in_32(monkeypatch, bias):
    x, kernel, offset = draw(64, 6, dtype="bfloat16"), draw(6, 9, seed=1), draw(9, seed=3)
    slope = draw(64, 9, seed=2, dtype="bfloat16")
    operands = (x, kernel, offset) if bias else (x, kernel)

    def run(platform):
        monkeypatch.setattr(matmul, "platform", lambda: platform)
        step = jax.jit(lambda *operands: jax.vjp(matmul.product_in_type, *operands))
        output, back = step(*operands)
        return step.lower(*operands).as_text(), [output, *back(slope)]

    (text, ours), (_, theirs) = run("gpu"), run("cpu")
    assert [array.dtype for array in ours] == [jnp.bfloat16, jnp.bfloat16, *[jnp.float32] * (1 + bias)]
    assert re.search(r"dot_general.*-> tensor<64x9xbf16>", text)
    rounded = exact(kernel.astype(jnp.bfloat16))
    expected = exact(x) @ rounded + (exact(offset) if bias else 0.0)
    np.testing.assert_allclose(exact(ours[0]), expected, atol=2.0**-7 * np.abs(expected).max())
    np.testing.assert_allclose(exact(ours[1]), exact(slope) @ rounded.T, rtol=2.0**-8, atol=1e-5)
    for own, other in zip(ours[2:], theirs[2:], strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("lead", [(1, 1), (2, 5)])
def test_bfloat16_products_run_in_a_scan_of_any_length(lead, layers):
    def last(kernels, x):
        return jax.lax.scan(lambda x, kernel: (product(x, kernel).astype(x.dtype), None), x, kernels)[0]

    x, kernels = draw(*lead, 6, dtype="bfloat16"), draw(layers, 6, 6, seed=1, dtype="bfloat16")
    gradients = jax.jit(jax.grad(lambda *operands: jnp.sum(last(*operands).astype(jnp.float32)), (0, 1)))(kernels, x)
    slope = np.ones((*lead, 6))
    for layer in reversed(range(layers)):
        slope = slope @ exact(kernels[layer]).T
    np.testing.assert_allclose(exact(gradients[1]), slope, rtol=0.05, atol=0.1)


@pytest.mark.parametrize("mapped", [(0, None), (None, 0), (0, 0)])
@pytest.mark.parametrize(("inputs", "outputs"), [(6, 9), slow(9, 6)])
def test_gradients_map_over_examples(inputs, outputs, mapped):
    operands = [
        draw(*(2,) * (axis == 0), *shape, dtype="bfloat16")
        for axis, shape in zip(mapped, ((4, inputs), (inputs, outputs)), strict=True)
    ]
    gradients = jax.grad(lambda *operands: jnp.sum(jnp.square(product(*operands))), (0, 1))
    together = jax.jit(jax.vmap(gradients, mapped))(*operands)
    for i in range(2):
        own = gradients(*(x[i] if axis == 0 else x for x, axis in zip(operands, mapped, strict=True)))
        for whole, part in zip(together, own, strict=True):
            np.testing.assert_allclose(exact(whole[i]), exact(part), rtol=0.02, atol=0.1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "specs",
    [(PartitionSpec("data"), PartitionSpec(None, "tensor")), (PartitionSpec("data", "tensor"), PartitionSpec())],
)
def test_operands_split_over_devices_are_not_gathered(specs, dtype):
    mesh = jax.make_mesh((4, 2), ("data", "tensor"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    split = tuple(NamedSharding(mesh, spec) for spec in specs)
    loss = lambda *operands: jnp.sum(jnp.square(product(*operands)))
    x, kernel = draw(8, 4, 6, dtype=dtype), draw(6, 10, seed=1, dtype=dtype)
    run = jax.jit(jax.grad(loss, (0, 1)), in_shardings=split, out_shardings=split)
    assert "all-gather" not in run.lower(x, kernel).compile().as_text()
    for result, expected in zip(run(x, kernel), jax.grad(loss, (0, 1))(x, kernel), strict=True):
        rounding = {"float32": 1e-6, "bfloat16": 2.0**-7}[dtype] * np.abs(exact(expected)).max()
        np.testing.assert_allclose(exact(result), exact(expected), rtol=0, atol=rounding)


@pytest.mark.parametrize(("inputs", "outputs"), [(96, 160), (160, 96)])
def test_a_device_that_has_its_own_part_lays_out_the_narrower_operand_alone(inputs, outputs):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    split, replicated = PartitionSpec("data"), PartitionSpec()
    own = jax.grad(lambda *operands: jnp.sum(jnp.square(product(*operands))), (0, 1))
    run = jax.jit(
        jax.shard_map(own, mesh=mesh, in_specs=(split, replicated), out_specs=(split, split), check_vma=False)
    )
    program = run.lower(draw(16, 48, inputs), draw(inputs, outputs, seed=1)).compile().as_text()
    assert len(re.findall(r" dot\(", program)) == 3
    assert re.findall(r"f32\[([\d,]*48[\d,]*)\]\S* copy\(", program) == ["96,2,48"]


@pytest.mark.slow
@pytest.mark.parametrize(("inputs", "outputs"), [(6, 10), (10, 6)])
def test_gradients_of_one_device_can_be_batched_and_differentiated(inputs, outputs):
    """In a part of their own, where an operand's layout is prescribed."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    x, kernel = draw(8, 3, 5, inputs), draw(inputs, outputs, seed=1)

    def bends(multiply):
        loss = lambda x, kernel: jnp.sum(jnp.sin(multiply(x, kernel)))
        steep = lambda x, kernel: jnp.sum(jnp.square(jax.grad(loss, 1)(x, kernel)))
        return jax.vmap(jax.grad(steep), (0, None))

    split, replicated = PartitionSpec("data"), PartitionSpec()
    run = jax.shard_map(bends(product), mesh=mesh, in_specs=(split, replicated), out_specs=split, check_vma=False)
    np.testing.assert_allclose(jax.jit(run)(x, kernel), bends(jnp.matmul)(x, kernel), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("bias", [False, True])
def test_a_linear_layer_multiplies_and_adds_in_the_type_of_the_computation(bias):
    axes = "embed", "mlp"
    ours = linear(6, 9, axes, dtype=jnp.bfloat16, rngs=nnx.Rngs(0), bias=bias)
    theirs = nnx.Linear(6, 9, use_bias=bias, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    theirs.kernel[...] = ours.kernel[...]
    if bias:
        theirs.bias[...] = ours.bias[...]
    x = draw(2, 5, 6)
    assert ours(x).dtype == jnp.bfloat16
    np.testing.assert_allclose(exact(ours(x)), exact(theirs(x)), rtol=2.0**-7, atol=2.0**-7)
    gradient = nnx.grad(lambda layer: jnp.sum(jnp.sin(layer(x).astype(jnp.float32))))
    for result, expected in zip(*(jax.tree.leaves(gradient(layer)) for layer in (ours, theirs)), strict=True):
        assert result.dtype == jnp.float32
        np.testing.assert_allclose(result, expected, rtol=0.03, atol=0.03)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_computed_again_keeps_its_arguments_alone_and_has_the_same_gradients(dtype):
    def bent(x, scale):
        return jnp.tanh(jnp.exp(jnp.sin(x.astype(jnp.float32))) * scale).astype(x.dtype)

    again = recompute(bent)
    x, scale = draw(4, 6, dtype=dtype), draw(6, seed=1)
    assert again.__name__ == "bent"
    residuals = jax.tree.leaves(jax.vjp(again, x, scale)[1])
    bits = [x.nbytes] if dtype == "bfloat16" else []  # besides, x itself, which only derivatives of derivatives read
    assert sorted(leaf.nbytes for leaf in residuals if leaf.size > 1) == sorted([x.nbytes, scale.nbytes, *bits])
    total = lambda function: lambda *operands: jnp.sum(function(*operands).astype(jnp.float32))
    for result, expected in zip(*(jax.grad(total(f), (0, 1))(x, scale) for f in (again, bent)), strict=True):
        assert result.dtype == expected.dtype
        np.testing.assert_array_equal(exact(result), exact(expected))


@pytest.mark.parametrize("dtype", [slow("float32"), "bfloat16"])
@pytest.mark.parametrize("bias", [False, slow(True)])
def test_a_linear_layer_of_what_is_computed_again_multiplies_three_times(bias, dtype):
    """Output, gradient of the kernel and gradient of x; of the layer's input alone is kept what these need."""
    layer = linear(6, 9, ("embed", "mlp"), dtype=dtype, rngs=nnx.Rngs(0), bias=bias)
    graph, params = nnx.split(layer)
    x = draw(2, 5, 6, dtype=dtype)
    again = lambda params, x: nnx.merge(graph, params).of(gelu, x)
    plain = lambda params, x: nnx.merge(graph, params)(gelu(x))
    total = lambda function: lambda *operands: jnp.sum(jnp.sin(function(*operands).astype(jnp.float32)))
    np.testing.assert_array_equal(exact(again(params, x)), exact(plain(params, x)))
    for result, expected in zip(
        *(jax.tree.leaves(jax.grad(total(f), (0, 1))(params, x)) for f in (again, plain)), strict=True
    ):
        assert result.dtype == expected.dtype
        np.testing.assert_allclose(exact(result), exact(expected), rtol=2e-6, atol=1e-6)
    residuals = jax.tree.leaves(jax.vjp(again, params, x)[1])
    bits = sum(leaf.nbytes for leaf in (x, layer.bias) if leaf is not None and leaf.dtype == jnp.bfloat16)
    arguments = x.nbytes + sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    assert sum(leaf.nbytes for leaf in residuals) <= arguments + bits
    text = jax.jit(jax.grad(total(again), (0, 1))).lower(params, x).compile().as_text()
    assert len(re.findall(r" dot\(", text)) == 3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_loop_over_layers_keeps_what_is_computed_again_once(dtype):
    """The bits of bfloat16, which loops slice: XLA drops x itself, which only derivatives of derivatives read."""
    x, kernel = draw(512, 256, dtype=dtype), draw(256, 256, dtype=dtype)
    bent = recompute(lambda x, kernel: product_in_type(jnp.tanh(x), kernel))
    layers = lambda x, kernel: jax.lax.scan(lambda x, _: (bent(x, kernel), None), x, None, length=16)[0]
    total = lambda x, kernel: jnp.sum(layers(x, kernel).astype(jnp.float32))
    program = jax.jit(jax.grad(total, (0, 1))).lower(x, kernel).compile()
    assert 16 * x.nbytes <= program.memory_analysis().temp_size_in_bytes < 24 * x.nbytes


NORMS = [slow(NormConfig("layer", bias=True)), NormConfig("rms")]


@pytest.mark.parametrize("norm", NORMS)
def test_one_example_is_normed_as_it_is_among_others(norm):
    x, d_out = draw(2, 12, 8), draw(2, 12, 8, seed=1)
    graph, params = nnx.split(make_norm(norm, 8))
    params["scale"][...] = jnp.arange(8.0)
    run = lambda n: jax.vjp(lambda params, x: nnx.merge(graph, params)(x), params, x[n])
    out, pull = run(slice(2))
    d_params, d_x = pull(d_out)
    alone = [(item, pull(d_out[i : i + 1])) for i in range(2) for item, pull in [run(slice(i, i + 1))]]
    np.testing.assert_allclose(jnp.concatenate([item for item, _ in alone]), out, rtol=1e-6)
    np.testing.assert_allclose(jnp.concatenate([d[1] for _, d in alone]), d_x, rtol=1e-5, atol=1e-6)
    total = jax.tree.map(jnp.add, *(d[0] for _, d in alone))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), total, d_params)


@pytest.mark.parametrize("what", [*NORMS, "attention"])
def test_one_example_has_no_sums_over_channels_beside_an_axis_of_one(what):
    """XLA:CPU takes about ten times longer for a sum of products over the last axis where the first has one entry."""
    x = draw(1, 12, 2, 8) if what == "attention" else draw(1, 12, 8)
    call = functools.partial(dot_product_attention, positions=jnp.arange(12), implementation="cpu")
    run = (lambda x: call(x, x, x)) if what == "attention" else make_norm(what, 8)
    text = jax.jit(lambda x: jax.vjp(run, x)[1](x)).lower(x).compile().as_text()
    reduced = re.findall(r"= f32\[([\d,]*)\]\S* reduce\(", text)
    assert reduced
    assert not [shape for shape in reduced if shape.startswith("1,")]


@pytest.mark.parametrize("gated", [False, True])
def test_a_layer_of_an_mlp_may_be_replaced(gated):
    config = MlpConfig(12, "silu" if gated else "gelu", gated=gated, bias=True)
    mlp, x = Mlp(config, 6, dtype=jnp.float32, rngs=nnx.Rngs(0)), draw(2, 5, 6)
    expected = mlp(x)
    mlp.down = nnx.LoRA(12, 2, 6, base_module=mlp.down, rngs=nnx.Rngs(0))  # of zeros at first
    np.testing.assert_allclose(mlp(x), expected, rtol=1e-6)
    mlp.down.lora_b[...] = jnp.ones((2, 6))
    assert not np.allclose(mlp(x), expected)


@pytest.mark.parametrize("moved", ["read", slow("written")])
def test_slices_of_bfloat16_are_moved_by_their_bits(moved):
    x, part = draw(8, 6, dtype="bfloat16"), draw(1, 6, seed=1, dtype="bfloat16")

    def run(x, part, i):
        if moved == "read":
            return from_bits(jax.lax.dynamic_slice_in_dim(as_bits(x), i, 1))
        return from_bits(jax.lax.dynamic_update_slice_in_dim(as_bits(x), as_stored(part, as_bits(x)), i, 0))

    compiled = jax.jit(run).lower(x, part, 3).compile()
    assert "f32[" not in compiled.as_text().replace("bf16[", "")
    expected = x[3:4] if moved == "read" else x.at[3].set(part[0])
    np.testing.assert_array_equal(exact(compiled(x, part, 3)), exact(expected))


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
    result = jax.grad(lambda x: jnp.sum(gelu(x).astype(jnp.float32)))(x)
    np.testing.assert_allclose(exact(result), slope.numpy(), rtol=rounding, atol=1e-6)


@pytest.mark.parametrize("folds", [True, False])
def test_no_factor_is_folded_past_the_bias_on_a_gpu(monkeypatch, folds):
    """XLA before jax 0.11.1 computes `(x w + b) c` as `(c x) w + b` there; a barrier keeps them apart."""
    monkeypatch.setattr(matmul, "platform", lambda: "gpu")
    monkeypatch.setattr(matmul, "FOLDS_FACTORS", folds)
    x, kernel, bias = jnp.ones((4, 8)), jnp.ones((8, 16)), jnp.ones(16)
    lowered = jax.jit(lambda *operands: matmul.product(*operands) / 30).lower(x, kernel, bias).as_text()
    assert ("optimization_barrier" in lowered) == folds
    assert (
        "optimization_barrier"
        not in jax.jit(lambda *operands: matmul.product(*operands) / 30).lower(x, kernel).as_text()
    )
