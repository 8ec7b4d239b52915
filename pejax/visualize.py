"""Pictures of encodings, computed by the library's own functions: one function per picture.

    dims = pejax.Dims(heads=8, head_dim=64, causal=True)
    figure = pejax.visualize.plot_bias(pejax.encodings.alibi(dims), dims, length=32)
    figure.savefig("alibi.png")

The extra `visualize` brings matplotlib, plotly and Pillow. Nothing of it is loaded before a picture is drawn, no
display is needed, and pyplot's state is left alone. `python -m pejax.visualize alibi --out=figures/` writes all
pictures that suit one encoding.
"""

from pejax._visualize.angles import plot_rotation_angles
from pejax._visualize.animation import Animation
from pejax._visualize.attention_by_distance import plot_attention_entropy, plot_logits_by_distance
from pejax._visualize.attention_maps import plot_attention_weights, plot_extrapolation
from pejax._visualize.attention_masks import plot_visited_tiles, plot_word_order
from pejax._visualize.bias import plot_bias, plot_bias_curves, plot_grid_bias
from pejax._visualize.bias_terms import plot_logit_terms, plot_shaw_table, plot_t5_buckets, plot_transformer_xl_terms
from pejax._visualize.command import main
from pejax._visualize.extensions import plot_decay_bounds, plot_interpolated_positions, plot_logit_extrapolation
from pejax._visualize.frequencies import plot_learned_frequencies, plot_plane_waves, plot_wavelengths
from pejax._visualize.needle import animate_needle, plot_needle
from pejax._visualize.pages.bias import bias_page
from pejax._visualize.pages.needle import needle_page
from pejax._visualize.pages.sinusoid import sinusoid_page
from pejax._visualize.points import animate_token_points, plot_token_points
from pejax._visualize.rotation import animate_rotation, plot_rotary_steps, plot_rotation
from pejax._visualize.sinusoidal import plot_embedding, plot_embedding_curves, plot_position_similarity
from pejax._visualize.slopes import plot_slopes

__all__ = [
    "Animation",
    "animate_needle",
    "animate_rotation",
    "animate_token_points",
    "bias_page",
    "main",
    "needle_page",
    "plot_attention_entropy",
    "plot_attention_weights",
    "plot_bias",
    "plot_bias_curves",
    "plot_decay_bounds",
    "plot_embedding",
    "plot_embedding_curves",
    "plot_extrapolation",
    "plot_grid_bias",
    "plot_interpolated_positions",
    "plot_learned_frequencies",
    "plot_logit_extrapolation",
    "plot_logit_terms",
    "plot_logits_by_distance",
    "plot_needle",
    "plot_plane_waves",
    "plot_position_similarity",
    "plot_rotary_steps",
    "plot_rotation",
    "plot_rotation_angles",
    "plot_shaw_table",
    "plot_slopes",
    "plot_t5_buckets",
    "plot_token_points",
    "plot_transformer_xl_terms",
    "plot_visited_tiles",
    "plot_wavelengths",
    "plot_word_order",
    "sinusoid_page",
]

if __name__ == "__main__":
    from pejax._text import run

    run(main)
