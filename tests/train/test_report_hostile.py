"""Reports of folders of somebody else: a bad one is left out by name, and nothing outside of it is shown."""

import dataclasses
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.support.cli import refused
from tests.support.hostile_folders import PROBE, hostile_folders, unsealed
from tests.support.hostile_values import LONG, NUMBERS, TEXTS
from tests.support.report_runs import add_probe, lm_run, vit_run
from train.engine.line_styles import numbered
from train.engine.stored_config import save_config
from train.report import collect as collecting
from train.report import probes as probing
from train.report import program, walk
from train.report.blocks import Axis, Curve, Plot, Point
from train.report.collect import collect
from train.report.content import Material, document
from train.report.figures import draw
from train.report.groups import group_runs
from train.report.probe_file import Probe, read_probe
from train.report.probes import probes_of
from train.report.program import main
from train.report.texts import DRAWN, plain
from train.tune.config import Config as TuneConfig

SECRET = "hunter2-the-first-line-of-a-secret-file"


@pytest.fixture
def undrawn(monkeypatch):
    """Figures are not drawn, which takes most of the time of a report."""
    monkeypatch.setattr(program, "draw", lambda plot, file: file.write(b"\x89PNG"))


def good(folder: Path) -> Path:
    """Make a good run."""
    return vit_run(folder, "none", 0, {28: 50, 56: 61})


def assert_good(markdown: Path) -> None:
    """Check that a report has the good run with its numbers."""
    rows = [line.replace("*", "") for line in markdown.read_text().splitlines() if line.startswith("| none")]
    assert any("| seed 0 | 50.0 |" in row and "| 61.0 |" in row for row in rows)


@pytest.mark.slow
def test_hostile_folders_are_named_and_the_good_run_is_there(tmp_path, capsys, undrawn):
    good(tmp_path / "runs" / "0")
    folders = hostile_folders(tmp_path / "runs", every=3)
    assert len(folders) > 126
    assert main([f"{tmp_path}/runs", "--no-probes", "-o", f"{tmp_path}/report.html"]) == 0
    said = capsys.readouterr().out
    assert_good(tmp_path / "report.md")
    page = (tmp_path / "report.html").read_text()
    assert all(character.isprintable() or character == "\n" for character in page + said)
    collection = collect([tmp_path / "runs"])
    places = [*(run.place for run in collection.runs), *(omission.what for omission in collection.left)]
    assert [folder for folder in folders if not any(f"{folder}" in place for place in places)] == []


@pytest.mark.slow
def test_a_page_of_all_hostile_folders_with_its_figures(tmp_path, capsys):
    good(tmp_path / "runs" / "0")
    assert len(hostile_folders(tmp_path / "runs")) > 450
    assert main([f"{tmp_path}/runs", "-o", f"{tmp_path}/report.html"]) == 0
    assert_good(tmp_path / "report.md")
    assert all((tmp_path / name).stat().st_size > 1000 for name in ("report-s1-1.png", "report.html"))
    capsys.readouterr()


