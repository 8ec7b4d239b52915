"""Training on a mesh of eight devices is training on one: losses, state as declared, memory, refusals."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec

from pejax import ENCODINGS, grid_positions, models
from pejax.models import Decoder, EncoderDecoder, Execution, ViT
from tests.support.cli import assert_bad_options
from tests.support.decoders import FAST, TEXT_ENCODINGS
from train.devices.mesh import make_mesh, own_rows, parse_mesh, put_batch, require_divisible, training_execution
from train.engine.loop import init_state, make_step, state_shardings
from train.engine.optimizers import make_optimizer
from train.engine.parser import parse
from train.engine.task import recipe
from train.engine.update import Recipe
from train.lm import program as lm
from train.vit import program as vit

STEPS, BATCH = 10, 8
TEXT = (
    "--width=16", "--layers=2", "--heads=4", "--length=16", f"--batch={BATCH}", f"--steps={STEPS}", "--warmup=2",
    "--probe_every=0", "--eval_lengths", "16",
)  # fmt: skip
IMAGES = (
    "--size=28", "--patch=7", "--width=16", "--layers=2", "--heads=4", "--mlp_ratio=2", f"--batch={BATCH}",
    "--epochs=1", "--warmup=0.001", "--stochastic_depth=0.3", "--mixup=0.8", "--cutmix=1.0", "--eval_sizes", "28",
)  # fmt: skip
PROGRAMS = {"text": (lm, TEXT), "images": (vit, IMAGES)}
MESHES = (
    "data=2,fsdp=2,tensor=2", "sequence=8", "fsdp=8", "tensor=4,sequence=2", "data=8", "fsdp=2,tensor=2,sequence=2",
    "data=2,tensor=4", "data=2,fsdp=2,sequence=2",
)  # fmt: skip


@functools.cache
def program(kind: str, *flags: str):
    """Return the task of a run, and its config."""
    module, shape = PROGRAMS[kind]
    config = parse(module.Config, [*shape, *flags])
    return module.make_task(config), config


@functools.cache
def batches(kind: str) -> list:
    """Return the first training batches, which are the same for every encoding."""
    drawn = program(kind, "--pe=none")[0].batches(0, range(BATCH))
    return [next(drawn) for _ in range(STEPS)]


def start(kind: str, mesh, *flags: str):
    """Return the state before the first step, and the step."""
    task, config = program(kind, *flags)
    steps = recipe(config, make_optimizer(config, STEPS, 2)[0], task.sums)
    shardings = state_shardings(task.split, steps, mesh)
    init = functools.partial(init_state, recipe=steps)
    state = jax.jit(init, out_shardings=shardings)(task.split.init(jax.random.key(0), shardings.params))
    loss = functools.partial(task.loss, execution=training_execution(mesh, config.remat))
    return state, make_step(loss, steps, shardings, mesh)


@functools.cache
def losses(kind: str, sizes: str, *flags: str) -> list[float]:
    """Return the mean losses of the first steps."""
    mesh = make_mesh(8 if sizes else 1, sizes)
    state, step = start(kind, mesh, *flags)
    run = step.lower(state, put_batch(batches(kind)[0], mesh)).compile(FAST)
    means, before = [], 0.0
    for batch in batches(kind):
        state = run(state, put_batch(batch, mesh))
        sums = jax.device_get(state.sums)
        means.append((sums["loss"] - before) / sums["count"] * (len(means) + 1))
        before = sums["loss"]
    return means


def cases():
    """Each encoding on two meshes, each mesh with several encodings, text and images."""
    for kind, names in (("text", TEXT_ENCODINGS), ("images", ENCODINGS)):
        for number, pe in enumerate(names):
            for turn in range(2):
                yield pytest.param(kind, pe, MESHES[(3 * number + turn + (kind == "images")) % len(MESHES)])


EVERY = list(cases())
TEXT_HERE, IMAGES_HERE = ([case for case in EVERY if case.values[:2] == (kind, "alibi")] for kind in PROGRAMS)
SLOW_HERE = [pytest.param(*case.values, marks=pytest.mark.slow) for case in (*TEXT_HERE[1:], IMAGES_HERE[0])]
HERE = [TEXT_HERE[0], *SLOW_HERE]
"""The rest is `-m long`."""


def same_losses(kind: str, pe: str, sizes: str) -> None:
    reference, values = (losses(kind, mesh, f"--pe={pe}") for mesh in ("", sizes))
    np.testing.assert_allclose(values, reference, rtol=0, atol=1e-5)
    assert abs(reference[-1] - reference[0]) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "pe", "sizes"), HERE)
def test_eight_devices_train_as_one(kind, pe, sizes):
    same_losses(kind, pe, sizes)


@pytest.mark.long
@pytest.mark.parametrize(("kind", "pe", "sizes"), EVERY)
def test_every_encoding_trains_as_on_one_device(kind, pe, sizes):
    same_losses(kind, pe, sizes)


@pytest.mark.long
@pytest.mark.parametrize("sizes", MESHES)
def test_every_mesh_trains_as_one_device(sizes):
    same_losses("text", "transformer_xl", sizes)


def test_each_encoding_is_on_two_meshes_and_each_mesh_has_some():
    of_encoding = {}
    for kind, pe, sizes in (case.values for case in EVERY):
        of_encoding.setdefault((kind, pe), set()).add(sizes)
    assert all(len(meshes) == 2 for meshes in of_encoding.values())
    assert {sizes for meshes in of_encoding.values() for sizes in meshes} == set(MESHES)


DECLARED = {
    "['embedding']['table']": ("tensor", "fsdp"),
    "['head']['kernel']": ("fsdp", "tensor"),
    "['stack']['layers']['blocks']['attention']['qkv']['kernel']": (None, "fsdp", "tensor"),
    "['stack']['layers']['blocks']['attention']['out']['kernel']": (None, "tensor", "fsdp"),
    "['stack']['layers']['blocks']['mlp']['up']['kernel']": (None, "fsdp", "tensor"),
    "['stack']['layers']['blocks']['mlp']['down']['kernel']": (None, "tensor", "fsdp"),
    "['stack']['layers']['blocks']['norm_mlp']['scale']": (None, "fsdp"),
}


@pytest.mark.slow
def test_parameters_and_optimizer_are_split_as_declared():
    mesh = make_mesh(8, "data=2,fsdp=2,tensor=2")
    state, step = start("text", mesh, "--pe=t5", "--ema=0.9")
    check_split(state, mesh)
    check_split(step(state, put_batch(batches("text")[0], mesh)), mesh)


def check_split(state, mesh) -> None:
    moments = (optax.tree.get(state.opt, name) for name in ("mu", "nu"))
    for tree in (state.params, state.average, *moments):
        leaves = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
        for name, spec in DECLARED.items():
            assert leaves[name].sharding.spec == PartitionSpec(*spec), name
            ways = [1 if axis is None else mesh.shape[axis] for axis in spec]
            share = tuple(size // way for size, way in zip(leaves[name].shape, ways, strict=True))
            assert {shard.data.shape for shard in leaves[name].addressable_shards} == {share}
        (table,) = (leaf for name, leaf in leaves.items() if "position" in name)
        assert table.sharding.spec[0] == "tensor", "heads are the first axis of what each head has for itself"


def test_what_the_devices_do_not_divide_is_whole():
    mesh = make_mesh(8, "data=2,tensor=4")
    specs = state_shardings(program("images", "--pe=alibi")[0].split, Recipe(adamw_none(), ("loss",)), mesh).params
    assert specs["head"]["kernel"].spec == PartitionSpec("fsdp", None), "ten classes on four devices"


def adamw_none():
    return make_optimizer(program("text", "--pe=none")[1], 1, 1)[0]


def test_no_device_ever_holds_all_of_the_parameters():
    """What the compiled initialization puts on one device is one share of the outputs."""
    mesh = make_mesh(8, "fsdp=8")
    split = program("text", "--pe=alibi", "--width=64")[0].split
    shardings = state_shardings(split, Recipe(adamw_none(), ("loss",)), mesh).params
    init = jax.jit(lambda key: split.init(key, shardings)).lower(jax.random.key(0)).compile()
    total = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(split.shapes))
    assert init.memory_analysis().output_size_in_bytes < 0.2 * total


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        ("--accumulate=2",),
        ("--remat=full",),
        ("--remat=products",),
    ],
    ids="=".join,
)
@pytest.mark.parametrize("sizes", ["", "data=2,fsdp=2,tensor=2"])
def test_parts_and_recomputation_change_no_loss(flags, sizes):
    np.testing.assert_allclose(losses("text", sizes, "--pe=alibi", *flags), losses("text", "", "--pe=alibi"), atol=1e-5)


@pytest.mark.slow
def test_accumulation_weighs_parts_by_what_they_count():
    """Two rows of one part have nothing to predict: the gradient is still that of the mean over all tokens."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 256, (BATCH, 17)).astype(np.int32)
    segments = np.ones_like(ids)
    segments[::4, 1:] = 0
    batch, mesh, after = {"ids": ids, "segments": segments}, make_mesh(1), []
    for parts in (1, 8):
        state, step = start("text", mesh, "--pe=alibi", "--lr=0.1", f"--accumulate={parts}")
        for _ in range(3):
            state = step(state, put_batch(batch, mesh))
        after.append(jax.device_get(state.params))
    for other in after[1:]:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-3), after[0], other)


