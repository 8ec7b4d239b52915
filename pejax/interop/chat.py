"""Chat templates: what makes one text of a conversation, in the files of a model, rendered in a child process."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from pejax.interop.child_process import SECONDS, outcome_of

PROGRAM = Path(__file__).with_name("chat_child.py")

LARGEST = 2**20
"""The most characters of a template."""

OLDEST = (3, 1, 6)
"""The version of jinja2 from which on its sandbox has no known way out."""

DEFAULT, TOOLS = "default", "tool_use"
"""Names of the template of every model, and of that of models with a second one for conversations with tools."""

Messages = Sequence[Mapping[str, str]]
"""The turns of a conversation: `{"role": "user", "content": "Hello"}`."""


@dataclass(frozen=True)
class ChatTemplate:
    """Makes one text of a conversation, as a model was trained to read it.

    Attributes:
        where: the model that the templates belong to, for messages.
        templates: templates in the language of jinja2, by name; all models but few have "default" alone.
        tokens: the special tokens that templates name, such as `bos_token`.
    """

    where: str
    templates: Mapping[str, str]
    tokens: Mapping[str, str] = field(default_factory=dict)

    def render(
        self,
        messages: Messages,
        *,
        add_generation_prompt: bool = True,
        template: str | None = None,
        seconds: int = SECONDS,
        **variables: Any,
    ) -> str:
        """Return the text of a conversation, special tokens included, as `apply_chat_template` of transformers does.

        The template is rendered in a child process, with limits of time and of 1 GiB of memory.

        Args:
            messages: the turns, each with a `role` and a `content`, both texts. Which roles there are is the template's
                matter.
            add_generation_prompt: whether the text ends where the model's next turn begins.
            template: name of the template. None = "default", or "tool_use" where there are `tools` and such a template.
            seconds: most computing time.
            **variables: what a template reads beside, made of JSON's types, such as `enable_thinking=False`, `tools` or
                `documents`.

        Raises:
            ValueError: messages that are none, an unknown template, or one that refuses the messages, is no template,
                or exceeds the limits.
            TypeError: variables that JSON cannot hold.
            ImportError: the package `jinja2` is missing, or too old to be safe.
        """
        check_messages(messages)
        _require_jinja2()
        name = template or (TOOLS if variables.get("tools") is not None and TOOLS in self.templates else DEFAULT)
        if name not in self.templates:
            raise ValueError(
                f"template must be one of those of {self.where}, {', '.join(self.templates)}, got {name!r}"
            )
        given = {"messages": [*map(dict, messages)], "add_generation_prompt": bool(add_generation_prompt)}
        known = {"tools": None, "documents": None, **self.tokens, **variables, **given}
        message = f"the chat template of {self.where} must render these messages, got"
        try:
            content = json.dumps({"template": self.templates[name], "variables": known})
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(f"variables of a template must be made of JSON's types, got {error}") from None
        try:
            outcome = outcome_of(PROGRAM, content, seconds)
        except OSError as error:
            raise ValueError(f"{message} no child process: {error}") from None
        if outcome.failure:
            raise ValueError(f"{message} {outcome.failure}")
        return outcome.answer


def check_messages(messages: Any) -> None:
    """Raise ValueError for messages that are no conversation."""
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise ValueError(f"messages must be a list of at least one message, got {_shown(messages)}")
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or {*message} != {"role", "content"}:
            raise ValueError(
                f"messages[{number}] must have a role and a content and nothing else, got {_shown(message)}"
            )
        for key, text in message.items():
            if not isinstance(text, str) or re.search("[\ud800-\udfff]", text):
                raise ValueError(f"messages[{number}] must have a text as its {key}, got {_shown(text)}")


def has_default(chat: ChatTemplate | None) -> bool:
    """Return whether a model has the chat template that conversations are for, if they name none."""
    return chat is not None and DEFAULT in chat.templates


def chat_template(where: Path, settings: Mapping[str, Any]) -> ChatTemplate | None:
    """Return the chat template of a model; None = it has none.

    Args:
        where: the folder of the model, or its GGUF file.
        settings: the settings of the folder or file.

    Raises:
        ValueError: a template that is no text or too large, or a file that cannot be read.
    """
    files = {path.stem: path for path in sorted(where.glob("additional_chat_templates/*.jinja"))}
    main = where / "chat_template.jinja"
    files |= {DEFAULT: main} if main.exists() else {}
    # Those in files of their own count more than those of tokenizer_config.json, as in transformers.
    texts = {name: _text(path) for name, path in files.items()} or _stored(where, settings.get("chat_template"))
    for name, text in texts.items():
        if not isinstance(text, str) or len(text) > LARGEST:
            size = f"{len(text):,} characters" if isinstance(text, str) else f"a {type(text).__name__}"
            raise ValueError(
                f"{where}: the chat template {name!r} must be a text of at most {LARGEST:,} characters, got {size}"
            )
    return ChatTemplate(str(where), texts, _special_tokens(settings)) if texts else None


def _text(path: Path) -> str:
    """Return the text of a template's file."""
    if not path.is_file() or path.stat().st_size > 4 * LARGEST:  # bytes of a character, at most
        raise ValueError(f"{path} must be a file of at most {LARGEST:,} characters, got something else or more")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} must be a text file that can be read, got {error}") from None


def _stored(where: Path, stored: Any) -> dict[str, Any]:
    """Return the templates that tokenizer_config.json holds, by name: one, a list of named ones, or an object."""
    if stored is None or isinstance(stored, dict):
        return stored or {}
    if not isinstance(stored, list):
        return {DEFAULT: stored}
    if not all(isinstance(entry, dict) and {"name", "template"} <= {*entry} for entry in stored):
        raise ValueError(f"{where}: chat_template must hold templates with a name, got {_shown(stored)}")
    return {str(entry["name"]): entry["template"] for entry in stored}


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the special tokens of a model by name, such as `bos_token`."""
    texts = {key: value.get("content") if isinstance(value, dict) else value for key, value in settings.items()}
    return {key: text for key, text in texts.items() if key.endswith("_token") and isinstance(text, str)}


def _shown(value: Any) -> str:
    """Return a value in at most 80 characters."""
    return ascii(value)[:80]


def _require_jinja2() -> None:
    """Raise ImportError if jinja2 is missing or too old."""
    needs = f"a chat template needs jinja2 {'.'.join(map(str, OLDEST))} or later"
    try:
        version = metadata.version("jinja2")
    except metadata.PackageNotFoundError:
        raise ImportError(f"{needs}: pip install jinja2") from None
    if tuple(int(number) for number in re.findall(r"\d+", version)[:3]) < OLDEST:
        raise ImportError(f"{needs}, got {version}: pip install -U jinja2")
