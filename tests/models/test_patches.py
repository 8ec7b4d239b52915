"""Images of several sizes in one batch: what patches hold, and what a vision transformer makes of them."""

import functools
import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import pejax
from pejax import Patches, TokenPositions, patchify, unpatchify
from pejax.models import Execution, ViT, vit
from tests.support.cases import close, normal

SIZES = ((9, 15), (12, 12), (18, 6))
TINY = {"image_size": 12, "patch": 3, "channels": 2, "classes": 5, "width": 16, "layers": 2, "heads": 2}

AT_EACH_SIZE = {
    "a table, registers, the mean": ({"pe": "learned", "registers": 1, "pool": "mean"}, {"cls": True}),
    "a bias, CLS": ({"pe": "relative_table", "pool": "cls"}, {}),
    "frequencies, both": ({"pe": "rope_axial", "extend": pejax.extensions.ntk()}, {"cls": True, "pool": "cls_mean"}),
    "interpolated, CLS by its share": ({"pe": "rope_mixed", "extend": pejax.extensions.pi(), "pool": "cls"}, {}),
    "interpolated, no prefix": ({"pe": "rope_mixed", "extend": pejax.extensions.pi(), "pool": "mean"}, {}),
    "no extent": ({"pe": "lookhere", "heads": 4, "pool": "mean"}, {}),
    "coordinates": ({"pe": "rope_axial"}, {"coordinates": "centered"}),
}


def pictures() -> list[jax.Array]:
    return [normal(*size, 2, seed=n) for n, size in enumerate(SIZES)]


def model(recipe: dict, fields: dict | None = None) -> ViT:
    """Make a tiny model by the recipe, with fields of its config replaced; parameters are off their initial values."""
    draw, config = np.random.default_rng(0), replace(vit(**(TINY | recipe)), **(fields or {}))
    static, shapes = nnx.split(nnx.eval_shape(lambda: ViT(config, rngs=nnx.Rngs(0))))
    return nnx.merge(
        static, jax.tree.map(lambda leaf: jnp.asarray(draw.normal(size=leaf.shape) * 0.3, leaf.dtype), shapes)
    )


def refused(call, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=re.escape(message)) as error:
        call()
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_patches_are_cut_in_raster_order_and_padded():
    images, patches = pictures(), patchify(pictures(), 3, budget=20)
    assert patches.pixels.shape == (3, 20, 18)
    np.testing.assert_array_equal(patches.extent, [[3, 5], [4, 4], [6, 2]])
    for n, (rows, columns) in enumerate(patches.extent.tolist()):
        for t in range(20):
            row, column = divmod(t, columns)
            in_image = t < rows * columns
            corner = images[n][3 * row : 3 * row + 3, 3 * column : 3 * column + 3]
            np.testing.assert_array_equal(patches.pixels[n, t], corner.reshape(-1) if in_image else np.zeros(18))
            np.testing.assert_array_equal(patches.tokens.positions[n, t], (row, column) if in_image else (0, 0))
            assert bool(patches.tokens.segment_ids[n, t]) == in_image


def test_patches_of_videos_are_their_blocks_frame_by_frame_and_come_back():
    videos, (frames, rows, columns) = [normal(4, 6, 4, 2, seed=3), normal(2, 2, 8, 2, seed=4)], (2, 2, 4)
    patches = patchify(videos, (frames, rows, columns), budget=8)
    assert patches.extent.tolist() == [[2, 3, 1], [1, 1, 2]]
    places, pixels = np.asarray(patches.tokens.positions), np.asarray(patches.pixels)
    for n, video in enumerate(map(np.asarray, videos)):
        for k, (t, y, x) in enumerate(np.ndindex(*patches.extent[n].tolist())):
            np.testing.assert_array_equal(places[n, k], (t, y, x))
            block = video[t * frames :][:frames, y * rows :][:, :rows, x * columns :][:, :, :columns]
            np.testing.assert_array_equal(pixels[n, k], block.ravel())
    np.testing.assert_array_equal(patches.tokens.segment_ids, [[1] * 6 + [0] * 2, [1] * 2 + [0] * 6])
    again = unpatchify(patches.pixels, patches.extent, (frames, rows, columns))
    for video, other in zip(videos, again, strict=True):
        np.testing.assert_array_equal(video, other)


