"""Position interpolation of every encoding is its hooks at squeezed positions; Self-Extend, ReRoPE."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pejax import ENCODINGS, Dims, Encoding, adapt, make_encoding
from pejax._extensions.interpolation import interpolate_encoding
from pejax._extensions.self_extend import clip_distances, group_positions
from pejax._record.encoding import Band, split_params
from pejax.testing import assert_shift_invariant, shift_deviation
from tests.support.cases import Case, close, draw, normal, serves
from tests.support.decoders import FAST

FARTHER = {"causal": 96, "image": (24, 4)}
"""Extents beyond the trained 24 and (6, 4); what they squeeze by is exact."""
FACTORS = {"causal": np.float32(0.25), "image": np.float32([0.25, 1.0])}
QUICK = ("alibi", "learned", "rope_axial", "shaw")
"""Encodings that are squeezed in every run; `-m slow` squeezes all."""
CASES = [
    pytest.param(Case(name, setting), marks=() if name in QUICK and setting == "causal" else pytest.mark.slow)
    for name in ENCODINGS
    for setting in FARTHER
    if serves(name, setting)
]
X = jnp.zeros(())
"""For hooks that look at positions alone."""
ROPE = Dims(heads=2, head_dim=4, extent=16, causal=True)
HOOKS = ("embed", "rotate", "rotate_keys", "bias", "relative_values", "distance_bias")


def hooks(encoding: Encoding, params, dims: Dims, positions) -> dict:
    """Return what every hook makes of random tokens at these positions; `params` have been through `adapt`."""
    shared, heads = split_params(params)
    x, q, k = normal(5, dims.width), normal(5, dims.heads, dims.head_dim), normal(5, dims.kv_heads, dims.head_dim)
    weights, relative = jax.nn.softmax(normal(5, 5)), positions[::-1] - positions

    def of_heads(hook, *operands):
        return jax.vmap(lambda item: hook({**shared, **item}, *operands), axis_size=dims.heads)(heads)

    result = {}
    for name, operands in (("embed", (x,)), ("rotate", (q,)), ("rotate_keys", (k,))):
        if getattr(encoding, name) is not None:
            result[name] = getattr(encoding, name)(params, *operands, positions)
    for name, operands in (
        ("bias", (q[:, 0], k[:, 0], positions, positions)),
        ("relative_values", (weights, positions, positions)),
        ("distance_bias", (relative,)),
    ):
        if getattr(encoding, name) is not None:
            result[name] = of_heads(getattr(encoding, name), *operands)
    return result


@functools.partial(jax.jit, static_argnames=("encoding", "dims"), compiler_options=FAST)
def run(encoding: Encoding, dims: Dims, params, positions) -> dict:
    return hooks(encoding, params, dims, positions)


def settled(encoding: Encoding, params, extent):
    return adapt(encoding, params, extent)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_hook_sees_the_positions_squeezed_and_up_to_the_trained_extent_nothing_changes(case):
    encoding, dims, params = case.encoding, case.dims, case.params
    squeezed, positions = interpolate_encoding(encoding, dims), draw(case, 5, reach=1)
    scaled = positions.astype(jnp.float32) * FACTORS[case.setting]
    expected = run(encoding, dims, settled(encoding, params, dims.extent), scaled)
    result = run(squeezed, dims, squeezed.adapt(params, FARTHER[case.setting]), positions)
    assert set(result) == {name for name in HOOKS if getattr(encoding, name) is not None}
    close(result, expected, 1e-6)
    jax.tree.map(
        np.testing.assert_array_equal, squeezed.adapt(params, dims.extent), settled(encoding, params, dims.extent)
    )
    if case.setting == "causal":
        at = jax.jit(squeezed.adapt)
        close(run(squeezed, dims, at(params, jnp.asarray(96, jnp.int32)), positions), expected, 1e-6)
        plain = run(encoding, dims, settled(encoding, params, 24), positions.astype(jnp.float32))
        close(run(squeezed, dims, at(params, jnp.asarray(17, jnp.int32)), positions), plain, 1e-6)
        for name, item in plain.items():
            pair = (np.nan_to_num(np.asarray(x), neginf=-1e9) for x in (item, result[name]))  # hidden keys
            assert np.abs(np.subtract(*pair)).max() > 1e-3, "squeezing shows"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in ENCODINGS
             if serves(name, "image")]
)  # fmt: skip
def test_a_smaller_grid_is_stretched_to_the_trained_one(name):
    case = Case(name, "image")  # trained on 6 x 4
    encoding, dims, params = case.encoding, case.dims, case.params
    stretched, positions = interpolate_encoding(encoding, dims, stretch=True), draw(case, 5, reach=1)
    for extent, factor in (((3, 2), (2, 2)), ((24, 2), (0.25, 2))):
        scaled = positions.astype(jnp.float32) * np.float32(factor)
        expected = run(encoding, dims, settled(encoding, params, dims.extent), scaled)
        result = run(stretched, dims, stretched.adapt(params, extent), positions)
        close(result, expected, 1e-6)
    unchanged = stretched.adapt(params, dims.extent), settled(encoding, params, dims.extent)
    jax.tree.map(np.testing.assert_array_equal, *unchanged)


@pytest.mark.parametrize("name", ["rope", "alibi"])
def test_a_sequence_is_not_stretched(name):
    with pytest.raises(ValueError, match=r"pi must have stretch=False on sequences: .*, got stretch=True"):
        make_encoding(name, ROPE, "pi(stretch=True)")


SEEN = Encoding(
    embed=lambda params, x, positions: positions,
    rotate=lambda params, x, positions: positions,
    relative_values=lambda params, weights, q_positions, k_positions: jnp.stack([q_positions, k_positions]),
    distance_bias=lambda params, relative: relative,
)
"""Its hooks return the positions that they get."""


@pytest.mark.parametrize(
    ("trained", "within", "beyond", "factor"),
    [(16, (16, 3), (48, 17), (16 / 48, 16 / 17)), ((4, 6), ((4, 6), (1, 2)), ((8, 6), (3, 9)), ((0.5, 1), (1, 6 / 9)))],
)
def test_positions_are_multiplied_axis_by_axis_or_are_the_very_same(trained, within, beyond, factor):
    axes = len(trained) if isinstance(trained, tuple) else 1
    squeezed = interpolate_encoding(SEEN, Dims(heads=2, head_dim=4, axes=axes, extent=trained))
    positions = jnp.arange(2 * axes).reshape((2, axes) if axes > 1 else (2,))
    for extent in within:
        params = {"table": positions}
        assert squeezed.adapt(params, extent) is params
        assert squeezed.embed(params, X, positions) is positions
        assert squeezed.distance_bias(params, positions) is positions
    for extent, by in zip(beyond, factor, strict=True):
        params = squeezed.adapt({"all": {"table": positions}, "heads": {}}, extent)
        expected = np.float32(positions) * np.float32(by)
        assert params["all"]["table"] is positions
        for result in (
            squeezed.embed(params, X, positions),
            squeezed.rotate(params, X, positions),
            *jnp.unstack(squeezed.relative_values(params["all"], X, positions, positions)),
            squeezed.distance_bias(params["all"], positions),
        ):
            np.testing.assert_array_equal(result, expected, strict=True)


@pytest.mark.slow
def test_a_bias_of_the_distance_is_read_at_the_distance_squeezed_not_at_a_difference_of_rounded_positions():
    dims = Dims(heads=2, head_dim=4, extent=24, causal=True)
    encoding = make_encoding("t5", dims, "pi")
    params = encoding.adapt({"heads": {"bias": normal(2, 32)}} | make_encoding("t5", dims).init(jax.random.key(0)), 72)
    shared, heads = split_params(params)
    head_params = {**shared, **jax.tree.map(lambda leaf: leaf[0], heads)}
    positions = jnp.arange(72)
    result = np.asarray(encoding.bias(head_params, normal(72, 4), normal(72, 4), positions, positions))
    plain = make_encoding("t5", dims)
    thirds = plain.distance_bias(head_params, jnp.arange(-23, 24))
    for relative in range(-69, 70, 3):
        np.testing.assert_array_equal(np.diagonal(result, relative), thirds[relative // 3 + 23])


@pytest.mark.slow
def test_squeezing_twice_squeezes_once_and_bands_are_squeezed_too():
    banded = dataclasses.replace(
        SEEN, bands=group_positions(make_encoding("rope", ROPE), ROPE, group=2, window=4).bands
    )
    once = interpolate_encoding(banded, ROPE)
    twice = interpolate_encoding(once, ROPE)
    positions = jnp.arange(0, 32, 2)
    x = normal(16, 2, 4)
    for encoding in (once, twice):
        params = adapt(encoding, {}, 32)
        np.testing.assert_array_equal(encoding.embed(params, X, positions), np.arange(16, dtype=np.float32))
        for band, plain in zip(encoding.bands, banded.bands, strict=True):
            for hook in ("rotate", "rotate_keys"):
                np.testing.assert_array_equal(
                    getattr(band, hook)(params, x, positions), getattr(plain, hook)({}, x, jnp.arange(16.0))
                )


def test_what_cannot_be_squeezed_is_refused():
    with pytest.raises(ValueError, match=r"pi needs the trained length, got dims\.extent=None"):
        interpolate_encoding(SEEN, Dims(heads=2, head_dim=4))
    for trained, extent in ((16, (4, 4)), ((4, 4), 16)):
        axes = len(trained) if isinstance(trained, tuple) else 1
        squeezed = interpolate_encoding(SEEN, Dims(heads=2, head_dim=4, axes=axes, extent=trained))
        with pytest.raises(ValueError, match="extent must have the axes of the trained one"):
            squeezed.adapt({}, extent)


GRID = Dims(heads=2, head_dim=4, axes=2, extent=(4, 4))


@pytest.mark.parametrize(("name", "extend"), [("self_extend", group_positions), ("rerope", clip_distances)])
def test_what_cannot_be_banded_is_refused_in_one_line(name, extend):
    rope = make_encoding("rope", ROPE)
    with pytest.raises(ValueError, match=f"{name} needs an encoding that rotates queries and keys, got one that does"):
        extend(make_encoding("alibi", ROPE), ROPE)
    with pytest.raises(ValueError, match=f"{name} needs an encoding without bands, got one that has 2"):
        extend(clip_distances(rope, ROPE), ROPE)
    for dims in (GRID, Dims(heads=2, head_dim=4, extent=16), Dims(heads=2, head_dim=4, causal=True)):
        encoding = make_encoding("rope_axial", dims) if dims.extent else rope
        with pytest.raises(ValueError, match=f"{name} needs a causal model .*, got causal={dims.causal}, extent="):
            extend(encoding, dims)
    with pytest.raises(ValueError, match=r"window must be at least 1 token, got (None and )?0|and window must be"):
        extend(rope, ROPE, window=0)
    assert make_encoding("rope", ROPE, f"{name}(window=3)").bands[1].low == 3


def test_a_group_is_at_least_one_and_a_window_leaves_room_to_group():
    rope = make_encoding("rope", ROPE)
    with pytest.raises(ValueError, match="group and window must be at least 1 token, got 0 and None"):
        group_positions(rope, ROPE, group=0)
    with pytest.raises(ValueError, match="window must be below the trained length 16, got 16"):
        group_positions(rope, ROPE, window=16)
    assert group_positions(rope, ROPE, group=4, window=16).bands[0].high == 16
    assert [band.low for band in group_positions(rope, ROPE, group=4).bands] == [0, 4]
    assert [band.low for band in clip_distances(rope, ROPE).bands] == [0, 8]


TURNS = Encoding(rotate=lambda params, x, positions: positions)
"""Rotates by returning the positions."""


@pytest.mark.slow
@given(trained=st.integers(2, 40), length=st.integers(1, 400), data=st.data())
def test_the_group_is_the_smallest_that_keeps_far_distances_in_the_trained_range(trained, length, data):
    window = data.draw(st.integers(1, trained - 1))
    dims = Dims(heads=2, head_dim=4, extent=trained, causal=True)
    encoding = group_positions(TURNS, dims, window=window)
    far, positions = encoding.bands[1], jnp.arange(400)

    def farthest(group: int) -> int:
        """Return the largest distance of a far pair, after the turn."""
        params = {"group": jnp.int32(group)}
        queries, keys = (np.asarray(turn(params, X, positions))[:length] for turn in (far.rotate, far.rotate_keys))
        return max((queries[window:] - keys[0]).tolist(), default=0)

    with jax.disable_jit():
        group = int(adapt(encoding, {}, length)["group"])
    assert farthest(group) < trained
    assert group == 1 or farthest(group - 1) >= trained


def test_the_papers_group_where_it_divides_the_window():
    for window, length in ((4, 28), (4, 52), (8, 24), (8, 40)):
        group = -((window - length) // (16 - window))
        assert window % group == 0
        assert int(group_positions(TURNS, ROPE, window=window).adapt({}, length)["group"]) == group


def test_group_one_is_plain_and_far_positions_may_be_fractional():
    rope = make_encoding("rope", ROPE)
    far = group_positions(rope, ROPE, group=1, window=4).bands[1]
    x, positions = normal(12, 2, 4), jnp.arange(12)
    for hook in (far.rotate, far.rotate_keys):
        np.testing.assert_array_equal(hook({}, x, positions), rope.rotate({}, x, positions))
    far = group_positions(TURNS, ROPE, window=4)
    params = far.adapt({}, 28)
    assert int(params["group"]) == 2
    np.testing.assert_array_equal(far.bands[1].rotate(params, X, jnp.asarray([7.5, 9.0])), [3.0 + 2, 4.0 + 2])
    np.testing.assert_array_equal(far.bands[1].rotate_keys(params, X, jnp.asarray([7.5, 9.0])), [3.0, 4.0])


def test_rerope_sees_no_distance_beyond_its_window():
    positions = jnp.arange(30)
    near, far = clip_distances(TURNS, ROPE, window=5).bands
    assert (near.low, near.high, far.low, far.high) == (0, 5, 5, None)
    distances = far.rotate({}, X, positions)[:, None] - far.rotate_keys({}, X, positions)[None]
    np.testing.assert_array_equal(distances, np.full((30, 30), 5))
    np.testing.assert_array_equal(near.rotate({}, X, positions), positions)


@pytest.mark.parametrize("extend", ["self_extend(window=2)", "rerope", "pi"])
def test_temperatures_count_tokens_wherever_they_are_named(extend):
    name = "t5" if extend == "pi" else "rope"
    dims = Dims(heads=2, head_dim=8, extent=8, causal=True)
    assert make_encoding(name, dims, f"log_n+{extend}") is make_encoding(name, dims, f"{extend}+log_n")


@pytest.mark.slow
def test_the_laws_see_every_band():
    dims = Dims(heads=2, head_dim=8, extent=7, causal=True)  # a shift by 7 is no multiple of the group
    assert assert_shift_invariant(make_encoding("rope", dims, "rerope(window=3)"), {}, dims) < 1e-5
    assert shift_deviation(make_encoding("rope", dims, "self_extend(group=2, window=3)"), {}, dims) > 1e-3
    near = Band(0, 3, *[make_encoding("rope", dims).rotate] * 2)
    far = near._replace(low=3, high=None, rotate=lambda params, x, p: x * (1.0 + p[:, None, None].astype(x.dtype)))
    claims = dataclasses.replace(make_encoding("rope", dims), bands=(near, far))
    with pytest.raises(AssertionError):
        assert_shift_invariant(claims, {}, dims)
