"""Encoder-decoders and experts on the devices of a mesh, and in the types of the files."""

import warnings

import jax
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType

from pejax.interop import load, save
from tests.support.hub_folders import run, write

NAMES = ["gpt_oss", pytest.param("t5", marks=pytest.mark.slow)]
IDS = np.random.default_rng(0).integers(0, 96, (2, 12))
ONE = {"gpt_oss": {"num_hidden_layers": 1}, "t5": {"num_layers": 1}}


def flat(model):
    return {".".join(map(str, path)): np.asarray(item[...]) for path, item in nnx.to_flat_state(nnx.state(model))}


@pytest.mark.parametrize("name", NAMES)
def test_parameters_on_a_mesh_are_those_on_one_device(name, tmp_path):
    folder = write(tmp_path / "a", name, vocab_size=96, **ONE[name])
    mesh = jax.make_mesh((2, 2), ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:4])
    expected = flat(load(folder)[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # all sizes divide
        model, source = load(folder, mesh=mesh)
    for path, value in flat(model).items():
        np.testing.assert_array_equal(value, expected[path], err_msg=path)
    save(model, tmp_path / "b", source)
    assert (tmp_path / "b" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_models_compute_with_parameters_of_the_type_of_the_file(name, tmp_path):
    folder = write(tmp_path / "a", name, "bfloat16", **ONE[name])
    (narrow, source), (wide, _) = load(folder, params="file"), load(folder)
    expected = run(wide, IDS)
    assert np.max(np.abs(run(narrow, IDS) - expected)) < 0.02 * np.std(expected)
    save(narrow, tmp_path / "b", source)
    assert (tmp_path / "b" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
