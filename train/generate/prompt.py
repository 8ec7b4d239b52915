"""What the model is asked: a text to go on with, or a chat."""

import json
import sys
from pathlib import Path
from typing import Any

from pejax import interop
from pejax.interop.chat import check_messages, has_default
from train.generate.models import Reader
from train.generate.options import GenerateOptions

STDIN = "-"
NOTE = "asked as a chat, by the model's chat template; --chat=off goes on with the text as it is"


def read_prompt(prompt: str | None, options: GenerateOptions) -> str | None:
    """Return the text of the command line, of a file or of the standard input; None = there are messages alone.

    Raises:
        ValueError: no text and no messages, two texts, or bytes that are no text.
        OSError: a file that cannot be read.
    """
    if prompt is not None and options.prompt_file:
        raise ValueError(f"PROMPT or prompt_file must be given, got both, {prompt[:80]!r} and {options.prompt_file!r}")
    if prompt is None and not options.prompt_file:
        if not options.messages:
            raise ValueError("PROMPT must be given, or --prompt_file or --messages in its place, got none")
        return None
    if prompt is None:
        prompt = _read(options.prompt_file).removesuffix("\n")
    if any("\ud800" <= letter <= "\udfff" for letter in prompt):
        encoding = sys.getfilesystemencoding()
        raise ValueError(f"the prompt must be text in this locale's encoding, {encoding}, got {prompt!r}")
    return prompt


def read_messages(prompt: str | None, options: GenerateOptions) -> list[Any]:
    """Return the turns of a chat: the system's, those of a file, and the prompt as the user's.

    Raises:
        ValueError: a file that holds no list of messages in JSON, a second system message, or turns without a chat.
        OSError: a file that cannot be read.
    """
    read_variables(options)
    if options.chat == "off" and _chat_options(options):
        raise ValueError(f"{_chat_options(options)[0]} must be given with a chat, got --chat=off")
    earlier: Any = []
    if options.messages:
        try:
            earlier = json.loads(_read(options.messages))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"messages must be a file of JSON, got {options.messages!r}: {error}") from None
    if not isinstance(earlier, list):
        raise ValueError(f"messages must be a file with a JSON list, got {options.messages!r}: {str(earlier)[:80]!r}")
    if options.system and any(isinstance(turn, dict) and turn.get("role") == "system" for turn in earlier):
        raise ValueError(f"system must not be given where the messages have one, got {options.system[:80]!r}")
    system = [{"role": "system", "content": options.system}] if options.system else []
    messages = [*system, *earlier, *([] if prompt is None else [{"role": "user", "content": prompt}])]
    check_messages(messages)
    return messages


def ask(reader: Reader, prompt: str | None, messages: list[Any], options: GenerateOptions) -> tuple[list[int], str]:
    """Return the ids that the model goes on with, and a note on what they are; "" = they are the text as it is.

    Raises:
        ValueError: a chat that the model has no template for, or messages that its template refuses.
    """
    if options.chat != "off" and isinstance(reader, interop.Tokenizer) and has_default(reader.chat):
        return reader.encode_chat(messages, **read_variables(options)), NOTE
    needs = ["chat=on"] * (options.chat == "on") + _chat_options(options)
    if needs:
        raise ValueError(f"{needs[0]} needs a model with a chat template, got one without")
    return reader.encode(prompt or ""), ""


def read_variables(options: GenerateOptions) -> dict[str, Any]:
    """Return the variables that the chat template reads beside the messages.

    Raises:
        ValueError: no JSON object, or one with messages.
    """
    try:
        variables = json.loads(options.chat_variables or "{}")
    except (ValueError, RecursionError):
        variables = None
    if not isinstance(variables, dict):
        raise ValueError(f"chat_variables must be a JSON object, got {options.chat_variables[:80]!r}")
    if reserved := [name for name in ("messages", "self") if name in variables]:
        raise ValueError(f"chat_variables must not have {reserved[0]}, got {options.chat_variables[:80]!r}")
    return variables


def _chat_options(options: GenerateOptions) -> list[str]:
    """Return the names of the given options that are for a chat alone."""
    return [name for name in ("system", "messages", "chat_variables") if getattr(options, name)]


def _read(path: str) -> str:
    """Return the text of a file, or of the standard input."""
    content = sys.stdin.buffer.read() if path == STDIN else Path(path).read_bytes()
    try:
        return content.decode("utf-8-sig")
    except ValueError as error:
        raise ValueError(f"{'the standard input' if path == STDIN else path} must be UTF-8, got {error}") from None
