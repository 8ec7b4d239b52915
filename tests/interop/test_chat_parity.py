"""Chats as in transformers: the same text, the same ids, the same answer, of templates of every kind."""

import functools
import json

import jinja2
import numpy as np
import pytest

from pejax.interop import chat_child, load, load_sampling, load_tokenizer
from pejax.models import generate
from tests.support.chat_templates import CHATML, INSTRUCTIONS, RENDERED, SYSTEM, TALK, THOUGHTS
from tests.support.gguf_files import byte_tokens, write_gguf
from tests.support.hub_folders import write
from tests.support.peers import peer
from train.generate.program import main

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

TIME = "{% for m in messages %}{{ m.content }}{% endfor %}{{ strftime_now('%d %b %Y') }} {{ strftime_now('%A') }}"
SPECIAL = "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ unk_token }}|{{ cls_token is defined }}|{{ image_token }}"
TEMPLATES = [*RENDERED, TIME, SPECIAL]

CONVERSATIONS = [
    TALK,
    TALK[:2],
    [SYSTEM, *TALK],
    [{"role": "tool", "content": "漢字 🤗 \"'&<>"}],
    [*TALK, {"role": "assistant", "content": "<think>\n2?\n</think>\n\n2"}, TALK[0]],
    [SYSTEM],
    [{"role": "user", "content": ""}, {"role": "user", "content": "{{ 1 }} {% raw %}"}],
]

SETTINGS = {
    "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|start|>", "eos_token": "<|end|>",
    "pad_token": {"content": "<|end|>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
                  "__type": "AddedToken"}, "image_token": "a",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model and a tokenizer of bytes, which both open."""
    home = tmp_path_factory.mktemp("models")
    folder = write(home / "llama", vocab_size=260, max_position_embeddings=256)
    load_tokenizer(write_gguf(home / "a.gguf", folder, **byte_tokens())).library.save(str(folder / "tokenizer.json"))
    return folder


def both(folder, template, **settings):
    """Write a template and open the tokenizer with both."""
    (folder / "tokenizer_config.json").write_text(json.dumps({**SETTINGS, "chat_template": template, **settings}))
    return load_tokenizer(folder), peer("transformers").AutoTokenizer.from_pretrained(folder)


def text_of(render, talk, options):
    """Return a text, or that the template refuses to make one."""
    try:
        return render(talk, **options)
    except (ValueError, jinja2.exceptions.TemplateError, SystemExit):
        return "refused"


@pytest.mark.parametrize("template", TEMPLATES, ids=[*map(str, range(len(TEMPLATES)))])
def test_the_text_and_the_ids_are_those_of_transformers(template, folder):
    ours, theirs = both(folder, template)
    render = functools.partial(theirs.apply_chat_template, tokenize=False)

    def in_this_process(talk, **options):
        known = {**ours.chat.tokens, "tools": None, "messages": talk, **options}
        return chat_child.answer(json.dumps({"template": template, "variables": known}))

    texts = []
    for talk in CONVERSATIONS:
        for options in ({"add_generation_prompt": True}, {"add_generation_prompt": False, "enable_thinking": False}):
            texts.append(text_of(render, talk, options))
            assert text_of(in_this_process, talk, options) == texts[-1]
    assert len({*texts} - {"refused"}) >= 3 - 2 * (template == SPECIAL)
    ids = theirs.apply_chat_template(TALK, return_dict=False, add_generation_prompt=True)
    assert ours.encode_chat(TALK) == ids


def test_tools_and_documents_are_those_of_transformers(folder):
    tools = [{"type": "function", "function": {"name": "f", "description": "<é>", "parameters": {}}}]
    named = [
        {"name": "default", "template": THOUGHTS},
        {"name": "tool_use", "template": "{{ tools | tojson(indent=1) }}{{ documents }}"},
        {"name": "rag", "template": "{% for d in documents %}{{ d.text }}{% endfor %}"},
    ]
    ours, theirs = both(folder, named)
    documents = [{"title": "a", "text": "b"}]
    for options in ({}, {"tools": tools}, {"tools": []}, {"documents": documents, "tools": tools}):
        text = theirs.apply_chat_template(TALK, tokenize=False, add_generation_prompt=True, **options)
        assert ours.chat.render(TALK, **options) == text
    text = theirs.apply_chat_template(TALK, chat_template="rag", tokenize=False, documents=documents)
    assert ours.chat.render(TALK, template="rag", documents=documents) == text == "b"


def test_a_file_counts_more_in_both(folder):
    (folder / "chat_template.jinja").write_text("of a file {{ bos_token }}\r\nx{% for m in messages %}\n{% endfor %}")
    (folder / "special_tokens_map.json").write_text('{"bos_token": "the"}')
    try:
        for settings in ({}, {"added_tokens_decoder": {}}):
            ours, theirs = both(folder, "of the config", **settings)
            text = theirs.apply_chat_template(TALK, tokenize=False)
            assert ours.chat.render(TALK, add_generation_prompt=False) == text
    finally:
        (folder / "chat_template.jinja").unlink()
        (folder / "special_tokens_map.json").unlink()


def test_a_gguf_file_has_the_chat_template_that_transformers_reads(folder):
    file = folder.parent / "a.gguf"
    write_gguf(file, folder, **byte_tokens(tokenizer__chat_template=SPECIAL + CHATML))
    theirs = peer("transformers").AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    ids = theirs.apply_chat_template(TALK, add_generation_prompt=True, return_dict=False)
    assert load_tokenizer(file).encode_chat(TALK) == ids


@pytest.mark.parametrize(
    "settings",
    [{}, {"repetition_penalty": 1.4}, {"repetition_penalty": 0.7, "temperature": 0.6, "do_sample": False}],
)
@pytest.mark.parametrize("template", [CHATML, INSTRUCTIONS])
def test_a_chat_is_answered_word_for_word(settings, template, folder, capsys):
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 0, "bos_token_id": 1, **settings}))
    ours, theirs = both(folder, template)
    model = peer("transformers").AutoModelForCausalLM.from_pretrained(folder)
    talk = TALK[:1]
    inputs = theirs.apply_chat_template(talk, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**inputs, max_new_tokens=24)[0, inputs["input_ids"].shape[1] :].tolist()
    sampling, stop = load_sampling(folder), ours.eos
    new = generate(load(folder)[0], [ours.encode_chat(talk)], 24, sampling=sampling, stop=stop)
    assert np.asarray(new)[0].tolist()[: len(answer)] == answer
    assert main([TALK[0]["content"], f"--model={folder}", "--max_tokens=24"]) == 0
    written = capsys.readouterr()
    assert written.out == theirs.decode([token for token in answer if token != 0], skip_special_tokens=False) + "\n"
    assert "asked as a chat" in written.err
