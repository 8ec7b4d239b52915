# %% [markdown]
# # What does a diffusion model draw when it is asked for a picture larger than in training?
#
# A diffusion transformer cuts a picture into patches, as a vision transformer does. Asked for a picture of twice the side,
# it has four times as many patches, at positions that training never had. It then draws pieces, or the same thing several
# times. This notebook trains a small one on shapes of 28 pixels, asks it for 56 pixels and for 28 by 56, and compares
# what extensions of its positions do, without another step of training.

# %%
import os
import time
from functools import partial

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

from pejax.models import DiT, dit

FAST = "PEJAX_FAST" in os.environ  # fewer steps, to test the notebook
TRAINED, PATCH = 28, 4  # pixels

# %% [markdown]
# ## Shapes
#
# Rings, squares, crosses and triangles, drawn by a formula at any size: the same shape fills the same part of a picture
# of 28 and of 56 pixels. The larger one has finer detail, so it is no enlargement of the smaller one.

# %%
NAMES = ("ring", "square", "cross", "triangle")


def drawn(rng: np.random.Generator, labels: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return white shapes on black, from -1 to 1, each at a place and of a size of its own, `(N, height, width, 1)`."""
    (x, y), radius = rng.uniform(0.42, 0.58, (2, len(labels), 1, 1)), rng.uniform(0.24, 0.34, (len(labels), 1, 1))
    u = (np.arange(width) + 0.5) / width - x
    v = ((np.arange(height) + 0.5) / height)[:, None] - y
    far = np.maximum(np.abs(u), np.abs(v))
    outlines = (
        np.abs(np.hypot(u, v) - radius),
        np.abs(far - 0.9 * radius),
        np.maximum(np.minimum(np.abs(u), np.abs(v)), far - radius),
        np.abs(np.maximum(v - 0.6 * radius, 0.87 * np.abs(u) - 0.5 * v - 0.6 * radius)),
    )
    distance = np.choose(labels[:, None, None], outlines)
    edge = 1.0 / min(height, width)  # gray over one pixel
    return np.clip(1 - 2 * (distance - 0.045) / edge, -1, 1).astype(np.float32)[..., None]


def show(rows: dict[str, np.ndarray], title: str) -> None:
    """Draw rows of pictures with their names."""
    figure, panels = plt.subplots(len(rows), 1, figsize=(9, 1.2 * len(rows)), layout="constrained", squeeze=False)
    for axes, (name, pictures) in zip(panels[:, 0], rows.items(), strict=True):
        axes.imshow(
            np.concatenate(np.pad(pictures[:8, ..., 0], ((0, 0), (0, 0), (0, 2)), constant_values=1), 1), "gray"
        )
        axes.set(xticks=[], yticks=[])
        axes.set_ylabel(name, rotation=0, ha="right", va="center")
    figure.suptitle(title)
    plt.show()


labels = np.arange(16) % 4
true = {size: drawn(np.random.default_rng(0), labels, *size) for size in ((28, 28), (56, 56), (28, 56))}
show({"28 x 28": true[28, 28], "56 x 56": true[56, 56]}, "true shapes")

# %% [markdown]
# ## A model that turns noise into shapes
#
# Rectified flow: a picture x and noise ε are joined by a straight line, x_t = (1 - t) x + t ε. The model is shown x_t, t and
# the class, and learns the direction ε - x. Its positions are `rope_axial`: half of the channels of each query and key are
# rotated by the row, half by the column.

# %%
STEPS, BATCH = (5, 16) if FAST else (1300, 32)
config = dit(
    image_size=TRAINED, patch=PATCH, channels=1, classes=len(NAMES), width=64, layers=3, heads=4, pe="rope_axial"
)
model = DiT(config, rngs=nnx.Rngs(0))


@nnx.jit
def train_step(model, average, optimizer, images, labels, key):
    """Take one step, and move the average of the weights, which samples later."""
    of_time, of_noise = jax.random.split(key)
    time = jax.nn.sigmoid(jax.random.normal(of_time, labels.shape))
    noise, t = jax.random.normal(of_noise, images.shape), time[:, None, None, None]

    def mean_loss(model):
        return jnp.mean(jnp.square(model((1 - t) * images + t * noise, time, labels) - (noise - images)))

    loss, gradients = nnx.value_and_grad(mean_loss)(model)
    optimizer.update(model, gradients)
    average = jax.tree.map(lambda old, new: 0.99 * old + 0.01 * new, average, nnx.state(model, nnx.Param))
    return loss, average


rng, start = np.random.default_rng(1), time.perf_counter()
schedule = optax.warmup_cosine_decay_schedule(0.0, 3e-3, STEPS // 10, STEPS)
optimizer = nnx.Optimizer(model, optax.adam(schedule), wrt=nnx.Param)
average, losses = nnx.state(model, nnx.Param), []
for step in range(STEPS):
    classes = rng.integers(len(NAMES), size=BATCH)
    images = drawn(rng, classes, TRAINED, TRAINED)
    loss, average = train_step(model, average, optimizer, images, classes, jax.random.key(step))
    losses.append(loss)
print(f"loss of the last steps {np.mean(losses[-50:]):.3f}, {time.perf_counter() - start:.0f} s")

# %% [markdown]
# ## Asked for other sizes
#
# The same weights, with another `extend`. An extension is in the config of the model, so a model with it is another model
# with the same parameters. The current grid comes from the noise that the model is given.
#
# | extension | what it does with a grid twice as large |
# |---|---|
# | none | positions go on: 7, 8, ... 13, where training had 0 to 6 |
# | `yarn` | slows the slow rotations, and leaves the fast ones |
# | `ntk` | a larger base: slows every rotation, the slowest twofold, the fastest hardly |
# | `pi` | squeezes positions: 0, ½, 1, ... 6½ |
# | `by_step` | as `pi` at pure noise, as trained at the end, and between them by the time t |

# %%
EXTENSIONS = ("none", "pi") if FAST else ("none", "yarn", "ntk", "pi", "by_step(above='linear')")
SAMPLING = 4 if FAST else 20


def extended(extend: str) -> DiT:
    """Return the model with an extension of its positions."""
    other = DiT(config if extend == "none" else config.extended(extend), rngs=nnx.Rngs(0))
    nnx.update(other, average)
    return other


@partial(nnx.jit, static_argnames="steps")
def sample(model, noise, labels, steps):
    """Follow the flow from noise at t = 1 to a picture at t = 0, in equal steps."""

    def one_step(x, number):
        t = 1 - number / steps
        return x - model(x, jnp.full(len(x), t), labels, step=t) / steps, None

    return jax.lax.scan(one_step, noise, jnp.arange(steps))[0]


sampled = {}
for height, width in true:
    noise = np.random.default_rng(2).standard_normal((len(labels), height, width, 1), np.float32)
    for extend in EXTENSIONS if (height, width) != (TRAINED, TRAINED) else ("none",):
        pictures = sample(extended(extend), noise, labels, SAMPLING)
        sampled[height, width, extend] = np.clip(np.asarray(pictures), -1, 1)
    rows = {extend: sampled[height, width, extend] for extend in EXTENSIONS if (height, width, extend) in sampled}
    show({"true": true[height, width], **rows}, f"{height} x {width} pixels")

# %% [markdown]
# ## How many are the shape that was asked for?
#
# Of 400 true shapes of each class, the one that correlates most with a picture says what the picture shows. Both are
# averaged to 14 by 14 pixels first, so that doubled strokes count as strokes.


# %%
def averaged(pictures: np.ndarray) -> np.ndarray:
    """Return pictures at 14 by 14 pixels, without their mean and of length 1, a row each."""
    count, height, width, _ = pictures.shape
    rows = pictures.reshape(count, 14, height // 14, 14, width // 14).mean((2, 4)).reshape(count, -1)
    rows = rows - rows.mean(1, keepdims=True)
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-6)


known_labels = np.arange(1600) % 4
print(f"of {len(labels)}{'':24}" + "".join(f"{height} x {width}".rjust(9) for height, width in true))
for name in ("true", *EXTENSIONS):
    counts = []
    for size in true:
        known = averaged(drawn(np.random.default_rng(3), known_labels, *size))
        extend = "none" if size == (TRAINED, TRAINED) else name
        likeness = averaged(true[size] if name == "true" else sampled[*size, extend]) @ known.T
        counts.append(int((known_labels[likeness.argmax(1)] == labels).sum()))
    print(f"{name:29}" + "".join(f"{count:9}" for count in counts))

# %% [markdown]
# `pi` holds the shape and loses the sharpness: strokes come out doubled. `yarn` halves the slow rotations and leaves the
# fastest, whose period of 6.3 patches is about the trained side of 7: it starts again, and draws every shape twice along a
# longer side.
#
# ## What this does not show
#
# - Four shapes, a tiny model, a minute of training. With letters, `python -m train.dit` measures more: whether a classifier
#   finds the class that was asked for, and a Fréchet distance, for several encodings. Its figures are in
#   [docs/training.md](../docs/training.md).
# - Large diffusion models were trained on many sizes, and most read texts, too. Their layouts of positions, and the same
#   extensions for them, are in [docs/diffusion.md](../docs/diffusion.md).
# - No model was fine-tuned at the new size.
