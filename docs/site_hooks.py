"""Show files from outside of docs/ on the site, with the links that GitHub needs left as they are.

The pages in docs/ link to `../benchmarks/RESULTS.md` and show `../benchmarks/figures/*.png`. On the site these files
sit next to the pages, so the last `../` is dropped. CONTRIBUTING.md and CHANGELOG.md link to `docs/*.md` and
RESULTS.md to `../docs/*.md` instead.

A fence of LaTeX, ```math, becomes MathML while the site is built: the browser draws it without JavaScript, and GitHub
draws the same fence in its own way. A figure that has a twin for dark pages is shown by the mode of the page.

A comment `<!-- play: NAME -->` becomes a frame with a page of `pejax.visualize`, written while the site is built.
"""

import re
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File
from mkdocs.utils import get_relative_url

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(Path(__file__).parent))

from encoding_records import RECORDS  # noqa: E402

SHOWN = (
    "CHANGELOG.md",
    "CITATION.cff",
    "CONTRIBUTING.md",
    "benchmarks/RESULTS.md",
    "benchmarks/figures/*.*",
    "examples/*.py",
    "colab/*.ipynb",
    "train/data/text/*.py",
    "train/devices/*.py",
    "train/engine/*.py",
    "train/lm/*.py",
)
"""Files outside of docs/ that its pages link to."""

PAIRED = re.compile(r"!\[([^\]]*)\]\(([\w./]*figures/(?:gallery/)?\w+)\.(svg|gif)\)")
"""A figure of `benchmarks.figures` or of the gallery. A drawing has a twin for dark pages."""

PLAYED = {"sinusoid": "The sinusoid", "needle": "The turning needle", "bias": "Biases over a grid"}
"""Names and titles of the pages to play with; `pejax.visualize.NAME_page` writes one."""
PLAY = re.compile(r"<!-- play: (\w+) -->")


def formula(source: str, *_: Any, **__: Any) -> str:
    """Return a formula as MathML.

    Raises:
        ValueError: LaTeX with a command that the converter does not know.
    """
    made = convert(source.strip(), display="block")
    if "\\" in made:
        raise ValueError(f"a command of this formula is unknown: {source}")
    return f'<div class="formula">{made}</div>'


def natural_width(path: Path) -> float:
    """Return the width at which the text of a picture has its own size, CSS pixels."""
    if path.suffix == ".gif":
        return int.from_bytes(path.read_bytes()[6:8], "little")
    return float(re.search(r'<svg[^>]* width="([\d.]+)pt"', path.read_text(encoding="utf-8"))[1]) * 96 / 72


def paired(found: re.Match[str], folder: Path) -> str:
    """Return a figure and its twin in a frame that scrolls where the text would become too small to be read.

    An animation has no twin: `site.css` inverts its brightness on dark pages.
    """
    alt, name, ending = found.groups()
    style = f'{{ style="--natural: {natural_width(folder / f"{name}.{ending}"):.0f}px" }}'
    twins = {"": "#only-light", "-dark": "#only-dark"} if ending == "svg" else {"": ""}
    both = "".join(f"![{alt}]({name}{twin}.{ending}{mode}){style}" for twin, mode in twins.items())
    return f'<div class="picture" tabindex="0" role="group" aria-label="{alt}" markdown>\n\n{both}\n\n</div>'


def on_config(config: Any) -> Any:
    """Have fences of LaTeX converted, and the pages of encodings in the navigation."""
    part = next(part for part in config.nav if "Encodings one by one" in part)
    part["Encodings one by one"] = [f"encodings/{name}.md" for name in RECORDS]
    fence = {"name": "math", "class": "formula", "format": formula}
    config.mdx_configs.setdefault("pymdownx.superfences", {})["custom_fences"] = [fence]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the files to those of docs/, and the pages to play with."""
    import pejax.visualize

    for name in PLAYED:
        content = getattr(pejax.visualize, f"{name}_page")()
        files.append(File.generated(config, f"play/{name}.html", content=content))
    for pattern in SHOWN:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_content(html: str, **_: Any) -> str:
    """Keep the options of commands whole: browsers break lines after their hyphens."""
    return re.sub(r"<code>(-[^<\s]{1,29})</code>", r'<code class="option">\1</code>', html)


def on_post_page(output: str, **_: Any) -> str:
    """Give the dialog of the search the name that the theme leaves out, for readers of the page by ear."""
    return output.replace('role="dialog">', 'role="dialog" aria-label="Search">', 1)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links between docs/ and the rest of the repository into links within the site."""
    address = lambda name: get_relative_url(f"play/{name}.html", page.url)
    frame = lambda found: f'<iframe class="play" src="{address(found[1])}" title="{PLAYED[found[1]]}"></iframe>'
    markdown = PLAY.sub(frame, markdown)
    folder = Path(page.file.abs_src_path).parent
    markdown = PAIRED.sub(lambda found: paired(found, folder), markdown)
    if page.file.src_uri in SHOWN:
        return re.sub(r"\]\(((?:\.\./)*)docs/", r"](\1", markdown)
    up = "../" * page.file.src_uri.count("/")
    return re.sub(rf"\]\({re.escape(up)}\.\./", f"]({up}", markdown)
