"""Programs made ahead for a card that is absent, in one sealed file, and read where that card is.

The file is an archive of JAX's own cache files and an index. What it holds is run as it is, so that it is read only
where its SHA-256 is the one given on the command line, from a file of the user's own. Nothing in it is unpickled.
"""

import hashlib
import io
import json
import math
import os
import re
import stat
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.hardware.device import COMPILERS
from benchmarks.hardware.ledger import Ledger
from benchmarks.hardware.outcomes import BAD, Case
from benchmarks.hardware.run import Settings, Stage, make_pool
from train.devices.absent_gpus import CARDS, INSTALL, missing_compiler
from train.devices.hosts import code_digest
from train.devices.kept_programs import require_own

FILE = "programs.zip"
INDEX = "index.json"
LARGEST = 64 * 2**20
"""Bytes of the file at most."""

SLOWER = 20.0
"""Times that a case may take longer to compile than its limit allows where it runs."""

MEMBER = re.compile(r"\w[\w.-]*-[0-9a-f]{64}-cache", re.ASCII)
"""A name of a cache file of JAX: that of a function or an operation, and a digest."""


def make(settings: Settings, machine: Mapping[str, Any], stages: Mapping[str, Stage]) -> int:
    """Compile the programs of all stages and write them into one file; return the exit status.

    Args:
        settings: options of the command line; `out` gets the file, the cache and a line per case.
        machine: facts of the machine.
        stages: stages by name.

    Raises:
        ValueError: the compiler is missing, or the folder is of another card, version or code; one line.
        OSError: it cannot be written.
    """
    if settings.card and (missing := missing_compiler()):
        raise ValueError(f"compiling for a GPU needs {', '.join(missing)}: {INSTALL}")
    kind = CARDS[settings.card].name if settings.card else machine["card"]
    folder, about = settings.out, {"card": kind, "versions": compilers(machine["versions"])}
    require_own(folder)
    ledger = Ledger(folder, {**about, "code": code_digest(), "rehearsal": settings.rehearse})
    cases = [slower(case) for name in settings.stages for case in stages[name].ahead(settings)]
    try:
        for name in settings.stages:
            due = [case for case in cases if case.stage == name and (name, case.name) not in ledger.lines]
            pool = make_pool(settings, name, folder, machine)
            try:
                pool.run(due, math.inf, ledger.add)
            finally:
                pool.end()
        lines = [ledger.lines[case.stage, case.name] for case in cases]
        left_out = write(folder, about, sorted(lines, key=lambda line: line["stage"] != "measure"))
    except KeyboardInterrupt:
        print("interrupted: the same command goes on from here")
        return 130
    finally:
        ledger.close()
        for path in folder.glob(f"*-{os.getpid()}-*.txt"):
            path.unlink()
    report(folder, kind, lines, left_out)
    return 1 if any(line["outcome"] in BAD for line in lines) else 0


def slower(case: Case) -> Case:
    """Return a case with the time that a small machine needs."""
    return case._replace(limit=SLOWER * case.limit)


def compilers(versions: Mapping[str, str]) -> dict[str, str]:
    """Return the versions of the packages that a compiled program depends on."""
    return {name: versions[name] for name in COMPILERS if name in versions}


