"""The traffic between the devices of a compiled program, read from its HLO text.

    all-gather            n - 1 shards           n devices, each with one of n shards
    reduce-scatter        n - 1 shards
    all-reduce            2 (n - 1) shards       a reduce-scatter and an all-gather
    all-to-all            (n - 1) / n of its operand
    collective-permute    its operand

These are lower bounds on the bytes that one device sends, for any routing. The body of a loop counts once per
iteration; the number of iterations is read from its condition, `i < constant`: a scan over layers, a ring over devices.
All branches of a conditional count.
"""

import functools
import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jax.sharding import Mesh

WIDTHS = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "f64": 8, "s64": 8, "u64": 8}
"""Bytes per element; 4 for types that are not listed."""

KINDS = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"
COLLECTIVE = re.compile(rf"= (?P<shape>.*?) (?P<kind>{KINDS})(?P<start>-start)?\((?P<attributes>.*)")
CALLED = re.compile(r"(?:calls|to_apply|body|(?:true|false)_computation|branch_computations)=(\S+(?:, %\S+)*)")
SHAPE = re.compile(r"\b([a-z]+\d*\w*)\[([\d,]*)\]")


class Traffic(NamedTuple):
    """The collectives of one kind over the same axes of the mesh, in one step.

    Attributes:
        kind: "all-gather", ...
        axes: axes of the mesh, "data x fsdp".
        instructions: number of such instructions in the program.
        times: number of executions per step.
        sent: bytes that one device sends per step.
    """

    kind: str
    axes: str
    instructions: int
    times: int
    sent: float


class Collectives(NamedTuple):
    """The traffic of a step, largest first, and the number of loops with traffic whose iterations are unknown."""

    traffic: tuple[Traffic, ...]
    unknown_loops: int

    @property
    def sent(self) -> float:
        """Bytes that a device sends per step."""
        return sum(entry.sent for entry in self.traffic)

    def over(self, axis: str) -> float:
        """Return the bytes of the collectives over an axis of the mesh."""
        return sum(entry.sent for entry in self.traffic if axis in entry.axes.split(" x "))


def collectives(text: str, mesh: Mesh) -> Collectives:
    """Return the traffic of a compiled program, from its text and the mesh that it was compiled for."""
    program, entry = computations(text)
    times, unknown = run_counts(program, entry)
    costs: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for name, lines in program.items():
        for line in lines if times[name] else ():
            match = COLLECTIVE.search(line)
            group, axes = _group(match["attributes"], mesh) if match else (1, "")
            if match is None or group == 1:
                continue
            scattered = match["kind"] == "all-reduce" and name.startswith("all-reduce-scatter")  # a fusion of both
            kind = "reduce-scatter" if scattered else match["kind"]
            results = re.sub(r"^\(\([^()]*\), ", "(", match["shape"])  # without operands in a tuple of their own
            start = bool(match["start"]) and results == match["shape"]
            sent = _sent(kind, sum(shape_bytes(results)), group, scattered, start)
            costs.setdefault((kind, axes), []).append((times[name], times[name] * sent))
    traffic = (Traffic(*key, len(pairs), *map(sum, zip(*pairs, strict=True))) for key, pairs in costs.items())
    return Collectives(tuple(sorted(traffic, key=lambda entry: -entry.sent)), unknown)


def computations(text: str) -> tuple[dict[str, list[str]], str]:
    """Return the instructions of every computation by name, and the name of the entry computation."""
    program: dict[str, list[str]] = {}
    entry, lines = "", []
    for line in text.splitlines():
        match = re.match(r"(ENTRY )?%?(\S+) \(.*\{$", line)
        if match:
            lines = program.setdefault(match[2], [])
            entry = match[2] if match[1] else entry
        elif line.startswith(" "):
            lines.append(line)
    return program, entry


def run_counts(program: dict[str, list[str]], entry: str) -> tuple[Counter[str], int]:
    """Return how often each computation runs per step, and the number of loops with unknown iterations.

    Only loops with traffic are counted: tiled attention has others, over the tiles that a mask leaves.
    """
    times: Counter[str] = Counter()
    unknown = 0

    @functools.cache
    def sends(name: str) -> bool:
        lines = program.get(name, ())
        return any(COLLECTIVE.search(line) or any(map(sends, _callees(line))) for line in lines)

    def visit(name: str, count: int) -> None:
        nonlocal unknown
        times[name] += count
        for line in program.get(name, ()):
            loop = re.search(r" while\(.*condition=%?([^\s,]+)", line)
            length = _loop_length(line, program.get(loop[1], [])) if loop else 1
            unknown += length is None and any(map(sends, _callees(line)))
            for callee in _callees(line):
                visit(callee, count * (length or 1))

    visit(entry, 1)
    return times, unknown


