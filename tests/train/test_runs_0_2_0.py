"""Run folders that version 0.2.0 wrote: their settings are read.

`data_files/runs_0_2_0` holds the config.json that a small run of each trainer of that version wrote, but for `out`.
"""

import importlib
import json
from pathlib import Path

import pytest

from train.engine.options import names_of
from train.engine.stored_config import is_run, load_config, program_of

FOLDER = Path(__file__).parents[1] / "data_files" / "runs_0_2_0"
PROGRAMS = ("vit", "lm", "seq2seq")


def settings(program: str) -> type:
    return importlib.import_module(f"train.{program}.config").Config


@pytest.mark.parametrize("program", PROGRAMS)
def test_settings_are_read_and_what_came_later_is_at_its_default(program: str, tmp_path: Path) -> None:
    text = (FOLDER / f"{program}.json").read_text()
    (tmp_path / "config.json").write_text(text)
    kind, stored = settings(program), json.loads(text)
    assert is_run(tmp_path)
    assert program_of(tmp_path) == program
    config, default = vars(load_config(kind, tmp_path)), vars(kind())
    later = {*config} - {*stored}
    assert later <= {*names_of(kind, "late")}
    assert {name: config[name] for name in later} == {name: default[name] for name in later}
    values = {name: list(value) if isinstance(value, tuple) else value for name, value in config.items()}
    assert {"program": program, **{name: values[name] for name in {*config} - later}} == stored


def test_damage_says_which_version_wrote_the_folder(tmp_path: Path) -> None:
    stored = json.loads((FOLDER / "lm.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**stored, "width": "wide"}))
    with pytest.raises(ValueError, match=r"written by pejax 0\.2\.0 or earlier: width must be of type int, got 'wide'"):
        load_config(settings("lm"), tmp_path)


def test_a_newer_version_is_named_as_such(tmp_path: Path) -> None:
    stored = json.loads((FOLDER / "lm.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**stored, "pejax": "99.0.0", "beta3": 0.5}))
    with pytest.raises(ValueError, match=r"written by pejax 99\.0\.0, which is newer than this one: .* in 'beta3'"):
        load_config(settings("lm"), tmp_path)
