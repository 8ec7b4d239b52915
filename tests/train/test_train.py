"""The ViT trainer through its command line: it finishes, it goes on where it stopped, it refuses in one line."""

import dataclasses
import functools
import json
import re
import signal
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from pejax import ENCODINGS, Dims, init_params, make_encoding
from pejax.specs import parse_pattern
from tests.support.cases import slow
from tests.support.cli import assert_bad_options, assert_resumes, outcome, programs_on_disk, refused
from tests.support.metric_lines import timeless
from train.data.images import evaluation_batches, load
from train.devices.mesh import make_mesh
from train.engine import loop
from train.engine.optimizers import decay_mask
from train.engine.parser import parse
from train.engine.task import laws
from train.evaluate import program as evaluate
from train.vit import evaluate as vit_evaluate
from train.vit import program as vit
from train.vit.config import Config, evaluation_sizes
from train.vit.model import Classifier, resized_params

TINY = (
    "--patch=14", "--width=16", "--layers=2", "--heads=2", "--epochs=1", "--batch=800", "--log_every=2", "--clip=1",
    "--checkpoint_every=3", "--stochastic_depth=0.3", "--mixup=0.8", "--eval_limit=64", "--eval_sizes", "28", "42",
)  # fmt: skip
STEPS = 12


@pytest.fixture(scope="module", autouse=True)
def compiled_once(tmp_path_factory):
    with programs_on_disk(tmp_path_factory.mktemp("compiled")):
        yield


@pytest.fixture(scope="module", autouse=True)
def read_once():
    """The images are unpacked, and resized to each size, once."""

    @functools.cache
    def read(spec, size, validation):
        dataset = load(spec, size, validation)
        return dataclasses.replace(dataset, test=functools.cache(dataset.test))

    patch = pytest.MonkeyPatch()
    patch.setattr(vit, "load", read)
    yield
    patch.undo()


def train(out: Path, *flags: str) -> int:
    return vit.main([*TINY, f"--out={out}", *flags])


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory) -> Path:
    """A run that nothing interrupted."""
    out = tmp_path_factory.mktemp("whole") / "run"
    assert train(out, "--pe=rope_mixed") == 0
    return out


@pytest.mark.slow
def test_a_run_leaves_everything_behind(finished_run):
    assert [line["step"] for line in timeless(finished_run)] == list(range(2, STEPS + 1, 2))
    results = json.loads((finished_run / "results.json").read_text())
    numbers = [(entry["at"], entry.get("count"), entry["value"]) for entry in results["numbers"]]
    assert [number[:2] for number in numbers[::2]] == [(28, 64), (42, 64)]
    assert numbers[1::2] == [(28, None, 4), (42, None, 9)]
    assert results["note"] == load("fashion").note
    assert (finished_run / "results.png").stat().st_size > 1000
    assert list((finished_run / "tensorboard").iterdir())
    assert json.loads((finished_run / "config.json").read_text())["pe"] == "rope_mixed"


@pytest.mark.slow
@pytest.mark.parametrize("pe", ["alibi"])
def test_finishes(pe, tmp_path, capsys):
    assert train(tmp_path / "run", f"--pe={pe}") == 0
    said = capsys.readouterr().out
    assert "laws: " in said
    assert load("fashion").note[:40] in said


@pytest.mark.long
@pytest.mark.parametrize("pe", ENCODINGS)
def test_every_encoding_finishes(pe, tmp_path):
    heads = ["--heads=4"] if pe == "lookhere" else []  # a cone for each direction
    assert train(tmp_path / "run", f"--pe={pe}", *heads) == 0


@pytest.mark.slow
def test_stop_and_resume_change_no_bit(finished_run, tmp_path):
    assert_resumes(train, finished_run, tmp_path / "run", "--pe=rope_mixed", "--stop_at=5")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status", "at"), [(signal.SIGINT, 130, 4), (signal.SIGTERM, 0, 4), (signal.SIGINT, 130, 12)]
)
def test_a_signal_saves_and_says_how_to_go_on(number, status, at, finished_run, tmp_path, monkeypatch, capsys):
    report = loop.Report.__call__

    def interrupted(self, step, *args):
        report(self, step, *args)
        if step == at:
            signal.raise_signal(number)

    before = signal.getsignal(number)
    with monkeypatch.context() as patched:
        patched.setattr(loop.Report, "__call__", interrupted)
        assert train(tmp_path / "run", "--pe=rope_mixed") == status
    assert signal.getsignal(number) is before
    said = capsys.readouterr().out
    go_on = f"python -m train.vit --resume --out={tmp_path / 'run'}"
    assert f"stopped at step {at} of 12, saved; go on with: {go_on}" in said
    assert not (tmp_path / "run" / "results.json").exists()
    if number == signal.SIGINT:
        assert train(tmp_path / "run", "--resume") == 0
        assert outcome(tmp_path / "run") == outcome(finished_run)


