"""All pictures of one encoding, and their names of earlier versions."""

from collections.abc import Callable
from typing import Any

from pejax._record.dims import Dims
from pejax._record.encoding import Encoding, Params
from pejax._visualize.angles import AnglePictures
from pejax._visualize.attention_by_distance import DistancePictures
from pejax._visualize.attention_maps import WeightPictures
from pejax._visualize.bias import BiasPictures
from pejax._visualize.bias_terms import LogitPictures
from pejax._visualize.points import PointPictures
from pejax._visualize.rotation import RotationPictures
from pejax._visualize.sinusoidal import EmbeddingPictures


class Pictures(
    EmbeddingPictures,
    RotationPictures,
    AnglePictures,
    BiasPictures,
    LogitPictures,
    WeightPictures,
    DistancePictures,
    PointPictures,
):
    """Pictures of one encoding: a method for each.

        alibi = pejax.encodings.alibi(pejax.Dims(heads=8, head_dim=64, causal=True))
        figure = pejax.visualize.Pictures(alibi, name="ALiBi", theme="dark").bias(heads=[0], length=32)

    A method refuses what its picture cannot show in one line. All but the animations and `token_points` return a
    `matplotlib.figure.Figure` of their own.
    """


EARLIER = {
    "plot_rotation_angles": "rotation_angles",
    "plot_logits_by_distance": "logits_by_distance",
    "plot_attention_weights": "attention_weights",
    "plot_bias": "bias",
    "plot_bias_curves": "bias_curves",
    "plot_grid_bias": "grid_bias",
    "plot_logit_terms": "logit_terms",
    "plot_transformer_xl_terms": "transformer_xl_terms",
    "plot_shaw_table": "shaw_table",
    "plot_token_points": "token_points",
    "animate_token_points": "token_points_animation",
    "plot_rotation": "rotation",
    "animate_rotation": "rotation_animation",
    "plot_rotary_steps": "rotary_steps",
    "plot_embedding": "embedding",
    "plot_embedding_curves": "embedding_curves",
    "plot_position_similarity": "position_similarity",
}
"""Functions of version 0.3, and the methods that took their place."""


def earlier(name: str) -> Callable[..., Any]:
    """Return the function of `EARLIER` of this name: it calls the method."""

    def draw(
        encoding: Encoding,
        dims: Dims | None = None,
        params: Params | None = None,
        *,
        name: str | None = None,
        theme: str = "light",
        **options: Any,
    ) -> Any:
        return getattr(Pictures(encoding, params, name=name, theme=theme, dims=dims), method)(**options)

    method = EARLIER[name]
    draw.__doc__ = f"Draw `Pictures(encoding, params, name=name, theme=theme, dims=dims).{method}(...)`."
    return draw
