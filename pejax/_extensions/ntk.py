"""NTK-aware scaling: a higher base, raised by a fixed factor or by a factor that follows the length."""

from pejax._calls.arguments import checked
from pejax._extensions.base import (
    Extended,
    Factor,
    Frequencies,
    Rotary,
    known_length,
    pair_index,
    powered,
    resolve_factor,
    together,
)
from pejax._extensions.extension import extension_factory


@checked
def extend_ntk(
    frequencies: Frequencies,
    rotary: Rotary,
    *,
    factor: Factor | None = None,
    trained_length: int | tuple[int, ...] | None = None,
) -> Extended:
    """Raise the base so that the slowest pair is divided by the factor and the fastest is unchanged ("NTK-aware").

    `f'_i = f_i · s^(-2i / (d - 2))`, equivalent to the base `base · s^(d / (d - 2))`

    Args:
        frequencies: radians per token, `(F,)`, or `(A, F)` on A axes.
        rotary: the encoding that has these frequencies, and L', its current length.
        factor: s, at least 1 (not checked if traced); one number, or one per axis. None = max(1, L' / L), on each
            axis.
        trained_length: L, tokens, or one length per axis. Required if `factor` is None.

    Returns:
        The frequencies, float32, and the attention factor 1.

    Raises:
        ValueError: as in `extend_linear`; or a base not above 1, or a rotary_dim that is odd or below 2.

    Reference:
        bloc97 2023, "NTK-Aware Scaled RoPE"; Peng et al. 2023, "YaRN" (arXiv 2309.00071), section 3.1.
    """
    resolved = resolve_factor(frequencies, rotary, trained_length, factor)
    return powered(frequencies, pair_index(frequencies, rotary), resolved, rotary), 1.0


ntk = extension_factory("ntk", "frequencies", extend_ntk)


@checked
def extend_dynamic_ntk(
    frequencies: Frequencies,
    rotary: Rotary,
    *,
    factor: Factor | None = None,
    trained_length: int | tuple[int, ...] | None = None,
) -> Extended:
    """Raise the base as the sequence grows beyond the trained length: `extend_ntk` with a factor that grows with it.

    `f'_i = f_i · a^(-2i / (d - 2)),   a = s · max(L', L) / L - (s - 1)`

    Args:
        frequencies: radians per token, `(F,)`, or `(A, F)` on A axes.
        rotary: the encoding that has these frequencies, and L', its current length.
        factor: s, at least 1: how fast the base grows with the length. None = 1, for which a = max(L', L) / L.
        trained_length: L, tokens, or one length per axis.

    Returns:
        The frequencies, float32, unchanged up to the trained length, and the attention factor 1.

    Raises:
        ValueError: as in `extend_ntk`.

    Reference:
        emozilla 2023, "Dynamically Scaled RoPE"; transformers' rope type "dynamic".
    """
    speed = resolve_factor(frequencies, rotary, trained_length, 1.0 if factor is None else factor)
    trained = known_length("dynamic_ntk", rotary, trained_length)
    current = rotary._replace(length=trained if rotary.length is None else rotary.length)
    grown = resolve_factor(frequencies, current, trained, None)
    _, (speed, grown) = together(speed, grown)
    return powered(frequencies, pair_index(frequencies, rotary), speed * (grown - 1.0) + 1.0, rotary), 1.0


dynamic_ntk = extension_factory("dynamic_ntk", "frequencies", extend_dynamic_ntk, varies=True)
