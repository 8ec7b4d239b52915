"""The diffusion transformer: its adaptive norms begin as nothing, time and class count, and any shape fits."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from pejax import grid_positions, make_encoding
from pejax.models import DiT, Execution, LayerConfig, NormConfig, ViT, dit, vit
from pejax.models.networks.dit import patches_to_images
from pejax.models.networks.vit import images_to_patches
from pejax.models.parts.layers import LayerNorm
from tests.support.cases import slow
from train.devices.mesh import make_mesh, training_execution

TINY = {"image_size": 8, "patch": 4, "channels": 1, "classes": 3, "width": 16, "layers": 2, "heads": 2}


def make(**options) -> DiT:
    """Make a tiny model whose parameters are all arbitrary, so that nothing is zero."""
    static, shapes = nnx.split(nnx.eval_shape(lambda: DiT(dit(**(TINY | options)), rngs=nnx.Rngs(0))))
    draw = np.random.default_rng(0)
    return nnx.merge(
        static, jax.tree.map(lambda leaf: jnp.asarray(draw.normal(size=leaf.shape) / 4, leaf.dtype), shapes)
    )


def inputs(height: int = 8, width: int = 8, batch: int = 2):
    images = jax.random.normal(jax.random.key(1), (batch, height, width, 1))
    return images, jnp.linspace(0.1, 0.9, batch), jnp.arange(batch) % 3


def test_patches_are_put_back_where_they_were():
    images = jnp.arange(2 * 8 * 12 * 3.0).reshape(2, 8, 12, 3)
    np.testing.assert_array_equal(patches_to_images(images_to_patches(images, 4), (2, 3), 4), images)


@pytest.mark.slow
def test_before_training_it_returns_zeros_and_its_layers_change_nothing():
    model = DiT(dit(**TINY), rngs=nnx.Rngs(0))
    np.testing.assert_array_equal(model(*inputs()), 0.0)
    model.out.kernel[...] = jnp.ones_like(model.out.kernel[...])
    patches = model.patch(images_to_patches(inputs()[0], 4))
    centered = patches - patches.mean(-1, keepdims=True)
    normed = centered / jnp.sqrt(jnp.mean(centered**2, -1, keepdims=True) + 1e-6)
    expected = patches_to_images(normed @ model.out.kernel[...], (2, 2), 4)
    np.testing.assert_allclose(model(*inputs()), expected, atol=1e-5)


@pytest.mark.slow
def test_a_layer_is_that_of_the_paper():
    """One layer without attention's part, against the formula of adaLN-Zero in NumPy."""
    model = make(layers=1, pe="none")
    model.layers.blocks.attention.out.kernel[...] = jnp.zeros_like(model.layers.blocks.attention.out.kernel[...])
    model.layers.blocks.attention.out.bias[...] = jnp.zeros_like(model.layers.blocks.attention.out.bias[...])
    images, time, labels = inputs()
    condition = np.asarray(model._condition(time, labels), np.float64)
    numbers = jax.tree.map(
        lambda leaf: np.asarray(leaf[0], np.float64), nnx.to_pure_dict(nnx.state(model.layers.blocks))
    )
    silu = lambda x: x / (1 + np.exp(-x))
    norm = lambda x: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    gelu = lambda x: np.asarray(jax.nn.gelu(jnp.asarray(x, jnp.float32), approximate=True), np.float64)
    shift, scale, gate = np.split(
        (silu(condition) @ numbers["modulation"]["kernel"] + numbers["modulation"]["bias"])[:, None], 6, axis=-1
    )[3:]
    x = np.asarray(model.patch(images_to_patches(images, 4)), np.float64)
    up, down = numbers["mlp"]["up"], numbers["mlp"]["down"]
    hidden = gelu((norm(x) * (1 + scale) + shift) @ up["kernel"] + up["bias"])
    x = x + gate * (hidden @ down["kernel"] + down["bias"])
    last = np.asarray(model.modulation.kernel[...], np.float64), np.asarray(model.modulation.bias[...], np.float64)
    shift, scale = np.split((silu(condition) @ last[0] + last[1])[:, None], 2, axis=-1)
    out = (norm(x) * (1 + scale) + shift) @ np.asarray(model.out.kernel[...]) + np.asarray(model.out.bias[...])
    np.testing.assert_allclose(model(images, time, labels), patches_to_images(out, (2, 2), 4), atol=2e-4, rtol=2e-4)