@pytest.mark.slow
def test_patches_of_equal_images_are_those_of_the_model_and_come_back():
    image = normal(2, 6, 9, 2)
    cut = pejax.models.networks.vit.images_to_patches(image, 3)
    np.testing.assert_array_equal(patchify(list(image), 3).pixels, cut)
    for budget in (None, 16, 40):
        patches = patchify(pictures(), 3, budget=budget)
        assert patches.pixels.shape[1] == (budget or 16)
        for image, again in zip(pictures(), unpatchify(patches.pixels, patches.extent, 3), strict=True):
            np.testing.assert_array_equal(image, again)


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "fields"), AT_EACH_SIZE.values(), ids=AT_EACH_SIZE)
def test_a_batch_of_sizes_is_each_image_alone(recipe, fields):
    """Logits, and the gradient of each image's logits, which is 0 in padding; padding itself is not read."""
    static, params = nnx.split(model(recipe, fields))
    weight, patches = normal(3, 5, seed=9), patchify(pictures(), 3, budget=19)
    noise = jnp.where(patches.tokens.segment_ids[..., None] == 0, 1e3, patches.pixels)

    @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    def runs(params, pixels, images):
        def together(params, pixels):
            logits = nnx.merge(static, params)(patches._replace(pixels=pixels))
            return jnp.sum(weight * logits), logits

        def alone(params, images):
            logits = jnp.stack([nnx.merge(static, params)(image[None])[0] for image in images])
            return jnp.sum(weight * logits), logits

        slopes = functools.partial(jax.value_and_grad, argnums=(0, 1), has_aux=True)
        return slopes(together)(params, pixels), slopes(alone)(params, images)

    ((_, logits), (of_params, of_pixels)), ((_, each), (params_alone, of_images)) = runs(params, noise, pictures())
    close(logits, each, 1e-4)
    close(jax.tree.leaves(of_params), jax.tree.leaves(params_alone), 2e-4)
    close(of_pixels, patchify(of_images, 3, budget=19).pixels, 1e-4)


def logits_of_sizes_are_each_alone(recipe, fields):
    """The logits by themselves, for mutants."""
    static, params = nnx.split(model(recipe, fields))
    patches = patchify(pictures(), 3, budget=19)
    noise = jnp.where(patches.tokens.segment_ids[..., None] == 0, 1e3, patches.pixels)

    @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    def runs(params, pixels, images):
        made = nnx.merge(static, params)
        return made(patches._replace(pixels=pixels)), jnp.stack([made(image[None])[0] for image in images])

    close(*runs(params, noise, pictures()), 1e-4)


@pytest.mark.slow
def test_states_of_a_batch_of_sizes_are_those_of_each_image():
    made, patches = model({"pe": "learned", "registers": 1}), patchify(pictures(), 3)
    states = made.states(patches)
    for n, image in enumerate(pictures()):
        own = made.states(image[None])[0]
        close(states[n, : len(own)], own, 1e-4)


@pytest.mark.slow
def test_a_batch_of_sizes_over_devices_is_that_of_one():
    mesh = jax.make_mesh((3,), ("data",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:3])
    made, patches = model({"pe": "relative_table", "registers": 1}), patchify(pictures(), 3)
    split = Execution(mesh=mesh, batch=("data",), local=True)
    close(jax.jit(lambda patches: made(patches, execution=split))(patches), made(patches), 2e-5)
    splits = lambda: made(patches, execution=Execution(mesh=mesh, batch=("data",)))
    refused(splits, "extent must be one grid for all examples with a sharding, got shape (3, 2)")


@pytest.mark.slow
def test_one_program_serves_other_sizes_of_the_same_budget():
    made, traces = model({"pe": "learned"}), []

    @jax.jit
    def logits(patches):
        traces.append(patches)
        return made(patches)

    for sizes in (SIZES, ((3, 3), (6, 24), (12, 9))):
        images = [normal(*size, 2) for size in sizes]
        together = logits(patchify(images, 3, budget=20))
        close(together, jnp.concatenate([made(image[None]) for image in images]), 1e-4)
    assert len(traces) == 1


