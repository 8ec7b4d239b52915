"""Records of models with one stack of layers, `Text` or `Picture`, or with two, `TextPair`, handled alike."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

from pejax.models import Head, Picture, Text, TextPair

Model: TypeAlias = Text | TextPair | Picture


def stacks(record: Model) -> dict[str, Text | Picture]:
    """Return the stacks by what precedes the names of their parts: "" = the only one, else "encoder." or "decoder."."""
    if isinstance(record, TextPair):
        return {"encoder.": record.encoder, "decoder.": record.decoder}
    return {"": record}


def last_text(record: Model) -> Text:
    """Return the record of the stack before the head; vocabulary and width of both stacks are the same.

    Raises:
        ValueError: a vision transformer.
    """
    if isinstance(record, Picture):
        raise ValueError("the record must be one of text, got a Picture")
    return record if isinstance(record, Text) else record.decoder


def each_stack(record: Model, change: Callable[[Any], Any]) -> Model:
    """Return the record with every stack changed."""
    if isinstance(record, TextPair):
        return replace(record, encoder=change(record.encoder), decoder=change(record.decoder))
    return change(record)


def with_head(record: Text | TextPair, head: Head | None) -> Text | TextPair:
    """Return the record with another head."""
    if isinstance(record, Text):
        return replace(record, head=head)
    return replace(record, decoder=replace(record.decoder, head=head))
