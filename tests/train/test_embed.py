"""`python -m train.embed`: the vectors of the lines, what goes on where it stopped, and what is refused."""

import json
import signal
import subprocess
import sys
import time
from itertools import islice

import numpy as np
import pytest

from pejax.interop import Embedder, load_embedder
from tests.support.cli import refused
from tests.support.text_folders import texts_of, write_embedder
from train.embed import program
from train.embed.partial import made_of, partial_folder

LINES = texts_of(21, longest=9)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    settings = {"prompts": {"query": "w3 w4 "}, "similarity_fn_name": "dot"}
    return write_embedder(tmp_path_factory.mktemp("models") / "bert", settings=settings, num_hidden_layers=1)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "lines.txt"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def embedder(model):
    return load_embedder(model)


@pytest.fixture
def run(model, texts, embedder, tmp_path, monkeypatch):
    """Run the command with one device and batches of seven texts; the model is loaded once."""
    load = lambda path, **options: embedder if path == str(model) else load_embedder(path, **options)
    monkeypatch.setattr(program.interop, "load_embedder", load)
    words = {"model": model, "texts": texts, "out": tmp_path / "x.npy", "batch": 7, "devices": 1}
    return lambda **options: program.main([f"--{name}={value}" for name, value in {**words, **options}.items()])


def stop_after(patch, batches: int) -> None:
    """Let a command end after so many batches that it has written."""
    stream = Embedder.encode_batches

    def stopping(self, *arguments, **options):
        yield from islice(stream(self, *arguments, **options), batches)
        raise ValueError("stopped here")

    patch.setattr(Embedder, "encode_batches", stopping)
    patch.setattr(program, "KEPT_EVERY", -1.0)


def test_a_stopped_command_goes_on_and_rows_are_in_the_order_of_the_lines(run, embedder, tmp_path, monkeypatch, capsys):
    out = tmp_path / "x.npy"
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        assert "stopped here" in refused(capsys, run)
    assert not out.exists()
    kept = np.load(partial_folder(out) / "vectors.npy")
    assert np.sum(np.any(kept != 0, axis=1)) == 14
    assert "has vectors of another prompt" in refused(capsys, lambda: run(prompt="query"))

    assert run() == 0
    assert "21 texts · at most 48 tokens each · 14 of them are done" in capsys.readouterr().out
    vectors = np.load(out)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, embedder.encode(LINES, batch=7), atol=1e-5)
    assert np.sum(np.all(np.isin(kept, vectors), axis=1)) == 14
    assert not partial_folder(out).exists()
    assert json.loads(made_of(out).read_text())["width"] == 32

    assert run() == 0
    assert "is there already" in capsys.readouterr().out
    assert "has vectors of another prompt" in refused(capsys, lambda: run(prompt="query"))
    made_of(out).unlink()
    assert "out must not exist" in refused(capsys, run)


def test_a_number_of_batches_without_vectors_is_not_believed(run, embedder, model, tmp_path, monkeypatch, capsys):
    """A process that was killed while it finished has left it; then another one stopped before it kept anything."""
    part = partial_folder(tmp_path / "x.npy")
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        refused(capsys, run)
    (part / "vectors.npy").unlink()
    with monkeypatch.context() as patch:
        stop_after(patch, 0)
        refused(capsys, run)
    assert run() == 0
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), embedder.encode(LINES, batch=7), atol=1e-5)


def test_corrected_texts_take_the_place_of_refused_ones(run, texts, tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        stop_after(patch, 0)
        refused(capsys, run)
    other = tmp_path / "lines.txt"
    other.write_bytes(texts.read_bytes() + b"w1\n")
    assert run(texts=other) == 0
    assert np.load(tmp_path / "x.npy").shape == (22, 32)


def test_the_digest_of_a_model_has_files_at_any_depth(tmp_path):
    digests = set()
    for place in ("config.json", "0_Transformer/model.safetensors", "models/0/model.safetensors"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text("{}")
        digests.add(program.folder_digest(tmp_path))
    assert len(digests) == 3


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (b"", "texts must have at least one line, got none in"),
        (b"a\nb\n\xff\n", "texts must be UTF-8, got another byte in line 3 of"),
        (None, "texts must be a file that can be read, got"),
    ],
)
def test_texts_that_are_refused(content, rule, run, tmp_path, capsys):
    path = tmp_path / "lines.txt"
    if content is not None:
        path.write_bytes(content)
    assert rule in refused(capsys, lambda: run(texts=path))
    assert not partial_folder(tmp_path / "x.npy").exists()


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"prompt": "qury"}, "prompt must be the name of a prompt, out of query, got 'qury'; did you mean 'query'?"),
        ({"model": "nowhere"}, "nowhere must be a folder with config.json"),
        ({"truncate_dim": 33}, "truncate_dim must be None or from 1 to 32, got 33"),
        ({"max_length": 3}, "max_length must be an integer above 3"),
        ({"out": "x.txt"}, "out must end in .npy, got 'x.txt'"),
        ({"prompt": "query", "prompt_text": "q: "}, "prompt and prompt_text must not both be given"),
    ],
)
def test_options_that_are_refused(options, rule, run, tmp_path, capsys):
    assert rule in refused(capsys, lambda: run(**options))
    assert not partial_folder(tmp_path / "x.npy").exists()


def test_a_damaged_part_is_refused(run, tmp_path, monkeypatch, capsys):
    part = partial_folder(tmp_path / "x.npy")
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        refused(capsys, run)
    (part / "done.json").write_text('{"batches": 99}')
    assert "must have a number of batches from 0 to 3, got 99" in refused(capsys, run)
    (part / "done.json").write_text('{"batches": 1}')
    whole = (part / "vectors.npy").read_bytes()
    (part / "vectors.npy").write_bytes(whole[:-8])
    assert f"must have {len(whole)} bytes, got {len(whole) - 8}" in refused(capsys, run)
    np.save(part / "vectors.npy", np.zeros((3, 32), np.float32))
    assert "must hold float32 (21, 32), got float32 (3, 32)" in refused(capsys, run)
    (part / "vectors.npy").unlink()
    (part / "vectors.npy").symlink_to(tmp_path / "elsewhere")
    assert "must be a regular file, got a link" in refused(capsys, run)


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_finished(model, tmp_path):
    texts = tmp_path / "lines.txt"
    texts.write_text("\n".join(texts_of(4000)), encoding="utf-8")
    out = tmp_path / "x.npy"
    words = [f"--model={model}", f"--texts={texts}", f"--out={out}", "--batch=4"]
    command = [sys.executable, "-m", "train.embed", *words]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8")
    done = partial_folder(out) / "done.json"
    while not done.exists() and running.poll() is None:
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    _, error = running.communicate()
    assert running.returncode == 130, error
    assert error == "stopped; what is finished is kept: run the same command again\n"
    assert not out.exists()
    again = subprocess.run(command, capture_output=True, text=True, check=True, encoding="utf-8")
    assert " of them are done" in again.stdout
    np.testing.assert_allclose(np.load(out)[:5], load_embedder(model).encode(texts_of(4000)[:5]), atol=1e-5)
