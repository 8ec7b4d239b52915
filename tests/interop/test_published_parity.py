"""Published config files against transformers: the rotary frequencies and attention factors of every one of them."""

import importlib
import json

import numpy as np
import pytest

from pejax._encodings.rope import rope_frequencies
from pejax._extensions.frequencies import extend_frequencies
from pejax.interop.model_config import read_config
from pejax.interop.rope import LAYER_TYPES
from pejax.interop.stacks import stacks
from tests.support.peers import peer
from tests.support.published import ACCEPTED, FOLDER, VERDICTS

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]


def frequencies(spec, head_dim: int, trained: int, length: int):
    """Return our radians per token at this length, and the attention factor."""
    options = dict(spec.options)
    base, turned = options["base"], options.get("rotary_dim", head_dim)
    plain = rope_frequencies(head_dim, base=base, rotary_dim=turned)
    extension = extend_frequencies(spec.extend, plain, base=base, rotary_dim=turned, trained_length=trained)
    return extension.extend(plain, length, None)


def theirs(keys: dict, kind: str, length: int):
    """Return what the rotary module of transformers has for layers of this type at this length."""
    transformers = peer("transformers")
    config = transformers.CONFIG_MAPPING[keys["model_type"]].from_dict(keys)
    config = config.get_text_config()
    module = importlib.import_module(type(config).__module__.replace("configuration_", "modeling_"))
    rotary = next(
        item for name, item in vars(module).items()
        if name.endswith("RotaryEmbedding") and "Vision" not in name and item.__module__ == module.__name__
    )(config)  # fmt: skip
    prefix = f"{kind}_" if hasattr(rotary, f"{kind}_inv_freq") else ""
    result, factor = getattr(rotary, f"{prefix}inv_freq"), getattr(rotary, f"{prefix}attention_scaling")
    rope = config.rope_parameters[kind] if prefix else config.rope_parameters
    if rope["rope_type"] in ("longrope", "dynamic"):
        compute = peer("transformers.modeling_rope_utils").ROPE_INIT_FUNCTIONS[rope["rope_type"]]
        result, factor = compute(config, "cpu", seq_len=length)
    return result.double().numpy(), factor


@pytest.mark.parametrize("file", ACCEPTED)
def test_frequencies_and_attention_factors_are_those_of_transformers(file):
    keys = json.loads((FOLDER / file).read_text())
    compared = 0
    for stack in stacks(read_config(keys)).values():
        for reference in dict.fromkeys(layer.attention for layer in stack.layers):
            if getattr(reference.pe, "name", "") != "rope":
                continue
            kind = LAYER_TYPES[reference.window is not None]
            for length in (stack.length, 64):
                expected, factor = theirs(keys, kind, length)
                ours, scale = frequencies(reference.pe, reference.head_dim, stack.length, length)
                np.testing.assert_allclose(ours, expected, rtol=1e-6)
                np.testing.assert_allclose(scale, factor, rtol=1e-6)
                compared += 1
    assert bool(compared) == ("rope" in VERDICTS[file].split(", ")[-1])
