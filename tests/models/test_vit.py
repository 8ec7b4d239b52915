"""The vision transformer: one model for every encoding, and what each of its parts is meant to do."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from pejax import ENCODINGS, Dims, extensions, make_encoding
from pejax._extensions.interpolation import interpolate_positions
from pejax._tokens.positions import grid_positions
from pejax.models import ViT, logical_axes, partition_specs, vit
from pejax.models.networks.vit import images_to_patches
from pejax.models.parts import block as block_module
from pejax.models.stack.layer_scan import drop_factors
from tests.support.biases import types_unchecked
from tests.support.cases import mostly_slow
from tests.support.peers import peer

TINY = {"image_size": 12, "patch": 3, "channels": 2, "classes": 5, "width": 16, "layers": 2, "heads": 2}


def serves_images(name: str) -> bool:
    try:
        make_encoding(name, vit(**TINY).dims)
    except ValueError:
        return False
    return True


def position_leaves(encoding) -> int:
    draw_params = lambda key: (encoding.init(key), encoding.init_layer(key))
    return len(jax.tree.leaves(jax.eval_shape(draw_params, jax.random.key(0))))


IMAGE_ENCODINGS = [name for name in ENCODINGS if serves_images(name)]


PARAMETRIC = [name for name in IMAGE_ENCODINGS if position_leaves(make_encoding(name, vit(**TINY).dims))]

FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""Of a compilation that is run once or twice."""


def make(**options) -> ViT:
    """Make a tiny model, positions as they start, all else arbitrary: nothing is zero, and little is compiled."""
    draw = np.random.default_rng(0)
    static, shapes = nnx.split(nnx.eval_shape(lambda: ViT(vit(**(TINY | options)), rngs=nnx.Rngs(0))))
    fill = lambda leaf: jnp.asarray(draw.normal(size=leaf.shape, scale=0.3), leaf.dtype)
    model = nnx.merge(static, jax.tree.map(fill, shapes))
    start_positions(model)
    return model


def start_positions(model: ViT) -> None:
    encoding, layers = model.encoding, len(model.config.layers)
    draw_params = lambda key: (encoding.init(key), jax.vmap(encoding.init_layer)(jax.random.split(key, layers)))
    if position_leaves(encoding):
        drawn = jax.jit(draw_params, compiler_options=FAST)(jax.random.key(0))
        variables = (model.position, model.layers.blocks.attention.position)
        is_variable = lambda node: isinstance(node, nnx.Variable)
        jax.tree.map(lambda variable, value: variable.set_value(value), variables, drawn, is_leaf=is_variable)


@functools.partial(jax.jit, static_argnames=("static", "extent", "train"), compiler_options=FAST)
def _logits(static, params, images, positions, key, *, extent, train):
    return nnx.merge(static, params)(images, positions=positions, extent=extent, train=train, key=key)


def run(model: ViT, images, positions=None, key=None, *, extent=None, train=False) -> jax.Array:
    """Return the logits; models of equal configs share a compilation."""
    return _logits(*nnx.split(model), images, positions, key, extent=extent, train=train)


def draw_images(batch: int = 2, height: int = 12, width: int = 12, channels: int = 2) -> jax.Array:
    return jax.random.normal(jax.random.key(3), (batch, height, width, channels))


def by_path(tree) -> dict[str, jax.Array]:
    leaves = jax.tree_util.tree_leaves_with_path(nnx.to_pure_dict(tree))
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}


def raises_one_line(call, *parts: str) -> None:
    with pytest.raises(ValueError, match=re.escape(parts[0])) as error:
        call()
    text = str(error.value)
    assert "\n" not in text
    for part in parts:
        assert part in text, text


# One model for every encoding


def test_every_encoding_of_the_sources_serves_images():
    named = {"none", "sinusoidal", "learned", "shaw", "t5", "transformer_xl", "kerple", "fire", "alibi"}
    assert named | {"rope", "rope_axial", "rope_mixed"} <= set(IMAGE_ENCODINGS)


