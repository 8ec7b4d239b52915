"""Some five hundred damages of stored runs and links planted in them: the undisturbed result or one line, no more.

A run of `data_files/runs_0_3_0` gets the seals of this version and one damage, drawn from a seed. Then it is reported;
where the damage is to what an evaluation reads, it is evaluated, and resumed, too.
"""

import gc
import importlib
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cases import mostly_slow
from tests.support.cli import programs_on_disk
from train.engine import environment
from train.engine.files import with_digest, write_atomic
from train.engine.progress import read_metrics, sealed
from train.engine.run_files import PARTS
from train.engine.stored_config import program_of
from train.evaluate import program as evaluate
from train.report import probes
from train.report import program as report
from train.report.probe_file import Probe, read_probe, write_probe

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""Orbax leaves coroutines behind where a file is broken."""

FOLDER = Path(__file__).parents[1] / "data_files" / "runs_0_3_0"
RUNS = ("vit", "lm", "dit", "seq2seq", "tune", "compare")
FILES = {"tune": ("--data=file:notes.txt", "--model=tiny.gguf")}
"""Options that name the files which a run was trained on."""

EACH, REPORTED, GONE_ON = 20, 24, 6
"""Damages of a test, and tests: of reports, and of evaluations and resumed runs."""

READ = ("config.json", "results", "checkpoints", ".lock")
"""Beginnings of the names of what an evaluation and a resumed run read or write."""


@pytest.fixture(scope="module", autouse=True)
def compiled_once_and_in_a_hurry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with programs_on_disk(tmp_path_factory.mktemp("compiled"), seconds=0.05, jax_disable_most_optimizations=True):
        yield
    gc.collect()


@pytest.fixture(scope="module")
def sealed_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stored runs with the seals that this version writes."""
    runs = shutil.copytree(FOLDER, tmp_path_factory.mktemp("sealed") / "made")
    for path in runs.rglob("metrics.jsonl"):
        seal, texts = 0, []
        for line in read_metrics(path):
            text, seal = sealed(line, seal)
            texts.append(f"{text}\n")
        path.write_text("".join(texts))
    for path in runs.rglob(environment.FILE):
        write_atomic(path, json.dumps(with_digest(environment.read(path.parent)), indent=2) + "\n")
    for path in runs.rglob("probe.json"):
        write_probe(stored_probe(path), path)
    return runs


def stored_probe(path: Path) -> Probe:
    probe = read_probe(path)
    assert probe is not None
    return probe


