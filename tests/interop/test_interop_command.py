"""`python -m pejax.interop`, once as a process: what it prints and refuses; and what the guide says of the code."""

import json
import re
import subprocess
import sys
from pathlib import Path

from pejax.interop.architectures import ARCHITECTURES
from pejax.interop.command import main
from pejax.interop.towers import TOWERS
from tests.support.cli import refused
from tests.support.hub_folders import CONFIGS, tensors, write

ROOT = Path(__file__).parents[2]


def test_it_prints_the_config_the_encodings_and_what_is_carried(tmp_path):
    script = [sys.executable, "-m", "pejax.interop", str(write(tmp_path / "a", "llama, yarn"))]
    done = subprocess.run(script, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0] == "llama: 21,728 numbers in 21 tensors, 1 file(s), F32"
    assert lines[1] == "vocab=97 width=32 length=64 layers=2 causal=True embed_scale=1.0 padding=counted"
    assert "layers: 2 x (kind 0)" in lines
    extend = "extend='yarn(factor=4.0, trained_length=16)'"
    assert lines[-1] == f"encoding: rope(base=500.0, pairing='half', {extend}): 2 layer(s), from layer 0"
    assert not done.stderr


def test_it_says_what_differs_and_what_is_carried(tmp_path, capsys):
    main([str(write(tmp_path / "a", "gemma3_text"))])
    lines = capsys.readouterr().out.splitlines()
    assert "layers: 2 x (kind 0) + 1 x (kind 1)" in lines
    assert lines[-2].startswith("encoding: rope(base=100.0, pairing='half'): 2 layer(s), from layer 0")
    assert lines[-1].endswith("extend='linear(factor=8.0)'): 1 layer(s), from layer 2")
    main([str(write(tmp_path / "b", "opt"))])
    assert capsys.readouterr().out.endswith("carried: the first 2 rows of model.decoder.embed_positions.weight\n")


def test_it_reads_no_weights(tmp_path, capsys):
    folder = write(tmp_path / "a")
    size = sum(value.nbytes for value in tensors(folder).values())
    file = folder / "model.safetensors"
    with file.open("r+b") as opened:
        opened.seek(file.stat().st_size - size)
        opened.truncate()
        opened.truncate(file.stat().st_size + size)  # a hole in place of the values
    main([str(folder)])
    assert capsys.readouterr().out.startswith("llama: ")


def test_it_refuses_in_one_line(tmp_path, capsys):
    message = refused(capsys, lambda: main([f"{tmp_path}/nothing"]))
    rule = "must be a folder with config.json and safetensors files, or a GGUF file, got nothing there"
    assert message.startswith(f"error: {tmp_path}/nothing {rule}; pejax downloads none: `hf download OWNER/nothing ")
    assert refused(capsys, lambda: main([])) == "error: the following arguments are required: path\n"


def test_a_config_without_weights_is_accepted_or_refused(tmp_path, capsys):
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIGS["llama, yarn"]))
    main([str(folder)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "llama: accepted by its config.json; no weights here"
    assert lines[-1].startswith("encoding: rope(base=500.0, pairing='half', extend='yarn(factor=4.0")
    (folder / "config.json").write_text(json.dumps({**CONFIGS["llama"], "mlp_scale": 2}))
    assert refused(capsys, lambda: main([str(folder)])).endswith("change nothing, got mlp_scale = 2\n")
    main([str(folder / "config.json"), "--ignore=mlp_*"])
    (folder / "pytorch_model.bin").touch()
    message = refused(capsys, lambda: main([str(folder), "--ignore=mlp_*"]))
    assert "got pytorch_model.bin, a pickle" in message


def test_the_guide_lists_all_architectures():
    guide = (ROOT / "docs" / "interop.md").read_text()
    result = {*re.findall(r"^\| `([\w-]+)` .* \d", guide, re.MULTILINE)}
    of_towers = {tower.text for tower in TOWERS.values()} - {config["model_type"] for config in CONFIGS.values()}
    assert result == {*ARCHITECTURES, *TOWERS} - of_towers  # in the rows of their towers
