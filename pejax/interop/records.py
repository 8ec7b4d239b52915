"""Records of models with one stack of layers, `Text`, or with two, `TextPair`, handled alike."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from pejax.models import Head, Text, TextPair

Model: TypeAlias = Text | TextPair


def stacks(record: Model) -> dict[str, Text]:
    """Return the stacks by what precedes the names of their parts: "" = the only one, else "encoder." or "decoder."."""
    if isinstance(record, Text):
        return {"": record}
    return {"encoder.": record.encoder, "decoder.": record.decoder}


def last_text(record: Model) -> Text:
    """Return the record of the stack before the head; vocabulary and width of both stacks are the same."""
    return record if isinstance(record, Text) else record.decoder


def each_text(record: Model, change: Callable[[Text], Text]) -> Model:
    """Return the record with every stack changed."""
    if isinstance(record, Text):
        return change(record)
    return replace(record, encoder=change(record.encoder), decoder=change(record.decoder))


def with_head(record: Model, head: Head | None) -> Model:
    """Return the record with another head."""
    if isinstance(record, Text):
        return replace(record, head=head)
    return replace(record, decoder=replace(record.decoder, head=head))