def _callees(line: str) -> Iterator[str]:
    if re.search(r" async-(update|done)\(", line):  # these repeat the name that async-start has called
        return
    for names in CALLED.findall(line):
        yield from re.findall(r"%([^\s,{}]+)", names)


def _loop_length(line: str, condition: list[str]) -> int | None:
    match = re.search(r'known_trip_count":\{"n":"(\d+)"', line)
    if match:
        return int(match[1])
    ends = [re.search(r"= s32\[\].* constant\((\d+)\)", instruction) for instruction in condition]
    limits = [int(end[1]) for end in ends if end]
    below = any("direction=LT" in instruction for instruction in condition)
    return limits[0] if len(limits) == 1 and below else None


def shape_bytes(shape: str) -> list[int]:
    """Return the bytes of every array in a shape, which may be a tuple."""
    # A scalar u32 is no data: the result of a permute that starts has two of them, its handles.
    sizes = ((kind, [int(size) for size in axes.split(",") if size]) for kind, axes in SHAPE.findall(shape))
    return [WIDTHS.get(kind, 4) * math.prod(axes) for kind, axes in sizes if kind != "u32" or axes]


def _sent(kind: str, size: int, group: int, scattered: bool, start: bool) -> float:
    """Return the bytes a device sends; `size` is the size of the result, plus the operand if a collective starts."""
    if kind == "collective-permute":
        return size / 2 if start else size
    if kind == "all-reduce":
        return 2 * size * (group - 1) / group
    if kind == "reduce-scatter":
        full = size if scattered else size * group / (1 + group) if start else size * group
        return full * (group - 1) / group
    if kind == "all-gather" and start:  # size = one shard and all of them: size / (1 + group) is one
        return size / (1 + group) * (group - 1)
    return size * (group - 1) / group


def _group(attributes: str, mesh: Mesh) -> tuple[int, str]:
    """Return the size of a group of devices, and the axes of the mesh along which they differ."""
    pairs = re.search(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}", attributes)
    if pairs:
        ends = np.asarray([[int(end) for end in pair] for pair in re.findall(r"(\d+),(\d+)", pairs[1])])
        routes = ends[ends[:, 0] != ends[:, 1]]
        return (2, _axes(routes, mesh)) if len(routes) else (1, "")
    groups = _replica_groups(attributes, mesh.size)
    return groups.shape[1], _axes(groups, mesh)


def _axes(groups: np.ndarray, mesh: Mesh) -> str:
    coordinates = np.stack(np.unravel_index(groups, mesh.devices.shape), axis=-1)
    differ = (coordinates != coordinates[:, :1]).any(axis=(0, 1))
    return " x ".join(name for name, differs in zip(mesh.axis_names, differ, strict=True) if differs)


def _replica_groups(attributes: str, devices: int) -> np.ndarray:
    """Return the devices of each group, from any of the three notations."""
    axes = re.search(
        r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(([^)]*\)?[^)]*)\))? \{([^}]*)\}", attributes
    )  # mesh['axis_0'=4,'axis_1'=16], device_ids=([2,4,8]T(1,0,2)) {'axis_0'}
    if axes:
        sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", axes[1])}
        grid = _iota(axes[2], devices).reshape(tuple(sizes.values()))
        members = [axis for axis, name in enumerate(sizes) if f"'{name}'" in axes[3]]
        count = math.prod(grid.shape[axis] for axis in members)
        return np.moveaxis(grid, members, range(-len(members), 0)).reshape(-1, count)
    iota = re.search(r"replica_groups=\[(\d+),(\d+)\]<=(\[[\d,]+\](?:T\([\d,]+\))?)", attributes)
    if iota:
        return _iota(iota[3], devices).reshape(int(iota[1]), int(iota[2]))
    listing = re.search(r"replica_groups=\{((?:\{[\d,]+\},?)+)\}", attributes)
    if listing:
        return np.asarray([[int(i) for i in group.split(",")] for group in re.findall(r"\{([\d,]+)\}", listing[1])])
    return np.arange(devices)[None]


def _iota(text: str | None, devices: int) -> np.ndarray:
    """Return the device numbers that `[2,4,8]T(1,0,2)` stands for: reshaped, then transposed."""
    match = re.fullmatch(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", text or "")
    if not match:
        return np.arange(devices)
    box = np.arange(devices).reshape([int(size) for size in match[1].split(",")])
    return box.transpose([int(axis) for axis in match[2].split(",")]) if match[2] else box
