"""LongRoPE's search: where it begins, that it only gets better, and what it may not break."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pejax._extensions.longrope_search import search_longrope
from tests.extensions.test_frequencies import yarn_ratio

FACTOR, TARGET = 8.0, jnp.asarray([1.0, 1.1, 1.5, 2.0, 5.0, 7.0, 9.0, 9.5])
OPTIONS = {"trained_length": 256, "population": 12, "parents": 6, "mutations": 5, "crossovers": 4, "chunk": 4}


def distance(factors: jax.Array) -> jax.Array:
    """Return a loss with its least at the target."""
    return jnp.mean(jnp.square(factors - TARGET))


def search(loss=distance, seed=0, generations=3, **options):
    return search_longrope(
        loss, 16, FACTOR, key=jax.random.key(seed), generations=generations, **{**OPTIONS, **options}
    )


def test_it_begins_with_pi_ntk_and_yarn():
    """Each is the best of the first generation under a loss that is least there."""
    ntk = [FACTOR ** (2 * i / 14) for i in range(8)]
    yarn = [1 / yarn_ratio(i, dim=16, base=10000.0, length=256, factor=FACTOR) for i in range(8)]
    for factors_tried in ([FACTOR] * 8, ntk, yarn):
        best = search(
            lambda factors, known=factors_tried: jnp.max(jnp.abs(factors - jnp.asarray(known))), generations=0
        )
        np.testing.assert_allclose(best.factors, factors_tried, rtol=1e-6)


def test_it_never_gets_worse_and_ends_better_than_it_began():
    seen = []
    best = search(generations=12, progress=lambda generation, item: seen.append((generation, float(item.loss))))
    assert [generation for generation, _ in seen] == list(range(13))
    assert np.all(np.diff([loss for _, loss in seen]) <= 0)
    assert best.loss == seen[-1][1] < 0.5 * seen[0][1]
    np.testing.assert_allclose(distance(best.factors), best.loss, rtol=1e-6)


def test_every_member_rises_from_1_to_at_most_a_quarter_beyond_the_factor():
    """A loss that rewards whatever is out of order or out of bounds finds nothing to reward."""
    steps = search(lambda factors: jnp.min(jnp.diff(factors)))
    assert steps.loss >= 0
    assert search(lambda factors: jnp.min(factors)).loss >= 1
    assert 8.0 < -search(lambda factors: -jnp.max(factors)).loss <= 10.0


def test_equal_keys_give_equal_results_whatever_the_chunks():
    one, again, other = search(), search(chunk=1), search(seed=1)
    np.testing.assert_array_equal(one.factors, again.factors)
    assert np.any(one.factors != other.factors)


def test_a_loss_that_is_not_a_number_counts_as_worst():
    best = search(lambda factors: jnp.where(factors[0] > 4.0, jnp.nan, distance(factors)))
    assert jnp.isfinite(best.loss)
    assert best.factors[0] <= 4.0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"generations": -1}, "generations must be at least 0, got -1"),
        ({"population": 2}, "population must be at least 3, got 2"),
        ({"mutations": 0}, "mutations must be at least 1, got 0"),
        ({"chunk": 0}, "chunk must be at least 1, got 0"),
        ({"rate": 1.5}, "rate must be from 0 to 1, got 1.5"),
        ({"trained_length": 0}, "trained_length must be at least 1, got 0"),
        ({"base": 1.0}, "base must be a finite number above 1, got 1.0"),
    ],
)
def test_bad_input_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        search(**options)
