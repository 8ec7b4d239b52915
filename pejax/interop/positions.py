"""The rotary encoding that a config.json describes, of any layer."""

from collections.abc import Mapping
from typing import Any

from pejax._record.specs import EncodingSpec
from pejax.interop.any_rope import OF_IMAGES, entry_name, read_any_rope
from pejax.interop.architectures import ARCHITECTURES
from pejax.interop.config import Config
from pejax.interop.model_config import architecture_of
from pejax.interop.pipelines import read_preset
from pejax.interop.rope import LAYER_TYPES, check_rotation
from pejax.interop.rope_models import UNREADABLE
from pejax.interop.stacks import stacks
from pejax.interop.towers import TOWERS


def rope_from_config(
    config: Mapping[str, Any],
    layer_type: str | None = None,
    *,
    pairing: str | None = None,
    base: float | None = None,
    rotated_fraction: float | None = None,
) -> EncodingSpec:
    """Return the spec of a layer's encoding with its extension: `make_encoding(spec, dims)` makes it.

    It reads the config.json of any model of transformers: `rope_parameters`, with an entry per layer type or without,
    and the flat keys of older files (`rope_theta`, `rotary_emb_base`, `partial_rotary_factor`, `rotary_pct`,
    `rope_scaling` with `type` or `rope_type`). Which channels turn together is not in the file: a table has it by
    `model_type`, written from the code of transformers; any other model needs `pairing`. Of a model that `load` reads,
    the encoding is that of the loaded model. Pictures and videos give `rope_axial`, or `rope` with `sections`, on the
    axes of the positions. Where keys are latent (MLA), the encoding is that of the shared part of
    `qk_rope_head_dim` channels. A layer type whose entry is null has no positions: `none`.

    It also reads the transformer/config.json of diffusers, to a preset of `rope_axial`.

    Args:
        config: the content of config.json, or of its part for text (`config["text_config"]`) or pictures.
        layer_type: a layer type in `rope_parameters`, such as "full_attention" or "sliding_attention", in models whose
            layers differ. None = all are alike.
        pairing: which channels are rotated together, as in `pejax.encodings.rope`. It must be given for a config
            without `model_type`, or with an unknown one. None = as the `model_type` says.
        base: default of the base, for a config with an unknown `model_type` or none. None = 10,000.
        rotated_fraction: default fraction of a head's channels that is rotated, for the same. None = 1.

    Raises:
        ValueError: a key that is missing, unknown or has an impossible value, an unknown type, a model without such a
            layer, or whose encoding a config.json does not hold; a pairing that is not given and unknown, or given and
            another one than the model's.

    Examples:
        >>> scaling = {"type": "linear", "factor": 4.0}
        >>> heads = {"hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 2048}
        >>> rope_from_config({**heads, "rope_theta": 500000.0, "rope_scaling": scaling}, pairing="half")
        rope(base=500000.0, pairing='half', extend='linear(factor=4.0)')
        >>> rope_from_config({"model_type": "ernie4_5_moe", "rope_theta": 100000.0})
        rope(base=100000.0, pairing='interleaved')
        >>> rope_from_config({"_class_name": "FluxTransformer2DModel", "axes_dims_rope": [16, 56, 56]})
        rope_axial(preset='flux')
    """
    for name, value, kind in (("config", config, Mapping), ("layer_type", layer_type, str | None)):
        if not isinstance(value, kind):
            rule = "an object" if name == "config" else "a string or None"
            raise ValueError(f"{name} must be {rule}, got {value!r}"[:400])
    given = {"pairing": pairing, "base": base, "rotated_fraction": rotated_fraction}
    c, model_type = Config(config), config.get("model_type")
    if model_type is not None and not isinstance(model_type, str):
        raise ValueError(f"model_type must be a string, got {model_type!r}")
    if "_class_name" in config:
        _refuse(given, "_class_name", config["_class_name"])
        spec = read_preset(c)
    elif model_type in {*ARCHITECTURES, *TOWERS} - {*OF_IMAGES, *UNREADABLE} and entry_name(config) == model_type:
        _refuse(given, "model_type", model_type)
        spec = _of_model(c, layer_type)
    else:
        spec = read_any_rope(c, layer_type, **given)
    for part in c.parts:
        part.close()
    return spec


def _refuse(given: Mapping[str, Any], key: str, name: object) -> None:
    """Raise ValueError for an argument about what the model says itself."""
    for argument, value in given.items():
        if value is not None:
            raise ValueError(f"{argument} must be None for {key} {name!r}, which has its own, got {value!r}")


def _of_model(c: Config, layer_type: str | None) -> EncodingSpec:
    """Return the rotary encoding of a model's layers of this type."""
    if layer_type not in (None, *LAYER_TYPES):
        raise ValueError(f"layer_type must be None or one of {', '.join(LAYER_TYPES)}, got {layer_type!r}")
    layers = [layer.attention for stack in stacks(architecture_of(c.keys).read(c)).values() for layer in stack.layers]
    kinds = {None: (True, False), "full_attention": (False,), "sliding_attention": (True,)}[layer_type]
    specs = {layer.pe for layer in layers if (layer.window is not None) in kinds}
    rotary = [pe for pe in specs if isinstance(pe, EncodingSpec) and pe.name == "rope"]
    if len(rotary) != 1:
        rule = "layer_type must name layers that have the same rotary encoding"
        raise ValueError(f"{rule}, got {layer_type!r} for {c.keys['model_type']} with {len(rotary)} encodings")
    for attention in layers:
        if attention.pe == rotary[0]:
            check_rotation(c, rotary[0], attention.head_dim)
    return rotary[0]
