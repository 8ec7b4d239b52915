"""Figure of the loss during training, within the trained length and beyond it, for many runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from train.engine.figures import literal_text, write_figure
from train.engine.line_styles import COLORS, line_styles
from train.engine.progress import read_metrics
from train.engine.results import Evaluation

PANELS = (("loss_0_to_L", "positions 0 to {0}"), ("loss_L_to_2L", "positions {0} to {1}"))
"""The name of each probed loss in the metrics, and the title of its panel."""


@literal_text
def draw_training(runs: Sequence[Evaluation], folders: Sequence[Path], path: Path) -> None:
    """Draw the probed losses of training text against the step, for runs with probes.

    Args:
        runs: evaluations of the same data and trained length.
        folders: folders of the runs, with their metrics.jsonl; the names of the folders label the curves.
        path: path of the figure; nothing is written if no run has probes.
    """
    folders = list(dict.fromkeys(folders))  # a run may have several evaluations
    probes = {folder.name: lines for folder in folders if (lines := read_probes(folder))}
    if not probes:
        return
    figure = Figure(figsize=(11.0, 4.5), layout="constrained")
    panels = figure.subplots(1, 2)
    length, styles = runs[0].trained, line_styles([name.partition("-")[0] for name in probes])
    for axes, (loss, title) in zip(panels, PANELS, strict=True):
        for i, (name, lines) in enumerate(probes.items()):
            points = [(record["step"], record[loss]) for record in lines if loss in record]
            axes.plot(
                *([], []) if not points else zip(*points, strict=True),
                styles[i].dash, marker=styles[i].marker, markersize=3, color=COLORS[styles[i].color], label=name,
            )  # fmt: skip
        if not any(loss in line for lines in probes.values() for line in lines):
            why = "not measured:\nno text or no encoding\nreaches that far"
            axes.text(0.5, 0.5, why, ha="center", va="center", transform=axes.transAxes)
        axes.set(xlabel="step", ylabel="loss, nats per token", title=title.format(length, 2 * length))
        axes.grid(alpha=0.3)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", frameon=False)
    figure.suptitle(f"{runs[0].data}: training text, trained at {length} tokens")
    write_figure(figure, path)


def read_probes(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics.jsonl that have a probed loss."""
    return [line for line in read_metrics(folder / "metrics.jsonl") if PANELS[0][0] in line]
