"""A program for a child process: a chat template is rendered as `transformers` renders it.

The content is a JSON object of the template and its variables, and the answer is the text. `pejax.interop.child` runs
it, for `pejax.interop.chat`.
"""

import json
import sys
from datetime import datetime
from typing import Any, ClassVar

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

LONGEST = 2**24
"""The most characters of a rendered text."""

SHOWN = 200
"""The most characters of an error that are shown."""


class Refusal(Exception):
    """The template's own refusal of the messages."""


class Generation(Extension):
    """The tag `generation` around what the model says, which changes nothing in the text."""

    tags: ClassVar = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        """Return a call of `content` with the body of the tag, which has a scope of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("content"), [], [], body).set_lineno(line)

    def content(self, caller: Any) -> str:
        """Return the text of the body."""
        return caller()


class PublicNamespace(Namespace):
    """A namespace of jinja2 without names that begin with an underscore."""

    def __init__(*values: Any, **named: Any) -> None:
        for name in dict(*values[1:], **named):
            _require_public(name)
        Namespace.__init__(*values, **named)

    def __setitem__(self, name: str, value: Any) -> None:
        _require_public(name)
        super().__setitem__(name, value)


class Dictionaries:
    """What templates know as `dict`: it makes dictionaries, and is no type."""

    def __call__(self, *values: Any, **named: Any) -> dict[Any, Any]:
        """Return a dictionary."""
        return dict(*values, **named)

    def fromkeys(self, *values: Any) -> dict[Any, Any]:
        """Return a dictionary with one value for all keys."""
        return dict.fromkeys(*values)


def answer(content: str) -> str:
    """Return the rendered text; end the process with a line on what went wrong."""
    request = json.loads(content)
    try:
        text = environment().from_string(request["template"]).render(request["variables"])
    except MemoryError:
        raise
    except Refusal as refusal:
        sys.exit(f"its refusal: {_line(refusal)}")
    except RecursionError:
        sys.exit("nesting that is too deep")
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {_line(error)}")
    if len(text) > LONGEST:
        sys.exit(f"a text of {len(text):,} characters, more than {LONGEST:,}")
    return text


def environment() -> ImmutableSandboxedEnvironment:
    """Return the language of chat templates: jinja2 in a sandbox, and a few names."""
    language = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    language.filters["tojson"] = to_json
    names = {"raise_exception": refuse, "strftime_now": time_now, "dict": Dictionaries(), "namespace": PublicNamespace}
    language.globals.update(names)
    return language


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON as it is; that of jinja2 is written for HTML."""
    options = {"ensure_ascii": ensure_ascii, "indent": indent, "separators": separators, "sort_keys": sort_keys}
    return json.dumps(value, **options)


def refuse(message: object) -> None:
    """Refuse the messages."""
    raise Refusal(message)


def time_now(pattern: str) -> str:
    """Return the local time by a pattern of `strftime`."""
    return datetime.now().strftime(pattern)


def _require_public(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace has no names that begin with an underscore, got {name!r}")


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:SHOWN]
