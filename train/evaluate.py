"""Top-1 of a trained run at many resolutions, and many runs side by side.

    python -m train.evaluate runs/rope_mixed-fashion-0                  evaluates the newest checkpoint again
    python -m train.evaluate runs/rope_mixed-fashion-0 --extend=pi      with positions squeezed beyond the trained size
    python -m train.evaluate --compare runs/* --to=comparison           one table and one figure of what was found

Files are written into the run folder, those of `--compare` where `--to` says.
"""

import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array
from rich.console import Console

from train.checkpoint import Checkpoints
from train.classify import SUMS, Classifier
from train.config import Parser, evaluation_sizes, friendly, from_dict, load_config, require_same, validated
from train.data import Dataset, load, evaluation_batches
from train.loop import init_state
from train.mesh import make_mesh, put_batch, replicated, split_batch
from train.results import Results, Row, draw, load_results, markdown

WEIGHTS_AT_ONCE = {"cpu": 2**21, "gpu": 2**28, "tpu": 2**27}
"""Attention weights of an evaluation batch on one device: a cache full, or a small part of the memory."""

IMAGES_AT_ONCE = 256
"""Images of an evaluation batch on one device, at most."""


def evaluate(
    classifier: Classifier, params: Any, dataset: Dataset, mesh: Mesh, *, step: int, console: Console
) -> Results:
    """Return top-1 at every size the config asks for, over the whole test split.

    Args:
        classifier: of the run.
        params: trained.
        dataset: whose test split to use.
        mesh: that the batches are split over.
        step: of the checkpoint, for the record.
        console: of the user.

    Raises:
        ValueError: an encoding that cannot serve a size, or positions that were squeezed.
    """
    config = classifier.config
    rows = []
    with console.status("evaluating") as status:
        for size in evaluation_sizes(config):
            status.update(f"evaluating at {size} px")
            rows.append(evaluate_size(classifier, params, dataset, mesh, size))
    return Results(
        name=config.pe, data=config.data, trained=config.size, step=step, extend=config.extend, note=dataset.note,
        rows=tuple(rows),
    )  # fmt: skip


def require_evaluable(classifier: Classifier) -> None:
    """Trace the evaluation at the smallest and the largest size, so that a refusal comes before the training.

    Raises:
        ValueError: what the encoding refuses.
    """
    sizes = evaluation_sizes(classifier.config)
    for size in {min(sizes), max(sizes)}:
        image = jax.ShapeDtypeStruct((1, size, size, classifier.vit.channels), jnp.float32)
        jax.eval_shape(partial(classifier.logits, extend=classifier.config.extend), classifier.shapes, image)


