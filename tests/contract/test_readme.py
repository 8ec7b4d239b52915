"""The README and docs/: their Python runs, their links lead somewhere, and every public name is in the reference."""

import importlib
import inspect
import re
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
REFERENCE = sorted((ROOT / "docs" / "reference").glob("*.md"))
MODULES = ("pejax", "pejax.encodings", "pejax.extensions", "pejax.models", "pejax.testing")


def snippets(page: Path) -> list[str]:
    """Return the Python of a page, block by block."""
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


def public_names(module: str) -> list[str]:
    """Return `__all__`, or what a module without one defines."""
    space = importlib.import_module(module)
    own = [name for name, value in vars(space).items() if getattr(value, "__module__", "") == module]
    return getattr(space, "__all__", [name for name in own if not name.startswith("_")])


@pytest.mark.parametrize("page", [page for page in PAGES if snippets(page)], ids=lambda page: page.name)
def test_the_python_of_a_page_runs_in_order(page):
    lines = [""] * page.read_text().count("\n")  # each block at its own lines, so that an error names them
    for block in re.finditer(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        start = page.read_text()[: block.start(1)].count("\n")
        lines[start : start + block[1].count("\n")] = block[1].splitlines()
    with jax.numpy_dtype_promotion("standard"):
        exec(compile("\n".join(lines), str(page), "exec"), {"__name__": page.stem})


def test_the_readme_is_one_screen_and_has_its_commands():
    text = (ROOT / "README.md").read_text()
    assert text.count("\n") <= 100
    assert len(snippets(ROOT / "README.md")) >= 3
    assert 'pip install -e ".[train]" && python -m train.vit --pe=rope_mixed' in text
    assert 'pip install -e ".[test]" && pytest' in text


def anchors(page: Path) -> set[str]:
    """Return what the headings of a page can be linked by, as GitHub and the site name them."""
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, *REFERENCE], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if target.startswith(("https://", "http://")):
            continue
        name, _, anchor = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_in_the_reference(module):
    text = "\n".join(page.read_text() for page in REFERENCE)
    entries = set(re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE))
    front = importlib.import_module("pejax")
    for name in public_names(module):
        value = getattr(importlib.import_module(module), name)
        assert inspect.getdoc(value), name
        also = f"pejax.{name}" if getattr(front, name, None) is value else ""
        assert f"{module}.{name}" in entries or also in entries, f"{module}.{name}"


def test_the_reference_has_no_name_that_is_gone():
    for page in REFERENCE:
        for entry in re.findall(r"^::: ([\w.]+)$", page.read_text(), re.MULTILINE):
            module, _, name = entry.rpartition(".")
            assert name in public_names(module), entry
