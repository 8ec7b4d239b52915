"""The console of the user: paths, labels and messages are shown as they are, and a closed pipe ends nothing."""

import sys
from typing import Any

from rich.console import Console
from rich.segment import Segment
from rich.status import Status
from rich.text import Text

from pejax._process.text import discard, plain, printable


def user_console(stderr: bool = False, quiet: bool = False) -> Console:
    """Return the console that a program prints to, on the standard output or error output, or to nothing."""
    return _UserConsole(stderr=stderr, quiet=quiet, soft_wrap=True, highlight=False, markup=False, emoji=False)


class _UserConsole(Console):
    """A console without markup and control characters, since people choose names of files, runs and encodings."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text as it is shown: before the layout, since plain characters may take more room."""
        text = printable(text)
        return super().render_str(text if self._unicode else plain(text, self.encoding), **options)

    def render(self, renderable: Any, options: Any = None) -> Any:
        """Yield the segments of anything, without control characters of texts that did not come as strings."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)

    def status(self, status: Any, **options: Any) -> Status:
        """Show a text with a spinner that the encoding has."""
        return super().status(status, **{"spinner": "dots" if self._unicode else "line", **options})

    def on_broken_pipe(self) -> None:
        """Print nothing more, as after `| head -1`: the files of the command are not lost with its reader."""
        self.quiet = True
        discard(sys.stderr if self.stderr else sys.stdout)

    @property
    def _unicode(self) -> bool:
        return self.encoding.startswith("utf")
