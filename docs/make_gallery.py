"""Draw every picture of docs/gallery.md and write the page: `python docs/make_gallery.py [NAME ...]`.

Without names all pictures are drawn, drawings for light and for dark pages. They are those that `python -m pejax.visualize` writes, at the size of the page.
"""

# ruff: noqa: E501 (captions)

import json
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

from pejax._visualize.trained import IMAGES, STORED, TEXT, Training

DOCS = Path(__file__).parent
FIGURES = DOCS / "figures" / "gallery"

DPI = 144
"""Pixels per inch of heat maps inside of the pictures."""

FIXED = "Nothing in it is trained or random."
WORDS = "Nothing is trained; words and projections are random."
INITIAL = "Nothing is trained: parameters are initial ones, and they, words and projections are random."


def as_trained(training: Training, name: str, random: str = "") -> str:
    """Return the sentences on an encoding that is shown as trained: on what, by which command, and what is random."""
    command = json.loads(STORED.read_text(encoding="utf-8"))[training.program]["command"]
    command = command.replace("SPEC", training.specs[name]).replace('"', "" if "(" not in training.specs[name] else '"')
    return f"Trained on {training.data}: `{command}`. {random or 'Nothing in it is random.'}"


class Item(NamedTuple):
    """A picture of the page.

    Attributes:
        function: name of the function or method that draws it, "" = one of `docs/history.py`.
        spec: spec of the encoding, "" = all of them.
        picture: name of the picture in the command.
        caption: description of the picture.
        origin: sentences on what in it is trained and what is random.
    """

    function: str
    spec: str
    picture: str
    caption: str
    origin: str = FIXED

    @property
    def file(self) -> str:
        """The name of the image for light pages; that of a drawing for dark ones ends in `-dark`."""
        ending = "gif" if "animat" in self.function else "svg"
        return f"{self.spec or 'all'}_{self.picture}.{ending}"

    @property
    def command(self) -> str:
        """The command that draws the picture; "" = it is a page."""
        if not self.picture:
            return ""
        if not self.function:
            return f"python docs/make_gallery.py {self.file}"
        return f"python -m pejax.visualize {self.spec or 'all'} --only={self.picture}"

    def described(self, of: str = "") -> str:
        """Return the caption, after the function that draws the picture, with what is trained and the command."""
        head = f"**`{self.function}`**{of}. " if self.function else ""
        drawn = f" Drawn by `{self.command}`." if self.command else ""
        return " ".join(f"{head}{self.caption} {self.origin}{drawn}".split())


