"""Settings of sampling beside the processors of transformers, in their order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pejax.models import Sampling
from pejax.models.generation.sampling import History, penalized, ranked
from tests.support.peers import peer

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

SETTINGS = [
    Sampling(1.0, min_p=0.05),
    Sampling(1.0, min_p=1.0),
    Sampling(0.6, min_p=0.3),
    Sampling(1.0, repetition_penalty=1.3),
    Sampling(1.0, repetition_penalty=0.6),
    Sampling(0.7, 20, 0.8, 0.1, 1.1),
    Sampling(1.7, 0, 0.95, 0.02, 1.05),
    Sampling(0.3, 5, 0.5, 0.9, 2.0),
]


def of_transformers(logits, ids, sampling):
    """Return what the processors of `generate` make of logits."""
    torch, transformers = peer("torch"), peer("transformers")
    config = transformers.GenerationConfig(
        do_sample=True, temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p,
        min_p=sampling.min_p or None, repetition_penalty=sampling.repetition_penalty,
    )  # fmt: skip
    small = transformers.LlamaConfig(
        vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    model = transformers.LlamaForCausalLM(small)
    processors = model._get_logits_processor(generation_config=config, input_ids_seq_length=ids.shape[1])
    assert len(processors) == sum(value != none for value, none in zip(sampling, Sampling(1.0), strict=True))
    return processors(torch.tensor(np.asarray(ids)).long(), torch.tensor(np.asarray(logits))).numpy()


@pytest.mark.parametrize("sampling", SETTINGS, ids=[*map(str, range(len(SETTINGS)))])
def test_logits_are_those_of_the_processors(sampling):
    logits = 3 * jax.random.normal(jax.random.key(0), (4, 97))
    ids = jax.random.randint(jax.random.key(1), (4, 30), 0, 97)
    history = History.start(sampling, ids[:, :20], jnp.ones((4, 20), bool), 97)
    for step in ids[:, 20:].T:
        history = history.add(step)
    by_rank, order = ranked(penalized(logits, sampling, history), sampling)
    result = jnp.take_along_axis(by_rank, jnp.argsort(order, axis=-1), axis=-1)
    expected = of_transformers(logits, ids, sampling)
    np.testing.assert_array_equal(np.isfinite(result), np.isfinite(expected))
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
