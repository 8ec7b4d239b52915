"""The entropy of attention, against the weights themselves: a model of every kind, layer by layer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from pejax import attention_weights, models
from pejax._tokens.positions import TokenPositions
from pejax.models import Decoder, EncoderDecoder, Execution, ViT
from tests.support.decoders import FAST
from train.engine import attention_entropy
from train.engine.attention_entropy import EntropyExecution


def mean_entropy(weights: np.ndarray) -> float:
    """Return the mean of -Σ w ln w over rows that see a key, by the definition, in float64."""
    rows = np.asarray(weights, np.float64).reshape(-1, weights.shape[-1])
    rows = rows[rows.sum(-1) > 0.5]
    return float(np.mean([-sum(w * np.log(w) for w in row if w > 0) for row in rows]))


@pytest.mark.slow
@pytest.mark.parametrize(("length", "causal"), [(5, True), (100, False)])
def test_entropy_is_that_of_the_weights(length, causal):
    keys = jax.random.split(jax.random.key(0), 2)
    q, k = (2.0 * jax.random.normal(key, (2, length, 4, 8)) for key in keys)
    segments = jnp.where(jnp.arange(length) < length - 2, 1, 0)
    tokens = TokenPositions(jnp.arange(length, dtype=jnp.int32), segment_ids=segments)
    options = {"positions": tokens, "k_positions": tokens, "causal": causal}
    rows = np.linspace(0, length - 1, min(64, length)).round().astype(int)
    weights = attention_weights(q, k, **options)[..., rows, :]
    assert float(attention_entropy.entropy(q, k, 1, **options)) == pytest.approx(mean_entropy(weights), rel=1e-5)


@pytest.mark.slow
def test_heads_are_apart_and_their_mean_is_the_entropy():
    keys = jax.random.split(jax.random.key(0), 2)
    q, k = (jnp.asarray([1.0, 4.0])[:, None] * jax.random.normal(key, (3, 9, 2, 8)) for key in keys)
    options = {"positions": jnp.arange(9), "causal": True}
    heads = attention_entropy.head_entropies(q, k, 1, **options)
    weights = attention_weights(q, k, **options)
    assert np.asarray(heads) == pytest.approx([mean_entropy(weights[:, head]) for head in (0, 1)], rel=1e-5)
    assert float(attention_entropy.entropy(q, k, 1, **options)) == pytest.approx(float(heads.mean()), rel=1e-5)


def test_uniform_attention_has_the_logarithm_of_the_number_of_keys():
    q = jnp.zeros((1, 7, 2, 4))
    entropy = attention_entropy.entropy(q, q, 2, positions=jnp.zeros((7, 2)))
    assert float(entropy) == pytest.approx(np.log(7), rel=1e-5)


def decoder(pe: str) -> tuple:
    model = Decoder(models.decoder(vocab=11, length=8, width=16, layers=3, heads=2, pe=pe), rngs=nnx.Rngs(0))
    ids = jnp.asarray(np.random.default_rng(0).integers(11, size=(2, 8)), jnp.int32)
    return lambda execution: model(ids, execution=execution), 1


def vision(pe: str) -> tuple:
    model = ViT(models.vit(image_size=12, patch=4, width=16, layers=3, heads=2, pe=pe), rngs=nnx.Rngs(0))
    images = jax.random.normal(jax.random.key(1), (2, 12, 12, 1))
    return lambda execution: model(images, execution=execution), 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "pe"), [(decoder, "shaw"), pytest.param(vision, "rope_mixed", marks=pytest.mark.slow)]
)
def test_watching_changes_no_output_and_finds_every_layer(make, pe):
    call, axes = make(pe)

    def watch():
        watching = EntropyExecution(axes=axes)
        return call(watching), call(Execution()), watching.entropies

    watched, plain, entropies = jax.jit(watch, compiler_options=FAST)()
    np.testing.assert_allclose(watched, plain, rtol=1e-5, atol=1e-6)
    values = attention_entropy.entropies_by_name(entropies)
    assert list(values) == ["entropy/layer_0", "entropy/layer_1", "entropy/layer_2"]
    tokens = 8 if axes == 1 else 10
    assert all(0.0 < value < np.log(tokens) for value in values.values())


@pytest.mark.slow
def test_layers_of_several_kinds_are_found_in_their_order():
    pe = "rope*2 + alibi*1 + none*1"
    model = Decoder(models.decoder(vocab=11, length=8, width=16, layers=6, heads=2, pe=pe), rngs=nnx.Rngs(0))
    ids = jnp.asarray(np.random.default_rng(0).integers(11, size=(2, 8)), jnp.int32)

    uniform = np.mean(np.log(np.arange(1, 9)))  # of query i over its i + 1 keys, where all logits are 0
    for layer in (1, 3, 4):
        body, index = model.stack.layers.place(layer)
        kernel = model.stack.layers.stacked(body).attention.qkv.kernel
        kernel[...] = kernel[...].at[index].set(0.0)
    watching = EntropyExecution()
    model(ids, execution=watching)
    values = attention_entropy.entropies_by_name(watching.entropies)
    assert list(values) == [f"entropy/layer_{layer}" for layer in range(6)]
    flat = [layer for layer in range(6) if abs(values[f"entropy/layer_{layer}"] - uniform) < 1e-5]
    assert flat == [1, 3, 4]


@pytest.mark.slow
def test_an_encoder_decoder_has_three_attentions():
    config = models.encoder_decoder(vocab=9, width=16, encoder_layers=2, decoder_layers=3, heads=2)
    model, ids = EncoderDecoder(config, rngs=nnx.Rngs(0)), jnp.ones((2, 4), jnp.int32)

    def watch():
        watching = EntropyExecution()
        model(ids, ids, execution=watching)
        return watching.entropies

    names = attention_entropy.entropies_by_name(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), jax.eval_shape(watch)))
    assert len(names) == 2 + 2 * 3
    assert "entropy/stack_0/layer_1" in names
    assert "entropy/stack_1/layer_2/1" in names
