"""What kernels look up: ends where a bias is one function of its parameters, slots, and whole numbers as floats."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pejax import Dims, TokenPositions, adapt, grid_positions, init_params, make_encoding
from pejax._attention.core.order import SPARSEST, known_box
from pejax._attention.kernels.constant_ends import Ends, constant_ends
from pejax._attention.kernels.elementwise import cut
from pejax._attention.kernels.slots import slot_count, slot_distances, slots_of

RELATIVE = np.arange(-150, 151)


def of_head(spec, causal=False):
    """Return the distance_bias hook of an encoding, and the parameters of its first head."""
    encoding = make_encoding(spec, Dims(2, 8, extent=32, causal=causal))
    params = adapt(encoding, init_params(encoding, jax.random.key(0)), 32)
    return encoding.distance_bias, {**params.get("all", {}), **jax.tree.map(lambda x: x[0], params.get("heads", {}))}


def numbers(params):
    """Return parameters all of whose numbers differ."""
    leaves, tree = jax.tree.flatten(params)
    rng = np.random.default_rng(0)
    return tree.unflatten([jnp.asarray(rng.uniform(0.1, 1, np.shape(x)), jnp.float32) for x in leaves])


@pytest.mark.parametrize(
    ("spec", "causal", "ends"),
    [
        ("t5", True, Ends(38, 151)),
        ("t5", False, Ends(60, 60)),
        ("t5(buckets=8, max_distance=20)", False, Ends(144, 144)),
        ("relative_table", False, Ends(120, 120)),
        ("kerple", False, Ends(1, 1)),
        ("alibi", False, Ends(1, 1)),
    ],
)
def test_ends_are_all_distances_with_the_bias_of_the_outermost_for_any_parameters(spec, causal, ends):
    hook, params = of_head(spec, causal)
    assert constant_ends(hook, params, RELATIVE) == ends
    bias = np.asarray(hook(numbers(params), jnp.asarray(RELATIVE)))
    assert [int(np.argmin(x == x[0])) or len(x) for x in (bias, bias[::-1])] == [*ends]


def table_of_parity(params, relative):
    return jax.jit(lambda table: table[jnp.abs(relative) % 2])(params["table"]) + 0 * params["table"][0]


OWN = {
    "table": lambda p, r: p["table"][jnp.minimum(jnp.abs(r), 9)] * p["a"],
    "two tables": lambda p, r: p["table"][jnp.minimum(jnp.abs(r), 9)] + p["other"][jnp.clip(r, -20, 30) + 20],
    "step": lambda p, r: jnp.where(r > 40, p["a"], p["a"] * 2) * jnp.ones(r.shape),
    "parity": table_of_parity,
    "sum": lambda p, r: jnp.cumsum(p["table"][jnp.minimum(jnp.abs(r), 9)]),
    "all alike": lambda p, r: jnp.full(r.shape, p["a"]),
    "zeros of a table": lambda p, r: 0.0 * p["table"][jnp.clip(r, -9, 9)],
}


@pytest.mark.parametrize("name", OWN)
def test_within_an_end_the_gradients_of_all_distances_are_the_same(name):
    """Also where the bias is the same by chance, at distances of other gradients: those are no end."""
    params = numbers({"table": np.zeros(19), "other": np.zeros(51), "a": np.zeros(())})
    ends = constant_ends(OWN[name], params, RELATIVE)
    expected = {"table": (142, 142), "two tables": (131, 121), "step": (191, 110), "parity": (1, 1), "sum": (0, 0)}
    assert ends == expected.get(name, (301, 301) if name == "all alike" else (142, 142))
    gradients = jax.tree.leaves(jax.jacobian(lambda p: OWN[name](p, jnp.asarray(RELATIVE)))(params))
    for x in map(np.asarray, gradients):
        assert (x[: ends.first] == x[:1]).all()
        assert (x[len(x) - ends.last :] == x[-1:]).all()


@pytest.mark.parametrize("box", [((2, 9),), ((0, 3), (0, 4)), ((1, 3), (0, 2), (-1, 2)), ((5, 5), (0, 6))])
def test_the_difference_of_two_slots_tells_that_of_their_positions(box):
    sides = np.meshgrid(*(np.arange(low, high + 1) for low, high in box), indexing="ij")
    positions = np.stack([side.ravel() for side in sides], -1)
    positions = positions if len(box) > 1 else positions[:, 0]
    slots, count = np.asarray(slots_of(box, jnp.asarray(positions))), slot_count(box)
    assert len(set(slots)) == len(slots)
    assert (slots.min(), slots.max()) == (0, count - 1)
    distances = slot_distances(box)
    assert len(distances) == 2 * count - 1
    np.testing.assert_array_equal(
        distances[slots[None] - slots[:, None] + count - 1], positions[None] - positions[:, None]
    )


def box_of(positions, **fields):
    tokens = TokenPositions(jnp.asarray(positions), **fields)
    return known_box(tokens, tokens)


def test_a_box_is_known_for_distinct_whole_positions_that_are_not_too_far_apart():
    grid = grid_positions(3, 4) + 2
    assert box_of(grid) == ((2, 4), (2, 5))
    behind_cls = jnp.concatenate([jnp.zeros((1, 2), jnp.int32), grid])
    assert box_of(behind_cls, has_position=jnp.arange(13) > 0) == ((2, 4), (2, 5))
    assert box_of(jnp.concatenate([grid, grid[:1]])) is None
    assert box_of(grid.astype(jnp.float32)) is None
    assert box_of(grid, has_position=jnp.zeros(12, bool)) is None
    reach = SPARSEST * 8
    assert box_of(jnp.arange(8) * (reach // 7)) == ((0, 7 * (reach // 7)),)
    assert box_of(jnp.arange(8) * (reach // 7 + 10)) is None
    assert jax.jit(lambda x: jnp.int32(box_of(x) is None))(grid) == 1
    assert jax.jit(lambda x: jnp.int32(box_of(grid_positions(2, 2)) == ((0, 1), (0, 1))))(0) == 1


@pytest.mark.parametrize(
    ("hook", "takes_floats"),
    [
        (lambda p, r: -p["a"] * jnp.abs(r).astype(jnp.float32), True),
        (lambda p, r: p["a"] * jnp.where(jnp.maximum(-r, 0) > 9, 2.0, 1.0), True),
        (lambda p, r: p["a"] * (r % 3).astype(jnp.float32), False),
        (lambda p, r: p["a"] * (r * r).astype(jnp.float32), False),
        (lambda p, r: p["a"] * (r == jnp.abs(r)).astype(jnp.float32), False),
        (lambda p, r: p["a"] * (r < 2**25).astype(jnp.float32), False),
    ],
)
def test_whole_distances_are_floats_only_where_that_changes_nothing(hook, takes_floats):
    params = {"a": jnp.float32(0.7)}
    halves = cut(hook, params, 1, jnp.int32)
    assert halves.takes_floats == takes_floats
    if takes_floats:
        relative = jnp.arange(-30, 30).reshape(4, 15)
        values = [halves.inside(halves.outside(params), (x,)) for x in (relative, relative.astype(jnp.float32))]
        np.testing.assert_array_equal(*values)
