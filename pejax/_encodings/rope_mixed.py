"""RoPE-Mixed: every pair of every key/value head has its own learned direction in the grid, along which it rotates.

    R_p = diag over pairs i of the rotation by sum_a p_a · f_{h,a,i},   f learned

Reference:
    Heo et al. 2024, "Rotary Position Embedding for Vision Transformer" (arXiv 2403.13298), section 3.2, equation 14;
    code: naver-ai/rope-vit.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pejax._calls.arguments import checked
from pejax._encodings.factory import encoding_factory
from pejax._extensions.frequencies import extend_frequencies
from pejax._ops.checks import check_choice
from pejax._ops.phases import geometric_frequencies
from pejax._ops.rotary import PAIRINGS, rope_apply
from pejax._record.dims import Dims
from pejax._record.encoding import STEP, Encoding, Extent, Params
from pejax._record.params import RandomKey
from pejax._record.specs import Extension


@checked
def rope_mixed_frequencies(
    key: RandomKey, heads: int, head_dim: int, *, axes: int = 2, base: float = 10.0
) -> Float[Array, "H A F"]:
    """Draw initial frequencies: geometric magnitudes along the columns of a random rotation, one rotation per head.

    With n = D/(2A) and Q_h an A × A rotation drawn uniformly: `f_{h,a,c·n+j} = base^(-j/n) · Q_h[a, c]`. On two axes
    the columns are (cos t, sin t) and (cos(t + π/2), sin(t + π/2)) with t uniform; on one axis Q = 1. Where A does not
    divide the D/2 pairs, the first columns have one pair more than the others: 22, 21 and 21 of 64 on three axes.

    Args:
        key: a JAX random key.
        heads: H, the heads that get their own frequencies (`rope_mixed` passes its K key/value heads).
        head_dim: D, even.
        axes: A, at least 1.
        base: base of the geometric progression of magnitudes.

    Returns:
        Frequencies in radians per patch, F = D/2.

    Raises:
        ValueError: fewer than one head or axis, a head_dim that is odd or below 2, or a base not above 0.
    """
    if heads < 1 or axes < 1:
        raise ValueError(f"heads and axes must be at least 1, got heads={heads}, axes={axes}")
    magnitudes, columns = _spectrum(head_dim, axes, base)
    rotations = jax.vmap(lambda k: _random_rotation(k, axes))(jax.random.split(key, heads))
    return rotations[..., columns] * magnitudes


def _spectrum(head_dim: int, axes: int, base: float) -> tuple[Float[np.ndarray, " F"], Int[np.ndarray, " F"]]:
    """Return the magnitude of each pair, and the column of the rotation that it runs along."""
    if head_dim < 2 or head_dim % 2:
        raise ValueError(f"head_dim must be even and at least 2, got {head_dim}")
    columns = np.sort(np.arange(head_dim // 2) % axes)
    counts = np.bincount(columns, minlength=axes)
    return np.concatenate([geometric_frequencies(count, base) for count in counts.tolist()]), columns


def _random_rotation(key: Array, axes: int) -> Float[Array, "A A"]:
    """Draw a rotation uniformly: QR of a normal matrix, signs fixed by R's diagonal, determinant by the last column."""
    q, r = jnp.linalg.qr(jax.random.normal(key, (axes, axes), jnp.float32))
    q = q * jnp.sign(jnp.diagonal(r))
    return q.at[:, -1].multiply(jnp.sign(jnp.linalg.det(q)))


PERIODIC = "its frequencies are trained, and make no whole turns in a period: use rope_axial"
"""Why it has no periodic axes."""


@encoding_factory("linear", "by_step", ways={"periodic": PERIODIC})
def rope_mixed(
    dims: Dims, *, base: float = 10.0, pairing: str = "interleaved", extend: Extension | None = None
) -> Encoding:
    """Make RoPE-Mixed for these dims: learned frequencies `(K, A, F)` in every layer, one set per key/value head.

    The H/K query heads that share a key/value head use its frequencies. On one axis, this is RoPE with learned
    frequencies.

    Args:
        dims: `kv_heads`, `head_dim` and `axes` determine the shape, `extent` is the trained length or grid.
        base: base of the geometric progression of initial magnitudes.
        pairing: "interleaved" or "half".
        extend: `linear()` of `pejax.extensions`, which divides the learned frequencies, `by_step` to or from it, or an
            extension of any encoding, such as `log_n()`. The other extensions of frequencies need to know the order of
            the pairs from fast to slow, which training changes. `linear()` without a factor takes it from the length or
            grid that `adapt` is given. None = no extension.

    Raises:
        ValueError: a head_dim that is odd or below 2, a base not above 0, an unknown pairing, or a
            value that the extension refuses.
    """
    check_choice("pairing", pairing, PAIRINGS)
    sample = np.tile(_spectrum(dims.head_dim, dims.axes, base)[0], (dims.axes, 1))
    trained, rotated = dims.extent, dims.head_dim
    extension = extend_frequencies(extend, sample, base=base, rotary_dim=rotated, trained_length=trained)

    def init_layer(key: Array) -> Params:
        return {"frequencies": rope_mixed_frequencies(key, dims.kv_heads, dims.head_dim, axes=dims.axes, base=base)}

    def adapt(params: Params, extent: Extent) -> Params:
        return {**params, "extended": extension.extend(params["frequencies"], extent, params.get(STEP))[0]}

    def rotate(params: Params, x: Array, positions: Array) -> Array:
        learned = params["frequencies"]
        extended = params["extended"] if extension.varies else extension.extend(learned, None, None)[0]
        return rope_apply(x, positions, extended, pairing=pairing)

    return Encoding(
        init_layer=init_layer, adapt=adapt if extension.varies else None, rotate=rotate, shift_invariant=True
    )