@pytest.mark.slow
def test_time_and_class_count_and_no_class_is_the_last_one():
    model, (images, time, labels) = make(), inputs()
    result = model(images, time, labels)
    assert float(jnp.abs(model(images, time + 0.05, labels) - result).max()) > 1e-3
    assert float(jnp.abs(model(images, time, 2 - labels) - result).max()) > 1e-3
    np.testing.assert_array_equal(model(images, time), model(images, time, jnp.full((2,), 3)))
    np.testing.assert_allclose(model(images[1:], time[1:], labels[1:]), result[1:], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("pe", ["rope_axial", "learned", "sinusoidal", "alibi", slow("cpb"), slow("rope_mixed")])
def test_pictures_of_other_shapes_and_extensions(pe):
    model = make(pe=pe)
    wide = inputs(8, 16)
    assert model(*wide).shape == (2, 8, 16, 1)
    params = nnx.split(model)[1]
    extended = nnx.eval_shape(lambda: DiT(dit(**TINY, pe=pe).extended("pi"), rngs=nnx.Rngs(0)))
    interpolated = nnx.merge(nnx.split(extended)[0], params)
    np.testing.assert_allclose(interpolated(*inputs()), model(*inputs()), atol=1e-5)
    assert float(jnp.abs(interpolated(*wide) - model(*wide)).max()) > 1e-6


@pytest.mark.slow
def test_a_step_of_a_schedule_reaches_every_layer_in_one_program():
    extended = lambda extend: make(pe=f"rope_axial(extend={extend!r})")
    model, traces = extended("by_step(below='ntk(factor=2)', above='linear(factor=4)')"), []

    @jax.jit
    def denoise(step):
        traces.append(step)
        return model(*inputs(12, 12), step=step)

    for step, alone in ((0.0, "ntk(factor=2)"), (1.0, "linear(factor=4)")):
        expected = extended(alone)(*inputs(12, 12))
        np.testing.assert_allclose(denoise(step), expected, atol=1e-5)
        np.testing.assert_allclose(model(*inputs(12, 12), step=step), expected, atol=1e-5)
    assert np.abs(denoise(0.5) - denoise(0.0)).max() > 1e-4
    assert len(traces) == 1
    with pytest.raises(ValueError, match="by_step needs the step of the schedule: params must have a number 'step'"):
        model(*inputs(12, 12))
    with pytest.raises(ValueError, match=r"step must be .*, got float32 \(2,\)"):
        model(*inputs(12, 12), step=jnp.zeros(2))


@pytest.mark.slow
def test_an_encoding_of_ones_own():
    model = DiT(dit(**TINY), make_encoding("rope_axial(base=7)", dit(**TINY).dims), rngs=nnx.Rngs(0))
    assert model(*inputs()).shape == (2, 8, 8, 1)


@pytest.mark.slow
def test_many_devices_compute_as_one():
    model, batch = make(), inputs(batch=4)
    static, params = nnx.split(model)
    run = lambda execution: jax.jit(lambda params, *batch: nnx.merge(static, params)(*batch, execution=execution))
    expected = run(Execution())(params, *batch)
    for sizes in ("data=2", "data=2,tensor=2", "fsdp=2", "sequence=2"):
        count = 4 if "," in sizes else 2
        result = run(training_execution(make_mesh(count, sizes)))(params, *batch)
        np.testing.assert_allclose(result, expected, atol=2e-5)


CLIP = {**TINY, "frames": 3, "width": 24}
"""A tiny model of videos: 3 frames of 2 x 2 patches, in heads of 12 channels, 4 for each axis."""


def clips(frames: int = 3, batch: int = 2):
    videos = jax.random.normal(jax.random.key(2), (batch, frames, 8, 8, 1))
    return videos, jnp.linspace(0.1, 0.9, batch), jnp.arange(batch) % 3


def test_positions_of_patches_are_those_of_the_picture_frame_by_frame():
    assert grid_positions((2, 3, 4)).tolist() == [list(place) for place in np.ndindex(2, 3, 4)]
    assert grid_positions((3, 4)).tolist() == [list(place) for place in np.ndindex(3, 4)]


@pytest.mark.slow
@pytest.mark.parametrize("pe", ["none", "alibi", "rope"])
def test_a_video_of_one_frame_is_the_picture(pe):
    """Also where its first frame is not that of the picture: what counts is the distance in time, which is 0."""
    (images, *conditions), one = inputs(), make(frames=1, pe=pe)
    picture = make(pe=pe)(images, *conditions)
    np.testing.assert_allclose(one(images[:, None], *conditions)[:, 0], picture, atol=1e-5)
    if pe != "rope":
        later = grid_positions((1, 2, 2)) + jnp.array([5, 0, 0])
        np.testing.assert_allclose(one(images[:, None], *conditions, positions=later)[:, 0], picture, atol=1e-5)


@pytest.mark.slow
def test_frames_follow_their_positions_and_the_axes_are_frame_row_column():
    model, (videos, *conditions) = make(**CLIP, pe="rope_axial"), clips()
    result = model(videos, *conditions)
    places = grid_positions((3, 2, 2)).reshape(3, 4, 3)
    back = model(videos[:, ::-1], *conditions, positions=places[::-1].reshape(-1, 3))
    np.testing.assert_allclose(back[:, ::-1], result, atol=1e-5)
    assert float(jnp.abs(model(videos[:, ::-1], *conditions)[:, ::-1] - result).max()) > 1e-3, "time has a direction"
    turned = jnp.swapaxes(videos, 2, 3)
    by_column = model(turned, *conditions)
    assert float(jnp.abs(jnp.swapaxes(by_column, 2, 3) - result).max()) > 1e-3, "rows are not columns"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pe", "extend"),
    [("rope_axial", "pi"), ("rope_axial", "yarn"), ("rope_axial", "riflex(axis=0)"), ("learned", "pi")],
)
def test_extensions_leave_the_trained_videos_as_they_are(pe, extend):
    model = make(**CLIP, pe=pe)
    extended = nnx.eval_shape(lambda: DiT(dit(**CLIP, pe=pe).extended(extend), rngs=nnx.Rngs(0)))
    longer = nnx.merge(nnx.split(extended)[0], nnx.split(model)[1])
    np.testing.assert_allclose(longer(*clips()), model(*clips()), atol=1e-5)
    if pe == "rope_axial" and extend == "pi":  # the grid gives factor 2 on time, and 1 on rows and columns
        halved = grid_positions((6, 2, 2)).astype(jnp.float32) * jnp.array([0.5, 1.0, 1.0])
        np.testing.assert_allclose(longer(*clips(6)), model(*clips(6), positions=halved), atol=1e-5)
    if pe == "rope_axial":  # a table is resampled, extended or not
        assert float(jnp.abs(longer(*clips(9)) - model(*clips(9))).max()) > 1e-5


