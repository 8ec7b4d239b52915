"""Loaded models beyond their trained length: what is measured, what goes on where it stopped, what is refused."""

import json
import math
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pejax import interop
from tests.support.cli import refused
from tests.support.gguf_files import byte_tokens, write_gguf
from tests.support.hub_folders import write
from train.data.text.loading import evaluation_windows, load_text
from train.extend import passkey, program, results
from train.extend.options import read_options
from train.lm import cross_entropy
from train.tune.subject import Loaded, retokenized_corpus

LENGTHS = ("--lengths", "192", "256")
TOLD = ("--windows=1", "--passkey=1")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A Llama of random weights, trained at 64 tokens, whose tokens are bytes."""
    folder = write(tmp_path_factory.mktemp("models") / "llama", vocab_size=260)
    return write_gguf(folder.with_name("tiny.gguf"), folder, **byte_tokens())


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "notes.txt"
    path.write_text("".join(f"line {number} has {number**2} words\n" for number in range(400)))
    return path


@pytest.fixture(scope="module")
def run(model, text):
    return lambda *flags: program.main([f"--model={model}", f"--data=file:{text}", *TOLD, *map(str, flags)])


@pytest.fixture(scope="module")
def finished_run(run, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "out"
    assert run("--extend=none,self_extend,yarn(factor=4)", *LENGTHS, f"--out={out}") == 0
    return out


def lines(folder):
    return [json.loads(line) for line in (folder / "lines.jsonl").read_text().splitlines()]


def test_a_length_is_measured_and_its_table_written(run, tmp_path):
    assert run("--extend=none", "--lengths", "160", f"--out={tmp_path / 'out'}") == 0
    (line,) = lines(tmp_path / "out")
    assert (line["name"], line["length"]) == ("none", 160)
    assert abs(line["losses"][0] - math.log(260)) < 0.5  # weights that are drawn guess evenly
    assert (tmp_path / "out" / "results.md").read_text().count("\n| ") == 2


@pytest.mark.slow
def test_every_extension_is_measured_at_every_length(finished_run):
    rows = lines(finished_run)
    names = ["none", "self_extend", "yarn(factor=4)"]
    assert [(row["name"], row["length"]) for row in rows] == [(name, n) for name in names for n in (192, 256)]
    for row in rows:
        assert len(row["losses"]) == len(row["found"]) == 1
        assert len(row["by_position"]) == results.PARTS
        assert math.isclose(np.mean(row["by_position"]), row["losses"][0], rel_tol=1e-6)
    assert rows[0]["losses"] != rows[2]["losses"] != rows[4]["losses"]
    table = (finished_run / "results.md").read_text()
    assert table.count("\n| ") == 4
    assert f"{math.exp(rows[0]['losses'][0]):.2f} · " in table
    assert (finished_run / "results.png").stat().st_size > 1000


@pytest.mark.slow
def test_the_loss_is_the_cross_entropy_of_the_logits(finished_run, model, text):
    ours, _ = interop.load(model)
    corpus = retokenized_corpus(load_text(f"file:{text}"), str(model), 260)
    assert corpus.tokenizer.decode(corpus.held_out[0]) == text.read_text()[-len(corpus.held_out[0]) :]
    ids = jnp.asarray(evaluation_windows(corpus, 256, 1)[0][:, -193:])
    expected = optax.softmax_cross_entropy_with_integer_labels(ours(ids[:, :-1]), ids[:, 1:]).mean()
    np.testing.assert_allclose(lines(finished_run)[0]["losses"], [expected], rtol=1e-5)


@pytest.mark.parametrize("words", [("--lengths", "192", "256"), ("--lengths=192,256",), ("--lengths", "192,256")])
def test_lengths_are_separated_by_spaces_or_commas(words):
    assert read_options(["--model=tiny.gguf", *words, "--windows=3"]).lengths == (192, 256)


@pytest.mark.slow
def test_what_is_measured_is_not_measured_again(finished_run, run, tmp_path, monkeypatch, capsys):
    before, out = lines(finished_run), tmp_path / "out"
    out.mkdir()
    (out / "settings.json").write_text((finished_run / "settings.json").read_text())
    half = [json.dumps(line) for line in before[:3]]
    (out / "lines.jsonl").write_text("\n".join([*half, json.dumps(before[3])[:40]]))  # the last one was cut off
    read, measure = [], program.measure
    record = lambda subject, plan, name, lengths, *arguments: (
        read.append((name, tuple(lengths))) or measure(subject, plan, name, lengths, *arguments)
    )
    monkeypatch.setattr(program, "measure", record)
    assert run("--extend=none,self_extend", *LENGTHS, f"--out={out}") == 0
    assert read == [("self_extend", (256,))]
    assert "measured already: 3" in capsys.readouterr().out
    after = [json.loads(line) for line in (out / "lines.jsonl").read_text().splitlines() if line.endswith("}")]
    timed = ("seconds", "digest")
    timeless = lambda rows: [{key: value for key, value in row.items() if key not in timed} for row in rows]
    assert timeless(after) == timeless(before[:4])


def test_a_model_of_the_same_shapes_does_not_get_the_numbers_of_another(run, text, tmp_path, capsys):
    """What differs is one weight; the same weights in another folder are the same model."""
    llama = write(tmp_path / "llama", vocab_size=260)
    models = [tmp_path / name / "tiny.gguf" for name in ("a", "b", "c")]
    for path in models:
        path.parent.mkdir()
        write_gguf(path, llama, **byte_tokens())
    content = bytearray(models[1].read_bytes())
    content[-70] ^= 1
    models[1].write_bytes(content)
    measure = lambda model: program.main([
        f"--model={model}", f"--data=file:{text}", "--windows=1", "--passkey=0", "--extend=none", "--lengths=32",
        f"--out={tmp_path / 'out'}",
    ])  # fmt: skip
    assert measure(models[0]) == 0
    assert "weights='" in refused(capsys, lambda: measure(models[1]))
    assert measure(models[2]) == 0
    assert "measured already: 1" in capsys.readouterr().out
    place = tmp_path / "out" / "lines.jsonl"
    place.write_text(place.read_text().replace('"length": 32', '"length": 33'))
    assert "changed since it was written" in refused(capsys, lambda: measure(models[0]))


@pytest.mark.slow
def test_a_fine_tuned_model_is_measured_with_its_extension_once(run, model, text, tmp_path, capsys):
    """Its config.json has the extension; settings that it was not tuned with are refused."""
    options = ("--extend=none", "--lengths=64", "--passkey=0", f"--out={tmp_path / 'out'}", "--steps=1", "--length=64")
    assert run("--finetune=yarn(factor=4),pi", *options) == 0
    rows = {row["name"]: row for row in lines(tmp_path / "out")}
    for extend, loaded in {"yarn(factor=4)": None, "pi": "pi"}.items():
        (tuned,) = (tmp_path / "out").glob(f"tuned-{extend[:2]}*/model")
        ours, _ = interop.load(tuned, extend=loaded)
        corpus = retokenized_corpus(load_text(f"file:{text}"), str(model), 260)
        ids = jnp.asarray(evaluation_windows(corpus, 64, 1)[0][:, -65:])
        expected = optax.softmax_cross_entropy_with_integer_labels(ours(ids[:, :-1]), ids[:, 1:]).mean()
        np.testing.assert_allclose(rows[f"{extend}, fine-tuned"]["losses"], [expected], rtol=1e-5)
    assert len({row["made_by"]["weights"] for row in rows.values()}) == 3
    error = refused(capsys, lambda: run("--finetune=pi", *options, "--lr=1"))
    assert "made with lr=0.0002, this run has lr=1.0" in error


def test_extensions_are_compared_window_by_window():
    make_row = lambda name, *losses: results.Measured(name, 64, losses, losses)
    rows = [
        [make_row("none", 2.0, 3.0, 4.0)],
        [make_row("pi", 1.9, 2.9, 3.9)],
        [results.Measured("ntk", 64, refused="why")],
    ]
    names = ["none", "pi", "ntk"]
    gap = math.exp(2.9) - math.exp(3.0)
    assert results.differences(rows, names) == [f"pi against none: {gap:+.2f} ±0.00 at 64"]
    text = results.markdown(rows, names, [64], "title", 0)
    assert text.endswith(f"- ntk: why\n\n{results.DIFFERENCES}:\n\n- pi against none: {gap:+.2f} ±0.00 at 64\n")
    single = [[make_row("none", 2.0)], [make_row("pi", 1.9)]]
    assert results.differences(single, names[:2]) == []  # one window tells nothing


def test_a_table_shows_names_as_they_are():
    rows = [[results.Measured("[x](y)", 64, refused="<b>")]]
    assert results.markdown(rows, ["[x](y)"], [64], "<title>", 0).splitlines()[0::6] == [
        "# &lt;title>", "| \\[x\\](y) | refused |",
    ]  # fmt: skip


def test_an_extension_that_is_refused_is_in_the_table_as_such(run, tmp_path):
    out = tmp_path / "out"
    assert run("--extend=resize", "--lengths", "192", "--passkey=0", f"--out={out}") == 0
    (line,) = lines(out)
    assert "resize" in line["refused"]
    assert "| resize | refused |" in (out / "results.md").read_text()
    assert line["refused"] in (out / "results.md").read_text()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--model=", "model must name a folder from Hugging Face or a GGUF file"),
        ("--windows=0", "windows must be at least 1, got 0"),
        ("--lengths 1", "lengths must be at least 2, got 1"),
        ("--lengths 100000", "lengths: a held-out document must hold at least length + 1 = 100001 tokens"),
        ("--lengths 30", "lengths must be at least"),
        ("--dtype=int8", "dtype must be one of float32, bfloat16, got 'int8'"),
        ("--extend=none,none", "extend must name each once"),
        ("--extend= --finetune=", "extend must name at least one extension"),
        ("--data=nothing", "nothing"),
        ("--model=/nowhere", "/nowhere"),
    ],
)
def test_bad_flags_are_one_line(flags, message, run, tmp_path, capsys):
    error = refused(capsys, lambda: run(*LENGTHS, f"--out={tmp_path / 'out'}", *flags.split(" ")))
    assert message in error


@pytest.mark.slow
def test_other_settings_need_another_folder(finished_run, run, capsys):
    error = refused(capsys, lambda: run(*LENGTHS, "--dtype=bfloat16", f"--out={finished_run}"))
    assert "dtype='float32', this command has dtype='bfloat16': give another --out" in error
    error = refused(capsys, lambda: run(*LENGTHS, f"--out={finished_run.parent}"))
    assert "out must be a new folder or one of train.extend" in error


def test_keys_are_hidden_at_even_depths_and_the_text_has_the_length():
    encode = lambda text: list(text.encode())
    questions = passkey.questions(encode, 4000, 4)
    assert [question.depth for question in questions] == [0.125, 0.375, 0.625, 0.875]
    keys = set()
    for question in questions:
        text = bytes(question.ids.tolist()).decode()
        assert len(question.ids) == 4001
        key = text[-question.answer :].strip()
        assert text.count(key) == 3
        begin = text.index(f"The pass key is {key}")
        assert abs(begin / 4000 - question.depth) < 0.05
        assert text.endswith(f"What is the pass key? The pass key is {key}")
        keys.add(key)
    assert len(keys) == 4
    least = next(length for length in range(1, 400) if not _too_short(encode, length))
    with pytest.raises(ValueError, match=f"at least {least} for the passkey test, got {least - 1}"):
        passkey.questions(encode, least - 1, 1)


def _too_short(encode, length):
    try:
        return not passkey.questions(encode, length, 1)
    except ValueError:
        return True


@pytest.mark.slow
def test_the_end_is_what_greedy_decoding_says(model):
    loaded = Loaded(str(model), "none", "float32")
    ids = np.random.default_rng(0).integers(2, 250, (1, 21)).astype(np.int32)
    expected = np.argmax(loaded.model(loaded.loaded)(ids[:, :-1]), axis=-1)[:, -4:]
    np.testing.assert_array_equal(loaded.ends(loaded.loaded, ids, 4), expected)


@pytest.mark.slow
def test_a_head_that_is_no_product_is_read_in_chunks(tmp_path, monkeypatch):
    loaded = Loaded(str(write(tmp_path / "gemma", "gemma2")), "none", "float32")
    ids = np.random.default_rng(0).integers(0, 97, (2, 24)).astype(np.int32)
    ours = loaded.model(loaded.loaded)
    expected = optax.softmax_cross_entropy_with_integer_labels(ours(ids[:, :-1]), jnp.asarray(ids[:, 1:]))
    for at_once in (2**27, 97 * 7):
        monkeypatch.setitem(cross_entropy.LOGITS_AT_ONCE, "cpu", at_once)
        np.testing.assert_allclose(loaded.losses(loaded.loaded, ids), expected, rtol=1e-5)


@pytest.mark.slow
def test_the_command_ends(model, text, tmp_path):
    words = [
        f"--model={model}", f"--data=file:{text}", *TOLD[:1], "--passkey=0", "--extend=none", "--lengths", "32",
        f"--out={tmp_path / 'a folder'}",
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "train.extend", *words], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.rstrip().endswith(f"wrote {tmp_path}/a folder/results.md and .png")
    assert not done.stderr
