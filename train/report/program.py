"""One page of the results of many runs: curves, tables, what is inside the models, and what was left out.

    python -m train.report runs/ -o report.html               the page, report.md, and report-NAME.png for every curve
    python -m train.report runs/compare-vit runs/compare-lm   several folders
    python -m train.report runs/ --no-probes                  without reading checkpoints

Reading (`collect`) -> groups of comparable runs (`groups`), probes of their weights (`probes`) -> a document of texts,
tables and plots (`content`, `blocks`) -> the page (`page`, `charts`), markdown (`markdown`) and PNGs (`figures`).

The page is one file that needs no network and no script to be read. Runs that differ in data, trained size, model or
budget are never in one table; half-finished, diverged, foreign and repeated runs are listed with the reason.
"""

import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from train.engine.parser import Parser
from train.engine.stopping import friendly, stoppable
from train.engine.terminal import user_console
from train.report.blocks import Plot, plots
from train.report.collect import Run, collect
from train.report.content import Material, document
from train.report.figures import draw
from train.report.groups import Group, grouped
from train.report.markdown import markdown
from train.report.page import page
from train.report.probes import probes_of


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status: 0, or 1 if there is no run to report."""
    parser = Parser(prog="python -m train.report", description="Write one page of the results of many runs.")
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="folders with runs, at any depth")
    parser.add_argument(
        "-o", "--out", default="report.html", metavar="str",
        help="the page, which ends in .html; report.md and report-NAME.png are written beside it",
    )  # fmt: skip
    parser.add_argument(
        "--no-probes", action="store_true",
        help="do not read checkpoints: no entropy per head, and no learned parameters before and after",
    )  # fmt: skip
    arguments = parser.parse_args(argv)
    console = user_console()
    again = "no file of the report was changed half-way: run the same command again"
    with stoppable(lambda: again), friendly(ValueError, OSError):
        return report(arguments.folders, checked(arguments.out), not arguments.no_probes, console)


def checked(text: str) -> Path:
    """Return the path of the page.

    Raises:
        ValueError: it is a folder, or ends in something else than .html.
    """
    path = Path(text)
    if path.suffix.lower() not in (".html", ".htm") or path.is_dir():
        raise ValueError(f"out must name a file that ends in .html, got {text!r}")
    return path


def report(folders: Sequence[Path], out: Path, probing: bool, console: Console) -> int:
    """Write the report of all runs below the folders; return the exit status.

    Args:
        folders: to read.
        out: the page.
        probing: whether checkpoints are read.
        console: of the user.

    Raises:
        ValueError: one of the folders is none, or the report cannot be written.
    """
    found = collect(folders)
    groups, twice = grouped(found.runs)
    left = (*found.left, *twice)
    if not groups:
        for one in left:
            console.print(f"left out: {one.what}: {one.why}", markup=False)
        places = ", ".join(map(str, folders))
        raise ValueError(f"a report needs at least one finished run, got none in {places} ({len(left)} left out)")
    probes, reasons = probes_of(_one_per_encoding(groups), console) if probing else ({}, {})
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    content = document(Material(tuple(map(str, folders)), tuple(groups), left, probes, reasons, made))
    with console.status("drawing"):  # shown only on a terminal
        drawn = [plot for section in content.sections for plot in plots(section)]
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            drawn = [_renamed(plot, out.stem) for plot in drawn]
            for plot in drawn:
                _write(out.with_name(f"{plot.name}.png"), lambda path, plot=plot: draw(plot, path))
            _write(out.with_suffix(".md"), lambda path: path.write_text(markdown(content, out.stem), encoding="utf-8"))
            _write(out, lambda path: path.write_text(page(content), encoding="utf-8"))
        except OSError as refused:
            raise ValueError(f"out must be where files can be written, got {out}: {refused.strerror}") from None
    for one in left:
        console.print(f"left out: {one.what}: {one.why}", markup=False)
    wrote = f"wrote {out}, {out.with_suffix('.md').name} and {len(drawn)} figures; runs read: {len(found.runs)}"
    console.print(wrote, markup=False)
    return 0


def _renamed(plot: Plot, stem: str) -> Plot:
    return plot._replace(name=f"{stem}-{plot.name}")


def _one_per_encoding(groups: Sequence[Group]) -> list[Run]:
    """Return, of every encoding, the run with the lowest seed; one that has weights if any has."""
    chosen = {}
    for group in groups:
        for series in group.series:
            if series.scored[0].extend == "none":
                with_weights = [run for run in series.runs if run.folder and (run.folder / "checkpoints").is_dir()]
                run = (with_weights or list(series.runs))[0]
                chosen[run.place] = run
    return list(chosen.values())


def _write(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file beside its place, then move it there: what was there before is replaced whole or not at all."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
