"""The training step of a GPT of GPT-2 small's size, 8 x 1,024 tokens in bfloat16, compiled for an H200."""

from typing import NamedTuple

import pytest

from tests.support.absent_gpu import assembled, compiler, require_cudnn
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


FIGURES = {  # of windows of one document each, and of windows that documents are packed into
    ("none", False): Figures(646, 0, 38.80, 3.26),
    ("none", True): Figures(688, 2, 39.61, 3.26),
    ("rope", False): Figures(672, 0, 40.01, 3.26),
    ("rope", True): Figures(738, 2, 42.07, 3.27),
    ("alibi", False): Figures(695, 0, 39.70, 3.47),
    ("alibi", True): Figures(688, 2, 39.61, 3.26),
}


@pytest.mark.parametrize(("pe", "packed"), FIGURES)
def test_a_training_step_moves_no_more_than_it_did(pe, packed):
    subject, topology, _ = read([*MODEL, f"--pe={pe}"])
    if not packed:
        require_cudnn()
        subject = subject._replace(batch={"ids": subject.batch["ids"]})
    result, bounds = assembled(lower_step(subject, absent_mesh(topology))), FIGURES[pe, packed]
    counts = ledger(result.text)
    assert counts.conditionals == 0
    assert counts.launches.total() <= bounds.launches
    assert counts.transposes <= bounds.transposes
    assert counts.moved <= bounds.moved * 1e9
    assert result.temporary <= bounds.temporary * 2**30
