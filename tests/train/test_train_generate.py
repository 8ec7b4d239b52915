"""`python -m train.generate`: what it writes is what the model makes, piece by piece; ends, refusals and Ctrl-C."""

import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pejax.interop import load, load_tokenizer
from pejax.models import Sampling, generate
from tests.support.cli import refused
from tests.support.gguf_files import byte_tokens, write_gguf
from tests.support.hub_folders import write
from train.generate.models import ByteReader
from train.generate.program import Progress, main
from train.lm import program as lm
from train.runs import load_run

PROMPT = "the thin"
VOCAB = 260


@pytest.fixture(autouse=True)
def no_kept_programs(monkeypatch, tmp_path):
    """The user's cache folder is a new one, and JAX keeps what it kept before."""
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path / 'cache'}")
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: jax.config.values[name] for name in names}
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("models") / "llama", vocab_size=VOCAB)


@pytest.fixture(scope="module")
def file(folder, tmp_path_factory):
    return write_gguf(tmp_path_factory.mktemp("files") / "a.gguf", folder, **byte_tokens())


def command(*arguments):
    return [sys.executable, "-m", "train.generate", *map(str, arguments)]


def expected(file, count, **options):
    """Return the ids that a model makes."""
    model, tokenizer = load(file)[0], load_tokenizer(file)
    return np.asarray(generate(model, jnp.asarray([tokenizer.encode(PROMPT)]), count, **options))[0].tolist()


