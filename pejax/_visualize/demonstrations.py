"""Results of a small search and a small training, for pictures."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pejax._encodings.rope_mixed import rope_mixed_frequencies
from pejax._extensions.longrope_search import search_longrope
from pejax._ops.phases import geometric_frequencies
from pejax._ops.rotary import rope_apply
from pejax._record.dims import Dims
from pejax._tokens.positions import grid_positions


@functools.cache
def found_long_factors(head_dim: int, base: float, trained_length: int, factor: float) -> Float[np.ndarray, " F"]:
    """Return factors for LongRoPE, found by `search_longrope` for a loss that needs no model.

    Distances up to L/8 should keep their product, and those of the longer context should get products that training
    saw: the loss is the squared change of `mean_i cos(s f_i)` at s up to L/8, plus the squared difference between it at
    `s · factor` and at s from L/8 to L.
    """
    frequencies = jnp.asarray(geometric_frequencies(head_dim // 2, base))
    near, far = jnp.arange(trained_length // 8), jnp.arange(trained_length // 8, trained_length, 7)
    kernel = lambda at, f: jnp.cos(at[:, None].astype(jnp.float32) * f).mean(axis=1)

    def loss(factors: Float[Array, " n"]) -> Float[Array, ""]:
        stretched = frequencies / factors
        fidelity = jnp.mean((kernel(near, stretched) - kernel(near, frequencies)) ** 2)
        seen = jnp.mean((kernel(far.astype(jnp.float32) * factor, stretched) - kernel(far, frequencies)) ** 2)
        return fidelity + seen

    options = {"trained_length": trained_length, "base": base, "generations": 12, "key": jax.random.key(0)}
    return np.asarray(search_longrope(loss, head_dim, factor, **options).factors)


def trained_frequencies(
    dims: Dims, *, steps: int = 200, rate: float = 0.05, seed: int = 0
) -> tuple[Float[np.ndarray, "H A F"], Float[np.ndarray, "H A F"]]:
    """Return RoPE-Mixed's frequencies before and after a small training by Adam.

    Each head learns to attend to the patch at an offset of its own, 2 to 3 patches away, with one query and one key
    vector for all patches: only the rotation can tell patches apart. The loss is the cross-entropy of the weights.
    """
    rows, columns = dims.extent if isinstance(dims.extent, tuple) else (8, 8)
    positions = grid_positions(rows, columns)
    angle = 2 * np.pi * np.arange(dims.heads) / dims.heads
    offsets = np.round(2.5 * np.stack([np.sin(angle), np.cos(angle)], axis=1)).astype(int)
    targets = np.asarray(positions)[None] + offsets[:, None]
    inside = np.all((targets >= 0) & (targets < (rows, columns)), axis=-1)
    index = np.where(inside, targets[..., 0] * columns + targets[..., 1], 0)
    keys = jax.random.split(jax.random.key(seed), 2)
    before = rope_mixed_frequencies(keys[0], dims.heads, dims.head_dim)
    vectors = jax.random.normal(keys[1], (2, dims.heads, dims.head_dim), jnp.float32)

    def loss(params: tuple[Array, Array]) -> Array:
        frequencies, (q, k) = params
        turn = lambda x: rope_apply(jnp.broadcast_to(x, (len(positions), *x.shape)), positions, frequencies)
        logits = dims.scale * jnp.einsum("thd,shd->hts", turn(q), turn(k))
        likelihood = jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.asarray(index)[..., None], axis=-1)[..., 0]
        return -jnp.sum(jnp.where(inside, likelihood, 0.0)) / float(inside.sum())

    @jax.jit
    def train(params: tuple[Array, Array]) -> tuple[Array, Array]:
        zeros = jax.tree.map(jnp.zeros_like, params)

        def step(i: Array, state: tuple) -> tuple:
            params, first, second = state
            slopes = jax.grad(loss)(params)
            first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, slopes)
            second = jax.tree.map(lambda m, g: 0.99 * m + 0.01 * g * g, second, slopes)
            count = (i + 1).astype(jnp.float32)
            descend = lambda p, m, n: p - rate * (m / (1 - 0.9**count)) / (jnp.sqrt(n / (1 - 0.99**count)) + 1e-8)
            return jax.tree.map(descend, params, first, second), first, second

        return jax.lax.fori_loop(0, steps, step, (params, zeros, zeros))[0]

    after, _ = train((before, vectors))
    return np.asarray(before), np.asarray(after)
