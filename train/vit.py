"""Train a vision transformer with any positional encoding, then measure it at resolutions it never saw.

    python -m train.vit --pe=rope_mixed                           minutes on two cores, embedded images
    python -m train.vit --pe="rope_axial(base=50)" --data=glyphs
    python -m train.vit --resume --out=runs/rope_mixed-fashion-0  goes on where it was stopped
    python -m train.vit --init=runs/rope_mixed-fashion-0 --size=56 --epochs=2 --lr=1e-4
    python -m train.vit --help                                    every option

The run folder receives config.json, metrics.jsonl, tensorboard/, checkpoints/, results.json and results.png.
"""

import dataclasses
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from grain.experimental import ThreadPrefetchDatasetIterator
from jax.sharding import Mesh
from rich.console import Console

from train.augment import Augment
from train.checkpoint import CheckpointError, Checkpoints
from train.classify import SUMS, Classifier, resized
from train.config import (
    MODEL_FIELDS,
    Config,
    command,
    friendly,
    from_dict,
    load_config,
    parse,
    require_same,
    run_folder,
    save_config,
)
from train.data import CorruptImage, Dataset, load, train_batches
from train.evaluate import evaluate, publish, require_evaluable, restore_params
from train.loop import Plan, TrainState, init_state, make_step, run
from train.mesh import make_mesh, replicated, require_divisible

PREFETCHED = 4
"""Batches that the input pipeline prepares ahead, in a thread."""


class Session(NamedTuple):
    """A run that is ready to train: everything a user can get wrong has been read and checked."""

    config: Config
    folder: Path
    dataset: Dataset
    mesh: Mesh
    classifier: Classifier
    per_epoch: int
    step: Callable[[TrainState, Any], TrainState]
    schedule: Callable[[int], Any]
    state: TrainState
    data: ThreadPrefetchDatasetIterator
    checkpoints: Checkpoints


def main(argv: Sequence[str] | None = None) -> int:
    """Train and evaluate as the command line says; return the exit status."""
    console = Console(soft_wrap=True, highlight=False)
    with friendly(ValueError, TypeError, OSError):
        session = prepare(parse(argv), console)
    with friendly(CheckpointError, CorruptImage, OSError, FloatingPointError):
        return train(session, console)


def prepare(config: Config, console: Console) -> Session:
    """Read the data, build the model, and start it: from the seed, another run, or this run's last checkpoint.

    Raises:
        ValueError: what the data, the model, the encoding, the devices or a checkpoint refuse.
    """
    dataset = load(config.data, size=config.size)
    mesh = make_mesh(config.devices)
    require_divisible(config.batch, mesh)
    per_epoch = len(dataset.train) // config.batch
    if per_epoch == 0:
        raise ValueError(f"batch must be at most the {len(dataset.train)} training images, got {config.batch}")
    classifier = Classifier(config, dataset.channels, len(dataset.classes))
    require_evaluable(classifier)
    optimizer, schedule = classifier.optimizer(config.epochs * per_epoch, per_epoch)
    data = ThreadPrefetchDatasetIterator(
        train_batches(dataset, config.batch, config.seed, augmentation(config)), PREFETCHED
    )  # fmt: skip
    folder = make_folder(config)
    checkpoints = Checkpoints(folder, console.print)
    resuming = config.resume and bool(checkpoints.steps())
    params = classifier.init(jax.random.key(config.seed)) if resuming else start(classifier, dataset, mesh, console)
    state = jax.device_put(init_state(params, optimizer, SUMS), replicated(mesh))
    if resuming:
        state = resume(config, dataset, checkpoints, state, data, console)
    save_config(config, folder)
    console.print(json.dumps(dataclasses.asdict(config)))
    console.print(describe(classifier, dataset, mesh, state.params))
    console.print(classifier.laws(state.params))
    step = make_step(classifier.loss, optimizer, config.seed, mesh)
    return Session(
        config, folder, dataset, mesh, classifier, per_epoch, step, schedule, state, data, checkpoints
    )  # fmt: skip


