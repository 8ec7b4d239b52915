"""Execute the notebooks of this folder: `python colab/build.py [NAME ...] [--fast] [--check] [--text]`.

Each notebook is written as a percent script, `colab/NAME.py`. This command converts it, executes it from the root of the
repository and writes `colab/NAME.ipynb` with its outputs. With `--fast` the notebooks see PEJAX_FAST=1 and take fewer
steps, and nothing is written. With `--check` nothing is executed: each notebook must have the cells of its script.

The first code cell, which finds pejax, is the same in all notebooks and stands in none of the scripts. It comes from
here, as do the badge for Colab and the addresses of links, from the address under `[project.urls]` in pyproject.toml,
if there is one. After a change of it, or of text alone, `--text` writes the notebooks anew and keeps their outputs.

Needs the extra: `pip install -e ".[notebooks]"`.
"""

import argparse
import base64
import io
import os
import re
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from posixpath import normpath

import jupytext
import nbformat

LANGUAGE = {"name": "python"}
COLAB = Path(__file__).parent
ROOT = COLAB.resolve().parent
BADGE = "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({})"
GITHUB = "https://github.com/"
SETUP = """# Find pejax: installed, in a clone around this notebook, in a wheel beside it, or where it is published.
import importlib.util
import subprocess
import sys
from pathlib import Path

REPOSITORY = "{repository}"  # where pejax is published; empty: nowhere yet
HERE = Path.cwd()
FOLDERS = (HERE, *HERE.parents, HERE / "pejax")


class Stop(Exception):
    def _render_traceback_(self):
        return [str(self)]  # all that a notebook shows


def missing():
    importlib.invalidate_caches()
    needed = ("pejax", "jax", "chex", "jaxtyping", "flax", "optax", "matplotlib")
    specs = {{name: importlib.util.find_spec(name) for name in needed}}
    return [name for name, spec in specs.items() if spec is None or spec.origin is None]  # no origin: a mere folder


if "pejax" in missing():
    clones = [str(folder) for folder in FOLDERS if (folder / "pejax" / "py.typed").exists()]
    wheels = sorted(HERE.glob("pejax-*.whl"), key=lambda wheel: wheel.stat().st_mtime)
    if clones:
        sys.path.insert(0, clones[0])
        source = ["-e", clones[0] + "[interop,visualize]"]
    elif wheels:
        source = [f"{{wheels[-1]}}[interop,visualize]"]
    elif REPOSITORY:
        source = [f"pejax[interop,visualize] @ git+{{REPOSITORY}}"]
    else:
        raise Stop(
            "pejax is not here: put a wheel of it beside this notebook (in Colab: Files, Upload) and run this cell again. "
            "`pip wheel --no-deps .` in a clone of pejax makes the wheel."
        )
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", *source, "optax"])
if absent := missing():
    advice = "pip says why above" if "pejax" in absent else f"run `%pip install {{' '.join(absent)}}`, then this cell again"
    raise Stop(f"Not installed: {{', '.join(absent)}}; {{advice}}.")

import pejax

%matplotlib inline"""
"""The first code cell of every notebook."""
DATA = """


def repository_file(path):
    for file in [*(folder / path for folder in FOLDERS), HERE / Path(path).name]:
        if file.exists():
            return file.read_bytes()
    if REPOSITORY:
        return urllib.request.urlopen(f"{REPOSITORY}/raw/main/{path}").read()
    raise Stop(f"{path} of the clone is not here: put the file beside this notebook and run this cell again.")"""
"""The end of that cell in notebooks that read a file of the repository."""
LINK = re.compile(r"(?<=\]\()(?!\w+:)[\w./-]+(?=\))")
"""A link to another file of the repository, relative to this folder."""
COLORS = 256
"""Of an image; more are not told apart and take more room."""
UNOPTIMIZED = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
"""With few steps, compilation takes most of the time."""
MOST_BYTES = 1_000_000
"""Of a notebook."""


