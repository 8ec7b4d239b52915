"""Ways in processes of their own: called there, their failures raised here, ended with the way."""

import gc

import pytest

from benchmarks.apart import apart

WAYS = """
import os

def ways(most):
    calls = []

    def counts():
        calls.append(1)
        print("call", len(calls))
        if len(calls) > most:
            raise ValueError("too many")

    return {"counts": lambda: counts, "leaves": lambda: lambda: os._exit(3)}
"""


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Return the name of a module that only other processes can import."""
    (tmp_path / "made.py").write_text(WAYS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "made"


@pytest.mark.slow
def test_a_way_in_a_process_of_its_own_is_called_there_and_fails_here(made):
    call = apart(made, "ways", [2], "counts")()
    call()
    call()
    with pytest.raises(RuntimeError, match=r"^too many$"):
        call()
    assert call.process.wait() == 0
    with pytest.raises(RuntimeError, match=r"^its process ended with status 3$"):
        apart(made, "ways", [2], "leaves")()()
    with pytest.raises(RuntimeError, match=r"^'absent'$"):
        apart(made, "ways", [2], "absent")()


@pytest.mark.slow
def test_a_process_ends_with_its_way(made):
    call = apart(made, "ways", [2], "counts")()
    process = call.process
    assert process.poll() is None
    del call
    gc.collect()
    assert process.returncode is not None
