"""Seals of metrics.jsonl and environment.json: any byte that is changed, missing or added is noticed, or no matter."""

import json
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest
from rich.console import Console

from tests.support.report_runs import lm_run, vit_run
from train.devices.mesh import make_mesh
from train.engine import environment
from train.engine.progress import TOKENS, Report, read_metrics, sealed
from train.report.collect import collect

LINES = [{"step": 10, "loss": 2.5}, {"step": 10, "probe": 1e-3}, {"step": 20, "loss": 2.25, "lr": float("nan")}]


def write(path: Path) -> None:
    """Write a metrics file as a run does."""
    seal, texts = 0, []
    for line in LINES:
        text, seal = sealed(line, seal)
        texts.append(f"{text}\n")
    path.write_text("".join(texts))


def damaged(content: bytes) -> Iterator[bytes]:
    """Yield the content with every byte changed, deleted, or with one before it."""
    for at, byte in enumerate(content):
        yield content[:at] + bytes([byte ^ 1]) + content[at + 1 :]
        yield content[:at] + content[at + 1 :]
        yield content[:at] + b"7" + content[at:]


def test_a_damaged_byte_of_the_metrics_is_noticed(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path)
    assert f"{read_metrics(path, ended=True)}" == f"{LINES}"
    noticed = 0
    for content in damaged(path.read_bytes()):
        path.write_bytes(content)
        try:
            assert f"{read_metrics(path, ended=True)}" == f"{LINES}", content
        except ValueError:
            noticed += 1
    assert noticed > 450


def test_a_line_that_is_missing_added_or_moved_is_noticed(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path)
    first, second, third = path.read_text().splitlines(keepends=True)
    unsealed = json.dumps(LINES[0]) + "\n"
    for lines in ((second, third), (first, third), (second, first, third), (first, first, second), (first, unsealed)):
        path.write_text("".join(lines))
        with pytest.raises(ValueError, match="has changed since it was written"):
            read_metrics(path)


def test_a_process_that_is_killed_leaves_complete_lines(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path)
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        lines = read_metrics(path)
        assert f"{lines}" == f"{LINES[: len(lines)]}"
        assert len(lines) >= content[:length].count(b"\n")


@pytest.mark.parametrize("begun", ["sealed", "by 0.3.0"])
def test_a_run_that_goes_on_seals_what_it_adds(begun, tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path)
    if begun == "by 0.3.0":
        path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    path.write_text(path.read_text() + '{"step": 30, "lo')
    report = Report(tmp_path, 10, 100, TOKENS, Console(quiet=True))
    report.write(11, {"loss": 2.0})
    report.write(12, {"loss": 1.0})
    with report:
        pass
    assert [line["step"] for line in read_metrics(path, ended=True)] == [10, 10, 11, 12]
    path.write_text(path.read_text().replace("2.5", "2.6"))
    with pytest.raises(ValueError, match="has changed since it was written"):
        read_metrics(path)


def test_a_damaged_byte_of_the_environment_is_noticed(tmp_path):
    mesh = make_mesh(1)
    environment.record(tmp_path, 1234, 10**9, mesh)
    environment.record_peak(tmp_path, mesh)
    path, entries = tmp_path / "environment.json", environment.read(tmp_path)
    assert entries["devices"] == f"1 x {jax.devices()[0].device_kind}"
    noticed = 0
    for content in damaged(path.read_bytes()):
        path.write_bytes(content)
        try:
            assert environment.read(tmp_path) == entries, content
        except ValueError:
            noticed += 1
    assert noticed > 500


def test_a_report_says_which_files_of_a_run_are_missing_or_end_early(tmp_path):
    vit_run(tmp_path / "whole", "alibi", 0, {28: 50})
    for name in ("environment.json", "metrics.jsonl"):
        (vit_run(tmp_path / f"no {name}", "rope_axial", 1, {28: 50}) / name).unlink()
    lm_run(tmp_path / "no results-pi", "rope", 1, {64: 1.0}, extend="none,pi")
    early = vit_run(tmp_path / "early", "none", 2, {28: 50}) / "metrics.jsonl"
    early.write_text("".join(early.read_text().splitlines(keepends=True)[:2]))
    part = vit_run(tmp_path / "part", "none", 3, {28: 50}) / "metrics.jsonl"
    part.write_text(part.read_text()[:-5])
    omissions = {
        Path(omission.what).relative_to(tmp_path).as_posix(): omission.why for omission in collect([tmp_path]).left
    }
    reason = "missing, although such a run writes it"
    assert omissions == {
        "no environment.json/environment.json": reason,
        "no metrics.jsonl/metrics.jsonl": reason,
        "no results-pi/results-pi.json": reason,
        "early/metrics.jsonl": "it ends at step 20, and the run was measured at step 30",
        "part/metrics.jsonl": "a line of metrics.jsonl must be complete, got a part of one",
    }