def write(folder: Path, about: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> int:
    """Write the programs of the cases into the file while it stays small; return how many it leaves out.

    Args:
        folder: folder of the file; the programs are in its cache.
        about: card and versions.
        lines: lines of the cases that were compiled.
    """
    names = dict.fromkeys(f"{name}-cache" for line in lines for name in line.get("programs", {}))
    paths = [path for name in names if (path := folder / "programs" / name).exists()]
    left_out, size = 0, 2**16
    partial = folder / f"{FILE}.partial"
    with zipfile.ZipFile(partial, "w") as archive:  # JAX has compressed them
        archive.writestr(zipfile.ZipInfo(INDEX), json.dumps(about))
        for path in paths:
            size += path.stat().st_size + 2 * len(path.name) + 200
            if size >= LARGEST:
                left_out += 1
                continue
            archive.writestr(zipfile.ZipInfo(path.name), path.read_bytes())
    partial.replace(folder / FILE)
    return left_out


def report(folder: Path, kind: str, lines: Sequence[Mapping[str, Any]], left_out: int) -> None:
    """Print what was made, and how to use it."""
    content = (folder / FILE).read_bytes()
    counts: dict[str, int] = {}
    for line in lines:
        counts[line["outcome"]] = counts.get(line["outcome"], 0) + 1
    cases = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    print(f"\n{len(lines)} cases for {kind}: {cases}")
    print(f"{folder / FILE}: {len(content) / 2**20:.1f} MiB, {left_out} programs left out for its size")
    print(f"Where the card is: --programs={folder}:{hashlib.sha256(content).hexdigest()}")


def unpack(source: str, scratch: Path, machine: Mapping[str, Any]) -> Path:
    """Put the programs of a file into a cache of their own; return its folder.

    Args:
        source: `FOLDER:SHA256`.
        scratch: folder of the user's own.
        machine: facts of the machine.

    Raises:
        ValueError: the file cannot be read, or is of another digest, card or version; one line.
    """
    folder, _, digest = source.rpartition(":")
    content = own_file(Path(folder))
    got = hashlib.sha256(content).hexdigest()
    if got != digest:
        raise ValueError(f"programs must have the SHA-256 {digest[:12]}…, got {got[:12]}… of {folder}/{FILE}")
    known = {"card": machine["card"], "versions": compilers(machine["versions"])}
    with made_archive(content) as archive:
        about = json.loads(archive.read(INDEX))
        for name, value in known.items():
            if about[name] != value:
                rule = f"programs must be of the same {name}"
                raise ValueError(f"{rule}, got {words(about[name])}, this is {words(value)}")
        cache = scratch / f"ahead-{digest[:16]}"
        cache.mkdir(mode=0o700, exist_ok=True)
        for name in archive.namelist():
            if MEMBER.fullmatch(name):
                (cache / name).write_bytes(archive.read(name))
    return cache


def made_archive(content: bytes) -> zipfile.ZipFile:
    """Return the archive that a file is.

    Raises:
        ValueError: `--ahead` did not make it; one line.
    """
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
        archive.getinfo(INDEX)
    except (zipfile.BadZipFile, KeyError):
        raise ValueError(f"programs must be a file that --ahead made, got one of {len(content)} bytes") from None
    return archive


def own_file(folder: Path) -> bytes:
    """Return the content of the file in a folder.

    Raises:
        ValueError: the folder or the file is a link, of somebody else, or cannot be read; one line.
    """
    try:
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            opened = os.open(FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=place)
            with open(opened, "rb") as file:
                for status, what in ((os.fstat(place), "folder"), (os.fstat(opened), "file")):
                    if status.st_uid != os.getuid():
                        raise ValueError(f"programs must be a {what} of your own, got one of user {status.st_uid}")
                if not stat.S_ISREG(os.fstat(opened).st_mode):
                    raise ValueError(f"programs must be a file, got {folder / FILE}, which is something else")
                return file.read(LARGEST)
        finally:
            os.close(place)
    except OSError as refused:
        raise ValueError(f"programs must be {FILE} in a folder, not links, got {folder}: {refused.strerror}") from None


def words(value: Any) -> str:
    """Return a card or versions in words."""
    return " ".join(f"{name} {text}" for name, text in value.items()) if isinstance(value, dict) else str(value)


def told(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return how many programs were read, and how many were compiled, in a line; empty where nobody counted."""
    asked = [read for line in lines for read in line.get("programs", {}).values()]
    return f"{sum(asked)} programs were read, {len(asked) - sum(asked)} compiled here." if asked else ""
