"""Generation one layer at a time gives what one program gives, and which policy a generation has that names none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pejax.models import Rolling, Sampling, generate, stream
from pejax.models.generation import by_layer
from pejax.models.generation.by_layer import runs_by_layer
from pejax.models.generation.decoder import _checked
from pejax.models.generation.steps import policy_by_changes
from tests.support.cases import slow
from tests.support.decoders import ids_of, logits, make

LONGROPE = "longrope(short_factors=(1.0, 1.5), long_factors=(2.0, 6.0), factor=4)"
SWITCHING = {"pe": "rope(base=4)", "extend": LONGROPE, "length": 6}
GROWING = {"pe": "rope(base=4)", "extend": "dynamic_ntk(factor=2)", "length": 4}
SEGMENTS = jnp.array([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1], [1, 1, 1, 2, 2, 2]])
"""A whole prompt, one padded on the left, two documents of which the second goes on."""


@pytest.fixture
def layered(monkeypatch):
    """Let tiny models run one layer at a time, too."""
    monkeypatch.setattr(by_layer, "SMALLEST", 0)


def close(actual, expected) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * max(1.0, float(np.abs(expected).max())))


@pytest.mark.slow
def test_a_switch_of_parameters_is_the_full_forward_pass_at_each_token(layered):
    model, prompts = make(**SWITCHING), ids_of(1, 4)
    new, result = generate(model, prompts, 5, return_logits=True)  # lengths 4 ... 8: the factors change at 7
    ids = jnp.concatenate([prompts, new], axis=1)
    for n in range(5):
        segments = (jnp.arange(8) < 4 + n).astype(jnp.int32)[None]
        close(result[:, n], logits(model, ids[:, :8], segments, extent=jnp.asarray(4 + n))[:, 3 + n])


def test_one_layer_at_a_time_is_the_full_forward_pass(layered):
    model, prompts = make(pe="none"), ids_of(1, 4)
    new, result = generate(model, prompts, 2, return_logits=True)
    close(result, logits(model, jnp.concatenate([prompts, new[:, :1]], axis=1))[:, 3:])


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"pe": "rope", "sampling": Sampling(1.0, top_k=5)},
        {"pe": "t5", "layers": 3},
        {"pe": "shaw"},
        {"pe": "learned"},
        {"pe": "rope*2 + alibi*1", "layers": 6},
        {"pe": "rope", "style": "gpt2"},
        {"pe": "rope(base=4)", "extend": "self_extend(window=2)", "length": 4},
        SWITCHING,
        GROWING,
        GROWING | {"policy": "recompute"},
        {"pe": "learned", "extend": "resize", "length": 4, "policy": "recompute"},
    ],
    ids=str,
)
def test_it_gives_what_one_program_gives(options, monkeypatch):
    of_generation = {name: options[name] for name in ("policy", "sampling") if name in options}
    model = make(**{name: value for name, value in options.items() if name not in of_generation})
    prompts = ids_of(3, 6)
    arguments = {"segment_ids": SEGMENTS, "key": jax.random.key(2), "stop": 3, **of_generation}
    expected, expected_logits = generate(model, prompts, 6, return_logits=True, **arguments)
    monkeypatch.setattr(by_layer, "SMALLEST", 0)
    new, result = generate(model, prompts, 6, return_logits=True, **arguments)
    np.testing.assert_array_equal(new, expected)
    close(result, np.asarray(expected_logits))
    streamed = np.stack([*stream(model, prompts, 6, **arguments)], axis=1)
    np.testing.assert_array_equal(streamed, expected[:, : streamed.shape[1]])


@pytest.mark.slow
def test_parameters_are_not_copied(layered):
    stacked = make(width=64, heads=4).stack.layers.blocks.mlp.up.kernel[...]
    first = np.asarray(stacked).ctypes.data
    step = stacked.nbytes // len(stacked)
    assert [row.unsafe_buffer_pointer() - first for row in by_layer._rows(stacked)] == [0, step]


@pytest.mark.slow
def test_a_model_may_change_while_it_streams(layered):
    model, prompts = make(pe="rope", seed=3), ids_of(1, 4)
    expected = np.asarray(generate(model, prompts, 4))[0].tolist()
    tokens = stream(model, prompts, 4)
    begun = int(next(tokens)[0])
    table = model.embedding.table
    before, table[...] = table[...], jnp.zeros_like(table[...])
    assert [begun, *(int(token[0]) for token in tokens)] == expected
    table[...] = before


def runs(model, ids, rolling=None) -> bool:
    request, settings, _ = _checked(model, ids, 2, None, Sampling(), None, None, None, rolling)
    return runs_by_layer(model, request, settings)


@pytest.mark.slow
def test_small_sharded_and_rolling_ones_run_as_one_program(monkeypatch):
    model, ids = make(pe="rope"), ids_of(1, 4)
    assert not runs(model, ids)
    monkeypatch.setattr(by_layer, "SMALLEST", 0)
    assert runs(model, ids)
    assert not runs(model, ids, Rolling(4))
    mesh = jax.make_mesh((2,), ("data",))
    split = jax.device_put(ids_of(2, 4), jax.NamedSharding(mesh, jax.P("data")))
    assert not runs(model, split)


@pytest.mark.parametrize(
    ("options", "expected"), [(SWITCHING, "recompute"), slow(GROWING, "stepwise")], ids=["switch", "growth"]
)
def test_the_policy_follows_how_often_parameters_change(options, expected):
    settings, changes = _checked(make(**options), ids_of(1, 4), 5, None, Sampling(), None, None, None, None)[1:]
    assert settings.policy == expected == policy_by_changes(changes, None)
    assert policy_by_changes(None, None) == "stepwise"
