"""Where parameters are kept, and in which type: on the devices of a mesh, and in the types of the files."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, PartitionSpec

from pejax.interop import load, save
from pejax.interop.parameters import values_in
from pejax.interop.source_files import open_source
from tests.support.cases import slow
from tests.support.gguf_files import write_gguf
from tests.support.hub_folders import rewrite, run, tensors, write

IDS = np.random.default_rng(0).integers(0, 97, (2, 12))


def mesh(**sizes):
    count = int(np.prod([*sizes.values()]))
    axes = (AxisType.Auto,) * len(sizes)
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=axes, devices=jax.devices()[:count])


def flat(model):
    return {".".join(map(str, path)): item[...] for path, item in nnx.to_flat_state(nnx.state(model))}


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("gpt2", "gpt_neox")]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["phi3", slow("llama"), *SLOW])
def test_parameters_on_a_mesh_are_those_on_one_device(name, tmp_path):
    folder = write(tmp_path / "a", name, vocab_size=96)
    expected, _ = load(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # all sizes divide
        model, source = load(folder, mesh=mesh(fsdp=2, tensor=2))
    ours, theirs = flat(model), flat(expected)
    for path, value in theirs.items():
        np.testing.assert_array_equal(ours[path], value, err_msg=path)
    up = ours["stack.layers.blocks.mlp.up.kernel"]
    assert up.sharding.spec == PartitionSpec(None, "fsdp", "tensor")
    assert up.addressable_shards[0].data.size == up.size // 4
    np.testing.assert_allclose(run(model, IDS), run(expected, IDS), atol=1e-5)
    save(model, tmp_path / "b", source)
    assert (tmp_path / "b" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


def test_a_gguf_file_goes_to_a_mesh(tmp_path):
    file = write_gguf(tmp_path / "a.gguf", write(tmp_path / "a", vocab_size=96))
    ours, theirs = flat(load(file, mesh=mesh(data=2, tensor=2))[0]), flat(load(file)[0])
    for path, value in theirs.items():
        np.testing.assert_array_equal(ours[path], value, err_msg=path)


def test_what_does_not_divide_is_whole_and_said(tmp_path):
    folder = write(tmp_path / "a", "llama, tied")
    with pytest.warns(UserWarning, match="not divide them: vocab 97 over tensor=4, 2 key heads over tensor=4") as said:
        model, _ = load(folder, mesh=mesh(tensor=4))
    assert len(said) == 1
    result = flat(model)
    assert result["embedding.table"].sharding.is_fully_replicated
    assert result["stack.layers.blocks.attention.qkv.kernel"].sharding.is_fully_replicated
    assert not result["stack.layers.blocks.mlp.up.kernel"].sharding.is_fully_replicated


def test_a_mesh_of_other_axes_is_refused(tmp_path):
    with pytest.raises(ValueError, match="mesh must have axes out of data, fsdp, tensor, sequence, got x"):
        load(write(tmp_path / "a"), mesh=mesh(x=2))


def test_only_the_range_asked_for_is_read(tmp_path):
    source, read = open_source(write(tmp_path / "a"))
    slots = [slot for slot in source.slots if slot.path[-2:] == ("down", "kernel")]
    seen = []

    def watched(name, index):
        seen.append((name, read(name, index).shape))
        return read(name, index)

    value = values_in(slots, (2, 48, 32), np.dtype("float32"), watched, (slice(1, 2), slice(0, 12), slice(16, 32)))
    assert value.shape == (1, 12, 16)
    assert seen == [("model.layers.1.mlp.down_proj.weight", (16, 12))]


# Types


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype"), [("qwen2", "bfloat16"), slow("gpt2", "float16")])
def test_parameters_keep_the_type_of_the_file(name, dtype, tmp_path):
    folder = write(tmp_path / "a", name, dtype)
    model, source = load(folder, params="file")
    dtypes = {path: str(value.dtype) for path, value in flat(model).items()}
    assert {path: item for path, item in dtypes.items() if item != dtype} == (
        {"stack.position.table_0": "float32"} if name == "gpt2" else {}
    )
    np.testing.assert_allclose(run(model, IDS), run(load(folder)[0], IDS), atol=0.02)
    save(model, tmp_path / "b", source)
    assert (tmp_path / "b" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


def test_parameters_of_tensors_of_several_types_are_float32(tmp_path):
    folder = write(tmp_path / "a", "llama", "bfloat16")
    values = tensors(folder)
    name = "model.layers.1.mlp.up_proj.weight"
    rewrite(folder, {**values, name: values[name].astype(np.float32)})
    result = flat(load(folder, params="file")[0])
    assert result["stack.layers.blocks.mlp.up.kernel"].dtype == jnp.float32
    assert result["stack.layers.blocks.mlp.down.kernel"].dtype == jnp.bfloat16


def test_parameters_may_be_narrower_than_the_file(tmp_path):
    model, source = load(write(tmp_path / "a"), params="bfloat16", dtype="bfloat16")
    assert {str(value.dtype) for value in flat(model).values()} == {"bfloat16"}
    save(model, tmp_path / "b", source)
    saved = tensors(tmp_path / "b")["model.norm.weight"]
    assert saved.dtype == np.float32
    np.testing.assert_array_equal(saved, np.asarray(flat(model)["stack.norm.scale"], np.float32))
