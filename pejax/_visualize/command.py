"""`python -m pejax.visualize NAME --out=FOLDER`: all pictures that suit an encoding, written as files."""

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from pejax._devices import visible_devices
from pejax._dims import Dims
from pejax._encoding import Encoding
from pejax._encodings.rope import rope_frequencies
from pejax._make import make_encoding
from pejax._names import unknown_name
from pejax._parse import parse
from pejax._text import printable
from pejax._visualize import (
    angles,
    attention_by_distance,
    attention_maps,
    attention_masks,
    bias,
    bias_terms,
    extensions,
    frequencies,
    needle,
    points,
    rotation,
    sinusoidal,
    slopes,
)
from pejax._visualize.animation import Animation
from pejax._visualize.demonstrations import found_long_factors, trained_frequencies
from pejax._visualize.pages.bias import LABELS, bias_page
from pejax._visualize.pages.needle import needle_page
from pejax._visualize.pages.sinusoid import sinusoid_page
from pejax._visualize.style import THEMES, require
from pejax._visualize.trained import IMAGES, TEXT
from pejax.encodings import ENCODINGS

SEQUENCE = Dims(heads=8, head_dim=32, extent=32, causal=True)
BOTH_SIDES = Dims(heads=8, head_dim=32, extent=32)
GRID = Dims(heads=4, head_dim=32, axes=2, extent=(14, 14))
SMALL_GRID = Dims(heads=4, head_dim=32, axes=2, extent=(5, 5))
WIDE = Dims(heads=8, head_dim=64, extent=64)
DIMS = {"sequence": SEQUENCE, "both_sides": BOTH_SIDES, "wide": WIDE, "on_grid": GRID}
"""The dims of each encoding of a `Subject`."""


class Subject(NamedTuple):
    """An encoding as the command draws it: made for a sequence, causal and not, for a wider model and for a grid."""

    spec: str
    sequence: Encoding
    both_sides: Encoding
    wide: Encoding
    on_grid: Encoding

    @property
    def name(self) -> str:
        """The name in the registry."""
        return parse(self.spec).parts[0].name

    def longer(self, dims: Dims) -> Encoding:
        """Return the encoding as it reads sequences beyond the trained length: a table must be resized."""
        own = parse(self.spec)
        return make_encoding(own, dims, "resize" if self.name == "learned" and own.extend is None else None)

    def compared(self, dims: Dims) -> dict[str, Encoding]:
        """Return the encoding with `none` beside it."""
        others = {} if self.name == "none" else {"none": make_encoding("none", dims)}
        return {**others, self.spec: self.longer(dims)}


def subject_of(spec: str) -> Subject:
    """Make the encoding for all `DIMS`.

    Raises:
        ValueError: a spec that `make_encoding` refuses.
        TypeError: an argument of a wrong type.
    """
    return Subject(spec, **{name: make_encoding(spec, dims) for name, dims in DIMS.items()})


class Picture(NamedTuple):
    """A picture of an encoding.

    Attributes:
        name: name of the file.
        suits: whether the encoding has what it shows.
        draw: `(subject, theme) -> figure, animation, or the HTML of a page`.
    """

    name: str
    suits: Callable[[Subject], bool]
    draw: Callable[[Subject, str], Any]


def _embeds(one: Subject) -> bool:
    return one.sequence.embed is not None


def _rotates(one: Subject) -> bool:
    return one.sequence.rotate is not None


def _biased(one: Subject) -> bool:
    return one.sequence.bias is not None or one.sequence.distance_bias is not None


def _named(*names: str) -> Callable[[Subject], bool]:
    return lambda one: one.name in names


def _always(one: Subject) -> bool:
    return True


def _of_positions(one: Subject) -> bool:
    """Whether the bias reads no queries."""
    return _biased(one) and one.sequence.relative_keys is None and one.sequence.relative_values is None


def _length(one: Subject, dims: Dims) -> int | None:
    """Return a length beyond the trained one, where there is no table that ends there."""
    return None if one.name == "learned" or not isinstance(dims.extent, int) else 3 * dims.extent // 2