def test_a_norm_without_weights():
    norm = LayerNorm(NormConfig("layer", weight=False), 8)
    assert not jax.tree.leaves(nnx.state(norm))
    x = jax.random.normal(jax.random.key(0), (3, 8))
    np.testing.assert_allclose(norm(x), LayerNorm(NormConfig("layer"), 8)(x), atol=1e-6)


REFUSED = {
    "must have adaptive=True": lambda: dataclasses.replace(
        dit(**TINY), layers=tuple(dataclasses.replace(layer, adaptive=False) for layer in dit(**TINY).layers)
    ),
    "adaptive must be False unless order='pre'": lambda: dataclasses.replace(dit(**TINY).layers[0], parallel="two"),
    "weight must be True with a bias or an offset": lambda: NormConfig("layer", bias=True, weight=False),
    "must be positive multiples of patch=4": lambda: dit(**(TINY | {"image_size": (8, 10)})),
    "classes must be at least 1": lambda: dit(classes=0),
    "a model of frames=0 takes pictures, images (B, height, width, C), got axes (3, 8, 8)": lambda: jax.eval_shape(
        make(), *clips()
    ),
    "a model of frames=3 takes videos, images (B, frames, height, width, C), got axes (8, 8)": lambda: jax.eval_shape(
        make(**CLIP), *inputs()
    ),
    "videos must have at least one frame, got shape (0, 8, 8)": lambda: jax.eval_shape(make(**CLIP), *clips(0)),
    "positions must be (12, 3) or (2, 12, 3), got (4, 2)": lambda: jax.eval_shape(
        lambda *inputs: make(**CLIP)(*inputs, positions=grid_positions((2, 2))), *clips()
    ),
    "frames must be at least 0, got -1": lambda: dit(frames=-1),
    "must have channels=1": lambda: jax.eval_shape(make(), *inputs()[:0], jnp.zeros((1, 8, 8, 2)), jnp.zeros((1,))),
    "got condition=None": lambda: jax.eval_shape(
        ViT(
            dataclasses.replace(vit(**TINY), layers=tuple(adaptive(layer) for layer in vit(**TINY).layers)),
            rngs=nnx.Rngs(0),
        ),
        inputs()[0],
    ),
}


def adaptive(layer: LayerConfig) -> LayerConfig:
    return dataclasses.replace(layer, adaptive=True)


@pytest.mark.slow
@pytest.mark.parametrize("message", REFUSED)
def test_refusals(message):
    with pytest.raises(ValueError, match=re.escape(message)):
        REFUSED[message]()
