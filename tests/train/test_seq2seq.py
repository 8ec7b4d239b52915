"""The encoder-decoder trainer through its command line: it finishes, goes on, learns, counts, refuses in one line."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pejax import ENCODINGS
from tests.support.cli import assert_bad_options, assert_resumes, outcome, programs_on_disk, refused
from train.devices.mesh import make_mesh
from train.engine.numbers import Number, share_of
from train.engine.parser import parse
from train.engine.task import params_from_init
from train.evaluate import program as evaluate
from train.seq2seq import model as answers
from train.seq2seq import program as seq2seq
from train.seq2seq.config import Config
from train.seq2seq.model import Answerer
from train.seq2seq.results import EXACT, ExactMatchResults
from train.seq2seq.tasks import PAD, STOP, evaluation_batches, train_batches

SMALL = ("--width=16", "--layers=1", "--encoder_layers=1", "--heads=2", "--length=4", "--batch=8")
TINY = (
    *SMALL, "--steps=6", "--warmup=2", "--log_every=2", "--checkpoint_every=3", "--eval_limit=8", "--task=copy,passkey",
    "--cross=unified", "--devices=1", "--eval_lengths", "4",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def compiled_once_and_in_a_hurry(tmp_path_factory):
    with programs_on_disk(tmp_path_factory.mktemp("compiled"), jax_disable_most_optimizations=True):
        yield


def train(out: Path, *flags: str) -> int:
    return seq2seq.main([*TINY, f"--out={out}", *flags])


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory) -> Path:
    """A run that nothing interrupted."""
    out = tmp_path_factory.mktemp("whole") / "run"
    assert train(out, "--pe=rope") == 0
    return out


def test_a_run_leaves_everything_behind(finished_run):
    metrics, results = outcome(finished_run)
    assert [line["step"] for line in metrics] == [2, 4, 6]
    assert {"loss", "right", "lr"} <= set(metrics[0])
    exact = [number for number in json.loads(results)["numbers"] if number["measure"] == EXACT]
    assert [(number["of"], number["at"], number["count"]) for number in exact] == [("copy", 4, 8), ("passkey", 4, 8)]
    assert (finished_run / "results.png").stat().st_size > 1000
    assert json.loads((finished_run / "config.json").read_text())["cross"] == "unified"


@pytest.mark.slow
def test_stop_and_resume_change_no_bit(finished_run, tmp_path):
    assert_resumes(train, finished_run, tmp_path / "run", "--pe=rope", "--stop_at=4")


@pytest.mark.slow
def test_evaluating_again_and_side_by_side(finished_run, tmp_path, capsys):
    before = (finished_run / "results.json").read_text()
    assert evaluate.main([str(finished_run)]) == 0
    assert (finished_run / "results.json").read_text() == before
    said = capsys.readouterr().out
    assert "exact answers, rope, cross unified, trained at up to 4 tokens" in said
    assert answers.NOTE[:40] in said
    assert evaluate.main(["--compare", str(finished_run), f"--to={tmp_path / 'both'}"]) == 0
    table = (tmp_path / "both.md").read_text()
    assert "| encoding | **4** |" in table
    assert "| rope, cross unified |" in table
    assert (tmp_path / "both.png").stat().st_size > 1000


@pytest.mark.slow
def test_a_list_of_extensions_is_trained_with_the_first_and_evaluated_with_all(tmp_path):
    assert train(tmp_path / "run", "--extend=none,log_n", "--steps=2") == 0
    assert {path.name for path in (tmp_path / "run").glob("results*.json")} == {"results.json", "results-log_n.json"}


def configured(*flags: str) -> Answerer:
    return Answerer(parse(Config, [*SMALL, *flags]))


@pytest.mark.slow
@pytest.mark.parametrize(
    "pe", ["learned", *(pytest.param(pe, marks=pytest.mark.slow) for pe in ENCODINGS if pe != "learned")]
)
def test_every_encoding_has_gradients(pe):
    answerer = configured(f"--pe={pe}", "--cross=separate", "--task=copy")
    batch = next(train_batches(("copy",), 4, 8, seed=0))
    step = jax.grad(answerer.loss, has_aux=True)
    slopes, sums = jax.eval_shape(step, answerer.shapes, batch, jax.random.key(0))
    assert jax.tree.map(jnp.shape, slopes) == jax.tree.map(jnp.shape, answerer.shapes)
    assert set(sums) == set(answers.SUMS)


@pytest.mark.long
@pytest.mark.parametrize("pe", ENCODINGS)
def test_every_encoding_finishes(pe, tmp_path):
    assert train(tmp_path / "run", f"--pe={pe}") == 0


@pytest.mark.slow
def test_what_an_encoding_cannot_serve_is_refused_by_length(tmp_path):
    answerer = configured("--pe=learned", "--task=copy", "--eval_limit=8", "--eval_lengths", "4", "5")
    assert answerer.refusal(4) == ""
    assert "got a table of 5 for length 6" in answerer.refusal(5)
    numbers = (share_of(EXACT, 4, 7, 8, of="copy"), Number(measure=EXACT, at=5, of="copy", refused="too long"))
    ExactMatchResults("learned", "copy", 4, 1, "none", "note", numbers).save(tmp_path)
    stored = json.loads((tmp_path / "results.json").read_text())["numbers"]
    assert stored[1] == {"measure": EXACT, "of": "copy", "at": 5, "refused": "too long"}
    assert ExactMatchResults.load(tmp_path / "results.json").numbers == numbers
    ExactMatchResults.compare([tmp_path / "results.json"], tmp_path / "one")
    assert "| learned | **87.5** | refused |" in (tmp_path / "one.md").read_text()


@pytest.mark.slow
def test_the_loss_is_that_of_the_answers_alone():
    """A head of zeros finds every token equally likely; what follows the end does not count."""
    answerer = configured("--task=copy,passkey")
    batch = next(train_batches(("copy", "passkey"), 4, 8, seed=0))
    mean, sums = jax.jit(answerer.loss)(answerer.init(jax.random.key(0)), batch, jax.random.key(1))
    np.testing.assert_allclose(mean, np.log(36), rtol=1e-6)
    assert int(sums["count"]) == np.sum(batch["target"] != PAD)


class Copier:
    """In the place of a model: answers the copy task, but for every third question."""

    def __call__(self, model, source, segments, count, *, start, stop):
        del model, segments
        assert (start, stop) == (PAD, STOP)
        answer = jnp.pad(source[:, 1:], ((0, 0), (0, count - source.shape[1] + 1)), constant_values=STOP)
        return answer.at[::3, 0].set(STOP)


def test_exact_answers_are_counted_and_the_filling_is_not(monkeypatch):
    answerer = configured("--task=copy", "--eval_limit=20")
    monkeypatch.setattr(answers, "generate_answers", Copier())
    exact, tokens = answers.measure(answerer, answerer.prototype, make_mesh(), "copy", 6)
    assert (exact.of, exact.at, exact.value, exact.count) == ("copy", 6, 100 * (20 - 7) / 20, 20)
    assert tokens.value == pytest.approx(100 * (1 - 7 / (20 * 7)))
    assert (exact.outcomes == (np.arange(20) % 3 != 0)).all()
    assert answers.measure(answerer, answerer.prototype, make_mesh(), "reverse", 6)[0].value == 0


@pytest.mark.long
def test_eight_devices_answer_as_one(finished_run, tmp_path):
    assert train(tmp_path / "run", "--pe=rope", "--devices=8") == 0
    expected, numbers = (
        json.loads((out / "results.json").read_text())["numbers"] for out in (finished_run, tmp_path / "run")
    )
    assert numbers == expected


@pytest.mark.long
def test_copying_is_learned(tmp_path):
    out = tmp_path / "run"
    options = (
        "--task=copy", "--cross=separate", "--width=32", "--steps=400", "--length=3", "--batch=32", "--lr=1e-2",
        "--eval_limit=40", "--eval_lengths", "2",
    )  # fmt: skip
    assert seq2seq.main([*SMALL, *options, f"--out={out}"]) == 0
    assert json.loads((out / "results.json").read_text())["numbers"][0]["value"] > 90


BAD = {
    "--pe=rop": "did you mean 'rope'?",
    "--cross_pe=rop": "did you mean 'rope'?",
    "--preset=demos": "preset must be one of demo, table, got 'demos'",
    "--cross=shared": "cross must be one of none, query_only, separate, unified, got 'shared'",
    "--task=copi": "a task must be one of copy, reverse, sort, addition, passkey, got 'copi'",
    "--length=3": "length must be at least 4 for passkey, got 3",
    "--encoder_layers=0": "encoder_layers must be at least 1, got 0",
    "--eval_limit=0": "eval_limit must be at least 1, because test examples are unlimited, got 0",
    "--seed=-1": "seed must be from 0 to 4294967295, got -1",
    "--devices=9": "devices must be at most 8, the number of visible devices, got 9",
}


@pytest.mark.parametrize("flag", BAD)
def test_bad_flags_are_one_line(flag, tmp_path, capsys):
    assert_bad_options(capsys, train, tmp_path / "run", flag, BAD[flag])


def test_query_only_is_for_encodings_that_rotate(tmp_path, capsys):
    error = refused(capsys, lambda: train(tmp_path / "run", "--pe=alibi", "--cross=query_only"))
    assert "cross='query_only' needs an encoding that rotates and does nothing else, got 'alibi'" in error


def test_runs_have_folders_of_their_own(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    folders = {parse(Config, [f"--cross={cross}"]).out for cross in ("none", "separate")}
    assert folders == {"runs/rope-cross_none-reverse-0", "runs/rope-cross_separate-reverse-0"}
    mixed = parse(Config, ["--pe=alibi", "--decoder_pe=rope(base=100)", "--cross=query_only", "--task=copy"])
    assert mixed.out == "runs/alibi_rope_base=100_-cross_query_only-copy-0"
    assert mixed.name == "alibi + rope(base=100), cross query_only"
    assert parse(Config, ["--out=here"]).out == "here"


@pytest.mark.slow
def test_starting_from_another_run(finished_run, tmp_path, capsys):
    assert train(tmp_path / "more", "--pe=rope", f"--init={finished_run}", "--stop_at=1") == 0
    assert f"starting from step 6 of {finished_run}, trained at 4 tokens" in capsys.readouterr().out
    error = refused(capsys, lambda: train(tmp_path / "other", f"--init={finished_run}", "--pe=rope", "--width=32"))
    assert "width=16, this run has width=32" in error


def test_a_table_of_another_length_is_not_fitted():
    short, long = configured("--pe=learned", "--task=copy"), configured("--pe=learned", "--task=copy", "--length=5")
    with pytest.raises(ValueError, match=r"'table_0'\] of shape \(6, 16\)"):
        params_from_init(long.config, long.shapes, short.shapes)
    assert params_from_init(short.config, short.shapes, short.shapes) == short.shapes


def test_lengths_are_multiples_of_the_trained_one():
    assert Config().lengths == (8, 16, 24, 32, 48, 64)
    assert Config(length=1, eval_lengths=()).lengths == (1, 2, 3, 4)
    count = sum(len(batch["source"]) for batch in evaluation_batches("copy", 64, 5, 3))
    assert count == 5
