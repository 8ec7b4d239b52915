"""Execute the notebooks of this folder: `python colab/build.py [NAME ...] [--fast] [--check]`.

Each notebook is written as a percent script, `colab/NAME.py`. This command converts it, executes it from the root of the
repository and writes `colab/NAME.ipynb` with its outputs. With `--fast` the notebooks see PEJAX_FAST=1 and take fewer
steps, and nothing is written. With `--check` nothing is executed: each notebook must have the cells of its script.

Needs the extra: `pip install -e ".[notebooks]"`.
"""

import argparse
import base64
import io
import os
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import jupytext
import nbformat

COLAB = Path(__file__).parent
ROOT = COLAB.resolve().parent
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]
BADGE = "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({})"
INSTALL = f"""try:
    import pejax
except ImportError:
    %pip install -q "pejax[train,visualize] @ git+{REPOSITORY}"
    import pejax
%matplotlib inline"""
"""The first code cell of every notebook."""
COLORS = 256
"""Of an image; more are not told apart and take more room."""
UNOPTIMIZED = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
"""With few steps, compilation takes most of the time."""
MOST_BYTES = 1_000_000
"""Of a notebook."""


def names() -> list[str]:
    """Return the notebooks in order."""
    return [path.stem for path in sorted(COLAB.glob("[0-9]*.py"))]


def colab(name: str) -> str:
    """Return the address that opens a notebook in Colab."""
    repository = REPOSITORY.removeprefix("https://github.com/")
    return f"https://colab.research.google.com/github/{repository}/blob/main/colab/{name}.ipynb"


def badge(name: str) -> str:
    """Return the badge that opens a notebook in Colab, as Markdown."""
    return BADGE.format(colab(name))


def convert(name: str) -> nbformat.NotebookNode:
    """Return the notebook of a script, without outputs."""
    notebook = jupytext.read(COLAB / f"{name}.py", fmt="py:percent")
    for i, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{i}", {}
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
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
    arguments = parser.parse_args()
    chosen = [full for full in names() if not arguments.names or full.startswith(tuple(arguments.names))]
    if strangers := [name for name in arguments.names if not any(full.startswith(name) for full in chosen)]:
        parser.error(f"no such notebook: {', '.join(strangers)}. There are: {', '.join(names())}")
    if arguments.check:
        wrong = [f"{name}.ipynb {complaint}" for name in chosen for complaint in complaints(name)]
        sys.exit("\n".join(wrong) or 0)
    began = time.perf_counter()
    for name in chosen:
        start, notebook = time.perf_counter(), convert(name)
        try:
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
