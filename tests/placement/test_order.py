"""Masks as an order: equal to the dense boolean mask, in every implementation; tiles that it hides are skipped."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pejax import Dims, TokenPositions, attend, make_encoding, merge_attention, packed_positions, positions_of
from pejax._attention.core.masks import visible_blocks
from pejax._attention.core.options import Options
from pejax._attention.kernels.block_masks import TokenRows, spans, tiles
from pejax._attention.tpu.tpu_block_masks import spans_of
from pejax._attention.xla import blockwise, cpu
from pejax.placement import Run, blocks, causal, image, mutual, order_of, text

MASKS = {
    "prefix LM": [mutual(9), causal(15)],
    "a picture in a text": [causal(5), mutual(12), causal(7)],
    "block diffusion": [blocks(24, size=5)],
    "pi0": [mutual(16), causal(1), mutual(7)],
    "all of them": [mutual(3), causal(4), blocks(11, size=4), mutual(1), causal(2), blocks(3, size=8)],
}
IMPLEMENTATIONS = ("reference", "dense", "blockwise", "cpu", "gpu", "tpu")


def visible_by_hand(runs):
    """Return the mask of the definition: a token sees earlier runs, and of its own the blocks up to its own."""
    places = [(run, token // size) for run, (tokens, size) in enumerate(map(sizes, runs)) for token in range(tokens)]
    return np.asarray([[key <= query for key in places] for query in places])


def sizes(run):
    return run.tokens, run.size


def masked(encoding, q, k, v, positions, mask):
    """Return attention with a boolean mask as an array, by JAX."""
    q, k = (encoding.rotate({}, x, positions) for x in (q, k))
    return jax.nn.dot_product_attention(q, k, v, mask=jnp.asarray(mask)[..., None, :, :])


def drawn(tokens, rows=1):
    return jax.random.normal(jax.random.key(0), (3, rows, tokens, 2, 8))


def refuses(call, words, kind=ValueError):
    with pytest.raises(kind, match=re.escape(words)) as error:
        call()
    assert "\n" not in str(error.value)


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(blockwise, "BLOCK", 8)
    monkeypatch.setattr(cpu, "BLOCK", 8)
    monkeypatch.setattr(cpu, "BACKWARD", 8)


@pytest.mark.parametrize("name", MASKS)
def test_an_order_is_the_mask_that_its_runs_describe(name):
    order = np.asarray(order_of(MASKS[name]))
    np.testing.assert_array_equal(order <= order[:, None], visible_by_hand(MASKS[name]))
    assert order.dtype == np.int32


def test_the_order_of_a_block_is_the_number_of_its_first_token():
    """So that windows, which count an order, count the tokens of causal runs."""
    runs = [causal(3), mutual(4), causal(2), blocks(5, size=2)]
    assert order_of(runs).tolist() == [0, 1, 2, 3, 3, 3, 3, 7, 8, 9, 9, 11, 11, 13]
    assert order_of([causal(5)]).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.slow
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", MASKS)
def test_attention_in_an_order_is_attention_under_the_dense_mask(name, implementation, small_blocks):
    encoding = make_encoding("rope", Dims(heads=2, head_dim=8, causal=True))
    q, k, v = drawn(24)
    tokens = TokenPositions(jnp.arange(24), order=order_of(MASKS[name]))

    def run(function):
        square = lambda q, k, v: (jnp.square(out := function(q, k, v)).sum(), out)
        return jax.jit(jax.value_and_grad(square, argnums=(0, 1, 2), has_aux=True))(q, k, v)

    ours = functools.partial(attend, encoding, positions=tokens, implementation=implementation)
    theirs = functools.partial(masked, encoding, positions=jnp.arange(24), mask=visible_by_hand(MASKS[name]))
    ((_, out), gradients), ((_, expected), pulled) = run(ours), run(theirs)
    np.testing.assert_allclose(out, expected, atol=2e-6)
    for mine, other in zip(gradients, pulled, strict=True):
        np.testing.assert_allclose(mine, other, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_packed_rows_have_the_runs_of_each_document(implementation, small_blocks):
    """Blocks are counted in each document; a batch has a row of runs each; what follows the documents is padding."""
    rows = [
        ([mutual(3), blocks(7, size=4)], [blocks(9, size=4)], 5),
        ([blocks(6, size=4)], [causal(5), mutual(4)], 9),
    ]
    encoding = make_encoding("rope", Dims(heads=2, head_dim=8, causal=True))
    lengths = [[sum(run.tokens for run in document) for document in documents] for *documents, _ in rows]
    segments = jnp.asarray([np.repeat([1, 2, 0], [*lengths[b], rows[b][2]]) for b in range(2)], jnp.int32)
    order = jnp.stack([order_of([*first, *second, causal(padding)]) for first, second, padding in rows])
    tokens = packed_positions(segments)._replace(order=order)
    q, k, v = drawn(24, rows=2)
    got = attend(encoding, q, k, v, positions=tokens, implementation=implementation)
    for b, documents in enumerate(rows):
        start = 0
        for document, length in zip(documents[:2], lengths[b], strict=True):
            of = lambda x: x[b : b + 1, start : start + length]  # noqa: B023
            want = masked(encoding, of(q), of(k), of(v), jnp.arange(length), visible_by_hand(document))
            np.testing.assert_allclose(of(got), want, atol=2e-6)
            start += length
        assert not np.any(got[b, start:])


@pytest.mark.parametrize(
    ("runs", "visible", "full"),
    [
        ([causal(64)], 36, 28),
        ([mutual(16), causal(48)], 37, 31),
        ([blocks(64, size=8)], 36, 36),
        ([blocks(64, size=16)], 40, 40),
        ([causal(24), mutual(24), causal(16)], 39, 34),
        ([mutual(64)], 64, 64),
    ],
)
def test_tiles_without_a_visible_pair_are_skipped(runs, visible, full):
    """By the counts of tiles of 8 x 8: in XLA's loops, in the kernels for GPUs, in those for TPUs."""
    options, order = Options(1.0, causal=True), order_of(runs)
    cut = TokenPositions(order.reshape(8, 8), order=order.reshape(8, 8))
    seen = np.asarray(visible_blocks(options, cut, cut))
    assert seen.sum() == visible
    rows = TokenRows(order=order[None])
    of_gpu = tiles(options, rows, rows, (8, 8))
    assert of_gpu is not None
    assert (int(of_gpu.visible.sum()), int(of_gpu.full.sum())) == (visible, full)
    first, _, _, _, _, end = spans(of_gpu)[0].T
    assert int((end - first).sum()) == visible
    fields = {"order": order[None]}
    for visits in spans_of(options, fields, fields, (8, 8)):
        assert int((visits.last - visits.first + 1).sum()) == visible
    np.testing.assert_array_equal(seen, visible_by_hand(runs).reshape(8, 8, 8, 8).any((1, 3)))


