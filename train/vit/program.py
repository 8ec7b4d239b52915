"""Train a vision transformer with any positional encoding, then evaluate it at many resolutions.

    python -m train.vit --pe=rope_mixed                           minutes on two cores, embedded images
    python -m train.vit --pe="rope_axial(base=50)" --data=glyphs
    python -m train.vit --preset=imagenet100 --data=folder:PATH   ViT-S/16 at 224 px; deit3_rope: RoPE's 400 epochs
    python -m train.vit --resume --out=runs/rope_mixed-fashion-0  resumes a stopped run
    python -m train.vit --init=runs/rope_mixed-fashion-0 --size=56 --epochs=2 --lr=1e-4
    python -m train.vit --help                                    every option

The run folder then has config.json, environment.json, metrics.jsonl, tensorboard/, checkpoints/, results.json and
results.png.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial

import jax

from train.data.images import CorruptImage, load, train_batches
from train.data.images.augment import Augment
from train.devices.flops import vit_flops
from train.devices.memory import FLOAT, host_memory, require_room
from train.engine import session
from train.engine.progress import IMAGES
from train.engine.task import Program, Task
from train.vit import step
from train.vit.config import Config, evaluation_sizes
from train.vit.evaluate import evaluate
from train.vit.model import SUMS, Classifier, require_evaluable, require_trainable_positions, resized_params
from train.vit.results import ResolutionResults


def make_task(config: Config) -> Task:
    """Read the data and build the model.

    Raises:
        ValueError: the config does not fit the data, the model or the encoding.
    """
    for side in (config.size, *evaluation_sizes(config)):
        require_room(FLOAT * side**2, host_memory(), f"an image of {side} x {side} pixels")
    what = f"a batch of {config.batch} images of {config.size} x {config.size} pixels"
    require_room(FLOAT * config.batch * config.size**2, host_memory() * jax.process_count(), what)
    _model(config, channels=3, classes=2)  # settings are refused before data are read
    dataset = load(config.data, size=config.size, validation=config.validation)
    per_epoch = len(dataset.train) // config.batch
    if per_epoch == 0:
        raise ValueError(f"batch must be at most the {len(dataset.train)} training images, got {config.batch}")
    classifier = _model(config, dataset.channels, len(dataset.classes))
    height, width = classifier.vit.grid
    augment = Augment(**{field.name: getattr(config, field.name) for field in dataclasses.fields(Augment)})
    return Task(
        split=classifier,
        identity=dataset.identity,
        about=f"{height}x{width} patches · {dataset.identity}, {len(dataset.train):,} images",
        unit=IMAGES,
        sums=SUMS,
        steps=config.epochs * per_epoch,
        restarts=tuple(epochs * per_epoch for epochs in config.restarts),
        per_epoch=per_epoch,
        warmup=round(config.warmup * per_epoch),
        batches=partial(train_batches, dataset, config.batch, config.seed, augment),
        loss=classifier.loss,
        kv_heads=config.heads,
        length=classifier.prototype.prefix + height * width,
        laws=classifier.laws,
        init_split=lambda before: Classifier(before, dataset.channels, len(dataset.classes)),
        params_from_init=lambda before, params: resized_params(before, classifier, params),
        evaluate=partial(evaluate, classifier, dataset),
        probe=classifier.prober(dataset) if config.probe_every else None,
        probe_every=config.probe_every,
        flops=vit_flops(classifier.vit, config.batch),
        head_entropies=partial(classifier.head_entropies, dataset),
    )


def _model(config: Config, channels: int, classes: int) -> Classifier:
    """Return the model, whose encoding supports every size and the positions of training."""
    classifier = Classifier(config, channels, classes)
    require_evaluable(classifier)
    require_trainable_positions(classifier)
    return classifier


PROGRAM = Program(
    config=Config,
    task=make_task,
    results=ResolutionResults,
    model=step.make_model,
    step=step.abstract_step,
    errors=(CorruptImage,),
    comparison='--extend="none,pi(stretch=True)"',
    docstring=__doc__ or "",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    return session.main(PROGRAM, argv)
