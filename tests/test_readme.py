"""The Python of the README runs, in order, as it stands there."""

import re
from pathlib import Path

import jax


def test_the_readmes_python_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (Path(__file__).parent.parent / "README.md").read_text(), re.DOTALL)
    assert len(blocks) >= 4
    with jax.numpy_dtype_promotion("standard"):
        exec(compile("\n".join(blocks), "README.md", "exec"), {"__name__": "readme"})
