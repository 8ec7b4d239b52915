"""Training a vision transformer in a process that others run beside: from batches that were made once, for all of them.

The model, its loss and its optimizer are those of `train.vit`. A process holds what it has compiled for an encoding: a
program that trains for an epoch, for all seeds and numbers of epochs, and one per test. Compilation is most of a short
run, so that training compiles first, and each test when its turn comes, for as long as there is time.
"""

import dataclasses
import functools
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.hardware import programs
from benchmarks.hardware.train import TEST
from train.data.images import load
from train.data.images.augment import Augment
from train.data.images.pipeline import normalize, train_batch
from train.engine.optimizers import decay_mask, make_optimizer
from train.vit.config import PRESETS, Config, evaluation_sizes
from train.vit.model import Classifier

EXTENSIONS = ("none", "pi(stretch=True)")
TOKENS_AT_ONCE = 2**15
"""Test images of a chunk."""

TOY = {"size": 8, "width": 16, "layers": 1, "heads": 2, "batch": 8}


def config_of(data: str, pe: str, seed: int, epochs: int, toy: bool) -> Config:
    """Return the published grid's config: patches of 2 at 28 pixels, 14 x 14 of them, 8 heads and six layers."""
    chosen = {**PRESETS["table"], "heads": 8, "epochs": epochs, "warmup": 0.2 * epochs, **(TOY if toy else {})}
    return Config(preset="table", data=data, pe=pe, seed=seed, **chosen).validated()


def sizes_of(toy: bool, few: bool) -> tuple[int, ...]:
    """Return the sides of the test images: 6 x 6 to 32 x 32 patches."""
    if toy:
        return (8, 12)
    return (12, 20, 28, 44, 64) if few else evaluation_sizes(config_of("glyphs", "none", 0, 1, False))


@functools.lru_cache(maxsize=1)
def dataset(data: str, size: int) -> Any:
    """Return a data set; the last one is kept."""
    return load(data, size=size)


def make_epoch(folder: str, data: str, seed: int, epoch: int, toy: bool) -> dict[str, Any]:
    """Write the augmented batches of one epoch, which depend on the seed and the epoch alone."""
    config = config_of(data, "none", seed, 1, toy)
    ds = dataset(data, config.size)
    rng = np.random.default_rng([seed, epoch])
    steps = 2 if toy else len(ds.train) // config.batch
    order = rng.permutation(len(ds.train))[: steps * config.batch].reshape(steps, config.batch)
    augment = Augment(**{field.name: getattr(config, field.name) for field in dataclasses.fields(Augment)})
    made = [train_batch(ds, augment, range(config.batch), indices, rng) for indices in order]
    arrays = {name: np.stack([batch[name] for batch in made]) for name in ("image", "label")}
    _store(Path(folder) / f"{data}-{seed}-{epoch}.npz", **arrays, classes=len(ds.classes))
    return {"outcome": "made", "steps": steps}


def make_tests(folder: str, data: str, size: int, toy: bool) -> dict[str, Any]:
    """Write the test images of one size."""
    ds = dataset(data, config_of(data, "none", 0, 1, toy).size)
    source = ds.test(size)
    pixels, labels = source.batch(np.arange(len(source))[: 32 if toy else None])
    _store(Path(folder) / f"{data}-test-{size}.npz", image=normalize(pixels, ds), label=labels, classes=len(ds.classes))
    return {"outcome": "made"}


def _store(path: Path, **arrays: Any) -> None:
    partial = path.with_suffix(".partial.npz")
    np.savez(partial, **arrays)
    partial.replace(path)


