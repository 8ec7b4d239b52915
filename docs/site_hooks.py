"""Show files from outside of docs/ on the site, with the links that GitHub needs left as they are.

The pages in docs/ link to `../benchmarks/RESULTS.md` and show `../benchmarks/figures/*.png`. On the site these files
sit next to the pages, so a leading `../` is dropped. CONTRIBUTING.md and CHANGELOG.md link to `docs/*.md` instead.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
SHOWN = ("CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/RESULTS.md", "benchmarks/figures/*.png", "examples/*.py")


def on_files(files: Any, config: Any) -> Any:
    """Add the files to those of docs/."""
    for pattern in SHOWN:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links between docs/ and the rest of the repository into links within the site."""
    if page.file.src_uri in SHOWN:
        return re.sub(r"\]\(docs/", "](", markdown)
    return markdown if "/" in page.file.src_uri else re.sub(r"\]\(\.\./", "](", markdown)
