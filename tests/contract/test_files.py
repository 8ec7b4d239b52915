"""Files are read and written as UTF-8 whatever the locale: read from the syntax trees."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[2]
FOLDERS = ("pejax", "train", "benchmarks", "colab", "docs", "examples")
OTHER_OPENERS = {"Image", "tarfile", "os", "webbrowser"}
"""Modules whose `open` opens no text."""


def nameless(tree: ast.AST) -> list[int]:
    """Return the lines of calls that read or write text and do not name its encoding."""
    return [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Call) and _is_text(node)
            and not any(item.arg in ("encoding", None) for item in node.keywords)]  # fmt: skip


def _is_text(call: ast.Call) -> bool:
    """Whether a call opens a text, or a process whose output is text."""
    called = call.func
    if isinstance(called, ast.Attribute) and called.attr in ("read_text", "write_text"):
        return True
    if any(item.arg in ("text", "universal_newlines") for item in call.keywords) and _name(called) in ("run", "Popen"):
        return True
    if _name(called) not in ("open", "fdopen"):
        return False
    method = isinstance(called, ast.Attribute) and called.attr == "open"
    if isinstance(called, ast.Attribute) and _name(called.value) in OTHER_OPENERS and called.attr == "open":
        return False
    modes = [item.value for item in call.keywords if item.arg == "mode"] or call.args[not method : 2 - method]
    return not any(isinstance(mode, ast.Constant) and "b" in str(mode.value) for mode in modes)


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_text_names_its_encoding(folder):
    result = {path: nameless(ast.parse(path.read_text(encoding="utf-8"))) for path in (ROOT / folder).rglob("*.py")}
    assert not {f"{path.relative_to(ROOT)}:{line}" for path, lines in result.items() for line in lines}


def test_the_checker_sees_texts_of_every_form():
    source = """
open(p)
open(p, "w")
path.open()
path.open("a")
os.fdopen(1, "w")
path.read_text()
path.write_text("a", errors="replace")
subprocess.run(command, text=True)
subprocess.Popen(command, text=True)
open(p, mode="r")
"""
    assert nameless(ast.parse(source)) == list(range(2, 12))
    named = """
open(p, "rb")
open(p, encoding="utf-8")
path.open("rb")
path.open(mode="wb")
path.read_text(encoding="utf-8")
read_text(path)
Image.open(file)
os.open(path, flags)
subprocess.run(command)
"""
    assert nameless(ast.parse(named)) == []