@pytest.mark.slow
def test_a_process_writes_what_the_model_makes(file):
    flags = ("--temperature=0.7", "--top_k=50", "--top_p=0.9", "--seed=3", "--max_tokens=20")
    done = subprocess.run(command(PROMPT, f"--model={file}", *flags), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ids = expected(file, 20, sampling=Sampling(0.7, 50, 0.9), key=jax.random.key(3))
    ids = ids[: ids.index(0)] if 0 in ids else ids
    assert done.stdout == load_tokenizer(file).decode(ids) + "\n"
    about, speed = done.stderr.splitlines()
    context = "context of 64 tokens · 5 tokens of the prompt, at most 20 to follow"
    assert about == f"llama · 32,160 parameters · rope(base=500.0, pairing='half') · {context}"
    assert speed.startswith(f"{len(ids)} tokens · ")


@pytest.mark.slow
def test_it_stops_at_the_end_of_the_text(folder, file, tmp_path, capsys):
    ids = expected(file, 12)
    end = next(token for token in ids[3:] if token not in ids[:3])
    model = write_gguf(tmp_path / "a.gguf", folder, **byte_tokens(tokenizer__ggml__eos_token_id=end))
    assert main([PROMPT, f"--model={model}", "--max_tokens=12"]) == 0
    written = capsys.readouterr()
    assert written.out == load_tokenizer(file).decode(ids[: ids.index(end)]) + "\n"
    assert f"{ids.index(end) + 1} tokens · " in written.err


@pytest.mark.slow
def test_a_text_that_ends_it_is_not_written(file, capsys):
    written = lambda *flags: (main([PROMPT, f"--model={file}", "--max_tokens=12", *flags]), capsys.readouterr().out)
    text = written()[1]
    stop = text[4:6]
    assert written("--stop", "no such text", stop) == (0, text[: text.index(stop)] + "\n")


@pytest.mark.slow
def test_a_window_keeps_the_memory_and_lifts_the_limit_of_the_context(file, capsys):
    assert main([PROMPT, f"--model={file}", "--max_tokens=12", "--window=3", "--first=1"]) == 0
    ids = expected(file, 12, window=3, first=1)
    ids = ids[: ids.index(0)] if 0 in ids else ids
    assert capsys.readouterr().out == load_tokenizer(file).decode(ids) + "\n"
    assert ids != expected(file, 12)[: len(ids)]
    assert main(["x" * 70, f"--model={file}", "--window=30", "--first=2", "--max_tokens=3"]) == 0
    assert "70 tokens of the prompt, at most 3 to follow" in capsys.readouterr().err


def test_a_prompt_that_fills_the_context_is_refused(file, capsys):
    message = refused(capsys, lambda: main(["x" * 64, f"--model={file}"]))
    assert (
        "the prompt must be shorter than the context of the model, 64 tokens, or a window or extend be given" in message
    )


@pytest.mark.slow
def test_the_context_limits_the_text_unless_it_is_extended(file, capsys):
    long = "x" * 62
    assert main([long, f"--model={file}"]) == 0
    assert "62 tokens of the prompt, at most 2 to follow" in capsys.readouterr().err
    assert main([long, f"--model={file}", "--extend=yarn(factor=4)", "--max_tokens=3"]) == 0
    error = capsys.readouterr().err
    assert "rope(base=500.0, pairing='half', extend='yarn(factor=4.0)') · context of 64 tokens" in error
    assert "at most 3 to follow" in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([""], "the prompt must have at least one token, got none"),
        (["h\udcc3\udca9"], "the prompt must be text in this locale's encoding, utf-8, got 'h\\udcc3\\udca9'"),
        (["a", "--max_tokens=0"], "max_tokens must be at least 1, got 0"),
        (["a", "--temperature=-1"], "temperature must be 0, or finite and at least"),
        (["a", "--top_k=261"], "top_k must be from 0 to the size of the vocabulary, 260, got 261"),
        (["a", "--window=-1"], "window must be at least 1 and first at least 0, got -1 and 0"),
        (["a", "--first=4"], "first needs a window, whose cache keeps the first tokens too, got first=4 without one"),
        (["a", "--stop", "x", ""], "stop must hold texts of at least one character, got ('x', '')"),
        (["a", "--extend=yarm"], "unknown extension 'yarm'"),
        (["a", "--cache_policy=lazy"], "cache_policy must be one of auto, recompute, stepwise, got 'lazy'"),
        (["a", "--params=int8"], "params must be one of float32, bfloat16, file, got 'int8'"),
        ([], "PROMPT must be given, or --prompt_file or --messages in its place, got none"),
        (["a", "--prompt_file=b"], "PROMPT or prompt_file must be given, got both, 'a' and 'b'"),
        (["--prompt_file=no/file"], "No such file or directory: 'no/file'"),
        (["--prompt_file=/dev/null"], "the prompt must have at least one token, got none"),
        (["a", "--messages=/dev/null"], "messages must be a file of JSON, got '/dev/null': Expecting value"),
        (["a", "--chat=maybe"], "chat must be one of auto, on, off, got 'maybe'"),
        (["a", "--chat=off", "--system=b"], "system must be given with a chat, got --chat=off"),
        (["a", "--chat_variables=[]"], "chat_variables must be a JSON object, got '[]'"),
        (["a", "--chat_variables={"], "chat_variables must be a JSON object, got '{'"),
        (["a", "--chat_variables={}"], "chat_variables needs a model with a chat template, got one without"),
        (["a", "--chat=on"], "chat=on needs a model with a chat template, got one without"),
        (["a", "--system=b"], "system needs a model with a chat template, got one without"),
        (["a", "--data=shakespeare"], "data must be given with a run of train.lm alone, got 'shakespeare' with"),
        (["a", "--pe=rope"], "pe must be given with a run of train.lm alone, got 'rope' with"),
        (["a", "--top_p=0.5"], "top_p=0.5 needs a temperature above 0, got 0.0"),
        (["a", "--samples=2"], "samples=2 needs a temperature above 0, got 0.0"),
        (["a", "--samples=0"], "samples must be at least 1, got 0"),
        (["a", "--min_p=2", "--temperature=1"], "min_p must be from 0 to 1, got 2.0"),
        (["a", "--presence_penalty=3"], "presence_penalty must be from -2 to 2, got 3.0"),
    ],
)
def test_options_that_are_refused(arguments, message, file, capsys):
    assert message in refused(capsys, lambda: main([*arguments, f"--model={file}"]))


def test_models_that_are_refused(tmp_path, folder, capsys):
    assert (
        "nothing must be a folder with config.json and safetensors files, or a GGUF file, got nothing there"
        in refused(capsys, lambda: main(["a", f"--model={tmp_path}/nothing"]))
    )
    assert "tokenizer.ggml.model must be one of gpt2, llama, bert, t5; others are not read yet, got None" in refused(
        capsys, lambda: main(["a", f"--model={write_gguf(tmp_path / 'a.gguf', folder)}"])
    )


