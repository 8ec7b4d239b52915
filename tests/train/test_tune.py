"""Fine-tuning of loaded models: what is trained, what is not, and the model that is written."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pejax import interop
from tests.support.cases import slow
from tests.support.cli import assert_resumes, programs_on_disk, refused
from tests.support.gguf_files import byte_tokens, write_gguf
from tests.support.hub_folders import run as logits
from tests.support.hub_folders import tensors, write
from tests.support.metric_lines import timeless
from train.evaluate import program as evaluate
from train.tune import program
from train.tune.lora import SCALE, LowRank, kernels, merged_params
from train.tune.subject import Loaded

SHORT = ("--length=32", "--batch=8", "--steps=4", "--warmup=1", "--log_every=1", "--lr=0.01", "--eval_limit=2",
         "--checkpoint_every=2", "--eval_lengths", "32")  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def compiled_once(tmp_path_factory):
    with programs_on_disk(tmp_path_factory.mktemp("compiled")):
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A Llama of random weights, whose tokens are bytes."""
    return write(tmp_path_factory.mktemp("models") / "llama", vocab_size=260)


@pytest.fixture(scope="module")
def model(folder):
    return write_gguf(folder.with_name("tiny.gguf"), folder, **byte_tokens())


@pytest.fixture(scope="module")
def train(model):
    return lambda out, *flags: program.main([f"--model={model}", *SHORT, f"--out={out}", *flags])


@pytest.fixture(scope="module")
def tuned(train, tmp_path_factory):
    out = tmp_path_factory.mktemp("tuned") / "run"
    assert train(out) == 0
    return out


@pytest.mark.slow
def test_the_loss_falls_and_the_model_is_written(tuned, model):
    losses = [line["loss"] for line in timeless(tuned)]
    assert losses[-1] < losses[0] - 0.1
    before, _ = interop.load(model)
    after, _ = interop.load(tuned / "model")
    ids = np.arange(20)[None] % 97
    assert np.max(np.abs(logits(after, ids) - logits(before, ids))) > 0.1
    assert interop.load_tokenizer(tuned / "model").encode("the") == interop.load_tokenizer(model).encode("the")


@pytest.mark.slow
def test_only_kernels_in_the_layers_have_changed(tuned, folder):
    before, after = tensors(folder), tensors(tuned / "model")
    assert before.keys() == after.keys()
    changed = {name for name, value in before.items() if not np.allclose(value, after[name], atol=1e-6)}
    assert changed == {name for name, value in before.items() if "layers." in name and value.ndim == 2}


@pytest.mark.slow
def test_a_change_has_the_rank(tuned, folder):
    before, after = tensors(folder), tensors(tuned / "model")
    name = "model.layers.1.mlp.up_proj.weight"
    values = np.linalg.svd(after[name] - before[name], compute_uv=False)
    assert values[7] > 1e-4
    assert values[8] < 1e-5


@pytest.mark.slow
def test_stop_and_resume_change_no_bit(train, tuned, tmp_path):
    assert_resumes(train, tuned, tmp_path / "run", "--stop_at=2")


@pytest.mark.slow
def test_all_parameters_are_trained_at_a_longer_length_with_an_extension(train, folder, tmp_path):
    out = tmp_path / "run"
    assert train(out, "--method=full", "--extend=pi", "--length=128", "--batch=2") == 0
    before, after = tensors(folder), tensors(out / "model")
    assert all(not np.array_equal(value, after[name]) for name, value in before.items())


