"""Write constraints.txt from two resolutions: on the oldest Python of pejax, and on the newest that CI has.

With each of the two Pythons, in an empty environment (the newer one without torch, which is large, so bench-jax):

    pip install --dry-run --ignore-installed --report oldest.json ".[test,docs,notebooks,tpu,bench]"
    pip install --dry-run --ignore-installed --report newest.json ".[test,docs,notebooks,tpu,bench-jax]"

    python .ci/pin.py oldest.json newest.json > constraints.txt
"""

import json
import pathlib
import sys

SPLIT = "3.12"  # from this Python on, versions are those of the newer resolution


def resolved(path: str) -> dict[str, str]:
    """Return the version of each package, without a build's own mark, as of torch 2.13.0+cpu."""
    packages = [item["metadata"] for item in json.loads(pathlib.Path(path).read_text(encoding="utf-8"))["install"]]
    return {package["name"]: package["version"].split("+")[0] for package in packages if package["name"] != "pejax"}


def pins(oldest: dict[str, str], newest: dict[str, str]) -> list[str]:
    """Return the lines: one for a package of one version, two with markers for a package of two."""
    lines = []
    for name in sorted(oldest | newest, key=str.lower):
        old, new = oldest.get(name), newest.get(name)
        if old and new and old != new:
            lines += [f'{name}=={new}; python_version >= "{SPLIT}"', f'{name}=={old}; python_version < "{SPLIT}"']
        else:
            lines.append(f"{name}=={new or old}")
    return lines


if __name__ == "__main__":
    print("# Versions that are known to work together. `.ci/pin.py` makes this file and says how.")
    print(*pins(*map(resolved, sys.argv[1:])), sep="\n")