@pytest.mark.slow
@pytest.mark.parametrize("pe", mostly_slow(IMAGE_ENCODINGS, ("learned", "shaw")))
def test_other_sizes_work_and_a_shift_of_all_patches_changes_what_it_should(pe):
    rotary = make_encoding(pe, vit(**TINY).dims).rotate is not None
    # A token without position is not turned, so it sees where turned ones are: rotary models need a mean pool here.
    prefix = {"pool": "mean"} if rotary else {"pool": "cls", "registers": 2}
    model, images = make(pe=pe, **prefix), draw_images(2, 18, 12)
    here, there = (run(model, images, grid_positions(6, 4) + jnp.array(c), extent=(9, 9)) for c in ((0, 0), (3, 5)))
    assert here.shape == (2, 5)
    assert here.dtype == jnp.float32
    assert bool(jnp.isfinite(here).all())
    change = float(jnp.abs(there - here).max() / jnp.abs(here).max())
    assert change < 1e-5 if model.encoding.shift_invariant else change > 5e-5, change


def with_gradients() -> list:
    """Return the encodings that have parameters; one of them is in every run."""
    quick = ("rope_mixed",)
    return [pytest.param(pe, marks=() if pe in quick else pytest.mark.slow) for pe in PARAMETRIC]


@pytest.mark.slow
@pytest.mark.parametrize("pe", with_gradients())
def test_gradients_reach_every_parameter_of_every_layer(pe):
    # A bias has no part in what CLS sees, and CLS is all that is read of the last layer.
    pool = "cls" if pe in ("learned", "rope_mixed") else "mean"
    model = make(pe=pe, registers=1, layer_scale=0.5, kv_heads=1, pool=pool)
    static, params = nnx.split(model)
    images = draw_images()
    loss = lambda p: jnp.square(nnx.merge(static, p)(images)).sum()
    gradients = by_path(jax.jit(jax.grad(loss), compiler_options=FAST)(params))
    for path, gradient in gradients.items():
        stacked = path.startswith("['layers']")
        for layer in gradient if stacked else [gradient]:
            assert bool(jnp.isfinite(layer).all()), path
            assert float(jnp.abs(layer).max()) > 0, path
    assert sum("position" in path for path in gradients) == position_leaves(model.encoding)


@pytest.mark.slow
def test_all_else_is_the_same_for_every_encoding():
    def rest(pe: str) -> dict[str, jax.Array]:
        drawn = jax.jit(lambda: nnx.state(ViT(vit(**TINY, pe=pe), rngs=nnx.Rngs(0))), compiler_options=FAST)()
        return {path: leaf for path, leaf in by_path(drawn).items() if "position" not in path}

    one = rest("none")
    for pe in ("learned", "shaw"):
        other = rest(pe)
        assert one.keys() == other.keys()
        for path in one:
            np.testing.assert_array_equal(one[path], other[path], err_msg=path)


@pytest.mark.slow
def test_positions_of_each_image_may_differ():
    model, images = make(pe="rope_axial"), draw_images()
    positions = jnp.stack([grid_positions(4, 4), 2 * grid_positions(4, 4)])
    together = run(model, images, positions)
    for i in range(2):
        np.testing.assert_allclose(together[i], run(model, images[i : i + 1], positions[i])[0], rtol=1e-4)


@pytest.mark.slow
def test_the_grid_comes_from_the_image_and_may_be_overridden():
    model, images = make(pe="sinusoidal"), draw_images(1, 24, 12)
    default = run(model, images)
    np.testing.assert_allclose(default, run(model, images, grid_positions(8, 4), extent=(8, 4)), rtol=1e-5)
    squeezed = interpolate_positions(grid_positions(8, 4), (4, 4), (8, 4))
    assert float(jnp.abs(run(model, images, squeezed, extent=(4, 4)) - default).max()) > 1e-3


@pytest.mark.slow
def test_an_extension_of_the_config_extends_the_encoding():
    images = draw_images(2, 24, 24)
    trained = make(pe="rope_axial")
    extended = make(pe="rope_axial", extend=extensions.pi(proportional=False))
    interpolated = interpolate_positions(grid_positions(8, 8), (4, 4), (8, 8))
    np.testing.assert_allclose(extended(images), trained(images, positions=interpolated), atol=1e-5)
    assert not np.allclose(extended(images), trained(images), atol=1e-4)