@pytest.mark.slow
def test_the_model_is_written_with_the_extension_that_it_was_trained_with(train, model, tmp_path, capsys):
    """config.json has that of `interop.save`; what it cannot hold is said."""
    extended, source = interop.load(model, extend="yarn(factor=4)")
    interop.save(extended, tmp_path / "saved", source)
    assert train(tmp_path / "yarn", "--extend=yarn(factor=4)", "--steps=1") == 0
    config = lambda folder: json.loads((folder / "config.json").read_text())
    assert config(tmp_path / "yarn" / "model") == config(tmp_path / "saved")
    assert "without its extension" not in capsys.readouterr().out
    assert train(tmp_path / "pi", "--extend=pi", "--steps=1") == 0
    assert "without its extension, load it with extend='pi': extend must" in capsys.readouterr().out
    assert config(tmp_path / "pi" / "model") != config(tmp_path / "saved")


@pytest.mark.slow
def test_changes_begin_at_zero_and_are_added(model):
    subject = Loaded(str(model), "none", "float32")
    module = lambda key: program.Split(lambda rngs: LowRank(subject.shapes, 3, rngs=rngs)).init(key)
    changes = module(jax.random.key(0))
    params = merged_params(subject.loaded, changes)
    jax.tree.map(np.testing.assert_array_equal, params, subject.loaded)
    paths = kernels(subject.shapes)
    assert [path[-2] for path, _ in paths].count("qkv") == 1
    name = "/".join(paths[0][0])
    changes["pairs"][name]["b"] = jnp.ones_like(changes["pairs"][name]["b"])
    result = merged_params(subject.loaded, changes)
    leaf = lambda tree: next(
        value for path, value in jax.tree_util.tree_leaves_with_path(tree)
        if "/".join(str(part.key) for part in path) == name
    )  # fmt: skip
    expected = SCALE * jnp.sum(changes["pairs"][name]["a"], axis=-1, keepdims=True)
    np.testing.assert_allclose(leaf(result) - leaf(subject.loaded), jnp.broadcast_to(expected, leaf(result).shape),
                               atol=1e-6)  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--model=", "model must name a folder from Hugging Face or a GGUF file"),
        ("--method=qlora", "method must be one of lora, full, got 'qlora'"),
        ("--rank=0", "rank must be at least 1, got 0"),
        ("--width=48", "unknown option --width"),
        ("--pe=alibi", "unknown option --pe"),
        ("--extend=pi,yarn", "extend must be the one extension that the model is trained with, got 'pi,yarn'"),
        slow("--data=shakespeare(tokenizer='bpe(vocab=300)')", "data must be given without a tokenizer"),
        ("--extend=resize", "resize"),
    ],
)
def test_bad_flags_are_one_line(flags, message, train, tmp_path, capsys):
    assert message in refused(capsys, lambda: train(tmp_path / "run", flags))
    assert not (tmp_path / "run" / "config.json").exists()


def contents(folder):
    """Return the bytes of every file below a folder."""
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("flag", ["--seed=0", "--overwrite", "--resume"])
@pytest.mark.parametrize("kind", ["folder", "file", "below the run"])
def test_a_run_does_not_write_into_the_folder_of_its_model(kind, flag, folder, model, tmp_path, capsys):
    place = shutil.copytree(folder, tmp_path / "run" / ("model" if kind == "below the run" else ""))
    if kind == "file":
        place = shutil.copy(model, tmp_path / "run")
    before = contents(tmp_path)
    argv = [f"--model={place}", *SHORT, f"--out={tmp_path / 'run'}", flag]
    error = refused(capsys, lambda: program.main(argv))
    of_resume = {"folder": "must be the config of a run", "file": "must be the config of a run"}
    rule = "out must be another folder than that of the model"
    message = of_resume.get(kind, rule) if flag == "--resume" else rule
    assert message in error
    assert contents(tmp_path) == before


@pytest.mark.slow
def test_evaluating_again_does_not_touch_the_model(tuned, model):
    (tuned / "model" / "notes.txt").write_text("mine")
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in (tuned / "model").iterdir()}
    argv = [str(tuned), f"--model={model}", "--eval_lengths", "32"]
    assert evaluate.main(argv) == 0
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in (tuned / "model").iterdir()} == before
    (tuned / "model" / "notes.txt").unlink()
