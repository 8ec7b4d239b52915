"""A figure of what trained diffusion transformers sample at one size: a row per run and extension, from the same noise.

    python -m benchmarks.sampled runs/rope_axial-glyphs-0 runs/learned-glyphs-0 --shape=56x56 --out=sampled.png

The runs are folders of `train.dit` with encodings of pejax, on the same data and of the same size.
"""

if __name__ == "__main__":  # before anything heavy is imported
    from train.devices.cpu import finish, prepare_cpu

    prepare_cpu()

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from train.data.images import Dataset, load
from train.devices.mesh import make_mesh
from train.dit.config import Config, Shape
from train.dit.evaluate import SHOWN, Pass, sample_passes
from train.dit.grid import draw_grid
from train.dit.model import SUMS, Sampler
from train.dit.pictures import size_of, true_pictures
from train.engine.outside import require_named
from train.engine.session import restore_params
from train.engine.stopping import report_errors
from train.engine.stored_config import load_config
from train.engine.terminal import user_console


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sampled", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_DIR", help="run folders")
    parser.add_argument("--shape", default="56x56", help="height x width, pixels (default: 56x56)")
    parser.add_argument("--out", type=Path, default=Path("sampled.png"), metavar="FILE", help="the figure to write")
    parser.add_argument("--data", default="", help="data of the runs, needed where it is in files")
    chosen = parser.parse_args(argv)
    with report_errors(ValueError, TypeError, OSError):
        draw(chosen.runs, chosen.shape, chosen.data, chosen.out)
    print(f"wrote {chosen.out}")
    return 0


def draw(runs: Sequence[Path], shape_text: str, data: str, out: Path) -> None:
    """Write the figure.

    Args:
        runs: run folders.
        shape_text: "HEIGHTxWIDTH", pixels.
        data: data of the runs as the command line names it; empty where it is not in files.
        out: the figure.

    Raises:
        ValueError: runs of other programs, of different data or sizes, or a shape that their patches do not divide.
    """
    changes = {"eval_limit": SHOWN, "eval_shapes": shape_text, "extend": ""}
    configs = [
        dataclasses.replace(load_config(Config, folder), **changes, out=str(folder)).validated() for folder in runs
    ]
    for folder, config in zip(runs, configs, strict=True):
        require_named(config, folder, data)
    first, shape = configs[0], configs[0].shapes[-1]
    kinds = sorted({(config.data, config.size) for config in configs})
    if len(kinds) > 1:
        raise ValueError(f"runs must be of the same data and size, got {kinds}")
    dataset = load(first.data, size=first.size, validation=first.validation)
    rows = {label: images for config in configs for label, images in sampled_rows(config, dataset, shape).items()}
    true = true_pictures(dataset, dataset.test(*size_of(shape)), shape, np.arange(SHOWN)).images
    sampled = {(label, shape): images for label, images in rows.items()}
    title = f"{first.data}, trained at {first.trained}"
    draw_grid(out, dataset, first.shapes[0], {shape: true}, sampled, title)


def sampled_rows(config: Config, dataset: Dataset, shape: Shape) -> dict[str, np.ndarray]:
    """Return the pictures of a run at one shape: by its encoding, and the extension with which they were sampled."""
    console, mesh = user_console(), make_mesh(config.devices)
    sampler = Sampler(config, dataset.channels, len(dataset.classes))
    _, params = restore_params(config, sampler, SUMS, Path(config.out), mesh, console)
    passes = [Pass(extend, shape, sampler.refusal(extend, shape)) for extend in sampler.extended]
    found = sample_passes(sampler, dataset, params, passes, mesh, console)
    label = lambda extend: config.pe if extend == "none" else f"{config.pe}, {extend}"
    return {label(one.extend): pictures.images for one, pictures in found if pictures is not None}


if __name__ == "__main__":
    finish(main)
