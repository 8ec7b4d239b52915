"""What a run wrote down, the clock's part left out: two runs of the same bits have the same lines."""

import json
from pathlib import Path

TIMES = ("step_seconds", "peak_share", "seal")


def timeless(out: Path) -> list[dict]:
    """Return the lines of a run's metrics.jsonl without what depends on the machine's speed."""
    lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    is_compared = lambda name: name not in TIMES and not name.endswith("_per_second")
    return [{name: value for name, value in line.items() if is_compared(name)} for line in lines]
