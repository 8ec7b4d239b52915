"""Train a diffusion transformer with any positional encoding, then sample larger pictures or longer videos.

    python -m train.dit --pe=rope_axial                       minutes on two cores, letters of embedded outlines
    python -m train.dit --pe=learned --eval_shapes=28,56,28x56,56x28
    python -m train.dit --preset=gpu --pe=rope_mixed          clothes at patches of 2, up to three times the size
    python -m train.dit --preset=video                        moving letters, 8 frames in training, 16 sampled
    python -m train.dit --frames=8 --data=moving_glyphs --eval_shapes=16x28x28,8x42x42
    python -m train.dit --resume --out=runs/rope_axial-glyphs-0        resumes a stopped run
    python -m train.evaluate runs/rope_axial-glyphs-0 --extend="none,yarn(beta_fast=8)"   samples again
    python -m train.dit --help                                every option

The run folder then has config.json, environment.json, metrics.jsonl, tensorboard/, checkpoints/, results.json,
results.png and samples.png, the pictures. The classifier that judges the pictures of all runs on the same data and
shapes is kept in the cache of the user; results.json has its digest.
"""

import math
from collections.abc import Sequence
from functools import partial

import jax

from train.data.images import CorruptImage, load, train_batches
from train.data.images.augment import Augment
from train.devices.flops import dit_flops
from train.devices.memory import FLOAT, host_memory, require_room
from train.dit import step
from train.dit.config import Config, in_words
from train.dit.evaluate import evaluate
from train.dit.model import SUMS, Sampler
from train.dit.results import SampleResults
from train.engine import session
from train.engine.progress import IMAGES, VIDEOS
from train.engine.task import Program, Task, params_from_init


def make_task(config: Config) -> Task:
    """Read the data and build the model.

    Raises:
        ValueError: the config does not fit the data, the model or the encoding.
    """
    for shape in config.shapes:
        require_room(FLOAT * math.prod(shape), host_memory(), f"an image of {in_words(shape)} pixels")
    training_shape, memory = config.shapes[0], host_memory() * jax.process_count()
    what = f"a batch of {config.batch} images of {in_words(training_shape)} pixels"
    require_room(FLOAT * config.batch * math.prod(training_shape), memory, what)
    _model(config, channels=1, classes=2)  # settings are refused before data are drawn or read
    dataset = load(config.data, size=config.size, validation=config.validation, frames=config.frames)
    kind = "videos" if config.frames else "images"
    if config.batch > len(dataset.train):
        raise ValueError(f"batch must be at most the {len(dataset.train)} training {kind}, got {config.batch}")
    sampler = _model(config, dataset.channels, len(dataset.classes))
    grid = sampler.dit.grid
    return Task(
        split=sampler,
        identity=dataset.identity,
        about=f"{'x'.join(map(str, grid))} patches · {dataset.identity}, {len(dataset.train):,} {kind}",
        unit=VIDEOS if config.frames else IMAGES,
        sums=SUMS,
        steps=config.steps,
        restarts=config.restarts,
        per_epoch=len(dataset.train) // config.batch,
        warmup=config.warmup,
        batches=partial(train_batches, dataset, config.batch, config.seed, Augment()),
        loss=sampler.loss,
        kv_heads=config.heads,
        length=math.prod(grid),
        laws=sampler.laws,
        init_split=lambda before: Sampler(before, dataset.channels, len(dataset.classes)),
        params_from_init=lambda _, params: params_from_init(config, sampler.shapes, params),
        evaluate=partial(evaluate, sampler, dataset),
        flops=dit_flops(sampler.dit, config.batch),
        head_entropies=partial(sampler.head_entropies, dataset),
    )


def _model(config: Config, channels: int, classes: int) -> Sampler:
    """Return the model, whose encoding supports the trained shape."""
    sampler = Sampler(config, channels, classes)
    reason = sampler.refusal(extend="", shape=config.shapes[0])
    if reason:
        raise ValueError(reason)
    return sampler


PROGRAM = Program(
    config=Config,
    task=make_task,
    results=SampleResults,
    model=step.make_model,
    step=step.abstract_step,
    errors=(CorruptImage,),
    comparison="--task=dit --extend=none,pi",
    docstring=__doc__ or "",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    return session.main(PROGRAM, argv)
