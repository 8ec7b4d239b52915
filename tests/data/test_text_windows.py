"""Windows of tokens: packing, segments, coverage, exact resumption, evaluation inside documents."""

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from train.data.text.loading import (
    Corpus,
    contiguous,
    evaluation_windows,
    load_text,
    packed_batches,
    training_windows,
)
from train.data.text.tokenizers import Bytes


def of(train: list[np.ndarray], held_out: list[np.ndarray] | None = None) -> Corpus:
    """Return a corpus of these documents."""
    held = tuple(train if held_out is None else held_out)
    return Corpus(tuple(train), held, tuple(map(str, range(len(held)))), Bytes(), "", "")


def numbered(*lengths: int) -> Corpus:
    """Return a corpus in which no token occurs twice: document d is 1000 d, 1000 d + 1, ..."""
    return of([np.arange(1000 * place, 1000 * place + size, dtype=np.int32) for place, size in enumerate(lengths)])


@pytest.mark.parametrize(("lengths", "length", "batch"), [((40, 7, 30), 5, 4), ((9,), 8, 3), ((3, 3, 3, 3), 10, 2)])
def test_windows_show_the_documents_and_where_they_end(lengths: tuple[int, ...], length: int, batch: int) -> None:
    corpus, total = numbered(*lengths), sum(lengths)
    epoch = (total - 1) // length
    batches = packed_batches(corpus, length, batch, seed=3)
    rows = []
    while len(rows) < 6 * epoch:
        drawn = next(batches)
        assert {key: (value.shape, value.dtype) for key, value in drawn.items()} == {
            key: ((batch, length + 1), np.dtype(np.int32)) for key in ("ids", "segments")
        }
        rows += list(zip(drawn["ids"], drawn["segments"], strict=True))
    orders = set()
    for first in range(0, 6 * epoch, epoch):
        follows: dict[int, int] = {}
        for ids, segments in rows[first : first + epoch]:
            assert segments[0] == 1
            for at in range(length):
                token, after = int(ids[at]), int(ids[at + 1])
                assert token not in follows, "a token is predicted from once an epoch"
                follows[token] = after
                ends = token % 1000 == lengths[token // 1000] - 1
                assert segments[at + 1] == segments[at] + ends, "a segment ends where its document ends"
                assert after % 1000 == 0 if ends else after == token + 1
        assert len(follows) == epoch * length > total - 1 - length
        orders.add(tuple(follows))
    assert len(orders) > 1, "each epoch starts elsewhere"


def test_the_seed_alone_decides_and_resumption_is_exact() -> None:
    corpus = numbered(50, 60, 70)

    def take(batches: Iterator[dict[str, np.ndarray]], count: int) -> list[bytes]:
        return [drawn["ids"].tobytes() + drawn["segments"].tobytes() for drawn in itertools.islice(batches, count)]

    batches = take(packed_batches(corpus, 6, 5, seed=1), 20)
    assert take(packed_batches(corpus, 6, 5, seed=1), 20) == batches
    assert len(set(batches)) == 20
    assert take(packed_batches(corpus, 6, 5, seed=2), 20) != batches
    assert take(packed_batches(corpus, 6, 5, seed=1, step=8), 12) == batches[8:]


def test_rows_alone_are_the_rows_of_the_whole() -> None:
    corpus = numbered(50, 60, 70)
    batches = packed_batches(corpus, 6, 5, seed=1)
    parts = [packed_batches(corpus, 6, 5, seed=1, rows=rows) for rows in (range(2), range(2, 5))]
    for _ in range(4):
        drawn, cut = next(batches), [next(part) for part in parts]
        for name, array in drawn.items():
            np.testing.assert_array_equal(np.concatenate([part[name] for part in cut]), array)


def test_segments_are_left_out_only_where_no_row_of_a_batch_holds_a_border() -> None:
    corpus = numbered(90, 110)
    whole = packed_batches(corpus, 6, 5, seed=1)
    bare = packed_batches(corpus, 6, 5, seed=1, always_segments=False)
    parts = [packed_batches(corpus, 6, 5, seed=1, rows=rows, always_segments=False) for rows in (range(2), range(2, 5))]
    kinds = set()
    for _ in range(60):
        expected, drawn, cut = next(whole), next(bare), [next(part) for part in parts]
        np.testing.assert_array_equal(drawn["ids"], expected["ids"])
        assert ("segments" in drawn) == bool((expected["segments"] > 1).any())
        assert all(part.keys() == drawn.keys() for part in cut), "processes decide alike"
        if "segments" in drawn:
            np.testing.assert_array_equal(drawn["segments"], expected["segments"])
        kinds.add("segments" in drawn)
    assert kinds == {True, False}
    short = packed_batches(numbered(*[20] * 10), 6, 5, seed=1, always_segments=False)
    assert all("segments" in next(short) for _ in range(60)), "where most batches hold a border, all have segments"


def test_the_order_of_documents_follows_the_seed() -> None:
    corpus = numbered(*[4] * 12)

    def successors(seed: int) -> dict[int, int]:
        batches = packed_batches(corpus, 1, 47, seed)
        pairs = np.concatenate([next(batches)["ids"] for _ in range(3)])
        return {int(token) // 1000: int(after) // 1000 for token, after in pairs if token // 1000 != after // 1000}

    assert sorted(successors(0)) == list(range(12))
    assert successors(0) != successors(1)
    assert successors(0) == successors(0)


def test_windows_are_of_the_text_that_is_trained_on() -> None:
    corpus = load_text("shakespeare")
    drawn = next(packed_batches(corpus, 128, 4, 0))
    train = b"\0".join(document.astype(np.uint8).tobytes() for document in corpus.train)
    for ids, segments in zip(drawn["ids"], drawn["segments"], strict=True):
        assert ids[segments == 1].astype(np.uint8).tobytes() in train


def test_evaluation_windows_are_inside_documents_and_spread() -> None:
    corpus = of([np.arange(4)], [np.arange(1000 * at, 1000 * at + size) for at, size in enumerate((100, 9, 250, 31))])
    ids, document = evaluation_windows(corpus, 9, 1000)
    np.testing.assert_array_equal(document, np.repeat([0, 2, 3], [10, 25, 3]))
    assert (ids.shape, ids.dtype, document.dtype) == ((38, 10), np.int32, np.int32)
    np.testing.assert_array_equal(ids // 1000, np.broadcast_to(document[:, None], ids.shape))
    np.testing.assert_array_equal(np.diff(ids), 1)
    assert len(np.unique(ids)) == ids.size, "none overlaps another"
    sample, spread = evaluation_windows(corpus, 9, 19)
    np.testing.assert_array_equal(sample, ids[::2])
    np.testing.assert_array_equal(np.bincount(spread), [5, 0, 13, 1])
    np.testing.assert_array_equal(training_windows(of([np.arange(25)], []), 9, 5), [np.arange(10), np.arange(10, 20)])


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda c: packed_batches(c, 30, 2, 0), "the training stream must hold at least .* = 31 tokens, got 30"),
        (lambda c: evaluation_windows(c, 20, 2), "a held-out document .* = 21 tokens, got the longest of 20"),
        (lambda c: training_windows(c, 25, 2), "a training document .* = 26 tokens, got the longest of 20"),
        (lambda c: packed_batches(c, 0, 2, 0), "length must be at least 1, got 0"),
        (lambda c: packed_batches(c, 4, 0, 0), "batch must be at least 1, got 0"),
        (lambda c: evaluation_windows(c, 0, 2), "length must be at least 1, got 0"),
        (lambda c: training_windows(c, 4, -1), "count must be at least 1, got -1"),
    ],
)  # fmt: skip
def test_windows_that_cannot_be_cut_are_refused(use: Callable[[Corpus], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        use(numbered(20, 10))
    packed_batches(numbered(20, 10), 29, 2, 0)
    evaluation_windows(numbered(20, 10), 19, 2)


def test_contiguous_windows_read_across_documents() -> None:
    texts = [np.frombuffer(text, np.uint8).astype(np.uint16) for text in (b"abc", b"de", b"f")]
    corpus = contiguous(of(texts, texts[:2]))
    written = lambda rows: [bytes(row.astype(np.uint8)) for row in rows]
    assert (written(corpus.train), written(corpus.held_out)) == ([b"abc\n\nde\n\nf"], [b"abc\n\nde"])
    assert (corpus.names, corpus.identity) == (("all held-out documents",), "-contiguous")
    windows, document = evaluation_windows(corpus, 2, 9)
    assert (written(windows), document.tolist()) == ([b"abc", b"\n\nd"], [0, 0])
    assert written(training_windows(corpus, 4, 1)) == [b"abc\n\n"]
    drawn = next(packed_batches(corpus, 9, 4, seed=0))
    ring = b"abc\n\nde\n\nf" * 2
    for ids, segments in zip(drawn["ids"], drawn["segments"], strict=True):
        assert bytes(ids.astype(np.uint8)) in ring
        assert np.diff(segments).sum() <= 1, "segments change where the ring closes alone"