@pytest.mark.slow
def test_without_positions_patches_are_a_set():
    images, order = draw_images(), jax.random.permutation(jax.random.key(5), 16)
    patches = images_to_patches(images, 3)[:, order]
    shuffled = patches.reshape(2, 4, 4, 3, 3, 2).swapaxes(2, 3).reshape(images.shape)
    for pe, ordered in (("none", False), ("rope_mixed", True)):
        model = make(pe=pe, pool="mean")
        difference = float(jnp.abs(run(model, shuffled) - run(model, images)).max())
        assert (difference > 1e-3) if ordered else (difference < 1e-4), (pe, difference)


# Parts


@pytest.mark.slow
def test_patch_embedding_is_a_strided_convolution():
    model, images = make(), draw_images(2, 6, 9)
    kernel = model.patch.kernel[...].reshape(3, 3, 2, 16)
    layout = ("NHWC", "HWIO", "NHWC")
    convolved = jax.lax.conv_general_dilated(images, kernel, (3, 3), "VALID", dimension_numbers=layout)
    convolved += model.patch.bias[...]
    np.testing.assert_allclose(model.patch(images_to_patches(images, 3)), convolved.reshape(2, 6, 16), atol=1e-5)


@pytest.mark.slow
def test_grouped_heads_equal_key_and_value_heads_repeated():
    grouped, full = make(pe="none", heads=4, kv_heads=2), make(pe="none", heads=4)
    for name in ("kernel", "bias"):
        columns = getattr(grouped.layers.blocks.attention.qkv, name)[...]
        parts = columns.reshape(*columns.shape[:-1], 2, 4, 4)  # two key heads: two queries, key, value; D = 4
        q, kv = parts[..., :2, :].reshape(*columns.shape[:-1], 4, 1, 4), jnp.repeat(parts[..., 2:, :], 2, axis=-3)
        columns_of_qkv = jnp.concatenate([q, kv], axis=-2).reshape(*columns.shape[:-1], 48)
        getattr(full.layers.blocks.attention.qkv, name)[...] = columns_of_qkv
    full.layers.blocks.attention.out = grouped.layers.blocks.attention.out
    full.layers.blocks.mlp = grouped.layers.blocks.mlp
    for name in ("norm_attention", "norm_mlp"):
        setattr(full.layers.blocks, name, getattr(grouped.layers.blocks, name))
    for name in ("patch", "cls", "norm", "head"):
        setattr(full, name, getattr(grouped, name))
    np.testing.assert_allclose(run(grouped, draw_images()), run(full, draw_images()), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("pe", ["rope_mixed", "shaw"])
def test_bfloat16_computes_what_float32_does(pe):
    wide, narrow = make(pe=pe), make(pe=pe, dtype="bfloat16")
    assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(narrow))} == {jnp.dtype("float32")}
    images = draw_images(4)
    expected, actual = run(wide, images), run(narrow, images)
    assert actual.dtype == jnp.float32
    difference = float(jnp.abs(actual - expected).max() / jnp.abs(expected).max())
    assert 1e-6 < difference < 0.03, difference
    text = str(jax.make_jaxpr(lambda x: narrow(x))(images))
    operands = r"\w+:bf16\[4,17,16\] \w+:f32\[16,64\] \w+:f32\[64\]\. let\s+\w+:bf16\[16,64\] = convert_element_type"
    summed = r"[^=]*=[^=]*=[^=]*f32\[4,17,64\] = dot_general"
    assert re.search(operands + summed, text)  # the MLP's product, width 16 to 64, on 17 tokens


@pytest.mark.slow
def test_layer_scale_multiplies_each_branch():
    images, plain, scaled = draw_images(), make(), make(layer_scale=1.0)
    assert scaled.layers.blocks.scale_mlp.shape == (2, 16)
    for branch, last in (("attention", "out"), ("mlp", "down")):
        layer = getattr(getattr(scaled.layers.blocks, branch), last)
        factor = getattr(scaled.layers.blocks, f"scale_{branch}")[...]
        layer.kernel[...] /= factor[:, None, :]
        layer.bias[...] /= factor
    for name in ("patch", "cls", "norm", "head"):
        setattr(scaled, name, getattr(plain, name))
    for name in ("norm_attention", "norm_mlp"):
        setattr(scaled.layers.blocks, name, getattr(plain.layers.blocks, name))
    np.testing.assert_allclose(run(scaled, images), run(plain, images), rtol=1e-3)


