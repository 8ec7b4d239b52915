"""The stage of proofs: every implementation that the device offers, on every kind of attention, and the laws and steps.

Outputs and all gradients are compared with float64 on the host. A refusal, an implementation that says what it does not
support, is listed as one. Rows of the table are kinds; columns are implementations, each with its largest error over
its types, as a share of what is allowed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.hardware.kinds import KINDS
from benchmarks.hardware.outcomes import BAD, Case
from benchmarks.hardware.run import STARTS, Run, Settings, Stage

PRECISIONS = {
    "gpu": ("highest", "default", "bfloat16"),
    "cudnn": ("bfloat16",),
    "mosaic_gpu": ("bfloat16",),
    "dense": ("highest", "bfloat16"),
    "blockwise": ("highest", "bfloat16"),
    "reference": ("highest", "bfloat16"),
    "sharded": ("highest",),
}
"""Types of each implementation; "cudnn" and "mosaic_gpu" take narrow ones alone."""

WANTED = (
    "none, grouped queries", "alibi, fixed", "t5", "cpb", "cpb, grid", "alibi, learned",
    "none, D=80", "none, whole tiles", "alibi, packed, unplaced, batched", "t5, both ways, cross",
)  # fmt: skip
"""The kinds that are proved first where time is short: no bias, ALiBi, T5, cpb, learned, odd lengths, packed."""

LAWS = ("rope", "alibi", "t5", "rope_mixed")

EXPECTED = {
    "gpu": {"highest": 22.4, "default": 9.1, "bfloat16": 7.4},
    "cudnn": {"bfloat16": 1.1},
    "mosaic_gpu": {"bfloat16": 4.0},
    "dense": {"highest": 4.6, "bfloat16": 5.0},
    "blockwise": {"highest": 5.1, "bfloat16": 6.1},
    "reference": {"highest": 4.6, "bfloat16": 5.0},
    "sharded": {"highest": 17.0},
}
"""Seconds of a case beside 14 others: the mean over all kinds, measured on an H200, but for "dense", which is taken to
be as "reference", and "mosaic_gpu", an estimate: it refuses a quarter of the kinds at once. Most of them are
compilation."""


def cases(rehearse: bool) -> list[Case]:
    """Return the cases, the longest first; a rehearsal interprets each kind once, and other implementations once."""
    task = "benchmarks.hardware.{}".format
    proofs = [
        Case(
            "prove",
            f"ten steps of train.{model}",
            task("steps_proof:prove"),
            {"model": model, "toy": rehearse},
            120,
            83,
        )
        for model in ("vit", "lm")
    ]
    proofs.append(Case("prove", "phases at 2^24", task("laws_proof:phases"), {"toy": rehearse}))
    laws = LAWS[:1] if rehearse else LAWS
    proofs += [Case("prove", f"laws of {spec}", task("laws_proof:laws"), {"spec": spec}, 60, 5) for spec in laws]
    for implementation, precisions in PRECISIONS.items():
        for precision in precisions:
            for kind in KINDS:
                if rehearse and not rehearsed(kind, implementation, precision):
                    continue
                chosen = {"kind": kind, "implementation": implementation, "precision": precision, "toy": rehearse}
                name, took = f"{kind} | {implementation} | {precision}", EXPECTED[implementation][precision]
                proofs.append(Case("prove", name, task("attention_proof:prove"), chosen, 90, took))
    return proofs


def rehearsed(kind: str, implementation: str, precision: str) -> bool:
    """Return whether a rehearsal does this case: the kernels on each kind, all else on the first."""
    return kind == next(iter(KINDS)) or (implementation == "gpu" and precision == "highest")


def run(run: Run, until: float) -> None:
    """Do the cases that are due: the longest first, or, where what they need is compiled, the most wanted."""
    proofs = cases(run.settings.rehearse)
    run.do(sorted(proofs, key=worth) if run.settings.programs else proofs, until)


def worth(case: Case) -> int:
    """Return the place of a case among all where time is short: our kernels on the kinds that are used most."""
    kind, implementation, precision = (*case.name.split(" | "), "", "")[:3]
    if kind not in WANTED or implementation not in ("gpu", "cudnn", "mosaic_gpu"):
        return len(WANTED) * 3
    return WANTED.index(kind) + len(WANTED) * ("bfloat16", "highest", "default").index(precision)


def ahead(settings: Settings) -> list[Case]:
    """Return the cases that compile ahead, the most wanted first; the laws compile as they go, and phases at once."""
    compiled = [case for case in cases(settings.rehearse) if "laws_proof" not in case.task]
    only = [case._replace(arguments={**case.arguments, "only_compile": True}) for case in compiled]
    return sorted(only, key=worth)


def expected(settings: Settings, jobs: int) -> tuple[float, str]:
    """Return the seconds that the stage takes on an H200, and how they are known."""
    proofs = cases(False)
    work = sum(case.expected for case in proofs)
    how = f"{len(proofs)} cases of 1 to 22 s, mostly compilation, and two of 83 s: {work:.0f} s in {jobs} processes"
    return STARTS + work / jobs, f"{how} that start in {STARTS:.0f} s"


def table(lines: Mapping[str, dict[str, Any]]) -> str:
    """Return one row per kind, and the other proofs."""
    if not lines:
        return ""
    names = list(PRECISIONS)
    cell_of = lambda kind, name: cell([lines.get(f"{kind} | {name} | {precision}") for precision in PRECISIONS[name]])
    rows = [f"| {kind} | {' | '.join(cell_of(kind, name) for name in names)} |" for kind in KINDS]
    notes = [
        f"- {name}: {line['outcome']}, {line.get('message', '')}" for name, line in lines.items() if " | " not in name
    ]
    refused = sum(line["outcome"] == "refused" for line in lines.values())
    proved = sum(line["outcome"] == "proved" for line in lines.values())
    head = f"## Proofs: {proved} hold, {refused} refusals, {sum(x['outcome'] in BAD for x in lines.values())} failed"
    about = 'Largest error over what is allowed: 1e-5 float32 at "highest", 2e-3 at the default, 2e-2 bfloat16.'
    columns = [f"| kind | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    return "\n".join([head, "", about, "", *columns, *rows, "", *notes])


def cell(lines: Sequence[dict[str, Any] | None]) -> str:
    """Return the summary of an implementation by type: the worst outcome, or its largest error."""
    done = [line for line in lines if line is not None]
    bad = [line["outcome"] for line in done if line["outcome"] in BAD]
    if bad:
        return f"**{bad[0]}**"
    shares = [max(line["errors"].values()) / line["tolerance"] for line in done if line["outcome"] == "proved"]
    if shares:
        return f"{max(shares):.2f}"
    return "refused" if done else "-"


STAGE = Stage(run, expected, table, ahead)
