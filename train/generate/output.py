"""What the command writes: the text as it comes, or a line for every token, of one text or of several."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from train.generate.models import Reader


class Token(NamedTuple):
    """A new token.

    Attributes:
        id: its id.
        logprob: the logarithm of its probability in the model; 0 where nobody asks for it.
    """

    id: int
    logprob: float


def texts(
    steps: Iterator[Any], count: int, eos: Sequence[int], report: Callable[[int], None]
) -> Iterator[Iterable[Token]]:
    """Yield the tokens of every text: of one as they come, of several when all are there.

    Args:
        steps: ids of the next token of every text `(B,)`, or pairs of these and of the logarithms of probabilities.
        count: B, number of texts.
        eos: ids that end a text; the rest of its row repeats the one that did.
        report: is called in every step with the number of its tokens, without those after the end of a text.
    """

    def rows() -> Iterator[list[Token]]:
        is_open = np.ones(count, bool)
        for step in steps:
            ids, logprobs = map(np.asarray, step if isinstance(step, tuple) else (step, np.zeros(count)))
            report(int(is_open.sum()))
            is_open &= ~np.isin(ids, eos)
            yield [Token(int(number), float(logprob)) for number, logprob in zip(ids, logprobs, strict=True)]

    yield from [(row[0] for row in rows())] if count == 1 else zip(*rows(), strict=True)


def pieces(tokens: Iterable[Token], tokenizer: Reader, stop: Sequence[str]) -> Iterator[str]:
    """Yield the text of tokens up to its end, in pieces."""
    yield from tokenizer.stream((token.id for token in tokens), stop=(*tokenizer.eos, *stop))
    yield "\n"


def lines(tokens: Iterable[Token], tokenizer: Reader, stop: Sequence[str]) -> Iterator[str]:
    """Yield a line for every token up to the end of the text, the one that ends it included."""
    taken: list[Token] = []

    def ids() -> Iterator[int]:
        for token in tokens:
            taken.append(token)
            yield token.id

    def written() -> Iterator[str]:
        while taken:
            token = taken.pop(0)
            text = json.dumps("".join(tokenizer.stream([token.id])), ensure_ascii=False)
            yield f"{token.logprob:.4f}\t{token.id}\t{text}\n"

    for _ in tokenizer.stream(ids(), stop=(*tokenizer.eos, *stop)):
        yield from written()
    yield from written()
