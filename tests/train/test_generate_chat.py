"""`python -m train.generate` as a chat: the prompt that the model gets, its settings, several texts, probabilities."""

import io
import json
import shutil
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from pejax.interop import load, load_sampling, load_tokenizer
from pejax.models import Decoder, Sampling, generate
from tests.support.cli import refused
from tests.support.gguf_files import byte_tokens, write_gguf
from tests.support.gguf_metadata import write_metadata
from tests.support.hub_folders import write
from train.generate.models import model_folder
from train.generate.options import GenerateOptions
from train.generate.program import main
from train.generate.prompt import NOTE, ask, read_messages, read_prompt
from train.generate.sampling import sampling_of

TEMPLATE = (
    "{% for m in messages %}{{ '<' ~ m.role ~ '>' ~ m.content }}{% endfor %}"
    "{% if messages[0].role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "{{ '<assistant>' if add_generation_prompt }}"
)
PROMPT = "the thin"
OWN = {"do_sample": True, "temperature": 0.75, "top_k": 300, "repetition_penalty": 1.25, "top_p": None}
"""Settings of a model."""


def options_of(**options):
    return GenerateOptions(**{"model": "nothing", **options})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model with a chat template and settings of its own."""
    home = tmp_path_factory.mktemp("models")
    folder = write(home / "llama", vocab_size=260, max_position_embeddings=128)
    load_tokenizer(write_gguf(home / "a.gguf", folder, **byte_tokens())).library.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 0, **OWN}))
    return folder


# What the model is asked


def test_a_prompt_is_a_turn_of_the_user_after_all_others(tmp_path):
    keys = byte_tokens(tokenizer__chat_template=TEMPLATE)
    tokenizer = load_tokenizer(write_metadata(tmp_path / "a.gguf", **keys))
    file = tmp_path / "turns.json"
    file.write_text('[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]')
    options = options_of(system="s", messages=str(file))
    ids, note = ask(tokenizer, "c", read_messages("c", options), options)
    assert tokenizer.decode(ids) == "<system>s<user>a<assistant>b<user>c<assistant>"
    assert note == NOTE
    options = options_of(messages=str(file))
    assert [turn["content"] for turn in read_messages(None, options)] == ["a", "b"]
    options = options_of(chat_variables='{"add_generation_prompt": false}')
    assert tokenizer.decode(ask(tokenizer, "c", read_messages("c", options), options)[0]) == "<user>c"
    plain = options_of(chat="off")
    assert ask(tokenizer, "the", [], plain) == (tokenizer.encode("the"), "")


def test_a_prompt_comes_from_a_file_or_the_standard_input(tmp_path, monkeypatch):
    file = tmp_path / "a.txt"
    file.write_bytes("\ufeffé\n\n".encode())
    assert read_prompt(None, options_of(prompt_file=str(file))) == "é\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"x y\n")))
    assert read_prompt(None, options_of(prompt_file="-")) == "x y"
    file.write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"a\.txt must be UTF-8, got 'utf-8' codec can't decode byte 0xff"):
        read_prompt(None, options_of(prompt_file=str(file)))


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        ("{}", r"messages must be a file with a JSON list, got '.*': '{}'"),
        ("[" * 100_000, "messages must be a file of JSON, got "),
        ("[1]", r"messages\[1\] must have a role and a content and nothing else, got 1"),
        ('[{"role": "system", "content": "a"}]', "system must not be given where the messages have one, got 's'"),
    ],
)
def test_files_of_messages_that_are_refused(content, rule, tmp_path):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(ValueError, match=rule):
        read_messages("a", options_of(system="s", messages=str(tmp_path / "a.json")))


# Settings of sampling


def test_the_command_line_counts_more_than_the_settings_of_the_model(tmp_path):
    (tmp_path / "generation_config.json").write_text(json.dumps(OWN))
    assert load_sampling(tmp_path) == Sampling(0.75, 300, 1.0, 0.0, 1.25)
    sampling, notes = sampling_of(options_of(model=str(tmp_path)), 260)
    assert sampling == Sampling(0.75, 260, 1.0, 0.0, 1.25)
    assert notes == ["settings of the model: temperature 0.75, top_k 260, repetition_penalty 1.25"]
    sampling, notes = sampling_of(options_of(model=str(tmp_path), temperature=0.0, frequency_penalty=0.5), 260)
    assert sampling == Sampling(0.0, 260, 1.0, 0.0, 1.25, 0.0, 0.5)
    assert notes == ["settings of the model: repetition_penalty 1.25"]
    given = {"temperature": 1.0, "top_k": 0, "min_p": 0.1, "repetition_penalty": 1.0}
    assert sampling_of(options_of(model=str(tmp_path), **given), 260) == (Sampling(1.0, min_p=0.1), [])


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"do_sample": 1}, "do_sample must be true or false, got 1"),
        ({"do_sample": True, "temperature": "warm"}, r"temperature must be a number below 2\^31, got 'warm'"),
        ({"do_sample": True, "top_k": 2.5}, r"top_k must be a whole number below 2\^31, got '2.5'"),
        ({"do_sample": True, "top_k": -1}, "top_k must be from 0 to the size of the vocabulary"),
        ({"do_sample": True, "top_p": 0}, "top_p must be above 0 and at most 1, got 0.0"),
        ({"repetition_penalty": True}, r"repetition_penalty must be a number below 2\^31, got 'True'"),
        ({"repetition_penalty": 10**400}, r"repetition_penalty must be a number below 2\^31, got '1000"),
        ({"repetition_penalty": float("nan")}, r"repetition_penalty must be a number below 2\^31, got 'nan'"),
    ],
)
def test_settings_of_a_model_that_are_refused(settings, rule, tmp_path):
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=f"generation_config.json: {rule}") as error:
        load_sampling(tmp_path)
    assert "\n" not in str(error.value)


def test_settings_that_are_not_read_are_named(tmp_path):
    settings = {"num_beams": 4, "no_repeat_ngram_size": 0, "bad_words_ids": [[3]], "max_length": 20, "temperature": 9}
    (tmp_path / "generation_config.json").write_text(json.dumps({**settings, "stop_strings": ["a"]}))
    message = "num_beams, bad_words_ids, stop_strings are not read, which would change the tokens"
    with pytest.warns(UserWarning, match=message):
        assert load_sampling(tmp_path) == Sampling()
    assert message in sampling_of(options_of(model=str(tmp_path)), 9)[1][0]
    assert load_sampling(tmp_path / "nothing") == Sampling()


def test_a_run_of_tune_has_the_settings_of_the_model_that_it_wrote(tmp_path):
    run = shutil.copytree(Path(__file__).parents[1] / "data_files" / "runs_0_3_0" / "tune", tmp_path / "run")
    (run / "model" / "generation_config.json").write_text(json.dumps(OWN))
    assert model_folder(str(run)) == str(run / "model")
    assert sampling_of(options_of(model=model_folder(str(run))), 260)[0] == Sampling(0.75, 260, 1.0, 0.0, 1.25)


def test_variables_of_a_template_are_not_its_messages():
    with pytest.raises(ValueError, match=r"chat_variables must not have messages, got '{\"messages\": 1}'"):
        read_messages("a", options_of(chat_variables='{"messages": 1}'))


def test_a_gguf_file_has_settings_in_its_metadata(tmp_path):
    keys = {"temp": 0.7, "top_k": 20, "top_p": 0.95, "penalty_repeat": 1.05}
    of_file = lambda **keys: load_sampling(write_metadata(tmp_path / "a.gguf", **keys))
    metadata = {f"general__sampling__{key}": value for key, value in keys.items()}
    assert of_file(**metadata) == Sampling(0.7, 20, 0.95, 0.0, 1.05)
    del metadata["general__sampling__temp"]
    assert of_file(**metadata) == Sampling(repetition_penalty=1.05)
    assert of_file() == Sampling()
    with pytest.warns(UserWarning, match="xtc_probability are not read"):
        of_file(general__sampling__xtc_probability=0.5)


# What is written


def made(folder, count, **options):
    """Return the texts that a model makes, up to their ends."""
    tokenizer = load_tokenizer(folder)
    ids = tokenizer.encode_chat([{"role": "user", "content": PROMPT}])
    model = load(folder)[0]
    assert isinstance(model, Decoder)
    rows, logits = generate(model, [ids] * count, 12, return_logits=True, stop=0, **options)
    logprobs = np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), np.asarray(rows)[..., None], -1)[..., 0]
    ends = [row.index(0) if 0 in row else 12 for row in np.asarray(rows).tolist()]
    texts = [tokenizer.decode(np.asarray(row)[:end].tolist()) for row, end in zip(rows, ends, strict=True)]
    return texts, np.asarray(rows), logprobs, ends


@pytest.mark.slow
def test_a_model_with_a_template_is_asked_as_a_chat(folder, capsys):
    assert main([PROMPT, f"--model={folder}", "--temperature=0", "--max_tokens=12"]) == 0
    written = capsys.readouterr()
    assert written.out == made(folder, 1, sampling=Sampling(repetition_penalty=1.25))[0][0] + "\n"
    lines = written.err.splitlines()
    assert lines[0].endswith(" · 22 tokens of the prompt, at most 12 to follow")
    assert lines[1:3] == [NOTE, "settings of the model: repetition_penalty 1.25"]
    assert main([PROMPT, f"--model={folder}", "--chat=off", "--max_tokens=1"]) == 0
    written = capsys.readouterr()
    assert " · 5 tokens of the prompt" in written.err
    assert NOTE not in written.err


@pytest.mark.slow
def test_several_texts_are_those_of_one_batch_and_end_alone(folder, capsys):
    assert main([PROMPT, f"--model={folder}", "--samples=3", "--seed=5", "--max_tokens=12", "--temperature=4"]) == 0
    sampling = Sampling(4.0, 260, repetition_penalty=1.25)
    texts, _, _, ends = made(folder, 3, sampling=sampling, key=jax.random.key(5))
    written = capsys.readouterr()
    assert written.out == "".join(f"== {n} of 3\n{text}\n" for n, text in enumerate(texts, 1))
    assert f"{sum(min(end + 1, 12) for end in ends)} tokens · " in written.err


@pytest.mark.slow
def test_logarithms_of_probabilities_are_those_of_the_model(folder, capsys):
    assert main([PROMPT, f"--model={folder}", "--temperature=0", "--logprobs", "--max_tokens=12"]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    _, ids, logprobs, ends = made(folder, 1, sampling=Sampling(repetition_penalty=1.25))
    count = min(ends[0] + 1, 12)
    assert [int(token) for _, token, _ in lines] == ids[0, :count].tolist()
    np.testing.assert_allclose([float(value) for value, _, _ in lines], logprobs[0, :count], atol=2e-4)
    tokenizer = load_tokenizer(folder)
    assert [json.loads(text) for _, _, text in lines] == [tokenizer.decode([token]) for token in ids[0, :count]]


@pytest.mark.slow
def test_a_template_that_refuses_is_said_in_one_line(folder, tmp_path, capsys):
    (tmp_path / "a.json").write_text('[{"role": "tool", "content": "a"}]')
    message = refused(capsys, lambda: main([f"--model={folder}", f"--messages={tmp_path / 'a.json'}"]))
    assert "must render these messages, got its refusal: no tools" in message