@pytest.mark.slow
def test_the_average_follows_the_weights():
    mesh, decay = make_mesh(1), 0.75
    state, step = start("text", mesh, "--pe=none", f"--ema={decay}")
    average = jax.device_get(state.params)
    for batch in batches("text")[:4]:
        state = step(state, put_batch(batch, mesh))
        now = jax.device_get(state.params)
        average = jax.tree.map(lambda mean, new: decay * mean + (1 - decay) * new, average, now)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), state.average, average)


@pytest.mark.slow
def test_recomputation_takes_less_memory():
    def temporary(remat: str) -> int:
        mesh = make_mesh(1)
        flags = ("--pe=rope", "--layers=4", "--length=256", "--width=64", f"--remat={remat}")
        state, step = start("text", mesh, *flags)
        shape = jax.ShapeDtypeStruct((BATCH, 257), jnp.int32)
        return step.lower(state, {"ids": shape, "segments": shape}).compile().memory_analysis().temp_size_in_bytes

    none, products, full = map(temporary, ("none", "products", "full"))
    assert full < 0.7 * products < 0.7 * none


def test_meshes_are_read():
    assert parse_mesh("fsdp=4, data=2") == {"data": 2, "fsdp": 4, "tensor": 1, "sequence": 1}
    assert make_mesh(4).shape == {"data": 4, "fsdp": 1, "tensor": 1, "sequence": 1}
    assert [make_mesh(batch=batch).size for batch in (16, 12, 6, 5)] == [8, 4, 2, 1]
    assert make_mesh(8, batch=5).size == make_mesh(0, "fsdp=8", batch=5).size == 8  # to be refused by name
    mesh = make_mesh(8, "tensor=4,fsdp=2")
    assert (mesh.shape["tensor"], mesh.shape["fsdp"]) == (4, 2)
    assert own_rows(mesh, 6) == range(6)


