"""Names in Markdown: shown as they are, read by a parser of CommonMark; ordinary ones are not changed at all."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from train.engine.markdown import escape_markdown

MarkdownIt = pytest.importorskip("markdown_it").MarkdownIt
PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])

NAMES = st.text(st.sampled_from("ab1 (){}[]<>!#*_-+=~`|\\&;:/.$\"'\n"), min_size=1, max_size=12)
HOSTILE = [
    *("![x](http://a.b/c.png)", "[x](javascript:alert(1))", "[x]: http://a.b", "<script>alert(1)</script>", "<!--"),
    *(
        "<http://a.b>",
        "a | b",
        "`a",
        "```",
        "~~~",
        "~~a~~",
        "**a**",
        "__a__",
        "*a*",
        "_a_",
        "\\](x)",
        "a\\",
        "&lt;b&gt;",
    ),
    *("# a", "> a", "- a", "x\n\n# y", "$a$", "a](http://a.b)![b", "a]", "[a", "![a", "[a][b]", "[[a]](x)", "\\`a\\`"),
]


def shown(text: str) -> str:
    """Return what a document of one line shows; that the line is one text is checked."""
    tokens = [token for token in PARSER.parse(text) if token.type == "inline"]
    assert len(tokens) == 1
    assert {child.type for child in tokens[0].children} <= {"text", "text_special"}
    return "".join(child.content for child in tokens[0].children)


@given(NAMES)
@example("[a]")
@example("a\\")
def test_a_name_is_shown_as_it_is(name: str) -> None:
    line, text = escape_markdown(name), " ".join(name.split())
    if text:
        assert shown(f"name {line}") == f"name {text}"
        assert shown(f"# {line} .") == f"{text} ."
        tokens = PARSER.parse(f"| {line} | b |\n|---|---|\n| {line} | 2 |\n")
        cells = [token.children for token in tokens if token.type == "inline"]
        assert ["".join(child.content for child in cell) for cell in cells] == [text, "b", text, "2"]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_does_nothing(name: str) -> None:
    line = escape_markdown(name)
    for text in (
        line,
        f"- {line}",
        f"{line} ![a](<a.png>)",
        f"**{line}**",
        f"## {line}",
        f"- {line}: why",
        f"![{line}](<a.png>)",
    ):
        page = PARSER.render(text)
        assert "<script" not in page
        assert "<a " not in page
        assert "<code" not in page
        assert "<del" not in page
        assert "<em" not in page
        assert page.count("<strong") == text.startswith("**")
        assert page.count("<img") == page.count('src="a.png"') == text.count("<a.png>")
        assert page.count("<h") == text.startswith("## ")


@pytest.mark.parametrize(
    "name",
    ["rope(base=100)", "pi(stretch=True)", "28 px", "runs/compare-vit_x", "rope --lr=0.001", "2 * 3", "-0.3 ±0.1",
     "alibi(slope_scale=2) + yarn", "C:\\runs", "~/runs", "5 & 6", "[]", "[48, 96]", "a[lr=1] x", "top-1, %", "a · b"],
)  # fmt: skip
def test_ordinary_names_are_not_changed(name: str) -> None:
    assert escape_markdown(name) == name


def test_control_characters_are_written_out() -> None:
    assert escape_markdown("a\x1b[2Jb\u202e") == "a\\x1b\\[2Jb\\u202e"
