"""The notebooks of colab/: the committed ones have the cells of their scripts, and outputs without an error."""

import importlib.util
import json
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
    assert second.source == build.setup((COLAB / f"{name}.py").read_text())


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


ADDRESS = "https://github.com/somebody/pejax"
PLACES = "*.md *.toml *.cff *.yml .ci/run docs/**/*.md docs/*.py colab/*.py examples/*.py"
SHOWN = [*PLACES.split(), *(f"{folder}/**/*.py" for folder in ("pejax", "train", "benchmarks"))]


def test_the_address_of_the_repository_stands_in_one_place():
    """In pyproject.toml, if there is one: what a reader runs must come from nobody else's account."""
    result = {}
    for path in {path for pattern in SHOWN for path in ROOT.glob(pattern)}:
        for address in re.findall(r"github(?:usercontent)?\.(?:com|io)/[\w./-]*\bpejax\b", path.read_text()):
            result.setdefault(address, []).append(path.relative_to(ROOT).as_posix())
    address = build.repository().removeprefix("https://")
    assert result == ({address: ["pyproject.toml"]} if address else {})
    for path in COLAB.glob("*.ipynb"):
        named = set(re.findall(r"github[\w.]*/([\w.-]+/pejax)\b", path.read_text()))
        assert named <= {address.partition("/")[2]}, path.name


def test_an_address_gives_badges_absolute_links_and_an_installation(monkeypatch):
    monkeypatch.setattr(build, "repository", lambda: ADDRESS)
    name = "03_alibi_and_extrapolation"
    title, setup, *others = build.convert(name).cells
    opened = f"https://colab.research.google.com/github/somebody/pejax/blob/main/colab/{name}.ipynb"
    assert f"colab-badge.svg)]({opened})\n" in title.source
    assert f'REPOSITORY = "{ADDRESS}"' in setup.source
    text = "".join(cell.source for cell in others if cell.cell_type == "markdown")
    assert f"]({ADDRESS}/blob/main/colab/04_longer_contexts.ipynb)" in text
    assert f"]({ADDRESS}/blob/main/docs/results.md)" in text
    assert not build.LINK.findall(text)


def test_an_address_that_colab_does_not_know_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "ROOT", tmp_path)
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    assert build.repository() == ""
    (tmp_path / "pyproject.toml").write_text('[project.urls]\nRepository = "https://example.org/pejax"\n')
    with pytest.raises(RuntimeError, match=r"must be https://github.com/OWNER/NAME, got https://example.org/pejax"):
        build.repository()


@pytest.mark.parametrize("name", NAMES)
def test_links_to_the_repository_are_relative_and_lead_somewhere(name):
    text = "".join(cell.source for cell in committed(name).cells if cell.cell_type == "markdown")
    assert [link for link in build.LINK.findall(text) if not (COLAB / link).exists()] == []


def test_the_page_links_every_notebook():
    page = (ROOT / "docs" / "notebooks.md").read_text()
    assert "(docs/notebooks.md)" in (ROOT / "README.md").read_text()
    assert "nav:" in (ROOT / "mkdocs.yml").read_text().partition("notebooks.md")[0]
    assert [name for name in NAMES if f"](../colab/{name}.ipynb)" not in page] == []


def test_text_is_written_anew_without_execution_and_code_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "COLAB", tmp_path)
    script = tmp_path / "01_one.py"
    script.write_text("# %% [markdown]\n# # One?\n#\n# Old.\n\n# %%\nx = 1\n")
    old = build.convert("01_one")
    old.cells[2].execution_count = 2
    old.cells[2].outputs = [nbformat.v4.new_output("stream", text="one")]
    nbformat.write(old, tmp_path / "01_one.ipynb")
    script.write_text(script.read_text().replace("Old", "New"))
    monkeypatch.setattr(build, "repository", lambda: ADDRESS)
    new = build.rewritten("01_one")
    assert "somebody" in new.cells[0].source
    assert "New." in new.cells[0].source
    assert ADDRESS in new.cells[1].source
    assert (new.cells[2].execution_count, new.cells[2].outputs) == (2, old.cells[2].outputs)
    script.write_text(script.read_text().replace("x = 1", "x = 2"))
    with pytest.raises(RuntimeError, match=r"the code has changed: run `python colab/build.py 01_one`"):
        build.rewritten("01_one")


OTHERS = ("jax", "chex", "jaxtyping", "flax", "optax", "matplotlib")
PIP = """
import json, pathlib, sys
here = pathlib.Path(__file__).parent
(here / "asked.json").write_text(json.dumps(sys.argv[1:]))
for name in (here / "gives").read_text().split():
    (here / name).mkdir()
    (here / name / "__init__.py").touch()
"""


