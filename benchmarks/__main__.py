"""Measure pejax and its peers side by side, and print tables of ratios.

    python -m benchmarks                     every part; hours
    python -m benchmarks attention rope      these parts
    python -m benchmarks attention --only "float32, forward and backward" --only 2,048
    python -m benchmarks all --resume --write    go on where it was stopped, write benchmarks/RESULTS.md
    python -m benchmarks all --toy           seconds: shows that all of it runs, measures nothing

A peer that is not installed (`pip install -e ".[bench]"`) or cannot is left out, and the tables say why. `.[bench-jax]`
has JAX's peers alone, without torch. Every table names the Python and the packages of its rows: torch's peers were
measured on Python 3.11. What was measured is kept case by case in the folder `--out`; --resume measures only what is
not there yet.
"""

if __name__ == "__main__":  # before anything heavy is imported
    from train.devices.cpu import prepare_cpu

    prepare_cpu()

    from benchmarks.command_line import options

    options(None, __doc__ or "")  # a mistyped one is refused now

import argparse
import gc
import json
import os
import pathlib
import shlex
from collections.abc import Sequence

import jax

from benchmarks import attention, bias, compile_time, long, memory, mesh, phases, rope, steps
from benchmarks.command_line import NAMES, options
from benchmarks.peers_torch import forget
from benchmarks.report import Case, Part, Settings, keep, path_of, section, write_section
from benchmarks.timing import Progress
from pejax._process.text import plain_output

MODULES = (attention, rope, phases, bias, memory, steps, long, mesh, compile_time)
PARTS: dict[str, Part] = {name: module.PART for name, module in zip(NAMES, MODULES, strict=True)}

RESULTS = pathlib.Path(__file__).parent / "RESULTS.md"


def measure(part: str, cases: Sequence[Case], progress: Progress, folder: pathlib.Path, command: str) -> None:
    """Measure the cases of a part one by one, and keep each."""
    for case in cases:
        path = path_of(folder, part, case)
        load, label = os.getloadavg()[0], f"{part} · {case.table} · {case.column} · "
        say = lambda what, share, case=case, label=label: progress.say(label + what, share, case.weight)
        keep(path, case.measure(say), command, load)
        progress.finish(case.weight)
        gc.collect()
        jax.clear_caches()
        forget()


def wanted(case: Case, only: Sequence[str]) -> bool:
    """Return whether the name of a case has all of these texts in it."""
    return all(text in f"{case.table}, {case.column}" for text in only)


def toy(part: Part) -> Part:
    """Return a part whose texts state how little its figures mean."""
    return part._replace(
        title=f"{part.title} (toy)", intro=f"Toy sizes, one round, no peers: no measurement. {part.intro}"
    )


def command_line(chosen: argparse.Namespace) -> str:
    """Return the command that measures the same, without the options for the place of results."""
    only = (word for text in chosen.only for word in ("--only", text))
    rounds = ["--toy"] if chosen.toy else ["--rounds", str(chosen.rounds)]
    return shlex.join(["python", "-m", "benchmarks", *chosen.parts, *rounds, *only])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    chosen = options(argv, __doc__ or "")
    names = list(PARTS) if "all" in chosen.parts else list(dict.fromkeys(chosen.parts))
    settings = Settings(1 if chosen.toy else chosen.rounds, chosen.toy)
    folder = chosen.out / "toy" if chosen.toy else chosen.out
    cases = {name: PARTS[name].cases(settings) for name in names}
    due = lambda name, case: not (chosen.resume and path_of(folder, name, case).exists())
    wished = {name: [case for case in cases[name] if wanted(case, chosen.only) and due(name, case)] for name in names}
    progress = Progress([case.weight for name in names for case in wished[name]])
    for name in names:
        measure(name, wished[name], progress, folder, command_line(chosen))
        kept = [
            (case, json.loads(path_of(folder, name, case).read_text(encoding="utf-8")))
            for case in cases[name]
            if path_of(folder, name, case).exists()
        ]
        progress.clear()
        if kept:
            text = section(toy(PARTS[name]) if chosen.toy else PARTS[name], kept)
            print(text, flush=True)
            if chosen.write:
                write_section(RESULTS, PARTS[name], text)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")  # a first call is to compile
    plain_output()
    raise SystemExit(main())