def test_packed_documents_skip_the_tiles_between_them():
    options, order = Options(1.0, causal=True), order_of([mutual(16), blocks(16, size=8), blocks(32, size=16)])
    segments = jnp.repeat(jnp.asarray([1, 2]), 32)
    cut = TokenPositions(*(x.reshape(8, 8) for x in (order, order)), segment_ids=segments.reshape(8, 8))
    assert int(visible_blocks(options, cut, cut).sum()) == (2 * 2 + 3 + 4) + (2 * 2 + 2 * 4)


@pytest.mark.slow
def test_the_loops_visit_no_other_tiles(monkeypatch):
    """A NaN in the tiles that an order hides would reach what visits them: 0 · NaN is NaN."""
    monkeypatch.setattr(blockwise, "BLOCK", 8)
    monkeypatch.setattr(cpu, "BLOCK", 8)
    q, k, v = drawn(32)
    runs = [mutual(16), blocks(16, size=8)]
    tokens = TokenPositions(jnp.arange(32), order=order_of(runs))
    encoding = make_encoding("none", Dims(heads=2, head_dim=8, causal=True))
    for implementation in ("blockwise", "cpu"):
        out = attend(encoding, q, k, v.at[:, 24:].set(jnp.nan), positions=tokens, implementation=implementation)
        assert not jnp.isnan(out[:, :24]).any(), implementation
        assert jnp.isnan(out[:, 24:]).all(), implementation
    out = attend(encoding, q, k, v.at[:, 24:].set(jnp.nan), positions=tokens, implementation="dense")
    assert jnp.isnan(out).all()


