"""Architectures from outside: what `register` refuses, and that what it takes is loaded and saved."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pejax.interop import PARTS, Architecture, load, register, save, source_from_config
from pejax.interop.architectures import ARCHITECTURES, rope_vit
from pejax.interop.registration import check_architecture
from pejax.interop.towers import TOWERS, text_tower
from tests.support.hub_folders import CONFIGS, drawn, registering, run, write

LLAMA = ARCHITECTURES["llama"]
IDS = np.arange(10)[None]


@pytest.fixture(autouse=True)
def no_architecture_stays():
    with registering():
        yield


def renamed(**names):
    return LLAMA._replace(names={**LLAMA.names, **names})


def test_an_architecture_from_outside_loads_and_saves(tmp_path):
    register("mine", LLAMA._replace(names={part: f"my.{name}" for part, name in LLAMA.names.items()}, prefix="my."))
    source = source_from_config({**CONFIGS["llama"], "model_type": "mine"})
    save(drawn(source), tmp_path / "a", source)
    assert "my.model.norm.weight" in source.tensors
    np.testing.assert_array_equal(run(load(tmp_path / "a")[0], IDS), run(load(write(tmp_path / "b"))[0], IDS))


@pytest.mark.parametrize(
    ("name", "architecture", "message"),
    [
        ("llama", LLAMA, "model_type must be a name that no other architecture has, got 'llama'"),
        ("llava", LLAMA, "model_type must be a name that no other architecture has, got 'llava'"),
        ("", LLAMA, "model_type must be the name of the architecture in config.json, got ''"),
        ("mine", LLAMA._replace(read="llama"), "read must be a function from config.json to a config, got 'llama'"),
        ("mine", LLAMA._replace(names=["table"]), "names must map parts to names, got a list"),
        ("mine", renamed(tabel="x"), "must be of parts in pejax.interop.PARTS, got 'tabel'; did you mean 'table'?"),
        ("mine", renamed(norm=None), "names['norm'] must be a name in the file, without .weight, got None"),
        ("mine", renamed(q="q_proj"), "names['q'] must hold {n}, the number of the layer, got 'q_proj'"),
        ("mine", renamed(norm="{n}.norm"), "names['norm'] must hold no {n}, because it is outside the layers"),
        ("mine", renamed(q="{n}.{layer}"), "names['q'] must hold {n}, the number of the layer, got '{n}.{layer}'"),
        ("mine", Architecture(LLAMA.read, {"norm": "norm"}), "names must have an entry for 'table', or for 'patch' of"),
        ("mine", LLAMA._replace(prefix="transformer."), "prefix must be the beginning of some names, or '', got"),
        ("mine", LLAMA._replace(experts="many"), "experts must be one of each, stacked, got 'many'"),
        ("mine", LLAMA._replace(ignored="("), "ignored and fixed must be regular expressions, got '(': missing )"),
    ],
)
def test_what_is_wrong_is_said(name, architecture, message):
    with pytest.raises(ValueError) as refusal:  # noqa: PT011
        register(name, architecture)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert ARCHITECTURES.get("mine") is None


def test_a_reader_of_something_else_is_refused():
    register("mine", LLAMA._replace(read=lambda config: dict(config.keys)))
    with pytest.raises(ValueError, match="the reader of 'mine' must return a TransformerConfig, an Encoder"):
        source_from_config({"model_type": "mine"})


@pytest.mark.slow
def test_those_of_the_library_pass():
    towers = [text_tower({"model_type": name}, ARCHITECTURES.__getitem__) for name in TOWERS]
    for architecture in (*ARCHITECTURES.values(), *rope_vit.ARCHITECTURES.values(), *towers):
        check_architecture(architecture)
        layer = source_from_config(CONFIGS["llama"]).config.layers[0]
        for own in (layer, replace(layer, parallel="two")):
            check_architecture(architecture._replace(names={**architecture.names, **architecture.by_layer(own)}))


def test_the_guide_lists_all_parts():
    guide = (Path(__file__).parents[2] / "docs" / "interop.md").read_text()
    missing = [name for name, part in PARTS.items() if f"`{name}` ({part.shape})" not in guide]
    assert not missing
