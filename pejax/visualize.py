"""Pictures of encodings, computed by the library's own functions: a method of `Pictures` or a function for each.

    alibi = pejax.encodings.alibi(pejax.Dims(heads=8, head_dim=64, causal=True))
    figure = pejax.visualize.Pictures(alibi, name="ALiBi").bias(length=32)
    figure.savefig("alibi.png")

The extra `visualize` brings matplotlib, plotly and Pillow. Nothing of it is loaded before a picture is drawn, no
display is needed, and pyplot's state is left alone. `python -m pejax.visualize alibi --out=figures/` writes all
pictures that suit one encoding.
"""

from typing import Any

from pejax._visualize.animation import Animation
from pejax._visualize.attention_by_distance import plot_attention_entropy
from pejax._visualize.attention_maps import plot_extrapolation
from pejax._visualize.attention_masks import plot_visited_tiles, plot_word_order
from pejax._visualize.bias_terms import plot_t5_buckets
from pejax._visualize.command import main
from pejax._visualize.extensions import plot_decay_bounds, plot_interpolated_positions, plot_logit_extrapolation
from pejax._visualize.frequencies import plot_learned_frequencies, plot_plane_waves, plot_wavelengths
from pejax._visualize.needle import animate_needle, plot_needle
from pejax._visualize.pages.bias import bias_page
from pejax._visualize.pages.needle import needle_page
from pejax._visualize.pages.sinusoid import sinusoid_page
from pejax._visualize.pictures import EARLIER, Pictures, earlier
from pejax._visualize.slopes import plot_slopes

__all__ = [
    "Animation",
    "Pictures",
    "animate_needle",
    "bias_page",
    "main",
    "needle_page",
    "plot_attention_entropy",
    "plot_decay_bounds",
    "plot_extrapolation",
    "plot_interpolated_positions",
    "plot_learned_frequencies",
    "plot_logit_extrapolation",
    "plot_needle",
    "plot_plane_waves",
    "plot_slopes",
    "plot_t5_buckets",
    "plot_visited_tiles",
    "plot_wavelengths",
    "plot_word_order",
    "sinusoid_page",
]


def __getattr__(name: str) -> Any:
    """Return `plot_bias` and the other functions that are methods of `Pictures` now, until version 0.5."""
    if name not in EARLIER:
        raise AttributeError(f"module 'pejax.visualize' has no attribute {name!r}")
    return earlier(name)


if __name__ == "__main__":
    from pejax._process.text import run

    run(main)