def _of(made_for: str, plot: Callable[..., Any], **options: Any) -> Callable[[Subject, str], Any]:
    """Return the `draw` of a picture of one encoding, as it was made for these dims."""
    return lambda one, theme: plot(getattr(one, made_for), DIMS[made_for], name=one.spec, theme=theme, **options)


def _trained(made_for: str, plot: Callable[..., Any], **options: Any) -> Callable[[Subject, str], Any]:
    """Return the `draw` of a picture of an encoding as trained on text, or as `_of` draws it if it was not."""

    def draw(one: Subject, theme: str) -> Any:
        if one.spec not in TEXT.specs:
            return _of(made_for, plot, **options)(one, theme)
        encoding, params = TEXT.encoding(one.spec), TEXT.params(one.spec)
        return plot(encoding, TEXT.dims, params, name=TEXT.label(one.spec), theme=theme, **options)

    return draw


def _alone(plot: Callable[..., Any], **options: Any) -> Callable[[Subject, str], Any]:
    """Return the `draw` of a picture that takes no encoding."""
    return lambda one, theme: plot(theme=theme, **options)


def _embedding(one: Subject, theme: str) -> Any:
    options = {} if one.spec in TEXT.specs else {"length": _length(one, WIDE)}
    return _trained("wide", sinusoidal.plot_embedding, **options)(one, theme)


PAGES = {"sinusoidal": sinusoid_page, "rope": needle_page, **dict.fromkeys(LABELS, bias_page)}
"""The page to play with of an encoding; each has both themes."""


def _wavelengths(one: Subject, theme: str) -> Any:
    base = float(dict(parse(one.spec).parts[0].options).get("base", 10000.0))
    known = {
        "base": base,
        "trained_length": 4096,
        "factor": 8.0,
        "long_factors": found_long_factors(128, base, 4096, 8),
    }
    return frequencies.plot_wavelengths(rope_frequencies(128, base=base), **known, theme=theme)


def _learned_frequencies(one: Subject, theme: str) -> Any:
    del one
    dims = Dims(heads=4, head_dim=32, axes=2, extent=(8, 8))
    return frequencies.plot_learned_frequencies(*trained_frequencies(dims), theme=theme)


def _plane_waves(one: Subject, theme: str) -> Any:
    others = {"rope_axial": make_encoding("rope_axial", GRID), "rope_mixed": make_encoding("rope_mixed", GRID)}
    return frequencies.plot_plane_waves({**others, one.spec: one.on_grid}, GRID, theme=theme)


def _grid_bias(one: Subject, theme: str) -> Any:
    """Draw a bias with the parameters of a small training, where there are some, or else with the initial ones."""
    if one.spec not in IMAGES.specs:
        return bias.plot_grid_bias(one.on_grid, GRID, patch=(4, 9), name=one.spec, theme=theme)
    encoding, params = IMAGES.encoding(one.spec), IMAGES.params(one.spec)
    name = IMAGES.label(one.spec)
    return bias.plot_grid_bias(encoding, IMAGES.dims, params, patch=(2, 4), name=name, theme=theme)


def _logit_terms_on_a_grid(one: Subject, theme: str) -> Any:
    encoding, name = make_encoding(one.spec, SMALL_GRID), f"{one.spec}, 5 x 5 patches"
    return bias_terms.plot_logit_terms(encoding, SMALL_GRID, name=name, theme=theme)