def names() -> list[str]:
    """Return the notebooks in order."""
    return [path.stem for path in sorted(COLAB.glob("[0-9]*.py"))]


def repository() -> str:
    """Return the address under `[project.urls]` in pyproject.toml, or "" while there is none.

    Raises:
        RuntimeError: it is on another host, where Colab does not find notebooks.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    address = project.get("urls", {}).get("Repository", "")
    if address and not re.fullmatch(rf"{GITHUB}[\w.-]+/[\w.-]+", address):
        raise RuntimeError(f"[project.urls] Repository must be {GITHUB}OWNER/NAME, got {address}")
    return address


def setup(script: str) -> str:
    """Return the first code cell of the notebook of a script."""
    first = SETUP.format(repository=repository())
    return (
        first.replace("import sys\n", "import sys\nimport urllib.request\n") + DATA
        if "repository_file(" in script
        else first
    )


def badge(name: str) -> str:
    """Return the badge that opens a notebook in Colab, as Markdown; "" while there is no address."""
    address = repository().replace(GITHUB, "https://colab.research.google.com/github/")
    return address and BADGE.format(f"{address}/blob/main/colab/{name}.ipynb")


def linked(text: str) -> str:
    """Return text with the addresses of its links to files of the repository, if there is one."""
    address = repository()
    return LINK.sub(lambda found: f"{address}/blob/main/{normpath('colab/' + found[0])}", text) if address else text


def convert(name: str) -> nbformat.NotebookNode:
    """Return the notebook of a script, without outputs."""
    notebook = jupytext.read(COLAB / f"{name}.py", fmt="py:percent")
    script = "".join(cell.source for cell in notebook.cells)
    question, _, about = notebook.cells[0].source.partition("\n\n")
    notebook.cells[0].source = "\n\n".join(filter(None, (question, badge(name), about)))
    notebook.cells.insert(1, nbformat.v4.new_code_cell(setup(script)))
    for i, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{i}", {}
        if cell.cell_type == "markdown":
            cell.source = linked(cell.source)
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": LANGUAGE,
    }
    return notebook


def cells(notebook: nbformat.NotebookNode) -> list[tuple[str, str]]:
    """Return the kind and the text of each cell."""
    return [(cell.cell_type, cell.source) for cell in notebook.cells]


def complaints(name: str) -> Iterator[str]:
    """Yield what is wrong with the committed notebook."""
    path = COLAB / f"{name}.ipynb"
    if not path.exists():
        yield "is missing"
        return
    if cells(nbformat.read(path, as_version=4)) != cells(convert(name)):
        yield f"has other cells than {name}.py: run `python colab/build.py {name}`"


def rewritten(name: str) -> nbformat.NotebookNode:
    """Return the committed notebook with the text and the first code cell that it has now, and its outputs.

    Raises:
        RuntimeError: code that computes has changed, so outputs may be old.
    """
    new, old = convert(name), nbformat.read(COLAB / f"{name}.ipynb", as_version=4)
    computed = [[cell.source for cell in one.cells if cell.cell_type == "code"][1:] for one in (new, old)]
    if computed[0] != computed[1]:
        raise RuntimeError(f"the code has changed: run `python colab/build.py {name}`")
    outputs = [(cell.execution_count, cell.outputs) for cell in old.cells if cell.cell_type == "code"]
    for cell, (count, shown) in zip((one for one in new.cells if one.cell_type == "code"), outputs, strict=True):
        cell.execution_count, cell.outputs = count, shown
    return new


def execute(notebook: nbformat.NotebookNode, fast: bool) -> None:
    """Execute a notebook, outputs included, in a kernel of its own.

    Raises:
        RuntimeError: a cell failed; the message names it.
    """
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
    from traitlets.config import Config

    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ.pop("PEJAX_FAST", None)
    if fast:
        os.environ["PEJAX_FAST"] = "1"
        os.environ.setdefault("XLA_FLAGS", UNOPTIMIZED)
    try:
        with tempfile.TemporaryDirectory() as sockets:  # of this kernel alone: another build may run beside this one
            NotebookClient(
                notebook,
                timeout=600,
                kernel_name="python3",
                record_timing=False,
                resources={"metadata": {"path": str(ROOT)}},
                config=Config({"KernelManager": {"transport": "ipc", "ip": str(Path(sockets) / "kernel")}}),
            ).execute()
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        done = [i for i, cell in enumerate(notebook.cells) if cell.get("execution_count")]
        failed = max(done, default=0)
        raise RuntimeError(f"cell {failed}: {error}") from None


def joined(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Return the outputs with what was printed in one go as one of them, however the kernel sent it."""
    result: list[nbformat.NotebookNode] = []
    for output in outputs:
        if result and output.output_type == result[-1].output_type == "stream" and output.name == result[-1].name:
            result[-1].text += output.text
        else:
            result.append(output)
    return result


