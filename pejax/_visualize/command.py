"""`python -m pejax.visualize NAME --out=FOLDER`: all pictures that suit an encoding, written as files."""

import argparse
import contextlib
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from pejax._calls.names import unknown_name
from pejax._encodings.rope import rope_frequencies
from pejax._naming.make import make_encoding
from pejax._naming.parse import parse
from pejax._process.devices import visible_devices
from pejax._process.text import printable
from pejax._record.dims import Dims
from pejax._record.encoding import Encoding
from pejax._visualize import (
    attention_by_distance,
    attention_maps,
    attention_masks,
    bias_terms,
    extensions,
    frequencies,
    needle,
    slopes,
)
from pejax._visualize.animation import Animation
from pejax._visualize.demonstrations import found_long_factors, trained_frequencies
from pejax._visualize.pages.bias import LABELS, bias_page
from pejax._visualize.pages.needle import needle_page
from pejax._visualize.pages.sinusoid import sinusoid_page
from pejax._visualize.pictures import Pictures
from pejax._visualize.style import THEMES, require
from pejax._visualize.trained import IMAGES, TEXT, Training
from pejax.encodings import ENCODINGS

SEQUENCE = Dims(heads=8, head_dim=32, extent=32, causal=True)
BOTH_SIDES = Dims(heads=8, head_dim=32, extent=32)
GRID = Dims(heads=4, head_dim=32, axes=2, extent=(14, 14))
SMALL_GRID = Dims(heads=4, head_dim=32, axes=2, extent=(5, 5))
WIDE = Dims(heads=8, head_dim=64, extent=64)
DIMS = {"sequence": SEQUENCE, "both_sides": BOTH_SIDES, "wide": WIDE, "on_grid": GRID}
"""The dims of the encodings of `Variants`."""

LONGER = {"learned": "resize", "fourier": "pi"}
"""The extensions by which encodings read sequences beyond the trained length, that end there without one."""


class Variants(NamedTuple):
    """A spec as the command draws it: made for a sequence, causal and not, for a wider model and for a grid.

    Attributes:
        spec: the spec.
        encodings: its encodings by the names of `DIMS`, without those dims that it refuses.
    """

    spec: str
    encodings: dict[str, Encoding]

    @property
    def name(self) -> str:
        """The name in the registry."""
        return parse(self.spec).parts[0].name

    @property
    def first(self) -> Encoding:
        """One of them, to ask what it does."""
        return next(iter(self.encodings.values()))

    def longer(self, dims: Dims) -> Encoding:
        """Return the encoding as it reads sequences beyond the trained length: a table must be resized."""
        spec = parse(self.spec)
        return make_encoding(spec, dims, LONGER.get(self.name) if spec.extend is None else None)

    def compared(self, dims: Dims) -> dict[str, Encoding]:
        """Return the encoding with `none` beside it."""
        baseline = {} if self.name == "none" else {"none": make_encoding("none", dims)}
        return {**baseline, self.spec: self.longer(dims)}


def variants_of(spec: str) -> Variants:
    """Make the encoding for those of `DIMS` that it takes.

    Raises:
        ValueError: a spec that `make_encoding` refuses for all of them; the first refusal.
        TypeError: an argument of a wrong type.
    """
    encodings, refusals = {}, []
    for name, dims in DIMS.items():
        try:
            encodings[name] = make_encoding(spec, dims)
        except ValueError as refusal:
            refusals.append(refusal)
    if not encodings:
        raise refusals[0]
    return Variants(spec, encodings)


class Picture(NamedTuple):
    """A picture of an encoding.

    Attributes:
        name: name of the file.
        made_for: name of the dims that the drawn encoding is made for, "" if any do.
        has: whether the encoding has what it shows.
        draw: `(variants, theme) -> figure, animation, or the HTML of a page`; variants are None for all together.
    """

    name: str
    made_for: str
    has: Callable[[Variants], bool]
    draw: Callable[[Any, str], Any]

    def suits(self, variants: Variants) -> bool:
        """Return whether the encoding has what the picture shows, and takes the dims it is drawn with."""
        return (not self.made_for or self.made_for in variants.encodings) and self.has(variants)


def _embeds(variants: Variants) -> bool:
    return variants.first.embed is not None


def _rotates(variants: Variants) -> bool:
    return variants.first.rotate is not None


