# %% [markdown]
# # What does a vision transformer see at image sizes that it never saw?
#
# A vision transformer cuts an image into patches. A larger image has more patches, so the model meets positions that it
# never saw, whatever the content. This notebook trains four small models on images of 28 pixels. They differ in
# nothing but the encoding of positions. Then it measures them, without another step of training, at 12 to 64 pixels.

# %%
import lzma
import os
import time

import jax
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

import pejax
from pejax.models import ViT, vit

FAST = "PEJAX_FAST" in os.environ  # fewer steps, to test the notebook
TRAINED, PATCH = 28, 4  # pixels

# %% [markdown]
# ## Images
#
# Fashion-MNIST: photographs of clothing in 10 classes, 28 by 28 gray pixels. The repository holds 10,000 of the training
# images and all 10,000 test images. We measure on a part of the latter. Test images of other sizes are made from them,
# bicubic, and antialiased where they shrink. So a larger image has no more detail, only more patches.

# %%
MEAN, STD = 0.286, 0.353  # of the pixels


def images_and_labels(part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return normalized images and labels: 784 bytes for each image, then one byte for each label."""
    pixels, labels = np.split(part, [len(part) // 785 * 784])
    return (pixels.reshape(-1, 28, 28, 1) / np.float32(255) - MEAN) / STD, labels.astype(np.int32)


both = np.frombuffer(lzma.decompress(repository_file("train/data/fashion.xz")), np.uint8)
train_images, train_labels = images_and_labels(both[: 10_000 * 785])
test_images, test_labels = images_and_labels(both[10_000 * 785 :])
chosen = np.random.default_rng(0).permutation(len(test_images))[: 100 if FAST else 1000]
test_images, test_labels = test_images[chosen], test_labels[chosen]
print(f"{len(train_images):,} images to train on, {len(test_images):,} to test")


def resized(images: np.ndarray, size: int) -> jax.Array:
    """Return the images at another size, in pixels."""
    return jax.image.resize(images, (len(images), size, size, 1), "cubic", antialias=True)


figure, panels = plt.subplots(1, 3, figsize=(9, 3.4), layout="constrained")
for axes, size in zip(panels, (12, 28, 64), strict=True):
    axes.imshow(resized(test_images[:1], size)[0, :, :, 0], cmap="gray", extent=(0, size, size, 0))
    axes.set(title=f"{size // PATCH} by {size // PATCH} patches", xlabel="column, pixels", ylabel="row, pixels")
    axes.set_xticks(ticks := range(0, size + 1, 4 if size < 64 else 16))
    axes.set_yticks(ticks)
    for line in range(0, size + 1, PATCH):
        axes.axhline(line, color="#56B4E9", linewidth=0.5)
        axes.axvline(line, color="#56B4E9", linewidth=0.5)
plt.show()

# %% [markdown]
# ## Four encodings
#
# | encoding | what it does | at a new size |
# |---|---|---|
# | `none` | nothing: the model sees a bag of patches | the same |
# | `learned` | adds a table to the patches, one vector per position | its table is resized, bicubic |
# | `alibi` | subtracts the Euclidean distance of two patches from the logits, times a slope | larger distances |
# | `rope_mixed` | rotates queries and keys by position, with learned frequencies | larger angles |
#
# All start from the same random seed and see the same batches.

# %%
STEPS, BATCH = (5, 16) if FAST else (300, 32)
NAMES = ("rope_mixed",) if FAST else ("none", "learned", "alibi", "rope_mixed")


@nnx.jit
def train_step(model, optimizer, images, labels):
    def mean_loss(model):
        return optax.softmax_cross_entropy_with_integer_labels(model(images), labels).mean()

    loss, gradients = nnx.value_and_grad(mean_loss)(model)
    optimizer.update(model, gradients)
    return loss


def train(pe: str) -> tuple[ViT, np.ndarray]:
    """Return a trained model, and its loss in each step."""
    model = ViT(vit(image_size=TRAINED, patch=PATCH, width=48, layers=2, heads=3, pool="mean", pe=pe), rngs=nnx.Rngs(0))
    schedule = optax.warmup_cosine_decay_schedule(0.0, 3e-3, STEPS // 10, STEPS)
    optimizer = nnx.Optimizer(model, optax.adamw(schedule, weight_decay=0.05), wrt=nnx.Param)
    rng, losses = np.random.default_rng(0), []
    for _ in range(STEPS):
        batch = rng.integers(len(train_images), size=BATCH)
        losses.append(train_step(model, optimizer, train_images[batch], train_labels[batch]))
    return model, np.asarray(losses)


models, curves = {}, {}
for name in NAMES:
    start = time.perf_counter()
    models[name], curves[name] = train(name)
    print(f"{name:10} loss of the last 50 steps {curves[name][-50:].mean():.3f}, {time.perf_counter() - start:.0f} s")

# %% [markdown]
# ## Positions between those of training
#
# With `pi` (position interpolation), the patches of a larger image get fractional positions: m becomes m · L / L', for a
# trained side of L patches and one of L' now. So they run from 0 to less than L. The last one is beyond the last trained
# position, L - 1, by less than one patch. `pi` has no parameters, so the trained model with another `pe` in its config is
# enough.

# %%
LARGEST = 64
small, large = TRAINED // PATCH, LARGEST // PATCH
grid = np.asarray(pejax.grid_positions(large, large))
squeezed = np.asarray(pejax.interpolate_positions(grid, (small, small), (large, large)))
figure, panels = plt.subplots(1, 2, figsize=(8, 4), sharex=True, sharey=True, layout="constrained")
for axes, positions, title in zip(panels, (grid, squeezed), ("as they are", "with pi"), strict=True):
    axes.scatter(*np.indices((small, small)), s=60, facecolor="none", edgecolor="#D55E00", label="trained positions")
    axes.scatter(*positions.T[::-1], s=10, color="#0072B2", label=f"patches of {LARGEST} pixels")
    axes.set(title=title, xlabel="column, patches", aspect="equal", xlim=(-1, large), ylim=(large, -1))
    axes.set(xticks=range(0, large, 3), yticks=range(0, large, 3))
panels[0].set_ylabel("row, patches")
panels[1].legend(loc="lower right")
plt.show()
print(
    f"last trained position {small - 1}, last position at {LARGEST} pixels {grid.max()}, with pi {squeezed.max():.2f}"
)
assert small - 1 < squeezed.max() < small


def with_pi(model: ViT, pe: str) -> ViT:
    """Return the same weights with positions interpolated beyond the trained grid."""
    other = ViT(model.config.extended("pi"), rngs=nnx.Rngs(0))
    nnx.update(other, nnx.state(model, nnx.Param))
    return other


models["rope_mixed + pi"] = with_pi(models["rope_mixed"], "rope_mixed")
if "alibi" in models:
    models["alibi + pi"] = with_pi(models["alibi"], "alibi")

# %% [markdown]
# ## Top-1 accuracy from 12 to 64 pixels

# %%
SIZES = (12, 28, 64) if FAST else (12, 20, 28, 44, 64)
AT_ONCE = 50


@nnx.jit
def correct(model, images, labels):
    """Return how many images are classified correctly, computed in chunks."""
    chunks = images.reshape(-1, AT_ONCE, *images.shape[1:])
    guesses = jax.lax.map(lambda chunk: model(chunk).argmax(-1), chunks)
    return (guesses.reshape(-1) == labels).sum()


shown = {size: resized(test_images, size) for size in SIZES}
top_1 = {name: {} for name in models}
for name, model in models.items():
    for size in SIZES:
        if size > TRAINED or "pi" not in name:  # up to the trained size, pi changes nothing
            top_1[name][size] = 100 * float(correct(model, shown[size], test_labels)) / len(test_labels)

print("top-1, percent\n" + f"{'pixels':16}" + "".join(f"{size:7}" for size in SIZES))
for name, row in top_1.items():
    print(f"{name:16}" + "".join(f"{row[size]:7.1f}" if size in row else " " * 7 for size in SIZES))

# %%
LOOKS = {
    "none": ("black", "o", "-"),
    "learned": ("#009E73", "s", "-"),
    "alibi": ("#E69F00", "^", "-"),
    "alibi + pi": ("#E69F00", "^", ":"),
    "rope_mixed": ("#0072B2", "D", "-"),
    "rope_mixed + pi": ("#0072B2", "D", ":"),
}  # colors that people with any color vision can tell apart

figure, axes = plt.subplots(figsize=(9, 4.5), layout="constrained")
for name, row in top_1.items():
    color, marker, line = LOOKS[name]
    filled = "none" if "pi" in name else "full"
    axes.plot(row.keys(), row.values(), line, color=color, marker=marker, fillstyle=filled, label=name)
axes.axvline(TRAINED, color="gray", linestyle="--", linewidth=1, label="trained size")
axes.axhline(10, color="gray", linestyle=":", linewidth=1, label="guessing")
axes.set(xlabel="side of the image, pixels", ylabel="top-1, percent", ylim=(0, 100), xticks=SIZES)
axes.grid(alpha=0.3)
above = axes.secondary_xaxis("top", functions=(lambda size: size / TRAINED, lambda factor: factor * TRAINED))
above.set_xlabel("times the trained size")
figure.legend(loc="outside right upper")
plt.show()

# %% [markdown]
# What is lost at the smallest and the largest size:

# %%
error = 100 * 1.96 * np.sqrt(0.25 / len(test_labels))
print(f"95 % interval of one number: at most ± {error:.1f} points")
for name, row in top_1.items():
    at_trained = top_1[name.removesuffix(" + pi")][TRAINED]
    changes = [f"{row[size] - at_trained:+6.1f} at {size}" for size in (SIZES[0], SIZES[-1]) if size in row]
    print(f"{name:16} {at_trained:5.1f} % at {TRAINED} pixels, change in points: {', '.join(changes)}")

# %% [markdown]
# A model without positions loses, too: its patches show another part of the object at another size. So compare each
# encoding with `none`: what it loses beyond that is due to positions.
#
# ## What this does not show
#
# - The models are small and trained for less than a minute. Trained longer, all are better at 28 pixels, and their order
#   elsewhere can change.
# - One random seed. Two encodings whose intervals overlap are not told apart.
# - Upsampled images have no new detail. On images with true detail at all sizes the order is another one: see the
#   glyphs in [docs/results.md](../docs/results.md), where all encodings are
#   measured at fourteen sizes.
# - No model was fine-tuned at the new size, as published ones often are.
