"""The costs of each encoding: parameters, FLOPs, time of a step and memory, from the records of the runs."""

import statistics
from collections.abc import Mapping
from pathlib import Path

from train.devices.memory import GIB
from train.report.blocks import Cell, Table
from train.report.groups import Group, Series
from train.report.probe_file import Probe
from train.report.sound import drawable

HEADS = (
    "encoding", "parameters", "of the encoding", "GFLOPs per step", "step, ms", "memory, GiB", "memory is", "devices",
)  # fmt: skip


def costs_table(group: Group, probes: Mapping[Path, Probe]) -> tuple[str | Table, ...]:
    """Return the costs of the encodings of a section, with the meaning of the columns."""
    rows = [_row(series, probes) for series in group.series if series.scored[0].extend == "none"]
    if not rows:
        return ("No run of this section was evaluated without an extension.",)
    text = (
        "FLOPs are those of a training step, counted from the shape of the model; the encoding itself is left out, so "
        "they are the same for encodings of one shape. The time of a step is the median of the reports after the "
        "first, which compiles; runs that shared a machine with others took longer. Memory is the measured peak where "
        "the run recorded it (that of a process includes its data and the compiler), else an estimate of the planner "
        "for one device."
    )
    return (text, Table("Costs of training.", HEADS, tuple(rows)))


def _row(series: Series, probes: Mapping[Path, Probe]) -> tuple[Cell, ...]:
    environment = next((run.made_with for run in series.runs if run.made_with), {})
    probe = next((probe for run in series.runs if run.folder and (probe := probes.get(run.folder))), None)
    parameters = environment.get("parameters") or (probe.parameters if probe else 0)
    flops = environment.get("flops") or (probe.flops if probe else 0)
    seconds = [line.get("step_seconds", 0.0) for run in series.runs for line in run.metrics[1:]]
    seconds = [value for value in seconds if value > 0 and drawable(value)]
    step = 1000 * statistics.median(seconds) if seconds else 0.0
    peaks = [run.made_with["peak_bytes"] for run in series.runs if "peak_bytes" in run.made_with]
    peak, kind = max(peaks, default=0), f"peak of {environment.get('peak_of', '')}"
    if not peak:
        peak, kind = (probe.memory if probe else 0), "estimate"
    positions = Cell(f"{probe.position_parameters:,}", probe.position_parameters) if probe else Cell("unknown", None)
    return (
        Cell(series.label),
        _number(parameters, f"{parameters:,}"),
        positions,
        _number(flops, f"{flops / 1e9:,.2f}"),
        _number(step, f"{step:,.1f}"),
        _number(peak, f"{peak / GIB:,.2f}"),
        Cell(kind if peak else ""),
        Cell(environment.get("devices", "not recorded")),
    )


def _number(value: float, text: str) -> Cell:
    return Cell(text, value) if value else Cell("unknown", None)
