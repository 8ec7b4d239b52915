"""What an encoding means is used or asked for, never dropped without a word, over the whole registry."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pejax import (
    ENCODINGS,
    Dims,
    Hooks,
    TokenPositions,
    alibi_bias,
    attend,
    attention_fn,
    attention_hooks,
    caches_rotated_keys,
    dot_product_attention,
    interpolate_positions,
    make_encoding,
    packed_positions,
    rope_apply,
    rope_frequencies,
    sinusoidal_embedding,
    t5_bucket,
)
from pejax.functions import fire_bias, kerple_bias, lookup_embedding
from tests.support.biases import types_unchecked
from tests.support.cases import EACH_KIND, Case, close, draw, mostly_slow, normal, serves

T = 6
CASES = [Case(name, "causal") for name in ENCODINGS] + [Case("rope(extend='self_extend')", "causal")]
IMAGES = [Case(name, "image") for name in ENCODINGS]
Q, K, V = normal(T, 4, 12), normal(T, 2, 12, seed=1), normal(T, 2, 12, seed=2)


def often(cases: list[Case]) -> list:
    """Return the cases, those of other than one encoding per kind, on one setting, for `-m slow`."""
    quick = [case for case in cases if case.setting == "causal" and case.spec in EACH_KIND]
    return mostly_slow(cases, quick)


def attend_drawn(case: Case, tokens: TokenPositions | jax.Array, **options: object) -> jax.Array:
    """Return `attend` of drawn heads; what the encoding embeds is said to be embedded."""
    options = {"embedded": True, "extent": case.dims.extent, "axes": case.dims.axes, **options}
    return attend(case.encoding, Q, K, V, params=case.params, positions=tokens, **options)


@pytest.mark.parametrize("case", often(CASES), ids=str)
def test_hooks_alone_are_refused_where_they_are_not_all_of_the_position(case):
    encoding = case.encoding
    turns = bool(encoding.rotate or encoding.bands)
    hooks = functools.partial(attention_hooks, encoding, case.settled)
    if turns:
        with pytest.raises(ValueError, match=r"rotates.*attend.*rotated=True"):
            hooks(embedded=True)
    if encoding.embed is not None:
        with pytest.raises(ValueError, match=r"embed.*embedded=True"):
            hooks(rotated=True)
        with pytest.raises(ValueError, match=r"embed.*embedded=True"):
            attend_drawn(case, jnp.arange(T), embedded=False)
    assert isinstance(hooks(rotated=turns, embedded=encoding.embed is not None), Hooks)


@pytest.mark.parametrize("case", often(CASES[:-1]), ids=str)
def test_an_encoding_made_for_a_causal_model_is_causal_everywhere(case):
    """Without being told, and it cannot be told otherwise."""
    tokens, encoding = jnp.arange(T), case.encoding

    @jax.jit
    def run(params):
        made = attention_fn(encoding, params, positions=tokens, extent=24, embedded=True)
        options = {"positions": tokens, "extent": 24, "embedded": True}
        output = attend(encoding, Q, K, V, params=params, causal=True, **options)
        return output, attend(encoding, Q, K, V, params=params, **options), made(Q, K, V)

    output, untold, made = run(case.params)
    np.testing.assert_array_equal(untold, output)
    close(made, output)
    with pytest.raises(ValueError, match=r"causal must be True.*Dims\(causal=True\)"):
        attend_drawn(case, tokens, causal=False)
    hooks = attention_hooks(encoding, case.settled, rotated=True, embedded=True)
    with pytest.raises(ValueError, match=r"causal must be True.*Dims\(causal=True\)"):
        dot_product_attention(Q, K, V, positions=tokens, hooks=hooks)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "bool"])
@pytest.mark.parametrize("case", often(CASES[:-1] + IMAGES), ids=str)
def test_positions_that_do_not_hold_every_number_are_refused(case, dtype):
    rough = jnp.zeros(draw(case, T).shape, dtype)
    with pytest.raises(TypeError, match=f"positions must be .*got {dtype}"):
        attend_drawn(case, TokenPositions(rough, order=jnp.arange(T)))
    for hook, x in ((case.encoding.embed, jnp.ones((T, 48))), (case.encoding.rotate, Q)):
        if hook is not None:
            with types_unchecked(), pytest.raises(TypeError, match=f"positions must be .*got {dtype}"):
                hook(case.settled, x, rough)


@pytest.mark.parametrize(
    "function",
    [
        lambda at: rope_apply(Q, at, rope_frequencies(12)),
        lambda at: sinusoidal_embedding(at, 8),
        lambda at: lookup_embedding(jnp.ones((9, 3)), at),
        lambda at: interpolate_positions(at, 4, 8),
        lambda at: alibi_bias(at, at, jnp.ones(2)),
        lambda at: kerple_bias(at, at, jnp.ones(2), jnp.ones(2)),
        lambda at: fire_bias(at, at, Case("fire", "sequence").params, causal=True),
        lambda at: t5_bucket(at, bidirectional=True),
        lambda at: dot_product_attention(Q, K, V, positions=at),
    ],
)
def test_functions_refuse_such_positions_and_say_from_where_on_they_are_wrong(function):
    with pytest.raises(TypeError, match=r"(positions|relative) must be .* bfloat16, which is exact only up to 256$"):
        function(jnp.arange(T, dtype=jnp.bfloat16))
    with pytest.raises(TypeError, match=r"(positions|relative) must be .* float16, which is exact only up to 2,048$"):
        function(jnp.arange(T, dtype=jnp.float16))


@pytest.mark.parametrize("case", often([*CASES, *IMAGES]), ids=str)
def test_a_token_that_is_not_placed_is_so_wherever_its_position_says(case):
    at, placed = draw(case, T, reach=1), jnp.arange(T) != 2
    _ = case.params  # drawn outside of the trace below
    sides = [TokenPositions(at.at[2].set(value), jnp.arange(T), placed) for value in (0, 3)]
    close(*jax.jit(lambda sides: [attend_drawn(case, side) for side in sides])(sides))
    if case.encoding.embed is not None:
        x = normal(T, 48)
        embedded = case.encoding.embed(case.settled, x, sides[1])
        np.testing.assert_array_equal(embedded[2], x[2])
        close(embedded, case.encoding.embed(case.settled, x, at).at[2].set(x[2]))


@pytest.mark.slow
def test_unplaced_tokens_of_a_batch_turn_by_0_in_both_adapters():
    x, at = normal(3, 5, 2, 8), jnp.asarray(np.random.default_rng(0).integers(1, 9, (3, 5)), jnp.int32)
    for axes, name, positions in ((1, "rope", at), (2, "rope_axial", jnp.stack([at, at + 1], -1)), (1, "rope", at[0])):
        encoding = make_encoding(name, Dims(heads=2, head_dim=8, axes=axes, extent=None))
        for placed in (jnp.arange(5) > 0, jnp.stack([jnp.arange(5) > i for i in range(3)])):
            mask = jnp.broadcast_to(placed, (3, 5))
            batch = jnp.broadcast_to(positions, (3, 5, *positions.shape[2 if positions.ndim > 1 else 1 :]))
            still = TokenPositions(jnp.where(mask[..., None] if axes > 1 else mask, batch, 0), has_position=mask)
            expected = attend(encoding, x, x, x, positions=still)
            tokens = TokenPositions(positions, has_position=placed)
            close(attend(encoding, x, x, x, positions=tokens), expected)
            close(attention_fn(encoding, {}, positions=tokens)(x, x, x), expected)


@pytest.mark.parametrize("extend", ["none", "dynamic_ntk", "pi", "yarn", "self_extend", "linear(factor=2)"])
def test_rotated_keys_are_taken_where_a_cache_may_hold_them(extend):
    """Exactly there: keys rotated once are those of the full pass."""
    encoding = make_encoding("rope", Dims(heads=4, head_dim=12, kv_heads=2, extent=4, causal=True), extend)
    run = functools.partial(attend, encoding, positions=jnp.arange(T), extent=T)
    if caches_rotated_keys(encoding):
        cached = encoding.rotate({}, K, jnp.arange(T))
        close(run(Q, cached, V, keys_are_rotated=True), run(Q, K, V))
    else:
        with pytest.raises(ValueError, match=r"keys_are_rotated must be False.*caches_rotated_keys"):
            run(Q, K, V, keys_are_rotated=True)
    assert caches_rotated_keys(encoding) == (extend in ("none", "linear(factor=2)"))


def test_encodings_that_do_not_turn_keys_may_cache_them_as_they_are():
    assert caches_rotated_keys(make_encoding("alibi", Dims(heads=4, head_dim=12)))


def test_packed_tokens_are_placed_and_apart():
    segments = jnp.asarray([[1, 1, 1, 2, 2, 0], [1, 2, 2, 2, 2, 2]])
    tokens = packed_positions(segments)
    np.testing.assert_array_equal(tokens.positions, [[0, 1, 2, 0, 1, 0], [0, 0, 1, 2, 3, 4]])
    x = normal(2, 6, 2, 8)
    out = dot_product_attention(x, x, x, positions=tokens, causal=True)
    alone = dot_product_attention(x[:1, 3:5], x[:1, 3:5], x[:1, 3:5], positions=jnp.arange(2), causal=True)
    close(out[:1, 3:5], alone)


@pytest.mark.parametrize("name", [name for name in ENCODINGS if serves(name, "image")])
def test_causality_is_that_of_the_dims(name):
    assert not make_encoding(name, Dims(heads=4, head_dim=12, axes=2, extent=(6, 4))).causal
    assert make_encoding(name, Dims(heads=4, head_dim=12, extent=24, causal=True)).causal
