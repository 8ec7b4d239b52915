"""The turning needle to play with: base, position, pair, and an extension with its factor."""

import numpy as np

from pejax._encodings.rope import rope_frequencies
from pejax._extensions.base import Rotary
from pejax._extensions.linear import extend_linear
from pejax._extensions.llama3 import extend_llama3
from pejax._extensions.ntk import extend_ntk
from pejax._extensions.yarn import extend_yarn
from pejax._visualize.pages.frame import choice, page, panel, polyline, slider

HEAD_DIM, TRAINED = 64, 4096
BASES = (10_000, 100_000, 500_000, 1_000_000)
FACTORS = (2, 4, 8, 16, 32)
METHODS = {"linear": extend_linear, "ntk": extend_ntk, "yarn": extend_yarn, "llama3": extend_llama3}
LABELS = {"none": "none", "linear": "linear (PI)", "ntk": "NTK-aware", "yarn": "YaRN", "llama3": "Llama 3"}
POSITIONS = sorted({*range(33), *np.geomspace(32, TRAINED * FACTORS[-1], 97).round().astype(int).tolist()})
"""Positions of the slider: one by one at first, then in steps of 9 %."""
STILL_PAIR, STILL_POSITION = 8, 5
"""What the still shows, and the page at first."""


def tabled_frequencies(base: int, method: str = "none", factor: int = 1) -> list[float]:
    """Return the frequencies of the page, extended unless the method is "none"."""
    frequencies = rope_frequencies(HEAD_DIM, base=base)
    if method != "none":
        rotary = Rotary(base, HEAD_DIM)
        frequencies, _ = METHODS[method](frequencies, rotary, factor=factor, trained_length=TRAINED)
    return np.asarray(frequencies, np.float64).tolist()


def needle_page() -> str:
    """Return a page on RoPE's rotation: one pair of channels as a needle, and the wavelengths of all pairs.

    Pair i turns by `position · base^(-2i/D)`; an extension slows the pairs down. Its controls are the base, the
    position, the pair, the extension and its factor. The frequencies are those of the library.

    Returns:
        HTML that needs no network: write it into a file and open it in a browser.

    Reference:
        Su et al. 2021, "RoFormer" (arXiv 2104.09864), section 3.2; Peng et al. 2023, "YaRN" (arXiv 2309.00071).

    Examples:
        >>> page = pejax.visualize.needle_page()
    """
    tables = {
        base: {
            "none": tabled_frequencies(base),
            **{method: {s: tabled_frequencies(base, method, s) for s in FACTORS} for method in METHODS},
        }
        for base in BASES
    }
    angles = np.arange(STILL_POSITION + 1) * float(rope_frequencies(HEAD_DIM)[STILL_PAIR])
    hands = "".join(polyline([(180, 115), (180 + 95 * np.cos(a), 115 - 95 * np.sin(a))], "trail") for a in angles)
    circle = '<circle class="frame" cx="180" cy="115" r="95"/>'
    return page(
        "The turning needle",
        f"RoPE turns every pair of channels by the position times the frequency of the pair ({HEAD_DIM} channels,"
        f" trained on {TRAINED:,} tokens). A pair that makes less than one turn in training meets new angles beyond it:"
        " extensions slow such pairs down. Nothing here is learned or random.",
        controls=[
            slider("position", "position, tokens", (0, len(POSITIONS) - 1), STILL_POSITION),
            slider("pair", "pair", (0, HEAD_DIM // 2 - 1), STILL_PAIR),
            choice("base", "base", {str(base): f"{base:,}" for base in BASES}, str(BASES[0])),
            choice("method", "extension", LABELS, "none"),
            choice("factor", "factor", {str(s): str(s) for s in FACTORS}, "8"),
        ],
        panels=[
            panel("dial", "The needle of this pair; pale: the positions before", circle + hands),
            panel("wavelengths", "Wavelength of every pair"),
        ],
        still=f"The still shows pair {STILL_PAIR} at positions 0 to {STILL_POSITION}, base 10,000.",
        script="needle.js",
        data={"trained": TRAINED, "positions": POSITIONS, "frequencies": tables},
    )
