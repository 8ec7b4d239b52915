"""Train every encoding with the same budget, data order and seeds, and print one table.

    python -m train.compare --preset=quick                         learned, none, rope_mixed, alibi: half an hour
    python -m train.compare --pe=all --seeds=3 --extend=none,pi    every encoding on images, also interpolated
    python -m train.compare --task=lm --pe="rope,alibi" --extend="none,pi,yarn(factor=4)" --steps=500
    python -m train.compare --pe=alibi,rope_mixed --sweep="alibi(slope_scale=1|2|4)" --sweep="lr=1e-3|2e-3"
    python -m train.compare --help                                 every option; others are the trainer's

All other options are those of the trainer, the same for every run. Each run is a process of its own. Stopped at any
moment, the same command goes on where it was and ends with the same table. The candidates of a sweep are compared on
held-out training data, and only the best of each encoding is then trained on all of them and measured on the test data.
"""

import itertools
import json
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.table import Table

from train.compare import options
from train.compare.children import Children, in_parallel, wait_until_free
from train.compare.display import Display
from train.compare.options import Candidate, Comparison
from train.compare.runs import (
    LINES,
    TABLE,
    Outcome,
    Run,
    execute,
    is_done,
    load,
    outcome,
    record,
    require_distinct,
    require_own,
    require_own_folder,
    run_of,
)
from train.compare.table import best_candidate, markdown, rows_of, tables
from train.engine.files import lock_folder, write_atomic
from train.engine.results import Evaluation
from train.engine.run_files import require_own_parts
from train.engine.stopping import INTERRUPTED, report_errors
from train.engine.terminal import user_console


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status: 0, or 1 if a run failed or none was done."""
    console = user_console()
    with report_errors(ValueError, TypeError, OSError):
        comparison = options.read(argv, __doc__ or "")
        require_own_parts(comparison.folder, ("log",))
        lock_folder(comparison.folder)
        return Session(comparison, console).execute()


class Session:
    """A comparison that is being executed.

    Attributes:
        comparison: the runs and their budget.
        console: prints to the user.
        children: the processes of the runs.
    """

    def __init__(self, comparison: Comparison, console: Console) -> None:
        self.comparison, self.console, self.children = comparison, console, Children()
        self._signal: int | None = None

    def execute(self) -> int:
        """Train and evaluate everything that is left to do, showing the table as it fills; return the exit status."""
        comparison = self.comparison
        swept = {
            candidate: run_of(comparison, candidate, comparison.seeds[0], comparison.validation)
            for candidates in comparison.candidates.values()
            if len(candidates) > 1
            for candidate in candidates
        }
        settings = itertools.chain(*comparison.candidates.values())
        everything = [*swept.values(), *itertools.chain(*map(self._tested, settings))]
        tested = len(comparison.candidates) * len(comparison.seeds)
        require_distinct(everything)
        require_own_folder(comparison.folder)
        for run in everything:
            require_own(comparison, run)
        self.console.print(
            f"encodings: {len(comparison.candidates)} · seeds: {len(comparison.seeds)} · candidates of sweeps: "
            f"{len(swept)} · runs: {len(swept) + tested}, {comparison.jobs} at a time · they print to "
            f"{comparison.folder / 'log'}"
        )
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            self._run(list(swept.values()), "candidates", tested)
            if self._signal is None:
                best = self._choices(swept)
                runs = {candidate: self._tested(candidate) for candidate in best if candidate is not None}
                self._run(list(itertools.chain(*runs.values())), "runs", 0, runs)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if self._signal is not None:
            self.console.print("stopped, all runs are saved; the same command goes on")
            return INTERRUPTED if self._signal == signal.SIGINT else 0
        return self._finish(list(swept.values()), runs)

    def _tested(self, candidate: Candidate) -> list[Run]:
        return [run_of(self.comparison, candidate, seed) for seed in self.comparison.seeds]

    def _choices(self, swept: Mapping[Candidate, Run]) -> list[Candidate | None]:
        """Return the setting of every encoding: the only one, or the best on the validation data."""
        choices: list[Candidate | None] = []
        for encoding, candidates in self.comparison.candidates.items():
            if len(candidates) == 1:
                choices.append(candidates[0])
                continue
            best = best_candidate(self.comparison, candidates, [swept[candidate] for candidate in candidates])
            named = "none of them ended" if best is None else f"{best.label} is the best on the validation data"
            self.console.print(f"{encoding}: {len(candidates)} candidates tried, {named}")
            choices.append(best)
        return choices

    def _stop(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self._signal is None:
            self._signal = number
            self.children.stop()

    def _run(
        self, runs: Sequence[Run], what: str, later: int, table_runs: Mapping[Candidate, Sequence[Run]] | None = None
    ) -> None:
        """Execute the runs that have not ended.

        Args:
            runs: runs, in the order of execution.
            what: they are, in words.
            later: number of runs that follow these.
            table_runs: the runs of the table; None = no table yet.
        """
        open_runs = [run for run in runs if not is_done(run)]
        with Display(self.console, runs, what, later, self.comparison.jobs) as display:
            display.tables = self._tables(table_runs)
            for run, run_outcome in self._outcomes(open_runs, display):
                if self._signal is not None:
                    return
                display.end(run)
                display.tables = self._tables(table_runs)
                self._report(run, run_outcome, display.total())

    def _outcomes(self, runs: Sequence[Run], display: Display) -> Iterator[tuple[Run, Outcome]]:
        def work(run: Run) -> Outcome:
            def launch(arguments: list[str], log: Path) -> tuple[int, str]:
                display.begin(run)
                return self.children.launch(arguments, log)

            display.begin(run)
            wait_until_free(run.folder)
            return execute(self.comparison, run, launch)

        waiting = (run for run in runs if self._signal is None)
        return in_parallel(waiting, work, self.comparison.jobs, display.refresh)

    def _report(self, run: Run, run_outcome: Outcome, progress: str) -> None:
        what = "a candidate, " if run.validation else ""
        text = run_outcome.status if run_outcome.status == "done" else f"{run_outcome.status}: {run_outcome.message}"
        self.console.print(f"{what}{run.label}: {text} after {run_outcome.seconds:.0f} s · {progress}", markup=False)

    def _tables(self, runs: Mapping[Candidate, Sequence[Run]] | None) -> Sequence[Table]:
        measured = [row for row in rows_of(self.comparison, runs or {}) if row.scores]
        return tables(self.comparison, measured, self._trained(runs or {}), self.console.width)

    def _trained(self, runs: Mapping[Candidate, Sequence[Run]]) -> int:
        """Return the trained size or length, which all runs share."""
        return next((evaluation.trained for evaluation in self._evaluations(runs)), 0)

    def _evaluations(self, runs: Mapping[Candidate, Sequence[Run]]) -> Iterator[Evaluation]:
        """Yield the evaluations of all runs."""
        for run in itertools.chain(*runs.values()):
            yield from load(self.comparison, run).values()

    def _finish(self, swept: Sequence[Run], runs: Mapping[Candidate, Sequence[Run]]) -> int:
        """Print the tables and the failures, write results.jsonl and table.md, and return the exit status."""
        comparison, folder = self.comparison, self.comparison.folder
        everything = [*swept, *itertools.chain(*runs.values())]
        outcomes = {run: run_outcome for run in everything if (run_outcome := outcome(run)) is not None}
        lines = [json.dumps(record(comparison, run, run_outcome)) + "\n" for run, run_outcome in outcomes.items()]
        write_atomic(folder / LINES, "".join(lines))
        text = markdown(comparison, rows_of(comparison, runs), self._trained(runs), self._notes(runs))
        write_atomic(folder / TABLE, text)
        for table in self._tables(runs):
            self.console.print(table)
        for run, run_outcome in outcomes.items():
            if run_outcome.status == "failed":
                self.console.print(f"{run.label} failed, see {run.log}: {run_outcome.message}", markup=False)
        self.console.print(f"wrote {folder / 'table.md'} and results.jsonl")
        statuses = [run_outcome.status for run_outcome in outcomes.values()]
        return int("failed" in statuses or "done" not in statuses)

    def _notes(self, runs: Mapping[Candidate, Sequence[Run]]) -> list[str]:
        """Return the notes below the table: seeds, the choice of settings, and the note on the data."""
        seeds = len(self.comparison.seeds)
        interval = ", the 95 % interval of Student's t over the seeds behind ±" if seeds > 1 else ""
        notes = [f"Mean of {seeds} seeds{interval}; the best of each column in bold." if seeds > 1 else "One seed."]
        for encoding, candidates in self.comparison.candidates.items():
            if len(candidates) > 1:
                notes.append(f"{encoding}: the best of {len(candidates)} candidates on held-out training data.")
        return [*notes, *(evaluation.note for evaluation in itertools.islice(self._evaluations(runs), 1))]