@pytest.mark.slow
def test_ctrl_c_ends_it_with_a_line(folder, tmp_path):
    model = write_gguf(
        tmp_path / "a.gguf", folder, **byte_tokens(tokenizer__ggml__eos_token_id=None), llama__context_length=10**5
    )
    flags = (f"--model={model}", "--max_tokens=90000", "--temperature=1")
    process = subprocess.Popen(command(PROMPT, *flags), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out.endswith(b"\n")
    last = error.decode().splitlines()[-1]
    assert last.startswith("stopped; ")
    assert "token" in last


# A run of train.lm


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "lm"
    flags = ("--width=16", "--layers=1", "--heads=2", "--length=32", "--steps=2", "--eval_lengths=32", "--eval_limit=1")
    assert lm.main([*flags, f"--out={out}"]) == 0
    return out


@pytest.mark.slow
def test_a_run_goes_on_with_a_text_of_bytes(run, capsys):
    flags = ("--max_tokens=9", "--temperature=1", "--seed=2")
    capsys.readouterr()
    assert main(["To be", f"--model={run}", *flags]) == 0
    written = capsys.readouterr()
    model = load_run(run).model
    made = generate(model, [[*b"To be"]], 9, sampling=Sampling(1.0), key=jax.random.key(2))[0]
    assert written.out == bytes(np.asarray(made).tolist()).decode(errors="replace") + "\n"
    assert written.err.splitlines()[0] == (
        "step 2 of lm · 11,568 parameters · rope · context of 32 tokens · 5 tokens of the prompt, at most 9 to follow"
    )
    assert main(["To be", f"--model={run}", "--extend=yarn(factor=2)", "--dtype=bfloat16", "--max_tokens=40"]) == 0
    assert "rope(extend='yarn(factor=2.0)')" in capsys.readouterr().err
    assert "params must be float32 with a run" in refused(
        capsys, lambda: main(["a", f"--model={run}", "--params=file"])
    )


@pytest.mark.slow
def test_a_run_has_the_tokenizer_of_its_data_which_the_user_names(tmp_path, capsys):
    text = tmp_path / "notes.txt"
    text.write_text("\n".join(f"story {n} of words" for n in range(400)))
    data = f"--data=file(path='{text}', tokenizer='bpe(vocab=280)')"
    flags = ("--width=8", "--layers=1", "--heads=2", "--length=16", "--steps=2", "--eval_lengths=16", "--eval_limit=1")
    assert lm.main([*flags, data, "--probe_every=0", f"--out={tmp_path / 'run'}"]) == 0
    model = f"--model={tmp_path / 'run'}"
    assert "add --data=" in refused(capsys, lambda: main(["story", model]))
    assert main(["story 7", model, data, "--max_tokens=3"]) == 0
    assert "3 tokens" in capsys.readouterr().err


def test_the_rate_leaves_out_what_waits_for_a_program():
    progress = Progress(asked=1.0, times=[3.0, 5.0, 5.5, 6.0, 6.5], tokens=5, compiled=1.75)
    assert f"{progress}" == "5 tokens · the first after 2.00 s, 1.75 s of them to compile · then 2.0 tokens per second"
    of_two = Progress(asked=1.0, times=[3.0, 5.0, 5.5, 6.0], tokens=7, texts=2)
    assert f"{of_two}".endswith("then 4.0 tokens per second")
    assert f"{Progress(1.0, [3.0], 1)}" == "1 token · the first after 2.00 s, 0.00 s of them to compile"
    assert f"{Progress()}" == "0 tokens"


@pytest.mark.slow
def test_the_policy_of_the_cache_is_that_of_generate(file, capsys):
    flags = (f"--model={file}", "--extend=dynamic_ntk(factor=2)", "--max_tokens=8", "x" * 60)
    model = load(file, extend="dynamic_ntk(factor=2)")[0]
    for policy in ("stepwise", "recompute"):
        assert main([*flags, f"--cache_policy={policy}"]) == 0
        ids = np.asarray(generate(model, [load_tokenizer(file).encode("x" * 60)], 8, policy=policy))[0].tolist()
        ids = ids[: ids.index(0)] if 0 in ids else ids
        assert capsys.readouterr().out == load_tokenizer(file).decode(ids) + "\n"


def test_bytes_become_characters_as_they_are_whole_and_end_where_asked():
    reader = ByteReader()
    ids = reader.encode("a漢🤗!")
    assert [*reader.stream(ids)] == ["a", "漢", "🤗", "!"]
    assert [*reader.stream(iter(ids[:3]))] == ["a", "\ufffd"]
    assert "".join(reader.stream(reader.encode("one. two"), stop=(". ",))) == "one"
    assert "".join(reader.stream(reader.encode("one. two"), stop=(ord("."),))) == "one"
