"""Mixup and CutMix by their laws: labels follow pixels, both take turns, the square has the share drawn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from train.vit import mixing

MIX = jax.jit(mixing.mix, static_argnums=(2, 3))


def pairs(seed: int, **kinds: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the share of each image's own pixels, likewise by its labels, and the images: image i is all i."""
    images = jnp.broadcast_to(jnp.arange(6.0)[:, None, None, None], (6, 16, 16, 1))
    key = jax.random.key(seed)
    mixed, labels = map(np.asarray, MIX(images, jnp.eye(6), kinds.get("mixup", 0.0), kinds.get("cutmix", 0.0), key))
    index, partner = np.arange(6), np.arange(6)[::-1]
    np.testing.assert_allclose(labels.sum(1), 1, atol=1e-6)
    return (mixed.mean((1, 2, 3)) - partner) / (index - partner), labels[index, index], mixed


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mixup", "cutmix"])
def test_labels_are_mixed_as_the_pixels_are(kind: str) -> None:
    shares = []
    for seed in range(200):
        pixels, labels, mixed = pairs(seed, **{kind: 0.8})
        np.testing.assert_allclose(pixels, labels, atol=2e-5)
        assert len(np.unique(mixed[0])) == (1 if kind == "mixup" else 2) or labels[0] in (0, 1)
        shares.append(labels[0])
    assert min(shares) < 0.3
    assert max(shares) > 0.9


@pytest.mark.slow
def test_mixup_and_cutmix_take_turns() -> None:
    cut = [len(np.unique(pairs(seed, mixup=1.0, cutmix=1.0)[2][0])) == 2 for seed in range(200)]
    assert 0.35 < np.mean(cut) < 0.6


@pytest.mark.slow
def test_the_cut_square_has_the_share_drawn_unless_clipped() -> None:
    keys = jax.random.split(jax.random.key(0), 400)
    boxes = np.asarray(jax.vmap(lambda key: mixing.cut_box(64, 0.7, key))(keys))
    shares = np.asarray(jax.vmap(lambda key: jax.random.beta(jax.random.split(key)[0], 0.7, 0.7))(keys))
    for box, share in zip(boxes, shares, strict=True):
        rows, columns = np.flatnonzero(box.any(1)), np.flatnonzero(box.any(0))
        side = 2 * int(64 * np.sqrt(1 - share) / 2)
        if not len(rows):
            assert side == 0
            continue
        assert box[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()
        for edge in (rows, columns):
            assert len(edge) == side or (len(edge) < side and (edge[0] == 0 or edge[-1] == 63))


@pytest.mark.slow
def test_the_share_is_uniform_where_the_parameter_is_one() -> None:
    shares = np.sort([pairs(seed, mixup=1.0)[1][0] for seed in range(300)])
    assert np.abs(shares - np.linspace(0, 1, 300)).max() < 0.09


@pytest.mark.slow
def test_smoothing_commutes_with_mixing() -> None:
    images = jax.random.normal(jax.random.key(1), (4, 8, 8, 3))
    one_hot = np.eye(3, dtype=np.float32)[[0, 1, 1, 2]]
    mixed = np.asarray(MIX(images, jnp.asarray(one_hot), 0.8, 0.0, jax.random.key(0))[1])
    smooth = lambda targets: 0.9 * targets + 0.1 / 3
    share = mixed[0, 0]
    expected = share * smooth(one_hot) + (1 - share) * smooth(one_hot[::-1])
    np.testing.assert_allclose(smooth(mixed), expected, atol=1e-6)
