"""Chat templates: what they render, where a model has them, and what is refused, hostile ones within limits."""

import json
import os
from datetime import datetime

import pytest

from pejax.interop import ChatTemplate, Tokenizer, chat, chat_child, load_tokenizer
from pejax.interop.chat import chat_template, check_messages
from pejax.interop.child_process import Outcome
from pejax.interop.tokenizer_settings import folder_settings
from tests.support.cases import slow
from tests.support.chat_templates import INSTRUCTIONS, RENDERED, SYSTEM, TALK, THOUGHTS, TOKENS, TURNS
from tests.support.gguf_files import byte_tokens
from tests.support.gguf_metadata import write_metadata

ECHO = "{% for m in messages %}{{ m.content }}{% endfor %}"
DEEP = "{% if 1 %}" * 3000 + "{% endif %}" * 3000


def rendered(template, messages=TALK, **variables):
    """Return what the child process would answer, in this process."""
    known = {"messages": messages, "add_generation_prompt": True, "tools": None, **TOKENS, **variables}
    return chat_child.answer(json.dumps({"template": template, "variables": known}))


def one(text, **tokens):
    """Return a model's chat template."""
    return ChatTemplate("a model", {"default": text}, tokens)


@pytest.mark.parametrize(("template", "text"), RENDERED.items(), ids=[*map(str, range(len(RENDERED)))])
def test_templates_of_every_kind_render_as_written(template, text):
    assert rendered(template) == text


def test_a_template_reads_variables_and_the_time():
    assert rendered(THOUGHTS, enable_thinking=False).endswith("<assistant><think>\n\n</think>\n\n")
    assert rendered(THOUGHTS, tools=[{"name": "f"}]).endswith('[{"name": "f"}]<assistant>')
    years = {str(datetime.now().year), rendered("{{ strftime_now('%Y') }}"), str(datetime.now().year)}
    assert len(years) <= 2


def test_a_child_process_renders_and_the_ids_have_no_token_twice(tmp_path):
    template = "{{ bos_token }}{% for m in messages %}{{ m.role ~ m.content ~ eos_token }}{% endfor %}{{ last }}"
    keys = byte_tokens(tokenizer__ggml__add_bos_token=True, tokenizer__chat_template=template)
    tokenizer = load_tokenizer(write_metadata(tmp_path / "a.gguf", **keys))
    assert tokenizer.encode("the") == [1, 259]
    assert tokenizer.chat is not None
    ids = tokenizer.encode_chat([{"role": "the", "content": "the"}], last="the")
    assert ids == [1, 259, 259, 0, 259]
    assert tokenizer.decode(ids) == "<|start|>thethe<|end|>the"


# Where a model has them


def test_a_file_counts_more_than_the_config_and_a_list_has_names(tmp_path):

    def read(**settings):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        return chat_template(tmp_path, folder_settings(tmp_path))

    assert read() is None
    tokens = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": True, "pad_token": None}
    assert read(chat_template="x", **tokens) == ChatTemplate(str(tmp_path), {"default": "x"}, TOKENS)
    listed = read(chat_template=[{"name": "default", "template": "x"}, {"name": "rag", "template": "y"}])
    assert listed is not None
    assert listed.templates == {"default": "x", "rag": "y"}
    assert listed == read(chat_template=dict(listed.templates))
    (tmp_path / "chat_template.jinja").write_text("é")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("z")
    (tmp_path / "special_tokens_map.json").write_text('{"bos_token": "[B]"}')
    files = read(chat_template="x", bos_token="<s>")
    assert files == ChatTemplate(str(tmp_path), {"tool_use": "z", "default": "é"}, {"bos_token": "[B]"})
    newer = read(bos_token="<s>", added_tokens_decoder={})
    assert newer is not None
    assert newer.tokens == {"bos_token": "<s>"}


def test_tools_take_the_template_that_is_for_them(monkeypatch):
    echo = lambda program, content, seconds: Outcome(json.loads(content)["template"])
    monkeypatch.setattr(chat, "outcome_of", echo)
    both = ChatTemplate("a model", {"default": "plain", "tool_use": "tools"})
    assert both.render(TALK) == both.render(TALK, tools=[], template="default") == "plain"
    assert both.render(TALK, tools=[]) == "tools"
    assert one("plain").render(TALK, tools=[]) == "plain"
    with pytest.raises(ValueError, match=r"template must be one of those of a model, default, tool_use, got 'rag'"):
        both.render(TALK, template="rag")


@pytest.mark.parametrize(
    ("stored", "rule"),
    [
        (5, "the chat template 'default' must be a text of at most 1,048,576 characters, got a int"),
        ("x" * 2**21, "the chat template 'default' must be a text of at most 1,048,576 characters, got 2,097,152 char"),
        ([{"name": "default"}], "chat_template must hold templates with a name, got "),
        ([{"name": "a", "template": None}], "the chat template 'a' must be a text of at most 1,048,576 characters"),
    ],
)
def test_templates_that_are_none_are_refused(stored, rule, tmp_path):
    with pytest.raises(ValueError, match=rule) as error:
        chat_template(tmp_path, {"chat_template": stored})
    assert "\n" not in str(error.value)


