"""The README and docs/: their Python runs, their links lead somewhere, and every public name is in the reference."""

import importlib
import inspect
import re
from pathlib import Path

import jax
import pytest

import pejax
from tests.support.hub_folders import registering

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
ENCODING_PAGES = sorted((ROOT / "docs" / "encodings").glob("*.md"))
REFERENCE = sorted((ROOT / "docs" / "reference").glob("*.md"))
OWN = [path.stem for path in sorted((ROOT / "pejax").iterdir()) if path.suffix in ("", ".py") and path.stem[0] != "_"]
MODULES = ["pejax", *(f"pejax.{name}" for name in OWN)]


@pytest.fixture(autouse=True)
def no_architecture_stays():
    """Remove the architectures that a page registers."""
    with registering():
        yield


def snippets(page: Path) -> list[str]:
    """Return the Python of a page, block by block."""
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


def public_names(module: str) -> list[str]:
    """Return `__all__`, or what a module without one defines."""
    space = importlib.import_module(module)
    own = [name for name, value in vars(space).items() if getattr(value, "__module__", "") == module]
    return getattr(space, "__all__", [name for name in own if not name.startswith("_")])


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=() if page.name == "README.md" else pytest.mark.slow, id=page.name)
        for page in PAGES
        if snippets(page)
    ],
)
def test_the_python_of_a_page_runs_in_order(page):
    lines = [""] * page.read_text().count("\n")  # each block at its own lines, so that an error names them
    for block in re.finditer(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        start = page.read_text()[: block.start(1)].count("\n")
        lines[start : start + block[1].count("\n")] = block[1].splitlines()
    with jax.numpy_dtype_promotion("standard"):
        exec(compile("\n".join(lines), str(page), "exec"), {"__name__": page.stem})


@pytest.mark.parametrize("page", [*PAGES, *ENCODING_PAGES], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_python_of_a_page_fits_beside_its_navigation(page):
    code = re.findall(r"```py(?:thon)?\n(.*?)```", page.read_text(), re.DOTALL)
    assert [line for block in code for line in block.splitlines() if len(line) > 88] == []


def test_the_readme_is_one_screen_and_has_its_commands():
    text = (ROOT / "README.md").read_text()
    assert text.count("\n") <= 95 + len(pejax.ENCODINGS), "a row for each encoding"
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


def entries() -> list[tuple[str, str]]:
    """Return the module and the name of every entry of the reference."""
    result = re.findall(r"^::: ([\w.]+)\.(\w+)$", "\n".join(page.read_text() for page in REFERENCE), re.MULTILINE)
    assert len(result) == len(set(result))
    return result


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_in_the_reference(module):
    """Under this module or, where another one has the same object, under that."""
    named = {name: [] for _, name in entries()}
    for owner, name in entries():
        named[name].append(getattr(importlib.import_module(owner), name, None))
    for name in public_names(module):
        value = getattr(importlib.import_module(module), name)
        assert inspect.getdoc(value), name
        assert any(value is entry for entry in named.get(name, ())), name


def test_the_reference_has_no_name_that_is_gone():
    assert not [(module, name) for module, name in entries() if name not in public_names(module)]
