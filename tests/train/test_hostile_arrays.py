"""Archives of arrays that come from somebody else: read, or refused in one line before their arrays are."""

import io
import json
import os
import struct
import zipfile

import numpy as np
import pytest

from tests.support.cli import refused
from train.engine import failed_step
from train.engine.arrays import read_arrays
from train.replay import program as replay

ENTRY = b"PK\x01\x02"  # of a member, in the directory at the end of a zip archive


@pytest.fixture
def step(tmp_path):
    (tmp_path / "step.json").write_text(json.dumps({"step": 3, "loss": "1.0", "bits": (1.0).hex()}))
    np.savez(tmp_path / "batch.npz", ids=np.arange(6).reshape(2, 3))
    return tmp_path


def changed(offset, value, kind="<H"):
    """Return the function that overwrites a number in the entry of the archive."""

    def change(path):
        content = bytearray(path.read_bytes())
        struct.pack_into(kind, content, content.index(ENTRY) + offset, value)
        path.write_bytes(content)

    return change


def with_member(content):
    def change(path):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("ids.npy", content)

    return change


def header(shape, kind="<f4"):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": kind, "fortran_order": False, "shape": shape})
    return file.getvalue()


def pipe(path):
    path.unlink()
    os.mkfifo(path)


def link(path):
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


HOSTILE = {
    "encrypted": (changed(8, 1), "must be an archive of np.savez, got 'ids.npy', which is encrypted"),
    "method 99": (changed(10, 99), "must be an archive of np.savez, got 'ids.npy', which is compressed by method 99"),
    "compressed": (lambda path: np.savez_compressed(path, ids=np.zeros(9)), "which is compressed by method 8"),
    "too large": (changed(24, 2**31, "<I"), "got members that are larger than the archive"),
    "a pickle": (lambda path: np.savez(path, ids=np.array([{}], object)), "got an array of object with shape (1,) in"),
    "4 TB": (with_member(header((2**40,))), "got an array of float32 with shape (1099511627776,) in 0 bytes"),
    "of nothing": (with_member(header((2**40,), "|S0")), "got an array of |S0 with shape (1099511627776,) in 0 bytes"),
    "no array": (with_member(b"text"), "must be an archive of np.savez, got "),
    "an array": (lambda path: path.write_bytes(header((0,))), "must be an archive of np.savez, got "),
    "empty": (lambda path: path.write_bytes(b""), "must be an archive of np.savez, got "),
    "text": (lambda path: path.write_text("root:x:0:0"), "must be an archive of np.savez, got "),
    "a sparse file": (
        lambda path: os.truncate(path, 2**33),
        "must have at most 4,294,967,296 bytes, got 8,589,934,592",
    ),
    "a pipe": (pipe, "must be a regular file, got a pipe"),
    "a link": (link, "must be a regular file, got a link"),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), "must be a regular file, got a folder"),
    "no file": (lambda path: path.unlink(), "No such file"),
}


@pytest.mark.parametrize(("spoil", "message"), HOSTILE.values(), ids=HOSTILE)
def test_a_batch_is_refused_in_one_line(spoil, message, step, capsys):
    spoil(step / "batch.npz")
    line = refused(capsys, lambda: replay.main([f"{step}"]))
    assert f"a saved step must be undamaged, got {step}: " in line
    assert message in line
    assert line.count("\n") == 1


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"step": 1, "bits": "0x1p+99999"}', '{"step": 1, "bits": 5}', "[1]", "\0"]
)
def test_a_number_is_refused_in_one_line(text, step):
    (step / "step.json").write_text(text)
    with pytest.raises(ValueError, match="a saved step must be undamaged, got") as error:
        failed_step.read(step)
    assert "\n" not in str(error.value)


def test_what_savez_writes_comes_back(tmp_path):
    arrays = {
        "a": np.arange(6).reshape(2, 3).T,
        "b": np.float32(3.5),
        "c": np.zeros((0, 2), np.uint8),
        "d": np.array("é"),
    }
    np.savez(tmp_path / "a.npz", **arrays)
    read = read_arrays(tmp_path / "a.npz", 2**20)
    assert read.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(read[name], array, strict=True)


def test_a_step_comes_back(step):
    number, loss, batch = failed_step.read(step)
    assert (number, loss) == (3, 1.0)
    np.testing.assert_array_equal(batch["ids"], [[0, 1, 2], [3, 4, 5]])
