"""What pages say that no block of theirs runs: how a run is loaded, how pejax is cited, and where links go."""

import ast
import re
from pathlib import Path

import numpy as np
import pytest

from pejax import models
from tests.support.cases import mostly_slow

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
RUNS = {"lm": models.Decoder, "vit": models.ViT, "dit": models.DiT, "seq2seq": models.EncoderDecoder}


@pytest.mark.parametrize("name", mostly_slow(RUNS, ("seq2seq",)))
def test_a_run_is_loaded_and_used_as_the_page_says(name, capsys):
    load, *uses = re.findall(r"```py\n(.*?)```", (DOCS / "runs.md").read_text(), re.DOTALL)
    load, count = re.subn(r"runs/[\w-]+", str(ROOT / "tests/data_files/runs_0_3_0" / name), load)
    assert count == 1
    space = {}
    exec(compile(load, "runs.md", "exec"), space)
    assert isinstance(space["model"], RUNS[name])
    assert space["step"] == 20
    use = dict(zip(("lm", "vit", "dit"), uses, strict=True)).get(name, "")
    exec(compile(use.replace("200", "3"), "runs.md", "exec"), space)
    said = capsys.readouterr().out.splitlines()
    if name == "lm":
        assert re.match(r"b[\"'].+[\"']$", said[-1])
    if name == "vit":
        assert len(ast.literal_eval(said[-1].partition("]")[0] + "]")) == 4
    if name == "dit":
        assert space["pictures"].shape == space["noise"].shape
        assert np.isfinite(space["pictures"]).all()


def test_a_training_step_goes_as_the_page_says(tmp_path, monkeypatch, capsys):
    page = (DOCS / "training-step.md").read_text()
    monkeypatch.chdir(tmp_path)
    space = {}
    for block in re.findall(r"```py\n(.*?)```", page, re.DOTALL):
        exec(compile(block, "training-step.md", "exec"), space)
    said = capsys.readouterr().out
    assert "(16,) alibi\n" in said
    assert re.search(r"length 16 · shakespeare-\w+-bytes, 4,544,709 tokens", said)
    assert re.search(r"^5\.5\d+ 128\.0$", said, re.MULTILINE)
    assert re.search(r"^4 5\.5\d+$", said, re.MULTILINE)
    assert "perplexity" in said
    assert not list(tmp_path.iterdir())


def test_links_of_pages_go_to_files_that_the_site_shows():
    hooks = ast.parse((DOCS / "site_hooks.py").read_text())
    values = {node.targets[0].id: node.value for node in hooks.body if isinstance(node, ast.Assign)}
    shown = {path for pattern in ast.literal_eval(values["SHOWN"]) for path in ROOT.glob(pattern)}
    pages = [*sorted(DOCS.rglob("*.md")), *sorted(path for path in shown if path.suffix == ".md")]
    links = [(page, target) for page in pages for target in re.findall(r"\]\((?!\w+:|#)([^)#\s]+)", page.read_text())]
    assert len(links) > 300
    lost = [
        f"{page.relative_to(ROOT)}: {target}"
        for page, target in links
        if not ((path := (page.parent / target).resolve()).is_file() and (path.is_relative_to(DOCS) or path in shown))
    ]
    assert not lost


def test_the_citation_is_that_of_the_file():
    file = dict(re.findall(r'^([\w-]+): "?(.*?)"?$', (ROOT / "CITATION.cff").read_text(), re.MULTILINE))
    author = re.search(r"- name: (.*)", (ROOT / "CITATION.cff").read_text())[1]
    entry = dict(re.findall(r"^  (\w+) += \{+(.*?)\}+,?$", (DOCS / "citing.md").read_text(), re.MULTILINE))
    assert entry == {"author": author, **{key: file[key] for key in ("title", "version", "license")}}
