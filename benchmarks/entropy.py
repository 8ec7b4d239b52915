"""The number of keys that heads of trained vision transformers attend to, at the trained size and beyond: JSON lines.

    python -m benchmarks.entropy runs/alibi-fashion-0
    python -m benchmarks.entropy runs/*-fashion-0 --extend=pi --images=512

    effective keys = e^H,   H = -Σ_j w_ij ln w_ij, the mean over test images and up to 64 queries per image

One line per run and size holds the effective number of keys of every layer and head, one per run how far it moves from
the trained size to the largest one, and what top-1 is lost between the two, as the run's results say:

    shift = mean over layers and heads of |ln(effective keys at the largest size / at the trained size)|

With at least three runs, the last line is Spearman's rank correlation of shift and loss over the runs.
"""

if __name__ == "__main__":  # before anything heavy is imported
    from train.devices.cpu import prepare_cpu

    prepare_cpu()

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float
from rich.console import Console

from train.data.images import Dataset, evaluation_batches, load
from train.devices.mesh import make_mesh
from train.engine.attention_entropy import EntropyExecution
from train.engine.config import split_list
from train.engine.results import results_stem
from train.engine.session import restore_params
from train.engine.stopping import report_errors
from train.engine.stored_config import load_config
from train.engine.terminal import user_console
from train.vit.config import Config, evaluation_sizes
from train.vit.model import SUMS, Classifier
from train.vit.results import ResolutionResults

AT_ONCE = 32
"""Images per launch: their weights are 64 queries times all keys in every head."""

FEWEST = 3
"""Runs from which ranks are correlated."""


def effective_keys(classifier: Classifier, params: Any, images: Float[np.ndarray, "N h w C"]) -> np.ndarray:
    """Return e^entropy of the attention to images of one size, by layer and head `(L, H)`.

    Args:
        classifier: model of the run; its config says how the encoding is extended.
        params: trained.
        images: any number of one size.
    """

    @jax.jit
    def entropies(params: Any, images: Array) -> Array:
        watching = EntropyExecution(axes=2, heads=True)
        classifier.logits(params, images, execution=watching)
        return watching.entropies[0][0]

    parts = [images[start : start + AT_ONCE] for start in range(0, len(images), AT_ONCE)]
    weighed = [len(part) * np.asarray(entropies(params, jnp.asarray(part)), np.float64) for part in parts]
    return np.exp(np.sum(weighed, axis=0) / len(images))


def measured_sizes(config: Config) -> list[int]:
    """Return the trained size and the larger ones that the run was evaluated at."""
    return sorted({config.size, *(size for size in evaluation_sizes(config) if size > config.size)})


def top1_lost(folder: Path, config: Config, largest: int) -> float:
    """Return the points of top-1 that a run loses from its trained size to the largest one.

    Raises:
        ValueError: results that lack one of the two sizes, or no results.
    """
    path = folder / f"{results_stem(config.extend)}.json"
    found = {row.size: 100 * row.top1 for row in ResolutionResults.load(path).rows}
    for size in (config.size, largest):
        if size not in found:
            raise ValueError(f"results must have {size} px, got {path} with {', '.join(map(str, found))}")
    return found[config.size] - found[largest]


def measure(folder: Path, extend: str, images: int, console: Console) -> dict[str, Any]:
    """Print the lines of one run, and return the last of them.

    Args:
        folder: run folder.
        extend: extension in place of the run's own; empty = its own, the first if there are several.
        images: test images to measure.
        console: prints messages.
    """
    config = load_config(Config, folder)
    evaluated = split_list(config.extend or "none", "extend")[0]
    config = dataclasses.replace(config, extend=extend or evaluated, out=str(folder)).validated()
    dataset: Dataset = load(config.data, size=config.size, validation=config.validation)
    classifier = Classifier(config, dataset.channels, len(dataset.classes))
    sizes = measured_sizes(config)
    lost = top1_lost(folder, config, sizes[-1])
    _, params = restore_params(config, classifier, SUMS, folder, make_mesh(1), console)
    name = {"run": str(folder), "pe": config.pe, "extend": config.extend}
    found = {}
    for size in sizes:
        shown = next(evaluation_batches(dataset, size, images))["image"]
        found[size] = effective_keys(classifier, params, shown)
        tokens = classifier.prototype.prefix + (size // config.patch) ** 2
        rounded = np.round(found[size], 3).tolist()
        say({**name, "size": size, "tokens": tokens, "images": len(shown), "effective_keys": rounded})
    shift = float(np.mean(np.abs(np.log(found[sizes[-1]] / found[sizes[0]]))))
    return say({**name, "sizes": [sizes[0], sizes[-1]], "shift": round(shift, 4), "top1_lost": round(lost, 2)})


def say(record: dict[str, Any]) -> dict[str, Any]:
    """Print a record as one line, and return it."""
    print(json.dumps(record), flush=True)
    return record


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    about = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.entropy", description=about)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folders of finished runs of train.vit")
    parser.add_argument("--images", type=int, default=256, help="test images to measure (default 256)")
    parser.add_argument("--extend", default="", help="none or pi, in place of the run's own")
    chosen = parser.parse_args(argv)
    if chosen.images < 1:
        parser.error(f"--images must be at least 1, got {chosen.images}")
    console = user_console(stderr=True)
    with report_errors(ValueError, TypeError, OSError):
        ends = [measure(folder, chosen.extend, chosen.images, console) for folder in chosen.runs]
    if len(ends) >= FEWEST:
        rank: Any = scipy.stats.spearmanr([end["shift"] for end in ends], [end["top1_lost"] for end in ends])
        say({"runs": len(ends), "spearman": round(float(rank.statistic), 4), "p": round(float(rank.pvalue), 4)})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
