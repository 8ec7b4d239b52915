"""Files of a run folder that came from somebody else: read whole, or refused in a line that quotes nothing of them."""

import json
import os
import secrets
from pathlib import Path

import pytest

from train.engine.files import DEEPEST, appended_file, lock_folder, parse_object, read_object, read_text, write_atomic


def test_a_regular_file_is_read_and_its_line_ends_are_plain(tmp_path):
    (tmp_path / "a.json").write_bytes('{"name": "é"}\r\n'.encode())
    assert read_text(tmp_path / "a.json") == '{"name": "é"}\n'
    assert read_object(tmp_path / "a.json") == {"name": "é"}


@pytest.mark.parametrize("kind", ["a folder", "a pipe", "a link"])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path, kind):
    path = tmp_path / "config.json"
    (tmp_path / "secret").write_text("hunter2")
    make = {
        "a folder": path.mkdir,
        "a pipe": lambda: os.mkfifo(path),
        "a link": lambda: path.symlink_to(tmp_path / "secret"),
    }
    make[kind]()
    with pytest.raises(ValueError, match=f"must be a regular file, got {kind}$"):
        read_text(path)


def test_a_device_is_refused():
    with pytest.raises(ValueError, match=r"must be a regular file, got a device$"):
        read_text(Path("/dev/zero"))


def test_a_file_that_is_too_large_or_not_utf8_is_refused_without_quoting_it(tmp_path):
    (tmp_path / "large").write_text("hunter2")
    with pytest.raises(ValueError, match=r"at most 4 bytes, got 7$"):
        read_text(tmp_path / "large", most=4)
    (tmp_path / "bytes").write_bytes(b"hunter2\xff")
    with pytest.raises(ValueError, match=r"must be UTF-8, got another byte at 7$"):
        read_text(tmp_path / "bytes")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hunter2", "must be JSON"),
        ("[1]", "must hold an object, got a list"),
        ('{"a": ' + "[" * 100_000, "must be nested at most"),
        ('{"a": ' + "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1) + "}", "must be nested at most"),
        (json.dumps({"a": 10**400}), "integers of at most 64 bits"),
        ('{"a": ["\\ud800"]}', "half of a surrogate pair"),
        ('{"\\udfff": 1}', "half of a surrogate pair"),
    ],
)
def test_json_beyond_what_a_run_writes_is_refused_without_quoting_it(text, message):
    with pytest.raises(ValueError, match=message) as refused:
        parse_object(text, "config.json")
    assert "hunter2" not in str(refused.value)
    assert len(str(refused.value)) < 200


def linked(path: Path, kind: str) -> Path:
    """Plant a link at a path, and return the file outside that it leads to."""
    outside = path.parent.with_name("outside")
    outside.write_text("mine")
    path.symlink_to(outside) if kind == "symbolic" else path.hardlink_to(outside)
    return outside


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


@pytest.mark.parametrize("kind", ["symbolic", "hard"])
def test_a_link_is_replaced_by_the_file_and_not_written_through(kind, folder):
    outside = linked(folder / "results.json", kind)
    write_atomic(folder / "results.json", "new")
    assert (outside.read_text(), (folder / "results.json").read_text()) == ("mine", "new")
    assert [path.name for path in folder.iterdir()] == ["results.json"]
    assert not (folder / "results.json").is_symlink()


def test_a_link_at_the_name_of_the_new_file_is_not_written_through(folder, monkeypatch):
    """Its name is random; even one that is guessed is not followed."""
    monkeypatch.setattr(secrets, "randbelow", lambda most: 7)
    outside = linked(folder / ".results.json.7", "symbolic")
    with pytest.raises(FileExistsError, match=r"results\.json'$"):
        write_atomic(folder / "results.json", "new")
    assert outside.read_text() == "mine"


@pytest.mark.parametrize("kind", ["symbolic", "hard"])
def test_nothing_is_appended_through_a_link(kind, folder):
    outside = linked(folder / "log.txt", kind)
    with (
        pytest.raises(ValueError, match=r"log\.txt must be a .*, got a (hard )?link$"),
        appended_file(folder / "log.txt"),
    ):
        pass
    assert outside.read_text() == "mine"


def test_lines_are_appended(folder):
    for text in (b"one\n", b"two\n"):
        with appended_file(folder / "log.txt") as file:
            file.write(text)
    assert (folder / "log.txt").read_text() == "one\ntwo\n"


def test_an_error_names_the_file(folder):
    (folder / "results.json").mkdir()
    with pytest.raises(OSError, match=r"Is a directory: '.*run/results\.json'$"):
        write_atomic(folder / "results.json", "new")
    assert [path.name for path in folder.iterdir()] == ["results.json"]
    with pytest.raises(FileNotFoundError, match=r"nowhere'$"):
        write_atomic(folder / "nowhere" / "results.json", "new")


def test_each_file_has_its_limit(folder):
    for name in ("environment.json", "notes.json"):
        (folder / name).write_text(f'{{"a": "{"x" * 2**16}"}}')
    with pytest.raises(ValueError, match=r"must have at most 65,536 bytes, got 65,545$"):
        read_object(folder / "environment.json")
    assert len(read_object(folder / "notes.json")["a"]) == 2**16


@pytest.mark.parametrize("name", [os.fsdecode(b"run-\xff"), "run\\0"])
def test_a_folder_that_checkpoints_could_not_be_read_from_is_refused_before_it_is_made(name, tmp_path):
    with pytest.raises(ValueError, match="out must be a path in this locale's encoding, utf-8, without a backslash"):
        lock_folder(tmp_path / name)
    assert not list(tmp_path.iterdir())