@pytest.mark.slow
def test_stochastic_depth_keeps_or_scales_whole_examples():
    rates = jnp.asarray([0.0, 0.3])
    factors = np.asarray(drop_factors(jax.random.key(1), rates, 4000))
    assert factors.shape == (2, 2, 4000)
    np.testing.assert_array_equal(factors[0], 1.0)
    np.testing.assert_allclose(np.unique(factors[1]), [0.0, 1 / 0.7], rtol=1e-6)
    assert (np.abs((factors[1] != 0).mean(axis=1) - 0.7) < 0.04).all()  # five standard deviations
    assert (factors[1, 0] != factors[1, 1]).any()


@pytest.mark.slow
def test_stochastic_depth_grows_with_depth_and_is_for_training_only():
    model, images = make(layers=3, stochastic_depth=0.5), draw_images(16)
    assert model.layers.rates == (0.0, 0.25, 0.5)
    np.testing.assert_allclose(run(model, images), run(make(layers=3), images), rtol=1e-5)
    np.testing.assert_array_equal(run(model, images), run(model, images, key=jax.random.key(0)))
    first, again, second = (run(model, images, key=jax.random.key(i), train=True) for i in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    differs = jnp.any(jnp.abs(first - second) > 1e-4, axis=1)
    assert 0 < int(differs.sum()) < 16
    raises_one_line(lambda: model(images, train=True), "stochastic_depth=0.5", "key", "None")


@pytest.mark.slow
def test_the_first_layer_is_never_dropped():
    model, images = make(layers=1, stochastic_depth=0.9), draw_images(8)
    np.testing.assert_allclose(run(model, images, key=jax.random.key(0), train=True), run(model, images), rtol=1e-5)


@pytest.mark.slow
def test_the_program_does_not_grow_with_depth(monkeypatch):
    calls = []
    once = block_module.Block.__call__
    monkeypatch.setattr(block_module.Block, "__call__", lambda self, *args: calls.append(0) or once(self, *args))

    def count(layers: int) -> tuple[int, int]:
        static, params = nnx.split(make(layers=layers))
        calls.clear()
        loss = lambda p: nnx.merge(static, p)(draw_images()).sum()
        return jax.jit(jax.grad(loss)).trace(params).lower().as_text().count("\n"), len(calls)

    assert count(2) == count(9)
    assert count(2)[1] <= 2


# Initialisation


def spread(leaf: jax.Array) -> float:
    return float(jnp.std(leaf))


@pytest.mark.slow
def test_initial_values_are_those_of_the_recipe():
    config = vit(image_size=64, patch=8, channels=3, width=192, layers=2, heads=4, registers=64, pe="learned")
    model = ViT(config, rngs=nnx.Rngs(0))
    blocks = model.layers.blocks
    for tokens in (model.cls, model.registers, *jax.tree.leaves(nnx.as_pure(model.position))):
        assert abs(spread(tokens[...]) / 0.02 - 1) < 0.2
    patch = model.patch.kernel[...]
    assert abs(spread(patch) * 192**0.5 - 1) < 0.02  # LeCun: variance 1 / (8 · 8 · 3)
    assert float(jnp.abs(patch).max()) * 192**0.5 < 2 / 0.87962566  # cut at two standard deviations of the normal
    for name, layer, fan_in in (
        ("qkv", blocks.attention.qkv, 192),
        ("out", blocks.attention.out, 192),
        ("up", blocks.mlp.up, 192),
        ("down", blocks.mlp.down, 768),
    ):
        bound = fan_in**-0.5
        for leaf in (layer.kernel[...], layer.bias[...]):
            assert 0.97 * bound < float(jnp.abs(leaf).max()) <= bound, name
            assert abs(spread(leaf) / (bound / 3**0.5) - 1) < 0.06, name
        assert float(jnp.abs(layer.kernel[0] - layer.kernel[1]).max()) > 0.5 * bound, name
    for norm in (model.norm, blocks.norm_attention, blocks.norm_mlp):
        assert set(np.unique(norm.scale[...])) == {1.0}
        assert not norm.bias[...].any()
    for zero in (model.patch.bias, model.head.kernel, model.head.bias):
        assert not zero[...].any()
    assert not model(jnp.ones((1, 64, 64, 3))).any()


@pytest.mark.slow
def test_equal_seeds_give_equal_models():
    draw = jax.jit(lambda key: nnx.state(ViT(vit(**TINY), rngs=nnx.Rngs(key))), compiler_options=FAST)
    first, second, other = (by_path(draw(jax.random.key(seed))) for seed in (1, 1, 2))
    for path in first:
        np.testing.assert_array_equal(first[path], second[path])
    assert (first["['cls']"] != other["['cls']"]).all()


# Shardings


def test_names_become_specs_and_no_mesh_axis_is_used_twice():
    params = nnx.state(make(pe="t5"), nnx.Param)
    specs = partition_specs(params, {"embed": "fsdp", "mlp": ("fsdp", "tensor"), "heads": "tensor"})
    blocks = specs["layers"]["blocks"]
    assert blocks["mlp"]["up"]["kernel"].get_value() == PartitionSpec(None, "fsdp", "tensor")
    assert blocks["mlp"]["down"]["kernel"].get_value() == PartitionSpec(None, ("fsdp", "tensor"), None)
    assert blocks["attention"]["qkv"]["kernel"].get_value() == PartitionSpec(None, "fsdp", "tensor")
    per_head = jax.tree.leaves(specs["position"]["heads"], is_leaf=lambda x: isinstance(x, nnx.Variable))
    assert all(leaf.get_value()[0] == "tensor" for leaf in per_head)
    assert logical_axes(params["layers"]["blocks"]["mlp"]["up"]["kernel"]) == ("layers", "embed", "mlp")
    variables = jax.tree.leaves(params, is_leaf=lambda x: isinstance(x, nnx.Variable))
    names = {name for variable in variables for name in logical_axes(variable)}
    assert names == {"layers", "embed", "mlp", "heads", "pixels", "tokens", "classes", None}


@pytest.mark.slow
def test_sharded_parameters_and_images_give_the_same_logits():
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(jax.sharding.AxisType.Auto,) * 3)
    static, params = nnx.split(make(pe="rope_mixed"))
    images = draw_images(4)
    expected = run(nnx.merge(static, params), images)
    specs = partition_specs(params, {"embed": "fsdp", "mlp": "tensor", "heads": "tensor"})
    is_spec = lambda leaf: isinstance(leaf, PartitionSpec)
    shardings = jax.tree.map(functools.partial(NamedSharding, mesh), specs, is_leaf=is_spec)
    split = NamedSharding(mesh, PartitionSpec("data"))
    logits = jax.jit(lambda p, x: nnx.merge(static, p)(x), in_shardings=(shardings, split), out_shardings=split)
    np.testing.assert_allclose(logits(params, images), expected, rtol=1e-4, atol=1e-5)