def test_pictures_of_a_sequence_are_read_both_ways():
    parts = [text(2), image(2, 2), image(1, 2), text(2)]
    plain = positions_of(parts, [text(1), image(1, 2)], rule="qwen2_vl", length=16)
    tokens = positions_of(parts, [text(1), image(1, 2)], rule="qwen2_vl", length=16, mutual=("image",))
    assert tokens.order.tolist() == [0, 1, 2, 2, 2, 2, 6, 6, 8, 9, 10, 11, 11, 13, 14, 15]
    assert plain.order.tolist() == list(range(16))
    for name in ("positions", "segment_ids"):
        np.testing.assert_array_equal(getattr(tokens, name), getattr(plain, name))
    both = positions_of(parts, rule="qwen2_vl", mutual=("image", "text"))
    assert both.order.tolist() == [0, 0, 2, 2, 2, 2, 6, 6, 8, 8]


@pytest.mark.slow
def test_noised_blocks_beside_a_clean_copy_are_two_calls():
    """Block diffusion in training (Arriola 2025): a noised block sees itself, and the clean blocks before it."""
    size, count = 4, 6
    length = size * count
    encoding = make_encoding("rope", Dims(heads=2, head_dim=8, causal=True))
    (noised_q, noised_k, noised_v), (q, k, v) = drawn(length), drawn(2 * length)[:, :, :length]
    places, block = jnp.arange(length), jnp.arange(length) // size
    tokens = TokenPositions(places, order=order_of([blocks(length, size=size)]))
    clean = attend(encoding, q, k, v, positions=tokens)
    own = attend(
        encoding, noised_q, noised_k, noised_v,
        positions=TokenPositions(places, order=jnp.zeros_like(places), segment_ids=block + 1), return_lse=True,
    )  # fmt: skip
    before = attend(
        encoding, noised_q, k, v, positions=TokenPositions(places, order=block),
        k_positions=TokenPositions(places, order=block + 1), return_lse=True,
    )  # fmt: skip
    noised, _ = merge_attention([own, before])
    row, column = block[:, None], block[None]
    mask = jnp.block([[row == column, row > column], [jnp.zeros_like(row >= column), row >= column]])
    join = lambda *pair: jnp.concatenate(pair, axis=1)
    twice = jnp.concatenate([places, places])
    want = masked(encoding, join(noised_q, q), join(noised_k, k), join(noised_v, v), twice, mask)
    np.testing.assert_allclose(join(noised, clean), want, atol=2e-6)


def test_runs_that_describe_nothing_are_refused():
    for make in (mutual, causal, functools.partial(blocks, size=2)):
        refuses(lambda make=make: make(0), "tokens of a run must be at least 1, got 0")
        refuses(lambda make=make: make(-3), "tokens of a run must be at least 1, got -3")
        refuses(lambda make=make: make(2.5), "tokens must be an int", TypeError)
    refuses(lambda: blocks(4, size=0), "size of a run must be at least 1, got 0")
    refuses(lambda: blocks(4), "missing a required argument: 'size'", TypeError)
    refuses(lambda: order_of([]), "order_of: runs must have at least one, such as causal(12)")
    refuses(lambda: order_of([causal(2), 3]), "runs such as mutual(12) and causal(40)", TypeError)
    refuses(lambda: order_of(causal(2)), "runs such as mutual(12) and causal(40)", TypeError)
    refuses(lambda: Run(4, -1), "size of a run must be at least 1, got -1")
    parts = [text(2)]
    refuses(lambda: positions_of(parts, rule="qwen2_vl", mutual=("picture",)), "mutual must be one of text, image")
