"""The stage that measures: attention and rotation beside JAX's and torch's, memory, and whole training steps.

Everything compiles side by side first. Then each way is in a process of its own, and in every round each takes its turn
alone, so that what counts, the ratio of neighbors in time, is little moved by the clocks of the card.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.hardware.outcomes import BAD, BEFORE, Case
from benchmarks.hardware.pool import Worker
from benchmarks.hardware.run import AUTOTUNED, Run, Settings, Stage
from benchmarks.hardware.ways import FUSED, GPT2_SMALL, OURS, STEP, WAYS
from benchmarks.report import table as markdown
from benchmarks.timing import duration, ratio

ROUNDS = 7
LENGTHS = (8192, 2048, 32768)
PES = ("none", "rope", "alibi", "t5")
MEMORY = ("pejax kernels, ALiBi, slopes learned", "pejax kernels, T5, table learned", "pejax kernels, no bias")

COMPILING = 0.45
"""Share of the stage's time after which no compilation ahead begins."""

WARM, COLD = 168.0, 268.0
"""Seconds of the stage on an H200: of a call that found all compiled, and of the one before, which ended unfinished."""

TASK = "benchmarks.hardware.ways:{}"
MEMORY_TABLE = "Temporary bytes of forward and backward, over those of q, k, v and output"
STEPS_TABLE = "Tokens per second, training step of a GPT of GPT-2 small's size, 8 x 1,024 tokens, bfloat16"


class Column(NamedTuple):
    """Ways that are timed in turn, the first of which is the base of the ratios.

    Attributes:
        table: heading of its table.
        name: its heading.
        part: function of `benchmarks.hardware.ways` that makes the ways.
        arguments: arguments of that function.
        before: whether an earlier checkout's ways are among them.
    """

    table: str
    name: str
    part: str
    arguments: dict[str, Any]
    before: bool = False

    @property
    def ways(self) -> list[str]:
        """Names of the ways; a toy run has our kernels without those of cuDNN and Mosaic GPU, which need a GPU."""
        names = list(WAYS[self.part](**self.arguments))
        names = [name for name in names if not self.arguments["toy"] or (not is_peer(name) and not needs_gpu(name))]
        own = [name for name in names if name.startswith("pejax")] if self.before else []
        return names + [f"{BEFORE}{name}" for name in own]

    def case(self, way: str, *, only_compile: bool = False) -> Case:
        """Return the case of a way: to compile it, or the one whose line tells of its time."""
        chosen = {"column": self.part, "arguments": self.arguments, "way": way, "only_compile": only_compile}
        return Case("measure", f"{self.table} | {self.name} | {way}", TASK.format("make"), chosen, 100.0)


def compiles_here(way: str) -> bool:
    """Return whether a way is compiled where it is timed: what is tuned there, and what torch compiles."""
    return way.removeprefix(BEFORE) == STEP or (way.startswith("torch") and ("compile" in way or "Flex" in way))


def is_peer(way: str) -> bool:
    """Return whether a way is of others: its failure is told, and fails nothing."""
    return is_torch(way) or way == FUSED


def needs_gpu(way: str) -> bool:
    """Return whether a way of ours is not timed on a CPU; "mosaic_gpu" is proved there, in JAX's interpreter."""
    return "cuDNN" in way or "Mosaic" in way


def is_torch(way: str) -> bool:
    """Return whether a way is of torch."""
    return way.startswith("torch")


def columns(rehearse: bool, before: bool = False) -> list[Column]:
    """Return the columns, the most wanted first; a rehearsal has one of each kind, of a few tokens.

    Args:
        rehearse: whether it is one.
        before: whether an earlier checkout is measured, too.
    """
    title = "Causal attention, 16 heads of 64, 32,768 tokens in all, bfloat16, {}".format
    both, forward = title("forward and backward"), title("forward")
    of = lambda n, **more: {"length": n, "toy": rehearse, **more}
    step = lambda pe: Column(STEPS_TABLE, pe, "step", {"pe": pe, "toy": rehearse}, before)
    attend = lambda table, n: Column(table, f"L = {n:,}", "attention", of(n, backward=table == both), before)
    turn = lambda n: Column("Rotation of q and k, 32 and 8 heads of 128", f"L = {n:,}", "rotation", of(n), before)
    if rehearse:
        return [attend(both, 64), turn(64), step("alibi")]
    first = [*(attend(both, n) for n in LENGTHS), *map(step, PES), turn(LENGTHS[-1])]
    return [*first, *(attend(forward, n) for n in LENGTHS)]