class Ran:
    """What the first code cell did: its exit status, its last line, where pejax came from, and what it asked of pip."""

    def __init__(self, folder: Path, cwd: Path, *, installed=(), gives=(), address=""):
        packages = folder / "packages"
        for name in installed:
            (packages / name).mkdir(parents=True)
            (packages / name / "__init__.py").touch()
        packages.mkdir(parents=True, exist_ok=True)
        (packages / "pip.py").write_text(PIP)
        (packages / "gives").write_text(" ".join(gives))
        cell = build.SETUP.format(repository=address).replace("%matplotlib inline", "print(pejax.__file__)")
        command = [sys.executable, "-S", "-c", cell]  # no packages but these
        env = {**os.environ, "PYTHONPATH": str(packages)}
        run = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env)
        self.status, self.found = run.returncode, run.stdout.strip()
        self.said = run.stderr.strip().rpartition("\n")[2]
        asked = packages / "asked.json"
        self.asked = json.loads(asked.read_text()) if asked.exists() else None
        self.packages = packages


def clone_of(folder: Path) -> Path:
    """Make what the cell takes for a clone."""
    (folder / "pejax").mkdir(parents=True)
    (folder / "pejax" / "__init__.py").touch()
    (folder / "pejax" / "py.typed").touch()
    (folder / "colab").mkdir()
    return folder


@pytest.mark.slow
def test_the_first_cell_takes_pejax_where_it_is_installed(tmp_path):
    ran = Ran(tmp_path, tmp_path, installed=("pejax", *OTHERS), address=ADDRESS)
    assert (ran.status, ran.asked) == (0, None)
    assert ran.found == str(ran.packages / "pejax" / "__init__.py")


@pytest.mark.slow
@pytest.mark.parametrize("where", ["colab", "beside"])
def test_the_first_cell_installs_a_clone(tmp_path, where):
    """Around the notebook, or beside it, where Python takes the folder `pejax` for a package without content."""
    clone = clone_of(tmp_path / "pejax")
    ran = Ran(tmp_path, clone / "colab" if where == "colab" else tmp_path, gives=OTHERS, address=ADDRESS)
    assert ran.asked == ["install", "-q", "-e", f"{clone}[interop,visualize]", "optax"]
    assert (ran.status, ran.found) == (0, str(clone / "pejax" / "__init__.py"))


@pytest.mark.slow
def test_the_first_cell_installs_the_newest_wheel_beside_it(tmp_path):
    for age, name in enumerate(("pejax-0.9.0-py3-none-any.whl", "pejax-0.10.0-py3-none-any.whl")):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (age, age))
    ran = Ran(tmp_path, tmp_path, gives=("pejax", *OTHERS), address=ADDRESS)
    assert ran.asked == ["install", "-q", f"{tmp_path / name}[interop,visualize]", "optax"]
    assert ran.status == 0


@pytest.mark.slow
def test_the_first_cell_installs_from_the_address(tmp_path):
    ran = Ran(tmp_path, tmp_path, gives=("pejax", *OTHERS), address=ADDRESS)
    assert ran.asked == ["install", "-q", f"pejax[interop,visualize] @ git+{ADDRESS}", "optax"]
    assert ran.status == 0


@pytest.mark.slow
def test_the_first_cell_stops_with_one_line(tmp_path):
    ran = Ran(tmp_path / "none", tmp_path)
    assert (ran.status, ran.asked) == (1, None)
    assert ran.said.startswith("Stop: pejax is not here: put a wheel of it beside this notebook")
    ran = Ran(tmp_path / "one", tmp_path, installed=("pejax", *OTHERS[:-1]))
    assert (ran.status, ran.asked) == (1, None)
    assert ran.said == "Stop: Not installed: matplotlib; run `%pip install matplotlib`, then this cell again."
    ran = Ran(tmp_path / "failed", tmp_path, gives=OTHERS, address=ADDRESS)
    assert (ran.status, ran.said) == (1, "Stop: Not installed: pejax; pip says why above.")


@pytest.mark.slow
def test_a_file_of_the_repository_is_read_from_a_clone_or_beside_the_notebook(tmp_path):
    names: dict = {
        "FOLDERS": (tmp_path / "colab", tmp_path),
        "HERE": tmp_path / "colab",
        "Path": Path,
        "REPOSITORY": "",
        "Stop": ImportError,
    }
    exec(build.DATA, names)
    with pytest.raises(ImportError, match=r"train/data/shakespeare.xz of the clone is not here"):
        names["repository_file"]("train/data/shakespeare.xz")
    for place in ("colab/shakespeare.xz", "train/data/shakespeare.xz"):  # a clone comes first
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(place)
        assert names["repository_file"]("train/data/shakespeare.xz") == place.encode()


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
    assert "01_one.ipynb, cell 3: " in run.stderr
    assert "{}[0]" in run.stderr
    assert "KeyError" in run.stderr
    assert not (tmp_path / "colab" / "01_one.ipynb").exists()
