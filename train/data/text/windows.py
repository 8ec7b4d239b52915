"""Windows of tokens from a corpus: packed and shuffled for training, within single documents for evaluation."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int32, Integer

from train.data.text.source import Corpus

if TYPE_CHECKING:
    import grain

Batch = dict[str, np.ndarray]


def packed_batches(
    corpus: Corpus,
    length: int,
    batch: int,
    seed: int,
    step: int = 0,
    rows: range | None = None,
    *,
    always_segments: bool = True,
) -> "grain.DatasetIterator[Batch]":
    """Return an endless iterator of batches of training windows, cut from the concatenated documents.

    The documents, in random order, form one ring of N tokens. Each epoch has a random start s and the (N - 1) // length
    windows of tokens s + i·length ... s + (i + 1)·length, i = 0, 1, ..., shuffled: all tokens but fewer than `length`
    are predicted once. Batches depend only on (seed, step). They are made by threads; no process is started.

    Args:
        corpus: the documents.
        length: predicted tokens per window, T.
        batch: windows per batch, B.
        seed: random seed of the order of documents, the starts and the order of windows.
        step: step of the first batch.
        rows: the rows of each batch to make; None = all.
        always_segments: whether batches have segments where each of their windows lies in one document. A step is
            compiled again for batches without them, so they are left out only if most batches hold no border.

    Returns:
        Batches `{"ids": (B, T + 1) int32, "segments": (B, T + 1) int32}`; segments number the documents in a window,
        from 1, and are missing where `always_segments` says so. No window is padded.

    Raises:
        ValueError: the training documents have fewer than T + 1 tokens, or `length` or `batch` is below 1.
    """
    import grain  # the other windows are cut without it

    for name, value in (("length", length), ("batch", batch)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    order = np.random.default_rng(seed).permutation(len(corpus.train))
    stream = np.concatenate([corpus.train[index] for index in order])
    if len(stream) < length + 1:
        raise ValueError(f"the training stream must hold at least length + 1 = {length + 1} tokens, got {len(stream)}")
    ends = np.cumsum([len(corpus.train[index]) for index in order])
    windows = (len(stream) - 1) // length
    borders_per_batch = len(ends) * batch * (length + 1) / len(stream)
    keep_segments = always_segments or borders_per_batch > 0.5

    def start(step: int, window: int) -> int:
        epoch = 1 + step // windows  # a trailing zero would not change a numpy seed
        first = int(np.random.default_rng((seed, epoch)).integers(len(stream)))
        return (first + int(window) * length) % len(stream)

    starts = grain.MapDataset.range(windows).seed(seed).shuffle().repeat().map_with_index(start)
    rows_to_make = slice(0, batch) if rows is None else slice(rows.start, rows.stop)
    batches = starts.batch(batch, drop_remainder=True, batch_fn=np.asarray)[step:]
    batches = batches.map(partial(_gather, stream, ends, length, rows_to_make, keep_segments))
    return iter(batches.to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=4)))


def _gather(
    stream: Integer[np.ndarray, " N"],
    ends: Integer[np.ndarray, " docs"],
    length: int,
    rows: slice,
    keep_segments: bool,
    starts: Integer[np.ndarray, " B"],
) -> Batch:
    """Return the windows that start at `starts[rows]` of a ring of documents that end before `ends`.

    Whether segments are left out depends on all rows, as every process must decide alike.
    """
    first, last = (_document(len(stream), ends, starts + offset) for offset in (0, length))
    at = starts[rows, None] + np.arange(length + 1)
    ids = stream[at % len(stream)].astype(np.int32)
    if not keep_segments and np.array_equal(first, last):
        return {"ids": ids}
    document = _document(len(stream), ends, at)
    changes = np.diff(document, axis=1, prepend=document[:, :1]) > 0
    return {"ids": ids, "segments": 1 + np.cumsum(changes, axis=1, dtype=np.int32)}


def _document(count: int, ends: Integer[np.ndarray, " docs"], at: Integer[np.ndarray, "*B"]) -> Any:
    """Return the number of the document of each place in a ring of `count` tokens, counted on in every lap."""
    lap, position = np.divmod(at, count)
    return np.searchsorted(ends, position, side="right") + lap * len(ends)


def evaluation_windows(
    corpus: Corpus, length: int, count: int
) -> tuple[Int32[np.ndarray, "N window"], Int32[np.ndarray, " N"]]:
    """Return windows of held-out text that do not overlap, each within one document.

    Args:
        corpus: the documents.
        length: predicted tokens per window, T.
        count: maximum number of windows; if there are more, evenly spaced ones are taken.

    Returns:
        The windows `(N, T + 1)` and, for each, the index of its document in `corpus.held_out`, ascending.

    Raises:
        ValueError: no held-out document has T + 1 tokens, or `length` or `count` is below 1.
    """
    return _windows(corpus.held_out, length, count, "held-out")


def training_windows(corpus: Corpus, length: int, count: int) -> Int32[np.ndarray, "N window"]:
    """Return windows of training text, `(N, T + 1)`, like `evaluation_windows` for held-out text.

    Raises:
        ValueError: no training document has T + 1 tokens, or `length` or `count` is below 1.
    """
    return _windows(corpus.train, length, count, "training")[0]


def _windows(documents: Sequence[np.ndarray], length: int, count: int, side: str) -> tuple[np.ndarray, np.ndarray]:
    for name, value in (("length", length), ("count", count)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    counts = np.asarray([len(document) // (length + 1) for document in documents])
    ends, total = np.cumsum(counts), int(counts.sum())
    if not total:
        longest = max(map(len, documents))
        raise ValueError(
            f"a {side} document must hold at least length + 1 = {length + 1} tokens, got the longest of {longest}"
        )
    windows = min(count, total)
    numbers = np.arange(windows) * total // windows
    document = np.searchsorted(ends, numbers, side="right")
    begin = (numbers - (ends - counts)[document]) * (length + 1)
    ids = [documents[index][at : at + length + 1] for index, at in zip(document, begin, strict=True)]
    return np.stack(ids).astype(np.int32), document.astype(np.int32)