def train(session: Session, console: Console) -> int:
    """Train to the end, or until stopped, then evaluate; return the exit status."""
    config, folder, checkpoints = session.config, session.folder, session.checkpoints
    steps = config.epochs * session.per_epoch
    plan = Plan(
        steps=steps,
        stop_at=config.stop_at,
        log_every=config.log_every,
        checkpoint_every=config.checkpoint_every,
        record={"run": dataclasses.asdict(config), "data": session.dataset.identity},
        extra=lambda step: {"epoch": step / session.per_epoch, "lr": float(session.schedule(step - 1))},
    )
    state, at, signal = run(
        session.step, session.state, session.data, plan,
        mesh=session.mesh, checkpoints=checkpoints, folder=folder, console=console,
    )  # fmt: skip
    session.data.close()
    checkpoints.close()
    if at < steps:
        console.print(f"stopped at step {at} of {steps}, saved; go on with: {command(config)}")
        return 128 + signal if signal else 0
    found = evaluate(session.classifier, state.params, session.dataset, session.mesh, step=at, console=console)
    publish(found, folder, console)
    return 0


def augmentation(config: Config) -> Augment:
    """Return what is done to the training images."""
    return Augment(**{field.name: getattr(config, field.name) for field in dataclasses.fields(Augment)})


def make_folder(config: Config) -> Path:
    """Make the run folder, and see that no earlier run is overwritten by accident.

    Raises:
        ValueError: it holds a run, and neither --resume nor --overwrite was given.
    """
    folder = run_folder(config)
    if (folder / "config.json").exists() and not config.resume:
        if not config.overwrite:
            raise ValueError(f"{folder} holds a run already: give --resume, --overwrite or another --out")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def start(classifier: Classifier, dataset: Dataset, mesh: Mesh, console: Console) -> Any:
    """Return the parameters to start from: drawn from the seed, or those of the run `init`, fitted to this size."""
    config = classifier.config
    if not config.init:
        return classifier.init(jax.random.key(config.seed))
    folder = Path(config.init)
    before = load_config(folder)
    for name in MODEL_FIELDS:
        was, now = getattr(before, name), getattr(config, name)
        if was != now:
            raise ValueError(f"the model of {folder} has {name}={was!r}, this run has {name}={now!r}")
    trained = Classifier(before, dataset.channels, len(dataset.classes))
    step, params = restore_params(trained, folder, mesh, console)
    console.print(f"starting from step {step} of {folder}, trained at {before.size} px")
    return resized(trained, classifier, params)


def resume(
    config: Config,
    dataset: Dataset,
    checkpoints: Checkpoints,
    state: TrainState,
    data: ThreadPrefetchDatasetIterator,
    console: Console,
) -> TrainState:
    """Return the state of the newest whole checkpoint, the data moved to its place.

    Raises:
        ValueError: it was made by another configuration or on other data, or none is whole.
    """

    def check(record: dict[str, Any]) -> None:
        require_same(from_dict(record["run"]), config)
        if record["data"] != dataset.identity:
            raise ValueError(f"the checkpoint was made on {record['data']}, this run has {dataset.identity}")

    step, state = checkpoints.restore(state, data, check)
    checkpoints.discard_after(step)
    console.print(f"going on from step {step}")
    return state


def describe(classifier: Classifier, dataset: Dataset, mesh: Mesh, params: Any) -> str:
    """Return one line on the run: encoding, parameters, tokens, images and devices."""
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    grid: Any = classifier.dims.extent
    kind = mesh.devices.flat[0].device_kind
    return (
        f"{classifier.config.pe} · {count:,} parameters · {grid[0]}x{grid[1]} patches · {dataset.identity}, "
        f"{len(dataset.train):,} images · {mesh.size} x {kind}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
