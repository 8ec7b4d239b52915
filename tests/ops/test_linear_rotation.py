"""The rotation for GPUs is that of every platform, to the bit, under each transformation of JAX."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from pejax._ops import rotary
from pejax._ops.linear_rotation import rotate_linear

FORMS = {"half": rotary._halves_selected, "interleaved": rotary._narrow_by_parts}
CASES = [
    ("half", "bfloat16", 12),
    ("half", "float32", 8),
    ("interleaved", "bfloat16", 8),
    ("interleaved", "float16", 8),
]


def operands(dtype, channels):
    draw = np.random.default_rng(0)
    x = jnp.asarray(draw.normal(size=(3, 5, 2, channels)), dtype)
    angles = jnp.asarray(draw.normal(size=(5, 1, 4)), jnp.float32)
    return x, jnp.cos(angles), jnp.sin(angles)


def squares(rotate):
    return lambda *operands: jnp.sum(jnp.square(rotate(*operands).astype(jnp.float32)))


def on_a_mesh(rotate):
    """Return a rotation whose batch is split over the devices."""
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))
    by_batch, whole = PartitionSpec("data"), PartitionSpec()
    return jax.shard_map(rotate, mesh=mesh, in_specs=(by_batch, whole, whole), out_specs=by_batch)


def along_x(rotate):
    """Return the gradient's change with x."""

    def change(x, cos, sin):
        return jax.jvp(lambda x: jax.grad(squares(rotate))(x, cos, sin), (x,), (x,))[1]

    return change


TRANSFORMS = {
    "jit": jax.jit,
    "grad": lambda rotate: jax.grad(squares(rotate)),
    "grad of a batch": lambda rotate: jax.grad(squares(jax.vmap(rotate, (0, None, None)))),
    "batch of grad": lambda rotate: jax.vmap(jax.grad(squares(rotate)), (0, None, None)),
    "batch of tables": lambda rotate: (
        lambda x, *tables: jax.vmap(rotate, (None, 0, 0))(x, *(jnp.stack([t, 1 - t]) for t in tables))
    ),
    "last axis": lambda rotate: lambda x, cos, sin: jax.vmap(rotate, (2, None, None), 2)(x, cos[:, 0], sin[:, 0]),
    "jvp of grad": along_x,
    "remat": lambda rotate: jax.grad(squares(jax.checkpoint(rotate))),
    "mesh": on_a_mesh,
    "grad on a mesh": lambda rotate: jax.grad(squares(on_a_mesh(rotate))),
    "grad of tables": lambda rotate: jax.grad(squares(rotate), (1, 2)),
}


@pytest.mark.parametrize(("pairing", "dtype", "channels"), CASES)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_every_transformation_gives_what_it_gives_elsewhere(transform, pairing, dtype, channels):
    given = operands(dtype, channels)
    ours = jax.jit(TRANSFORMS[transform](lambda *operands: rotate_linear(*operands, pairing=pairing)))(*given)
    theirs = jax.jit(TRANSFORMS[transform](FORMS[pairing]))(*given)
    tolerance = 1e-5 if transform == "grad of tables" or dtype == "float32" else 0.0
    jax.tree.map(
        lambda own, other: np.testing.assert_allclose(own, other, rtol=tolerance, atol=tolerance), ours, theirs
    )


@pytest.mark.parametrize(("pairing", "dtype", "channels"), CASES)
def test_a_change_of_all_operands_is_the_sum_of_their_changes(pairing, dtype, channels):
    x, cos, sin = operands(dtype, channels)
    run = lambda rotate: jax.jvp(rotate, (x, cos, sin), (x, sin, cos))
    own, other = run(lambda *operands: rotate_linear(*operands, pairing=pairing)), run(FORMS[pairing])
    for result, expected in zip(own, other, strict=True):
        assert result.dtype == dtype
        np.testing.assert_allclose(
            result.astype(jnp.float32), expected.astype(jnp.float32), atol=8 * float(jnp.finfo(dtype).eps)
        )


@pytest.mark.parametrize(("pairing", "dtype", "channels"), CASES)
def test_positions_of_each_device_turn_what_all_have(pairing, dtype, channels):
    """Inside `shard_map`, angles may vary where queries do not; the gradient of the queries is then a sum."""
    x, cos, sin = operands(dtype, channels)
    mesh = jax.make_mesh((5,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:5])
    whole, by_token = PartitionSpec(), PartitionSpec("data")

    def run(rotate):
        split = jax.shard_map(
            lambda x, *tables: rotate(x, *tables)[:, None],
            mesh=mesh,
            in_specs=(whole, by_token, by_token),
            out_specs=PartitionSpec(None, "data"),
        )
        return jax.jit(jax.value_and_grad(squares(split)))(x[:, :1], cos, sin)

    turned = jax.jit(lambda x, *tables: rotary.rotate_pairs(x, *tables, pairing=pairing))
    for rotate in (lambda *given: rotate_linear(*given, pairing=pairing), turned):
        for own, other in zip(run(rotate), run(FORMS[pairing]), strict=True):
            np.testing.assert_allclose(
                own.astype(jnp.float32), other.astype(jnp.float32), rtol=4 * float(jnp.finfo(dtype).eps)
            )


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
@pytest.mark.parametrize("shape", [(5, 2, 8), (1, 2, 2)])
def test_constants_of_a_program_are_turned_in_any_order_of_their_axes(order, shape):
    """XLA folds the bits of transposed constants wrongly (docs/known-traps.md), but not those of their pairs."""
    draw = np.random.default_rng(1)
    stored = jnp.asarray(draw.normal(size=shape), jnp.bfloat16).transpose(np.argsort(order))
    angles = jnp.asarray(draw.normal(size=(shape[0], 1, shape[2] // 2)), jnp.float32)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    swap = jax.jit(lambda x: x.transpose(order))
    rotate = jax.jit(lambda x: rotate_linear(x, cos, sin, pairing="interleaved"))
    result = jax.jit(lambda: rotate(swap(stored)))()
    np.testing.assert_array_equal(result, FORMS["interleaved"](stored.transpose(order), cos, sin))


def test_gpus_run_it_and_no_other_platform():
    x, cos, sin = operands("bfloat16", 8)
    for pairing in FORMS:
        lowered = lambda platform: (
            jax.jit(lambda *operands: rotary.rotate_pairs(*operands, pairing=pairing))  # noqa: B023
            .trace(x, cos, sin)
            .lower(lowering_platforms=(platform,))
            .as_text()
        )
        words = {platform: "ui32" in lowered(platform) for platform in ("cpu", "tpu", "cuda")}
        assert words == {"cpu": False, "tpu": False, "cuda": pairing == "interleaved"}
        joined = {platform: "concatenate" in lowered(platform) for platform in ("cpu", "cuda")}
        assert joined["cuda"] == (pairing == "half")
