"""Compiled programs are kept where nobody else can put one."""

import os
from pathlib import Path

import jax
import pytest

from train.devices import kept_programs
from train.devices.kept_programs import keep_programs
from train.engine.parser import parse
from train.engine.stored_config import save_config
from train.lm import config as lm


@pytest.fixture(autouse=True)
def no_cache(monkeypatch, tmp_path):
    """JAX keeps nothing yet, and the user's cache folder is a new one."""
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path / 'cache'}")
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: jax.config.values[name] for name in names}
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def test_a_cpu_keeps_nothing_unless_it_is_asked_to(tmp_path):
    assert keep_programs("auto") == keep_programs("none") == ""
    assert jax.config.jax_compilation_cache_dir is None
    assert not (tmp_path / "cache").exists()
    assert keep_programs(f"{tmp_path / 'mine'}") == ""
    assert jax.config.jax_compilation_cache_dir == f"{tmp_path / 'mine'}"


def test_a_cpu_keeps_them_by_kind_of_processor_where_a_program_wants_it(tmp_path, monkeypatch):
    facts = tmp_path / "cpuinfo"
    monkeypatch.setattr(kept_programs, "CPU_FACTS", facts)
    assert keep_programs("auto", cpu=True) == ""
    assert jax.config.jax_compilation_cache_dir is None  # nobody knows the kind
    folders = []
    for flags in ("sse avx", "sse avx avx512f"):
        facts.write_text(f"model name : A\nflags : {flags}\ncpu MHz : 1\n\nmodel name : B\n")
        assert keep_programs("auto", cpu=True) == ""
        folders.append(jax.config.jax_compilation_cache_dir)
        jax.config.update("jax_compilation_cache_dir", None)
    assert folders[0] != folders[1]
    assert {Path(folder).parent for folder in folders} == {tmp_path / "cache/pejax"}


def test_a_gpu_keeps_them_in_a_folder_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_programs, "_on_gpu", lambda: True)
    assert keep_programs("auto") == ""
    folder = tmp_path / "cache/pejax/programs"
    assert jax.config.jax_compilation_cache_dir == f"{folder}"
    assert folder.stat().st_mode & 0o777 == 0o700
    jax.config.update("jax_compilation_cache_dir", "elsewhere")
    assert keep_programs("auto") == ""
    assert jax.config.jax_compilation_cache_dir == "elsewhere"


@pytest.mark.parametrize("kind", ["open to others", "a link", "a file", "of another user"])
def test_a_folder_that_others_may_write_is_refused(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(kept_programs, "_on_gpu", lambda: True)
    folder = tmp_path / "cache/pejax/programs"
    folder.parent.mkdir(parents=True)
    if kind == "a link":
        folder.symlink_to(tmp_path)
    elif kind == "a file":
        folder.touch()
    else:
        folder.mkdir()
        folder.chmod(0o777 if kind == "open to others" else 0o700)
    if kind == "of another user":
        monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert keep_programs("auto").startswith("compiled programs are not kept: programs must be a folder")
    assert jax.config.jax_compilation_cache_dir is None
    with pytest.raises(ValueError, match=r"programs must be a folder"):
        keep_programs(f"{folder}")


def test_a_folder_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"programs must be a folder that can be made, got .*: "):
        keep_programs(f"{tmp_path / 'file' / 'programs'}")
    assert Path(tmp_path / "file").is_file()


def test_a_run_folder_does_not_say_where(tmp_path):
    config = lm.Config(out=f"{tmp_path}", programs=f"{tmp_path / 'theirs'}")
    save_config(config, tmp_path)
    assert parse(lm.Config, ["--resume", f"--out={tmp_path}"]).programs == "auto"