def test_what_does_not_divide_is_named():
    mesh = make_mesh(8, "data=2,tensor=2,sequence=2")
    require_divisible(mesh.shape, batch=4, kv_heads=2, length=6)
    for change, message in (
        ({"batch": 3}, "batch must be a multiple of 2, the devices of data x fsdp, got 3"),
        ({"kv_heads": 1}, "key heads must be a multiple of 2, the devices of tensor, got 1"),
        ({"length": 7}, "tokens must be a multiple of 2, the devices of sequence, got 7"),
    ):
        with pytest.raises(ValueError, match=message):
            require_divisible(mesh.shape, **{"batch": 4, "kv_heads": 2, "length": 6, **change})


BAD = {
    "--mesh=data=3": "the product of mesh must be 8 devices, got data=3 = 3",
    "--mesh=model=8": "mesh must be of the axes data, fsdp, tensor, sequence, got 'model'",
    "--mesh=data": "mesh must be AXIS=DEVICES, separated by commas, such as data=4,fsdp=2, got 'data'",
    "--mesh=data=0": "mesh must be AXIS=DEVICES",
    "--mesh=data=2,data=4": "mesh must name an axis once, got data twice",
    "--mesh=tensor=8": "key heads must be a multiple of 8, the devices of tensor, got 4",
    "--accumulate=3": "batch must be a multiple of accumulate=3, got 8",
    "--devices=8 --accumulate=2": "batch must be a multiple of 8, the devices of data x fsdp, got 4",
    "--remat=some": "remat must be one of none, products, full, got 'some'",
    "--ema=1": "ema must be from 0 to below 1, got 1.0",
}


@pytest.mark.parametrize("flag", BAD)
def test_bad_flags_are_one_line(flag, tmp_path, capsys):
    train = lambda out, *flags: lm.main([*TEXT, f"--out={out}", *flags])
    assert_bad_options(capsys, train, tmp_path / "run", flag, BAD[flag])


