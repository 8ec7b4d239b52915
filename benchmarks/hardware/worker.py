"""A process that does tasks: a line of JSON in, a line of JSON out, until its standard input ends.

`{"task": "module:function", "arguments": {...}}` is answered with what the function returns, or with the outcome that
its exception stands for. What anything prints goes to standard error. If the process that asks is gone, it ends.
"""

import importlib
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from typing import Any

LONGEST = 300
"""Characters of a message."""


def main() -> None:
    """Answer the lines of standard input."""
    replies = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    for line in sys.stdin:
        replies.write(json.dumps(answer(**json.loads(line))) + "\n")


def answer(task: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Do a task; return its result or its outcome, and its seconds."""
    begun = time.perf_counter()
    try:
        module, _, function = task.partition(":")
        result = dict(getattr(importlib.import_module(module), function)(**arguments))
    except NotImplementedError as refused:
        result = {"outcome": "refused", "message": _line(refused)}
    except ImportError as missing:
        result = {"outcome": "missing", "message": _line(missing)}
    except Exception as broken:  # compilers, drivers and torch raise types of their own
        traceback.print_exc()
        result = {"outcome": "memory" if _of_memory(broken) else "error", "message": _line(broken)}
    return {**result, **_programs(), "took": time.perf_counter() - begun}


def _programs() -> dict[str, Any]:
    """Return the programs that the task asked for, where they are named by the card."""
    programs = sys.modules.get("benchmarks.hardware.programs")
    read = programs.asked() if programs else {}
    return {"programs": read} if read else {}


def _of_memory(broken: Exception) -> bool:
    words = str(broken)
    return isinstance(broken, MemoryError) or "RESOURCE_EXHAUSTED" in words or "out of memory" in words.lower()


def _line(broken: Exception) -> str:
    lines = str(broken).strip().splitlines()
    return f"{type(broken).__name__}: {lines[0] if lines else ''}"[:LONGEST]


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    main()