def memory_cases(rehearse: bool) -> list[Case]:
    """Return the cases of memory: the longest sequence, and a fourth of it, for linear growth."""
    lengths, ways = ((64,), MEMORY[:1]) if rehearse else ((131072, 32768), MEMORY)
    name = lambda length, way: f"{MEMORY_TABLE} | L = {length:,} | {way}"
    task = TASK.format("memory")
    return [Case("measure", name(n, way), task, {"length": n, "way": way}, 100.0) for way in ways for n in lengths]


def ahead(settings: Settings) -> list[Case]:
    """Return the cases that compile what can be compiled without the GPU, the most wanted first."""
    tuned = (settings.out / AUTOTUNED).exists()
    ways = [(column, way) for column in columns(settings.rehearse, bool(settings.before)) for way in column.ways]
    compiled = [(column, way) for column, way in ways if not is_torch(way) and (tuned or not compiles_here(way))]
    memory = [
        case._replace(arguments={**case.arguments, "only_compile": True}) for case in memory_cases(settings.rehearse)
    ]
    return [column.case(way, only_compile=True) for column, way in compiled] + memory


def run(run: Run, until: float) -> None:
    """Compile side by side, then time column by column; first what needs no compiling, where programs are given."""
    due_columns = columns(run.settings.rehearse, bool(run.settings.before))
    for column in due_columns if run.settings.programs else []:
        time_column(run, column, until, [way for way in column.ways if not compiles_here(way)])
    compilations = [column.case(way, only_compile=True) for column in due_columns for way in column.ways]
    compilations.sort(key=lambda case: -seconds_to_compile(case))
    soon = min(until, time.monotonic() + COMPILING * (until - time.monotonic()))

    def done(case: Case, answer: dict[str, Any]) -> None:
        if answer["outcome"] != "made":
            tell(run, case, answer)

    due = run.due(compilations + memory_cases(run.settings.rehearse))
    skipped = run.pool.run(due, soon, done)
    run.left.extend(case for case in skipped if "memory" in case.task)
    for column in due_columns:
        time_column(run, column, until)


def tell(run: Run, case: Case, answer: Mapping[str, Any]) -> None:
    """Write a line, with a mark for ways of other libraries."""
    run.ledger.add(case, {**answer, "peer": is_peer(case.name.rpartition(" | ")[2])})


def time_column(run: Run, column: Column, until: float, ways: Sequence[str] | None = None) -> None:
    """Time the ways of a column that no line tells of yet, in turn; write their lines.

    Args:
        run: run of the command.
        column: the column.
        until: the end of the time.
        ways: some of its ways. None = all.
    """
    chosen = [column.case(way) for way in (column.ways if ways is None else ways)]
    cases = {case.arguments["way"]: case for case in run.due(chosen)}
    if not cases or time.monotonic() >= until:
        run.left.extend(cases.values())
        return
    workers = {way: run.pool.worker_of(number) for number, way in enumerate(cases)}
    answers = run.pool.together([((case.task, case.arguments), case.limit) for case in cases.values()])
    samples: dict[str, list[float]] = {}
    asked: dict[str, Any] = {}
    for way, answer in zip(cases, answers, strict=True):
        assert answer is not None  # without an end of the time, every task is asked
        if answer["outcome"] == "made":
            samples[way], asked[way] = [], {"programs": answer.get("programs", {})}
        else:
            tell(run, cases[way], answer)
    rounds = 1 if run.settings.rehearse else ROUNDS
    for turn in range(rounds):
        if turn and time.monotonic() >= until:
            break
        for way in turned(list(samples), turn):
            answer = sampled(workers[way], cases[way])
            if answer["outcome"] == "measured":
                samples[way].append(answer["seconds"])
            else:
                tell(run, cases[way], answer)
                del samples[way]
    for way, each in samples.items():
        if len(each) < min(rounds, 3):
            run.left.append(cases[way])
        else:
            outcome = {"outcome": "measured", "seconds": each, "message": duration(statistics.median(each))}
            tell(run, cases[way], outcome | asked[way])
    for way in samples:  # the others' processes have ended
        workers[way].ask(TASK.format("forget"), {"way": way}, 30.0)