# Bad input


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"image_size": 13}, ["patch=3", "(13, 13)", "multiples"]),
        ({"image_size": (12, 14)}, ["patch=3", "(12, 14)"]),
        ({"image_size": 0}, ["(0, 0)"]),
        ({"patch": 0}, ["patch", "at least 1", "got 0"]),
        ({"layers": 0}, ["layers", "got 0"]),
        ({"registers": -1}, ["registers", "-1"]),
        ({"heads": 3}, ["heads=3", "width=16"]),
        ({"heads": 4, "kv_heads": 3}, ["kv_heads=3"]),
        ({"stochastic_depth": 1.0}, ["stochastic_depth", "1.0"]),
        ({"pool": "max"}, ["pool", "'max'"]),
        ({"dtype": "float16"}, ["dtype", "'float16'"]),
    ],
)
def test_a_config_that_cannot_be_is_refused(options, parts):
    raises_one_line(lambda: vit(**(TINY | options)), *parts)


def test_an_encoding_that_cannot_be_is_refused():
    raises_one_line(lambda: make(pe="rope_mixt"), "rope_mixt", "rope_mixed")
    raises_one_line(lambda: make(pe="rope_axial", heads=8), "head_dim")


def test_a_record_is_no_spec():
    with pytest.raises(TypeError, match=r"^vit: pe must be a string, a spec .*, got Encoding$"):
        vit(pe=make_encoding("rope", Dims(heads=4, head_dim=8)))


