"""The judge of sampled pictures: a small convolutional network, trained on true pictures of all shapes at once.

    3 x 3 convolution of every pixel  ->  average over the area, to half the trained size  ->  two convolutions
    ->  features  ->  logits

The average makes pictures of all shapes alike, so that one network reads them all; only the first convolution sees
their pixels. It is trained once for a data set and shapes, and kept in the cache folder of the user.

A frame of a video is a picture to it. The class of a video is that of the mean of the logits over its frames, so that a
video counts once.
"""

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float

from train.data.images import Dataset
from train.data.images.pipeline import training_source
from train.devices.hosts import is_main_process
from train.devices.user_cache import cache_file, keep, read_kept
from train.dit.config import Shape
from train.dit.measures import area_weights
from train.dit.pictures import Pictures, true_pictures

CHANNELS = (16, 32, 64)
"""Output channels of the convolutions."""

FEATURES = 64
"""Number of features, the input of the last layer."""

STEPS, BATCH, RATE = 900, 128, 2e-3
"""Training steps, pictures per step, and peak learning rate."""

AT_ONCE = 256
"""Pictures that are judged at once."""

VERSION = 1
"""Counted up where the network or its training changes, but for the numbers above: other files are not read."""

Params = dict[str, Array]


class Judge(NamedTuple):
    """A trained judge.

    Attributes:
        params: its parameters.
        seal: digest of them and of everything that they were trained on and with.
    """

    params: Params
    seal: str


class Judged(NamedTuple):
    """The judge's view: which pictures or videos are of the wanted class, and the features of every frame."""

    right: Bool[np.ndarray, " N"]
    features: Float[np.ndarray, "N F"]


def init(key: Array, channels: int, classes: int, side: int) -> Params:
    """Return random parameters.

    Args:
        key: random key.
        channels: channels of a picture.
        classes: number of classes.
        side: the trained side, pixels.
    """
    inner = math.ceil(common_side(side) / 2) ** 2 * CHANNELS[-1]
    shapes = {
        "one": (3, 3, channels, CHANNELS[0]), "two": (3, 3, *CHANNELS[:2]), "three": (3, 3, *CHANNELS[1:]),
        "features": (inner, FEATURES), "logits": (FEATURES, classes),
    }  # fmt: skip
    params: Params = {}
    for number, (name, shape) in enumerate(shapes.items()):
        scale = math.sqrt(2.0 / math.prod(shape[:-1]))
        params[name] = scale * jax.random.normal(jax.random.fold_in(key, number), shape)
        params[f"{name}_bias"] = jnp.zeros(shape[-1:])
    return params


def common_side(side: int) -> int:
    """Return the side to which the network averages pictures of all shapes: half of the trained one."""
    return math.ceil(side / 2)


def network(params: Params, images: Float[Array, "B h w C"], side: int) -> tuple[Array, Array]:
    """Return the logits `(B, classes)` and the features `(B, F)` of pictures of any shape."""

    def convolved(x: Array, name: str, stride: int = 1) -> Array:
        axes = ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(x, params[name], (stride, stride), "SAME", dimension_numbers=axes)
        return jax.nn.relu(x + params[f"{name}_bias"])

    x = convolved(images, "one")
    rows, columns = (jnp.asarray(area_weights(size, common_side(side))) for size in images.shape[1:3])
    x = jnp.einsum("hs,nswc->nhwc", rows, x)
    x = jnp.einsum("ws,nhsc->nhwc", columns, x)
    x = convolved(convolved(x, "two", 2), "three").reshape(len(images), -1)
    features = jax.nn.relu(x @ params["features"] + params["features_bias"])
    return features @ params["logits"] + params["logits_bias"], features