def turned(ways: list[str], turn: int) -> list[str]:
    """Return the ways in the order of a round: who comes first changes."""
    first = turn % max(1, len(ways))
    return ways[first:] + ways[:first]


def sampled(worker: Worker, case: Case) -> dict[str, Any]:
    """Return a sample of a way; it is made again where its process was lost by another way's failure."""
    once = TASK.format("sample"), {"way": case.arguments["way"]}, 30.0
    answer = worker.ask(*once)
    if answer["outcome"] != "lost":
        return answer
    again = worker.ask(case.task, case.arguments, case.limit)
    return worker.ask(*once) if again["outcome"] == "made" else again


def seconds_to_compile(case: Case) -> float:
    """Return the seconds that a way takes to compile, by estimate: for the order, the longest first."""
    way = case.name.rpartition(" | ")[2]
    if "Flex" in way or way == "torch SDPA, compiled":
        return 60.0
    return 25.0 if STEPS_TABLE in case.name else 3.0 if way.startswith("torch") else 9.0


def expected(settings: Settings, jobs: int) -> tuple[float, str]:
    """Return the seconds that the stage takes on an H200, and how they are known."""
    del settings, jobs
    measured_columns = columns(False)
    ways = sum(len(column.ways) for column in measured_columns)
    how = f"{ways} ways in {len(measured_columns)} columns of {ROUNDS} rounds, compiled before"
    return WARM, f"{how}; a first call, which compiles, timed 26 of them in {COLD:.0f} s"


def table(lines: Mapping[str, dict[str, Any]]) -> str:
    """Return the tables: the time of each first way and the others' times it, memory, and tokens per second."""
    tables: dict[str, dict[str, dict[str, Any]]] = {}
    for name, line in lines.items():
        title, column, way = name.split(" | ")
        tables.setdefault(title, {}).setdefault(column, {})[way] = line
    parts = []
    for title, columns in tables.items():
        kept = [(column, {"cells": cells(title, ways), "notes": notes(ways)}) for column, ways in columns.items()]
        parts.append(markdown(title, kept, "way").removeprefix("#"))
    return "\n\n".join(parts)


def cells(title: str, ways: Mapping[str, dict[str, Any]]) -> dict[str, str]:
    """Return the cells of a column by way: the median of the rounds, and the middle 80 % of them."""
    if title == MEMORY_TABLE:
        return {way: f"{line['share']:.2f}" for way, line in ways.items() if "share" in line}
    timed = {way: line["seconds"] for way, line in ways.items() if line.get("seconds")}
    if title == STEPS_TABLE:
        return {way: f"{GPT2_SMALL.batch * GPT2_SMALL.length / statistics.median(s):,.0f}" for way, s in timed.items()}
    ordered = sorted(timed, key=lambda way: way not in OURS and not way.startswith("copy"))
    if not ordered:
        return {}
    base = timed[ordered[0]]
    column = {ordered[0]: duration(statistics.median(base))}
    for way in ordered[1:]:
        both = min(len(base), len(timed[way]))
        column[way] = str(ratio(timed[way][:both], base[:both]))
    return column


def notes(ways: Mapping[str, dict[str, Any]]) -> list[str]:
    """Return why ways have no number."""
    left = {way: line for way, line in ways.items() if line["outcome"] != "measured"}
    return [
        f"{way}: {'failed' if x['outcome'] in BAD else 'left out'}, {x.get('message', '')}" for way, x in left.items()
    ]


STAGE = Stage(run, expected, table, ahead)