def spots(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values in parsed JSON."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(spot for key, item in inner for spot in spots(item, (*path, key)))]


def altered(text: str, rng: random.Random) -> str:
    """Return JSON in which one value is another."""
    root = [json.loads(text)]
    *path, last = rng.choice(spots(root)[1:])
    inner = root
    for key in path:
        inner = inner[key]
    inner[last] = rng.choice(
        [*TEXTS.values(), *NUMBERS.values(), [], {}, {"28": 1.0}, 2**31, 1e30, 1e-30, "alibi", "28"]
    )
    return json.dumps(root[0])


@pytest.mark.parametrize("seed", range(2))
def test_any_value_at_any_place_leaves_a_report_of_the_good_run(seed, tmp_path, capsys, undrawn, monkeypatch):
    monkeypatch.setattr(probing, "measure_apart", unmeasured)
    rng, files = random.Random(seed), ("config.json", "results.json", "environment.json", "probe.json", "metrics.jsonl")
    add_probe(vit_run(tmp_path / "vit", "alibi", 1, {28: 50, 64: 20}), PROBE)
    of_text = dataclasses.replace(PROBE, trained=128)
    add_probe(lm_run(tmp_path / "lm", "rope", 1, {64: 1.0, 128: 1.0, 256: "too long"}), of_text)
    unsealed(tmp_path / "vit")
    unsealed(tmp_path / "lm")
    good(tmp_path / "runs" / "0")
    for number in range(60):
        folder = tmp_path / "runs" / f"{number:02}"
        shutil.copytree(tmp_path / rng.choice(["vit", "lm"]), folder)
        for name in rng.choices(files, k=2):
            text = (folder / name).read_text()
            lines = text.splitlines() if name == "metrics.jsonl" else [text]
            (folder / name).write_text("\n".join([altered(lines[0], rng), *lines[1:]]))
    assert main([f"{tmp_path}/runs", "-o", f"{tmp_path}/report.html"]) == 0
    assert_good(tmp_path / "report.md")
    capsys.readouterr()


def unmeasured(*_: object) -> Probe:
    """Refuse to read weights, of which these runs have none."""
    raise ValueError("there are no weights")


# Files outside of a run


def test_no_file_that_a_run_names_is_in_a_report(tmp_path, capsys, undrawn):
    for name in ("secret.txt", "secret.json", "config.json"):
        (tmp_path / "home" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "home" / name).write_text(f'{{"{SECRET}": "{SECRET}"}}\n')
    secret, runs = tmp_path / "home" / "secret.txt", tmp_path / "runs"
    good(runs / "0")
    specs = ("jsonl:{}", "file:{}", "shakespeare(tokenizer={!r})", "file(path='a', held_out={!r})")
    for number, spec in enumerate(specs):
        data = spec.format(f"{secret}").replace(".txt", ".json") if "tokenizer" in spec else spec.format(f"{secret}")
        place = lm_run(runs / f"lm-{number}", "rope", number, {64: 1.0, 128: 1.0}, data=data, init=f"{secret}")
        add_probe(place, PROBE)
        (place / "probe.json").unlink()
    for name in ("config.json", "results.json", "metrics.jsonl", "environment.json", "outcome.json", "results.jsonl"):
        place = vit_run(runs / f"linked {name}", "alibi", 1, {28: 50})
        (place / name).unlink(missing_ok=True)
        (place / name).symlink_to(secret)
    (runs / "home").symlink_to(tmp_path / "home")
    assert main([f"{runs}", "-o", f"{tmp_path}/out/report.html"]) == 0
    said = "".join(capsys.readouterr())
    assert_good(tmp_path / "out" / "report.md")
    files = [path.read_bytes() for path in (tmp_path / "out").iterdir()]
    assert not [content for content in (*files, said.encode()) if SECRET.encode() in content]
    assert f"needs --data=jsonl:{secret}" in (tmp_path / "out" / "report.md").read_text()


@pytest.mark.slow
def test_files_that_the_command_names_are_read_by_another_process(tmp_path, capsys):
    secret = tmp_path / "secret.jsonl"
    secret.write_text(f"{SECRET}\n")
    add_probe(lm_run(tmp_path / "lm", "rope", 0, {64: 1.0, 128: 1.0}, data=f"jsonl:{secret}"), PROBE)
    (tmp_path / "lm" / "probe.json").unlink()
    runs = collect([tmp_path]).runs
    _, reasons = probes_of(runs, [f"jsonl:{secret}"], Console())
    assert list(reasons.values()) == [f"line 1 of {secret} must be JSON, got something else"]
    assert "reading the weights" in capsys.readouterr().out


# Walking


def test_a_link_is_followed_to_a_run_and_no_further(tmp_path):
    place = tmp_path / "elsewhere"
    good(place / "run")
    vit_run(place / "run" / "inner", "alibi", 0, {28: 1})
    vit_run(place / "comparison" / "runs" / "rope-0", "rope_axial", 0, {28: 1})
    vit_run(place / "comparison" / "deep" / "sinusoidal-0", "sinusoidal", 0, {28: 1})
    (place / "comparison" / "runs" / "rope-0" / "outcome.json").write_text("{}")
    (place / "comparison" / "results.jsonl").write_text("")
    (tmp_path / "runs").mkdir()
    for name, target in {"run": place / "run", "comparison": place / "comparison", "all": "/", "kept": place}.items():
        (tmp_path / "runs" / name).symlink_to(target)
    collection = collect([tmp_path / "runs"])
    assert sorted(run.scored[0].name for run in collection.runs) == ["none", "rope_axial"]
    assert {Path(omission.what).name: omission.why for omission in collection.left} == dict.fromkeys(
        ("all", "kept"), "a link to a folder that is no run is not followed"
    )


def test_walking_ends_at_its_limits(tmp_path, monkeypatch):
    good(tmp_path / "a" / "b" / "c")
    for number in range(9):
        (tmp_path / "z" / f"{number}").mkdir(parents=True)
    monkeypatch.setattr(walk, "DEEPEST", 2)
    monkeypatch.setattr(walk, "ENTRIES", 8)
    whys = [omission.why for omission in collect([tmp_path]).left]
    assert "this and all in it: a report looks 2 levels deep at most" in whys
    assert "it has 8 entries or more, and others are not looked at" in whys
    monkeypatch.setattr(walk, "FOLDERS", 3)
    whys = [omission.why for omission in collect([tmp_path]).left]
    assert "this and all after it: a report looks at 3 folders at most" in whys


def test_reading_a_folder_ends_after_its_time(tmp_path, monkeypatch):
    good(tmp_path / "run")
    monkeypatch.setattr(collecting, "SECONDS", -1.0)
    collection = collect([tmp_path])
    assert not collection.runs
    assert (
        "1 of its evaluations: a report reads 50 evaluations of a run at most, and for -1 seconds"
        in collection.left[0].why
    )


# What is shown


def test_a_tuned_run_has_a_section_of_its_own(tmp_path):
    lm_run(tmp_path / "lm", "rope", 0, {64: 1.0, 128: 1.0})
    folder = lm_run(tmp_path / "tuned", "rope", 0, {64: 0.5, 128: 0.25})
    save_config(TuneConfig(model="model.gguf", pe="rope", length=128), folder)
    collection = collect([tmp_path])
    groups, omissions = group_runs(collection.runs)
    assert not omissions
    assert not collection.left
    assert [group.title for group in groups] == [
        "Text: shakespeare, trained at 128 tokens", "Fine-tuned on text: topics, trained at 128 tokens",
    ]  # fmt: skip
    content = document(Material(("runs",), tuple(groups), (), {}, {}, "today"))
    assert "of another kind" in content.sections[1].blocks[2]
    _, reasons = probes_of([run for run in collection.runs if run.program == "tune"], [], Console())
    assert list(reasons.values()) == ["the weights of fine-tuned models are not measured"]


def test_sections_of_one_title_are_numbered(tmp_path):
    for number, extra in enumerate(({}, {"registers": 1}, {"registers": 2}, {"registers": 3})):
        vit_run(tmp_path / f"{number}", "none", 0, {28: 50}, width=128 * (number > 0) or 64, patch=2, layers=1, **extra)
    vit_run(tmp_path / "other", "none", 0, {28: 50}, width=64, patch=4, layers=2)
    titles = [group.title for group in group_runs(collect([tmp_path]).runs)[0]]
    assert len(set(titles)) == 5
    assert sum(title.endswith(("set 2", "set 3")) for title in titles) == 2


def test_texts_are_plain_and_short():
    assert plain("rope(base=1e4) \n\t日本") == "rope(base=1e4) 日本"
    assert plain("\x1b[31ma\u202eb\ud800\x00") == "\ufffd[31ma\ufffdb\ufffd\ufffd"
    text, other = plain(LONG + "a" + LONG, 100), plain(LONG + "b" + LONG, 100)
    assert text != other
    assert max(len(text), len(other)) < 110


def test_a_plot_has_no_more_curves_than_can_be_told_apart(tmp_path):
    for number in range(DRAWN + 3):
        vit_run(tmp_path / f"{number}", f"encoding{number:02}", 0, {28: 50, 56: 61})
    groups, _ = group_runs(collect([tmp_path]).runs)
    content = document(Material(("runs",), tuple(groups), (), {}, {}, "today"))
    plot = next(block for block in content.sections[0].blocks if isinstance(block, Plot))
    assert len(plot.curves) == DRAWN
    assert plot.caption.endswith(f"The first {DRAWN} of {DRAWN + 3} are drawn; the tables have all.")


def test_figures_draw_names_as_they_are(tmp_path):
    points = tuple(Point(float(x), 1.0, 0.5, 1.5, "") for x in (1, 2))
    curves = tuple(
        Curve(name, numbered(style), points)
        for style, name in enumerate((r"$\frac{1}{$", "_hidden", "日本", "x" * 500))
    )
    for kind in ("curves", "scatter", "strips"):
        draw(
            Plot(kind, "p", "$x_$", "", Axis(r"$\bad$"), Axis("$"), curves, lanes=("$a$", "b")),
            tmp_path / f"{kind}.png",
        )
        assert (tmp_path / f"{kind}.png").stat().st_size > 5000


@pytest.mark.parametrize(
    "change", [{"entropies": {"28": {"layer": [["1"]]}}}, {"learned": [1]}, {"trained": True}, {"x": 1}]
)
def test_a_probe_of_something_else_is_measured_again(change, tmp_path):
    add_probe(tmp_path / "run", PROBE)
    assert read_probe(tmp_path / "run" / "probe.json") == PROBE
    stored = json.loads((tmp_path / "run" / "probe.json").read_text())
    (tmp_path / "run" / "probe.json").write_text(json.dumps(stored | change))
    assert read_probe(tmp_path / "run" / "probe.json") is None


# What is replaced


@pytest.mark.parametrize("name", ["README.md", "README.html", "README-s1-1.png"])
def test_a_file_of_something_else_is_not_replaced(name, tmp_path, capsys, undrawn):
    good(tmp_path / "runs" / "none-0")
    (tmp_path / name).write_text("# My project\n")
    line = refused(capsys, lambda: main([f"{tmp_path}/runs", "-o", f"{tmp_path}/README.html", "--no-probes"]))
    assert line.startswith(f"error: out must not replace a file that train.report did not write, got {tmp_path / name}")
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [name]
    assert (tmp_path / name).read_text() == "# My project\n"


@pytest.mark.slow
def test_an_earlier_report_is_replaced(tmp_path, capsys):
    good(tmp_path / "runs" / "none-0")
    for _ in range(2):
        assert main([f"{tmp_path}/runs", "-o", f"{tmp_path}/report.html", "--no-probes"]) == 0
    capsys.readouterr()
