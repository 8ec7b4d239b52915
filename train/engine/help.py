"""The text of `--help`: what a program does, examples, the options that matter first, and all others in groups."""

import argparse
import dataclasses
import shutil
import textwrap
from collections.abc import Iterable, Mapping

from simple_parsing import SimpleHelpFormatter
from simple_parsing.helpers.custom_actions import BooleanOptionalAction

from train.engine.options import GROUPS

EXAMPLES = 3
"""Most examples that are shown."""


@dataclasses.dataclass(frozen=True)
class About:
    """What `--help` says beside the options.

    Args:
        docstring: docstring of the program's module: a sentence, examples in indented lines, then paragraphs.
        first: names of the options that matter most, which come first; empty = all options are in one list.
        groups: titles of the groups of the others, by their names.
    """

    docstring: str
    first: tuple[str, ...] = ()
    groups: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def sentence(self) -> str:
        """The first line of the docstring: the purpose of the program."""
        return self.docstring.partition("\n")[0]

    @property
    def examples(self) -> list[str]:
        """The lines of the first examples."""
        lines = (line.strip() for line in self.docstring.splitlines() if line.startswith("    python "))
        return [line for line in lines if "--help" not in line][:EXAMPLES]

    @property
    def paragraphs(self) -> str:
        """The paragraphs after the examples."""
        parts = self.docstring.strip().split("\n\n")[1:]
        return "\n\n".join(part.strip() for part in parts if not part.startswith("    "))


NARROW = 72
"""Columns of a terminal below which the help of an option, or of an example, begins on a line of its own."""


class HelpFormatter(SimpleHelpFormatter):
    """Options with their defaults, where these say anything, in the columns that the terminal has."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=12 if shutil.get_terminal_size().columns < NARROW else 28)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("examples:"):  # commands are copied, so they are not broken
            return "\n".join(_example(line, width) for line in text.splitlines()) if width < NARROW - 2 else text
        return "\n\n".join(self._fill_paragraph(part, width) for part in text.split("\n\n"))

    def _fill_paragraph(self, part: str, width: int) -> str:
        """Return a paragraph as it is, or wrapped anew if the terminal is narrower."""
        if max(map(len, part.splitlines()), default=0) <= width:
            return part
        return "\n".join(self._split_lines(part, width))

    def _split_lines(self, text: str, width: int) -> list[str]:
        text = " ".join(text.split())  # specs and options in it are copied, so they are not broken
        return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is False or action.default in (None, "", (), [], argparse.SUPPRESS):
            return (action.help or "").removesuffix(" (default: %(default)s)")
        return super()._get_help_string(action)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if isinstance(action, BooleanOptionalAction):
            return ", ".join(action.option_strings)
        return super()._format_action_invocation(action)


def _example(line: str, width: int) -> str:
    """Return a command, and on lines of their own what it does."""
    command, _, description = line.partition(" " * 3)
    indent = " " * 6
    return "\n".join(
        [command, *textwrap.wrap(description.strip(), width, initial_indent=indent, subsequent_indent=indent)]
    )


def sections(actions: Iterable[argparse.Action], about: About) -> dict[str, list[argparse.Action]]:
    """Return the options by the titles of their sections, without empty ones."""
    remaining = {action.dest.rpartition(".")[2]: action for action in actions}
    arguments = [remaining.pop(name) for name, action in [*remaining.items()] if not action.option_strings]
    first = [remaining.pop(name) for name in about.first]
    groups = {
        title: [remaining.pop(name) for name in [*remaining] if about.groups.get(name) == title] for title in GROUPS
    }
    last_title = "other options" if first else "options"
    sections_by_title = {
        "arguments": arguments,
        "the options that matter first": first,
        **groups,
        last_title: [*remaining.values()],
    }
    return {title: members for title, members in sections_by_title.items() if members}
