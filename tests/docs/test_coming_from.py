"""The page of other libraries' names: every row has an example of ours that its section runs."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "coming-from.md"
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE))


def code(text: str) -> str:
    """Return text without quotes and spaces, so that an example is found however it is written."""
    return re.sub(r"[\s'\"]", "", text)


@pytest.mark.parametrize("library", SECTIONS)
def test_a_row_has_an_example_that_runs(library):
    start = PAGE.read_text(encoding="utf-8").split(f"## {library}\n")[0] if library != "transformers" else ""
    programs = code("".join(re.findall(r"```python\n(.*?)```", start + SECTIONS[library], re.DOTALL)))
    rows = [line.split(" | ") for line in SECTIONS[library].splitlines() if line.startswith("| `")]
    assert len(rows) > 6
    for row in rows:
        here = row[-1].removesuffix(" |")
        named = re.findall(r"`(.*?)`", here.partition(", whose")[0].partition("; nearest")[0])
        assert named or here.startswith("not here"), row
        for name in named:
            words = [code(part) for part in name.split("(", 1)]
            assert all(word in programs for word in words[:1]), (library, name)
            if "=" in name and "..." not in name:
                assert code(name).rstrip(")") in programs, (library, name)
