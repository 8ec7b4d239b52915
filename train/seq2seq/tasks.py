"""Small synthetic sequence-to-sequence tasks that depend mainly on positions.

    copy       t a b c           -> a b c .
    reverse    t a b c           -> c b a .
    sort       t c a b           -> a b c .
    addition   t 9 5 + 7         -> 1 0 2 .          most significant digit first, as numbers are written
    passkey    t a # 4 1 b b ?   -> 4 1 .            the two digits after the mark #, at any position

t is the token of the task, "." ends the answer, letters and digits are uniformly random. The length of an example is
that of the source without t. All tasks use one vocabulary of 36 tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import grain
import numpy as np
from jaxtyping import Int32

Batch = dict[str, np.ndarray]

SYMBOLS = (
    "_",
    ".",
    "copy",
    "reverse",
    "sort",
    "addition",
    "passkey",
    "+",
    "#",
    "?",
    *"0123456789",
    *"abcdefghijklmnop",
)
"""The vocabulary: a token is an index into it."""

VOCAB = len(SYMBOLS)
PAD, STOP, PLUS, MARK, QUESTION, DIGIT, LETTER = map(SYMBOLS.index, "_.+#?0a")
DIGITS, LETTERS = 10, VOCAB - LETTER

KEY = 2
"""Number of digits of a passkey."""

TRAIN, TEST, VALIDATION = 1, 2, 3
"""Training and test examples come from independent random streams."""

Example = tuple[np.ndarray, np.ndarray]
"""The source without its task token, and the answer without its end token."""


class TaskKind(NamedTuple):
    """A task.

    Attributes:
        least: the shortest length.
        draw: `(rng, length) -> example`.
    """

    least: int
    draw: Callable[[np.random.Generator, int], Example]


def copy_letters(rng: np.random.Generator, length: int) -> Example:
    """Return letters, and the same letters."""
    letters = LETTER + rng.integers(LETTERS, size=length)
    return letters, letters


def reverse_letters(rng: np.random.Generator, length: int) -> Example:
    """Return letters, and the same letters in reverse order."""
    letters = LETTER + rng.integers(LETTERS, size=length)
    return letters, letters[::-1]


def sort_letters(rng: np.random.Generator, length: int) -> Example:
    """Return letters, and the same letters in alphabetical order."""
    letters = LETTER + rng.integers(LETTERS, size=length)
    return letters, np.sort(letters)


def add_numbers(rng: np.random.Generator, length: int) -> Example:
    """Return two numbers, and their sum; the first has half of the length - 1 digits, rounded up; zeros may lead."""
    first = rng.integers(DIGITS, size=length // 2)
    second = rng.integers(DIGITS, size=length - 1 - len(first))
    total = sum(int("".join(map(str, digits))) for digits in (first, second))
    digits = np.asarray([int(digit) for digit in str(total)])
    return np.concatenate([DIGIT + first, [PLUS], DIGIT + second]), DIGIT + digits


def hide_key(rng: np.random.Generator, length: int) -> Example:
    """Return letters with a mark and a key at a random position and a question token at the end, and the key."""
    filler = LETTER + rng.integers(LETTERS, size=length - KEY - 2)
    key = DIGIT + rng.integers(DIGITS, size=KEY)
    position = rng.integers(len(filler) + 1)
    return np.concatenate([filler[:position], [MARK], key, filler[position:], [QUESTION]]), key


TASKS: dict[str, TaskKind] = {
    "copy": TaskKind(1, copy_letters),
    "reverse": TaskKind(1, reverse_letters),
    "sort": TaskKind(1, sort_letters),
    "addition": TaskKind(3, add_numbers),
    "passkey": TaskKind(KEY + 2, hide_key),
}


def read_tasks(spec: str) -> tuple[str, ...]:
    """Return the names in a list such as "copy,reverse".

    Raises:
        ValueError: an unknown name, or one given twice.
    """
    names = tuple(name.strip() for name in spec.split(","))
    for name in names:
        if name not in TASKS:
            raise ValueError(f"a task must be one of {', '.join(TASKS)}, got {name!r}")
    if len(set(names)) < len(names):
        raise ValueError(f"every task must be named once, got {spec!r}")
    return names


def require_length(name: str, length: int) -> None:
    """Raise ValueError for a length that a task does not have."""
    if length < TASKS[name].least:
        raise ValueError(f"length must be at least {TASKS[name].least} for {name}, got {length}")


def example(name: str, length: int, rng: np.random.Generator) -> Example:
    """Draw an example of a task: the source with its task token, and the answer with its end token.

    Raises:
        ValueError: the task does not have this length.
    """
    require_length(name, length)
    source, answer = TASKS[name].draw(rng, length)
    return np.concatenate([[SYMBOLS.index(name)], source]), np.concatenate([answer, [STOP]])


def training_example(names: tuple[str, ...], length: int, seed: int, index: int) -> Example:
    """Return example `index` of a mixture: a uniformly random task, and a uniformly random length up to `length`.

    It depends only on (seed, index).
    """
    rng = np.random.default_rng((TRAIN, seed, index, 1))  # a trailing zero would not change the seed
    name = names[rng.integers(len(names))]
    return example(name, int(rng.integers(TASKS[name].least, length + 1)), rng)


def train_batches(
    names: tuple[str, ...], length: int, batch: int, seed: int, step: int = 0, rows: range | None = None
) -> grain.DatasetIterator[Batch]:
    """Return an endless iterator of training batches, in which no example is repeated.

    Batches depend only on (seed, step). They are made by threads; no process is started.

    Args:
        names: names of the tasks, which are equally frequent.
        length: source length of the longest examples, tokens.
        batch: examples per batch, B.
        seed: random seed of the examples.
        step: step of the first batch.
        rows: the rows of each batch to make; None = all.

    Returns:
        Batches from `make_batch`, always padded to length + 1.

    Raises:
        ValueError: a batch below 1, or a length that a task does not have.
    """
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    for name in names:
        require_length(name, length)
    rows = range(batch) if rows is None else rows

    def make(step: int) -> Batch:
        indices = range(step * batch, (step + 1) * batch)[rows.start : rows.stop]
        return make_batch([training_example(names, length, seed, index) for index in indices], length + 1)

    batches = grain.MapDataset.range(step, 2**31).map(make)
    return iter(batches.to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=4)))


def evaluation_batches(name: str, length: int, count: int, batch: int, *, validation: bool = False) -> Iterator[Batch]:
    """Yield `count` test examples of one task, all of one length, in batches of at most `batch`.

    They are the same for every run. Of the shortest lengths there are few different examples, also seen in training.

    Args:
        name: name of the task.
        length: length of the source, tokens.
        count: number of examples.
        batch: examples per batch.
        validation: whether to yield other examples, to choose settings by.

    Raises:
        ValueError: a length that the task does not have.
    """
    require_length(name, length)
    task = 1 + list(TASKS).index(name)
    kind = VALIDATION if validation else TEST

    def draw(index: int) -> Example:
        return example(name, length, np.random.default_rng((kind, task, length, index, 1)))

    for begin in range(0, count, batch):
        yield make_batch([draw(index) for index in range(begin, min(begin + batch, count))], length + 1)


def make_batch(examples: list[Example], length: int) -> Batch:
    """Return examples as arrays, padded on the right.

    Returns:
        `{"source", "source_segments", "target", "target_segments"}`, each `(B, length)` int32; segments are 1, and 0 in
        padding.

    Raises:
        ValueError: an example is longer.
    """
    longest = max(len(side) for pair in examples for side in pair)
    if longest > length:
        raise ValueError(f"length must be at least that of the longest example, {longest}, got {length}")
    source, target = (_pad(side, length) for side in zip(*examples, strict=True))
    sides = {"source": source, "target": target}
    return sides | {f"{name}_segments": (ids != PAD).astype(np.int32) for name, ids in sides.items()}


def _pad(rows: Sequence[np.ndarray], length: int) -> Int32[np.ndarray, "B T"]:
    return np.stack([np.pad(row, (0, length - len(row)), constant_values=PAD) for row in rows]).astype(np.int32)