def _biased(variants: Variants) -> bool:
    return variants.first.bias is not None or variants.first.distance_bias is not None


def _named(*names: str) -> Callable[[Variants], bool]:
    return lambda variants: variants.name in names


def _always(variants: Variants) -> bool:
    return True


def _of_positions(variants: Variants) -> bool:
    """Whether the bias reads no queries."""
    first = variants.first
    return _biased(variants) and first.relative_keys is None and first.relative_values is None


def _length(variants: Variants, dims: Dims) -> int | None:
    """Return a length beyond the trained one, where the encoding does not end there."""
    return None if variants.name in LONGER or not isinstance(dims.extent, int) else 3 * dims.extent // 2


def _picture(
    name: str, made_for: str, has: Callable[[Variants], bool], method: Callable[..., Any], **options: Any
) -> Picture:
    """Return a picture that a method of `Pictures` draws of the encoding made for these dims."""

    def draw(variants: Variants, theme: str) -> Any:
        return method(Pictures(variants.encodings[made_for], name=variants.spec, theme=theme), **options)

    return Picture(name, made_for, has, draw)


def _trained(picture: Picture, method: Callable[..., Any]) -> Picture:
    """Return the picture of an encoding as trained on text; where it was not, the one given."""

    def draw(variants: Variants, theme: str) -> Any:
        if variants.spec not in TEXT.specs:
            return picture.draw(variants, theme)
        return method(_as_trained(TEXT, variants, theme))

    return picture._replace(draw=draw)


def _as_trained(training: Training, variants: Variants, theme: str) -> Pictures:
    spec = variants.spec
    encoding, params = training.encoding(spec), training.params(spec)
    return Pictures(encoding, params, name=training.label(spec), theme=theme)


def _alone(plot: Callable[..., Any], **options: Any) -> Callable[[Variants, str], Any]:
    """Return the `draw` of a picture that takes no encoding."""
    return lambda variants, theme: plot(theme=theme, **options)


def _longer(method: Callable[..., Any]) -> Callable[[Variants, str], Any]:
    """Return the `draw` of a picture of an encoding made for `WIDE` that goes beyond the trained length."""

    def draw(variants: Variants, theme: str) -> Any:
        pictures = Pictures(variants.encodings["wide"], name=variants.spec, theme=theme)
        return method(pictures, length=_length(variants, WIDE))

    return draw


PAGES = {"sinusoidal": sinusoid_page, "rope": needle_page, **dict.fromkeys(LABELS, bias_page)}
"""The page to play with of an encoding; each has both themes."""


def _wavelengths(variants: Variants, theme: str) -> Any:
    base = float(dict(parse(variants.spec).parts[0].options).get("base", 10000.0))
    longer: dict[str, Any] = {
        "base": base,
        "trained_length": 4096,
        "factor": 8.0,
        "long_factors": found_long_factors(128, base, 4096, 8),
    }
    return frequencies.plot_wavelengths(rope_frequencies(128, base=base), **longer, theme=theme)


def _learned_frequencies(variants: Variants, theme: str) -> Any:
    del variants
    dims = Dims(heads=4, head_dim=32, axes=2, extent=(8, 8))
    return frequencies.plot_learned_frequencies(*trained_frequencies(dims), theme=theme)


def _plane_waves(variants: Variants, theme: str) -> Any:
    peers = {"rope_axial": make_encoding("rope_axial", GRID), "rope_mixed": make_encoding("rope_mixed", GRID)}
    encodings = {**peers, variants.spec: variants.encodings["on_grid"]}
    return frequencies.plot_plane_waves(encodings, GRID, theme=theme)


def _grid_bias(variants: Variants, theme: str) -> Any:
    """Draw a bias with the parameters of a small training, where there are some, or else with the initial ones."""
    if variants.spec in IMAGES.specs:
        return _as_trained(IMAGES, variants, theme).grid_bias(patch=(2, 4))
    return Pictures(variants.encodings["on_grid"], name=variants.spec, theme=theme).grid_bias(patch=(4, 9))


def _logit_terms_on_a_grid(variants: Variants, theme: str) -> Any:
    encoding = make_encoding(variants.spec, SMALL_GRID)
    return Pictures(encoding, name=f"{variants.spec}, 5 x 5 patches", theme=theme).logit_terms()


