"""The loops of a kernel's machine code: how many instructions, each an issue slot of a warp, an iteration takes."""

import re
from collections import Counter
from typing import NamedTuple

from tests.support.absent_gpu import Kernel

SHORTEST = 16
"""Instructions of the shortest loop that counts: shorter ones only wait, for a barrier or for registers."""

LABEL = re.compile(r"^\.(L_x_\d+):")
INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+((?:@!?U?P\w+\s+)?(\w+).*?);")
BRANCH = re.compile(r"@!?U?P\w+\s+BRA\b.*?`\(\.(L_x_\d+)\)")


class Instruction(NamedTuple):
    """A machine instruction: its address, its name without modifiers, and the label to which it may branch, or ""."""

    address: int
    name: str
    target: str


def innermost_loops(kernel: Kernel) -> list[Counter[str]]:
    """Return the instructions by name of each loop without a loop in it, in the order of the code.

    A loop is what lies between a branch backward, on a condition, and its target. The compiler puts what is rare, such
    as waiting, after the end of the kernel; it comes back from there without a condition.
    """
    return loops_of(kernel.disassembled())


def loops_of(text: str) -> list[Counter[str]]:
    """Return the innermost loops of disassembled code."""
    code, labels = _read(text)
    branches = ((labels.get(x.target, x.address), x.address) for x in code if x.target)
    spans = [(start, end) for start, end in branches if start < end and (end - start) // 16 + 1 >= SHORTEST]
    inner = [a for a in spans if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in spans)]
    return [Counter(x.name for x in code if start <= x.address <= end) for start, end in sorted(inner)]


def _read(text: str) -> tuple[list[Instruction], dict[str, int]]:
    """Return the instructions, and the address that each label is at."""
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    waiting: list[str] = []  # labels whose instruction is still to come
    for line in text.splitlines():
        if label := LABEL.match(line):
            waiting.append(label[1])
        elif match := INSTRUCTION.match(line):
            address, target = int(match[1], 16), BRANCH.search(match[2])
            labels.update(dict.fromkeys(waiting, address))
            waiting.clear()
            code.append(Instruction(address, match[3], target[1] if target else ""))
    return code, labels
