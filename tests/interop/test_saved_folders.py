"""A saved folder holds what the loaded one held beside the model, so that every tool opens it as it is."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from pejax.interop import beside, load, load_sampling, load_tokenizer, save
from pejax.models import Sampling
from tests.support.gguf_files import byte_tokens, write_gguf
from tests.support.hub_folders import write
from tests.support.peers import peer

FILES = {
    "tokenizer_config.json": '{"chat_template": "{{ messages }}"}', "special_tokens_map.json": "{}", "vocab.json": "{}",
    "generation_config.json": '{"eos_token_id": 0}', "chat_template.jinja": "{{ messages }}", "spiece.model": "binary",
    "preprocessor_config.json": "{}", "modules.json": "[]", "1_Pooling/config.json": "{}", "2_Dense/config.json": "{}",
    "2_Dense/model.safetensors": "weights of a module", "additional_chat_templates/tool_use.jinja": "{{ tools }}",
}  # fmt: skip
LEFT = (
    "modeling_x.py",
    "tokenizer.model.py",
    "tokenizer.model.bin",
    "pytorch_model.bin",
    "README.md",
    "onnx/model.onnx",
    ".git/config",
)


def resaved(folder: Path, target: Path) -> set[str]:
    """Load a folder or file and save it; return the paths in the new folder."""
    model, source = load(folder)
    save(model, target, source)
    return {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return write(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture
def folder(tmp_path):
    """A folder with a tokenizer and all that may lie beside it."""
    folder = write(tmp_path / "a")
    file = write_gguf(tmp_path / "a.gguf", folder, **byte_tokens())
    load_tokenizer(file).library.save(str(folder / "tokenizer.json"))
    for name, content in {**FILES, **dict.fromkeys(LEFT, "x")}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    return folder


def test_small_files_are_copied_and_neither_code_nor_other_weights(folder, tmp_path):
    names = resaved(folder, tmp_path / "b")
    assert names == {"config.json", "model.safetensors", "tokenizer.json", *FILES}
    for name in FILES:
        assert (tmp_path / "b" / name).read_text() == FILES[name]
    assert load_tokenizer(tmp_path / "b").encode("the") == load_tokenizer(folder).encode("the")


def test_links_are_followed_in_a_cache_of_the_hub_and_nowhere_else(tmp_path):
    snapshot, blobs = tmp_path / "models--x" / "snapshots" / "abc", tmp_path / "models--x" / "blobs"
    snapshot.parent.mkdir(parents=True)
    write(snapshot)
    blobs.mkdir()
    (blobs / "1f").write_text("{}")
    (snapshot / "generation_config.json").symlink_to(Path("../../blobs/1f"))
    assert "generation_config.json" in resaved(snapshot, tmp_path / "b")
    (tmp_path / "secret").write_text("secret")
    (snapshot / "chat_template.jinja").symlink_to(tmp_path / "secret")
    with pytest.warns(UserWarning, match=r"chat_template\.jinja was not copied into the saved folder: it is a link to"):
        assert "chat_template.jinja" not in resaved(snapshot, tmp_path / "c")
    (snapshot / "chat_template.jinja").unlink()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "config.json").write_text("secret")
    (snapshot / "1_Pooling").symlink_to(tmp_path / "outside")
    with pytest.warns(UserWarning, match=r"1_Pooling/config\.json was not copied into the saved folder: it is a link"):
        assert "1_Pooling/config.json" not in resaved(snapshot, tmp_path / "d")


def test_a_file_that_cannot_be_copied_does_not_lose_the_model(folder, tmp_path, monkeypatch):
    def copyfile(path, target):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(beside.shutil, "copyfile", copyfile)
    with pytest.raises(UserWarning, match=r"was not copied into the saved folder: Permission denied"):
        resaved(folder, tmp_path / "b")  # warnings are errors here
    assert (tmp_path / "b" / "model.safetensors").exists()


def test_what_cannot_be_kept_is_named(folder, tmp_path, monkeypatch):
    (folder / "vocab.txt").mkdir()
    os.mkfifo(folder / "merges.txt")
    monkeypatch.setattr(beside, "LARGEST", 100)
    with pytest.warns(UserWarning, match="was not copied") as said:
        names = resaved(folder, tmp_path / "b")
    lines = [str(line.message) for line in said]
    assert [line.split("/")[-1] for line in lines] == [
        "tokenizer.json was not copied into the saved folder: it has 0 MiB, more than 0",
        "vocab.txt was not copied into the saved folder: it is no file",
        "merges.txt was not copied into the saved folder: it is no file",
    ]
    assert not {"tokenizer.json", "vocab.txt", "merges.txt"} & names
    model, source = load(folder)
    folder.rename(tmp_path / "moved")
    with pytest.warns(UserWarning, match=r"/a is gone: the saved folder has no tokenizer"):
        save(model, tmp_path / "c", source)


def test_the_tokenizer_of_a_gguf_file_is_written(plain, tmp_path):
    tokens = byte_tokens(
        tokenizer__chat_template="{{ messages }}", tokenizer__ggml__add_bos_token=True,
        tokenizer__ggml__eos_token_id=0, tokenizer__ggml__eot_token_id=1, general__sampling__temp=0.5,
    )  # fmt: skip
    file = write_gguf(tmp_path / "a.gguf", plain, **tokens)
    assert resaved(file, tmp_path / "b") == {
        *("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "generation_config.json")
    }
    own, other = load_tokenizer(file), load_tokenizer(tmp_path / "b")
    assert (own.bos, own.eos) == (other.bos, other.eos) == (own.bos, (0, 1))
    assert load_sampling(file) == load_sampling(tmp_path / "b") == Sampling(0.5)
    for text in ("the thin\t12 Grüße, 漢字 🤗 <|end|>", ""):
        assert own.encode(text) == other.encode(text)
    settings = json.loads((tmp_path / "b" / "tokenizer_config.json").read_text())
    assert settings["chat_template"] == "{{ messages }}"
    with pytest.warns(
        UserWarning, match=r"^the saved folder has no tokenizer: .*tokenizer\.ggml\.model must be one of"
    ):
        resaved(write_gguf(tmp_path / "c.gguf", plain, tokenizer__ggml__model="unknown"), tmp_path / "d")


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore")
def test_transformers_opens_a_saved_folder_without_another_file(folder, tmp_path):
    transformers = peer("transformers")
    file = write_gguf(tmp_path / "a.gguf", folder, **byte_tokens(tokenizer__chat_template="{{ messages }}"))
    for number, path in enumerate((folder, file)):
        target = tmp_path / f"saved{number}"
        resaved(path, target)
        ids = transformers.AutoTokenizer.from_pretrained(target)("the thin one").input_ids
        assert ids == load_tokenizer(path).encode("the thin one")
        model = transformers.AutoModelForCausalLM.from_pretrained(target)
        few = np.asarray([ids]) % 97  # the tokens of the model
        got = model(peer("torch").tensor(few)).logits.detach().numpy()
        expected = load(target)[0](few)
        np.testing.assert_allclose(got, expected, atol=1e-4 * float(np.abs(got).max()))
        templates = transformers.AutoTokenizer.from_pretrained(target).chat_template
        assert templates in ("{{ messages }}", {"default": "{{ messages }}", "tool_use": "{{ tools }}"})
