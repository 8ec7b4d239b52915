"""The material of a report: runs with their evaluations, and omissions."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from train.compare.table import Scores
from train.engine.config import RunConfig
from train.engine.intervals import Score
from train.engine.results import Evaluation


class Scored(NamedTuple):
    """One evaluation of a run.

    Attributes:
        name: name of the encoding, with the trainer's additions: "rope, cross unified".
        extend: the context extension, or `none`.
        trained: size or length of the training examples; 0 = unknown.
        examples: number of test images, tokens or questions at the trained size; 0 = unknown.
        note: remark on the data for readers.
        scores: quantity -> size or length -> number.
        refused: size or length -> why the encoding does not support it.
        measured: the scores with their intervals and outcomes; empty = unknown.
        step: step of the weights; 0 = unknown.
        made_by: data, judge and sampling of the numbers; empty = unknown.
    """

    name: str
    extend: str
    trained: int
    examples: int
    note: str
    scores: Scores
    refused: dict[int, str]
    measured: Mapping[str, Mapping[int, Score]] = {}
    step: int = 0
    made_by: Mapping[str, str] = {}

    @property
    def label(self) -> str:
        """The encoding and its extension."""
        return Evaluation(self.name, "", self.trained, 0, self.extend, "", ()).label


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
    scored: tuple[Scored, ...]
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
