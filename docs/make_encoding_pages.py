"""Write the page of every encoding and the lists of them everywhere: `python docs/make_encoding_pages.py`.

What the library knows (where an encoding acts, its parameters, its functions, its source) comes from the library, what
was measured from the committed results, and the rest from `encoding_records.py`.
"""

import inspect
import re
import sys
from pathlib import Path

import pejax
from pejax import functions

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))

from comparison import costs_of_all, filled, results_of_all, scores_of_all  # noqa: E402
from encoding_costs import IMAGE, LAYERS, SETTINGS, TEXT, cost_rows, markdown_table, parameters  # noqa: E402
from encoding_lists import acts_on, lists, paper_links, reference_of  # noqa: E402
from encoding_records import RECORDS, Record  # noqa: E402
from make_gallery import SECTIONS  # noqa: E402
from measured import Measurements, measurements  # noqa: E402

HERE = "<!-- written by docs/make_encoding_pages.py -->"
IMAGES = ("cpb", "lookhere", "relative_table", "rope_axial", "rope_mixed")
"""Encodings whose example is on an image."""


def example(name: str) -> str:
    """Return the lines that use an encoding, on arrays `q`, `k` and `v`, or `x` where it is added to the input."""
    on_image = name in IMAGES
    dims = "heads=8, head_dim=64, " + ("axes=2, extent=(14, 14)" if on_image else "extent=2048, causal=True")
    encoding = pejax.make_encoding(name, TEXT)
    learned = bool(sum(parameters(name, IMAGE if on_image else TEXT)))
    lines = [f"dims = pejax.Dims({dims})", f"encoding = pejax.encodings.{name}(dims)"]
    if learned:
        lines.append("params = pejax.init_params(encoding, jax.random.key(0))  # train them with your own")
    if encoding.embed is not None:
        at = "jnp.arange(x.shape[-2])"
        lines.append(f"x = encoding.embed({'params' if learned else '{}'}, x, {at})  # x: batch, tokens, 512 channels")
    else:
        lines.insert(0, "# q, k, v: batch, tokens, heads, channels of a head")
        if on_image:
            lines.append('grid = {"positions": pejax.grid_positions(14, 14), "extent": (14, 14)}')
        options = ["params=params"] * learned + ["**grid"] * on_image
        lines.append(f"out = pejax.attend({', '.join(['encoding', 'q', 'k', 'v', *options])})")
    return "```python\n" + "\n".join(lines) + "\n```"


def in_words(name: str) -> str:
    """Return the lines of `pejax.explain` on the hooks, as a list."""
    lines = pejax.explain(pejax.make_encoding(name, TEXT)).splitlines()
    kept = [line for line in lines if not line.startswith(("encoding:", "parameters:", "cost:"))]
    return "\n".join(f"- {line}" for line in kept)


def pictures(record: Record) -> str:
    """Return the page to play with, and the pictures of an encoding with their captions in the gallery."""
    items = {item.file: item for section in SECTIONS.values() for item in section if item.picture}
    shown = [f"<!-- play: {record.played} -->"] if record.played else []
    for file in record.pictures:
        item = items[file]
        shown.append(f"{item.described()}\n\n![{item.picture.replace('_', ' ')}]"
                     f"(../figures/gallery/{file})")  # fmt: skip
    return "\n\n".join(shown)


def cost(name: str, found: Measurements) -> str:
    """Return the section on cost."""
    head = ["setting", f"parameters, {LAYERS} layers", "FLOPs per layer", "FLOPs once", "memory per layer"]
    text = [
        f"Of a model with {LAYERS} layers, 12 heads and width 768, beside the same model without an encoding:",
        markdown_table(head, cost_rows(name, found)),
        (
            "FLOPs are those of one example in the forward pass, in percent of the layer's attention with its"
            " projections, for all pairs of tokens, masked or not. XLA counts them in the program of each hook; where a"
            " bias depends on the distance alone, pejax evaluates each distance once and needs fewer. Memory is what"
            " XLA plans for temporary arrays of one attention layer, forward and backward, on a CPU."
            f" (`{found.costs['command']}`, {found.costs['date']}.)"
        ),
    ]
    times = {way: table.rows[name][0] for way, table in found.times.items() if name in table.rows and name != "none"}
    if times:
        said = ", ".join(f"{way} {cell.split(' ')[0]}" for way, cell in times.items())
        text.append(
            f"Time of causal attention at 2,048 tokens, as a multiple of the time without an encoding: {said}"
            " (two CPU cores, float32; [all measurements](../../benchmarks/RESULTS.md))."
        )
    return "\n\n".join([*text, *([RECORDS[name].more] if name == "fire" else [])])


