"""What a process finds around it: an environment in which JAX cannot run is refused in one line, before its import."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from pejax._process.devices import visible_devices
from tests.support.cli import refused
from train.devices import cpu
from train.devices.surroundings import LEAST_ADDRESSES, require_surroundings


@pytest.mark.parametrize("devices", ["abc", "", "0", "-1", "1.5", "1000000", "4097", "٣", 100 * "9"])
def test_a_number_of_devices_that_jax_cannot_make_is_refused(devices):
    with pytest.raises(ValueError, match=r"JAX_NUM_CPU_DEVICES must be from 1 to 4096, got '"):
        require_surroundings({"JAX_NUM_CPU_DEVICES": devices})


def test_what_jax_can_have_is_left_alone():
    require_surroundings({})
    require_surroundings({"JAX_NUM_CPU_DEVICES": "4096", "JAX_DISABLE_JIT": "0"})


@pytest.mark.parametrize("value", ["1", "true", "YES"])
@pytest.mark.parametrize("name", ["JAX_DISABLE_JIT", "JAX_ENABLE_X64"])
def test_switches_with_which_nothing_can_be_trained_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} must be off: .*, got '{value}'"):
        require_surroundings({name: value})


def test_too_few_addresses_are_refused(monkeypatch):
    limit = 2**30
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limit, resource.RLIM_INFINITY))
    with pytest.raises(ValueError, match=r"\(ulimit -v\) must be at least 2.5 GiB, got 1.00 GiB"):
        require_surroundings({})
    limit = LEAST_ADDRESSES
    require_surroundings({})


def test_a_deleted_working_directory_is_refused(monkeypatch, tmp_path):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(ValueError, match="the working directory must exist, got one that was deleted"):
        require_surroundings({})


def test_a_refusal_ends_with_status_2(monkeypatch, capsys):
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "none")
    for name in ("excepthook", "unraisablehook"):
        monkeypatch.setattr(sys, name, getattr(sys, name))  # to be put back
    monkeypatch.setattr(cpu.signal, "getsignal", lambda number: None)  # Ctrl-C is pytest's
    assert "got 'none'" in refused(capsys, cpu.prepare_imports)


def test_what_jax_refuses_at_its_import_is_one_line():
    environ = {**os.environ, "JAX_ENABLE_X64": "abc"}
    ended = subprocess.run(
        [sys.executable, "-m", "train.report", "--help"], env=environ, capture_output=True, text=True, check=False,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("error: JAX_ENABLE_X64 must be what JAX takes, got 'abc': ")
    assert ended.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("program", ["vit", "report"])
def test_a_package_that_is_not_installed_is_named_in_one_line(program):
    """Before a run begins, not where its figure would be drawn."""
    hidden = (
        f"import runpy, sys; sys.modules['matplotlib'] = None; runpy.run_module('train.{program}', run_name='__main__')"
    )
    ended = subprocess.run(
        [sys.executable, "-c", hidden, "--help"], capture_output=True, text=True, check=False,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == 'error: this program needs matplotlib, which is not installed: pip install -e ".[train]"\n'


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (AssertionError(), "it finds no such device"),
        (RuntimeError("Unable to initialize\nbackend 'cuda'"), "Unable to initialize backend 'cuda'"),
    ],
)
def test_a_platform_that_is_not_there_is_named_with_the_way_out(raised, reason, monkeypatch):
    def none():
        raise raised

    monkeypatch.setattr(jax, "devices", none)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    with pytest.raises(ValueError, match=f"got 'cuda': {reason}; unset it, or set JAX_PLATFORMS=cpu"):
        visible_devices()
