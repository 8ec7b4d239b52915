"""The sinusoid to play with: its position, width and base."""

import numpy as np

from pejax._encodings.sinusoidal import sinusoidal_embedding
from pejax._visualize.pages.frame import page, panel, polyline, slider

LENGTH, WIDTH = 128, 32
SHOWN = (0, 8, 16, 24)
"""Channels of the still, all of them sines."""


def sinusoid_page() -> str:
    """Return a page on the sinusoidal encoding: its waves, its vector at one position, and its similarities.

    `PE(p)_{2i} = sin(p · base^(-2i/C))`, `PE(p)_{2i+1} = cos(p · base^(-2i/C))`, with controls for p, C and the base.

    Returns:
        HTML that needs no network: write it into a file and open it in a browser.

    Reference:
        Vaswani et al. 2017, "Attention Is All You Need" (arXiv 1706.03762), section 3.5.

    Examples:
        >>> page = pejax.visualize.sinusoid_page()
    """
    positions = np.arange(0, LENGTH, 0.5, dtype=np.float32)
    table = np.asarray(sinusoidal_embedding(positions, WIDTH))
    lane = lambda i, at, y: (48 + 302 * at / (LENGTH - 1), 31 + 45 * i - 17 * y)
    still = "".join(
        polyline([lane(i, *point) for point in zip(positions[:-1], table[:-1, channel], strict=True)], "line0")
        for i, channel in enumerate(SHOWN)
    )
    return page(
        "The sinusoid",
        "A position p is a vector of C channels: sines (blue) and cosines (orange) of p, fast ones first."
        " A larger base makes the last ones slower. Nothing here is learned or random.",
        controls=[
            slider("position", "position p, tokens", (0, LENGTH - 1), 20),
            slider("width", "width C, channels", (2, 128), WIDTH, step=2),
            slider("base", "base", (0.5, 6), 4, step=0.05, shown="10,000"),
        ],
        panels=[
            panel("waves", "Sines of four channels along the positions", still),
            panel("vector", "The vector at position p"),
            panel("similarity", "Cosine of the vectors of p and of every position"),
        ],
        still=f"The still shows channels {', '.join(map(str, SHOWN))} of {WIDTH} over {LENGTH} positions, base 10,000.",
        script="sinusoid.js",
        data={"length": LENGTH},
    )
