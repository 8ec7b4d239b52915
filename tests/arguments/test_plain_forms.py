"""NumPy's integers, lists and arrays count as the plain values that they stand for; all else is refused by name."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import pejax
from pejax import models
from pejax._tokens.positions import as_token_positions

SEQUENCE = pejax.Dims(4, 8, extent=16)


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        (lambda: pejax.Dims(np.int64(4), 8, extent=np.int64(16)), lambda: SEQUENCE),
        (lambda: pejax.Dims(4, 8, axes=2, extent=[4, 6]), lambda: pejax.Dims(4, 8, axes=2, extent=(4, 6))),
        (lambda: pejax.Dims(4, 8, scale=np.float32(0.5)), lambda: pejax.Dims(4, 8, scale=0.5)),
        (lambda: pejax.encodings.rope(SEQUENCE, base=100), lambda: pejax.encodings.rope(SEQUENCE, base=100.0)),
        (lambda: pejax.extensions.yarn(factor=jnp.float32(8)), lambda: pejax.extensions.yarn(factor=8)),
        (lambda: models.vit(image_size=np.asarray([8, 8])), lambda: models.vit(image_size=(8, 8))),
    ],
)
def test_plain_forms_give_equal_records(given, plain):
    assert given() == plain()


@pytest.mark.slow
def test_lists_and_numpy_arrays_are_arrays():
    at, slopes = jnp.arange(3), pejax.alibi_slopes(4)
    bias = pejax.alibi_bias(at, at, slopes)
    np.testing.assert_array_equal(pejax.alibi_bias([0, 1, 2], np.arange(3), slopes.tolist()), bias)
    x = jnp.linspace(-1, 1, 3 * 4 * 8).reshape(3, 4, 8)
    rope = pejax.encodings.rope(SEQUENCE)
    np.testing.assert_array_equal(pejax.attend(rope, np.asarray(x), x, x), pejax.attend(rope, x, x, x))


ROWS = {
    "one row": jnp.arange(8)[None],
    "one row of NumPy": np.arange(8)[None],
    "a range": range(8),
    "a record": pejax.TokenPositions(jnp.arange(8)[None], segment_ids=jnp.ones((1, 8), jnp.int32)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("spec", ["rope", "alibi", "learned"])
def test_one_row_of_positions_is_that_of_every_example(name, spec):
    """At every door; with causal masks, too, for which known positions must rise."""
    row, dims = ROWS[name], pejax.Dims(2, 8, width=16, extent=8, causal=True)
    encoding = pejax.make_encoding(spec, dims)
    params = pejax.init_params(encoding, jax.random.key(0))
    q, k, v = jax.random.normal(jax.random.key(1), (3, 2, 8, 2, 8))
    options = {"params": params, "extent": 8, "embedded": True}
    module = models.attention_module(encoding, dims, nnx.Rngs(0), embedded=True)
    decoder = models.Decoder(models.decoder(16, 8, 16, 1, 2, pe=spec), rngs=nnx.Rngs(0))
    ids = jax.random.randint(jax.random.key(2), (2, 8), 0, 16)

    def doors(row):
        with module.at(row, extent=8):
            yield module(q, k, v)
        tokens = row if isinstance(row, pejax.TokenPositions) else pejax.TokenPositions(row)
        yield decoder.states(ids, tokens=tokens)
        for sides in ({"positions": row}, {"positions": row, "k_positions": row}):
            yield pejax.attend(encoding, q, k, v, **options, **sides)
            yield pejax.attention_fn(encoding, params, extent=8, embedded=True, **sides)(q, k, v)
            yield pejax.dot_product_attention(q, k, v, causal=True, window=3, **sides)
            yield pejax.attention_weights(q, k, causal=True, **sides)
            if spec != "alibi":
                yield pejax.linear_attention(encoding, q, k, v, **options, **sides)
        if not isinstance(row, pejax.TokenPositions):
            yield pejax.rope_apply(q, row)
            if encoding.embed is not None:
                yield encoding.embed(pejax.adapt(encoding, params, 8), jnp.ones((2, 8, 16)), jnp.asarray(row))

    for result, expected in zip(doors(row), doors(jnp.arange(8)), strict=name != "a record"):
        np.testing.assert_allclose(result, expected, atol=1e-6)


def test_one_row_of_positions_stays_known_inside_jit():
    rows = []
    jax.jit(lambda x: rows.append(as_token_positions(jnp.arange(3)[None], (2, 3)).positions))(0)
    row = jnp.arange(3)[None]
    jax.jit(lambda x: rows.append(as_token_positions(row, (2, 3)).positions))(0)
    assert [isinstance(row, jax.core.Tracer) for row in rows] == [True, False]
    assert rows[1].tolist() == [0, 1, 2]


def embed_another_width():
    learned = pejax.encodings.learned(SEQUENCE)
    params = pejax.adapt(learned, pejax.init_params(learned, jax.random.key(0)), 16)
    learned.embed(params, jnp.ones((2, 5, 16)), jnp.arange(5))


X = jnp.ones((2, 5, 4, 8))
REFUSED = {
    "a float": (lambda: pejax.Dims(4, 8, extent=8.0), r"Dims: extent must be an int, a tuple of ints or None, got 8.0"),
    "no number": (lambda: pejax.encodings.rope(SEQUENCE, base="x"), "rope: base must be a finite number, got 'x'"),
    "nan": (lambda: pejax.encodings.rope(SEQUENCE, base=np.nan), "rope: base must be a finite number, got nan"),
    "a name": (lambda: pejax.attend("rope", X, X, X), r"attend: encoding must be a pejax.Encoding .* got 'rope'"),
    "no key": (lambda: pejax.init_params(pejax.encodings.rope(SEQUENCE), 0), "key must be a random key .* got 0"),
    "another shape": (
        lambda: pejax.attend(pejax.encodings.rope(SEQUENCE), X, X, X[:, :, :2]),
        r"attend: v must be an array of floats \(\*B, S, K, D\), got float32 \(2, 5, 2, 8\) beside q",
    ),
    "a table as positions": (
        lambda: pejax.rope_apply(X, jnp.ones((5, 4))),
        r"must be \(5,\) or \(2, 5\), got \(5, 4\)",
    ),
    "another width": (embed_another_width, r"x must be \(\*B, T, C\) with C=32, .* got shape \(2, 5, 16\)"),
    "an image without a batch": (
        lambda: models.ViT(models.vit(8, 4, 1, 3, 16, 1, 2), rngs=nnx.Rngs(0))(jnp.ones((8, 8, 1))),
        r"ViT: images must be an array of floats \(B, height, width, channels\) or what pejax.patchify returns, ",
    ),
    "no number as an array": (
        lambda: pejax.alibi_bias(jnp.arange(3), jnp.arange(3), np.inf),
        r"alibi_bias: slopes must be an array of floats \(H\), got inf, which is not finite",
    ),
    "a distance without a bucket": (
        lambda: pejax.t5_bucket(jnp.asarray([1.0, np.nan]), bidirectional=True),
        "relative must have no NaN",
    ),
    "a list of records": (
        lambda: pejax.compose_encodings([pejax.encodings.rope(SEQUENCE)]),
        r"parts\[0\] must be a pejax.Encoding such as .*, got list$",
    ),
    "a mask": (lambda: pejax.attention_weights(X, X, mask=X), "'mask': masks are .* attention_fn takes a mask or bias"),
    "a mask, explained": (lambda: pejax.explain_attention(X, X, X, mask=X), "got 'mask': masks are causal"),
    "a sharding, explained": (
        lambda: pejax.explain_attention(X, X, X, sharding=pejax.Sharding()),
        "sharding must be None: explain_attention takes q, k and v of one shard",
    ),
    "an additive mask as a word": (
        lambda: pejax.attention_fn(pejax.encodings.rope(SEQUENCE))(X, X, X, mask="causal"),
        "mask must be an array or None, got 'causal': an additive mask goes into bias",
    ),
    "a type of integers": (
        lambda: pejax.attention_fn(pejax.encodings.rope(SEQUENCE))(X, X, X, dtype=int),
        "dtype must be a type of floats or None, got int$",
    ),
    "a precision": (
        lambda: pejax.attention_fn(pejax.encodings.rope(SEQUENCE))(X, X, X, precision="exact"),
        "precision must be a precision of jax.lax or None, got 'exact'",
    ),
    "tokens without a batch": (
        lambda: models.Decoder(models.decoder(16, 8, 16, 1, 2), rngs=nnx.Rngs(0))([1, 2]),
        r"Decoder: ids must be an array of integers \(B, T\), got \[1, 2\]",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_all_else_is_refused_in_one_line(name):
    call, words = REFUSED[name]
    with pytest.raises((TypeError, ValueError), match=words) as refusal:
        call()
    assert "\n" not in str(refusal.value)