def evaluate_size(classifier: Classifier, params: Any, dataset: Dataset, mesh: Mesh, size: int) -> Row:
    """Return top-1 at one size."""
    config = classifier.config
    tokens = (size // config.patch) ** 2
    weights = WEIGHTS_AT_ONCE[mesh.devices.flat[0].platform] // (tokens**2 * config.heads)
    batch = mesh.size * min(max(1, weights), IMAGES_AT_ONCE)
    whole, split = replicated(mesh), split_batch(mesh)

    @partial(jax.jit, in_shardings=(whole, split), out_shardings=whole)
    def correct(params: Any, batch: Mapping[str, Array]) -> Array:
        logits = classifier.logits(params, batch["image"], extend=config.extend)
        return jnp.sum((jnp.argmax(logits, -1) == batch["label"]).astype(jnp.int32))

    found, count = [], 0
    for host in limited(evaluation_batches(dataset, size, batch), config.eval_limit):
        count += len(host["label"])
        found.append(correct(params, put_batch(padded(host, batch), mesh)))
    return Row(size, tokens, sum(map(int, found)), count)


def limited(batches: Iterator[Mapping[str, np.ndarray]], limit: int) -> Iterator[Mapping[str, np.ndarray]]:
    """Yield the batches of the first `limit` images, or all of them when 0."""
    left = limit or sys.maxsize
    for batch in batches:
        yield {name: array[:left] for name, array in batch.items()}
        left -= len(batch["label"])
        if left <= 0:
            return


def padded(batch: Mapping[str, np.ndarray], size: int) -> dict[str, np.ndarray]:
    """Return the batch filled up to `size` images, those added with a label that no logit can match."""
    short = size - len(batch["label"])
    image = np.pad(batch["image"], ((0, short), (0, 0), (0, 0), (0, 0)))
    return {"image": image, "label": np.pad(batch["label"], (0, short), constant_values=-1)}


@dataclasses.dataclass(frozen=True)
class Options:
    """Evaluate a run again, or compare runs."""

    extend: str = ""  # none or pi; the run's own when empty
    eval_sizes: tuple[int, ...] = ()  # image sides; the run's own when empty
    eval_limit: int = 0  # test images; 0 = all
    to: str = "comparison"  # with --compare: the files to write, without .md and .png


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = Parser(prog="python -m train.evaluate")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_DIR", help="run folders")
    parser.add_argument(
        "--compare", action="store_true", help="one table and one figure of what was found there before"
    )
    parser.add_arguments(Options, dest="options")
    arguments = parser.parse_args(argv)
    options, console = arguments.options, Console(soft_wrap=True, highlight=False)
    with friendly(ValueError, TypeError, OSError):
        if arguments.compare:
            compare([load_results(path) for path in result_files(arguments.runs, options.extend)], Path(options.to))
            console.print(f"wrote {options.to}.md and {options.to}.png")
            return 0
        for folder in arguments.runs:
            evaluate_run(folder, options, console)
    return 0


def evaluate_run(folder: Path, options: Options, console: Console) -> None:
    """Evaluate the newest checkpoint of a run folder, print the table and write the files beside it."""
    config = load_config(folder)
    given = {name: getattr(options, name) for name in ("extend", "eval_sizes", "eval_limit")}
    changes = {name: value for name, value in given.items() if value}
    config = validated(dataclasses.replace(config, **changes, out=str(folder)))
    dataset = load(config.data, size=config.size)
    mesh = make_mesh(config.devices)
    classifier = Classifier(config, dataset.channels, len(dataset.classes))
    step, params = restore_params(classifier, folder, mesh, console)
    publish(evaluate(classifier, params, dataset, mesh, step=step, console=console), folder, console)


def restore_params(classifier: Classifier, folder: Path, mesh: Mesh, console: Console) -> tuple[int, Any]:
    """Return the step and the parameters of the newest whole checkpoint of a run folder.

    Raises:
        ValueError: there is none, or it was made by another configuration than the run's config.json says.
    """
    optimizer, _ = classifier.optimizer(1, 1)
    shapes = jax.eval_shape(lambda params: init_state(params, optimizer, SUMS), classifier.shapes)
    on_mesh = lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=replicated(mesh))  # noqa: E731
    checkpoints = Checkpoints(folder, console.print)
    check = lambda record: require_same(from_dict(record["run"]), classifier.config)  # noqa: E731
    step, state = checkpoints.restore(jax.tree.map(on_mesh, shapes), None, check)
    checkpoints.close()
    return step, state.params


def publish(results: Results, folder: Path, console: Console) -> None:
    """Print the table and write JSON and figure into the run folder."""
    results.save(folder)
    console.print(results.table())
    console.print(f"wrote {folder / results.stem}.json and .png")


def result_files(folders: Sequence[Path], extend: str) -> list[Path]:
    """Return the result files of the run folders: all of each, or those of one way to extend."""
    wanted = {"": "results*.json", "none": "results.json"}.get(extend, f"results-{extend}.json")
    found = [path for folder in folders for path in sorted(folder.glob(wanted))]
    if not found:
        raise ValueError(f"a comparison needs run folders with {wanted}, got {', '.join(map(str, folders))}")
    return found


def compare(runs: Sequence[Results], to: Path) -> None:
    """Write one markdown table and one figure of many runs."""
    to.parent.mkdir(parents=True, exist_ok=True)
    Path(f"{to}.md").write_text(markdown(runs))
    draw(runs, Path(f"{to}.png"))


if __name__ == "__main__":
    raise SystemExit(main())
