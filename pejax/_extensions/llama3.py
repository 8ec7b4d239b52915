"""Llama 3.1's scaling: the frequencies of slow pairs are divided by the factor, those of fast pairs are not."""

from pejax._calls.arguments import checked
from pejax._extensions.base import (
    Extended,
    Factor,
    Frequencies,
    Number,
    Rotary,
    by_axis,
    check_order,
    known_length,
    ramp_by_turns,
    resolve_factor,
    scaled,
)
from pejax._extensions.extension import extension_factory


@checked
def extend_llama3(
    frequencies: Frequencies,
    rotary: Rotary,
    *,
    factor: Factor | None = None,
    trained_length: int | tuple[int, ...] | None = None,
    low_freq_factor: Number = 1.0,
    high_freq_factor: Number = 4.0,
) -> Extended:
    """Divide slow pairs by the factor, keep fast pairs, and blend the pairs in between (Llama 3.1).

    `f'_i = f_i · ((1 - k_i) / s + k_i)`, `k_i = (L·f_i / 2π - low) / (high - low)` clipped to 0 ... 1; low and high may
    be traced, and are not checked then.

    Args:
        frequencies: radians per token, `(F,)`, or `(A, F)` on A axes.
        rotary: the encoding that has these frequencies, and L', its current length.
        factor: s, at least 1; 8 in Llama 3.1, 32 in the small models of Llama 3.2. None = max(1, L' / L), on each axis.
        trained_length: L, tokens, or one length per axis.
        low_freq_factor: low, in turns per L tokens; pairs that turn less often are divided by s.
        high_freq_factor: high, in turns per L tokens; pairs that turn more often are unchanged.

    Returns:
        The frequencies, float32, and the attention factor 1.

    Raises:
        ValueError: as in `extend_linear`; or not 0 < `low_freq_factor` <= `high_freq_factor`.

    Reference:
        Grattafiori et al. 2024, "The Llama 3 Herd of Models" (arXiv 2407.21783); transformers' rope type "llama3".
    """
    check_order(("low_freq_factor", low_freq_factor), ("high_freq_factor", high_freq_factor))
    resolved = resolve_factor(frequencies, rotary, trained_length, factor)
    trained = by_axis(known_length("llama3", rotary, trained_length))
    keep = ramp_by_turns(frequencies, rotary, trained, low_freq_factor, high_freq_factor)
    return scaled(frequencies, keep, resolved), 1.0


llama3 = extension_factory("llama3", "frequencies", extend_llama3)
