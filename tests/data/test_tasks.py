"""The small tasks: answers checked by other means, batches that follow (seed, step), errors."""

import itertools

import numpy as np
import pytest

from train.seq2seq.tasks import (
    PAD,
    STOP,
    SYMBOLS,
    TASKS,
    evaluation_batches,
    example,
    make_batch,
    read_tasks,
    train_batches,
    training_example,
)

ALL = tuple(TASKS)


def read(ids) -> list[str]:
    return [SYMBOLS[token] for token in ids]


def drawn(name: str, length: int, count: int = 40) -> list[tuple[list[str], list[str]]]:
    """Return sources without the task token and answers without the end, as text."""
    pairs = [example(name, length, np.random.default_rng(seed)) for seed in range(count)]
    assert all(read(source)[0] == name for source, _ in pairs)
    assert all(answer[-1] == STOP for _, answer in pairs)
    return [(read(source)[1:], read(answer)[:-1]) for source, answer in pairs]


@pytest.mark.parametrize("name", ALL)
def test_the_length_is_that_of_the_source_without_the_task(name):
    for length in (TASKS[name].least, 7, 16):
        assert {len(source) for source, _ in drawn(name, length)} == {length}


@pytest.mark.parametrize(("name", "answer_of"), [("copy", list), ("reverse", lambda s: s[::-1]), ("sort", sorted)])
def test_letters_are_copied_reversed_or_sorted(name, answer_of):
    pairs = drawn(name, 9)
    assert all(answer == answer_of(source) for source, answer in pairs)
    assert {letter for source, _ in pairs for letter in source} == set("abcdefghijklmnop")


@pytest.mark.parametrize("length", [3, 8, 64])
def test_sums_are_written_as_numbers_are(length):
    carried = 0
    for source, answer in drawn("addition", length):
        first, second = "".join(source).split("+")
        assert len(first) - len(second) in (0, 1)
        assert "".join(answer) == str(int(first) + int(second))
        carried += len(answer) > len(first)
    assert carried > 0


@pytest.mark.parametrize("length", [4, 12])
def test_the_passkey_is_where_the_mark_is(length):
    places = set()
    for source, answer in drawn("passkey", length, count=200):
        place = source.index("#")
        places.add(place)
        assert answer == source[place + 1 : place + 3]
        assert source[-1] == "?"
        assert sum(token.isdigit() for token in source) == 2
    assert places == set(range(length - 3))


def test_examples_follow_seed_and_index():
    first = training_example(ALL, 16, seed=3, index=5)
    again, other_seed, next_one = (training_example(ALL, 16, *at) for at in ((3, 5), (4, 5), (3, 6)))
    assert [side.tolist() for side in first] == [side.tolist() for side in again]
    assert first[0].tolist() != other_seed[0].tolist()
    assert first[0].tolist() != next_one[0].tolist()


def test_mixtures_are_even_and_reach_every_length():
    sources = [training_example(("copy", "passkey"), 8, 0, index)[0] for index in range(600)]
    lengths = {name: [len(s) - 1 for s in sources if read(s)[0] == name] for name in ("copy", "passkey")}
    assert 240 < len(lengths["copy"]) < 360
    assert set(lengths["copy"]) == set(range(1, 9))
    assert set(lengths["passkey"]) == set(range(4, 9))


def test_batches_are_the_examples_in_order_and_padded():
    batch = next(train_batches(ALL, 9, 6, seed=2))
    assert {side.shape for side in batch.values()} == {(6, 10)}
    assert {side.dtype for side in batch.values()} == {np.dtype(np.int32)}
    for row in range(6):
        for name, side in zip(("source", "target"), training_example(ALL, 9, 2, row), strict=True):
            np.testing.assert_array_equal(batch[name][row], [*side, *[PAD] * (10 - len(side))])
            np.testing.assert_array_equal(batch[f"{name}_segments"][row], [1] * len(side) + [0] * (10 - len(side)))


def test_batches_begin_at_any_step_and_rows_alone_are_those_of_the_whole():
    expected = list(itertools.islice(train_batches(("copy",), 5, 4, seed=0), 5))
    later = train_batches(("copy",), 5, 4, seed=0, step=3)
    rows = train_batches(("copy",), 5, 4, seed=0, step=3, rows=range(1, 3))
    for batch in expected[3:]:
        result, part = next(later), next(rows)
        for name in batch:
            np.testing.assert_array_equal(result[name], batch[name])
            np.testing.assert_array_equal(part[name], batch[name][1:3])
    assert not np.array_equal(expected[3]["source"], expected[4]["source"])


def test_questions_are_the_same_every_time_and_not_those_trained_on():
    batches = [list(evaluation_batches("copy", 12, 50, 20)) for _ in range(2)]
    assert [len(batch["source"]) for batch in batches[0]] == [20, 20, 10]
    first, again = (np.concatenate([batch["source"] for batch in item]) for item in batches)
    np.testing.assert_array_equal(first, again)
    assert len({tuple(row) for row in first.tolist()}) == 50
    in_other_batches = np.concatenate([batch["source"] for batch in evaluation_batches("copy", 12, 50, 50)])
    np.testing.assert_array_equal(first, in_other_batches)
    trained = itertools.islice(train_batches(("copy",), 12, 64, seed=0), 10)
    seen = {tuple(row) for batch in trained for row in batch["source"].tolist()}
    assert not seen & {tuple(row) for row in first.tolist()}


BAD = {
    "a task must be one of copy, reverse, sort, addition, passkey, got 'revers'": lambda: read_tasks("copy,revers"),
    "every task must be named once, got 'copy,copy'": lambda: read_tasks("copy,copy"),
    "length must be at least 4 for passkey, got 3": lambda: train_batches(("copy", "passkey"), 3, 4, 0),
    "length must be at least 3 for addition, got 2": lambda: next(evaluation_batches("addition", 2, 5, 5)),
    "length must be at least 1 for copy, got 0": lambda: example("copy", 0, np.random.default_rng(0)),
    "batch must be at least 1, got 0": lambda: train_batches(("copy",), 3, 0, 0),
    "length must be at least that of the longest example, 4, got 3": lambda: make_batch(
        [example("copy", 3, np.random.default_rng(0))], 3
    ),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_refused(message):
    with pytest.raises(ValueError, match=message):
        BAD[message]()
