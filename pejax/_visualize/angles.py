"""A picture of the angles of rotary encodings, by position and pair."""

from typing import Any

import numpy as np

from pejax._visualize.layer import check_axes, check_hooks, exceeded, length_of, settled
from pejax._visualize.style import SMALL, WIDE, Canvas, Figure, chosen, scale_ticks, signs_of, titled
from pejax._visualize.subject import Subject
from pejax._visualize.turning import measured_frequencies, unit_vectors


class AnglePictures(Subject):
    """Pictures of angles: methods of `Pictures`."""

    def rotation_angles(
        self,
        *,
        length: int | None = None,
        head: int = 0,
    ) -> Figure:
        """Draw the angles of a rotary encoding by position and pair, and their cosines.

        `angle[p, i] = p · f_i`, `cos(angle[p, i])`: what a pair of query and key at distance p is multiplied by.

        Args:
            length: T, tokens. None = the trained length. The end of the trained positions is marked.
            head: index of the head whose pairs are drawn.

        Raises:
            ValueError: an encoding that rotates nothing, more than one axis, a length below 1, or a head that is not
                there.
            ImportError: matplotlib is not installed.

        Reference:
            Su et al. 2021, "RoFormer" (arXiv 2104.09864), equation 15.

        Examples:
            >>> dims = pejax.Dims(heads=2, head_dim=16, extent=32)
            >>> figure = pejax.visualize.Pictures(pejax.encodings.rope(dims)).rotation_angles(length=64)
        """
        encoding, dims, params = self.parts
        picture, colors = "Pictures.rotation_angles", self.colors
        check_hooks(picture, encoding, "rotate")
        check_axes(picture, dims, 1)
        chosen(picture, "head", [head], dims.heads, 1)
        extent = length_of(picture, dims, length)
        params = settled(encoding, params, extent)
        at = np.arange(extent)
        angles = at[:, None] * measured_frequencies(picture, encoding, dims, params)[head, 0]
        cosines = unit_vectors(picture, encoding, dims, params, at[:, None])[:, head, :, 0]
        canvas = Canvas(colors, 2, 1, panel=(WIDE, 3.3), title=titled(self.name, "rotation by position and pair"))
        trained = exceeded(dims, extent)
        # angles of slow pairs are thousands of times smaller: colors follow a root
        scale: dict[str, Any] = {"top": float(np.max(np.abs(angles))), "signs": signs_of([angles]), "rooted": True}
        plain: dict[str, Any] = {"rooted": False}
        for axes, matrix, label, options in (
            (canvas.panels[0, 0], angles, "angle, radians", scale),
            (canvas.panels[1, 0], cosines, "cosine of the angle", plain),
        ):
            image = canvas.heat_map(axes, matrix, signed=True, **options)
            canvas.color_bar(image, axes, label, **scale_ticks(options))
            if trained is not None:
                canvas.mark_trained(axes, trained - 0.5, horizontal=True)
                axes.annotate(
                    f"trained: {trained} tokens", (0.03, trained - 0.5), xycoords=("axes fraction", "data"),
                    fontsize=SMALL, va="bottom", color=colors.ink,
                    bbox={"facecolor": colors.paper, "edgecolor": "none", "pad": 1},
                )  # fmt: skip
            axes.set(xlabel="pair of channels", ylabel="position, tokens", title=label.partition(",")[0])
        return canvas.figure
