"""The material of a report: runs with their evaluations, and omissions."""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from train.engine.config import RunConfig
from train.engine.numbers import Kind, Number
from train.engine.programs import program as load_program
from train.engine.results import Evaluation


@dataclasses.dataclass(frozen=True)
class Line(Evaluation):
    """An evaluation of which a line of results.jsonl alone is left: its data and trained size are unknown.

    Args:
        program: name of the trainer.
    """

    program: str = ""

    @property
    def kind(self) -> Kind:
        """What the evaluations of the trainer have in common."""
        return load_program(self.program).results.kinds[0]

    @functools.cached_property
    def scored(self) -> dict[str, dict[int, Number]]:
        """The numbers by their name and size or length."""
        by_measure: dict[str, dict[int, Number]] = {}
        for number in self.numbers:
            by_measure.setdefault(number.measure, {})[number.place] = number
        return by_measure


class Run(NamedTuple):
    """One run.

    Attributes:
        place: its folder, or the file and the line that it was read from.
        program: name of the trainer.
        seed: seed of the run.
        scored: its evaluations.
        folder: run folder; None = only a line of results.jsonl is there.
        comparison: the folder of `train.compare` that it belongs to; None = none.
        config: settings of the run; None = unknown.
        metrics: lines of metrics.jsonl.
        made_with: versions, devices and sizes (`train.engine.environment`); empty = not recorded.
    """

    place: str
    program: str
    seed: int
    scored: tuple[Evaluation, ...]
    folder: Path | None = None
    comparison: Path | None = None
    config: RunConfig | None = None
    metrics: tuple[dict[str, Any], ...] = ()
    made_with: Mapping[str, Any] = {}


class Left(NamedTuple):
    """Something that is not in the report.

    Attributes:
        what: a folder, a file or an evaluation.
        why: the reason.
    """

    what: str
    why: str


class Found(NamedTuple):
    """The result of reading folders.

    Attributes:
        runs: runs with at least one evaluation.
        left: omissions.
    """

    runs: list[Run]
    left: list[Left]
