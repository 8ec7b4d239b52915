"""Versions: pip, the package and constraints.txt agree, and what is not supported is refused in one line."""

import ast
import pathlib
import runpy
import subprocess
import sys
import tomllib

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pejax._process.versions import SUPPORTED, require_version

ROOT = pathlib.Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REQUIRED = [Requirement(text) for text in sum(PROJECT["optional-dependencies"].values(), PROJECT["dependencies"])]


def last_line(script: str, path: pathlib.Path | None = None) -> str:
    """Return the last line of standard error of a program that fails, with packages of its own on the path."""
    before = f"import sys; sys.path[:0] = [{str(path)!r}, {str(ROOT)!r}]\n"
    run = subprocess.run([sys.executable, "-c", before + script], capture_output=True, text=True)
    assert run.returncode == 1
    return run.stderr.splitlines()[-1]


def test_the_package_refuses_what_pip_refuses():
    bounds = {item.name: item.specifier for item in REQUIRED if item.name in ("jax", "flax") and item.specifier}
    bounds["Python"] = Requirement(f"Python{PROJECT['requires-python']}").specifier
    assert {name: Requirement(f"{name}{text}").specifier for name, text in SUPPORTED.items()} == bounds
    minors = {text.removeprefix("Programming Language :: Python :: ") for text in PROJECT["classifiers"]}
    assert {f"3.{minor}" for minor in range(30) if f"3.{minor}" in bounds["Python"]} == {
        text for text in minors if text.startswith("3.")
    }


@pytest.mark.parametrize(
    ("name", "versions"),
    [
        ("Python", ["3.11.0", "3.13.0", "3.14.2"]),
        ("jax", ["0.10.0", "0.10.2", "0.12.0.1", "0.12.9.dev20261127+abc"]),
        ("flax", ["0.12.8", "0.12.12", "0.13.0", "1.0.0"]),
    ],
)
def test_supported_versions_pass(name, versions):
    for version in versions:
        require_version(name, version)


@pytest.mark.parametrize("version", ["0.9.2", "0.13.0", "0.13.0.dev20261127", "1.0"])
def test_another_jax_is_refused_before_anything_uses_it(version, tmp_path):
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text(f"__version__ = {version!r}", encoding="utf-8")
    assert last_line("import pejax", tmp_path) == (
        f'ImportError: pejax needs jax 0.10 to 0.12, got jax {version}: pip install "jax>=0.10,<0.13"'
    )


@pytest.mark.parametrize("version", [(3, 10, 13), (3, 15, 0)])
def test_another_python_is_refused_without_jax(version):
    script = f"sys.version_info, sys.modules['jax'] = {version}, None\nimport pejax"
    result = ".".join(map(str, version))
    assert last_line(script) == f"ImportError: pejax needs Python 3.11 to 3.14, got Python {result}"


def test_a_missing_jax_is_said_and_a_broken_one_speaks_for_itself(tmp_path):
    missing = last_line("sys.modules['jax'] = None\nimport pejax")
    assert missing == 'ImportError: pejax needs jax, which is not installed: pip install "jax>=0.10,<0.13"'
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("import a_part_of_jax", encoding="utf-8")
    assert last_line("import pejax", tmp_path) == "ModuleNotFoundError: No module named 'a_part_of_jax'"


@pytest.mark.parametrize("room", ["models", "interop"])
def test_an_older_flax_is_refused_where_flax_is_needed(room, monkeypatch):
    monkeypatch.setattr("flax.__version__", "0.12.7")
    with pytest.raises(ImportError) as refusal:
        runpy.run_path(str(ROOT / "pejax" / room / "__init__.py"))
    assert str(refusal.value) == (
        f'pejax.{room} needs flax 0.12.8 or later, got flax 0.12.7: pip install "flax>=0.12.8"'
    )


@pytest.mark.parametrize("room", ["models", "interop"])
def test_a_missing_flax_is_said_where_flax_is_needed(room, monkeypatch):
    monkeypatch.setitem(sys.modules, "flax", None)
    with pytest.raises(ImportError, match=rf'^pejax\.{room} needs Flax.*: pip install "flax>=0\.12\.8"[a-z0-9 ]*$'):
        runpy.run_path(str(ROOT / "pejax" / room / "__init__.py"))


def test_an_old_python_reads_what_runs_before_the_refusal():
    source = (ROOT / "pejax" / "__init__.py").read_text(encoding="utf-8")
    first = next(node for node in ast.parse(source).body if isinstance(node, ast.Import | ast.ImportFrom))
    assert ast.unparse(first) == "from pejax._process import versions as _versions"
    for text in (source, (ROOT / "pejax" / "_process" / "versions.py").read_text(encoding="utf-8")):
        ast.parse(text, feature_version=(3, 6))


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
def test_a_pin_meets_every_requirement(python):
    here = {**default_environment(), "python_version": python, "python_full_version": f"{python}.0"}
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    pinned = {
        canonicalize_name(item.name): item.specifier for item in pins if not item.marker or item.marker.evaluate(here)
    }
    for item in REQUIRED:
        if item.name != "pejax" and (not item.marker or item.marker.evaluate(here)):
            [pin] = pinned[canonicalize_name(item.name)]
            assert pin.operator == "==", item
            assert item.specifier.contains(pin.version), item


def test_the_compiler_for_gpus_is_that_of_the_pinned_jax():
    pins = {}
    for path in ("constraints.txt", "tests/gpu_aot/requirements.txt"):
        lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
        requirements = [Requirement(line) for line in lines if not line.startswith("#")]
        newest = {**default_environment(), "python_version": "3.13"}
        pins |= {
            item.name: str(item.specifier) for item in requirements if not item.marker or item.marker.evaluate(newest)
        }
    assert pins["jax"] == pins["jax-cuda13-plugin"] == pins["jax-cuda13-pjrt"]
