"""Build fashion.xz, the embedded part of Fashion-MNIST, from the whole set.

    python -m train.data.build.fashion FOLDER

FOLDER holds the four published files, as Debian's package dataset-fashion-mnist installs them; unpacked with
`dpkg -x`, it is `usr/share/datasets/fashion-mnist`. The result is 1,000 training images of each class, the ones whose
index has the smallest sha256 (a draw that no library's random numbers can change), in their original order, and the
whole test set.
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
    rank = lambda index: hashlib.sha256(f"fashion-mnist {index}".encode()).digest()
    chosen = [sorted(np.flatnonzero(labels == label), key=rank)[:PER_CLASS] for label in range(10)]
    return np.sort(np.concatenate(chosen))


def payload(folder: Path) -> bytes:
    """Return what fashion.xz holds: training images, training labels, test images, test labels, one byte a value."""
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
