"""The passkey test: a number is hidden in a long text of no interest, and asked for at the end.

Reference:
    Mohtashami and Jaggi 2023, "Landmark attention: random-access infinite context length for transformers" (arXiv
    2305.16300), section 4.2.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

FILLER = " The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
BEGIN = "There is a pass key in this text. Find it and remember it."
HIDDEN = " The pass key is {key}. Remember it. {key} is the pass key."
QUESTION = " What is the pass key? The pass key is"
SEED = 0


class Question(NamedTuple):
    """A text with a hidden key.

    Attributes:
        ids: `(N + 1,)`, the answer at the end.
        answer: number of tokens of the answer.
        depth: where the key is, from 0, the begin, to 1, the end.
    """

    ids: np.ndarray
    answer: int
    depth: float


def questions(encode: Callable[[str], list[int]], length: int, count: int) -> list[Question]:
    """Return texts of a length with keys at evenly spaced depths.

    Args:
        encode: text to token ids, without tokens around it.
        length: N; the model reads the first N of N + 1 tokens.
        count: number of texts.

    Raises:
        ValueError: a length that is too short for the key and the question.
    """
    rng = np.random.default_rng(SEED)
    filler = encode(FILLER)
    all_questions = []
    for index in range(count):
        key, depth = int(rng.integers(10_000, 100_000)), (index + 0.5) / count
        begin, hidden, question = encode(BEGIN), encode(HIDDEN.format(key=key)), encode(QUESTION)
        answer = encode(f" {key}")
        room = length + 1 - sum(map(len, (begin, hidden, question, answer)))
        if room < 0:
            raise ValueError(f"lengths must be at least {length - room} for the passkey test, got {length}")
        before = round(depth * (room // len(filler))) * len(filler)
        after = room - before
        ending = [*filler * (after // len(filler)), *filler[: after % len(filler)]]
        ids = [*begin, *filler * (before // len(filler)), *hidden, *ending, *question, *answer]
        all_questions.append(Question(np.asarray(ids, np.int32), len(answer), depth))
    return all_questions
