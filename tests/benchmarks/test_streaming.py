"""`python -m benchmarks.streaming`: the cache that keeps everything gives the losses of one forward pass."""

import jax
import numpy as np
import pytest

from benchmarks.streaming import losses, main
from pejax.interop import load
from tests.support.cli import refused
from tests.support.gguf_files import byte_tokens, write_gguf
from tests.support.hub_folders import write


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    folder = write(tmp_path_factory.mktemp("models") / "llama", vocab_size=260)
    return write_gguf(tmp_path_factory.mktemp("files") / "a.gguf", folder, **byte_tokens())


@pytest.mark.slow
def test_a_cache_that_keeps_everything_is_one_forward_pass(file):
    model, ids = load(file)[0], np.random.default_rng(0).integers(0, 260, 24).astype(np.int32)
    likelihoods = np.asarray(jax.nn.log_softmax(model(ids[None, :-1])))[0]
    expected = -likelihoods[np.arange(23), ids[1:]]
    np.testing.assert_allclose(losses(model, ids, 24, 5), expected, atol=1e-5)


@pytest.mark.slow
def test_the_table_has_a_line_for_each_cache(file, capsys):
    assert main([f"--model={file}", "--tokens=40", "--slots=8", "--block=4", "--first=0,2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split("|")[1].strip() for line in lines[2:]]
    assert names == ["everything", "the last 8", "the first 2 and the last 6, counted anew",
                     "the first 2 and the last 6, own positions"]  # fmt: skip
    assert [int(line.split("|")[2]) for line in lines[2:]] == [40, 8, 8, 8]


def test_sizes_that_do_not_fit_are_refused(file, capsys):
    message = refused(capsys, lambda: main([f"--model={file}", "--slots=8", "--block=9"]))
    assert "block, slots and tokens must ascend from 1, got 9, 8 and 4096" in message