SECTIONS: dict[str, list[Item]] = {
    "Why position at all": [
        Item("plot_word_order", "", "word_order",
             "What attention puts out for each word of a sentence, and of the same words in reverse. Without an encoding (`none`) nothing changes but rounding. Without a causal mask ALiBi changes nothing either: reversed, all distances stay. The others tell who bites. Differences have colors of their own.", "Nothing is trained; words, projections and the table of T5 are random."),
        Item("Pictures.token_points_animation", "none", "token_points",
             "Tokens as points. Positions are multiplied by t from 0 to 1. Equal words are one point, and `none` never"
             " moves them apart.", WORDS),
        Item("Pictures.token_points_animation", "sinusoidal", "token_points",
             "The sinusoid is added: every word is moved along the same path.", WORDS),
        Item("Pictures.token_points_animation", "rope", "token_points", "RoPE turns every word around the origin: its length stays.", WORDS),
        Item("Pictures.token_points_animation", "alibi", "token_points",
             "ALiBi leaves the tokens alone. What attention puts out for them moves: near words count for more.", WORDS),
        Item("Pictures.token_points", "", "",
             "The same as a page that you can turn with the mouse: `figure.write_html(\"points.html\")`.", ""),
    ],
    "Added to the input": [
        Item("Pictures.embedding", "sinusoidal", "embedding",
             "The sinusoid: fast waves in the first channels, slow ones in the last. The line is the trained length."),
        Item("Pictures.embedding_curves", "sinusoidal", "embedding_curves",
             "Single channels of it. Beyond a quarter of them a wave is longer than the sequence."),
        Item("Pictures.position_similarity", "sinusoidal", "position_similarity",
             "The cosine of every two positions, at 512 channels. It depends on the distance alone, and it falls much"
             " more slowly than often said: 0.74 at 5 tokens, 0.68 at 10, 0.54 at 40."),
        Item("Pictures.position_similarity", "fourier", "position_similarity",
             "Fourier features, six octaves of the centers of tokens between -1 and 1. Positions half, a quarter and an eighth of the length apart are alike, too: 0.68, 0.50 and 0.42.",
             "Nothing is trained; the projection is random."),
        Item("Pictures.embedding", "learned", "embedding", "A learned table: one row per position, and none beyond its end.", as_trained(TEXT, "learned")),
    ],
    "Rotations": [
        Item("plot_needle", "rope", "needle", "A needle that every position turns by a right angle."),
        Item("animate_needle", "rope", "needle_animation",
             "A query and a key at a fixed distance, moving along the sequence. Turned (RoPE), their product stays."
             " Pushed (a sinusoid added), it does not."),
        Item("Pictures.rotation", "rope", "rotation", "Pairs of channels turn at their own speed, radians per token."),
        Item("Pictures.rotation_animation", "rope", "rotation_animation", "The same as hands of clocks."),
        Item("Pictures.rotary_steps", "rope", "rotary_steps",
             "How a query gets its position: it is cut into pairs, and each one is turned by position times frequency."
             " Both words \"the\" have the same query until then.", WORDS),
        Item("Pictures.rotation_angles", "rope", "rotation_angles",
             "All angles and their cosines. Beyond the trained length the slow pairs reach angles never seen before."),
        Item("Pictures.logits_by_distance", "rope", "logits_by_distance",
             "The logit between two copies of a word against their distance. RoPE has no decay built in: the mean falls,"
             " rises again, and single words differ.", WORDS),
    ],
    "Biases": [
        Item("plot_slopes", "alibi", "slopes",
             "ALiBi's slopes. Head 0 is the steepest where the number of heads is a power of two; 12 heads continue with"
             " every second slope of 16."),
        Item("Pictures.bias", "alibi", "bias", "ALiBi's bias of each head. Colors follow a root, so that gentle slopes show."),
        Item("Pictures.bias_curves", "alibi", "bias_curves", "The same against the distance, beyond the trained length."),
        Item("Pictures.logit_terms", "alibi", "logit_terms", "Products of queries and keys, plus the bias, and the softmax.", WORDS),
        Item("Pictures.attention_weights", "alibi", "attention_weights", "The weights of each head: steep ones stay local.", WORDS),
        Item("plot_slopes", "alibi", "scaled_slopes", "Slopes scaled for a context four times as long."),
        Item("Pictures.grid_bias", "alibi", "grid_bias",
             "ALiBi on an image: the Euclidean distance to one patch. Colors follow a root, so that gentle slopes show."),
        Item("Pictures.logit_terms", "alibi", "logit_terms_on_a_grid", "The terms on an image: its bias is symmetric.", "Nothing is trained; patches and projections are random."),
        Item("plot_t5_buckets", "t5", "t5_buckets",
             "T5's buckets. Bidirectional, keys before the query have 0 to 15 and keys after it 17 to 31."),
        Item("Pictures.bias_curves", "t5", "bias_curves",
             "T5's bias: each head has a number for every bucket. Far keys share one.", as_trained(TEXT, "t5")),
        Item("Pictures.bias_curves", "kerple", "bias_curves", "KERPLE: a logarithm of the distance.", as_trained(TEXT, "kerple")),
        Item("Pictures.bias_curves", "fire", "bias_curves",
             "FIRE: a small network of the logarithm of the distance. From the threshold on, the distance"
             " is divided by the position of the query, so longer inputs read the same range of the network.", as_trained(TEXT, "fire")),
        Item("Pictures.grid_bias", "fire", "grid_bias",
             "FIRE on an image: one network for rows and one for columns, added.", as_trained(IMAGES, "fire")),
        Item("Pictures.grid_bias", "cpb", "grid_bias",
             "The continuous position bias: one small network of the offset, which tells directions apart.", as_trained(IMAGES, "cpb")),
        Item("Pictures.grid_bias", "lookhere", "grid_bias",
             "LookHere: each head sees a cone of patches, and those that it sees count for less with their distance. Gray"
             " patches are hidden."),
        Item("Pictures.shaw_table", "shaw", "shaw_table", "Shaw's table of the first layer: beyond the clip all keys share a row. Rows of keys after the query keep their"
             " random initial values, since under a causal mask no query reads them.", as_trained(TEXT, "shaw")),
        Item("Pictures.transformer_xl_terms", "transformer_xl", "transformer_xl_terms",
             "The four terms of Transformer-XL, in the first layer. In the last two any query is asked, so their rows are alike, or shifted.", as_trained(TEXT, "transformer_xl", "Words and projections are random.")),
    ],
    "Frequencies": [
        Item("plot_plane_waves", "rope_mixed", "plane_waves",
             "Pairs of channels as waves over an image. Axial ones run along an axis, mixed ones"
             " in any direction.", "Nothing is trained; the frequencies of rope_mixed are random."),
        Item("plot_learned_frequencies", "rope_mixed", "learned_frequencies",
             "Mixed frequencies before and after a small training: each head attends to the patch at its own offset.", "Trained for the picture: frequencies, one query and one key. Their initial values are random."),
    ],
    "Longer contexts": [
        Item("plot_interpolated_positions", "rope", "interpolated_positions",
             "Position interpolation: 4096 tokens between the positions of 2048."),
        Item("plot_wavelengths", "rope", "wavelengths",
             "Wavelengths against the trained length. Position interpolation divides all frequencies, NTK and YaRN spare"
             " the fast ones. LongRoPE's factors are found by a search, here for a small stand-in of a model's loss.", "Nothing is trained; the candidates of the search are random."),
        Item("plot_logit_extrapolation", "rope", "logit_extrapolation",
             "A logit that is well-behaved in training can be anything beyond it, and still lies within it in between. The curve that it follows in training is random and smooth.", "Nothing is trained; the given logits are random."),
        Item("plot_decay_bounds", "rope", "decay_bounds",
             "RoFormer's bound falls, but it is far above the products, which do not. The bound of the error of"
             " interpolation is a thousand times smaller.", "Nothing is trained; the query and the key are random."),
        Item("plot_extrapolation", "", "extrapolation",
             "Copies of one word at four times the trained length, with initial parameters. Only position tells them apart.", INITIAL),
        Item("plot_attention_entropy", "", "attention_entropy",
             "How spread attention is, with eight heads, random tokens and projections, and initial parameters. Encodings whose curves coincide share one. At 256 tokens LookHere, ALiBi and KERPLE are the least spread on average, because their steep heads stay local; the gentlest heads of ALiBi and KERPLE are as spread as the rest (right).", INITIAL),
        Item("plot_attention_entropy", "", "attention_entropy_of_one_head",
             "With a single head, as in a comparison that is often repeated: there ALiBi's slope is its gentlest, 2^-8,"
             " its entropy is as high as RoPE's, and the sinusoid's is the lowest. The comparison concluded the opposite.", INITIAL),
    ],
    "Attention": [
        Item("plot_visited_tiles", "", "visited_tiles", "Which tiles of attention are visited under each mask."),
    ],
    "History": [
        Item("", "", "timeline", "Methods by the date of their first version. RoPE came before ALiBi.", ""),
        Item("", "", "family_tree", "Which method came from which.", ""),
    ],
}  # fmt: skip

