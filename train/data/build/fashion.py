"""Build fashion.xz, the embedded part of Fashion-MNIST, from the full data set.

    python -m train.data.build.fashion FOLDER

FOLDER holds the four published files, as Debian's package dataset-fashion-mnist installs them; unpacked with
`dpkg -x`, it is `usr/share/datasets/fashion-mnist`. The result is 1,000 training images of each class, those whose
index has the smallest sha256 (a choice that does not depend on a library's random numbers), in their original order,
and the full test set.
"""

import argparse
import hashlib
import lzma
from pathlib import Path

import numpy as np
from jaxtyping import Int, UInt8

from train.data.images.fashion import EMBEDDED, PER_CLASS, read_folder


def choose(labels: UInt8[np.ndarray, " N"]) -> Int[np.ndarray, " M"]:
    """Return the indices of the embedded training images, PER_CLASS of every class, ascending."""

    def rank(index: np.intp) -> bytes:
        return hashlib.sha256(f"fashion-mnist {index}".encode()).digest()

    indices = [sorted(np.flatnonzero(labels == label), key=rank)[:PER_CLASS] for label in range(10)]
    return np.sort(np.concatenate(indices))


def payload(folder: Path) -> bytes:
    """Return the content of fashion.xz: training images and labels, test images and labels, one byte per value."""
    train, test = read_folder(folder)
    indices = choose(train.labels)
    parts = train.images[indices], train.labels[indices], test.images, test.labels
    return b"".join(part.tobytes() for part in parts)


def main() -> None:
    """Write fashion.xz into train/data and print the digest of its content."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    content = payload(parser.parse_args().folder)
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "lp": 0, "pb": 0}]
    EMBEDDED.write_bytes(lzma.compress(content, check=lzma.CHECK_CRC64, filters=filters))
    print(f"{EMBEDDED}: {EMBEDDED.stat().st_size} bytes, sha256 of the content {hashlib.sha256(content).hexdigest()}")


if __name__ == "__main__":
    main()
