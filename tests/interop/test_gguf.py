"""Models in GGUF files: the same as in the folder that they were made from, quantized or not; what is refused."""

import gguf
import numpy as np
import pytest
from gguf_files import write_gguf
from hub_folders import run, tensors, write

from pejax.interop import load, save

IDS = np.random.default_rng(0).integers(0, 97, (2, 12))
KIND = gguf.GGMLQuantizationType


@pytest.mark.parametrize("name", ["llama", "llama, tied", "qwen2", "qwen3"])
def test_a_file_is_the_folder_that_it_was_made_from(name, tmp_path):
    folder = write(tmp_path / "a", name)
    expected, _ = load(folder)
    model, source = load(write_gguf(tmp_path / "a.gguf", folder))
    assert model.record == expected.record
    np.testing.assert_array_equal(run(model, IDS), run(expected, IDS))
    save(model, tmp_path / "b", source)
    again, _ = load(tmp_path / "b")
    assert again.record == expected.record
    assert tensors(tmp_path / "b").keys() == tensors(folder).keys()
    for key, value in tensors(folder).items():
        np.testing.assert_array_equal(tensors(tmp_path / "b")[key], value)
