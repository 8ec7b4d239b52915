"""Animations: a figure that is drawn anew for every frame, saved as a GIF or as a page that plays without a network."""

import base64
import html
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pejax._visualize.layer import refuse
from pejax._visualize.style import Figure, require

PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<body style="margin:1em;background:{paper};color:{ink};font-family:sans-serif">
<img id="f" alt="{title}" style="max-width:100%"><br>
<button id="p" type="button">pause</button>
<input id="s" type="range" min="0" max="{last}" value="0" style="width:60%" aria-label="frame">
<script>
const frames = [{frames}];
const f = document.getElementById("f"), s = document.getElementById("s"), p = document.getElementById("p");
let playing = true;
const show = i => {{ s.value = i; f.src = "data:image/png;base64," + frames[i]; }};
s.oninput = () => {{ playing = false; p.textContent = "play"; show(+s.value); }};
p.onclick = () => {{ playing = !playing; p.textContent = playing ? "pause" : "play"; }};
setInterval(() => {{ if (playing) show((+s.value + 1) % frames.length); }}, {interval});
show(0);
</script>"""


class Animation(NamedTuple):
    """A figure and the function that draws its frames.

    Attributes:
        figure: figure that `draw` changes.
        draw: `(i) -> None` brings the figure to frame i.
        frames: number of frames.
        interval: duration of a frame, milliseconds.
        title: title of the page.
        html: `() -> str`, a page of its own instead of the frames as pictures (plotly's, which can be turned).
    """

    figure: Figure
    draw: Callable[[int], None]
    frames: int
    interval: int = 120
    title: str = "pejax"
    html: Callable[[], str] | None = None

    def save(self, path: str | Path, *, dpi: int = 80, colors: int = 128) -> Path:
        """Write the animation to a file.

        Args:
            path: that ends in `.gif`, or in `.html`: one page that fetches nothing.
            dpi: dots per inch of the figure.
            colors: of a GIF, at most 256, the same in all frames.

        Returns:
            The path.

        Raises:
            ValueError: another ending.
            ImportError: a package of the extra is not installed.
        """
        path = Path(path)
        if path.suffix == ".gif":
            require("PIL")
            from PIL import Image

            frames = [image.convert("RGB") for image in self._images(dpi)]
            palette = _palette(frames, colors)
            images = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
            images[0].save(path, save_all=True, append_images=images[1:], duration=self.interval, loop=0, optimize=True)
        elif path.suffix == ".html":
            path.write_text(self._page(dpi) if self.html is None else self.html(), encoding="utf-8")
        else:
            refuse("Animation.save", "path must end in .gif or .html", repr(str(path)))
        return path

    def _images(self, dpi: int) -> list[Any]:
        require("PIL")
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from PIL import Image

        self.figure.set_dpi(dpi)
        canvas, images = FigureCanvasAgg(self.figure), []
        self.draw(0)
        for _ in range(2):  # the layout of the first frame settles, and the other frames keep it
            self.figure.draw_without_rendering()
        self.figure.set_layout_engine("none")
        for i in range(self.frames):
            self.draw(i)
            canvas.draw()
            images.append(Image.fromarray(np.array(canvas.buffer_rgba())))
        return images

    def _page(self, dpi: int) -> str:
        require("PIL")
        from matplotlib.colors import to_hex
        from PIL import Image

        frames = []
        for image in self._images(dpi):
            file = io.BytesIO()
            image.convert("RGB").quantize(128, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
                file, "png", optimize=True
            )
            frames.append(f'"{base64.b64encode(file.getvalue()).decode()}"')
        paper = to_hex(self.figure.get_facecolor())
        light = sum(int(paper[i : i + 2], 16) for i in (1, 3, 5)) > 3 * 128
        return PAGE.format(
            title=html.escape(self.title),
            paper=paper,
            ink="#1a1a1a" if light else "#e8e8e8",
            last=self.frames - 1,
            frames=",".join(frames),
            interval=self.interval,
        )


def _palette(frames: list[Any], colors: int) -> Any:
    """Return an image whose palette covers the first and the last frame: thin lines keep their colors."""
    from PIL import Image

    ends = np.concatenate([np.asarray(frames[0]), np.asarray(frames[-1])])
    return Image.fromarray(ends).quantize(colors, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