@pytest.mark.long
def test_eight_devices_train_as_one(finished_run, tmp_path):
    assert jax.device_count() == 8
    assert train(tmp_path / "one", "--pe=rope_mixed", "--devices=1", "--stop_at=10") == 0
    expected, losses = ([line["loss"] for line in timeless(out)][:5] for out in (finished_run, tmp_path / "one"))
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # coroutines that orbax leaves behind
def test_a_broken_checkpoint_is_passed_over(finished_run, tmp_path, capsys):
    assert train(tmp_path / "run", "--pe=rope_mixed", "--stop_at=6") == 0
    steps = tmp_path / "run" / "checkpoints"
    (steps / "25").mkdir()
    for path in (steps / "6" / "state").rglob("d/*"):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    assert train(tmp_path / "run", "--resume") == 0
    said = capsys.readouterr().out
    assert "checkpoint of step 6 is damaged, skipped: " in said
    assert "going on from step 3" in said
    assert outcome(tmp_path / "run") == outcome(finished_run)


@pytest.mark.slow
def test_a_checkpoint_of_another_configuration_is_refused(finished_run, capsys):
    for flag, setting in (("--lr=0.5", "lr=0.002, this run has lr=0.5"), ("--seed=1", "seed=0, this run has seed=1")):
        error = refused(capsys, lambda: train(finished_run, flag, "--resume"))  # noqa: B023
        assert f"the checkpoint was made with {setting}" in error


BAD = {
    "--pe=rope_mixd": "did you mean 'rope_mixed'?",
    "--pe=rope_mixed(bas=1)": "got 'bas'",
    "--preset=demos": "preset must be one of demo, table, imagenet100, deit3_rope, got 'demos'",
    "--epoch=3": "unknown option --epoch; did you mean --epochs?",
    "--epochs=three": "invalid int value: 'three'",
    "--devices=8 --batch=12": "batch must be a multiple of 8, the devices of data x fsdp, got 12",
    "--batch=16000": "batch must be at most the 10000 training images, got 16000",
    "--devices=9": "devices must be at most 8, the number of visible devices, got 9",
    "--size=30": "image sizes must be multiples of the patch, 14, got 30",
    "--heads=3": "heads",
    "--extend=yarn": "extend must be one of none, pi, pi(stretch=True), pi(proportional=False), got 'yarn'",
    "--data=fashon": "did you mean 'fashion'?",
    "--label_smoothing=1.5": "label_smoothing",
    "--init=nowhere": "a run folder holds config.json, got nowhere without one",
}


@pytest.mark.parametrize("flag", BAD)
def test_bad_flags_are_one_line(flag, tmp_path, capsys):
    assert_bad_options(capsys, train, tmp_path / "run", flag, BAD[flag])


@pytest.mark.slow
def test_a_run_is_not_overwritten_by_accident(finished_run, capsys):
    error = refused(capsys, lambda: train(finished_run, "--pe=rope_mixed"))
    assert "already has a run: give --resume, --overwrite or another --out" in error
    assert (finished_run / "results.json").exists()


@pytest.mark.slow
def test_fine_tuning_at_another_size(tmp_path, capsys):
    assert train(tmp_path / "small", "--pe=learned", "--stop_at=2") == 0
    assert train(tmp_path / "large", f"--init={tmp_path / 'small'}", "--size=42", "--stop_at=1") == 0
    said = capsys.readouterr().out
    assert f"starting from step 2 of {tmp_path / 'small'}, trained at 28 px" in said
    assert "learned" in said
    error = refused(capsys, lambda: train(tmp_path / "other", f"--init={tmp_path / 'small'}", "--width=32"))
    assert "width=16, this run has width=32" in error