def tidy(notebook: nbformat.NotebookNode) -> None:
    """Make images small, and refuse outputs that would differ between machines.

    Raises:
        RuntimeError: a cell wrote to stderr, or printed a path of this machine.
    """
    from PIL import Image

    notebook.metadata.language_info = LANGUAGE  # execution adds the version of Python
    for i, cell in enumerate(notebook.cells):
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = joined(cell.outputs)
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr":
                raise RuntimeError(f"cell {i} wrote to stderr:\n{output.text}")
            output.pop("metadata", None)
            if output.output_type != "stream":
                output.metadata = {}
            data = output.get("data", {})
            if "image/png" in data:
                picture = Image.open(io.BytesIO(base64.b64decode(data["image/png"])))
                small = io.BytesIO()
                picture.convert("RGB").quantize(COLORS, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
                data["image/png"] = base64.b64encode(small.getvalue()).decode()
            shown = [output.get("text", ""), *(value for kind, value in data.items() if not kind.startswith("image/"))]
            for path in {str(ROOT), str(Path.home()), sys.prefix}:
                if path in str(shown):
                    raise RuntimeError(f"cell {i} printed a path of this machine: {path}")


def write(path: Path, text: str) -> None:
    """Write a notebook whole or not at all: a killed or interrupted build leaves the one that was there."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def main() -> None:
    """Build the notebooks that the command line names.

    Raises:
        SystemExit: with status 1, a cell failed or a notebook differs from its script; with 2, an unknown name; with
            130, Ctrl-C.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="how notebooks begin; all if none is named")
    parser.add_argument("--fast", action="store_true", help="take fewer steps and write nothing")
    parser.add_argument("--check", action="store_true", help="compare notebooks with scripts, execute nothing")
    parser.add_argument("--text", action="store_true", help="write text and links anew, keep outputs, execute nothing")
    arguments = parser.parse_args()
    chosen = [full for full in names() if not arguments.names or full.startswith(tuple(arguments.names))]
    if strangers := [name for name in arguments.names if not any(full.startswith(name) for full in chosen)]:
        parser.error(f"no such notebook: {', '.join(strangers)}. There are: {', '.join(names())}")
    if arguments.check:
        wrong = [f"{name}.ipynb {complaint}" for name in chosen for complaint in complaints(name)]
        sys.exit("\n".join(wrong) or 0)
    began = time.perf_counter()
    for name in chosen:
        start = time.perf_counter()
        try:
            notebook = rewritten(name) if arguments.text else convert(name)
            if not arguments.text:
                execute(notebook, arguments.fast)
                tidy(notebook)
        except RuntimeError as error:
            sys.exit(f"{name}.ipynb, {error}")
        if not arguments.fast:
            text = nbformat.writes(notebook) + "\n"
            if len(text) > MOST_BYTES:
                sys.exit(f"{name}.ipynb has {len(text):,} bytes: at most {MOST_BYTES:,}")
            write(COLAB / f"{name}.ipynb", text)
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
    print(f"in all: {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("stopped; notebooks that are not named above are as they were", file=sys.stderr)
        raise SystemExit(130) from None