def test_pictures_that_make_no_patches_are_refused():
    image = lambda *shape: np.zeros(shape, np.float32)
    cut = lambda *shapes, **options: lambda: patchify([image(*shape) for shape in shapes], 4, **options)
    refused(cut((8, 8, 3), (8, 10, 3)), "images[1] must have sides that are multiples of the patch, 4 x 4, got 8 x 10")
    refused(cut((8, 8)), "images[0] must be (height, width, channels) for patches of 2 sides, got shape (8, 8)")
    alike = "images must be one or more, of equal channels and one type, got"
    refused(cut((8, 8, 3), (8, 8, 1)), f"{alike} ['float32 (8, 8, 3)', 'float32 (8, 8, 1)']")
    refused(cut(), f"{alike} []")
    refused(lambda: patchify([image(8, 8, 3), jnp.zeros((8, 8, 3), jnp.bfloat16)], 4), f"{alike} ['float32 (8, 8, 3)',")
    for budget in (9, 5, 4):  # a patch, a row, and more than a row short
        wide = f"budget must hold all patches of images[1], 2 x 5 = 10, got {budget}"
        refused(cut((4, 8, 3), (8, 20, 3), budget=budget), wide)
    refused(lambda: patchify([np.zeros((8, 8, 3), np.uint8)], 4), "images must be")


def test_grids_that_do_not_fit_the_patches_are_refused():
    pixels = np.zeros((2, 6, 12), np.float32)
    refused(lambda: unpatchify(pixels, [[2, 3], [2, 4]], 2), "extent must be grids of 1 to 6 patches, the tokens of")
    refused(lambda: unpatchify(pixels, [[2, 3], [0, 4]], 2), "got [0, 4]")
    refused(
        lambda: unpatchify(pixels, [[2, 3], [1, 1]], 5), "a multiple of the pixels of a patch, got N=12 and patch=5"
    )
    refused(lambda: unpatchify(pixels, [[2, 3], [1, 1]], 0), "patch must be a side of at least 1, or (frames, ")
    refused(lambda: unpatchify(pixels, [[2, 3], [1, 1]], (1, 2, 2)), "extent must be (B, 3), grids of patch=(1, 2, 2)")
    refused(lambda: patchify([np.zeros((2, 4, 4, 3), np.float32)], 2), "got shape (2, 4, 4, 3)")
    refused(lambda: patchify([np.zeros((4, 4, 3), np.float32)], (1, 2, 2)), "must be (frames, height, width, channels)")
    refused(lambda: patchify([np.zeros((3, 4, 4, 1), np.float32)], (2, 2, 2)), "patch, 2 x 2 x 2, got 3 x 4 x 4")
    traced = jax.jit(lambda pixels, extent: unpatchify(pixels, extent, 2))
    refused(
        lambda: traced(pixels, jnp.ones((2, 2), jnp.int32)), "extent must be known, as the sizes of images are, got"
    )


def test_patches_that_do_not_fit_the_model_are_refused():
    made = nnx.eval_shape(lambda: ViT(vit(**TINY, pe="learned"), rngs=nnx.Rngs(0)))

    def shaped(numbers=18, extent=(2, 2), **fields):
        ids = jax.ShapeDtypeStruct((2, 6), jnp.int32)
        where = TokenPositions(jax.ShapeDtypeStruct((2, 6, 2), jnp.int32), segment_ids=ids)._replace(**fields)
        patches = Patches(
            jax.ShapeDtypeStruct((2, 6, numbers), jnp.float32), where, jax.ShapeDtypeStruct(extent, jnp.int32)
        )
        return lambda: jax.eval_shape(lambda patches: made(patches), patches)

    refused(shaped(numbers=27), "patches must be (B, T, 18)")
    refused(shaped(extent=(3, 2)), "got (2, 6, 18) and [(2, 6, 2), (2, 6), (3, 2)]")
    refused(shaped(segment_ids=None), "got (2, 6, 18) and [(2, 6, 2), (), (2, 2)]")
    outside = Patches(
        jnp.zeros((1, 1, 18)),
        TokenPositions(jnp.asarray([[[2, 0]]]), segment_ids=jnp.ones((1, 1), int)),
        jnp.ones((1, 2), int),
    )
    refused(lambda: made(outside), "positions must lie inside the extent")
