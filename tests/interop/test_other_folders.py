"""What people point at in place of a model: one line that says what it is, and the way."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from pejax.interop import load, load_tokenizer
from pejax.interop.__main__ import main
from tests.support.hub_folders import rewrite, tensors, write

ADAPTER = '{"peft_type": "LORA", "base_model_name_or_path": "maker/model"}'
MERGE = "got an adapter of maker/model (adapter_config.json): peft's merge_and_unload() makes a whole model"


def adapter(folder):
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(ADAPTER)
    save_file({"lora_A.weight": np.ones((2, 2), np.float32)}, folder / "adapter_model.safetensors")


def beside(folder):
    adapter(write(folder))


def sentence_transformers(folder):
    folder.mkdir()
    (folder / "modules.json").write_text("[]")
    write(folder / "0_Transformer", "bert")


def pipeline(folder):
    folder.mkdir()
    (folder / "model_index.json").write_text('{"_class_name": "FluxPipeline"}')
    write(folder / "text_encoder", "bert")


def of_pipeline(folder):
    folder.mkdir()
    (folder / "config.json").write_text('{"_class_name": "FluxTransformer2DModel"}')


def shards(folder):
    (write(folder) / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")


def consolidated(folder):
    (write(folder) / "model.safetensors").rename(folder / "consolidated.safetensors")


def of_the_maker(folder):
    consolidated(folder)
    (folder / "config.json").unlink()
    (folder / "params.json").write_text("{}")


def wrapped(prefix):
    def made(folder):
        values = tensors(write(folder))
        rewrite(folder, {prefix + name: value for name, value in values.items()})

    return made


def typed(**keys):
    def made(folder):
        content = json.loads((write(folder) / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(content | keys))

    return made


FOLDERS = {
    "an adapter": (adapter, MERGE + " of both, to be saved"),
    "a model beside an adapter": (beside, "; without that file the model beside it is loaded"),
    "sentence-transformers": (sentence_transformers, "load the model in it; a folder in it with config.json: 0_Trans"),
    "a pipeline": (pipeline, "got a diffusers pipeline: load a text encoder from its own folder; a folder in it with"),
    "a part of a pipeline": (of_pipeline, "got a part of a diffusers pipeline, FluxTransformer2DModel: pejax has its"),
    "shards": (shards, "got model-00001-of-00002.safetensors without the index, which says where each tensor is"),
    "consolidated": (consolidated, "got consolidated.safetensors, in a format of the makers' own"),
    "of the maker": (of_the_maker, "got weights in a format of the makers' own, consolidated.safetensors: get the"),
    "parallel": (wrapped("module."), "every name in it begins with 'module.': torch's DataParallel or compile has"),
    "compiled": (wrapped("_orig_mod."), "every name in it begins with '_orig_mod.': torch's DataParallel or compile"),
    "an empty folder": (lambda folder: folder.mkdir(), "got a folder without config.json"),
    "a list for a type": (typed(model_type=[]), "config.json: model_type must be a string, got []"),
    "an object for a name": (typed(architecture={}), "config.json: architecture must be a string, got {}"),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_what_is_no_model_is_named_with_the_way_to_one(name, tmp_path, capsys):
    make, message = FOLDERS[name]
    make(tmp_path / "a")
    with pytest.raises(ValueError, match=r"^[^\n]*$") as refusal:
        load(tmp_path / "a")
    assert message in str(refusal.value)
    if "consolidated" not in name and name not in ("shards", "a part of a pipeline"):  # their config.json is described
        with pytest.raises(SystemExit):
            main([str(tmp_path / "a")])
        assert message in capsys.readouterr().err


def test_a_path_to_a_file_is_led_to_its_folder(tmp_path):
    folder = write(tmp_path / "a")
    for name in ("model.safetensors", "config.json"):
        with pytest.raises(ValueError, match=r"got a file: load the folder that it is in, which has config\.json and"):
            load(folder / name)


@pytest.mark.parametrize("name", ["tokenizer.model", "vocab.txt", "vocab.json", "spiece.model"])
def test_other_files_of_tokenizers_are_named(name, tmp_path):
    folder = write(tmp_path / "a")
    (folder / name).write_text("{}")
    with pytest.raises(ValueError, match=rf"must hold tokenizer\.json, got {name}: AutoTokenizer\.from_pretrained"):
        load_tokenizer(folder)
    (folder / name).unlink()
    with pytest.raises(ValueError, match=r"must hold tokenizer\.json, got no file of a tokenizer$"):
        load_tokenizer(folder)
