"""Models that were loaded with an extension, and saved: config.json says it, or the model is refused."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

import pejax
from pejax import extensions
from pejax.interop import load, save, source_from_config
from pejax.interop.extended_config import extended_config
from tests.support.hub_folders import CONFIGS, write

QUERIES = jnp.asarray(np.random.default_rng(0).normal(size=(40, 4, 8)), jnp.float32)
FACTORS = (1.0, 1.5, 2.0, 4.0)
EXTENSIONS = {
    "linear(factor=4.0)": {"rope_type": "linear", "factor": 4.0},
    "ntk(factor=4.0)": None,
    "dynamic_ntk(factor=2.0)": {"rope_type": "dynamic", "factor": 2.0},
    "dynamic_ntk": {"rope_type": "dynamic", "factor": 1.0},
    "yarn(factor=4.0)": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    "yarn(factor=4.0, trained_length=8, beta_fast=16.0, truncate=False)": {
        "rope_type": "yarn", "factor": 4.0, "beta_fast": 16.0, "truncate": False, "original_max_position_embeddings": 8,
    },
    "llama3(factor=4.0)": {
        "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    f"longrope(factor=4.0, long_factors={FACTORS})": {
        "rope_type": "longrope", "factor": 4.0, "long_factor": [*FACTORS], "short_factor": [1.0] * 4,
        "original_max_position_embeddings": 16,
    },
}  # fmt: skip
"""What the config says of each, of a model trained at 16."""


def rotated(model):
    """Return queries at positions beyond the trained length, rotated as the encoding of the model does."""
    encoding = model.stack.encoding
    params = pejax.adapt(encoding, model.stack.encoding_params(), 40)
    return np.asarray(encoding.rotate(params, QUERIES, jnp.arange(40)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("models") / "llama", max_position_embeddings=16)


CHEAP = ("linear(factor=4.0)", "dynamic_ntk", "yarn(factor=4.0, trained_length=8, beta_fast=16.0, truncate=False)")


@pytest.mark.parametrize(
    "extend", [pytest.param(name, marks=() if name in CHEAP else pytest.mark.slow) for name in EXTENSIONS]
)
def test_an_extension_is_written_into_the_config(extend, folder, tmp_path):
    model, source = load(folder, extend=extend)
    save(model, tmp_path / "a", source)
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert config.get("rope_scaling") == EXTENSIONS[extend]
    lengths = {"dynamic": 16, "beta": 32}
    length = next((length for word, length in lengths.items() if word in extend), 64)
    assert config["max_position_embeddings"] == length
    again, _ = load(tmp_path / "a")
    np.testing.assert_allclose(rotated(again), rotated(model), atol=1e-5)
    assert np.max(np.abs(rotated(again) - rotated(load(folder)[0]))) > 0.1


def test_it_goes_where_the_config_has_its_parameters(tmp_path):
    written = {"rope_type": "default", "rope_theta": 700.0}
    folder = write(tmp_path / "a", rope_theta=None, rope_parameters=written, max_position_embeddings=16)
    for number, (extend, expected) in enumerate({
        "yarn(factor=2.0)": {"rope_theta": 700.0, "rope_type": "yarn", "factor": 2.0,
                             "original_max_position_embeddings": 16},
        "ntk(factor=2.0)": {"rope_type": "default", "rope_theta": pytest.approx(700.0 * 2.0 ** (8 / 6))},
    }.items()):  # fmt: skip
        model, source = load(folder, extend=extend)
        save(model, tmp_path / f"b{number}", source)
        config = json.loads((tmp_path / f"b{number}" / "config.json").read_text())
        assert config["rope_parameters"] == expected
        assert "rope_scaling" not in config


def test_the_length_beside_the_parameters_is_changed_too(tmp_path):
    folder = write(tmp_path / "a", "phi3", original_max_position_embeddings=64)
    model, source = load(folder, extend="yarn(factor=2.0, trained_length=32)")
    save(model, tmp_path / "b", source)
    assert load(tmp_path / "b")[1].config.layers[0].attention.pe.extend == extensions.yarn(
        trained_length=32, factor=2.0
    )


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_sections_of_the_channels_are_kept(key):
    sections = {"mrope_section": [1, 2, 1], "mrope_interleaved": True}
    theta = {"rope_theta": 700.0} if key == "rope_parameters" else {}
    config = {**CONFIGS["qwen2"], "model_type": "qwen2_vl_text", key: {**theta, "rope_type": "default", **sections}}
    own = source_from_config(config).config
    saved = extended_config(config, own, own.extended("linear(factor=2.0)"))
    assert saved[key] == {**theta, **sections, "rope_type": "linear", "factor": 2.0}


def test_a_mixtral_says_the_channels_of_a_head():
    for given in ({}, {"head_dim": 12}):
        config = {**CONFIGS["mixtral"], **given}
        own = source_from_config(config).config
        saved = extended_config(config, own, own.extended("yarn(factor=2.0)"))
        assert saved["head_dim"] == given.get("head_dim", 8)


@pytest.mark.parametrize(
    ("name", "extend", "message"),
    [
        (
            "llama",
            "log_n",
            "extend must be one of linear, dynamic_ntk, yarn, llama3, longrope, ntk alone, with a factor",
        ),
        ("llama", "pi", "to be saved in config.json, got pi of rope(base=500.0, pairing='half')"),
        ("llama", "yarn", "with a factor, of rope, to be saved in config.json, got yarn of rope"),
        ("llama", "yarn(factor=2)+log_n", "got yarn(factor=2.0)+log_n of rope"),
        ("llama, linear", "yarn(factor=2)", "got linear(factor=4.0)+yarn(factor=2.0) of rope"),
        ("llama", "yarn(factor=2, ramp='turns')", "yarn must have ramp='pair' to be saved in config.json, got 'turns'"),
        ("bloom", "pi", "got pi of alibi"),
        ("gptj", "yarn(factor=2)", "config.json of gptj cannot hold an extension, got yarn"),
        ("gemma3_text", "log_n", "extend must be the same in all layers to be saved, got 2 kinds of layers"),
        ("llama", "dynamic_ntk(trained_length=8)", "trained_length of dynamic_ntk must be the length of the model, 64"),
    ],
)
def test_what_the_config_cannot_say_is_refused(name, extend, message):
    config = source_from_config(CONFIGS[name]).config
    with pytest.raises(ValueError) as error:  # noqa: PT011
        extended_config(CONFIGS[name], config, config.extended(extend))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_model_that_is_refused_leaves_nothing(folder, tmp_path):
    model, source = load(folder, extend="log_n")
    with pytest.raises(ValueError, match="alone, with a factor, of rope, to be saved in config"):
        save(model, tmp_path / "b", source)
    assert not [*tmp_path.iterdir()]
