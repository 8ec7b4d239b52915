"""The command line of the benchmarks; nothing heavy is imported."""

import argparse
import pathlib
from collections.abc import Sequence

NAMES = ("attention", "rope", "phases", "bias", "memory", "steps", "long", "mesh", "compile")
"""Parts that are measured."""


def options(argv: Sequence[str] | None, docstring: str) -> argparse.Namespace:
    """Read the command line; `docstring` is that of the program, for `--help`."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=docstring, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", default=["all"], metavar="PART", help=f"all, {', '.join(NAMES)}")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each comparison (default 7)")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="TEXT",
        help="part of the names of the cases to measure; several = all of them",
    )
    parser.add_argument("--toy", action="store_true", help="tiny sizes, one round, no peers")
    parser.add_argument("--resume", action="store_true", help="measure only what --out does not hold yet")
    parser.add_argument("--write", action="store_true", help="put the sections into benchmarks/RESULTS.md")
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        default=pathlib.Path("runs/benchmarks"),
        metavar="FOLDER",
        help="folder of what was measured (default runs/benchmarks)",
    )
    chosen = parser.parse_args(argv)
    unknown = [name for name in chosen.parts if name not in ("all", *NAMES)]
    if unknown:
        parser.error(f"PART must be one of all, {', '.join(NAMES)}, got {unknown[0]}")
    if chosen.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {chosen.rounds}")
    if chosen.toy and chosen.write:
        parser.error("--write needs real sizes, got --toy")
    return chosen
