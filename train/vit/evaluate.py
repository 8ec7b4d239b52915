"""Top-1 accuracy of a vision transformer on the test split at many image sizes.

There is one program per size. One launch of it classifies many images, in chunks that fit a core's cache. While one
size is measured, a thread compiles the programs of the next sizes.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array
from rich.console import Console

from train.data.images import Dataset, evaluation_batches
from train.devices.cpu import EVALUATION_COMPILER
from train.devices.mesh import chunk_sharding, evaluation_execution, replicated_sharding
from train.engine.numbers import Number, share
from train.engine.progress import Evaluating
from train.vit.config import evaluation_sizes
from train.vit.model import Classifier
from train.vit.results import PATCHES, TOP1, ResolutionResults

TOKENS_AT_ONCE = {"cpu": 2**10, "gpu": 2**16, "tpu": 2**16}
"""Tokens per chunk and device: their activations fit a core's cache, or a small part of the memory."""

LAUNCHES = 10
"""Minimum number of launches per size; progress is reported after each."""

VALUES_AT_ONCE = 2**24
"""Maximum number of pixel values per launch; a single chunk may have more."""


class Pass(NamedTuple):
    """One extension at one image size, and how its images are divided.

    Attributes:
        extend: the extension.
        size: side of an image, pixels.
        tokens: patches per image.
        images: number of images to classify.
        chunk: images that pass through the model at once, over all devices.
        chunks: per launch.
    """

    extend: str
    size: int
    tokens: int
    images: int
    chunk: int
    chunks: int


def evaluate(
    classifier: Classifier, dataset: Dataset, params: Any, *, step: int, mesh: Mesh, console: Console
) -> list[ResolutionResults]:
    """Return top-1 at every evaluation size of the config, with each of its extensions.

    All extensions leave the trained size as it is, so that it is measured once.

    Args:
        classifier: model of the run.
        dataset: whose test split to use.
        params: trained.
        step: step of the checkpoint, stored with the results.
        mesh: the images are sharded over it.
        console: prints to the user.

    Raises:
        ValueError: the encoding does not support a size.
    """
    config, sizes, extensions = classifier.config, evaluation_sizes(classifier.config), list(classifier.extended)
    passes = [
        plan_pass(classifier, dataset, mesh, extend, size)
        for extend in extensions
        for size in sizes
        if size != config.size or extend == extensions[0]
    ]
    numbers: dict[tuple[str, int], Number] = {}
    compiler = ThreadPoolExecutor(1)
    try:
        programs = [compiler.submit(compile_pass, classifier, params, mesh, pass_) for pass_ in passes]
        with Evaluating(console, sum(pass_.images * pass_.tokens for pass_ in passes)) as progress:
            for pass_, program in zip(passes, programs, strict=True):
                numbers[pass_.extend, pass_.size] = measure(pass_, program, params, dataset, mesh, progress)
    finally:
        compiler.shutdown(wait=False, cancel_futures=True)
    number = lambda extend, size: numbers[extend if (extend, size) in numbers else extensions[0], size]
    patches = {size: Number(measure=PATCHES, at=size, value=(size // config.patch) ** 2) for size in sizes}
    return [
        ResolutionResults(
            name=config.pe, data=config.data, trained=config.size, step=step, extend=extend, note=dataset.note,
            numbers=tuple(each for size in sizes for each in (number(extend, size), patches[size])),
            made_by={"data": dataset.identity},
        )
        for extend in extensions
    ]  # fmt: skip


def plan_pass(classifier: Classifier, dataset: Dataset, mesh: Mesh, extend: str, size: int) -> Pass:
    """Return how the test images of one size are divided into chunks and launches."""
    tokens = (size // classifier.config.patch) ** 2
    images = len(dataset.test(size))
    images = min(images, classifier.config.eval_limit or images)
    per_device = max(1, TOKENS_AT_ONCE[mesh.devices.flat[0].platform] // tokens)
    chunk = mesh.size * min(per_device, -(-images // mesh.size))
    launch = min(-(-images // LAUNCHES), VALUES_AT_ONCE // (size**2 * dataset.channels))
    return Pass(extend, size, tokens, images, chunk, max(1, -(-launch // chunk)))


def compile_pass(classifier: Classifier, params: Any, mesh: Mesh, pass_: Pass) -> Any:
    """Return the compiled program `(params, images, labels) -> whether each image is classified correctly`."""
    execution = evaluation_execution(mesh)
    logits_of = partial(classifier.logits, extend=pass_.extend, execution=execution)

    def correct(params: Any, images: Array, labels: Array) -> Array:
        hits = lambda chunk: jnp.argmax(logits_of(params, chunk[0]), -1) == chunk[1]
        return jax.lax.map(hits, (images, labels)).reshape(-1)

    lead, side = (pass_.chunks, pass_.chunk), (pass_.size, pass_.size, classifier.vit.channels)
    shape = partial(jax.ShapeDtypeStruct, sharding=chunk_sharding(mesh))
    lowered = jax.jit(correct, out_shardings=replicated_sharding(mesh)).lower(
        params, shape((*lead, *side), jnp.float32), shape(lead, jnp.int32)
    )
    return lowered.compile(EVALUATION_COMPILER if mesh.devices.flat[0].platform == "cpu" else None)


def measure(
    pass_: Pass, program: Future[Any], params: Any, dataset: Dataset, mesh: Mesh, progress: Evaluating
) -> Number:
    """Return top-1 at one size; images are prepared and moved to the devices during the previous launch."""
    launch, outcomes = pass_.chunk * pass_.chunks, []
    sharding = chunk_sharding(mesh)

    def put(array: np.ndarray) -> Array:
        array = array.reshape(pass_.chunks, pass_.chunk, *array.shape[1:])
        return jax.make_array_from_process_local_data(sharding, array, array.shape)

    for host in first_images(evaluation_batches(dataset, pass_.size, launch), pass_.images):
        full = pad_batch(host, launch)
        outcomes.append((program.result()(params, put(full["image"]), put(full["label"])), len(host["label"])))
        jax.block_until_ready(outcomes[-2:-1])
        extended = "" if pass_.extend == "none" else f" with {pass_.extend}"
        progress(len(host["label"]) * pass_.tokens, f"{pass_.size} px{extended}")
    right = np.concatenate([np.asarray(hits)[:count] for hits, count in outcomes])
    return share(TOP1, pass_.size, right)


def first_images(batches: Iterator[Mapping[str, np.ndarray]], limit: int) -> Iterator[Mapping[str, np.ndarray]]:
    """Yield the batches of the first `limit` images."""
    quota = limit
    for batch in batches:
        yield {name: array[:quota] for name, array in batch.items()}
        quota -= len(batch["label"])
        if quota <= 0:
            return


def pad_batch(batch: Mapping[str, np.ndarray], size: int) -> dict[str, np.ndarray]:
    """Return the batch padded to `size` images; the added ones have a label that no prediction can match."""
    short = size - len(batch["label"])
    image = np.pad(batch["image"], ((0, short), (0, 0), (0, 0), (0, 0)))
    return {"image": image, "label": np.pad(batch["label"], (0, short), constant_values=-1)}
