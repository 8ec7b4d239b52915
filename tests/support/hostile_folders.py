"""Run folders that nobody's trainer wrote: damaged, wrongly typed, endless, misleading; to be read beside a good run.

Each is a good run of `train.vit` or `train.lm` with one thing made bad, so that the bad thing is what is met.
"""

import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.support.hostile_values import ENVIRONMENTS, HUGE, LINE, LONG, NAMES, NUMBERS, OUTCOMES, ROWS, TEXTS
from tests.support.report_runs import add_probe, lm_run, vit_run
from train.report.probe_file import Learned, Probe

Make = Callable[[Path], object]
"""Makes the good run folder that it is given a bad one."""


def edited(file: str, *path: Any, value: Any) -> Make:
    """Return a change of one value in a JSON file."""

    def make(folder: Path) -> None:
        content = json.loads((folder / file).read_text())
        inner = content
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        (folder / file).write_text(json.dumps(content))

    return make


def written(file: str, content: str | bytes) -> Make:
    """Return a change of the content of a file."""
    return lambda folder: (folder / file).write_bytes(content.encode() if isinstance(content, str) else content)


def replaced(file: str, make: Make) -> Make:
    """Return a change that puts something else in the place of a file."""

    def change(folder: Path) -> None:
        path = folder / file
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        make(path)

    return change


def linked(target: str | Path) -> Make:
    """Return what makes a link."""
    return lambda path: path.symlink_to(target)


def sparse(path: Path) -> None:
    """Make a file of 4 GiB that takes no room."""
    with path.open("wb") as file:
        file.truncate(2**32)


def bound(path: Path) -> None:
    """Make a socket."""
    with socket.socket(socket.AF_UNIX) as server:
        folder = os.getcwd()
        os.chdir(path.parent)  # because the path of a socket has at most 107 bytes
        try:
            server.bind(path.name)
        finally:
            os.chdir(folder)


def deep(levels: int, begin: str = '{"a":', end: str = "}") -> str:
    """Return deeply nested JSON."""
    return begin * levels + "1" + end * levels


KINDS: dict[str, Make] = {
    "folder": Path.mkdir,
    "pipe": os.mkfifo,
    "socket": bound,
    "endless": linked("/dev/zero"),
    "root": linked("/"),
    "loop": lambda path: path.symlink_to(path.name),
    "nowhere": linked("/nowhere/at/all"),
    "sparse": sparse,
    "none": lambda path: None,
    "nothing": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(b"\0" * 1000),
    "utf-16": lambda path: path.write_bytes("{}".encode("utf-16")),
    "deep": lambda path: path.write_text(deep(100_000)),
    "deep list": lambda path: path.write_text(deep(900, '{"a":[', "]}")),
    "number": lambda path: path.write_text("5"),
    "list": lambda path: path.write_text("[1, 2]"),
    "digits": lambda path: path.write_text('{"step": ' + "9" * 100_000 + "}"),
    "half": lambda path: path.write_text('{"program": "vit", "pe'),
}
"""What takes the place of a file."""

FILES = (
    "config.json",
    "results.json",
    "metrics.jsonl",
    "environment.json",
    "outcome.json",
    "results.jsonl",
    "probe.json",
)


def of_lines(**changes: Any) -> Make:
    """Return a change that adds the line of a comparison."""
    return written("results.jsonl", json.dumps({**LINE, **changes}) + "\n")


LINES: dict[str, Make] = {
    "thousands": written("results.jsonl", "".join(json.dumps({**LINE, "seed": n}) + "\n" for n in range(3000))),
    "garbage": written("results.jsonl", "{bad}\n" * 5000),
    "tune": of_lines(task="tune"),
    "size 0": of_lines(scores={"none": {"top-1, %": {"0": 5.0}}}),
    "size of a kind": of_lines(scores={"none": {"top-1, %": {"²": 5.0}}}),
    "huge number": of_lines(scores={"none": {"perplexity": {"28": 1.7e308}}}),
    "percent": of_lines(scores={"none": {"top-1, %": {"28": 101.0}}}),
    "text": of_lines(scores={"none": {"top-1, %": {"28": "61"}}}),
    "thousands of numbers": of_lines(scores={"none": {"top-1, %": {str(n): 1.0 for n in range(1, 5000)}}}),
    "names": of_lines(trained=LONG, scores={LONG: {LONG: {"28": 5.0}}}),
    "status": of_lines(status="\x1b[2J", message=LONG),
    "lists": of_lines(scores=[]),
    "a list of lists": written("results.jsonl", "[[]]\n"),
}
"""Lines of results.jsonl."""

