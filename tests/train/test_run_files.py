"""Files of a run folder that came from somebody else: read whole, or refused in a line that quotes nothing of them."""

import json
import os
from pathlib import Path

import pytest

from train.engine.files import DEEPEST, lock_folder, parse_object, read_object, read_text


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


def test_a_folder_whose_name_is_only_bytes_is_refused_before_it_is_made(tmp_path):
    with pytest.raises(ValueError, match="out must be a path in the encoding of this locale, utf-8, got "):
        lock_folder(tmp_path / os.fsdecode(b"run-\xff"))
    assert not list(tmp_path.iterdir())
