"""Models in several GGUF files, NAME-00001-of-00003.gguf and so on, which are read as one."""

import re
from collections.abc import Sequence
from pathlib import Path

from pejax.interop.gguf_file import GgufFile, GgufTensor, read_header

PART = re.compile(r"(?P<name>.*)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.DOTALL)
"""Regular expression of the names of parts; the first part is 00001."""

COUNT, NUMBER, TENSORS = "split.count", "split.no", "split.tensors.count"
"""Keys of the number of parts, the number of this part from 0 on, and the number of all tensors."""


def read_gguf(path: Path) -> GgufFile:
    """Return the header of a model in a GGUF file, or in several: `path` may be any of them.

    Raises:
        ValueError: as `read_header`; a part that is missing, of another model or of another name.
    """
    file = read_header(path)
    count = file.keys.get(COUNT, 0)
    if count in (0, 1):
        return file
    paths = _paths(path, count)
    return _joined([_part(paths, number) for number in range(len(paths))])


def same_model(paths: Sequence[Path]) -> bool:
    """Whether the names of these files are those of parts of one model."""
    matches = [PART.fullmatch(path.name) for path in paths]
    return len({match and (match["name"], match["count"]) for match in matches}) == 1 and matches[0] is not None


def part_paths(path: Path) -> list[Path]:
    """Return the paths of all files of the model that a GGUF file holds, or a part of it."""
    count = read_header(path).keys.get(COUNT, 0)
    return [path] if count in (0, 1) else _paths(path, count)


def _paths(path: Path, count: object) -> list[Path]:
    """Return the paths of all parts of a model, whose number one of them gives."""
    match = PART.fullmatch(path.name)
    if match is None or int(match["count"]) != count:
        rule = f"must be named NAME-0000N-of-0000M.gguf, of which M is {COUNT}"
        raise ValueError(f"{path} {rule}, got {COUNT} = {count!r}"[:400])
    names = (f"{match['name']}-{number:05}-of-{count:05}.gguf" for number in range(1, int(match["count"]) + 1))
    return [path.with_name(name) for name in names]


def _part(paths: Sequence[Path], number: int) -> GgufFile:
    """Return the header of a part, counted from 0."""
    path = paths[number]
    if not path.exists():
        raise ValueError(f"{path.parent} must hold all {len(paths)} parts of the model, got no {path.name}")
    file = read_header(path)
    own = (file.keys.get(NUMBER), file.keys.get(COUNT))
    if own != (number, len(paths)):
        rule = f"{path} must be part {number} of {len(paths)}, counted from 0"
        raise ValueError(f"{rule}, got {NUMBER} = {own[0]!r} and {COUNT} = {own[1]!r}"[:400])
    return file


def _joined(parts: Sequence[GgufFile]) -> GgufFile:
    """Return the header of the model that these are the parts of; its metadata are in the first one."""
    first, tensors = parts[0], dict[str, GgufTensor]()
    for part in parts:
        other = [key for key, value in part.keys.items() if key != NUMBER and first.keys.get(key) != value]
        if other:
            rule = f"{part.path} must be a part of the model in {first.path.name}"
            raise ValueError(f"{rule}, got another {other[0][:80]}")
        twice = [name for name in part.tensors if name in tensors]
        if twice:
            raise ValueError(f"{part.path} must hold tensors that no other part has, got {twice[0][:80]}")
        tensors |= part.tensors
    if first.keys.get(TENSORS, len(tensors)) != len(tensors):
        rule = f"{first.path} must have {first.keys[TENSORS]} tensors in its {len(parts)} parts"
        raise ValueError(f"{rule}, got {len(tensors)}: one of them is of another model")
    return first._replace(tensors=tensors)