PICTURES = (
    Picture("embedding", _embeds, _embedding),
    Picture("embedding_curves", _embeds, lambda one, theme: sinusoidal.plot_embedding_curves(
        one.wide, WIDE, length=_length(one, WIDE), name=one.spec, theme=theme)),
    Picture("position_similarity", _embeds, _of("wide", sinusoidal.plot_position_similarity)),
    Picture("needle", _named("rope"), _alone(needle.plot_needle)),
    Picture("needle_animation", _named("rope"), _alone(needle.animate_needle)),
    Picture("rotation", _rotates, _of("sequence", rotation.plot_rotation)),
    Picture("rotation_animation", _rotates, _of("sequence", rotation.animate_rotation)),
    Picture("rotary_steps", _rotates, _of("sequence", rotation.plot_rotary_steps)),
    Picture("rotation_angles", _rotates, _of("wide", angles.plot_rotation_angles, length=2 * 64)),
    Picture("plane_waves", _rotates, _plane_waves),
    Picture("learned_frequencies", _named("rope_mixed"), _learned_frequencies),
    Picture("wavelengths", _named("rope"), _wavelengths),
    Picture("interpolated_positions", _named("rope"), _alone(extensions.plot_interpolated_positions)),
    Picture("decay_bounds", _named("rope"), _alone(extensions.plot_decay_bounds)),
    Picture("logit_extrapolation", _named("rope"), _alone(extensions.plot_logit_extrapolation)),
    Picture("bias", _biased, _of("sequence", bias.plot_bias)),
    Picture("bias_curves", _of_positions, _trained("sequence", bias.plot_bias_curves)),
    Picture("grid_bias", _biased, _grid_bias),
    Picture("slopes", _named("alibi"), _alone(slopes.plot_slopes)),
    Picture("scaled_slopes", _named("alibi"), _alone(
        slopes.plot_slopes, heads=(8,), trained_length=512, length=2048)),
    Picture("t5_buckets", _named("t5"), _alone(bias_terms.plot_t5_buckets)),
    Picture("transformer_xl_terms", _named("transformer_xl"), _trained(
        "sequence", bias_terms.plot_transformer_xl_terms)),
    Picture("shaw_table", _named("shaw"), _trained("wide", bias_terms.plot_shaw_table)),
    Picture("logit_terms", _biased, _of("sequence", bias_terms.plot_logit_terms, length=16, head=2)),
    Picture("logit_terms_on_a_grid", _biased, _logit_terms_on_a_grid),
    Picture("logits_by_distance", _always, lambda one, theme: attention_by_distance.plot_logits_by_distance(
        one.longer(WIDE), WIDE, name=one.spec, theme=theme)),
    Picture("attention_weights", _always, _of("sequence", attention_maps.plot_attention_weights)),
    Picture("extrapolation", _always, lambda one, theme: attention_maps.plot_extrapolation(
        one.compared(SEQUENCE), SEQUENCE, theme=theme)),
    Picture("attention_entropy", _always, lambda one, theme: attention_by_distance.plot_attention_entropy(
        one.compared(BOTH_SIDES), BOTH_SIDES, theme=theme)),
    Picture("word_order", _always, lambda one, theme: attention_masks.plot_word_order(
        {"none": make_encoding("none", BOTH_SIDES), one.spec: one.both_sides}, BOTH_SIDES, theme=theme)),
    Picture("token_points", _always, _of("both_sides", points.animate_token_points)),
    Picture("page", _named(*PAGES), lambda one, theme: PAGES[one.name]()),
)  # fmt: skip
"""The pictures of one encoding, in the order in which they are written."""


def _everything(dims: Dims) -> dict[str, Encoding]:
    return {name: subject_of(name).longer(dims) for name in ENCODINGS}


ONE_HEAD = Dims(heads=1, head_dim=32, extent=16)
TOGETHER = (
    Picture("visited_tiles", _always, _alone(attention_masks.plot_visited_tiles)),
    Picture("extrapolation", _always, lambda one, theme: attention_maps.plot_extrapolation(
        _everything(SEQUENCE), SEQUENCE, theme=theme)),
    Picture("attention_entropy", _always, lambda one, theme: attention_by_distance.plot_attention_entropy(
        _everything(BOTH_SIDES), BOTH_SIDES, theme=theme)),
    Picture("attention_entropy_of_one_head", _always, lambda one, theme: attention_by_distance.plot_attention_entropy(
        _everything(ONE_HEAD), ONE_HEAD, lengths=(8, 16, 32, 64, 128), draws=20, theme=theme)),
    Picture("word_order", _always, lambda one, theme: attention_masks.plot_word_order(
        {name: make_encoding(name, BOTH_SIDES) for name in ("none", "alibi", "sinusoidal", "rope", "t5")},
        BOTH_SIDES, theme=theme)),
)  # fmt: skip
"""The pictures of all encodings together."""


