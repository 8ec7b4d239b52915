"""Train a diffusion transformer with any positional encoding, then sample pictures larger than in training.

    python -m train.dit --pe=rope_axial                       minutes on two cores, letters of embedded outlines
    python -m train.dit --pe=learned --eval_shapes=28,56,28x56,56x28
    python -m train.dit --preset=gpu --pe=rope_mixed          clothes at patches of 2, up to three times the size
    python -m train.dit --resume --out=runs/rope_axial-glyphs-0        resumes a stopped run
    python -m train.evaluate runs/rope_axial-glyphs-0 --extend="none,yarn(beta_fast=8)"   samples again
    python -m train.dit --help                                every option

The run folder then has config.json, environment.json, metrics.jsonl, tensorboard/, checkpoints/, results.json,
results.png and samples.png, the pictures. Beside it is the classifier that judges the pictures of all runs on the same
data and shapes.
"""

from collections.abc import Sequence
from functools import partial

import jax

from train.data.images import CorruptImage, load, train_batches
from train.data.images.augment import Augment
from train.devices.flops import dit_flops
from train.devices.memory import FLOAT, host_memory, require_room
from train.dit.config import Config
from train.dit.evaluate import evaluate
from train.dit.model import SUMS, Sampler
from train.dit.results import SampleResults
from train.engine import session
from train.engine.progress import IMAGES
from train.engine.task import Program, Task, params_from_init


def make_task(config: Config) -> Task:
    """Read the data and build the model.

    Raises:
        ValueError: the config does not fit the data, the model or the encoding.
    """
    for height, width in config.shapes:
        require_room(FLOAT * height * width, host_memory(), f"an image of {height} x {width} pixels")
    what = f"a batch of {config.batch} images of {config.size} x {config.size} pixels"
    require_room(FLOAT * config.batch * config.size**2, host_memory() * jax.process_count(), what)
    dataset = load(config.data, size=config.size, validation=config.validation)
    if config.batch > len(dataset.train):
        raise ValueError(f"batch must be at most the {len(dataset.train)} training images, got {config.batch}")
    sampler = Sampler(config, dataset.channels, len(dataset.classes))
    refused = sampler.refusal("", config.shapes[0])
    if refused:
        raise ValueError(refused)
    height, width = sampler.dit.grid
    return Task(
        split=sampler,
        identity=dataset.identity,
        about=f"{height}x{width} patches · {dataset.identity}, {len(dataset.train):,} images",
        unit=IMAGES,
        sums=SUMS,
        steps=config.steps,
        restarts=config.restarts,
        per_epoch=len(dataset.train) // config.batch,
        warmup=config.warmup,
        batches=partial(train_batches, dataset, config.batch, config.seed, Augment()),
        loss=sampler.loss,
        kv_heads=config.heads,
        length=height * width,
        laws=sampler.laws,
        init_split=lambda before: Sampler(before, dataset.channels, len(dataset.classes)),
        params_from_init=lambda _, params: params_from_init(config, sampler.shapes, params),
        evaluate=partial(evaluate, sampler, dataset),
        flops=dit_flops(sampler.dit, config.batch),
        head_entropies=partial(sampler.head_entropies, dataset),
    )


PROGRAM = Program(
    config=Config,
    task=make_task,
    results=SampleResults,
    errors=(CorruptImage,),
    comparison="--task=dit --extend=none,pi",
    docstring=__doc__ or "",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    return session.main(PROGRAM, argv)