METRICS: dict[str, Make] = {
    "steps of a kind": written("metrics.jsonl", '{"step": 1e308, "loss": 1}\n'),
    "no step": written("metrics.jsonl", '{"loss": 1}\n'),
    "minus": written("metrics.jsonl", '{"step": -1, "loss": 1}\n'),
    "true": written("metrics.jsonl", '{"step": true, "loss": 1}\n'),
    "huge step": written("metrics.jsonl", f'{{"step": {HUGE}, "loss": 1}}\n'),
    "largest losses": written("metrics.jsonl", '{"step": 1, "loss": 1.7e308}\n{"step": 2, "loss": -1.7e308}\n'),
    "smallest losses": written("metrics.jsonl", '{"step": 1, "loss": 5e-324}\n{"step": 2, "loss": 1e-320}\n'),
    "nan": written("metrics.jsonl", '{"step": 1, "loss": NaN, "step_seconds": Infinity}\n' * 2),
    "times": written("metrics.jsonl", '{"step": 1, "loss": 1, "step_seconds": 1e308}\n' * 3),
    "millions": written("metrics.jsonl", '{"step": 1}\n' * 1_000_000),
}
"""Lines of metrics.jsonl."""

SLOPES = Learned("heads/slope", (2,), 0.5, (1.0, 1.5, 2.0), (2.0, 2.0, 2.0), ([1.0, 2.0], [2.0, 2.0]))
PROBE = Probe(30, 1000, 2, 10**9, 2**28, 28, {"28": {"layer": [[1.0]]}}, {"64": "too large"}, (SLOPES,))
PROBES: dict[str, tuple[tuple[Any, ...], Any]] = {
    "entropies": (("entropies",), {"28": {"layer": [[1.7e308, "a"]]}}),
    "an entropy of nothing": (("entropies",), {"28": {"layer": [[]]}}),
    "sizes": (("entropies",), {"²": {"layer": [[1.0]]}}),
    "shapes": (("learned", 0, "values"), [[1.0, 2.0], [1.0]]),
    "frequencies": (("learned", 0, "name"), "frequencies"),
    "parameters": (("learned",), [5]),
    "numbers": (("learned", 0, "values"), [[1e308, -1e308], [1e308, 1.0]]),
    "summaries": (("learned", 0, "before"), [1.0]),
    "memory": (("memory",), -(2**62)),
}
"""Changes of probe.json: where, and what."""


def unsealed(folder: Path) -> None:
    """Make a run one of an earlier version, without digests: who changes a run may also compute its digests."""
    for name, marks in {"config.json": ("pejax", "run"), "results.json": ("digest", "run", "steps")}.items():
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({key: value for key, value in content.items() if key not in marks}))


def nested(path: Path) -> None:
    """Make folders in folders, deeper than a report looks."""
    (path / "/".join("d" * 60)).mkdir(parents=True)


SHAPES: dict[str, Make] = {
    "a link to everything": lambda folder: (folder / "all").symlink_to("/"),
    "a link to itself": lambda folder: (folder / "again").symlink_to(folder),
    "a link upward": lambda folder: (folder / "up").symlink_to(".."),
    "links to devices": lambda folder: [(folder / name).symlink_to(f"/{name}") for name in ("dev", "proc", "sys")],
    "a deep tree": nested,
    "many folders": lambda folder: [(folder / f"{n}").mkdir() for n in range(2000)],
    "many evaluations": lambda folder: [shutil.copy(folder / "results.json", folder / f"results-{n}.json")
                                        for n in range(300)],
    "checkpoints of a kind": replaced("checkpoints", lambda path: path.write_text("5")),
    "steps of a kind": lambda folder: [(folder / "checkpoints" / name).mkdir() for name in ("1²", "٣")],
    "a step that is a file": replaced("checkpoints", lambda path: [path.mkdir(), (path / "90").write_text("")]),
    "checkpoints elsewhere": replaced("checkpoints", linked("/")),
    "a step of a halt": replaced("results.json", lambda path: path.with_name(f"offending-{LONG[:99]}").mkdir()),
}  # fmt: skip
"""Changes of what is in a folder."""