@pytest.mark.slow
def test_resized_parameters_are_those_that_at_gives():
    flags = ["--patch=14", "--width=16", "--heads=2", "--layers=2", "--pe=learned"]
    old, new = (Classifier(parse(Config, [*flags, f"--size={size}"]), channels=1, classes=10) for size in (28, 42))
    params = old.init(jax.random.key(0))
    fitted = resized_params(old, new, params)
    assert jax.tree.map(jnp.shape, fitted) == jax.tree.map(jnp.shape, new.init(jax.random.key(1)))
    expected = old.prototype.encoding.adapt(params["position"], (3, 3))
    jax.tree.map(np.testing.assert_array_equal, fitted["position"], expected)
    images = jax.random.normal(jax.random.key(2), (2, 42, 42, 1))
    head = jax.random.normal(jax.random.key(3), fitted["head"]["kernel"].shape)
    with_head = lambda params: {**params, "head": {**params["head"], "kernel": head}}
    logits = [c.logits(with_head(p), images) for c, p in ((old, params), (new, fitted))]
    np.testing.assert_allclose(*logits, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_resized_parameters_of_several_kinds_of_layers():
    """A table of positions is resized once, those of relative positions layer by layer, other kinds not at all."""
    pe = "--pe=(learned+rope_axial)*1 + relative_table*1 + rope_axial*1"
    flags = ["--patch=7", "--width=16", "--heads=2", "--layers=6", pe]
    old, new = (Classifier(parse(Config, [*flags, f"--size={size}"]), channels=1, classes=10) for size in (28, 42))
    params = jax.tree.map(lambda leaf: leaf + 0.1, old.init(jax.random.key(0)))
    fitted = resized_params(old, new, params)
    assert jax.tree.map(jnp.shape, fitted) == jax.tree.map(jnp.shape, new.shapes)
    positions = params["layers"]["body_1"]["blocks"]["attention"]["position"]
    for layer in range(2):
        table = jax.tree.map(lambda leaf, layer=layer: leaf[layer], positions)
        expected = old.prototype.encodings[1].adapt(table, (6, 6))
        result = jax.tree.map(
            lambda leaf, layer=layer: leaf[layer], fitted["layers"]["body_1"]["blocks"]["attention"]["position"]
        )
        jax.tree.map(np.testing.assert_array_equal, result, {name: expected[name] for name in result})
    assert fitted["layers"]["body_2"]["blocks"]["mlp"] == params["layers"]["body_2"]["blocks"]["mlp"]


@pytest.mark.slow
def test_the_filling_of_a_batch_is_not_counted():
    """A head of zeros says class 0 for every image, those that fill the batch included."""
    config = parse(
        Config, ["--patch=14", "--width=16", "--heads=2", "--layers=1", "--eval_limit=50", "--eval_sizes", "28", "42"]
    )
    dataset = load("fashion")
    classifier = Classifier(config, dataset.channels, len(dataset.classes))
    results = vit_evaluate.evaluate(
        classifier, dataset, classifier.init(jax.random.key(0)), step=0, mesh=make_mesh(), console=Console(quiet=True)
    )
    labels = next(evaluation_batches(dataset, 28, 50))["label"]
    assert [result.extend for result in results] == ["none", "pi(stretch=True)"]
    for result in results:
        assert [(number.value, number.count) for number in result.first] == [(2 * np.sum(labels == 0), 50)] * 2
        assert all((number.outcomes == (labels == 0)).all() for number in result.first)  # in the order of the images


def test_weight_decay_falls_on_kernels_alone():
    classifier = Classifier(
        parse(Config, ["--pe=learned", "--pool=cls", "--registers=2", "--layer_scale=0.1"]), channels=1, classes=10
    )
    mask = decay_mask(classifier.shapes)
    exemptions = {
        jax.tree_util.keystr(path) for path, decays in jax.tree_util.tree_leaves_with_path(mask) if not decays
    }
    assert all(leaf.endswith("['kernel']") for leaf in flat(mask) - exemptions)
    assert len(flat(mask) - exemptions) == 6
    for name in ("['cls']", "['registers']", "['norm']['scale']", "['head']['bias']"):
        assert name in exemptions
    assert any("['position']" in name for name in exemptions)


def flat(tree) -> set[str]:
    return {jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)}


def test_sizes_are_the_fourteen_of_the_published_table():
    assert evaluation_sizes(Config(preset="table", size=224, patch=16)) == tuple(range(96, 513, 32))
    assert evaluation_sizes(Config(preset="table", patch=2)) == tuple(range(12, 65, 4))


def test_the_short_run_has_four_sizes():
    assert evaluation_sizes(Config()) == (16, 28, 40, 56)
    assert evaluation_sizes(Config(size=224, patch=16)) == (128, 224, 320, 448)


def test_extensions_are_evaluated_beside_the_plain_model_where_the_encoding_rotates():
    chosen = lambda pe, **options: list(Classifier(Config(pe=pe, **options), channels=1, classes=10).extended)
    assert chosen("rope_mixed") == ["none", "pi(stretch=True)"]
    assert chosen("alibi") == ["none"]
    assert chosen("alibi", extend="pi,none") == ["pi", "none"]


@pytest.mark.slow
def test_evaluating_again_gives_the_same(finished_run, tmp_path, capsys):
    before = (finished_run / "results.json").read_text()
    assert evaluate.main([str(finished_run)]) == 0
    assert (finished_run / "results.json").read_text() == before
    assert evaluate.main([str(finished_run), "--extend=pi"]) == 0
    squeezed = json.loads((finished_run / "results-pi.json").read_text())
    assert squeezed["numbers"][0] == json.loads(before)["numbers"][0]
    assert evaluate.main(["--compare", str(finished_run), f"--to={tmp_path / 'both'}"]) == 0
    table = (tmp_path / "both.md").read_text()
    assert "| encoding | **28** | 42 |" in table
    assert "| rope_mixed + pi |" in table
    assert (tmp_path / "both.png").stat().st_size > 1000
    error = refused(capsys, lambda: evaluate.main(["--compare", str(tmp_path)]))
    assert "a comparison needs run folders with results*.json" in error


@pytest.mark.parametrize("pe", ["learned", slow("learned+rope_mixed")])
def test_the_line_of_laws_has_numbers_where_a_table_ends(pe):
    dims = Dims(heads=2, head_dim=8, axes=2, extent=(4, 6))
    line = laws(parse_pattern(pe), init_params(make_encoding(pe, dims), jax.random.key(0)), dims)
    assert re.search(r"a shift moves the logits by \d\.\de[-+]\d\d, as declared", line), line
