"""Text that TensorFlow Datasets has prepared, read without TensorFlow; nothing is downloaded."""

from typing import Any

import numpy as np

from train.data.bad import require_readable
from train.data.images.prepared import TEST_SPLITS
from train.data.text.source import Corpus, Texts, decode_text, hold_out
from train.data.tfds_folder import open_prepared, open_split, read_record


def tfds(
    *, name: str, key: str = "", held_out: float | str = "", on_error: str = "stop", tokenizer: str = "bytes"
) -> Corpus:
    """Return text that TensorFlow Datasets has prepared as array_record, one document per record.

    TinyStories through TFDS: `tfds.builder("huggingface:roneneldan__TinyStories",
    file_format="array_record").download_and_prepare()`, with the package `datasets` installed; then NAME is
    `roneneldan__tinystories`.

    Args:
        name: `NAME` or `NAME/CONFIG` in `$TFDS_DATA_DIR` (by default `~/tensorflow_datasets`), or a folder.
        key: the feature with the text; if empty, the only text feature, or else `text`.
        held_out: the held-out split; if empty, `test`, or else `validation`; or a fraction of the records of `train`,
            chosen by the sha256 of their text.
        on_error: action at records that cannot be read: `stop` refuses the data and names them; `skip` leaves them out.
        tokenizer: `bytes`, `bpe(vocab=N)` or the path of a tokenizer.json.

    Raises:
        ValueError: it is not prepared, it lacks a split or a text, or the tokenizer refuses the text.
    """
    builder = open_prepared(name)
    if held_out == "train":
        raise ValueError("held_out must be another split than the one trained on, got 'train'")
    split = held_out or next((choice for choice in TEST_SPLITS if choice in builder.info.splits), "test")
    for side in ("train",) if isinstance(held_out, float) else ("train", split):
        if side not in builder.info.splits:
            raise ValueError(f"tfds {name} must have the split {side!r}, got {', '.join(builder.info.splits)}")
    feature = _key(builder, key)
    train, skipped = _records(builder, "train", feature, on_error)
    if isinstance(held_out, float):
        train, held = hold_out(train, held_out, f"tfds {name}")
    else:
        held, held_skipped = _records(builder, str(split), feature, on_error)
        skipped += held_skipped
    return Texts(
        train=tuple(train.values()),
        held_out=tuple(held.values()),
        names=tuple(held),
        name=f"tfds-{builder.info.full_name}",
        note=f"{builder.info.full_name}, {len(train) + len(held):,} documents, of which {len(held):,} held out",
        skipped=skipped,
    ).tokenize(tokenizer)


def _key(builder: Any, key: str) -> str:
    """Return the name of the text feature of a data set."""
    features = sorted(builder.info.features.items())
    texts = [name for name, feature in features if feature.shape == () and np.dtype(feature.np_dtype).kind == "O"]
    if key in texts:
        return key
    if key or not texts:
        need = f"text under {key!r}" if key else "a text"
        raise ValueError(
            f"tfds data must have {need}, got {builder.info.name} with {', '.join(sorted(builder.info.features))}"
        )
    if len(texts) > 1 and "text" not in texts:
        raise ValueError(f"tfds data with several texts needs key=..., got {builder.info.name} with {', '.join(texts)}")
    return texts[0] if len(texts) == 1 else "text"


def _records(builder: Any, split: str, key: str, on_error: str) -> tuple[dict[str, str], int]:
    """Return the texts of a split by name, "train 0", and how many are left out."""
    records, name = open_split(builder, split), f"{builder.info.full_name} {split}"
    texts, bad = {}, []
    for index in range(len(records)):
        try:
            texts[f"{split} {index}"] = decode_text(read_record(records, index, name)[key], f"{name} {index}")
        except ValueError as broken:
            bad.append(str(broken))
    require_readable(bad, len(records), f"records of {name}", on_error)
    return texts, len(bad)