def all_bad() -> Iterator[tuple[str, Make]]:
    """Yield every change of a run of `train.vit`, with its name."""
    for file in FILES:
        for kind, make in KINDS.items():
            yield f"{file} {kind}", replaced(file, make)
    for field in ("program", "pe", "data", "init", "extend", "optimizer", "preset"):
        for kind, text in TEXTS.items():
            yield f"config {field} {kind}", edited("config.json", field, value=text)
    for field in ("seed", "size", "lr", "validation", "layers", "eval_sizes"):
        for kind, number in NUMBERS.items():
            yield f"config {field} {kind}", edited("config.json", field, value=number)
    yield "config of train.tune", edited("config.json", "program", value="tune")
    yield "config with more", edited("config.json", LONG, value=LONG)
    for field in ("name", "note", "data", "extend"):
        for kind, text in TEXTS.items():
            yield f"results {field} {kind}", edited("results.json", field, value=text)
    for field in ("trained", "step"):
        for kind, number in NUMBERS.items():
            yield f"results {field} {kind}", edited("results.json", field, value=number)
    for field in ("at", "value", "low", "count"):
        for kind, number in NUMBERS.items():
            yield f"number {field} {kind}", edited("results.json", "numbers", 0, field, value=number)
    of_json = lambda file, kinds: {kind: written(file, json.dumps(item)) for kind, item in kinds.items()}
    groups: dict[str, dict[str, Make]] = {
        "rows": {kind: edited("results.json", "rows", value=rows) for kind, rows in ROWS.items()},
        "numbers": {kind: edited("results.json", "numbers", value=rows) for kind, rows in ROWS.items()},
        "probe": {kind: edited("probe.json", *path, value=item) for kind, (path, item) in PROBES.items()},
        "outcome": of_json("outcome.json", OUTCOMES), "environment": of_json("environment.json", ENVIRONMENTS),
        "lines": LINES, "metrics": METRICS, "shape": SHAPES,
    }  # fmt: skip
    yield from ((f"{what} {kind}", make) for what, kinds in groups.items() for kind, make in kinds.items())


def losses() -> Iterator[tuple[str, Make]]:
    """Yield every change of a run of `train.lm`, with its name."""
    for field in ("value", "high", "count"):
        for kind, number in NUMBERS.items():
            yield f"loss {field} {kind}", edited("results.json", "numbers", 0, field, value=number)
    yield "loss refused", edited("results.json", "numbers", 0, "refused", value=LONG)
    yield "loss missing", edited("results.json", "numbers", 0, "value", value=None)


def hostile_folders(top: Path, every: int = 1) -> list[Path]:
    """Make hostile folders below a folder, all or every second and so on, and return them."""
    images, text = top / ".images", top / ".text"
    add_probe(vit_run(images, "alibi", 0, {28: 50, 64: 20}), PROBE)
    lm_run(text, "rope", 0, {64: 1.0, 128: 1.0})
    bad = [(f"name {kind}/{name}", images, lambda folder: None) for kind, name in NAMES.items()]
    bad += [(name, images, make) for name, make in all_bad()] + [(name, text, make) for name, make in losses()]
    result = []
    for good in (images, text):
        unsealed(good)
    for number, (name, good, make) in list(enumerate(bad))[::every]:
        folder = top / f"{number:03} {name}"
        shutil.copytree(good, folder)
        edited("config.json", "seed", value=number)(folder)
        make(folder)
        result.append(folder)
    for good in (images, text):
        shutil.rmtree(good)
    return result