class Trainer:
    """The compiled programs of one encoding on one data set.

    Args:
        folder: folder of the batches and the test images.
        data: name of the data set.
        pe: spec of the encoding.
        toy: a tiny model.
        few: test at a few sizes.
    """

    def __init__(self, folder: str, data: str, pe: str, toy: bool, few: bool) -> None:
        self.folder, self.data, self.pe, self.toy = Path(folder), data, pe, toy
        self.sizes = sizes_of(toy, few)
        with np.load(self.folder / f"{data}-test-{self.sizes[0]}.npz") as file:
            self.channels, self.classes = file["image"].shape[-1], int(file["classes"])
        config = config_of(data, pe, 0, 1, toy)
        self.model = self.classifier(config)
        self.optimizer = optax.chain(
            optax.scale_by_adam(b1=0.9, b2=0.999), optax.add_decayed_weights(config.weight_decay, decay_mask)
        )
        begun = time.perf_counter()
        self.draw = programs.compiled(self.first_state, np.uint32(0))
        params, opt, key = jax.eval_shape(self.first_state, np.uint32(0))
        images, labels = self.stored(0, 0)
        operands = params, opt, images, labels, np.zeros(len(images), np.float32), key, np.int32(0)
        epoch = jax.jit(self.epoch, donate_argnums=(0, 1))
        self.train = programs.compile_jitted(epoch, *programs.shapes_of(operands), on=programs.mesh())
        self.compiled = time.perf_counter() - begun

    def tested(self) -> list[tuple[str, int]]:
        """Return the tests by extension and size, the most wanted first: the trained size, then the farthest ones."""
        trained = config_of(self.data, self.pe, 0, 1, self.toy).size
        others = [size for size in self.sizes if size != trained]
        others.sort(key=lambda size: -abs(math.log(size / trained)))
        return [("none", trained), *((extend, size) for size in others for extend in EXTENSIONS)]

    def classifier(self, config: Config) -> Classifier:
        """Return the model of a config."""
        return Classifier(config, self.channels, self.classes)

    @functools.cache  # noqa: B019 - as long as its trainer
    def scorer(self, extend: str, size: int) -> Any:
        """Compile `(params, images, labels) -> correct`, in chunks; ValueError where the encoding refuses the size."""
        config = dataclasses.replace(config_of(self.data, self.pe, 0, 1, self.toy), extend=extend)
        classifier = self.classifier(config)

        def correct(params: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
            hits = lambda chunk: jnp.argmax(classifier.logits(params, chunk[0]), -1) == chunk[1]
            return jnp.sum(jax.lax.map(hits, (images, labels)), dtype=jnp.int32)

        try:
            return programs.compiled(correct, classifier.shapes, *self.tests(size))
        except ValueError as refused:
            return str(refused).splitlines()[0]

    def tests(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the test images of a size in chunks, filled with images of no class."""
        with np.load(self.folder / f"{self.data}-test-{size}.npz") as file:
            images, labels = file["image"], file["label"].astype(np.int32)
        chunk = min(len(labels), max(1, TOKENS_AT_ONCE // (size // 2) ** 2))
        count = math.ceil(len(labels) / chunk)
        fill = count * chunk - len(labels)
        images = np.pad(images, ((0, fill), (0, 0), (0, 0), (0, 0)))
        labels = np.pad(labels, (0, fill), constant_values=-1)
        return images.reshape(count, chunk, *images.shape[1:]), labels.reshape(count, chunk)

    def epoch(self, params: Any, opt: Any, images: Any, labels: Any, rates: Any, key: Any, first: Any) -> Any:
        """Return the parameters, the moments and the losses after the steps of an epoch.

        Args:
            params: parameters of the model.
            opt: the moments.
            images: `(steps, B, S, S, C)`.
            labels: `(steps, B)`.
            rates: the learning rate of every step.
            key: random key from which the keys of all steps are drawn, as in `train.vit`.
            first: number of the first step.
        """

        def step(state: tuple[Any, Any], batch: tuple[Any, ...]) -> tuple[tuple[Any, Any], Any]:
            image, label, rate, number = batch
            loss = jax.value_and_grad(self.model.loss, has_aux=True)
            (value, _), grads = loss(state[0], {"image": image, "label": label}, jax.random.fold_in(key, number))
            updates, opt = self.optimizer.update(grads, state[1], state[0])
            return (jax.tree.map(lambda leaf, update: leaf - rate * update, state[0], updates), opt), value

        numbers = first + jnp.arange(len(images), dtype=jnp.int32)
        (params, opt), losses = jax.lax.scan(step, (params, opt), (images, labels, rates, numbers))
        return params, opt, losses

    def begin(self, seed: int) -> tuple[Any, Any, Any]:
        """Return the parameters, the moments and the key of a seed, on the device."""
        return self.draw(programs.put(np.uint32(seed)))

    def first_state(self, seed: Any) -> tuple[Any, Any, Any]:
        """Return the same from a traced seed."""
        key = jax.random.key(seed)
        params = self.model.init(key)
        return params, self.optimizer.init(params), jax.random.split(key)[1]

    def batches(self, seed: int, epoch: int) -> tuple[Any, Any]:
        """Return the images and labels of an epoch, on the device."""
        return programs.put(self.stored(seed, epoch))

    def stored(self, seed: int, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the same, on the host."""
        with np.load(self.folder / f"{self.data}-{seed}-{epoch}.npz") as file:
            return file["image"], file["label"].astype(np.int32)

    def rates(self, epochs: int, per_epoch: int) -> np.ndarray:
        """Return the learning rate of every step of every epoch, `(epochs, per_epoch)`."""
        config = config_of(self.data, self.pe, 0, epochs, self.toy)
        total = epochs * per_epoch
        schedule = make_optimizer(config, total, round(config.warmup * per_epoch))[1]
        return np.asarray([schedule(number) for number in range(total)], np.float32).reshape(epochs, per_epoch)

    def score(self, params: Any, until: float) -> tuple[dict[str, dict[int, float]], dict[str, str]]:
        """Return top-1 in percent by extension and size, and why an extension was refused.

        Args:
            params: parameters of the model.
            until: the end of the time, of `time.monotonic`; tests that might end later are left out.
        """
        scores: dict[str, dict[int, float]] = {extend: {} for extend in EXTENSIONS}
        refused, slowest = {}, max(TEST, self.compiled)
        for number, (extend, size) in enumerate(self.tested()):
            begun = time.monotonic()
            if begun + slowest > until:
                break
            scorer = self.scorer(extend, size)
            if isinstance(scorer, str):
                refused[extend] = scorer
                continue
            images, labels = self.tests(size)
            right = int(scorer(params, *programs.put((images, labels))))
            scores[extend][size] = 100 * right / int((labels >= 0).sum())
            slowest = max(slowest if number else 0.0, 1.5 * (time.monotonic() - begun))
        trained = self.tested()[0][1]
        if scores[EXTENSIONS[1]] and trained in scores["none"]:  # which leaves the trained size as it is
            scores[EXTENSIONS[1]][trained] = scores["none"][trained]
        return scores, refused


TRAINERS: dict[tuple[str, str], Trainer] = {}
"""Compiled programs by data set and encoding."""


def trainer(folder: str, data: str, pe: str, toy: bool, few: bool) -> Trainer:
    """Return the compiled programs of an encoding."""
    if (data, pe) not in TRAINERS:
        TRAINERS[data, pe] = Trainer(folder, data, pe, toy, few)
    return TRAINERS[data, pe]


def ready() -> dict[str, Any]:
    """Import all that training needs."""
    return {"outcome": "made"}


def compile_epoch(folder: str, data: str, pe: str, toy: bool, few: bool) -> dict[str, Any]:
    """Compile the program that trains an encoding for an epoch; return the seconds."""
    return {"outcome": "made", "compiled": trainer(folder, data, pe, toy, few).compiled}


@functools.cache
def first_data(data: str, toy: bool, few: bool) -> tempfile.TemporaryDirectory:
    """Return a folder with the test images and the first batches; their shapes are what programs are made from."""
    folder = tempfile.TemporaryDirectory()
    for size in sizes_of(toy, few):
        make_tests(folder.name, data, size, toy)
    make_epoch(folder.name, data, 0, 0, toy)
    return folder


def make_ahead(data: str, pe: str, toy: bool, few: bool, tests: bool) -> dict[str, Any]:
    """Compile the program that trains an encoding for an epoch, or those that test it, without images of their own."""
    own = trainer(first_data(data, toy, few).name, data, pe, toy, few)
    refused = [own.scorer(extend, size) for extend, size in own.tested()] if tests else []
    return {"outcome": "made", "refused": [why for why in refused if isinstance(why, str)]}


def probe(folder: str, data: str, pe: str, toy: bool, few: bool) -> dict[str, Any]:
    """Train an encoding for an epoch; return the seconds."""
    own = trainer(folder, data, pe, toy, few)
    images, labels = own.batches(0, 0)
    params, opt, key = own.begin(0)
    begun = time.perf_counter()
    jax.block_until_ready(own.train(params, opt, images, labels, np.zeros(len(images), np.float32), key, np.int32(0)))
    return {"outcome": "made", "epoch": time.perf_counter() - begun}


def train(
    folder: str, data: str, pe: str, seed: int, epochs: int, toy: bool, few: bool, until: float
) -> dict[str, Any]:
    """Train an encoding with one seed, and test it at the sizes for which there is time.

    Args:
        folder: folder of the batches and the test images.
        data: name of the data set.
        pe: spec of the encoding.
        seed: seed of the parameters and the batches.
        epochs: passes over the training images.
        toy: a tiny model.
        few: test at a few sizes.
        until: the end of the time, of `time.monotonic`.
    """
    own, begun = trainer(folder, data, pe, toy, few), time.perf_counter()
    params, opt, key = own.begin(seed)
    rates, losses = None, jnp.zeros(1)
    for epoch in range(epochs):
        images, labels = own.batches(seed, epoch)
        rates = own.rates(epochs, len(images)) if rates is None else rates
        first = np.int32(epoch * len(images))
        params, opt, losses = own.train(params, opt, images, labels, rates[epoch], key, first)
    if not np.isfinite(losses).all():
        return {"outcome": "wrong", "message": "a loss was not finite"}
    trained = time.perf_counter() - begun
    top1, refused = own.score(params, until)
    if not top1["none"]:
        return {"outcome": "late", "message": f"trained in {trained:.0f} s, and no time was left to test"}
    told = f"{epochs} epochs, {max(top1['none'].values()):.1f} % at best, {trained:.0f} s"
    if missing := {size for _, size in own.tested()} - top1["none"].keys():
        told += f"; no time for {', '.join(map(str, sorted(missing)))} pixels"
    return {"outcome": "trained", "top1": top1, "refused": refused, "epochs": epochs, "message": told}