@pytest.mark.slow
@pytest.mark.parametrize("alone", [True, False])
def test_layers_alone_sum_their_gradients_once(alone):
    """Nothing inside of a loop over layers waits for another device."""
    mesh = make_mesh(8)
    assert training_execution(mesh).local
    task, config = program("text", "--pe=t5")
    steps = recipe(config, make_optimizer(config, STEPS, 2)[0], task.sums)
    shardings = state_shardings(task.split, steps, mesh)
    execution = dataclasses.replace(training_execution(mesh), local=alone)
    step = make_step(functools.partial(task.loss, execution=execution), steps, shardings, mesh)
    state = jax.eval_shape(functools.partial(init_state, recipe=steps), task.split.shapes)
    text = step.lower(state, batches("text")[0]).compile(FAST).as_text()
    loops, once = text.split("\nENTRY ")
    assert once.count(" all-reduce(")
    assert bool(loops.count(" all-reduce(")) == (not alone)


SEGMENTS = np.array([[1] * 5 + [2] * 3, [1] * 8, [1] * 6 + [0] * 2, [1] * 3 + [2] * 5] * 2, np.int32)
IDS = np.random.default_rng(0).integers(0, 11, SEGMENTS.shape, np.int32)


def alone_like_one_device(model, logits) -> None:
    """Compare outputs and all gradients of layers alone on eight devices with those of one device."""
    model.head.kernel[...] = jax.random.normal(jax.random.key(0), model.head.kernel.shape)
    graph, params = nnx.split(model)

    def measured(execution):
        loss = lambda params: jnp.mean(jnp.square(logits(nnx.merge(graph, params), execution)))
        return jax.jit(jax.value_and_grad(loss))(params)

    ours, plain = map(measured, (Execution(make_mesh(8), batch=("data",), local=True), Execution()))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), ours, plain)
    sizes = {jax.tree_util.keystr(path): np.abs(leaf).max() for path, leaf in jax.tree.leaves_with_path(plain[1])}
    assert any(size for name, size in sizes.items() if "position" in name), "the test would not see them change"


@pytest.mark.slow
@pytest.mark.parametrize("lengths", [None, 12, "each"])
def test_layers_alone_have_the_segments_and_lengths_of_their_examples(lengths):
    config = models.decoder(vocab=11, length=8, width=16, layers=2, heads=4, pe="t5", extend="log_n")
    extent = jnp.arange(8, 16) if lengths == "each" else lengths
    model = Decoder(config, rngs=nnx.Rngs(0))
    ids, segments = jnp.asarray(IDS), jnp.asarray(SEGMENTS)
    alone_like_one_device(model, lambda model, on: model(ids, segment_ids=segments, extent=extent, execution=on))


@pytest.mark.slow
@pytest.mark.parametrize("with_places", [True, False])
def test_layers_alone_have_the_places_of_their_examples(with_places):
    config = models.vit(image_size=8, patch=4, channels=1, classes=3, width=16, layers=2, heads=4, pe="rope_mixed")
    images = jax.random.normal(jax.random.key(1), (8, 8, 8, 1))
    places = grid_positions(2, 2) + 3 * jnp.arange(8)[:, None, None] if with_places else None
    model = ViT(config, rngs=nnx.Rngs(0))
    alone_like_one_device(model, lambda model, on: model(images, positions=places, execution=on))


@pytest.mark.slow
def test_layers_alone_look_at_the_encoders_states_of_their_examples():
    config = models.encoder_decoder(
        vocab=11, source_length=8, target_length=8, width=16, pe="t5", extend="log_n", cross="unified"
    )
    model = EncoderDecoder(config, rngs=nnx.Rngs(0))
    ids, sides = jnp.asarray(IDS), dict.fromkeys(("source_segments", "target_segments"), jnp.asarray(SEGMENTS))
    alone_like_one_device(model, lambda model, on: model(ids, ids[::-1], **sides, execution=on))


def test_layers_alone_need_a_mesh_that_splits_the_batch_alone():
    with pytest.raises(
        ValueError, match=r"^local needs a mesh that splits nothing but the batch, got {'data': 4, .*}$"
    ):
        dataclasses.replace(training_execution(make_mesh(8, "data=4,tensor=2")), local=True)
    with pytest.raises(ValueError, match=r"^local needs a mesh that splits nothing but the batch, got {}$"):
        Execution(local=True)
    assert not training_execution(make_mesh(8, "data=2,fsdp=4")).local, "parameters are split too"
