"""One page of the results of many runs: curves, tables, the inside of the models, and omissions.

    python -m train.report runs/ -o report.html               the page, report.md, and report-NAME.png for every curve
    python -m train.report runs/compare-vit runs/compare-lm   several folders
    python -m train.report runs/ --no-probes                  without reading checkpoints
    python -m train.report runs/ --data=file:notes.txt        also what the weights of runs on these files tell

Reading (`collect`) -> groups of comparable runs (`groups`), probes of their weights (`probes`) -> a document of texts,
tables and plots (`content`, `blocks`) -> the page (`page`, `charts`), markdown (`markdown`) and PNGs (`figures`).

The page is one file that needs no network and no script to be read. Runs that differ in data, trained size, model or
budget are never in one table; half-finished, diverged, foreign and repeated runs are listed with the reason. A run
folder may come from somebody else: a bad one is left out by name, and no file that it names is opened.
"""

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from train.engine.files import replaced_file, write_atomic
from train.engine.heartbeat import working
from train.engine.stopping import report_errors, stop_on_signals
from train.engine.terminal import user_console
from train.report.blocks import Document, Plot, plots
from train.report.collect import collect
from train.report.content import Material, document
from train.report.figures import draw
from train.report.groups import Group, group_runs
from train.report.markdown import markdown
from train.report.options import parser
from train.report.page import page
from train.report.place import page_path, require_replaceable
from train.report.probes import probes_of
from train.report.records import Left, Run
from train.report.texts import plain


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status: 0, or 1 if there is no run to report."""
    arguments = parser(__doc__ or "").parse_args(argv)
    console = user_console()
    again = "no file of the report was changed half-way: run the same command again"
    with stop_on_signals(lambda: again), report_errors(ValueError, OSError):
        probing = None if arguments.no_probes else arguments.data
        return report(arguments.folders, page_path(arguments.out), probing, console)


def report(folders: Sequence[Path], out: Path, data: Sequence[str] | None, console: Console) -> int:
    """Write the report of all runs below the folders; return the exit status.

    Args:
        folders: folders to read.
        out: the page.
        data: specs of data in files that may be read with checkpoints; None = no checkpoint is read.
        console: prints to the user.

    Raises:
        ValueError: one of the folders is none, or the report cannot be written.
    """
    collection = collect(folders)
    groups, twice = group_runs(collection.runs)
    omissions = (*collection.left, *twice)
    if not groups:
        _tell(omissions, console)
        places = ", ".join(map(str, folders))
        raise ValueError(f"a report needs at least one finished run, got none in {places} ({len(omissions)} left out)")
    probes, reasons = ({}, {}) if data is None else probes_of(_one_per_encoding(groups), data, console)
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    content = document(Material(tuple(map(str, folders)), tuple(groups), omissions, probes, reasons, date))
    with working(console, "drawing"):
        count = _write(content, out)
    _tell(omissions, console)
    wrote = f"wrote {out}, {out.with_suffix('.md').name} and {count} figures; runs read: {len(collection.runs)}"
    console.print(plain(wrote), markup=False)
    return 0


def _tell(omissions: Sequence[Left], console: Console) -> None:
    """Print the omissions and their reasons."""
    for omission in omissions:
        console.print(plain(f"left out: {omission.what}: {omission.why}"), markup=False)


def _write(content: Document, out: Path) -> int:
    """Write the page, markdown and figures; return the number of figures.

    Raises:
        ValueError: they cannot be written, or would replace something else.
    """
    drawn = [_prefix(plot, out.stem) for section in content.sections for plot in plots(section)]
    images = [out.with_name(f"{plot.name}.png") for plot in drawn]
    for path in images:
        require_replaceable(path)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        for plot, image in zip(drawn, images, strict=True):
            with replaced_file(image) as file:
                draw(plot, file)
        write_atomic(out.with_suffix(".md"), markdown(content, out.stem))
        write_atomic(out, page(content))
    except OSError as refused:
        raise ValueError(f"out must be where files can be written, got {out}: {refused.strerror}") from None
    return len(drawn)


def _prefix(plot: Plot, stem: str) -> Plot:
    return plot._replace(name=f"{stem}-{plot.name}")


def _one_per_encoding(groups: Sequence[Group]) -> list[Run]:
    """Return, of every encoding, the run with the lowest seed; one that has weights if any has."""
    chosen = {}
    for group in groups:
        for series in group.series:
            if series.scored[0].extend == "none":
                with_weights = [run for run in series.runs if run.folder and os.path.isdir(run.folder / "checkpoints")]
                run = (with_weights or list(series.runs))[0]
                chosen[run.place] = run
    return list(chosen.values())