def write(made: Any, path: Path, kind: str) -> Iterator[Path]:
    """Write a figure as one file of this kind, an animation as GIF and HTML, a page as HTML, and give each path."""
    if isinstance(made, Animation):
        for suffix in (".gif", ".html"):
            yield made.save(path.with_suffix(suffix))
    elif isinstance(made, str):
        path = path.with_suffix(".html")
        path.write_text(made, encoding="utf-8")
        yield path
    else:
        path = path.with_suffix(f".{kind}")
        made.savefig(path, dpi=120)
        yield path


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        refuse(message)


def refuse(message: str) -> NoReturn:
    """Print one line and exit with status 2."""
    print(f"pejax.visualize: {' '.join(printable(message).split())}", file=sys.stderr)
    raise SystemExit(2)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write all pictures that suit one encoding, or every one, and print each file that was written.

        python -m pejax.visualize alibi --out=figures/

    Files are `OUT/NAME/PICTURE.png`; animations are GIF and HTML; a page to play with is HTML; pictures of all
    encodings together go to `OUT/all/`. What cannot be drawn is refused in one line, with exit status 2.

    Args:
        arguments: words of the command line. None = those of the process.

    Raises:
        SystemExit: with status 2, an argument is refused or a package of the extra is not installed.
    """
    parser = _Parser(prog="python -m pejax.visualize", description="Write all pictures that suit an encoding.")
    parser.add_argument("encoding", help='a name, or a spec such as "rope(base=500000)", or all')
    parser.add_argument("--out", default="figures", help="the folder (default: figures)")
    parser.add_argument("--theme", default="light", help=f"{' or '.join(THEMES)} (default: light)")
    parser.add_argument("--format", default="png", help="png, svg or pdf, of still pictures (default: png)")
    parser.add_argument("--only", default="", help="names of pictures, joined by commas (default: all that suit)")
    given = parser.parse_args(arguments)
    if given.theme not in THEMES:
        refuse(f"--theme must be one of {', '.join(THEMES)}, got {given.theme!r}")
    if given.format not in ("png", "svg", "pdf"):
        refuse(f"--format must be one of png, svg, pdf, got {given.format!r}")
    try:
        for package in ("matplotlib", "plotly", "PIL"):
            require(package)
        visible_devices()
        work = list(_work(given.encoding, given.only))
        folder = Path(given.out)
        folder.mkdir(parents=True, exist_ok=True)
    except (ValueError, TypeError, ImportError, OSError) as refusal:
        refuse(str(refusal))
    began = time.perf_counter()
    files = 0
    for i, (name, picture, subject) in enumerate(work, 1):
        (folder / name).mkdir(exist_ok=True)
        for path in write(picture.draw(subject, given.theme), folder / name / picture.name, given.format):
            files += 1
            print(f"[{i}/{len(work)}] {printable(str(path))}", flush=True)
    print(f"{files} files in {time.perf_counter() - began:.0f} s")


def _work(spec: str, only: str) -> Iterator[tuple[str, Picture, Any]]:
    """Return the folder, the picture and the subject of each drawing.

    Raises:
        ValueError: an unknown encoding or picture, or one that does not suit.
        TypeError: an argument of another type in the spec.
    """
    known = sorted({picture.name for picture in (*PICTURES, *TOGETHER)})
    wanted = [name.strip() for name in only.split(",") if name.strip()]
    for name in wanted:
        if name not in known:
            raise ValueError(unknown_name("picture", name, known))
    if spec != "all" and re.fullmatch(r"\w+", spec) and spec not in ENCODINGS:
        raise ValueError(unknown_name("encoding", spec, [*ENCODINGS, "all"]))
    found = []
    for one in ENCODINGS if spec == "all" else [spec]:
        subject = subject_of(one)
        folder = re.sub(r"\W+", "_", one).strip("_")
        found += [(folder, picture, subject) for picture in PICTURES if picture.suits(subject)]
    if spec == "all":
        found += [("all", picture, None) for picture in TOGETHER]
    kept = [item for item in found if not wanted or item[1].name in wanted]
    if not kept:
        raise ValueError(f"{spec} has no picture {only!r}; it has {', '.join(item[1].name for item in found)}")
    return iter(kept)
