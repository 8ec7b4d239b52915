"""A run of `train.dit` in a process that others run beside: it times its steps, then trains for the time that it has.

The command is that of a user, `python -m train.dit --preset=NAME --pe=NAME`, with fewer steps in a limited time: the
average of the weights then goes over a tenth of them, and fewer pictures are sampled, of fewer shapes.
"""

import math
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from train.dit import judge, program
from train.dit.config import PRESETS, Config
from train.dit.results import CLASS, DISTANCE, LOOPS, REPEATS, SampleResults, pixels
from train.engine.numbers import At
from train.engine.progress import read_metrics

PROBE = 60
"""Steps that are timed; the last third counts."""

FEWEST = 500
"""Steps below which nothing is worth sampling."""

EVALUATION = {"gpu": 170.0, "video": 120.0}
"""Seconds to train the judge, to compile and to sample, by estimate: 40, 8 for each program, and the operations."""

SHARE = 0.85
"""Share of the time left that training may take by the timed steps."""

FEWER = {
    "gpu": ("--eval_shapes=28,56,84", "--eval_limit=512", "--sampling_steps=25"),
    "video": ("--sampling_steps=25",),
}
"""Options of the samples where the time is limited."""

EXTEND = {"rope_axial": "none,pi,yarn", "learned": "none,pi", "alibi": "none,pi"}
"""Extensions of pictures where the time is limited."""

TOY = (
    "--size=8", "--width=24", "--layers=1", "--heads=2", "--batch=8", "--eval_limit=8", "--sampling_steps=1",
    "--dtype=float32", "--extend=none",
)  # fmt: skip
TOY_SHAPES = {
    "gpu": ("--eval_shapes=16",),
    "video": ("--frames=2", "--eval_shapes=4x8x8"),
}


def sample(preset: str, pe: str, folder: str, to: str, until: float, limited: bool, toy: bool) -> dict[str, Any]:
    """Train, sample and measure; return the number of steps, and the measures by extension and shape.

    Args:
        preset: of `train.dit`.
        pe: spec of the encoding.
        folder: folder of the runs.
        to: folder that gets the figure.
        until: the end of the time, of `time.monotonic`.
        limited: whether there is one.
        toy: a tiny model.
    """
    begun, out = time.monotonic(), Path(folder) / f"{preset}-{pe}"
    options = [f"--preset={preset}", f"--pe={pe}", "--devices=1", *chosen(preset, pe, limited, toy)]
    steps = PRESETS[preset]["steps"]
    if toy:
        judge.STEPS = 4
    if limited or toy:
        step = timed_step(options, out.with_name(f"{out.name}-timed"), 3 if toy else PROBE)
        ready = time.monotonic() - begun - PROBE * step  # to read the data and to compile, which comes once more
        seconds = until - time.monotonic() - EVALUATION[preset] - ready
        steps = 4 if toy else min(steps, int(SHARE * seconds / step))
        if steps < FEWEST and not toy:
            reason = f"a step takes {1000 * step:.1f} ms, and {max(seconds, 0):.0f} s are left to train"
            return {"outcome": "late", "message": f"{reason}: more --minutes are needed"}
        options += shorter(steps)
    trained = command([*options, f"--out={out}", "--overwrite"])
    rows = [row for path in sorted(out.glob("results*.json")) for row in rows_of(SampleResults.load(path))]
    shutil.copy(out / "samples.png", Path(to) / f"samples-{preset}-{pe}.png")
    shutil.rmtree(out)
    best = max((row["right"] for row in rows if "right" in row), default=math.nan)
    message = f"{steps:,} steps, {best:.1f} % at best, {trained:.0f} s"
    return {"outcome": "sampled", "rows": rows, "steps": steps, "message": message}


def chosen(preset: str, pe: str, limited: bool, toy: bool) -> Sequence[str]:
    """Return the options of the model and the samples that differ from the preset's."""
    if toy:
        return (*TOY, *TOY_SHAPES[preset])
    extend = (f"--extend={EXTEND[pe]}",) if preset == "gpu" else ()
    return (*FEWER[preset], *extend) if limited else ()


def shorter(steps: int) -> Sequence[str]:
    """Return the options of a run of fewer steps."""
    full = Config.presets["gpu"]["ema"]
    ema = max(0.0, min(full, 1 - 10 / steps))
    return f"--steps={steps}", f"--warmup={min(500, steps // 10)}", f"--ema={ema:.6f}", f"--checkpoint_every={steps}"


def timed_step(options: Sequence[str], out: Path, count: int) -> float:
    """Train a few steps; return the seconds of one, without the first ones."""
    flags = (*shorter(count + 1), f"--stop_at={count}", f"--log_every={count // 3}")
    command([*options, *flags, f"--out={out}", "--overwrite"])
    seconds = read_metrics(out / "metrics.jsonl")[-1]["step_seconds"]
    shutil.rmtree(out)
    return seconds


def command(options: Sequence[str]) -> float:
    """Run the command to its end; return its seconds.

    Raises:
        RuntimeError: it ended with an error, which is in the log.
    """
    begun = time.monotonic()
    try:
        status = program.main(options)
    except SystemExit as ended:
        status = ended.code
    if status:
        raise RuntimeError(f"python -m train.dit {' '.join(options)} ended with status {status}")
    return time.monotonic() - begun


def rows_of(results: SampleResults) -> list[dict[str, Any]]:
    """Return the measures of each shape, without those that it does not have."""
    names = {CLASS: "right", DISTANCE: "distance", REPEATS: "repeats", LOOPS: "loops"}
    rows: dict[At, dict[str, Any]] = {}
    for number in results.numbers:
        extend = "as trained" if results.extend == "none" else results.extend
        row = rows.setdefault(number.at, {"extend": extend, "shape": pixels(number), "refused": number.refused})
        values = {names[number.measure]: number.value, f"true_{names[number.measure]}": number.beside}
        row |= {name: value for name, value in values.items() if not math.isnan(value)}
    return [*rows.values()]