def tree(folder: Path) -> dict[Path, bytes | str | None]:
    """Return what is in a folder: the contents of files, and where links lead to."""
    return {
        path: os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def with_byte(change: Callable[[bytes, int], bytes]) -> Callable[[Path, Path, random.Random], None]:
    """Return a damage that changes the content of a file at one byte."""

    def damage(path: Path, outside: Path, rng: random.Random) -> None:
        content = path.read_bytes()
        path.write_bytes(change(content, rng.randrange(len(content))) if content else b"x")

    return damage


def in_place(make: Callable[[Path, Path], object]) -> Callable[[Path, Path, random.Random], None]:
    """Return a damage that puts something else in the place of a file; it is given a file outside."""

    def damage(path: Path, outside: Path, rng: random.Random) -> None:
        (outside / "copy").write_bytes(path.read_bytes())
        path.unlink()
        make(path, outside)

    return damage


def part_elsewhere(path: Path, outside: Path, rng: random.Random) -> None:
    """Move a folder of the run outside, and plant a link in its place; other parts become links to a folder there."""
    run = path
    while not (run / "config.json").exists() and run.name not in RUNS:
        run = run.parent
    part = run / rng.choice([*PARTS, "offending-3", "log"])
    if part.exists():
        part.rename(outside / "part")
    else:
        (outside / "part").mkdir()
    part.symlink_to(outside / "part")


def beside(path: Path, outside: Path, rng: random.Random) -> None:
    """Plant links at names under which files are written until they are complete, and at those of other files."""
    names = [
        f".{path.name}.{os.getpid()}",
        f".{path.name}.tmp",
        ".lock",
        "samples.png",
        "results.png",
        "results-a.json",
    ]
    for name in names:
        if not os.path.lexists(path.with_name(name)):
            path.with_name(name).symlink_to(outside / "mine")


DAMAGES = {
    "a changed bit": with_byte(lambda content, at: content[:at] + bytes([content[at] ^ 2]) + content[at + 1 :]),
    "a missing byte": with_byte(lambda content, at: content[:at] + content[at + 1 :]),
    "an added byte": with_byte(lambda content, at: content[:at] + b"1" + content[at:]),
    "truncated": with_byte(lambda content, at: content[:at]),
    "missing": in_place(lambda path, outside: None),
    "a folder": in_place(lambda path, outside: path.mkdir()),
    "a pipe": in_place(lambda path, outside: os.mkfifo(path)),
    "a link": in_place(lambda path, outside: path.symlink_to(outside / "copy")),
    "a hard link": in_place(lambda path, outside: path.hardlink_to(outside / "copy")),
    "a link to nothing": in_place(lambda path, outside: path.symlink_to("/nowhere")),
    "an endless file": in_place(lambda path, outside: path.symlink_to("/dev/zero")),
    "a part elsewhere": part_elsewhere,
    "links beside it": beside,
}  # fmt: skip


class Damaged:
    """A copy of a run with one damage, in a working directory as it was when the run was made."""

    def __init__(self, runs: Path, top: Path, seed: int, only: tuple[str, ...] = ("",)) -> None:
        rng = random.Random(seed)
        self.name = RUNS[seed % len(RUNS)]
        self.top, self.outside = top / f"{seed}", top / f"{seed}-outside"
        self.folder = shutil.copytree(runs / self.name, self.top / self.name)
        for path in (path for path in runs.iterdir() if path.is_file()):  # what it was trained on, and its judge
            shutil.copy(path, self.top)
        self.outside.mkdir()
        (self.outside / "mine").write_text("mine")
        files = sorted(path for path in self.folder.rglob("*") if path.is_file())
        files = [path for path in files if str(path.relative_to(self.folder)).startswith(only)]
        shallow = [path for path in files if "checkpoints" not in path.parts]
        path, kind = rng.choice(rng.choice([shallow, files])), rng.choice([*DAMAGES])
        self.what = f"seed {seed}: {path.relative_to(self.top)}, {kind}"
        DAMAGES[kind](path, self.outside, rng)
        self.before = tree(self.outside)


def answer(call: Callable[[], int], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Return the status of a command, its output and its errors."""
    capsys.readouterr()
    try:
        status = call()
    except SystemExit as stopped:
        status = int(stopped.code or 0)
    said = capsys.readouterr()
    return status, said.out, said.err


def page(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str], str, str]:
    """Return the status of a report, the lines of its tables, and what it said."""
    status, out, err = answer(lambda: report.main([folder.name, "-o", "report.html"]), capsys)
    written = folder.with_name("report.md")
    lines = written.read_text().splitlines() if written.is_file() else []
    return status, [line for line in lines if "UTC" not in line], out, err


@pytest.fixture(scope="module")
def pages() -> dict[str, list[str]]:
    """The undisturbed reports, by run."""
    return {}


@pytest.mark.parametrize("part", mostly_slow(range(REPORTED), [0]))
def test_a_report_is_the_undisturbed_one_or_says_what_it_leaves_out(
    part, sealed_runs, pages, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(report, "draw", lambda plot, file: None)
    monkeypatch.setattr(probes, "measure_apart", lambda folder, *_: stored_probe(sealed_runs / folder / "probe.json"))
    for seed in range(EACH * part, EACH * (part + 1)):
        run = Damaged(sealed_runs, tmp_path, seed)
        if run.name not in pages:
            monkeypatch.chdir(shutil.copytree(sealed_runs, tmp_path / f"whole-{seed}"))
            pages[run.name] = page(Path(run.name).absolute(), capsys)[1]
        monkeypatch.chdir(run.top)
        status, lines, out, err = page(run.folder, capsys)
        assert "Traceback" not in out + err, run.what
        assert (status, err.count("\n")) in ((0, 0), (2, 1)), (run.what, err)
        assert tree(run.outside) == run.before, run.what
        if status == 0 and lines != pages[run.name]:
            assert "left out: " in out, (run.what, set(lines) ^ set(pages[run.name]))


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, Any]:
    """The results of evaluations of the whole runs, by run."""
    return {}


def require_close(results: Any, expected: Any, what: str) -> None:
    """Require that two results are alike, as far as other versions of jax take the second half of a run alike."""
    if isinstance(expected, dict):
        for name in expected.keys() - {"digest"}:
            require_close(results[name], expected[name], what)
    elif isinstance(expected, list):
        for result, other in zip(results, expected, strict=True):
            require_close(result, other, what)
    else:
        assert results == (pytest.approx(expected, rel=1e-3, abs=0.04) if type(expected) is float else expected), what


@pytest.mark.slow
@pytest.mark.parametrize("part", range(GONE_ON))
def test_an_evaluation_and_a_resumed_run_have_the_undisturbed_result_or_one_line(
    part, sealed_runs, undisturbed, tmp_path, monkeypatch, capsys
):
    """Other damages: to what an evaluation and a resumed run read or write."""
    for seed in range(EACH * part // 4, EACH * (part + 1) // 4):
        run = Damaged(sealed_runs, tmp_path, seed, READ) if RUNS[seed % len(RUNS)] != "compare" else None
        if run is None:
            continue
        if run.name not in undisturbed:
            runs = shutil.copytree(sealed_runs, tmp_path / f"whole-{seed}")
            monkeypatch.chdir(runs)
            assert answer(lambda: evaluate.main([run.name, *FILES.get(run.name, ())]), capsys)[0] == 0  # noqa: B023
            undisturbed[run.name] = json.loads((runs / run.name / "results.json").read_text())
        monkeypatch.chdir(run.top)
        program = importlib.import_module(f"train.{program_of(sealed_runs / run.name)}.program")
        commands = (
            lambda: evaluate.main([run.name, *FILES.get(run.name, ())]),  # noqa: B023
            lambda: program.main(["--resume", f"--out={run.name}", *FILES.get(run.name, ())]),  # noqa: B023
        )
        for command in commands:
            status, out, err = answer(command, capsys)
            assert "Traceback" not in out + err, run.what
            assert status in (0, 1, 2), run.what
            assert err.count("\n") == (status != 0), (run.what, err)
            assert status != 1 or "is damaged: these are the results of step" in err, (run.what, err)
            assert tree(run.outside) == run.before, run.what
            if status == 0:
                require_close(json.loads((run.folder / "results.json").read_text()), undisturbed[run.name], run.what)
