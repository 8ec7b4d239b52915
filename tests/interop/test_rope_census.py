"""Every default configuration of transformers with rotary parameters: read, and turned as its own code turns."""

import inspect

import numpy as np
import pytest

from pejax.encodings import PRESETS
from pejax.interop import rope_from_config
from pejax.interop.any_rope import OF_IMAGES
from pejax.interop.architectures import ARCHITECTURES
from pejax.interop.pipelines import PIPELINES
from pejax.interop.rope_models import MODELS, UNREADABLE
from tests.support.peers import peer

pytestmark = [pytest.mark.parity, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

FITTING = "pairs together, got"
REFUSED = {
    "glm4_moe": "must be a multiple of num_attention_heads",
    "glm4v_moe_text": "must be a multiple of num_attention_heads",
    "qwen3_omni_moe_text": "must be a multiple of num_attention_heads",
    "glm4v_text": FITTING,
    "glm_image_text": FITTING,
    "qwen3_omni_moe_talker_text": FITTING,
    "qwen4_exp_text": FITTING,
    "": "pairing must be given without a model_type",  # of Qwen3OmniMoeCode2WavConfig
    **{name: f"model_type '{name}' is not supported: {reason}" for name, reason in UNREADABLE.items()},
}
"""Model types whose default configuration is refused, and what is said. The first seven do not run in transformers,
either, or only with other pairs: their heads are not those of the published models."""

POSITIONS_INSIDE = {"llama4_vision_model": "llama4_vision", "sam2_video": "sam2", "sam3_tracker_video": "sam2"}
"""Model types whose code takes no positions, and the presets that `test_presets_parity.py` compares with it."""

SAME = {**POSITIONS_INSIDE, "gemma4_vision": "gemma4_vision", "sam3_vit_model": "sam3", "pixtral": "pixtral",
        "kimi_k25_vision": "kimi_vision"}  # fmt: skip
"""Model types that have presets; these are compared at rows and columns."""

NO_POSITIONS = {("beam", "full_attention"), ("granitemoehybrid", None)}


@pytest.fixture(scope="module")
def code():
    """Return the module that runs the rotary code of transformers."""
    peer("transformers")
    peer("torch")
    from benchmarks import rope_code

    return rope_code


@pytest.fixture(scope="module")
def cases(code):
    return list(code.default_configurations())


def test_every_default_configuration_turns_as_its_own_code_or_is_refused_with_its_reason(code, cases):
    from benchmarks.rope_models import positions

    verdicts, wrong = dict.fromkeys(("read", "refused", "compared"), 0), []
    for name, config, keys in cases:
        read = True
        for layer_type in code.layer_types(config):
            try:
                spec = rope_from_config(keys, layer_type)
            except ValueError as refusal:
                read = False
                if REFUSED.get(config.model_type, "no reason") not in str(refusal):
                    wrong.append((name, layer_type, str(refusal)))
                continue
            if str(spec) == "none" or config.model_type in POSITIONS_INSIDE:
                known = (config.model_type, layer_type) in NO_POSITIONS or config.model_type in POSITIONS_INSIDE
                wrong += [] if known else [(name, layer_type, "no positions")]
                continue
            theirs = code.Rotation(config, layer_type)
            at = positions(theirs)
            reads_text_alone = config.model_type in {*ARCHITECTURES} - {*OF_IMAGES}  # the same on all axes
            if theirs.axes > 1 and reads_text_alone:
                at, spec = [place * 0 + place[0] for place in at], on_all_axes(spec, theirs)
            difference = code.difference(theirs, spec, at)
            verdicts["compared"] += 1
            wrong += [] if difference < 1 else [(name, layer_type, str(spec), difference)]
        verdicts["read" if read else "refused"] += 1
    assert not wrong
    if peer("transformers").__version__ == "5.24.0":  # as docs/interop.md says
        assert verdicts == {"read": 223, "refused": 19, "compared": 236}


def on_all_axes(spec, theirs):
    """Return the spec with the axes of a model whose text tower has one; positions are equal on all of them."""
    return type(spec)(spec.name, {**dict(spec.options), "sections": tuple(theirs.sections)}, spec.extend)


def test_the_table_is_what_the_code_of_transformers_says(cases):
    from benchmarks.rope_models import table

    assert table(cases) == MODELS


def test_a_flag_of_the_file_decides_about_the_pairing(code):
    for name in sorted(key for key, entry in MODELS.items() if entry.get("by_flag")):
        config = peer("transformers").CONFIG_MAPPING[name](rope_interleave=False)
        theirs = code.Rotation(config)
        spec = rope_from_config(config.to_dict())
        assert dict(spec.options)["pairing"] == "half"
        assert code.difference(theirs, spec, [np.array([5])]) < 1


@pytest.mark.parametrize("name", SAME)
def test_a_model_that_has_a_preset_has_its_options(name):
    preset = {"pairing": "interleaved", **PRESETS[SAME[name]].options}
    config = {"model_type": name, "rope_parameters": {"rope_type": "axial", "rope_theta": preset["base"]}}
    assert dict(rope_from_config(config).options) == preset


@pytest.mark.parametrize("name", PIPELINES)
def test_a_model_of_diffusers_has_the_preset_by_default(name):
    """HiDream's default widths are for two axes, and CogVideoX-2b has no rotation: published files say otherwise."""
    pipeline, parameters = PIPELINES[name], inspect.signature(getattr(peer("diffusers"), name).__init__).parameters
    names = [*filter(None, (pipeline.widths, pipeline.base, pipeline.needed, pipeline.halves)), *pipeline.fixed]
    keys = {key: parameters[key].default for key in names}
    keys = {key: [*value] if isinstance(value, tuple) else value for key, value in keys.items()}
    published = {"HiDreamImageTransformer2DModel": {"axes_dims_rope": [64, 32, 32]},
                 "CogVideoXTransformer3DModel": {"use_rotary_positional_embeddings": True}}  # fmt: skip
    keys |= {"_class_name": name} | published.get(name, {})
    assert str(rope_from_config(keys)) == f"rope_axial(preset={pipeline.preset!r})"
