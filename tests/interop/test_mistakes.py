"""Mistakes of other libraries are far larger here than what the comparison with transformers allows."""

import dataclasses

import numpy as np
import pytest
from flax import nnx

from pejax import extensions
from pejax.interop import source_from_config
from pejax.interop.slots import empty_model
from pejax.interop.stacks import head_stack, map_stacks, with_head
from pejax.specs import parse
from tests.support.hub_folders import CONFIGS, drawn, run

pytestmark = pytest.mark.slow
IDS = np.random.default_rng(3).integers(0, 97, (2, 40))


def attention(**fields):
    return lambda config: map_stacks(
        config, lambda text: blocks(text, lambda item: dataclasses.replace(item, **fields))
    )


def blocks(text, change):
    made = tuple(dataclasses.replace(block, attention=change(block.attention)) for block in text.layers)
    return dataclasses.replace(text, layers=made)


def window_less_one(config):
    return blocks(
        config, lambda item: item if item.window is None else dataclasses.replace(item, window=item.window - 1)
    )


def model(**fields):
    return lambda config: dataclasses.replace(config, **fields)


def layers(**fields):
    return lambda config: dataclasses.replace(
        config, layers=tuple(dataclasses.replace(layer, **fields) for layer in config.layers)
    )


def one_encoding(config):
    last = config.layers[-1].attention.pe
    return blocks(config, lambda item: dataclasses.replace(item, pe=last))


def experts(**fields):
    def change(config):
        made = (dataclasses.replace(b, mlp=dataclasses.replace(b.mlp, **fields)) for b in config.layers)
        return dataclasses.replace(config, layers=tuple(made))

    return change


def head(**fields):
    return lambda config: with_head(config, dataclasses.replace(head_stack(config).head, **fields))


def truncated(config):
    def whole(own):
        (yarn,) = own.pe.extend.terms
        options = {key: value for key, value in yarn.options if key != "truncate"}
        return dataclasses.replace(own, pe=own.pe.without_extension().extended(extensions.yarn(**options)))

    return blocks(config, whole)


MISTAKES = {
    "one base for all layers": ("modernbert", attention(pe=parse("rope(base=700.0, pairing='half')"))),
    "a window one token short": ("modernbert", window_less_one),
    "q and k of T5 scaled": ("t5", attention(scale=None)),
    "T5's head not scaled": ("t5", head(scale=1.0)),
    "RoFormer's channels paired by halves": ("roformer", attention(pe=parse("rope(base=10000.0, pairing='half')"))),
    "sinks not used": ("gpt_oss", attention(sinks=False)),
    "no windows": ("gpt_oss", attention(window=None)),
    "YaRN with truncation": ("gpt_oss", truncated),
    "weights over all experts": ("mixtral", experts(over_chosen=False)),
    "weights over the chosen experts": ("olmoe", experts(over_chosen=True)),
    "branches without Granite's factor": ("granite", layers(branch_scale=1.0)),
    "GLM's channels paired by halves": ("glm", attention(pe=parse("rope(base=500.0, pairing='half', rotary_dim=6)"))),
    "positions in all layers of Command R7B": (
        "cohere2",
        attention(pe=parse("rope(base=500.0, pairing='interleaved')")),
    ),
    "YaRN in layers with windows": ("olmo3", one_encoding),
    "one expert": ("mixtral", experts(chosen=1)),
    "EmbeddingGemma's window one token short": ("gemma3_text, both sides", window_less_one),
    "EmbeddingGemma causal": ("gemma3_text, both sides", model(causal=True)),
    "no token dropout": ("esm, dropout", model(mask_id=None)),
    "MPNet without T5's bias": ("mpnet", attention(pe=parse("learned"))),
    "Helium's channels paired by halves": ("helium", attention(pe=parse("rope(base=500.0, pairing='half')"))),
    "no norm before nanochat's layers": ("nanochat", model(embed_norm=None)),
    "no norm of nanochat's queries and keys": ("nanochat", attention(qk_norm=None)),
    "a window in the decoder of ModernBERT one token short": ("modernbert-decoder", window_less_one),
    "sinks of Granite not used": ("granite_swa", attention(sinks=False)),
    "q and k of UMT5 scaled": ("umt5", attention(scale=None)),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_seen(name):
    architecture, mistaken = MISTAKES[name]
    source = source_from_config(CONFIGS[architecture])
    model = drawn(source)
    graph, state = nnx.split(empty_model(mistaken(source.config)))
    values = dict(nnx.to_flat_state(nnx.state(model)))
    other = nnx.merge(graph, nnx.from_flat_state([(path, values[path]) for path, _ in nnx.to_flat_state(state)]))
    difference = np.max(np.abs(run(other, IDS) - run(model, IDS)))
    print(f"{name}: {difference:.2g}")
    assert difference > 1e-2
