"""The notebooks of colab/: the committed ones have the cells of their scripts, and outputs without an error."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
COLAB = ROOT / "colab"

spec = importlib.util.spec_from_file_location("build_notebooks", COLAB / "build.py")
assert spec is not None
assert spec.loader is not None
build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build)

NAMES = build.names()


def committed(name: str) -> nbformat.NotebookNode:
    """Return the notebook as it is shown."""
    return nbformat.read(COLAB / f"{name}.ipynb", as_version=4)


def code(name: str) -> list[nbformat.NotebookNode]:
    """Return its code cells."""
    return [cell for cell in committed(name).cells if cell.cell_type == "code"]


def test_every_script_has_its_notebook():
    assert NAMES
    assert [path.stem for path in sorted(COLAB.glob("*.ipynb"))] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_notebook_has_the_cells_of_its_script(name):
    assert list(build.complaints(name)) == []


@pytest.mark.parametrize("name", NAMES)
def test_it_begins_with_its_question_its_badge_and_the_installation(name):
    first, second, *_ = committed(name).cells
    assert re.match(r"# .*\?\n", first.source)
    assert build.badge(name) in first.source
    assert second.source == build.INSTALL


@pytest.mark.parametrize("name", NAMES)
def test_it_ran_from_top_to_bottom_without_an_error(name):
    cells = code(name)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    assert [output for output in outputs if "image/png" in output.get("data", {})]
    assert [output for output in outputs if output.output_type == "stream"]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_committed_is_small_and_of_no_machine(name):
    text = (COLAB / f"{name}.ipynb").read_text()
    assert len(text) <= build.MOST_BYTES
    words = re.sub(r'"image/png": ".*"', "", text)
    assert not re.search(r"/(home|root|tmp|work|usr)/|site-packages|0x[0-9a-f]{8}", words)
    assert set(committed(name).metadata) == {"kernelspec", "language_info"}
    assert not [cell for cell in committed(name).cells if cell.metadata]


def test_pages_and_notebooks_name_one_repository():
    page = (ROOT / "docs" / "notebooks.md").read_text()
    assert "(docs/notebooks.md)" in (ROOT / "README.md").read_text()
    assert "nav:" in (ROOT / "mkdocs.yml").read_text().partition("notebooks.md")[0]
    for name in NAMES:
        assert f"]({build.REPOSITORY}/blob/main/colab/{name}.ipynb)" in page
        assert f"[Open in Colab]({build.colab(name)})" in page
    assert page.count("[Open in Colab]") == len(NAMES)
    owner = build.REPOSITORY.removeprefix("https://github.com/").partition("/")[0]
    for path in [*COLAB.glob("*.py"), *ROOT.glob("docs/*.md"), ROOT / "README.md"]:
        for link in re.findall(rf"github(?:\.com)?/{owner}/[\w-]+", path.read_text()):
            assert link.endswith(build.REPOSITORY.rpartition("/")[2]), (path.name, link)


def test_notebooks_use_the_public_library_alone():
    """`train/` is not installed with pejax, and names that begin with `_` may change."""
    for path in COLAB.glob("[0-9]*.py"):
        assert not re.search(r"^\s*(?:from|import) (?:pejax\._|train\b|benchmarks\b|tests\b)", path.read_text(), re.M)


def run_build(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command on the notebooks of a folder, as a copy of it."""
    (folder / "colab").mkdir(exist_ok=True)
    (folder / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    (folder / "colab" / "build.py").write_text((COLAB / "build.py").read_text())
    command = [sys.executable, str(folder / "colab" / "build.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=dict(os.environ))


@pytest.mark.slow
def test_check_names_the_notebook_that_differs(tmp_path):
    (tmp_path / "colab").mkdir()
    (tmp_path / "colab" / "01_one.py").write_text("# %% [markdown]\n# # One?\n\n# %%\nx = 1\n")
    run = run_build(tmp_path, "--check")
    assert (run.returncode, run.stderr.strip()) == (1, "01_one.ipynb is missing")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("x = 2")])
    nbformat.write(notebook, tmp_path / "colab" / "01_one.ipynb")
    run = run_build(tmp_path, "--check")
    assert run.returncode == 1
    assert run.stderr.startswith("01_one.ipynb has other cells than 01_one.py")
    run = run_build(tmp_path, "--check", "02")
    assert run.returncode == 2
    assert "no such notebook: 02. There are: 01_one" in run.stderr


def test_a_notebook_is_written_whole_or_stays(tmp_path, monkeypatch):
    """Whatever ends the build: a full disk, Ctrl-C, or SIGKILL, after which a hidden file may stay beside it."""
    path, text = tmp_path / "01_one.ipynb", '{"name": "é"}\n'
    build.write(path, text)
    assert path.read_bytes() == text.encode()
    for raised in (OSError("no space left"), KeyboardInterrupt()):
        for step in ("write_text", "replace"):
            with monkeypatch.context() as patched:

                def fail(*_, **__):
                    raise raised  # noqa: B023

                patched.setattr(Path, step, fail)
                with pytest.raises(type(raised)):
                    build.write(path, "half")
            assert path.read_bytes() == text.encode()
            assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
def test_a_cell_that_fails_is_named(tmp_path):
    pytest.importorskip("nbclient", reason="needs the extra `notebooks`")
    pytest.importorskip("ipykernel", reason="needs the extra `notebooks`")
    (tmp_path / "colab").mkdir()
    script = "# %% [markdown]\n# # One?\n\n# %%\nimport os\n\nprint(os.environ['PEJAX_FAST'])\n\n# %%\n{}[0]\n"
    (tmp_path / "colab" / "01_one.py").write_text(script)
    run = run_build(tmp_path, "--fast")
    assert run.returncode == 1
    assert "01_one.ipynb, cell 2: " in run.stderr
    assert "{}[0]" in run.stderr
    assert "KeyError" in run.stderr
    assert not (tmp_path / "colab" / "01_one.ipynb").exists()
