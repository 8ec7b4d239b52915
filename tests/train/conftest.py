"""Runs of the toy program, which the tests of run folders damage and continue."""

import shutil
import sys
from pathlib import Path

import pytest

from tests.support import toy_program
from train.engine import programs


@pytest.fixture
def toy(monkeypatch):
    """Let the commands know the toy program."""
    monkeypatch.setitem(sys.modules, "train.toy.program", toy_program)
    monkeypatch.setattr(programs, "PROGRAMS", ("vit", "toy"))


@pytest.fixture(scope="session")
def toy_run(tmp_path_factory) -> Path:
    """A finished run of the toy program: checkpoints of steps 6 and 8."""
    out = tmp_path_factory.mktemp("toy") / "run"
    assert toy_program.train(out) == 0
    return out


@pytest.fixture
def run(toy, toy_run, tmp_path) -> Path:
    """A copy of it, to be damaged."""
    return shutil.copytree(toy_run, tmp_path / "run")
