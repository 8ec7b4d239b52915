"""Context extension against transformers' own functions, on the published configurations of models."""

import jax
import numpy as np
import pytest

from pejax._encodings.rope import rope_frequencies
from pejax._extensions.base import Rotary
from tests.support.cases import EXTEND_FREQUENCIES
from tests.support.peers import peer

pytestmark = pytest.mark.parity

# The factors of Phi-3.5-mini-instruct's config.json, which has the shape of Phi-3-mini-128k-instruct's.
LONG = """
    1.08 1.11 1.14 1.34 1.5899999 1.6 1.62 2.6200001 3.23 3.23 4.79 7.4000001 7.7000003 9.0900002 12.2 17.67
    24.460001 28.570002 30.420002 30.840002 32.590004 32.930004 42.320004 44.960003 50.340004 50.450005 57.550003
    57.930004 58.210003 60.140003 62.610004 62.620003 62.710003 63.140003 63.140003 63.770004 63.930004 63.960003
    63.970001 64.029999 64.07 64.080002 64.120003 64.410004 64.480003 64.510002 64.529999 64.839996
"""
SHORT = """
    1 1.02 1.03 1.03 1.05 1.05 1.05 1.05 1.05 1.0699999 1.0999999 1.1099999 1.1599998 1.1599998 1.1699998 1.2899998
    1.3399998 1.6799998 1.7899998 1.8199998 1.8499998 1.8799998 1.9099997 1.9399997 1.9899997 2.0199997 2.0199997
    2.0199997 2.0199997 2.0199997 2.0199997 2.0299997 2.0299997 2.0299997 2.0299997 2.0299997 2.0299997 2.0299997
    2.0299997 2.0299997 2.0799997 2.0899997 2.1899996 2.2199996 2.5899994 2.7299995 2.7499995 2.8399994
"""
PHI3 = {name: [float(factor) for factor in text.split()] for name, text in (("long", LONG), ("short", SHORT))}

# (module and class of the configuration, its head_dim, its fields, the extension and what it is told)
MODELS = {
    "Llama-3.1-8B": (
        ("llama", "LlamaConfig", 128),
        {"hidden_size": 4096, "num_attention_heads": 32, "max_position_embeddings": 131072, "rope_theta": 500000.0},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        8192,
    ),
    "Llama-3.2-1B": (
        ("llama", "LlamaConfig", 64),
        {"hidden_size": 2048, "num_attention_heads": 32, "max_position_embeddings": 131072, "rope_theta": 500000.0},
        {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        8192,
    ),
    "Qwen2.5-7B with YaRN": (
        ("qwen2", "Qwen2Config", 128),
        {"hidden_size": 3584, "num_attention_heads": 28, "max_position_embeddings": 131072, "rope_theta": 1000000.0},
        {"rope_type": "yarn", "factor": 4.0},
        32768,
    ),
    "DeepSeek-V3": (
        ("deepseek_v3", "DeepseekV3Config", 64),
        {"qk_rope_head_dim": 64, "max_position_embeddings": 163840, "rope_theta": 10000.0},
        {
            "rope_type": "yarn",
            "factor": 40.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
        4096,
    ),
    "gpt-oss": (
        ("gpt_oss", "GptOssConfig", 64),
        {"head_dim": 64, "max_position_embeddings": 131072, "rope_theta": 150000.0},
        {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
        4096,
    ),
    "Phi-3-mini-128k": (
        ("phi3", "Phi3Config", 96),
        {"hidden_size": 3072, "num_attention_heads": 32, "max_position_embeddings": 131072, "rope_theta": 10000.0},
        {"rope_type": "longrope", "short_factor": PHI3["short"], "long_factor": PHI3["long"]},
        4096,
    ),
    "dynamic NTK": (
        ("llama", "LlamaConfig", 96),
        {"hidden_size": 3072, "num_attention_heads": 32, "max_position_embeddings": 4096, "rope_theta": 10000.0},
        {"rope_type": "dynamic", "factor": 2.0},
        4096,
    ),
    "linear": (
        ("llama", "LlamaConfig", 128),
        {"hidden_size": 4096, "num_attention_heads": 32, "max_position_embeddings": 4096, "rope_theta": 10000.0},
        {"rope_type": "linear", "factor": 3.0},
        4096,
    ),
}
OURS = {"dynamic": "dynamic_ntk", "short_factor": "short_factors", "long_factor": "long_factors"}


def published(name: str, length: int):
    """Return the frequencies and the attention factor that transformers computes."""
    (module, config_class, _), fields, parameters, trained = MODELS[name]
    configuration = peer(f"transformers.models.{module}.configuration_{module}")
    reference = {"rope_theta": fields["rope_theta"], **parameters}
    if parameters["rope_type"] in ("yarn", "longrope", "llama3"):
        reference["original_max_position_embeddings"] = trained
    if module == "phi3":
        fields = {**fields, "original_max_position_embeddings": trained, "pad_token_id": 0}
    config = getattr(configuration, config_class)(**fields, rope_parameters=reference)
    compute = peer("transformers.modeling_rope_utils").ROPE_INIT_FUNCTIONS[parameters["rope_type"]]
    frequencies, factor = compute(config, "cpu", seq_len=length)
    return frequencies.double().numpy(), factor


def ours(name: str, length):
    """Return what the extension makes of the model's plain frequencies."""
    (_, _, head_dim), fields, parameters, trained = MODELS[name]
    options = {OURS.get(key, key): value for key, value in parameters.items() if key != "rope_type"}
    if parameters["rope_type"] == "longrope":
        options["factor"] = fields["max_position_embeddings"] / trained
    rotary = Rotary(fields["rope_theta"], head_dim, length)
    plain = rope_frequencies(head_dim, base=fields["rope_theta"])
    extend = EXTEND_FREQUENCIES[OURS.get(parameters["rope_type"], parameters["rope_type"])]
    return extend(plain, rotary, trained_length=trained, **options)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("length", [128, 100000])
def test_frequencies_and_attention_factors_are_those_of_transformers(name, length):
    frequencies, factor = published(name, length)
    actual, actual_factor = ours(name, length)
    assert len(frequencies) == MODELS[name][0][2] // 2
    np.testing.assert_allclose(actual, frequencies, rtol=1e-6)
    assert actual_factor == pytest.approx(factor, rel=1e-12)


@pytest.mark.parametrize("name", ["Phi-3-mini-128k", "dynamic NTK"])
def test_a_traced_length_gives_them_too(name):
    for length in (128, 100000):
        actual, _ = jax.jit(lambda length: ours(name, length))(length)
        np.testing.assert_allclose(actual, published(name, length)[0], rtol=1e-6)


def test_the_two_lengths_differ_where_the_length_matters():
    for name in MODELS:
        short, long = (published(name, length)[0] for length in (128, 100000))
        assert np.any(short != long) == (name in ("Phi-3-mini-128k", "dynamic NTK"))
