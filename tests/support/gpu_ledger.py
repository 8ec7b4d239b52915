"""What a program launches and moves on a GPU, read from the HLO text that XLA compiled it to.

A launch is an instruction that runs on the device: a fusion, a custom call, a copy, a collective. Those in the body of
a loop count once per iteration; of a conditional the branch with the most bytes counts. A launch reads its operands
and writes its results; a fusion reads of a parameter that it only slices the slices, and writes of a result that it
updates in place the update.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from train.plan.collectives import computations, shape_bytes

FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id"),
    "async-update",
}
"""Operations that launch nothing, beside those that wait for an asynchronous one, `copy-done`."""

CALLS = {"call", "async-start", "conditional"}
CALLED = re.compile(
    r"(?:calls|to_apply|body|(?:true|false)_computation|branch_computations)=\{?((?:%[^\s,}]+(?:, )?)+)"
)
INSTRUCTION = re.compile(r"\s+(ROOT )?%(\S+) = (\(.*?\)|\S+) ([\w-]+)\((.*)")
WORKSPACE = re.compile(r"[su]8\[\d+\]\{0\}")


class Instruction(NamedTuple):
    """An instruction of a computation.

    Attributes:
        root: whether it is the result of its computation.
        name: its name.
        shape: text of its shape.
        op: its operation, "fusion".
        operands: names of its operands.
        attributes: text after its operands.
    """

    root: bool
    name: str
    shape: str
    op: str
    operands: tuple[str, ...]
    attributes: str

    @property
    def callees(self) -> list[str]:
        """Names of the computations that it calls."""
        return [name for names in CALLED.findall(self.attributes) for name in re.findall(r"%([^\s,]+)", names)]

    @property
    def target(self) -> str:
        """Target of a custom call, else an empty text."""
        match = re.search(r'custom_call_target="([^"]+)"', self.attributes)
        return match[1] if match else ""


class Product(NamedTuple):
    """A matrix product of cuBLAS: the factor of the product, and what is done with it before it is written."""

    alpha: float
    epilogue: str


class Ledger(NamedTuple):
    """What one run of a program launches and moves.

    Attributes:
        launches: number of launches by kind: the target of a custom call, or the operation.
        read: bytes that they read.
        written: bytes that they write.
        transposes: launches that change the order of the axes of an array.
        conditionals: conditionals in the program.
    """

    launches: Counter[str]
    read: int
    written: int
    transposes: int
    conditionals: int

    @property
    def moved(self) -> int:
        """Bytes read and written."""
        return self.read + self.written


class Totals(NamedTuple):
    """Launches, bytes and transposes of a computation."""

    launches: Counter[str]
    read: int
    written: int
    transposes: int


def ledger(text: str) -> Ledger:
    """Return the ledger of a compiled program, from its text."""
    lines, entry = computations(text)
    program = {name: [instruction_of(line) for line in body if INSTRUCTION.match(line)] for name, body in lines.items()}
    conditionals = sum(instruction.op == "conditional" for body in program.values() for instruction in body)
    return Ledger(*totals(program, entry), conditionals)


def products(text: str) -> list[Product]:
    """Return the matrix products of cuBLAS in a compiled program, from its text."""
    return [_product(instruction_of(line)) for line in text.splitlines() if "cublas" in line and "alpha_real" in line]


def instruction_of(line: str) -> Instruction:
    """Return the instruction of a line of HLO."""
    match = INSTRUCTION.match(line)
    if match is None:
        raise ValueError(f"a line must be an instruction of HLO, got {line!r}")
    depth, end = 1, 0
    for end, character in enumerate(match[5]):  # noqa: B007 - operands may hold parentheses of their own
        depth += (character == "(") - (character == ")")
        if depth == 0:
            break
    operands = tuple(re.findall(r"%([^\s,()]+)", match[5][:end]))
    return Instruction(bool(match[1]), match[2], match[3], match[4], operands, match[5][end:])


def _product(instruction: Instruction) -> Product:
    """Return what a call of cuBLAS says of its product."""
    alpha = re.search(r'"alpha_real":([-\d.e+]+)', instruction.attributes)
    epilogue = re.search(r'"epilogue":"(\w+)"', instruction.attributes)
    if alpha is None or epilogue is None:
        raise ValueError(f"a call of cuBLAS must name its factor and its epilogue, got {instruction}")
    return Product(float(alpha[1]), epilogue[1])


def totals(program: dict[str, list[Instruction]], name: str) -> Totals:
    """Return what a computation launches and moves."""
    shapes = {instruction.name: instruction.shape for instruction in program[name]}
    launches: Counter[str] = Counter()
    read = written = transposes = 0
    for instruction in program[name]:
        times = 1
        if instruction.op in FREE or instruction.op.endswith("-done"):
            continue
        if instruction.op == "while":
            times = trips(instruction)
            part = totals(program, instruction.callees[0])
        elif instruction.op in CALLS:
            parts = [totals(program, callee) for callee in instruction.callees]
            part = max(parts, key=lambda part: part.read + part.written)
        else:
            part = launch(program, instruction, shapes)
        for kind, count in part.launches.items():
            launches[kind] += times * count
        read, written = read + times * part.read, written + times * part.written
        transposes += times * part.transposes
    return Totals(launches, read, written, transposes)


def trips(loop: Instruction) -> int:
    """Return the number of iterations of a loop."""
    match = re.search(r'known_trip_count":\{"n":"(\d+)"', loop.attributes)
    if match is None:
        raise ValueError(f"a loop must have a known number of iterations, got {loop.name}")
    return int(match[1])


def launch(program: dict[str, list[Instruction]], instruction: Instruction, shapes: dict[str, str]) -> Totals:
    """Return what a single launch moves."""
    op = instruction.op.removesuffix("-start")
    if op == "fusion":
        body = program[instruction.callees[0]]
        kind = next((inner.target for inner in body if inner.target), op)
        transposed = any(map(transposes_axes, body))
        return Totals(Counter([kind]), sum(fusion_reads(body)), sum(fusion_writes(body)), int(transposed))
    read = sum(size(shapes[operand]) for operand in instruction.operands)
    results = WORKSPACE.sub("", instruction.shape) if instruction.target else instruction.shape
    written = read if op == "copy" else size(results)  # the shape of `copy-start` also has the operand
    return Totals(Counter([instruction.target or op]), read, written, int(transposes_axes(instruction)))


def size(shape: str) -> int:
    """Return the bytes of an array, or of all arrays of a tuple."""
    return sum(shape_bytes(shape))


def transposes_axes(instruction: Instruction) -> bool:
    """Return whether an instruction reorders axes of more than one entry, and so the elements in memory."""
    if instruction.op != "transpose":
        return False
    axes = [int(axis) for axis in re.findall(r"\d+", instruction.attributes.partition("dimensions={")[2].split("}")[0])]
    lengths = [int(length) for length in re.findall(r"\d+", instruction.shape.partition("[")[2].split("]")[0])]
    kept = [axis for axis, length in zip(axes, lengths, strict=True) if length > 1]
    return kept != sorted(kept)


def fusion_reads(body: list[Instruction]) -> Iterator[int]:
    """Yield the bytes that a fusion reads of each of its parameters."""
    users: dict[str, list[Instruction]] = {}
    for instruction in body:
        for operand in instruction.operands:
            users.setdefault(operand, []).append(instruction)

    def uses(name: str) -> Iterator[tuple[Instruction, bool]]:
        """Yield the users of an array, through bitcasts, and whether it is their first operand."""
        for user in users.get(name, ()):
            yield from uses(user.name) if user.op == "bitcast" else [(user, user.operands[0] == name)]

    for parameter in body:
        if parameter.op != "parameter":
            continue
        whole, part = size(parameter.shape), 0
        for user, first in uses(parameter.name):
            if user.op in ("dynamic-slice", "slice", "gather") and first:
                part += size(user.shape)
            elif not (user.op in ("dynamic-update-slice", "scatter") and first):
                part = whole
                break
        yield min(whole, part)


def fusion_writes(body: list[Instruction]) -> Iterator[int]:
    """Yield the bytes that a fusion writes of each of its results."""
    by_name = {instruction.name: instruction for instruction in body}
    root = next(instruction for instruction in body if instruction.root)
    for result in [by_name[name] for name in root.operands] if root.op == "tuple" else [root]:
        while result.op == "bitcast":
            result = by_name[result.operands[0]]
        update = {"dynamic-update-slice": 1, "scatter": 2}.get(result.op)
        yield size(result.shape if update is None else by_name[result.operands[update]].shape)
