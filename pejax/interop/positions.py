"""The rotary encoding that a config.json describes, of any layer."""

from collections.abc import Mapping
from typing import Any

from pejax._record.specs import EncodingSpec
from pejax.interop.config import Config
from pejax.interop.model_config import architecture_of
from pejax.interop.rope import LAYER_TYPES, read_rope
from pejax.interop.stacks import stacks


def rope_from_config(
    config: Mapping[str, Any],
    layer_type: str | None = None,
    *,
    pairing: str = "half",
    base: float = 1e4,
    rotated_fraction: float = 1.0,
) -> EncodingSpec:
    """Return the spec of a layer's encoding with its extension: `make_encoding(spec, dims)` makes it.

    It reads `rope_parameters`, with an entry per layer type or without, and the flat keys of older files (`rope_theta`,
    `rotary_emb_base`, `partial_rotary_factor`, `rotary_pct`, `rope_scaling` with `type` or `rope_type`). With a
    `model_type`, the encoding is that of the model: defaults, names of keys and the layers with a scaling are
    those of its architecture.

    Args:
        config: the content of config.json.
        layer_type: "full_attention" or "sliding_attention", in models whose layers differ. None = all are alike.
        pairing: which channels are rotated together, as in `pejax.encodings.rope`. Like the two below, only for a
            config without `model_type`.
        base: default of the base.
        rotated_fraction: default fraction of a head's channels that is rotated.

    Raises:
        ValueError: a key that is missing, unknown or has an impossible value, an unknown type, or a model without such
            a layer.

    Examples:
        >>> scaling = {"type": "linear", "factor": 4.0}
        >>> heads = {"hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 2048}
        >>> rope_from_config({**heads, "rope_theta": 500000.0, "rope_scaling": scaling})
        rope(base=500000.0, pairing='half', extend='linear(factor=4.0)')
    """
    if layer_type not in (None, *LAYER_TYPES):
        raise ValueError(f"layer_type must be None or one of {', '.join(LAYER_TYPES)}, got {layer_type!r}")
    c = Config(config)
    if "model_type" in config:
        spec = _of_model(c, layer_type)
    else:
        base, rotated_fraction = c.number("rotary_emb_base", base), c.number("rotary_pct", rotated_fraction)
        spec = read_rope(c, layer_type, pairing=pairing, base=base, rotated_fraction=rotated_fraction)
    for part in c.parts:
        part.close()
    return spec


def _of_model(c: Config, layer_type: str | None) -> EncodingSpec:
    """Return the rotary encoding of a model's layers of this type."""
    layers = [layer.attention for stack in stacks(architecture_of(c.keys).read(c)).values() for layer in stack.layers]
    kinds = {None: (True, False), "full_attention": (False,), "sliding_attention": (True,)}[layer_type]
    specs = {layer.pe for layer in layers if (layer.window is not None) in kinds}
    rotary = [pe for pe in specs if isinstance(pe, EncodingSpec) and pe.name == "rope"]
    if len(rotary) != 1:
        rule = "layer_type must name layers that have the same rotary encoding"
        raise ValueError(f"{rule}, got {layer_type!r} for {c.keys['model_type']} with {len(rotary)} encodings")
    return rotary[0]
