"""The Python of the README and of the pages beside it runs, in order, as it stands there."""

import re
from pathlib import Path

import jax


def test_the_readmes_python_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[2] / "README.md").read_text(), re.DOTALL)
    assert len(blocks) >= 4
    with jax.numpy_dtype_promotion("standard"):
        exec(compile("\n".join(blocks), "README.md", "exec"), {"__name__": "readme"})


def test_the_python_about_traps_runs() -> None:
    page = Path(__file__).parents[2] / "docs" / "known-traps.md"
    code = "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
    exec(compile(code, page.name, "exec"), {"__name__": "traps"})
