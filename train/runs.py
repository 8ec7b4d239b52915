"""Trained runs in Python."""

from pathlib import Path
from typing import NamedTuple

from flax import nnx

from train.devices.mesh import make_mesh
from train.engine.config import RunConfig
from train.engine.outside import require_named
from train.engine.run_folder import RunFolder
from train.engine.session import restore_params
from train.engine.terminal import user_console


class LoadedRun(NamedTuple):
    """A trained run.

    Attributes:
        model: a `Decoder`, `ViT`, `DiT` or `EncoderDecoder` of Flax NNX; of a run with `--ema`, with averaged weights.
        config: settings of the run.
        step: number of training steps.
    """

    model: nnx.Module
    config: RunConfig
    step: int


def load_run(folder: str | Path, *, data: str = "", pe: str = "") -> LoadedRun:
    """Load the model of a run of `train.vit`, `train.lm`, `train.seq2seq` or `train.dit`, on one device.

    Args:
        folder: run folder. The weights are those of its newest intact checkpoint.
        data: data of the run, as `--data` gave them, required if they are in files: they say what the model predicts,
            and a run folder alone makes no file be opened.
        pe: encoding of the run, as `--pe` gave it, required if it is in a module of your own, whose import runs it.

    Raises:
        ValueError: a folder without such a run or without an intact checkpoint, or files or modules that are not named.

    Examples:
        >>> model, config, step = load_run("runs/rope-shakespeare-0")  # doctest: +SKIP
    """
    run, folder = RunFolder(folder), Path(folder)
    if run.name == "tune":
        raise ValueError(f"the model of a run of train.tune is in its folder: pejax.interop.load('{folder}/model')")
    config = run.config
    require_named(config, folder, data, pe=pe)
    task = run.program.task(config)
    console = user_console(stderr=True)
    step, params = restore_params(config, task.split, task.sums, folder, make_mesh(1), console)
    return LoadedRun(task.split.model(params), config, step)
