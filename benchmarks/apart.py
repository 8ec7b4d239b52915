"""Ways that run in processes of their own: neither memory nor threads of one are in the way of another.

`python -m benchmarks.apart MODULE FUNCTION ARGUMENTS WAY` makes the way that `MODULE.FUNCTION(*ARGUMENTS)` holds under
this name, and runs it once for every line it reads; to each it answers with a line of JSON.
"""

if __name__ == "__main__":  # before anything heavy is imported
    from train.devices.cpu import prepare_cpu

    prepare_cpu()

import functools
import importlib
import json
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

from benchmarks.timing import Call, Maker, reason

ROOT = Path(__file__).parents[1]


def apart(module: str, function: str, arguments: list[Any], way: str) -> Maker:
    """Return how to start a process that makes a way, and to call it there.

    Args:
        module: module with the function.
        function: returns makers by name.
        arguments: arguments of the function, as JSON.
        way: name of the maker.
    """
    return functools.partial(_Worker, [module, function, json.dumps(arguments), way])


class _Worker:
    """A process that runs a way when asked; it ends with this object, and when this process ends."""

    def __init__(self, words: list[str]) -> None:
        command = [sys.executable, "-m", "benchmarks.apart", *words]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT, start_new_session=True, encoding="utf-8"
        )
        weakref.finalize(self, _end, self.process)
        self._answer()

    def __call__(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self._answer()

    def _answer(self) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        failure = json.loads(line) if line else f"its process ended with status {self.process.wait()}"
        if failure:
            raise RuntimeError(failure)


def _end(process: subprocess.Popen) -> None:
    process.terminate()
    process.communicate()


def main(argv: list[str]) -> None:
    """Make the way, then run it once per line; a failure is the answer."""
    module, function, arguments, way = argv
    call: Call | None = None
    answers, sys.stdout = sys.stdout, sys.stderr  # what a way prints is no answer
    while True:
        failure = None
        try:
            if call is None:
                call = getattr(importlib.import_module(module), function)(*json.loads(arguments))[way]()
            else:
                call()
        except Exception as raised:
            failure = reason(raised)
        print(json.dumps(failure), file=answers, flush=True)
        if failure or not sys.stdin.readline():
            return


if __name__ == "__main__":
    main(sys.argv[1:])
