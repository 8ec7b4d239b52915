"""Evaluate trained runs of any program again, and compare many runs.

    python -m train.evaluate runs/rope_mixed-fashion-0                  evaluates the newest checkpoint again
    python -m train.evaluate runs/rope_mixed-fashion-0 --extend=pi      with positions interpolated
    python -m train.evaluate runs/rope-notes-0 --data=file:notes.txt    trained on files, which must be named here, too
    python -m train.evaluate --compare runs/* --to=comparison           one table and one figure of all results

Files are written into the run folder, those of `--compare` to `--to`.
"""

import dataclasses
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from train.devices.kept_programs import keep_programs
from train.devices.mesh import make_mesh
from train.engine.files import read_text
from train.engine.heartbeat import working
from train.engine.options import names_of, require_rules
from train.engine.outside import require_named
from train.engine.results import results_stem
from train.engine.run_folder import RunFolder
from train.engine.session import evaluate, restore_params
from train.engine.stopping import report_errors, stop_on_signals
from train.engine.terminal import user_console
from train.evaluate.options import EvaluateOptions, parser

OF_COMMAND = ("data", "model", "pe", "to")
"""Options that are no settings of an evaluation."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    arguments = parser(__doc__ or "").parse_args(argv)
    options, console = arguments.options, user_console()
    again = "the runs are unchanged: run the same command again"
    with stop_on_signals(lambda: again), report_errors(ValueError, TypeError, OSError):
        if arguments.compare:
            to = compare(arguments.runs, options)
            console.print(f"wrote {to}.md and {to}.png")
            return 0
        if options.to:
            raise ValueError(f"to must be given only with --compare, got {options.to!r} without it")
        newest = [evaluate_run(folder, options, console) for folder in arguments.runs]
    return 0 if all(newest) else 1


def evaluate_run(folder: Path, options: EvaluateOptions, console: Console) -> bool:
    """Evaluate the newest intact checkpoint of a run folder, print the table and write the result files.

    Returns:
        Whether it is the newest of all; if not, that is said in one line.

    Raises:
        ValueError: an option that this program does not have, or that does not fit the run, or files that the run names
            and the options do not.
    """
    run = RunFolder(folder)
    made_by = run.program
    require_rules(options)
    config = run.config
    require_named(config, folder, options.data, options.model, options.pe)
    values = {name: value for name, value in dataclasses.asdict(options).items() if value and name not in OF_COMMAND}
    changes = {**values, "eval_limit": config.eval_limit if options.eval_limit < 0 else options.eval_limit}
    for name in changes:
        if name not in names_of(made_by.config, "free"):
            raise ValueError(f"runs of train.{config.program} have no {name}, got {name}={changes[name]!r}")
    config = dataclasses.replace(config, **changes, out=str(folder)).validated()
    keep_programs("auto")  # never where only the run folder says
    with working(console, "preparing"):
        mesh, task = make_mesh(config.devices), made_by.task(config)
        step, params = restore_params(config, task.split, task.sums, folder, mesh, console)
    evaluate(task, params, step, mesh, folder, console)
    newest = max(run.checkpoints, default=step)
    if step < newest:
        sys.stderr.write(f"error: step {newest} of {folder} is damaged: these are the results of step {step}\n")
    return step == newest


def compare(folders: Sequence[Path], options: EvaluateOptions) -> Path:
    """Write one markdown table and one figure of runs of one program; return their path without suffix.

    If one of them cannot be written, neither is.

    Raises:
        ValueError: a folder without results, runs that are not comparable, an option of evaluations, or a path that
            cannot be written.
    """
    for name in ("eval_sizes", "eval_shapes", "eval_lengths", "eval_limit", "data", "model", "pe"):
        if getattr(options, name) != getattr(EvaluateOptions, name):
            raise ValueError(f"{name} must be given without --compare, got {getattr(options, name)!r} with it")
    to = Path(options.to or "comparison")
    if to.name in ("", ".."):
        raise ValueError(f"to must name the files to write, got {options.to!r}")
    files, runs = result_files(folders, options.extend), [RunFolder(folder) for folder in folders]
    names = sorted({run.name for run in runs})
    if len(names) > 1:
        raise ValueError(f"runs in one comparison must be of one program, got {' and '.join(names)}")
    for run in runs:
        if run.digest:  # earlier versions wrote none
            _ = run.config  # refused if its settings were changed
    require_replaceable(to)
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".comparison-", dir=to.parent) as scratch:
            runs[0].program.results.compare(files, Path(scratch) / to.name)
            for file in sorted(Path(scratch).iterdir()):
                file.replace(to.with_name(file.name))
    except OSError as refused:
        raise ValueError(f"to must be where files can be written, got {to}: {refused.strerror}") from None
    return to


def require_replaceable(to: Path) -> None:
    """Check that a comparison replaces nothing but an earlier one, known by the heads of its tables.

    Raises:
        ValueError: there is a file that no comparison wrote.
    """
    table, figure = to.with_name(f"{to.name}.md"), to.with_name(f"{to.name}.png")
    written = table.is_file() and any(line.startswith("| encoding |") for line in read_text(table).splitlines())
    for path in (table, figure):
        if os.path.lexists(path) and not written:
            raise ValueError(f"to must not name files that no comparison wrote, got {path}: give another --to")


def result_files(folders: Sequence[Path], extend: str) -> list[Path]:
    """Return the result files of the run folders: all of them, or those of one extension.

    Raises:
        ValueError: a folder without such files.
    """
    pattern = f"{results_stem(extend)}.json" if extend else "results*.json"
    files = {folder: RunFolder(folder).results(pattern) for folder in folders}
    for folder, paths in files.items():
        if not paths:
            raise ValueError(f"a comparison needs run folders with {pattern}, got {folder} without")
    return [path for folder in folders for path in files[folder]]