INTRODUCTION = """# Gallery

Every picture of [`pejax.visualize`](reference/visualize.md), computed by the functions of the library. This command
writes all that suit one encoding:

```bash
pip install -e ".[visualize]" && python -m pejax.visualize alibi --out=figures/
```

From Python, pictures of one encoding are the methods of `Pictures`; all others are functions:

```python
import pejax
import pejax.visualize

alibi = pejax.encodings.alibi(pejax.Dims(heads=8, head_dim=64, causal=True))
figure = pejax.visualize.Pictures(alibi, theme="dark").bias(length=32)
```

Parameters that are learned are the initial ones unless you pass yours. The captions say what is trained and what is
random here; random numbers have the seed 0. The trained parameters are in the package, and
`python docs/make_trained_encodings.py` trains them anew. `python docs/make_gallery.py` draws this page.
"""


def page() -> str:
    """Return the text of the page."""
    parts = [INTRODUCTION]
    for section, items in SECTIONS.items():
        parts.append(f"## {section}\n")
        for item in items:
            of = f", `{item.spec}`" if item.spec else ""
            parts.append(f"{item.described(of)}\n")
            if item.picture:
                parts.append(f"![{item.picture.replace('_', ' ')}](figures/gallery/{item.file})\n")
    return "\n".join(parts)


def smaller(svg: str) -> str:
    """Return an SVG without metadata, comments and indentation, with places to a tenth of a point."""
    svg = re.sub(r"<metadata>.*?</metadata>\n?|<!--.*?-->\n?", "", svg, flags=re.DOTALL)
    rounded = lambda place: re.sub(r"(\d\.\d)\d+", r"\1", place[0])
    return re.sub(r' (?:d|x|y|transform)="[^"]*"', rounded, re.sub(r"\n +", "\n", svg))


def draw(item: Item, theme: str) -> Path:
    """Draw one picture in a theme into its file."""
    import matplotlib
    from history import draw_family_tree, draw_timeline

    from pejax._visualize.command import PICTURES, TOGETHER, variants_of
    from pejax._visualize.style import THEMES

    table = {picture.name: picture.draw for picture in (PICTURES if item.spec else TOGETHER)}
    table |= {
        "timeline": lambda _, theme: draw_timeline(THEMES[theme]),
        "family_tree": lambda _, theme: draw_family_tree(THEMES[theme]),
    }
    variants: Any = variants_of(item.spec) if item.spec else None
    made = table[item.picture](variants, theme)
    path = FIGURES / item.file
    path = path if theme == "light" else path.with_stem(f"{path.stem}-{theme}")
    if path.suffix == ".gif":
        made.save(path, dpi=96, colors=48)
    else:
        # text stays text, so that it is sharp at any size, and files are the same each time
        with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": path.stem}):
            made.savefig(path, format="svg", dpi=DPI, metadata={"Date": None})
        path.write_text(smaller(path.read_text(encoding="utf-8")), encoding="utf-8")
    return path


def main() -> None:
    """Draw the pictures named, or all, in both themes, and write the page."""
    FIGURES.mkdir(parents=True, exist_ok=True)
    (DOCS / "gallery.md").write_text(page(), encoding="utf-8")
    for items in SECTIONS.values():
        for item in items:
            if item.picture and (not sys.argv[1:] or item.file in sys.argv[1:]):
                for theme in ("light", "dark") if item.file.endswith(".svg") else ("light",):
                    path = draw(item, theme)
                    print(f"{path.relative_to(DOCS)}: {path.stat().st_size:,} bytes", flush=True)


if __name__ == "__main__":
    main()
