"""The lists of encodings, extensions and functions in README.md, docs/ and docs/reference/, made from the library."""

import inspect
import re
from collections.abc import Iterable
from pathlib import Path

from comparison import filled
from encoding_records import RECORDS

import pejax
from pejax import extensions, functions, placement

ROOT = Path(__file__).parents[1]

WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
    " eighteen nineteen twenty"
)
"""The numbers that texts have in words; larger ones are digits."""

COUNTED = {
    "README.md": {
        r"(?<=in JAX: )\w+(?= published methods)": "encodings",
        r"\w+(?= extensions \(YaRN)": "extensions",
        r"\d+(?= \[rules\])": "rules",
        r"\d+(?= of \d+ read in Flax)": "accepted",
        r"\d+(?= read in Flax)": "configs",
    },
    "docs/index.md": {
        r"(?<=pejax implements )\w+(?= published encodings)": "encodings",
        r"\w+(?=\s\[extensions\]\(longer-contexts)": "extensions",
        r"\d+(?= \[rules\])": "rules",
        r"\d+(?= of \d+ read in Flax)": "accepted",
        r"\d+(?= read in Flax)": "configs",
        r"\w+(?= questions answered by computation)": "notebooks",
    },
    "docs/encodings.md": {r"(?<=pejax has )\w+(?= encodings)": "encodings"},
    "docs/interop.md": {r"\d+(?= published models\n)": "configs"},
    "docs/longer-contexts.md": {r"\w+(?= methods extend a model)": "extensions"},
    "docs/notebooks.md": {r"(?<=Each of the )\w+(?= notebooks)": "notebooks"},
}
"""Places of numbers in texts, and what they count."""

OTHERS = {"_extensions": "Extensions", "_ops": "Tables"}
"""Sections of functions that belong to no encoding, by their package."""


def acts_on(encoding: pejax.Encoding) -> list[str]:
    """Return the places where an encoding acts, from its hooks."""
    found = {
        "input": encoding.embed is not None,
        "queries": encoding.rotate is not None,
        "keys": encoding.rotate is not None,
        "logits": encoding.bias is not None or encoding.distance_bias is not None,
        "values": encoding.relative_values is not None,
    }
    return [name for name, present in found.items() if present] or ["nothing"]


def reference_of(name: str) -> str:
    """Return the papers that the module of an encoding names."""
    module = inspect.getmodule(inspect.unwrap(pejax.encodings.ENCODINGS[name]))
    return inspect.cleandoc((inspect.getdoc(module) or "").split("Reference:")[1])


def paper_links(name: str) -> str:
    """Return the papers of an encoding as tables name them, each a link to arXiv.

    Raises:
        ValueError: its module does not name one of them with its number.
    """
    reference, links = " ".join(reference_of(name).split()), []
    for paper in RECORDS[name].cited.split(", "):
        found = re.search(rf"{re.escape(paper)},.*?\(arXiv ([\d.]+)\)", reference)
        if found is None:
            raise ValueError(f"the module of {name} must name {paper} with its arXiv number, got {reference!r}")
        links.append(f"[{paper}](https://arxiv.org/abs/{found[1]})")
    return ", ".join(links)


def lists(encodings: dict[str, pejax.Encoding]) -> dict[Path, str]:
    """Return the text of every file with a list, by its path.

    Args:
        encodings: every encoding by name.

    Raises:
        ValueError: a file without the place of its list.
    """
    verdicts = (ROOT / "tests/data_files/configs/verdicts.txt").read_text(encoding="utf-8").splitlines()
    counts = {
        "encodings": len(encodings),
        "extensions": len(extensions.EXTENSIONS),
        "rules": len(placement.RULES),
        "configs": len(verdicts),
        "accepted": sum(": accepted: " in verdict for verdict in verdicts),
        "notebooks": len([*(ROOT / "colab").glob("*.ipynb")]),
    }
    texts = {
        name: counted(name, (ROOT / name).read_text(encoding="utf-8"), places, counts)
        for name, places in COUNTED.items()
    }
    before, after = re.split(r"(?<=\n## Encodings\n\n)(?:\|.*\n)+", texts["README.md"])
    texts["README.md"] = f"{before}{short_table(encodings)}\n{after}"
    texts["docs/encodings.md"] = filled(texts["docs/encodings.md"], {"encodings": long_table(encodings)})
    reference = {
        "encodings": {"factories": entries("encodings", sorted(encodings))},
        "extensions": {"extensions": entries("extensions", extensions.EXTENSIONS)},
        "functions": {"functions": function_sections()},
    }
    for name, blocks in reference.items():
        file = f"docs/reference/{name}.md"
        texts[file] = filled((ROOT / file).read_text(encoding="utf-8"), blocks)
    return {ROOT / name: text for name, text in texts.items()}


def counted(name: str, text: str, places: dict[str, str], counts: dict[str, int]) -> str:
    """Return a text with its numbers counted anew, as digits or in words as they were.

    Args:
        name: name of the file, for errors.
        text: its content.
        places: expression of the place of a number -> what it counts.
        counts: the numbers.

    Raises:
        ValueError: a place that is not there exactly once, or a number that has no word.
    """
    words = WORDS.split()
    for place, what in places.items():
        found = re.findall(place, text)
        if len(found) != 1:
            raise ValueError(f"{name} must say once how many {what} there are, got {len(found)} places")
        if not found[0].isdigit() and counts[what] >= len(words):
            raise ValueError(f"{name} must give the number of {what}, {counts[what]}, in digits, got {found[0]!r}")
        word = str(counts[what]) if found[0].isdigit() else words[counts[what]]
        text = re.sub(place, word.capitalize() if found[0].istitle() else word, text)
    return text


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    return re.sub(r"\|  (?=\|)", "| ", "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]))


def short_table(encodings: dict[str, pejax.Encoding]) -> str:
    """Return the table of README.md."""
    rows = [
        [
            f"`{name}`",
            ", ".join(acts_on(encodings[name])),
            one.learned,
            one.on_images,
            paper_links(name).replace(" et al.", ""),
        ]
        for name, one in RECORDS.items()
    ]
    return _table(["name", "acts on", "learned", "on images", "source"], rows)


def long_table(encodings: dict[str, pejax.Encoding]) -> str:
    """Return the table of docs/encodings.md, with links to the pages."""
    rows = [
        [
            f"[`{name}`](encodings/{name}.md)",
            ", ".join(acts_on(encodings[name])),
            one.learned,
            "yes" if encodings[name].shift_invariant else "no",
            one.on_images,
            paper_links(name),
        ]
        for name, one in RECORDS.items()
    ]
    return _table(["name", "acts on", "learned parameters", "shift invariant", "on images", "source"], rows)


def entries(module: str, names: Iterable[str]) -> str:
    """Return the entries of the reference for some names of a public module."""
    return "\n\n".join(f"::: pejax.{module}.{name}" for name in names)


def function_sections() -> str:
    """Return the entries of `pejax.functions`: a section per encoding that has some, then the others."""
    sections: dict[str, list[str]] = {record.title: [] for record in RECORDS.values()} | {
        v: [] for v in OTHERS.values()
    }
    for name in functions.__all__:
        _, package, module = getattr(functions, name).__module__.split(".")[:3]
        owner = next((one for one, record in RECORDS.items() if name in record.functions), module)
        sections[RECORDS[owner].title if owner in RECORDS else OTHERS[package]].append(name)
    return "\n\n".join(f"## {title}\n\n{entries('functions', names)}" for title, names in sections.items() if names)
