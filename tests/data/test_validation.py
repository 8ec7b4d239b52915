"""Training data held out to choose settings by: not trained on, the same for every run, at any size."""

import numpy as np
import pytest

from train.data.images import Dataset, Images, load
from train.data.images.source import with_validation
from train.data.text.loading import load_text
from train.data.text.source import Corpus
from train.data.text.source import with_validation as with_validation_text
from train.data.text.tokenizers import tokenizer
from train.seq2seq.tasks import evaluation_batches


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fashion", "glyphs"])
def test_images_are_held_out_at_every_size_and_not_trained_on(name):
    unsplit, split = load(name, size=8), load(name, size=8, validation=0.1)
    held = split.test(8)
    assert len(held) == round(0.1 * len(unsplit.train))
    assert len(split.train) + len(held) == len(unsplit.train)
    pixels = lambda source: sorted(image.tobytes() for image, _ in source)
    assert sorted(pixels(split.train) + pixels(held)) == pixels(unsplit.train)
    assert pixels(load(name, size=8, validation=0.1).test(8)) == pixels(held)
    np.testing.assert_array_equal(split.test(12).labels, held.labels)
    assert split.test(12)[0][0].shape == (12, 12, 1)
    assert split.identity != unsplit.identity
    assert f"{len(held):,} training images" in split.note


@pytest.mark.slow
def test_the_validation_images_are_as_sharp_as_the_test_images():
    """They come from the stored images, not from those of the training size."""
    stored = Images(load("fashion").train.images[:50], load("fashion").train.labels[:50])
    dataset = load("fashion", size=8)
    dataset = with_validation(
        Dataset(**{**vars(dataset), "train": stored.at_size(8).in_memory(), "train_at": stored.at_size}), fraction=0.2
    )
    for image, _ in dataset.test(28):
        assert any(np.array_equal(image, item) for item in stored.images)


@pytest.mark.slow
def test_images_in_files_are_refused(tmp_path):
    dataset = load("fashion", size=8)
    in_files = Dataset(**{**vars(dataset), "train_at": None})
    with pytest.raises(ValueError, match=r"validation must be 0 where the images are read from files, got 0\.1"):
        with_validation(in_files, 0.1)


@pytest.mark.parametrize("fraction", [0.1, 0.5, 1e-9, 0.999999])
def test_text_is_held_out_at_its_end(fraction):
    documents = tuple(np.arange(start, start + length, dtype=np.int32) for start, length in ((0, 7), (7, 2), (9, 11)))
    corpus = Corpus(documents, (np.arange(3),), ("test",), tokenizer("bytes", ()), "note", "name")
    split = with_validation_text(corpus, fraction)
    tokens = np.concatenate([*split.train, *split.held_out])
    np.testing.assert_array_equal(tokens, np.arange(20))
    assert sum(map(len, split.held_out)) == min(max(1, round(fraction * 20)), 19)
    assert len(split.names) == len(split.held_out)


def test_embedded_text_has_no_test_document_in_the_validation():
    unsplit, split = load_text("shakespeare"), load_text("shakespeare", 0.1)
    assert sum(map(len, split.train)) + sum(map(len, split.held_out)) == sum(map(len, unsplit.train))
    assert split.identity != unsplit.identity


def test_tasks_are_validated_on_other_examples():
    test, validation = (next(evaluation_batches("reverse", 9, 20, 20, validation=which)) for which in (False, True))
    assert not np.array_equal(test["source"], validation["source"])
