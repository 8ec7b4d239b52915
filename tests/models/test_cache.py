"""The KV cache: it takes no position twice, and a cut one goes on as if later tokens had never come."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from pejax import TokenPositions
from pejax.models import Decoder, Rolling, decoder
from pejax.models.stack.cache import check_cacheable
from tests.support.cases import mostly_slow

LENGTH, SLOTS = 9, 12


@functools.cache
def make(pe: str) -> Decoder:
    """Make a model whose logits differ; an untrained one has zeros."""
    trained = 4 if "extend" in pe else LENGTH
    config = decoder(pe=pe, vocab=16, length=trained, width=8, layers=1, heads=2)
    graph, state = nnx.split(Decoder(config, rngs=nnx.Rngs(0)))
    drawn = lambda x: x + 0.3 * jax.random.normal(jax.random.key(x.size), x.shape, x.dtype)
    return nnx.merge(graph, jax.tree.map(drawn, state))


@nnx.jit
def feed(model, ids, cache, tokens):
    return model.cached(ids, cache, tokens=tokens, extent=LENGTH)


def after(start, count=4):
    """Return the positions of tokens that follow `start` others."""
    return TokenPositions(jnp.asarray(start)[..., None] + jnp.arange(count))


IDS = jnp.asarray(np.random.default_rng(0).integers(0, 16, (2, 12)))
KINDS = ["rope", "alibi", "learned", "t5(extend='pi')", "rope(extend='dynamic_ntk(factor=2)')"]


@pytest.mark.parametrize("kind", mostly_slow(KINDS, ["alibi"]))
def test_a_cut_cache_goes_on_like_the_full_forward_pass(kind):
    """Of four drafts one is kept; the positions of the others are taken by other tokens."""
    model = make(kind)
    start, draft, rest = IDS[:, :4], IDS[:, 4:8], IDS[:, 8:]
    _, cache = feed(model, start, model.stack.empty_cache(2, SLOTS), after(0))
    _, cache = feed(model, draft, cache, after(4))
    cache = jax.jit(lambda cache, length: cache.cut(length))(cache, jnp.int32(5))
    assert int(cache.used) == 5
    assert not cache.tokens.segment_ids[:, 5:].any()
    logits, _ = feed(model, rest, cache, after(5))
    full = nnx.jit(lambda model, ids: model(ids))(model, jnp.concatenate([start, draft[:, :1], rest], axis=1))
    np.testing.assert_allclose(logits, full[:, 5:], atol=1e-4)


@pytest.mark.slow
def test_examples_are_cut_at_slots_of_their_own():
    """What is between the end of a shorter example and the next slot is padding."""
    model, lengths = make("rope"), np.array([2, 3])
    _, cache = feed(model, IDS[:, :4], model.stack.empty_cache(2, SLOTS), after(0))
    cache = cache.cut(jnp.asarray(lengths))
    assert int(cache.used) == 3
    logits, _ = feed(model, IDS[:, 4:8], cache, after(lengths))
    for row, count in enumerate(lengths):
        alone = model(jnp.concatenate([IDS[row : row + 1, :count], IDS[row : row + 1, 4:8]], axis=1))
        np.testing.assert_allclose(logits[row], alone[0, count:], atol=1e-4)


def test_no_position_is_taken_twice():
    model, ids = make("alibi"), IDS[:, :2]
    segments = jnp.asarray([[0, 1], [1, 1]])  # the first example is padded on the left
    empty, two = model.stack.empty_cache(2, SLOTS), jnp.asarray([[0, 1, *[0] * 10]] * 2)
    cache = empty._replace(tokens=TokenPositions(two, segment_ids=two.at[:, 0].set(1)), used=jnp.int32(2))
    at = lambda *positions, **fields: TokenPositions(jnp.asarray(positions), **fields)
    rule = r"at positions that no token of their segment has, got {} again in example {}: cache\.cut\(length\) drops"
    for tokens, position, example in (
        (at(0, 1), 1, 0), (at(2, 1), 1, 0), (at(2, 2), 2, 0), (at([2, 3], [3, 0]), 0, 1),
        (at(1, 2, segment_ids=jnp.ones((2, 2), jnp.int32)), 1, 0),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=rule.format(position, example)):
            model.cached(ids, cache, tokens=tokens, extent=4)
    for tokens in (
        at(2, 3),
        at(0, 1, segment_ids=jnp.full((2, 2), 2)),
        at(0, 2, segment_ids=jnp.asarray([[0, 1]] * 2)),
    ):
        check_cacheable(cache, tokens)
    check_cacheable(cache.cut(1), at(1, 2))
    check_cacheable(cache.cut(0), at(0, 1))
    check_cacheable(empty, at([0, 0], [0, 1], segment_ids=segments))


def test_what_cannot_be_cut():
    model = make("alibi")
    cache = model.stack.empty_cache(2, SLOTS)._replace(used=jnp.int32(3))
    for length in (-1, 4, jnp.asarray([1, 4])):
        with pytest.raises(ValueError, match="length must be from 0 to used=3, got "):
            cache.cut(length)
    with pytest.raises(ValueError, match="a rolling cache cannot be cut, because the tokens that it dropped"):
        model.stack.empty_cache(2, Rolling(4)).cut(0)
