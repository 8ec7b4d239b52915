"""Values that nobody's trainer writes, for the files of hostile run folders."""

import os

LONG, HUGE = "x" * 100_000, 10**400
TEXTS = {
    "empty": "",
    "long": LONG,
    "mathtext": r"$\frac{1}{$",
    "half a pair": "rope\ud800",
    "controls": "\x1b[31mrope\x07\x00\r\n\x1b]0;title\x07",
    "right to left": "\u202erope\u2066",
    "markup": "[/red][link=https://example.com]<script>alert(1)</script>",
    "endless period": "rope*1000000000+none*1",
    "nested": "(" * 5000 + "rope" + ")" * 5000,
    "path": "../../../../etc/passwd",
}
"""Texts for names, by what is bad about them."""

NUMBERS = {
    "huge": HUGE,
    "largest": 1.7e308,
    "smallest": 5e-324,
    "minus": -1,
    "zero": 0,
    "nan": float("nan"),
    "infinity": float("inf"),
    "true": True,
    "text": "12",
    "null": None,
    "list": [1],
}
"""Values in place of numbers."""


ROWS = {
    "none": [],
    "thousands": [{"size": 28 + n, "tokens": 1, "correct": 1, "count": 2} for n in range(20_000)],
    "texts": ["row"],
    "nulls": [None],
    "lists": [[1, 2]],
    "twice": [{"size": 28, "tokens": 1, "correct": 1, "count": 2}] * 2,
    "more right than there are": [{"size": 28, "tokens": 1, "correct": 5000, "count": 100}],
    "huge counts": [{"size": 28, "tokens": 1, "correct": 2**62, "count": 2**62}],
    "no images": [{"size": 28, "tokens": 1, "correct": 0, "count": 0}],
    "minus images": [{"size": 28, "tokens": 1, "correct": -5, "count": -5}],
    "other fields": [{"size": 28, "hook": LONG}],
    "an object": {"size": 28},
}
"""Rows of results.json."""

LINE = {
    "task": "vit", "trained": "alibi", "seed": 5, "validation": 0.0, "status": "done", "message": "",
    "scores": {"none": {"top-1, %": {"28": 61.0}}},
}  # fmt: skip


OUTCOMES = {
    "status": {"status": ["a", {"b": "c"}]},
    "refusals": {"status": "done", "refused": {f"yarn(factor={n})": "no" for n in range(1000)}},
    "refusal of a kind": {"status": "done", "refused": {"pi": {"why": LONG}}},
    "refused": {"status": "done", "refused": "pi"},
}
"""Contents of outcome.json."""

ENVIRONMENTS = {
    "minus": {"versions": {}, "devices": "cpu", "parameters": -5, "flops": -5},
    "true": {"versions": {}, "devices": "cpu", "parameters": True, "flops": 1},
    "versions": {"versions": ["3.11"], "devices": "cpu", "parameters": 5, "flops": 5},
    "names": {"versions": {LONG: "1"}, "devices": "\x1b[31m", "parameters": 5, "flops": 5, "peak_of": LONG},
    "huge": {"versions": {}, "devices": "cpu", "parameters": 2**63 - 1, "flops": 2**63 - 1, "peak_bytes": 2**63 - 1},
}
"""Contents of environment.json."""

NAMES = {
    "surrogates": os.fsdecode(b"run-\xff\xfe"), "lines": "run\nleft out: nothing", "escapes": "run\x1b[2J\x1b[31m",
    "direction": "run\u202egnp", "mathtext": "run$\\frac{$", "markup": "run[/red]<b>", "bar": "run | a | b",
    "long": "r" * 255, "option": "--out=x", "space": " ", "quote": "run'\"`", "stars": "results*.json",
}  # fmt: skip
"""Names of folders."""