@pytest.mark.slow
def test_images_and_positions_that_do_not_fit_are_refused():
    model = make(pe="none")
    with types_unchecked(), pytest.raises(TypeError, match=r"images must be an array of floats .*, got uint8"):
        model(draw_images().astype(jnp.uint8))
    raises_one_line(lambda: model(draw_images(1, 12, 13)), "patch=3", "(12, 13)")
    raises_one_line(lambda: model(draw_images(channels=3)), "channels=2", "(2, 12, 12, 3)")
    raises_one_line(lambda: model(draw_images(), positions=grid_positions(4, 5)), "(16, 2)", "(20, 2)")
    raises_one_line(lambda: model(draw_images(), positions=jnp.zeros((3, 16, 2))), "(2, 16, 2)", "(3, 16, 2)")


# Numbers of a peer


def transformers_state(model: ViT, torch) -> dict:
    """Return the parameters under the names of `transformers.ViTForImageClassification`."""
    state, blocks, width = {}, model.layers.blocks, model.config.width
    put = lambda name, array: state.update({name: torch.from_numpy(np.array(array))})

    def put_linear(name: str, kernel: jax.Array, bias: jax.Array) -> None:
        put(f"{name}.weight", kernel.T)
        put(f"{name}.bias", bias)

    table = model.position["table_0"][...].reshape(1, -1, width)
    put("vit.embeddings.cls_token", model.cls[...][None])
    put("vit.embeddings.position_embeddings", jnp.pad(table, ((0, 0), (1, 0), (0, 0))))
    kernel = model.patch.kernel[...].reshape(3, 3, 2, width)
    put("vit.embeddings.patch_embeddings.projection.weight", kernel.transpose(3, 2, 0, 1))
    put("vit.embeddings.patch_embeddings.projection.bias", model.patch.bias[...])
    put_linear("classifier", model.head.kernel[...], model.head.bias[...])
    put("vit.layernorm.weight", model.norm.scale[...])
    put("vit.layernorm.bias", model.norm.bias[...])
    for layer in range(len(model.config.layers)):
        name = f"vit.layers.{layer}"
        groups = lambda x: x.reshape(*x.shape[:-1], model.dims.heads, 3, model.dims.head_dim)
        kernel, bias = groups(blocks.attention.qkv.kernel[layer]), groups(blocks.attention.qkv.bias[layer])
        for part, which in enumerate(("q_proj", "k_proj", "v_proj")):
            put_linear(f"{name}.attention.{which}", kernel[:, :, part].reshape(width, -1), bias[:, part].reshape(-1))
        put_linear(f"{name}.attention.o_proj", blocks.attention.out.kernel[layer], blocks.attention.out.bias[layer])
        put_linear(f"{name}.mlp.fc1", blocks.mlp.up.kernel[layer], blocks.mlp.up.bias[layer])
        put_linear(f"{name}.mlp.fc2", blocks.mlp.down.kernel[layer], blocks.mlp.down.bias[layer])
        for theirs, ours in (("layernorm_before", blocks.norm_attention), ("layernorm_after", blocks.norm_mlp)):
            put(f"{name}.{theirs}.weight", ours.scale[layer])
            put(f"{name}.{theirs}.bias", ours.bias[layer])
    return state


@pytest.mark.parity
def test_logits_equal_the_transformers_vit():
    torch, transformers = peer("torch"), peer("transformers")
    model, images = make(pe="learned", kv_heads=2), draw_images()
    theirs = transformers.ViTForImageClassification(
        transformers.ViTConfig(
            hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=12,
            patch_size=3, num_channels=2, num_labels=5, layer_norm_eps=1e-6, hidden_act="gelu",
            attn_implementation="eager",
        )
    ).eval()  # fmt: skip
    theirs.load_state_dict(transformers_state(model, torch))
    with torch.no_grad():
        expected = theirs(torch.from_numpy(np.array(images.transpose(0, 3, 1, 2)))).logits.numpy()
    np.testing.assert_allclose(run(model, images), expected, rtol=1e-5, atol=1e-5)
