"""The training step of a GPT of GPT-2 small's size, 8 x 1,024 tokens in bfloat16, compiled for an H200."""

from typing import NamedTuple

import pytest

from tests.support.absent_gpu import assembled, compiler
from tests.support.gpu_ledger import ledger
from train.engine.abstract_step import lower_step
from train.plan.program import read
from train.plan.topology import absent_mesh

__all__ = ["compiler"]

pytestmark = [pytest.mark.gpu_aot, pytest.mark.slow]

MODEL = [
    "lm", "--style=gpt2", "--dtype=bfloat16", "--batch=8", "--length=1024", "--layers=12", "--width=768",
    "--heads=12", "--vocab=50257", "--topology=h200:1",
]  # fmt: skip


class Figures(NamedTuple):
    """What the step of an encoding needs at bounds.

    Attributes:
        launches: number of launches.
        transposes: number of those that transpose.
        moved: gigabytes read and written.
        temporary: GiB of temporary memory.
    """

    launches: int
    transposes: int
    moved: float
    temporary: float


FIGURES = {
    "none": Figures(1334, 96, 72.39, 2.86),
    "rope": Figures(1360, 120, 75.11, 2.87),
    "alibi": Figures(1334, 96, 72.39, 2.86),
}


@pytest.mark.parametrize("pe", FIGURES)
def test_a_training_step_moves_no_more_than_it_did(pe):
    subject, topology, _ = read([*MODEL, f"--pe={pe}"])
    result, bounds = assembled(lower_step(subject, absent_mesh(topology))), FIGURES[pe]
    counts = ledger(result.text)
    assert counts.conditionals == 0
    assert counts.launches.total() <= bounds.launches
    assert counts.transposes <= bounds.transposes
    assert counts.moved <= bounds.moved * 1e9
    assert result.temporary <= bounds.temporary * 2**30
