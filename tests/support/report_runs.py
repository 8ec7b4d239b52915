"""Run folders as trainers leave them, written without training, for the tests of reports."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support import measured
from train.engine.stored_config import save_config
from train.lm import config as lm_config
from train.lm.results import PerplexityResults
from train.vit import config as vit_config
from train.vit.results import ResolutionResults

STEPS = (10, 20, 30)


def vit_run(
    folder: Path, pe: str, seed: int, top1: Mapping[int, int], *, extend: str = "none", count: int = 100, **config: Any
) -> Path:
    """Write a run of `train.vit`: images of each size that are right, of `count`."""
    settings = vit_config.Config(pe=pe, seed=seed, out=str(folder), **config)
    numbers = measured.top1(top1, count)
    results = ResolutionResults(pe, settings.data, settings.size, STEPS[-1], extend, "the data", numbers)
    _write(folder, settings, {"top1": 0.5, "images_per_second": 100.0})
    results.store(folder)
    return folder


def add_extension(folder: Path, extend: str, top1: Mapping[int, int], count: int = 100) -> None:
    """Write another evaluation of a run of `train.vit`: the same weights with an extension."""
    results = ResolutionResults.load(folder / "results.json")
    dataclasses.replace(results, extend=extend, numbers=measured.top1(top1, count)).store(folder)


def lm_run(folder: Path, pe: str, seed: int, losses: Mapping[int, float | str], **config: Any) -> Path:
    """Write a run of `train.lm`: the loss at each length in nats, or why it is refused."""
    settings = lm_config.Config(pe=pe, seed=seed, out=str(folder), **config).validated()
    numbers = measured.perplexities(losses)
    results = PerplexityResults(pe, settings.data, settings.length, STEPS[-1], "none", "the text", numbers)
    _write(folder, settings, {"tokens_per_second": 100.0})
    results.store(folder)
    return folder


def _write(folder: Path, settings: Any, figures: Mapping[str, float]) -> None:
    folder.mkdir(parents=True)
    save_config(settings, folder)
    lines = [{"step": step, "loss": 3.0 - step / 20, "step_seconds": 0.01 * step, **figures} for step in STEPS]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    environment = {
        "versions": {"python": "3.11", "jax": "0.10.2"},
        "devices": "2 x cpu",
        "parameters": 1234,
        "flops": 10**9,
    }
    (folder / "environment.json").write_text(json.dumps({**environment, "peak_bytes": 2**30, "peak_of": "the process"}))


def add_probe(folder: Path, probe: Any) -> None:
    """Write what the weights of a run told earlier, and the folder of a checkpoint of that step."""
    step = folder / "checkpoints" / f"{probe.step}"
    step.mkdir(parents=True)
    (step / "state").write_text("")
    (folder / "probe.json").write_text(json.dumps({"format": 1, **dataclasses.asdict(probe)}))