def test_files_that_are_no_templates_are_refused(tmp_path):
    path = tmp_path / "chat_template.jinja"
    for make, rule in (
        (lambda: path.write_bytes(b"\xff"), "must be a text file that can be read, got 'utf-8' codec"),
        (
            lambda: os.truncate(path, 10**8),
            "must be a file of at most 1,048,576 characters, got something",
        ),
        (lambda: (path.unlink(), os.mkfifo(path)), "must be a file of at most 1,048,576 characters, got something"),
    ):
        make()
        with pytest.raises(ValueError, match=rule):
            chat_template(tmp_path, {})


# What is refused


@pytest.mark.parametrize(
    ("messages", "rule"),
    [
        ([], r"messages must be a list of at least one message, got \[\]"),
        ("Hi", "messages must be a list of at least one message, got 'Hi'"),
        (["Hi"], r"messages\[0\] must have a role and a content and nothing else, got 'Hi'"),
        (
            [*TALK, {"role": "user"}],
            r"messages\[3\] must have a role and a content and nothing else",
        ),
        (
            [{"role": "user", "content": "a", "name": "b"}],
            r"messages\[0\] must have a role and a content and nothing else",
        ),
        ([{"role": "user", "content": ["a"]}], r"messages\[0\] must have a text as its content, got \['a'\]"),
        ([{"role": 1, "content": "a"}], r"messages\[0\] must have a text as its role, got 1"),
        ([{"role": "user", "content": "\ud800"}], r"messages\[0\] must have a text as its content, got '\\ud800'"),
    ],
)
def test_messages_that_are_no_conversation_are_refused(messages, rule):
    with pytest.raises(ValueError, match=rule) as error:
        check_messages(messages)
    assert "\n" not in str(error.value)


def test_what_cannot_be_rendered_is_refused():
    with pytest.raises(TypeError, match="variables of a template must be made of JSON's types, got Object of type set"):
        one(ECHO).render(TALK, tools={1})
    with pytest.raises(ValueError, match="encode_chat needs a model with a chat template, got one without"):
        Tokenizer(None).encode_chat(TALK)


def test_jinja2_must_be_there_and_safe(monkeypatch):
    monkeypatch.setattr(chat.metadata, "version", lambda name: "3.1.5")
    with pytest.raises(ImportError, match=r"needs jinja2 3.1.6 or later, got 3.1.5: pip install -U jinja2"):
        one(ECHO).render(TALK)


def missing(name):
    raise chat.metadata.PackageNotFoundError(name)


def test_jinja2_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(chat.metadata, "version", missing)
    with pytest.raises(ImportError, match=r"needs jinja2 3.1.6 or later: pip install jinja2"):
        one(ECHO).render(TALK)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (INSTRUCTIONS, "its refusal: roles must alternate"),
        (TURNS, "its refusal: System role not supported"),
        ("{{ raise_exception('a\nb' * 1000) }}", "its refusal: a ba ba"),
        ("{{", "TemplateSyntaxError: unexpected 'end of template'"),
        ("{{ messages.content.x }}", "UndefinedError: 'list object' has no attribute 'content'"),
        ("{% include 'a' %}", "TypeError: no loader for this environment specified"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError: access to attribute '__class__' of 'str' object is unsafe"),
        ("{{ (''|attr('__class__')).x }}", "SecurityError: access to attribute '__class__'"),
        ("{{ '{0.__class__.__mro__}'.format('') }}", "SecurityError: access to attribute '__class__'"),
        ("{{ namespace(_a=1) }}", "SecurityError: a namespace has no names that begin with an underscore, got '_a'"),
        ("{% set n = namespace() %}{% set n._a = 1 %}", "SecurityError: a namespace has no names that begin with an"),
        ("{% set x = messages.append(1) %}", "SecurityError: access to attribute 'append' of 'list' object is unsafe"),
        ("{% for i in range(10**9) %}{% endfor %}", "OverflowError: Range too big"),
        ("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "nesting that is too deep"),
        (DEEP, "nesting that is too deep"),
        ("{{ messages[2].content * 17000000 }}", "a text of 17,000,000 characters, more than 16,777,216"),
    ],
)
def test_a_template_that_fails_says_why_in_one_line(template, reason):
    with pytest.raises(SystemExit) as end:
        rendered(template, [SYSTEM, {"role": "tool", "content": "a"}, {"role": "tool", "content": "b"}])
    assert str(end.value).startswith(reason)
    assert "\n" not in str(end.value)
    assert len(str(end.value)) < 300


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ 'a' * 10**10 }}", "a need of more than 1 GiB of memory"),
        ("{{ raise_exception('no') }}", "its refusal: no"),
        slow("{{ '\ud800' }}", "UnicodeEncodeError: 'utf-8' codec can't encode"),
        slow("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "no answer in 1 second"),
    ],
)  # fmt: skip
def test_the_child_process_has_limits(template, reason):
    with pytest.raises(
        ValueError, match=f"^the chat template of a model must render these messages, got {reason}"
    ) as error:
        one(template).render(TALK, seconds=1)
    assert "\n" not in str(error.value)


def test_a_system_that_starts_no_process_renders_nothing(monkeypatch):
    def start_nothing(*arguments):
        raise OSError("no more processes")

    monkeypatch.setattr(chat, "outcome_of", start_nothing)
    with pytest.raises(ValueError, match="got no child process: no more processes"):
        one(ECHO).render([SYSTEM])
