"""Predictions from the scores of a classifier: labels of texts, of tokens, and answers to questions."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

LONGEST_ANSWER = 15
"""Most tokens of an answer."""


class Prediction(NamedTuple):
    """A label and its score.

    Attributes:
        label: the label; of a question, the text of the answer.
        score: its score; of a question, the probability of the answer's begin times that of its end.
        start: of a token or an answer, number of its first character in the text. None = a whole text or an image.
        end: number of the character after it. None as `start`.
    """

    label: str
    score: float
    start: int | None = None
    end: int | None = None


def best_label(labels: Sequence[str], scores: Float[np.ndarray, " labels"]) -> Prediction:
    """Return the label with the highest score."""
    best = int(np.argmax(scores))
    return Prediction(labels[best], float(scores[best]))


def token_labels(labels: Sequence[str], scores: Float[np.ndarray, "T labels"], encoding: Any) -> list[Prediction]:
    """Return the best label of each token, without those that the tokenizer put around the text."""
    return [
        best_label(labels, row)._replace(start=start, end=end)
        for row, (start, end), special in zip(scores, encoding.offsets, encoding.special_tokens_mask, strict=True)
        if not special
    ]


def best_answer(context: str, logits: Float[np.ndarray, "T 2"], encoding: Any) -> Prediction:
    """Return the most probable answer within a context, of at most `LONGEST_ANSWER` tokens.

    Args:
        context: the second text of the pair.
        logits: those of the begin and of the end of the answer, by token.
        encoding: the pair, as the package `tokenizers` gives it.

    Raises:
        ValueError: no token of the context is left of the pair.
    """
    inside: Any = np.asarray([number == 1 for number in encoding.sequence_ids])
    if not np.any(inside):
        raise ValueError("max_length must leave a token of the context beside the question, got none")
    shifted = np.where(inside[:, None], logits.astype(np.float64) - logits[inside].max(axis=0), -np.inf)
    begins, ends = (np.exp(shifted) / np.sum(np.exp(shifted), axis=0)).T
    pairs = begins[:, None] * ends
    joint = np.triu(pairs) - np.triu(pairs, LONGEST_ANSWER)
    first, last = np.unravel_index(np.argmax(joint), joint.shape)
    start, end = encoding.offsets[first][0], encoding.offsets[last][1]
    return Prediction(context[start:end], float(joint[first, last]), start, end)
