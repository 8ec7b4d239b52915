"""Attention split over eight devices is attention on one: every encoding, in value and in every gradient."""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.tree_util import Partial

from pejax import (
    ENCODINGS,
    Dims,
    Hooks,
    Sharding,
    TokenPositions,
    attend,
    dot_product_attention,
    explain_attention,
    init_params,
    packed_positions,
)
from pejax._attention.core.hooks import attention_hooks
from pejax._attention.xla import blockwise, cpu
from pejax._record.encoding import merge_params, rotate_keys, rotate_queries
from pejax.testing import settle
from tests.support.cases import Case, close, mostly_slow, normal, serves, slow
from tests.support.covering import covering, pairs

QUICK = {"xla_backend_optimization_level": 0}
BATCH, TOKENS = 2, 16
AXES = {"data": "batch", "tensor": "heads", "sequence": "sequence"}
SPLITS = {
    "sequence": {"sequence": 4},
    "data x sequence": {"data": 2, "sequence": 4},
    "tensor x sequence": {"tensor": 2, "sequence": 4},
}
METHODS = ("ring", "gather")
ORDERS = ("contiguous", "striped")
WAYS = [*itertools.product(SPLITS, METHODS, ORDERS)]


def on(split, method="ring", **options):
    """Return `dot_product_attention` split over a mesh of these sizes."""
    mesh = jax.make_mesh(tuple(split.values()), tuple(split), axis_types=(AxisType.Auto,) * len(split))
    axes = {AXES[axis]: axis for axis in split}
    return functools.partial(dot_product_attention, sharding=Sharding(mesh, **axes, method=method), **options)


