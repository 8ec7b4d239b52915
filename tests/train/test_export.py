"""`python -m train.export`: a run as a folder that other programs open, whole or not at all."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from pejax import interop
from tests.support.cases import slow
from train.data.text.tokenizers import byte_tokenizer
from train.export.program import main
from train.lm import program as lm
from train.runs import load_run
from train.vit import program as vit

STORED = Path(__file__).parents[1] / "data_files" / "runs_0_3_0"


def refused(capsys, run, out) -> str:
    """Return the line that refuses a run."""
    capsys.readouterr()
    with pytest.raises(SystemExit, match="2"):
        main([f"--model={run}", f"--out={out}"])
    return " ".join(capsys.readouterr().err.split())


def test_ids_of_the_byte_tokenizer_are_the_bytes():
    tokenizer = byte_tokenizer()
    text = "".join(map(chr, range(0x250))) + " \n\t日本 🙂  x"
    ids = tokenizer.encode(text).ids
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text
    assert tokenizer.get_vocab_size() == 256


@pytest.mark.slow
def test_the_command_writes_a_run_of_texts_as_a_folder_once(tmp_path, capsys):
    flags = ("--width=16", "--layers=1", "--heads=2", "--length=32", "--steps=2", "--eval_lengths=32", "--eval_limit=1")
    run, out = tmp_path / "lm", tmp_path / "out"
    assert lm.main([*flags, "--probe_every=0", f"--out={run}"]) == 0
    command = [sys.executable, "-m", "train.export", f"--model={run}", f"--out={out}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert " ".join(done.stdout.split()) == f"wrote {out}: step 2 of {run}, as LlamaForCausalLM"
    ids = np.asarray([interop.load_tokenizer(out).encode("To be, or not")])
    np.testing.assert_allclose(interop.load(out)[0](ids), load_run(run).model(ids), atol=1e-5)
    assert "must be an empty folder" in refused(capsys, run, out)


@pytest.mark.slow
def test_a_run_of_pictures_has_the_names_of_its_classes(tmp_path):
    flags = ("--epochs=1", "--batch=5000", "--width=16", "--layers=1", "--heads=2", "--eval_limit=1", "--probe_every=0")
    run, out = tmp_path / "vit", tmp_path / "out"
    assert vit.main([*flags, "--pe=learned", "--pool=cls", f"--out={run}"]) == 0
    assert main([f"--model={run}", f"--out={out}", "--dtype=float16"]) == 0
    config = json.loads((out / "config.json").read_text())
    assert config["id2label"]["9"] == "Ankle boot"
    assert not (out / "preprocessor_config.json").exists()  # the pictures are gray
    images = jax.random.normal(jax.random.key(0), (2, 28, 28, 1))
    np.testing.assert_allclose(interop.load(out)[0](images), load_run(run).model(images), atol=2e-3)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "lm",
            "LlamaForCausalLM is nearest, but for attention.pe (rope(base",
        ),
        slow("seq2seq", "transformers has no EncoderDecoder"),
        slow("dit", "transformers has no DiT"),
        slow("vit", "ViTForImageClassification is nearest, but for"),
        slow("tune", "is in its folder: pejax.interop.load"),
        slow("nothing", "config.json"),
    ],
)
def test_a_run_that_no_class_computes_is_refused_in_one_line(name, words, tmp_path, capsys):
    out = tmp_path / "out"
    assert words in refused(capsys, STORED / name, out)
    assert not out.exists()
