"""Tokenizers of the package tokenizers, which may panic, crash or never end on a file of somebody else.

A tokenizer is tried in a child process before this one loads it. The trial costs the start of a Python process, not the
reading of the vocabulary: from that alone come errors, at worst a panic, and those can be caught.
"""

import functools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pejax.interop.child_process import outcome_of

PROGRAM = Path(__file__).with_name("tokenizer_child.py")

TOKENS = ("a", "b", "!", " ", "é", "##a", "▁", "▁a", "Ġ", "Ġa", "a</w>", "@@", "<0x61>", "<0xE2>", "|")
"""Vocabulary in the trial: a token in the way of each family of tokenizers."""


def failure_of(content: Any) -> str:
    """Return the failure of a tokenizer that encodes and decodes: a panic, a crash, a long wait; "" = none.

    Args:
        content: of tokenizer.json.
    """
    try:
        return _failure(json.dumps(_without_vocabulary(content)))
    except RecursionError:
        return "JSON that is nested too deep"


@contextmanager
def library_errors(message: str) -> Iterator[None]:
    """Raise ValueError, a message and the reason in one line, for errors of the library and its panics."""
    try:
        yield
    except BaseException as error:
        is_panic = type(error).__name__ == "PanicException"  # no Exception, and of no module that can be imported
        if isinstance(error, TypeError) or not (isinstance(error, Exception) or is_panic):
            raise
        raise ValueError(f"{message} {' '.join(str(error).split())}") from None


def _without_vocabulary(content: Any) -> Any:
    """Return the content with a few tokens of ours as its vocabulary."""
    model = content.get("model") if isinstance(content, dict) else None
    if not isinstance(model, dict) or (model.get("continuing_subword_prefix") and model.get("merges")):
        return content  # pairs that are shorter than the prefix are a panic
    few: dict[str, Any]
    if isinstance(model.get("vocab"), list):
        few = {"vocab": [[token, -1.0] for token in ("<unk>", *TOKENS)], "unk_id": 0}
    else:
        unknown = model.get("unk_token")
        tokens = dict.fromkeys([*TOKENS, *([unknown] if isinstance(unknown, str) else [])])
        few = {"vocab": {token: number for number, token in enumerate(tokens)}}
    few |= {"merges": []} if "merges" in model else {}
    return {**content, "model": model | few}


@functools.lru_cache(maxsize=16)
def _failure(content: str) -> str:
    """Return the end of the child process that tried a tokenizer, in words; "" = it was well.

    A system that starts no process tries nothing.
    """
    try:
        return outcome_of(PROGRAM, content).failure
    except OSError:
        return ""