def _logits_by_distance(variants: Variants, theme: str) -> Any:
    return Pictures(variants.longer(WIDE), name=variants.spec, theme=theme).logits_by_distance()


def _extrapolation(variants: Variants, theme: str) -> Any:
    return attention_maps.plot_extrapolation(variants.compared(SEQUENCE), SEQUENCE, theme=theme)


def _attention_entropy(variants: Variants, theme: str) -> Any:
    return attention_by_distance.plot_attention_entropy(variants.compared(BOTH_SIDES), BOTH_SIDES, theme=theme)


def _word_order(variants: Variants, theme: str) -> Any:
    encodings = {"none": make_encoding("none", BOTH_SIDES), variants.spec: variants.encodings["both_sides"]}
    return attention_masks.plot_word_order(encodings, BOTH_SIDES, theme=theme)


_scaled_slopes = _alone(slopes.plot_slopes, heads=(8,), trained_length=512, length=2048)

PICTURES = (
    _trained(Picture("embedding", "wide", _embeds, _longer(Pictures.embedding)), Pictures.embedding),
    Picture("embedding_curves", "wide", _embeds, _longer(Pictures.embedding_curves)),
    _picture("position_similarity", "wide", _embeds, Pictures.position_similarity),
    Picture("needle", "", _named("rope"), _alone(needle.plot_needle)),
    Picture("needle_animation", "", _named("rope"), _alone(needle.animate_needle)),
    _picture("rotation", "sequence", _rotates, Pictures.rotation),
    _picture("rotation_animation", "sequence", _rotates, Pictures.rotation_animation),
    _picture("rotary_steps", "sequence", _rotates, Pictures.rotary_steps),
    _picture("rotation_angles", "wide", _rotates, Pictures.rotation_angles, length=2 * 64),
    Picture("plane_waves", "on_grid", _rotates, _plane_waves),
    Picture("learned_frequencies", "", _named("rope_mixed"), _learned_frequencies),
    Picture("wavelengths", "", _named("rope"), _wavelengths),
    Picture("interpolated_positions", "", _named("rope"), _alone(extensions.plot_interpolated_positions)),
    Picture("decay_bounds", "", _named("rope"), _alone(extensions.plot_decay_bounds)),
    Picture("logit_extrapolation", "", _named("rope"), _alone(extensions.plot_logit_extrapolation)),
    _picture("bias", "sequence", _biased, Pictures.bias),
    _trained(_picture("bias_curves", "sequence", _of_positions, Pictures.bias_curves), Pictures.bias_curves),
    Picture("grid_bias", "on_grid", _biased, _grid_bias),
    Picture("slopes", "", _named("alibi"), _alone(slopes.plot_slopes)),
    Picture("scaled_slopes", "", _named("alibi"), _scaled_slopes),
    Picture("t5_buckets", "", _named("t5"), _alone(bias_terms.plot_t5_buckets)),
    _trained(
        _picture("transformer_xl_terms", "sequence", _named("transformer_xl"), Pictures.transformer_xl_terms),
        Pictures.transformer_xl_terms,
    ),
    _trained(_picture("shaw_table", "wide", _named("shaw"), Pictures.shaw_table), Pictures.shaw_table),
    _picture("logit_terms", "sequence", _biased, Pictures.logit_terms, length=16, head=2),
    Picture("logit_terms_on_a_grid", "on_grid", _biased, _logit_terms_on_a_grid),
    Picture("logits_by_distance", "wide", _always, _logits_by_distance),
    _picture("attention_weights", "sequence", _always, Pictures.attention_weights),
    Picture("extrapolation", "sequence", _always, _extrapolation),
    Picture("attention_entropy", "both_sides", _always, _attention_entropy),
    Picture("word_order", "both_sides", _always, _word_order),
    _picture("token_points", "both_sides", _always, Pictures.token_points_animation),
    Picture("page", "", _named(*PAGES), lambda variants, theme: PAGES[variants.name]()),
)
"""The pictures of one encoding, in the order in which they are written."""


def _everything(plot: Callable[..., Any], dims: Dims, **options: Any) -> Callable[[None, str], Any]:
    """Return the `draw` of a picture of all encodings of the registry that take these dims."""

    def draw(_: None, theme: str) -> Any:
        encodings = {}
        for name in ENCODINGS:
            with contextlib.suppress(ValueError):  # of an encoding that refuses the dims
                encodings[name] = Variants(name, {}).longer(dims)
        return plot(encodings, dims, theme=theme, **options)

    return draw