def extrapolation(name: str, found: Measurements) -> str:
    """Return the section on inputs beyond the trained size."""
    parts = []
    for title, table, trained in (
        ("Text: perplexity per byte by context length", found.perplexity, "128"),
        ("Fashion-MNIST: top-1 in percent by image size", found.fashion, "28"),
        ("Glyphs: top-1 in percent by image size", found.glyphs, "28"),
    ):
        rows = [[f"`{row}`", *cells] for row, cells in table.of(name).items()]
        if rows:
            parts.append(f"{title}, trained at {trained}.\n\n{markdown_table(['encoding', *table.columns], rows)}")
    if not parts:
        return "Not measured yet."
    parts.append(
        "One run each, with seed 0, of small models on small data. See [Results](../results.md) for how they were"
        " trained and for all encodings next to each other."
    )
    if RECORDS[name].more and name != "fire":
        parts.append(RECORDS[name].more)
    return "\n\n".join(parts)


def functions_of(name: str) -> list[str]:
    """Return the public functions of an encoding: those of its own module, and those its record names."""
    module = inspect.getmodule(inspect.unwrap(pejax.encodings.ENCODINGS[name]))
    own = [one for one in functions.__all__ if getattr(functions, one).__module__ == module.__name__]
    return [*own, *(one for one in RECORDS[name].functions if one not in own)]


def links(name: str) -> str:
    """Return links to the reference."""
    made = [f"[`pejax.encodings.{name}`](../reference/encodings.md#pejax.encodings.{name})"]
    made += [
        f"[`pejax.functions.{one}`](../reference/functions.md#pejax.functions.{one})" for one in functions_of(name)
    ]
    return "\n".join(f"- {one}" for one in made)


def presets(name: str) -> list[str]:
    """Return the section on the presets of a factory that has some."""
    if "preset" not in inspect.signature(pejax.encodings.ENCODINGS[name]).parameters:
        return []
    lines = ["| preset | axes | options | positions | models: class |", "|---|---|---|---|---|"]
    for key, one in pejax.encodings.PRESETS.items():
        options = ", ".join(f"{option}={value!r}" for option, value in one.options.items())
        lines.append(f"| `{key}` | {one.axes} | `{options}` | {one.positions} | {one.source} |")
    text = (
        "`preset=` gives the options of a published model that a call does not give itself. The angles equal those of"
        " the named class (`pytest -m parity tests/encodings/test_presets_parity.py`), and MHRoPE's equal its formula."
        " Widths and bases are the defaults of the class; a checkpoint may have others."
    )
    return ["## Presets", text, "\n".join(lines)]


def sources(name: str) -> str:
    """Return the papers that the module names, with links to arXiv."""
    papers = re.split(r"\n(?=[A-Z][a-z]+ et al\. )", reference_of(name))
    joined = [" ".join(paper.split()) for paper in papers]
    link = r"[arXiv \1](https://arxiv.org/abs/\1)"
    return "\n".join("- " + re.sub(r"arXiv (\d{4}\.\d{4,5})", link, paper) for paper in joined)


def page(name: str, found: Measurements) -> str:
    """Return the text of the page of an encoding."""
    record, encoding = RECORDS[name], pejax.make_encoding(name, TEXT)
    formulas = "\n\n".join(f"```math\n{formula}\n```" for formula in record.formulas)
    of_text, of_image = (sum(parameters(name, dims)) for dims, _ in SETTINGS.values())
    facts = [
        ["acts on", ", ".join(acts_on(encoding))],
        ["learned parameters", "yes" if of_text or of_image else "no"],
        ["shift invariant", "yes" if encoding.shift_invariant else "no"],
        ["on images", record.on_grids],
    ]
    rows = "\n".join(f"| {key} | {value} |" for key, value in facts)
    return "\n\n".join([
        f"# {record.title}", HERE, f"{record.sentence.removesuffix('.')} ({paper_links(name)}).", example(name),
        f"| name | `{name}` |\n|---|---|\n{rows}",
        "## Formula", formulas, record.symbols,
        "## Where it acts", in_words(name),
        "## Pictures", pictures(record),
        "## Cost", cost(name, found),
        "## Beyond the trained size", extrapolation(name, found),
        "## Used by", record.used_by,
        *presets(name),
        "## Functions", links(name),
        "## Source", sources(name),
    ]) + "\n"  # fmt: skip


def pages() -> dict[Path, str]:
    """Return the text of every page by its file.

    Raises:
        ValueError: an encoding without a record, a record without an encoding, or a changed table of results.
    """
    if set(RECORDS) != set(pejax.encodings.ENCODINGS):
        raise ValueError(f"records and encodings differ: {sorted(set(RECORDS) ^ set(pejax.encodings.ENCODINGS))}")
    found = measurements()
    written = {DOCS / "encodings" / f"{name}.md": page(name, found) for name in RECORDS}
    guide = DOCS / "which-one.md"
    tables = {"scores": scores_of_all(found), "results": results_of_all(found), "costs": costs_of_all(found)}
    encodings = {name: pejax.make_encoding(name, TEXT) for name in RECORDS}
    return {**written, guide: filled(guide.read_text(encoding="utf-8"), tables), **lists(encodings)}


def main() -> None:
    """Write the pages."""
    for path, text in pages().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
