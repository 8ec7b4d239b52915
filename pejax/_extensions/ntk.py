"""NTK-aware scaling: a higher base, raised by a fixed factor or by a factor that follows the length."""

from pejax._extensions.base import (
    Extended,
    Factor,
    Frequencies,
    Length,
    known_length,
    pair_index,
    powered,
    resolve_factor,
    together,
)
from pejax._extensions.extension import Extension, extension


def extend_ntk(
    frequencies: Frequencies,
    *,
    base: float,
    rotary_dim: int,
    trained_length: int | tuple[int, ...] | None = None,
    factor: Factor | None = None,
    length: Length | None = None,
    base_frequencies: Frequencies | None = None,
) -> Extended:
    """Raise the base so that the slowest pair is divided by the factor and the fastest is unchanged ("NTK-aware").

    `f'_i = f_i · s^(-2i / (d - 2))`, equivalent to the base `base · s^(d / (d - 2))`

    Args:
        frequencies: radians per token, `(F,)`, or `(A, F)` on A axes.
        base: of the unscaled frequencies, above 1.
        rotary_dim: d, number of rotated channels; D/A on A axes.
        trained_length: L, tokens, or one length per axis. Required if `factor` is None.
        factor: s, at least 1 (not checked if traced). None = max(1, L' / L), on each axis.
        length: L', the current length, tokens, or one length per axis; a single length may be traced.
        base_frequencies: the unscaled frequencies, if `frequencies` were extended before. None = `frequencies`.

    Returns:
        The frequencies, float32, and the attention factor 1.

    Raises:
        ValueError: as in `extend_linear`; or a base not above 1, or a rotary_dim that is odd or below 2.

    Reference:
        bloc97 2023, "NTK-Aware Scaled RoPE"; Peng et al. 2023, "YaRN" (arXiv 2309.00071), section 3.1.
    """
    resolved = resolve_factor(frequencies, trained_length, factor, length)
    index = pair_index(frequencies if base_frequencies is None else base_frequencies, base, rotary_dim)
    return powered(frequencies, index, resolved, rotary_dim), 1.0


def extend_dynamic_ntk(
    frequencies: Frequencies,
    *,
    base: float,
    rotary_dim: int,
    trained_length: int | tuple[int, ...] | None,
    factor: Factor | None = None,
    length: Length | None = None,
    base_frequencies: Frequencies | None = None,
) -> Extended:
    """Raise the base as the sequence grows beyond the trained length: `extend_ntk` with a factor that grows with it.

    `f'_i = f_i · a^(-2i / (d - 2)),   a = s · max(L', L) / L - (s - 1)`

    Args:
        frequencies: radians per token, `(F,)`, or `(A, F)` on A axes.
        base: of the unscaled frequencies, above 1.
        rotary_dim: d, number of rotated channels; D/A on A axes.
        trained_length: L, tokens, or one length per axis.
        factor: s, at least 1: how fast the base grows with the length. None = 1, for which a = max(L', L) / L.
        length: L', the current length, tokens, or one length per axis; a single length may be traced. None = L.
        base_frequencies: the unscaled frequencies, if `frequencies` were extended before. None = `frequencies`.

    Returns:
        The frequencies, float32, unchanged up to the trained length, and the attention factor 1.

    Raises:
        ValueError: as in `extend_ntk`.

    Reference:
        emozilla 2023, "Dynamically Scaled RoPE"; transformers' rope type "dynamic".
    """
    speed = resolve_factor(frequencies, trained_length, 1.0 if factor is None else factor, length)
    trained = known_length("dynamic_ntk", trained_length)
    grown = resolve_factor(frequencies, trained, None, trained if length is None else length)
    index = pair_index(frequencies if base_frequencies is None else base_frequencies, base, rotary_dim)
    _, (speed, grown) = together(speed, grown)
    return powered(frequencies, index, speed * (grown - 1.0) + 1.0, rotary_dim), 1.0


def ntk(*, factor: float | None = None, trained_length: int | tuple[int, ...] | None = None) -> Extension:
    """Return NTK-aware scaling as an encoding's `extend`: `extend_ntk` for its frequencies.

    Args:
        factor: s, at least 1. None = it follows from the current length, on each axis.
        trained_length: L, tokens, or one length per axis. None = the encoding's `Dims.extent`.
    """
    return extension("ntk", "frequencies", extend_ntk, {"factor": factor, "trained_length": trained_length})


def dynamic_ntk(*, factor: float | None = None, trained_length: int | tuple[int, ...] | None = None) -> Extension:
    """Return dynamic NTK scaling as an encoding's `extend`: `extend_dynamic_ntk` for its frequencies.

    Args:
        factor: s, at least 1: how fast the base grows with the length. None = 1.
        trained_length: L, tokens, or one length per axis. None = the encoding's `Dims.extent`.
    """
    options = {"factor": factor, "trained_length": trained_length}
    return extension("dynamic_ntk", "frequencies", extend_dynamic_ntk, options, by_length=True)