def train(dataset: Dataset, shapes: Sequence[Shape], report: Callable[[], None]) -> Params:
    """Return the parameters after training on training pictures of all shapes, one shape per step in turn.

    Args:
        dataset: whose pictures they are; of videos, the first frames.
        shapes: height and width, the trained one first.
        report: called after each step.
    """
    side = shapes[0][0]
    optimizer = optax.adam(optax.cosine_decay_schedule(RATE, STEPS))

    @jax.jit
    def step(params: Params, state: Any, images: Array, labels: Array) -> tuple[Params, Any]:
        def loss(params: Params) -> Array:
            logits, _ = network(params, images, side)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        with jax.numpy_dtype_promotion("standard"):  # optax multiplies floats by integer counts
            updates, state = optimizer.update(jax.grad(loss)(params), state)
        return jax.tree.map(jnp.add, params, updates), state

    params = init(jax.random.key(0), dataset.channels, len(dataset.classes), side)
    state, draw = optimizer.init(params), np.random.default_rng(0)
    sources = {shape: training_source(dataset, max(shape)) for shape in shapes}
    for number in range(STEPS):
        shape = shapes[number % len(shapes)]
        source = sources[shape]
        batch = true_pictures(dataset, source, shape, draw.integers(len(source), size=BATCH))
        params, state = step(params, state, batch.images, batch.labels)
        jax.block_until_ready(params)
        report()
    return params


_judged = partial(jax.jit, static_argnames="side")(network)


def judge(params: Params, pictures: Pictures, side: int) -> Judged:
    """Return which pictures or videos are of their class, and the features of every frame."""
    frames, batches = pictures.images.reshape(-1, *pictures.images.shape[-3:]), []
    for begin in range(0, len(frames), AT_ONCE):
        images = frames[begin : begin + AT_ONCE]
        full = np.pad(images, ((0, AT_ONCE - len(images)), (0, 0), (0, 0), (0, 0)))
        batches.append([np.asarray(output)[: len(images)] for output in _judged(params, full, side)])
    logits, features = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    votes = logits.reshape(len(pictures.labels), -1, logits.shape[-1]).mean(1)
    return Judged(votes.argmax(-1) == pictures.labels, features)


def name_of(dataset: Dataset, shapes: Sequence[Shape]) -> str:
    """Return the name of the judge's file, which holds a digest of everything that its training depends on."""
    training = [VERSION, CHANNELS, FEATURES, STEPS, BATCH, RATE]
    facts = [training, dataset.identity, len(dataset.classes), dataset.channels, dataset.mean, dataset.std, shapes]
    return f"judge-{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]}"


def pack(params: Params, name: str) -> bytes:
    """Return the content of the file with this name: a seal of 32 bytes, and the parameters by name in float32."""
    content = b"".join(np.asarray(params[part], "<f4").tobytes() for part in sorted(params))
    return hashlib.sha256(name.encode() + content).digest() + content


def unpack(content: bytes, name: str, like: Params) -> Params | None:
    """Return the parameters in the content of the file with this name; None where its seal does not fit it.

    Args:
        content: the content.
        name: name of the file.
        like: parameters, or their shapes.
    """
    if hashlib.sha256(name.encode() + content[32:]).digest() != content[:32]:
        return None
    values, params, at = np.frombuffer(content[32:], "<f4"), {}, 0
    for part in sorted(like):
        size = math.prod(like[part].shape)
        params[part] = jnp.asarray(values[at : at + size].reshape(like[part].shape))
        at += size
    return params


def read(dataset: Dataset, shapes: Sequence[Shape]) -> Judge | None:
    """Return the judge in the cache of the user; None where there is none, or one with a broken seal.

    Args:
        dataset: whose pictures, or frames, it judges.
        shapes: their heights and widths, the trained one first.
    """
    name = name_of(dataset, shapes)
    make = partial(init, channels=dataset.channels, classes=len(dataset.classes), side=shapes[0][0])
    params = unpack(read_kept(cache_file(name)), name, jax.eval_shape(make, jax.random.key(0)))
    return None if params is None else seal(params, name)


def seal(params: Params, name: str) -> Judge:
    """Return the judge of a file with this name."""
    return Judge(params, pack(params, name)[:8].hex())


def train_and_keep(
    dataset: Dataset, shapes: Sequence[Shape], report: Callable[[], None], say: Callable[[str], None]
) -> Judge:
    """Return the judge after training, and keep it in the cache of the user.

    Args:
        dataset: whose pictures, or frames, it judges.
        shapes: their heights and widths, the trained one first.
        report: called after each step of training.
        say: called with a line where it cannot be kept.
    """
    name, params = name_of(dataset, shapes), train(dataset, shapes, report)
    refused = keep(cache_file(name), pack(params, name)) if is_main_process() else ""
    if refused:
        say(f"the judge of pictures is not kept, the next run trains it again: {refused}")
    return seal(params, name)
