"""ModernBERT: old and new keys, a base per layer type, the reach of the windows, and the head's biases."""

import numpy as np
import pytest

from pejax.interop import source_from_config
from tests.support.hub_folders import CONFIGS, ENCODER, drawn, run

IDS = np.random.default_rng(0).integers(0, 97, (1, 12))
OLD = {"model_type": "modernbert", **ENCODER, "num_hidden_layers": 4}


def blocks(**keys):
    return source_from_config({**OLD, **keys}).config.layers


def bases(found) -> list[float]:
    return [dict(layer.attention.pe.options)["base"] for layer in found]


def test_old_keys_and_new_ones_say_the_same():
    old = blocks(global_attn_every_n_layers=2, global_rope_theta=700.0, local_rope_theta=50.0)
    parameters = {
        "full_attention": {"rope_type": "default", "rope_theta": 700.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
    }
    new = blocks(layer_types=["full_attention", "sliding_attention"] * 2, rope_parameters=parameters)
    assert old == new
    assert bases(new) == [700.0, 50.0, 700.0, 50.0]


def test_the_defaults_are_those_of_the_architecture():
    result = blocks()
    assert bases(result) == [160000.0, 10000.0, 10000.0, 160000.0]
    assert [block.attention.window for block in result] == [None, 65, 65, None]
    assert [block.bare for block in result] == [True, False, False, False]
    assert not result[0].norm.bias


def test_scaling_is_for_the_layers_of_both_types():
    result = blocks(rope_scaling={"rope_type": "linear", "factor": 4.0})
    assert {str(layer.attention.pe.extend) for layer in result} == {"linear(factor=4.0)"}


def test_a_base_for_all_layers_is_refused():
    with pytest.raises(ValueError, match=r"rope_theta must be None, got 500\.0"):
        blocks(rope_theta=500.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wide", "reach"), [(8, 4), pytest.param(9, 4, marks=pytest.mark.slow), pytest.param(2, 1, marks=pytest.mark.slow)]
)
def test_a_window_reaches_half_of_local_attention_on_either_side(wide, reach):
    config = {**OLD, "num_hidden_layers": 1, "layer_types": ["sliding_attention"], "local_attention": wide}
    model = drawn(source_from_config(config))
    changed = IDS.copy()
    changed[0, 6] += 1
    moved = np.max(np.abs(run(model, changed) - run(model, IDS)), axis=(0, 2))
    np.testing.assert_array_equal(np.flatnonzero(moved), np.arange(6 - reach, 6 + reach + 1))


def test_the_dense_layer_of_the_head_has_a_bias_where_the_config_says_so():
    plain, biased = (source_from_config({**CONFIGS[name], "num_hidden_layers": 1}).tensors for name in (
        "modernbert", "modernbert, biases",
    ))  # fmt: skip
    assert {*biased} - {*plain} >= {"head.dense.bias", "head.norm.bias", "decoder.weight", "model.layers.0.mlp.Wi.bias"}
    assert "model.layers.0.attn_norm.weight" not in plain
