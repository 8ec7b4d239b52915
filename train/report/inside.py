"""Sections on the inside of a trained model: learned frequencies and slopes, and the entropy of attention per head."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from train.engine.line_styles import numbered
from train.report.blocks import Axis, Cell, Curve, Plot, Point, Section, Table
from train.report.groups import Group, Series
from train.report.probe_file import Learned, Probe

DRAWN = ("frequencies", "slope", "r1", "r2")
"""Last parts of the names of parameters that are drawn before and after training: numbers or frequencies per head."""


def series_with_probes(group: Group, probes: Mapping[Path, Probe]) -> Iterator[tuple[Series, Probe]]:
    """Yield the series that have a probe, once per encoding."""
    for series in group.series:
        if series.scored[0].extend == "none":
            probe = next((probe for run in series.runs if run.folder and (probe := probes.get(run.folder))), None)
            if probe is not None:
                yield series, probe


def gap_notes(group: Group, probes: Mapping[Path, Probe], reasons: Mapping[str, str]) -> list[str]:
    """Return a sentence on the encodings without a probe; none if all have one."""
    by_reason: dict[str, list[str]] = {}
    for series in group.series:
        if series.scored[0].extend == "none" and not any(run.folder in probes for run in series.runs):
            own_reasons = [reasons[run.place] for run in series.runs if run.place in reasons]
            why = own_reasons[0] if own_reasons else "the weights were not read (--no-probes)"
            by_reason.setdefault(why, []).append(series.label)
    text = "; ".join(f"{', '.join(labels)}: {why}" for why, labels in by_reason.items())
    return [f"Not here: {text}."] if by_reason else []


def learned_section(group: Group, probes: Mapping[Path, Probe], reasons: Mapping[str, str], name: str) -> Section:
    """Return the section on the learned parameters of the encodings."""
    blocks: list[Any] = []
    rows, nothing, starts = [], [], []
    for series, probe in series_with_probes(group, probes):
        if not probe.learned:
            nothing.append(series.label)
        if probe.start:
            starts.append(f"{series.label}: {probe.start}")
        for parameter in probe.learned:
            rows.append(_summary(series.label, parameter))
            plot = _before_after(series.label, parameter, f"{name}-{len(blocks) + 1}")
            if plot is not None:
                blocks.append(plot)
    if rows:
        caption = "Learned parameters of the encodings, of one seed: minimum, mean, maximum over the whole array."
        heads = ("encoding", "parameter", "shape", "before", "after", "relative change")
        blocks.append(Table(caption, heads, tuple(rows)))
    if nothing:
        blocks.append(f"Nothing about positions is learned by {', '.join(nothing)}.")
    if starts:
        blocks.append(f"There is no “before” for {'; '.join(starts)}.")
    blocks += gap_notes(group, probes, reasons)
    return Section(name, "Learned frequencies and slopes, before and after", tuple(blocks))


def _summary(label: str, parameter: Learned) -> tuple[Cell, ...]:
    three = lambda summary: "" if math.isnan(summary[1]) else ", ".join(f"{x:.3g}" for x in summary)
    moved = "" if math.isnan(parameter.moved) else f"{100 * parameter.moved:.1f} %"
    return (
        Cell(label),
        Cell(parameter.name),
        Cell(" x ".join(map(str, parameter.shape)) or "1"),
        Cell(three(parameter.before), None if math.isnan(parameter.before[1]) else parameter.before[1]),
        Cell(three(parameter.after), None if math.isnan(parameter.after[1]) else parameter.after[1]),
        Cell(moved, None if math.isnan(parameter.moved) else parameter.moved),
    )


def _before_after(label: str, parameter: Learned, file: str) -> Plot | None:
    """Return a plot of a parameter, or None for one that has no number or frequency per head."""
    last = parameter.name.split("/")[-1]
    if last not in DRAWN or not parameter.values:
        return None
    of_head = 3 if last == "frequencies" else 1  # axes of the array in one layer: (H, A, F) or (H,)
    before, after = (np.asarray(values) for values in parameter.values)
    if before.ndim not in (of_head, of_head + 1):
        return None
    layered = before.ndim > of_head
    layers = zip(before, after, strict=True) if layered else [(before, after)]
    curves = tuple(
        Curve(f"layer {i}" if layered else "all layers", numbered(i), _moves(old, new))
        for i, (old, new) in enumerate(layers)
    )
    what = "radians per token or patch" if last == "frequencies" else f"{last} of a head"
    caption = "Each point is one number of one head; on the diagonal it did not move."
    if last == "frequencies" and before.shape[-2] > 1:
        caption = (
            "Each point is one component of one frequency: per row or per column. On the diagonal it did not move."
        )
    flat = np.concatenate([before.ravel(), after.ravel()])
    log = 10 if flat.min() > 0 and flat.max() > 20 * flat.min() else 0
    title = f"{label}: {last} before and after training"
    return Plot("scatter", file, title, caption, Axis(f"before: {what}", log), Axis(f"after: {what}", log), curves)


def _moves(before: Float[np.ndarray, "..."], after: Float[np.ndarray, "..."]) -> tuple[Point, ...]:
    pairs = zip(before.ravel(), after.ravel(), strict=True)
    return tuple(Point(x, y, y, y, f"before {x:.4g}, after {y:.4g}") for x, y in pairs)


def entropy_section(group: Group, probes: Mapping[Path, Probe], reasons: Mapping[str, str], name: str) -> Section:
    """Return the section on the entropy of attention of every head, at the trained and at the largest size."""
    curves, rows, refused, sizes = [], [], set(), set()
    styles = group.styles
    for series, probe in series_with_probes(group, probes):
        points = []
        largest = max(map(int, probe.entropies), default=0)
        sizes |= set(map(int, probe.entropies))
        refused |= {f"{series.label} at {size}: {why}" for size, why in probe.refused.items()}
        for size, by_layer in probe.entropies.items():
            lane = int(int(size) == largest and largest != probe.trained)
            for layers, values in by_layer.items():
                for layer, heads in enumerate(values):
                    for head, entropy in enumerate(heads):
                        text = f"{series.label}, {layers} {layer}, head {head}, {size} {group.unit}: {entropy:.2f} nats"
                        points.append(Point(entropy, lane, lane, lane, text))
        rows += _entropy_rows(series.label, probe, group.unit)
        if points:
            curves.append(Curve(series.label, styles[series.label], tuple(points)))
    blocks: list[Any] = []
    if curves:
        caption = (
            "One mark per head and layer, the mean over a few test examples and up to 64 queries of each, of one seed. "
            "It is 0 where one key has all the weight and ln S for equal weights over S keys. Upper row of each "
            "encoding: trained size; lower row: the largest size that was measured."
        )
        title = "Entropy of attention per head"
        lanes = ("trained size", "largest size")
        axes = Axis("entropy, nats"), Axis("")
        blocks.append(Plot("strips", f"{name}-heads", title, caption, *axes, tuple(curves), lanes=lanes))
        heads = ("encoding, layer", "size", "mean", "heads, in order")
        blocks.append(Table("Entropy of attention in nats, per head.", heads, tuple(rows), folded=True))
    if refused:
        blocks.append(f"Not measured: {'; '.join(sorted(refused))}.")
    blocks += gap_notes(group, probes, reasons)
    return Section(name, "Entropy of attention per head", tuple(blocks))


def _entropy_rows(label: str, probe: Probe, unit: str) -> list[tuple[Cell, ...]]:
    return [
        (
            Cell(f"{label}, {layers} {layer}"),
            Cell(f"{size} {unit}", int(size)),
            Cell(f"{np.mean(heads):.2f}", float(np.mean(heads))),
            Cell(" ".join(f"{entropy:.2f}" for entropy in heads)),
        )
        for size, by_layer in probe.entropies.items()
        for layers, values in by_layer.items()
        for layer, heads in enumerate(values)
    ]
