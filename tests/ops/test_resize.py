"""Resampled tables: torch's numbers, a loop in float64, and the laws of interpolation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pejax
from pejax._ops.resize import METHODS, sample_grid
from pejax.functions import lookup_embedding, resize_embedding
from tests.support.peers import peer
from tests.support.resampling import draw, resampled, resize

WAYS = [("bicubic", False), ("bicubic", True), ("bilinear", False), ("bilinear", True), ("align_corners", False)]
GRIDS = [
    ((7, 5), (13, 11)),
    ((14, 14), (7, 9)),
    ((5, 9), (3, 20)),
    ((1, 3), (4, 2)),
    ((6, 4), (1, 1)),
    ((16, 16), (37, 37)),
]


def resize_all(tables, sizes, method, antialias):
    """Resample many tables in one compilation: pairs of an old and a new size."""
    each = lambda table, pair: resize_embedding(table, *pair, method=method, antialias=antialias)
    return jax.jit(lambda tables: [each(*pair) for pair in zip(tables, sizes, strict=True)])(tables)


@pytest.mark.parametrize(("method", "antialias"), WAYS)
def test_a_sequence_is_resampled_as_a_loop_does_it(method, antialias):
    sizes = [(5, 12), (11, 4), (6, 7), (9, 1), (1, 3), (2, 3)]
    tables = [draw(old, 3) for old, _ in sizes]
    for table, (_, new), actual in zip(tables, sizes, resize_all(tables, sizes, method, antialias), strict=True):
        np.testing.assert_allclose(actual, resampled(table, new, method, antialias), rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "antialias"), WAYS)
def test_samples_at_a_traced_size_are_rows_of_the_resized_table(method, antialias):
    """At patches and between them, with the gradient of the table; outside the resized table NaN."""
    samples_are_rows(method, antialias, [*GRIDS, ((4, 3, 2), (3, 5, 4)), ((5,), (8,))])
    outside = jnp.asarray([[7, 0], [0, -1], [6, 4]])
    table = jnp.asarray(draw(14, 14, 2))
    rows = sample_grid(table, outside, jnp.asarray([7.0, 5.0]), method=method, antialias=antialias)
    np.testing.assert_array_equal(jnp.isnan(rows).all(axis=-1), [True, True, False])


def samples_are_rows(method, antialias, sizes):
    """Require it for tables of these sizes, old and new."""
    tables = [jnp.asarray(draw(*old, 2)) for old, _ in sizes]
    cells = [np.indices(new).reshape(len(new), -1).T for _, new in sizes]
    between = [at + np.float32(0.3) for at in cells]
    options = {"method": method, "antialias": antialias}

    def resized(table, n):
        (old, new), points = sizes[n], between[n]
        rows = resize_embedding(table.reshape(-1, 2), old, new, **options)
        points = points if len(new) > 1 else points[:, 0]
        return rows, jax.jit(lookup_embedding)(rows.reshape(*new, 2), points)

    def sampled(table, n, size):
        return tuple(sample_grid(table, jnp.asarray(at), size, **options) for at in (cells[n], between[n]))

    @jax.jit
    def runs(tables, news):
        result = []
        for n, (table, new) in enumerate(zip(tables, news, strict=True)):
            weights = (draw(len(cells[n]), 2), draw(len(cells[n]), 2)[::-1])
            for run in (functools.partial(sampled, n=n, size=new), functools.partial(resized, n=n)):
                rows, back = jax.vjp(run, table)
                result.append((rows, back(weights)))
        return result[::2], result[1::2]

    actual, expected = runs(tables, [jnp.asarray(new, jnp.float32) for _, new in sizes])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=2e-5), actual, expected)


def torch_resized(table, old, new, method, antialias):
    torch = peer("torch")
    image = torch.as_tensor(table).reshape(1, *old, -1).permute(0, 3, 1, 2)
    mode = "bicubic" if method == "bicubic" else "bilinear"
    corners = method == "align_corners"
    image = torch.nn.functional.interpolate(image, new, mode=mode, align_corners=corners, antialias=antialias)
    return image.permute(0, 2, 3, 1).reshape(-1, table.shape[-1])


@pytest.mark.parity
@pytest.mark.parametrize(("method", "antialias"), WAYS)
def test_grids_are_resampled_as_in_torch(method, antialias):
    tables = [draw(old[0] * old[1], 4) for old, _ in GRIDS]
    for table, pair, actual in zip(tables, GRIDS, resize_all(tables, GRIDS, method, antialias), strict=True):
        exact = torch_resized(table.astype(np.float64), *pair, method, antialias).numpy()
        np.testing.assert_allclose(actual, exact, rtol=0, atol=1e-6)
        np.testing.assert_allclose(actual, torch_resized(table, *pair, method, antialias).numpy(), rtol=0, atol=1e-5)


@pytest.mark.parity
@pytest.mark.parametrize(("method", "antialias"), WAYS)
def test_gradients_are_those_of_torch(method, antialias):
    torch, old, new = peer("torch"), (7, 5), (4, 11)
    table, cotangent = draw(35, 4), draw(44, 4)
    leaf = torch.tensor(table.astype(np.float64), requires_grad=True)
    torch_resized(leaf, old, new, method, antialias).backward(torch.tensor(cotangent.astype(np.float64)))

    @jax.jit
    def gradient(table, cotangent):
        resized = lambda table: resize_embedding(table, old, new, method=method, antialias=antialias)
        return jax.vjp(resized, table)[1](cotangent)[0]

    np.testing.assert_allclose(gradient(table, cotangent), leaf.grad.numpy(), rtol=0, atol=2e-6)


@pytest.mark.parity
def test_a_vit_is_resampled_as_in_transformers():
    torch, transformers = peer("torch"), peer("transformers")
    from transformers.models.vit.modeling_vit import ViTEmbeddings

    config = transformers.ViTConfig(image_size=24, patch_size=4, hidden_size=8)
    embeddings = ViTEmbeddings(config)
    torch.nn.init.normal_(embeddings.position_embeddings)
    table = embeddings.position_embeddings.detach().numpy()
    expected = embeddings.interpolate_pos_encoding(torch.zeros(1, 1 + 9 * 6, 8), 36, 24).detach().numpy()
    np.testing.assert_allclose(resize(table, (6, 6), (9, 6), prefix=1), expected, rtol=0, atol=1e-5)


@pytest.mark.parity
def test_tables_of_several_sizes_are_those_of_naflex_in_transformers():
    """SigLIP 2 NaFlex: one table at the grid of each picture, its first row in padding."""
    torch, _ = peer("torch"), peer("transformers")
    from transformers.models.siglip2.modeling_siglip2 import Siglip2VisionEmbeddings

    table, sizes = draw(16, 16, 8), ((3, 5), (16, 16), (70, 3), (20, 20))
    theirs = Siglip2VisionEmbeddings.resize_positional_embeddings
    expected = theirs(torch.as_tensor(table), torch.tensor(sizes), 400).numpy()
    dims = pejax.Dims(heads=1, head_dim=8, axes=2, extent=(16, 16))
    naflex = pejax.encodings.learned(dims, method="bilinear", antialias=True)
    patches = pejax.patchify([np.zeros((*size, 8), np.float32) for size in sizes], 1, budget=400)

    def embed(grid, x, tokens):
        return naflex.embed(pejax.adapt(naflex, {"table_0": jnp.asarray(table)}, grid), x, tokens)

    actual = jax.jit(jax.vmap(embed))(patches.extent, patches.pixels, patches.tokens)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("method", "antialias"), WAYS)
class TestLaws:
    """What holds for every method."""

    def test_a_grid_of_the_same_size_is_the_table_itself(self, method, antialias):
        table = draw(2 + 15, 4)
        same = resize(table, (3, 5), (3, 5), method=method, antialias=antialias, prefix=2)
        np.testing.assert_array_equal(same, table)

    def test_constant_tables_stay_constant(self, method, antialias):
        sizes = [((4, 6), (9, 5)), ((3, 1), (1, 4))]
        tables = [np.full((old[0] * old[1], 3), 0.7, np.float32) for old, _ in sizes]
        for resized in resize_all(tables, sizes, method, antialias):
            np.testing.assert_allclose(resized, np.full_like(resized, 0.7), rtol=3e-7)

    def test_linear_mirrored_transposed_and_axis_by_axis(self, method, antialias):
        one, other = draw(4, 6, 3), draw(6, 4, 3).reshape(4, 6, 3)[::-1]
        tables = [one, other, 2 * one - other, one[::-1, ::-1], one.swapaxes(0, 1), one]
        sizes = [((4, 6), (9, 5))] * 4 + [((6, 4), (5, 9)), ((4, 6), (9, 6))]
        flat = resize_all([table.reshape(24, 3) for table in tables], sizes, method, antialias)
        first, second, both, mirrored, transposed, rows = (
            np.asarray(table).reshape(*new, 3) for table, (_, new) in zip(flat, sizes, strict=True)
        )
        np.testing.assert_allclose(both, 2 * first - second, rtol=0, atol=3e-6)
        np.testing.assert_allclose(mirrored, first[::-1, ::-1], rtol=0, atol=1e-6)
        np.testing.assert_allclose(transposed.swapaxes(0, 1), first, rtol=0, atol=1e-6)
        columns = resize_all([row.copy() for row in rows], [(6, 5)] * 9, method, antialias)
        np.testing.assert_allclose(np.stack(columns), first, rtol=0, atol=1e-6)


def test_ramps_stay_ramps():
    ramp = np.arange(9.0, dtype=np.float32)[:, None]
    linear = resize(ramp, 9, 17, method="align_corners")
    np.testing.assert_allclose(linear[:, 0], np.arange(17) / 2, rtol=0, atol=1e-6)
    for method, antialias, margin in (("bilinear", False, 1), ("bicubic", True, 4)):
        resized = np.asarray(resize(ramp, 9, 18, method=method, antialias=antialias))[:, 0]
        centres = (np.arange(18) + 0.5) / 2 - 0.5
        np.testing.assert_allclose(resized[margin:-margin], centres[margin:-margin], rtol=0, atol=1e-6)


@pytest.mark.parametrize("method", ["bilinear", "bicubic"])
def test_antialiasing_removes_what_the_smaller_table_cannot_hold(method):
    alternating = (-1.0) ** np.arange(64, dtype=np.float32)[:, None]
    filtered, plain = (
        np.abs(np.asarray(resize(alternating, 64, 15, method=method, antialias=antialias))[2:-2]).max()
        for antialias in (True, False)
    )
    assert filtered < 0.05 < 0.5 < plain


def test_prefix_rows_are_kept_and_leading_axes_are_lifted():
    tables = draw(2, 3 + 12, 4)
    together = np.asarray(resize(tables, (3, 4), (5, 2), prefix=3))
    assert together.shape == (2, 3 + 10, 4)
    np.testing.assert_array_equal(together[:, :3], tables[:, :3])
    for table, result in zip(tables, together, strict=True):
        np.testing.assert_allclose(resize(table[3:], (3, 4), (5, 2)), result[3:], rtol=0, atol=1e-6)


def test_half_precision_is_resampled_in_single():
    table = draw(12, 4).astype(jnp.bfloat16)
    resized = resize(table, (3, 4), (7, 7))
    assert resized.dtype == jnp.bfloat16
    exact = np.asarray(resize(table.astype(np.float32), (3, 4), (7, 7))).astype(jnp.bfloat16)
    np.testing.assert_array_equal(np.asarray(resized), exact)


def test_three_axes_are_resampled():
    clip = draw(2, 3, 4, 5)
    resized = resize(clip.reshape(24, 5), (2, 3, 4), (4, 3, 4)).reshape(4, 12, 5)
    flat = resize(clip.reshape(2, 60), 2, 4).reshape(4, 12, 5)
    np.testing.assert_allclose(resized, flat, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (13, {}, r"table must have prefix \+ grid = 0 \+ 3·4 = 12 rows, got shape \(13, 2\)"),
        (12, {"prefix": 1}, r"prefix \+ grid = 1 \+ 3·4 = 13 rows, got shape \(12, 2\)"),
        (12, {"prefix": -1}, "prefix=-1"),
        (12, {"method": "cubic"}, "method must be one of bicubic, bilinear, align_corners, got 'cubic'"),
        (12, {"method": "align_corners", "antialias": True}, "antialias must be False where method='align_corners'"),
        (12, {"new": 5}, r"must have the same axes, got \(3, 4\) and 5"),
        (12, {"new": (0, 4)}, r"grids must be at least 1 .*\(0, 4\)"),
    ],
)
def test_what_does_not_fit_is_refused(rows, options, message):
    options = dict(options)
    new = options.pop("new", (5, 6))
    with pytest.raises(ValueError, match=message):
        resize_embedding(jnp.zeros((rows, 2)), (3, 4), new, **options)


def test_every_method_is_tested():
    assert {method for method, _ in WAYS} == set(METHODS)
