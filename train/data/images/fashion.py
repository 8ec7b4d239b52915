"""Fashion-MNIST: photographs of clothing, 28 by 28 gray pixels, 10 classes. 20,000 of the 70,000 are embedded.

Reference:
    Xiao et al. 2017, "Fashion-MNIST" (arXiv 1708.07747). Copyright 2017 Zalando SE, MIT license: FASHION_LICENSE.
"""

import gzip
import hashlib
from pathlib import Path

import numpy as np

from train.data.images.prepared import Records
from train.data.images.source import Dataset, Images, unpack
from train.data.tfds_folder import find, open_prepared

EMBEDDED = Path(__file__).parents[1] / "fashion.xz"
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
PER_CLASS = 1000
CONTENT = "0ea38a47a7f9077a884b4926e381ee2a926254b0a360e5994c139a1811325bb5"
FILES = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
"""sha256 of the published files, unpacked."""
CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip


def read_folder(folder: Path) -> tuple[Images, Images]:
    """Return the full training set and the test set from the four published files.

    Raises:
        ValueError: a file is missing, or differs from the published one.
    """
    content = []
    for name, digest in FILES.items():
        path = folder / f"{name}.gz"
        if not path.is_file():
            raise ValueError(f"a Fashion-MNIST folder holds {name}.gz, got {folder} without it")
        try:
            raw = gzip.decompress(path.read_bytes())
        except (EOFError, gzip.BadGzipFile) as broken:
            raise ValueError(f"{path} must be a gzip file: {broken}") from None
        if hashlib.sha256(raw).hexdigest() != digest:
            raise ValueError(f"{path} must be the published file (sha256 {digest[:16]}... unpacked), got another one")
        content.append(np.frombuffer(raw, np.uint8, offset=16 if "images" in name else 8))
    train_images, train_labels, test_images, test_labels = content
    return _images(train_images, train_labels), _images(test_images, test_labels)


def read_embedded() -> tuple[Images, Images]:
    """Return the embedded 10,000 training images and the full test set.

    Raises:
        ValueError: the embedded file is damaged.
    """
    content = unpack(EMBEDDED, CONTENT)
    parts = np.split(np.frombuffer(content, np.uint8), [10 * PER_CLASS * 785])
    # of each part the pixels of all images, 784 of each, then the labels
    train, test = (_images(*np.split(part, [len(part) // 785 * 784])) for part in parts)
    return train, test


def _images(pixels: np.ndarray, labels: np.ndarray) -> Images:
    return Images(pixels.reshape(-1, 28, 28, 1), labels)


def fashion(size: int, *, folder: str = "", full: bool | None = None) -> Dataset:
    """Return Fashion-MNIST with training images of `size` pixels. The test set is always the same 10,000 images.

    Args:
        size: side in pixels; sizes other than 28 are resized, bicubic.
        folder: place of the full set: the four published files, or a TFDS copy prepared as array_record.
        full: True: all 60,000 training images, from `folder`, else from Debian's package dataset-fashion-mnist, else
            from the folder of TFDS. False: the embedded 10,000. None: all 60,000 if they are found.

    Raises:
        ValueError: the full set is required and not found, or `folder` is given with `full=False`.
    """
    if folder and full is False:
        raise ValueError(f"fashion takes a folder or full=False, got folder={folder!r} with full=False")
    full_set = None if full is False else _full_set(folder)
    if full_set is None and full:
        raise ValueError(f"fashion(full=True) needs folder=..., {DEBIAN} or a prepared TFDS copy, got none of them")
    train, test, origin = full_set or (*read_embedded(), "embedded")
    return Dataset(
        train=train.at_size(size).in_memory(),
        test=test.at_size,
        classes=CLASSES,
        channels=1,
        size=size,
        mean=(0.2860,),
        std=(0.3530,),
        mirror=True,
        note=f"Fashion-MNIST, {len(train):,} training images ({origin}); "
        "28 px resized bicubic: antialiased below 28, upsampled above",
        train_at=train.at_size,
        identity=f"fashion-{len(train)}-{hashlib.sha256(train.labels.tobytes()).hexdigest()[:8]}",
    )


def _full_set(folder: str) -> tuple[Images, Images, str] | None:
    """Return the full training set, the test set and their origin, or None if they are not found."""
    source = Path(folder) if folder else DEBIAN
    if any((source / f"{name}.gz").exists() for name in FILES):
        return *read_folder(source), str(source)
    copy = find(folder or "fashion_mnist")
    if copy is not None:
        builder = open_prepared(str(copy))
        return Records(builder, "train").in_memory(), Records(builder, "test").in_memory(), "TFDS copy"
    if folder:
        raise ValueError(f"a Fashion-MNIST folder holds {', '.join(FILES)} (.gz) or a TFDS copy, got {folder!r}")
    return None