def where(case, order):
    """Return the tokens of a sequence or of a grid; striped: each device has every fourth."""
    place = np.arange(TOKENS) if order == "contiguous" else np.arange(TOKENS).reshape(-1, 4).T.reshape(-1)
    placed, segments = place != 7, np.where(place == 4, 0, np.where(place < 13, 1, 2))
    positions = np.where(placed, place, 0)
    if case.dims.axes == 2:
        positions = np.stack([positions // 4, positions % 4], axis=-1)
    positions, index, segments = (jnp.asarray(x, jnp.int32) for x in (positions, place, segments))
    return TokenPositions(positions, index, jnp.asarray(placed), segments)


def side_by_side(run, attends, arguments):
    """Return the gradients of `run(attend, *arguments)`, and what else it returns, for each attention; one program."""
    slopes = [jax.grad(functools.partial(run, attend), range(len(arguments)), has_aux=True) for attend in attends]
    return jax.jit(lambda *arguments: [item(*arguments) for item in slopes], compiler_options=QUICK)(*arguments)


def layers(attends, case, order):
    """Return what a layer gives and the gradients of everything that has one, for each attention."""
    dims, encoding, tokens = case.dims, case.encoding, where(case, order)
    shapes = [(BATCH, TOKENS, heads, dims.head_dim) for heads in (dims.heads, dims.kv_heads, dims.kv_heads)]

    def run(attend, q, k, v, params):
        settled = settle(encoding, params, dims)
        q = rotate_queries(encoding, settled, q, tokens.positions)
        k = rotate_keys(encoding, settled, k, tokens.positions)
        hooks = attention_hooks(encoding, settled, rotated=True, embedded=True)
        options = {"causal": dims.causal, "scale": dims.scale, "return_lse": True}
        out, lse = attend(q, k, v, positions=tokens, hooks=hooks, **options)
        seen = jnp.where(jnp.isneginf(lse), 0.0, lse)
        return jnp.sum(normal(*out.shape, seed=9) * out) + jnp.sum(normal(*lse.shape, seed=8) * seen), (out, lse)

    arrays = [normal(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    drawn = lambda key: merge_params(encoding.init(key), encoding.init_layer(key))
    params = jax.tree.map(lambda leaf: 0.2 + 0.1 * normal(*leaf.shape), jax.eval_shape(drawn, jax.random.key(0)))
    return side_by_side(run, attends, (*arrays, params))


SETTINGS = ("causal", "image", "sequence")
PLACES = [place for place in itertools.product(ENCODINGS, SETTINGS) if serves(*place)]
ROWS = [(*place, *way) for place, way in itertools.product(PLACES, WAYS)]


def met(row):
    """Return what a row tries together: two of encoding, setting, split, method and order, and all but the encoding."""
    return {*pairs(row), row[1:]}


def cases():
    """Return every row: those of a covering choice for `-m slow`, the others for `-m long`."""
    chosen = covering(ROWS, met)
    for spec, setting, *way in ROWS:
        mark = pytest.mark.slow if (spec, setting, *way) in chosen else pytest.mark.long
        yield pytest.param(Case(spec, setting), tuple(way), marks=mark, id=f"{spec}-{setting}-{'-'.join(way)}")


def test_the_slow_cases_meet_all_pairs_and_each_way_of_each_setting_and_the_others_are_long():
    rows = {"slow": [], "long": []}
    for param in cases():
        (mark,), (case, way) = param.marks, param.values
        rows[mark.name].append((case.spec, case.setting, *way))
    assert sorted(rows["slow"] + rows["long"]) == sorted((*place, *way) for place in PLACES for way in WAYS)
    for columns in [*itertools.combinations(range(5), 2), range(1, 5)]:
        values, all_values = (
            {tuple(row[column] for column in columns) for row in some} for some in (rows["slow"], ROWS)
        )
        assert values == all_values, columns


@pytest.mark.parametrize(("case", "way"), [*cases()])
def test_every_encoding_on_many_devices_is_that_of_one(case, way):
    split, method, order = way
    (slopes, seen), (expected, same) = layers((on(SPLITS[split], method), dot_product_attention), case, order)
    close((slopes[:3], seen), (expected[:3], same), 1e-5)
    close(slopes[3], expected[3], 5e-5)  # sums over all pairs, which cancel


def tilted(p, q, k, q_positions, k_positions):
    """A bias that reads q, parameters of both kinds and positions of float type."""
    distance = (k_positions[None] - q_positions[:, None]).astype(jnp.float32)
    return p["slope"] * jnp.tanh(distance) + p["mix"] * (q @ p["matrix"])[:, None]


def ramp(p, weights, q_positions, k_positions):
    """Values that are linear in the weights."""
    distance = (k_positions[None] - q_positions[:, None]).astype(jnp.float32)
    return (weights * distance).sum(1)[:, None] * p["vector"][None]


D = 4
OPTIONS = {
    "causal": {"causal": True, "window": 5, "soft_cap": 2.0, "scale": 0.7, "dropout": 0.4, "values": True},
    "cross": {"s": 8, "distance_range": (1, 9), "dropout": 0.2, "blind": True},
}


def toys(attends, options):
    """Return output, log-sum-exp and every gradient for each attention; each sequence has its own tokens."""
    rng = np.random.default_rng(0)
    options = {"s": 12, "values": False, "blind": False, **options}
    t, s, values, blind = 12, options.pop("s"), options.pop("values"), options.pop("blind")
    options["dropout"] = (jax.random.key(3), options["dropout"])
    q, k, v = normal(4, t, 4, D), normal(4, s, 2, D, seed=1), normal(4, s, 2, D, seed=2)
    heads = {"slope": normal(4, seed=3), "matrix": normal(4, D, seed=4)}
    params = {"bias": {"heads": heads, "all": {"mix": jnp.float32(0.3)}}, "values": {"all": {"vector": normal(D)}}}

    def side(length):
        segments = rng.integers(0 if blind else 1, 3, (4, length))
        return TokenPositions(normal(4, length, seed=length), jnp.asarray(rng.permutation(length), jnp.int32), None,
                      jnp.asarray(segments, jnp.int32))  # fmt: skip

    q_tokens, k_tokens = side(t), side(s)

    def run(attend, q, k, v, params, q_positions, k_positions):
        own = Partial(ramp, params["values"]) if values else None
        hooks = Hooks(bias=Partial(tilted, params["bias"]), relative_values=own)
        tokens = {
            "positions": q_tokens._replace(positions=q_positions),
            "k_positions": k_tokens._replace(positions=k_positions),
        }
        out, lse = attend(q, k, v, **tokens, hooks=hooks, **options, return_lse=True)
        return jnp.sum(jnp.sin(out)) + jnp.sum(jnp.cos(jnp.where(jnp.isneginf(lse), 0.0, lse))), (out, lse)

    return side_by_side(run, attends, (q, k, v, params, q_tokens.positions, k_tokens.positions))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "method"), [slow("causal", "ring"), ("cross", "ring"), slow("cross", "gather")])
def test_every_option_on_many_devices_is_that_of_one(name, method):
    split = {"tensor": 2, "sequence": 4} if name == "cross" else {"data": 2, "tensor": 2, "sequence": 2}
    got, want = toys((on(split, method), dot_product_attention), OPTIONS[name])
    if "blind" in OPTIONS[name]:
        assert jnp.isneginf(want[1][1]).any()
    close(got, want, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["alibi", "transformer_xl"])  # along diagonals; relative keys
def test_positions_that_are_not_given_count_over_the_whole_sequence(name, method):
    dims = Dims(heads=2, head_dim=D, causal=True)
    encoding = ENCODINGS[name](dims)
    params = jax.tree.map(lambda leaf: leaf + 0.3, init_params(encoding, jax.random.key(0)))
    q, k, v = normal(2, 32, 2, D), normal(2, 32, 2, D, seed=1), normal(2, 32, 2, D, seed=2)

    def run(sharding, q, k, v, params):
        out = attend(encoding, q, k, v, params=params, sharding=sharding, implementation="cpu")
        return jnp.sum(jnp.sin(out)), out

    sharding = on({"sequence": 4}, method).keywords["sharding"]
    got, want = side_by_side(run, (sharding, None), (q, k, v, params))
    close(got, want, 2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("split", [{"data": 2, "tensor": 2}, {"data": 8, "sequence": 1}])
def test_axes_that_are_not_the_sequence(split):
    q, k, v = normal(8, 6, 4, D), normal(8, 6, 2, D, seed=1), normal(8, 6, 2, D, seed=2)
    options = {"positions": jnp.arange(6), "causal": True, "dropout": (jax.random.key(0), 0.5)}
    close(on(split)(q, k, v, **options), dot_product_attention(q, k, v, **options), 1e-5)


def test_the_mesh_in_use_and_axes_together():
    q = normal(4, 6, 4, D)
    options = {"positions": jnp.arange(6), "dropout": (jax.random.key(0), 0.5)}
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "other"), axis_types=(AxisType.Auto,) * 3)
    with jax.set_mesh(mesh):
        out = dot_product_attention(q, q, q, **options, sharding=Sharding(batch=("data", "fsdp")))
    close(out, dot_product_attention(q, q, q, **options), 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("placed", "tensor"), [(True, "Explicit"), (False, "Explicit"), (False, "Auto")])
def test_a_mesh_of_explicit_axes(placed, tensor):
    """What `jax.make_mesh` makes by default: shardings are types there, of every head's own parameters too."""
    kinds = [AxisType.Explicit, AxisType[tensor], AxisType.Explicit]
    mesh = jax.make_mesh((2, 2, 2), tuple(AXES), axis_types=tuple(kinds))
    q, k = normal(4, 6, 4, D), normal(4, 6, 2, D, seed=1)
    heads = {"slope": normal(4, seed=3), "matrix": normal(4, D, seed=4)}
    params = {"heads": heads, "all": {"mix": jnp.float32(0.3)}}

    def run(attend, q, k, params):
        out = attend(q, k, k, positions=jnp.arange(6), causal=True, hooks=Hooks(bias=Partial(tilted, params)))
        return jnp.sum(jnp.sin(out)), out

    sharding = Sharding(mesh, **{AXES[axis]: axis for axis in AXES})
    split = functools.partial(dot_product_attention, sharding=sharding)
    (want,) = side_by_side(run, [dot_product_attention], (q, k, params))
    if placed:
        q, k = jax.device_put((q, k), NamedSharding(mesh, PartitionSpec("data", "sequence", "tensor")))
    (got,) = side_by_side(run, [split], (q, k, params))
    close(got, want, 1e-5)


@pytest.mark.slow
def test_no_batch_and_nothing_at_all():
    q, tokens = normal(8, 2, D), jnp.arange(8)
    close(on({"sequence": 4})(q, q, q, positions=tokens), dot_product_attention(q, q, q, positions=tokens), 1e-5)
    none = on({"sequence": 4})(q, q[:0], q[:0], positions=tokens, k_positions=tokens[:0], return_lse=True)
    assert (none[0] == 0).all()
    assert (none[1] == -jnp.inf).all()


@pytest.mark.slow
def test_a_ring_in_half_precision():
    q = normal(1, 16, 2, D).astype(jnp.bfloat16)

    @functools.partial(jax.jit, static_argnums=0, compiler_options=QUICK)
    def run(attend, q):
        out, pull = jax.vjp(lambda q: attend(q, q, q, positions=jnp.arange(16), causal=True), q)
        return out, *pull(out)

    got, want = run(on({"sequence": 4}), q), run(dot_product_attention, q.astype(jnp.float32))
    assert {x.dtype for x in got} == {jnp.dtype(jnp.bfloat16)}
    close(tuple(x.astype(jnp.float32) for x in got), want, 3e-2)


@pytest.mark.slow
def test_memory_of_a_ring_is_that_of_a_share(monkeypatch):
    monkeypatch.setattr(blockwise, "BLOCK", 64)

    def temporary(length, devices):
        call = on({"sequence": devices}, causal=True, implementation="blockwise")
        loss = lambda q, k, v: call(q, k, v, positions=jnp.arange(length)).sum()
        shapes = [jax.ShapeDtypeStruct((1, length, 1, 16), jnp.float32)] * 3
        program = jax.jit(jax.grad(loss, argnums=(0, 1, 2)), compiler_options=QUICK).lower(*shapes).compile()
        return program.memory_analysis().temp_size_in_bytes

    assert temporary(4096, 8) < 1.1 * temporary(1024, 2)


REFUSED = {
    "mesh must be given, or be in use by jax.set_mesh, got None": {"mesh": None},
    "axes must be among those of the mesh, ('data', 'sequence'), got 'tensor'": {"heads": "tensor"},
    "batch, heads and sequence must be different axes of the mesh, got 'data' twice": {"batch": ("data", "data")},
    "method must be one of ring, gather, got 'tree'": {"method": "tree"},
    "the batch must be a multiple of the 4 devices of ('sequence',), got 2": {"batch": "sequence"},
    "k's heads must be a multiple of the 2 devices of ('data',), got 1": {"heads": "data"},
    "T must be a multiple of the 4 devices of ('sequence',), got 6": {"sequence": "sequence"},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_split_is_refused(message):
    mesh = jax.make_mesh((2, 4), ("data", "sequence"), axis_types=(AxisType.Auto,) * 2)
    q, k = normal(2, 6, 2, D), normal(2, 6, 1, D)
    split = lambda: dot_product_attention(
        q, k, k, positions=jnp.arange(6), sharding=Sharding(**{"mesh": mesh, **REFUSED[message]})
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        split()


@pytest.mark.parametrize(("cores", "tile"), [(2, 256), (3, 512)])
def test_tiles_are_small_where_each_device_has_a_core(cores, tile, monkeypatch):
    """Also right after the same shapes were traced for a device that has all cores, and the other way round."""
    monkeypatch.setattr(cpu, "cores", lambda: cores)
    q, positions = jnp.zeros((1, 1024, 2, 8 * cores)), jnp.arange(1024)  # traced for no other number of cores
    split = on({"tensor": 2})

    def tiles(attend, q):
        run = lambda q: attend(q, q, q, positions=positions, implementation="cpu")
        return set(re.findall(r"f32\[(256,256|512,512)\]", str(jax.make_jaxpr(run)(q))))

    result = [tiles(dot_product_attention, q[:, :, :1]), tiles(split, q), tiles(dot_product_attention, q[:, :, :1])]
    assert result == [{"512,512"}, {f"{tile},{tile}"}, {"512,512"}]


def test_attention_says_what_to_use_for_explicit_axes():
    mesh = jax.make_mesh((2, 2), ("data", "model"))
    q = jax.device_put(jnp.ones((2, 4, 2, 8)), NamedSharding(mesh, PartitionSpec("data", None, "model")))
    with (
        jax.set_mesh(mesh),
        pytest.raises(ValueError, match=r"explicit mesh axes.*give a Sharding.*AxisType.Auto"),
    ):
        dot_product_attention(q, q, q, positions=jnp.arange(4))


ID_AXES = [(), ("data",), ("sequence",), ("data", "sequence")]


@pytest.mark.slow
@pytest.mark.parametrize("axes", mostly_slow(ID_AXES, ID_AXES[3:]), ids=str)
def test_packed_positions_of_ids_that_explicit_axes_split(axes):
    mesh = jax.make_mesh((2, 4), ("data", "sequence"))
    ids = jnp.asarray([[1] * 7 + [2] * 6 + [0] * 3, [3, 5] * 8], jnp.int32)
    spec = PartitionSpec(*(axis if axis in axes else None for axis in ("data", "sequence")))
    placed, want = jax.device_put(ids, NamedSharding(mesh, spec)), packed_positions(ids)
    for run in (packed_positions, jax.jit(packed_positions)):
        tokens = run(placed)
        assert tokens.positions.sharding.spec == spec
        close(tokens, want, 0)
    q = normal(2, 16, 2, D)
    split = Sharding(mesh, batch="data", sequence="sequence")
    close(
        dot_product_attention(q, q, q, positions=tokens, sharding=split),
        dot_product_attention(q, q, q, positions=want),
        1e-5,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["alibi", slow("rope"), slow("t5")])
def test_a_batch_that_automatic_axes_split_stays_where_it_is(name):
    """Long enough for tiles; on a CPU the loop over batch and heads would gather all of it."""
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
    encoding = ENCODINGS[name](Dims(heads=2, head_dim=D, causal=True))
    params, split = init_params(encoding, jax.random.key(0)), NamedSharding(mesh, PartitionSpec("data"))
    arrays = [normal(4, 40, 2, D, seed=seed) for seed in range(3)]

    def step(*arrays):
        loss = lambda *arrays: (jnp.sum(jnp.sin(out := attend(encoding, *arrays, params=params))), out)
        return jax.grad(loss, (0, 1, 2), has_aux=True)(*arrays)

    run = jax.jit(step, compiler_options=QUICK).lower(*jax.device_put(arrays, split)).compile()
    assert not re.search("all-gather|all-to-all|collective-permute", run.as_text())
    result = run(*jax.device_put(arrays, split))
    assert {x.sharding.spec[0] for x in jax.tree.leaves(result)} == {"data"}
    close(result, jax.jit(step, compiler_options=QUICK)(*arrays), 2e-5)


def test_an_explanation_says_that_the_cpu_gathers_over_automatic_axes():
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    q = jax.ShapeDtypeStruct((2, 4, 2, 8), jnp.float32)
    with jax.set_mesh(mesh):
        said = explain_attention(q, q, q, positions=jnp.arange(4), implementation="cpu")
    assert "cpu: runs, but gathers arrays that are split over the mesh: give a Sharding" in said
    assert "cpu: runs\n" in explain_attention(q, q, q, positions=jnp.arange(4), implementation="cpu")
    gpu = explain_attention(q, q, q, positions=jnp.arange(4), implementation="gpu")
    assert "gpu: runs interpreted, for tests: this is not a GPU" in gpu


@pytest.mark.slow
@pytest.mark.parametrize("implementation", [None, *map(slow, ("reference", "dense", "blockwise", "cpu"))])
@pytest.mark.parametrize("name", ["alibi", *map(slow, ("shaw", "rope", "t5", "fire", "transformer_xl", "lookhere"))])
def test_inside_a_shard_map_of_the_user_with_its_checks(name, implementation):
    """Gradients of parameters that all devices share are summed over the devices by JAX."""
    mesh = jax.make_mesh((2, 2), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)
    encoding = ENCODINGS[name](Dims(heads=2, head_dim=D, kv_heads=1, causal=True))
    params = jax.tree.map(lambda leaf: leaf + 0.3, init_params(encoding, jax.random.key(0)))
    q, k, v = normal(2, 40, 4, D), normal(2, 40, 2, D, seed=1), normal(2, 40, 2, D, seed=2)
    split, replicated = PartitionSpec("data", None, "tensor"), jax.tree.map(lambda _: PartitionSpec(), params)

    def one(q, k, v, params):
        return attend(encoding, q, k, v, params=params, implementation=implementation)

    def halves(q, k, v, params):
        heads = lambda x: jnp.split(x, 2, axis=2)
        return jnp.concatenate([one(*three, params) for three in zip(*map(heads, (q, k, v)), strict=True)], axis=2)

    def step(attend):
        loss = lambda *operands: (jnp.sum(jnp.sin(result := attend(*operands))), result)
        return jax.jit(jax.grad(loss, (0, 1, 2, 3), has_aux=True), compiler_options=QUICK)(q, k, v, params)

    sharded = jax.shard_map(one, mesh=mesh, in_specs=(split, split, split, replicated), out_specs=split)
    close(step(sharded), step(halves), 2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["gpu", slow("tpu")])
def test_interpreted_kernels_in_a_shard_map_with_its_checks_are_refused(implementation):
    mesh, q = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,)), normal(2, 16, 2, D)
    one = functools.partial(dot_product_attention, implementation=implementation)
    run = lambda q, **options: jax.shard_map(
        lambda q: one(q, q, q), mesh=mesh, in_specs=PartitionSpec("data"), out_specs=PartitionSpec("data"), **options
    )(q)
    with pytest.raises(NotImplementedError, match=rf"{implementation}: not on a .* check_vma=False alone"):
        run(q)
    close(run(q, check_vma=False), dot_product_attention(q, q, q), 1e-5)
