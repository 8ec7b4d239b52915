"""Training curves: reports of runs during training, the mean over seeds at the steps that all of them have."""

from train.report.blocks import Axis, Curve, Plot, Point, capital
from train.report.groups import Group, Series
from train.report.sound import drawable

METRICS = {
    "loss": "training loss, nats",
    "top1": "top-1 of training batches",
    "right": "right tokens of training batches",
    "loss_0_to_L": "loss within the trained length, nats",
    "loss_L_to_2L": "loss beyond the trained length, nats",
}
"""Metrics that are drawn, by their name in metrics.jsonl."""

MOST = 120
"""Maximum number of points of a curve; of more, evenly spaced ones are taken."""


def training_plots(group: Group, scope: str) -> tuple[str | Plot, ...]:
    """Return one plot per metric that any run reported, and a sentence on the encodings without metrics."""
    blocks: list[str | Plot] = []
    for name, label in METRICS.items():
        curves = [
            Curve(series.label, group.styles[series.label], points)
            for series in group.series
            if series.scored[0].extend == "none" and (points := curve_of(series, name))
        ]
        if curves:
            caption = (
                f"{capital(label)}, averaged between reports: the mean over seeds at the steps that all "
                "seeds report. Extensions act in evaluation alone and have no curve of their own."
            )
            if name.startswith("loss_"):
                caption = f"{capital(label)}, on a few windows of training text: the mean over seeds."
            title = f"{capital(label).partition(',')[0]} against step"
            log = 10 if name.startswith("loss_") else 0
            blocks.append(
                Plot("curves", f"{scope}-{name}", title, caption, Axis("step"), Axis(label, log), tuple(curves),
                     dots=False, scope=scope)
            )  # fmt: skip
    bare = [
        series.label
        for series in group.series
        if series.scored[0].extend == "none" and not any(r.metrics for r in series.runs)
    ]
    if bare:
        blocks.append(f"Without metrics of training: {', '.join(bare)}.")
    return tuple(blocks)


def curve_of(series: Series, name: str) -> tuple[Point, ...]:
    """Return the mean of a metric over the seeds, at the steps that all runs with this metric have."""
    of_seeds = [
        {line["step"]: line[name] for line in run.metrics if name in line and drawable(line[name])}
        for run in series.runs
    ]
    of_seeds = [by_step for by_step in of_seeds if by_step]
    common = sorted(set.intersection(*map(set, of_seeds))) if of_seeds else []
    every = max(1, -(-len(common) // MOST))
    steps = common[::-every][::-1]
    mean = lambda step: sum(by_step[step] for by_step in of_seeds) / len(of_seeds)
    return tuple(Point(step, y := mean(step), y, y, f"{series.label} at step {step}: {y:.3f}") for step in steps)
