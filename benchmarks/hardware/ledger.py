"""The results, a line of JSON per case, so that a second call goes on where the first stopped.

A folder holds three files: results.jsonl, table.md, and log.txt with what failed cases printed.
"""

import fcntl
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.hardware.outcomes import BAD, Case, finite

MOST_LOG = 8 * 2**20
"""Bytes of log.txt."""


class Ledger:
    """The results in a folder.

    Args:
        folder: is made if it is not there.
        identity: identity of this version, card and kind of run, which all lines of the folder share.
        say: prints a line.

    Raises:
        ValueError: the folder is of another version or card, or another command writes to it; one line.
        OSError: it cannot be written.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any], say: Callable[[str], None] = print) -> None:
        self.folder, self.identity, self.say = folder, dict(identity), say
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / "results.jsonl").open("a+", encoding="utf-8")
        try:
            self.lines = self._read()
        except BaseException:
            self.close()
            raise

    def _read(self) -> dict[tuple[str, str], dict[str, Any]]:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise ValueError(f"out must be the folder of one command at a time, one writes to {self.folder}") from None
        self._file.seek(0)
        text = self._file.read()
        if text and not text.endswith("\n"):  # a command was killed while it wrote
            self._file.write("\n")
        lines = list(filter(None, map(_parsed, text.splitlines())))
        for line in lines:
            _require_same(self.folder, line, self.identity)
        return {(line["stage"], line["case"]): line for line in lines}

    def add(self, case: Case, answer: Mapping[str, Any]) -> None:
        """Write the outcome of a case, and print it."""
        known = {name: value for name, value in answer.items() if name != "log"}
        line = {"stage": case.stage, "case": case.name, **finite(known), **self.identity}
        self.lines[case.stage, case.name] = line
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        log = self.folder / "log.txt"
        if answer.get("log") and (not log.exists() or log.stat().st_size < MOST_LOG):
            with log.open("a", encoding="utf-8") as file:
                file.write(f"=== {case.stage}: {case.name}: {answer['outcome']}\n{answer['log']}\n")
        mark = "!! " if answer["outcome"] in BAD else ""
        words = f"{answer['outcome']}: {answer['message']}" if answer.get("message") else answer["outcome"]
        self.say(f"{mark}{case.stage}: {case.name}: {words}")

    def of_stage(self, stage: str) -> dict[str, dict[str, Any]]:
        """Return the lines of a stage, by case."""
        return {name: line for (own, name), line in self.lines.items() if own == stage}

    def close(self) -> None:
        """Let another command have the folder."""
        self._file.close()


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        parts = json.loads(line)
    except ValueError:
        return None
    return parts if isinstance(parts, dict) and {"stage", "case", "outcome"} <= parts.keys() else None


def _require_same(folder: Path, line: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    for name, wanted in identity.items():
        if line.get(name) != wanted:
            rule = f"out must be new, or of the same {name}: {folder} was made with {_words(line.get(name))}"
            raise ValueError(f"{rule}, this is {_words(wanted)}")


def _words(value: Any) -> str:
    return " ".join(f"{name} {one}" for name, one in value.items()) if isinstance(value, Mapping) else str(value)