def _word_orders(_: None, theme: str) -> Any:
    encodings = {name: make_encoding(name, BOTH_SIDES) for name in ("none", "alibi", "sinusoidal", "rope", "t5")}
    return attention_masks.plot_word_order(encodings, BOTH_SIDES, theme=theme)


ONE_HEAD = Dims(heads=1, head_dim=32, extent=16)
_ENTROPY = attention_by_distance.plot_attention_entropy
TOGETHER = (
    Picture("visited_tiles", "", _always, _alone(attention_masks.plot_visited_tiles)),
    Picture("extrapolation", "", _always, _everything(attention_maps.plot_extrapolation, SEQUENCE)),
    Picture("attention_entropy", "", _always, _everything(_ENTROPY, BOTH_SIDES)),
    Picture(
        "attention_entropy_of_one_head",
        "",
        _always,
        _everything(_ENTROPY, ONE_HEAD, lengths=(8, 16, 32, 64, 128), draws=20),
    ),
    Picture("word_order", "", _always, _word_orders),
)
"""The pictures of all encodings together."""


def write(drawing: Any, path: Path, kind: str) -> Iterator[Path]:
    """Write a figure as one file of this kind, an animation as GIF and HTML, a page as HTML, and give each path."""
    if isinstance(drawing, Animation):
        for suffix in (".gif", ".html"):
            yield drawing.save(path.with_suffix(suffix))
    elif isinstance(drawing, str):
        path = path.with_suffix(".html")
        path.write_text(drawing, encoding="utf-8")
        yield path
    else:
        path = path.with_suffix(f".{kind}")
        drawing.savefig(path, dpi=120)
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
    options = parser.parse_args(arguments)
    if options.theme not in THEMES:
        refuse(f"--theme must be one of {', '.join(THEMES)}, got {options.theme!r}")
    if options.format not in ("png", "svg", "pdf"):
        refuse(f"--format must be one of png, svg, pdf, got {options.format!r}")
    try:
        for package in ("matplotlib", "plotly", "PIL"):
            require(package)
        visible_devices()
        work = list(_work(options.encoding, options.only))
        folder = Path(options.out)
        folder.mkdir(parents=True, exist_ok=True)
    except (ValueError, TypeError, ImportError, OSError) as refusal:
        refuse(str(refusal))
    began = time.perf_counter()
    files = 0
    for i, (name, picture, variants) in enumerate(work, 1):
        (folder / name).mkdir(exist_ok=True)
        for path in write(picture.draw(variants, options.theme), folder / name / picture.name, options.format):
            files += 1
            print(f"[{i}/{len(work)}] {printable(str(path))}", flush=True)
    print(f"{files} files in {time.perf_counter() - began:.0f} s")


def _work(spec: str, only: str) -> Iterator[tuple[str, Picture, Any]]:
    """Return the folder, the picture and the variants of each drawing.

    Raises:
        ValueError: an unknown encoding or picture, or one that does not suit.
        TypeError: an argument of another type in the spec.
    """
    names = sorted({picture.name for picture in (*PICTURES, *TOGETHER)})
    selection = [name.strip() for name in only.split(",") if name.strip()]
    for name in selection:
        if name not in names:
            raise ValueError(unknown_name("picture", name, names))
    if spec != "all" and re.fullmatch(r"\w+", spec) and spec not in ENCODINGS:
        raise ValueError(unknown_name("encoding", spec, [*ENCODINGS, "all"]))
    drawings: list[tuple[str, Picture, Any]] = []
    for name in ENCODINGS if spec == "all" else [spec]:
        variants = variants_of(name)
        folder = re.sub(r"\W+", "_", name).strip("_")
        drawings += [(folder, picture, variants) for picture in PICTURES if picture.suits(variants)]
    if spec == "all":
        drawings += [("all", picture, None) for picture in TOGETHER]
    chosen = [drawing for drawing in drawings if not selection or drawing[1].name in selection]
    if not chosen:
        raise ValueError(
            f"{spec} has no picture {only!r}; it has {', '.join(picture.name for _, picture, _ in drawings)}"
        )
    return iter(chosen)
